"""The commands on stores with compaction topics or in RocksDB, against what a client got from the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.commands import call, complaint, objects

NAME, TOPIC = "compacted-5.5.0", "state"


@pytest.fixture(params=[NAME, "compact-timer-5.5.0"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_kind(request.param, tmp_path)


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return sorted((row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in rows)


def served(golden: GoldenStore, topic: str) -> list[tuple[int, int, int]]:
    lines = [line for line in golden.lines("served") if line["topic"] == topic]
    return sorted((line["queue"], line["offset"], line["phy"]) for line in lines)


def test_cat_begins_at_an_offset_and_at_a_time_and_checks_the_queue(golden: GoldenStore) -> None:
    rows = served(golden, TOPIC)
    cat = ("cat", golden.path, "--topic", TOPIC)
    for offset in (0, rows[2][1] + 1, rows[-1][1]):
        found = places(objects(*cat, "--offset", str(offset)))
        assert found == [row for row in rows if row[1] >= offset]
    assert places(objects(*cat, "--verify-queue")) == rows
    assert places(objects(*cat, "--queue", "1")) == [row for row in rows if row[0] == 1]
    times = {
        (line["queue"], line["offset"], line["phy"]): line["storeTs"]
        for line in golden.lines("served")
        if line["topic"] == TOPIC
    }
    middle = sorted(times.values())[len(times) // 2]
    found = places(objects(*cat, "--since", str(middle)))
    assert found == [row for row in rows if times[row] >= middle]


def test_the_history_has_every_message_of_the_queues(golden: GoldenStore) -> None:
    """As find, which searches the log."""
    every = places(objects("find", golden.path, "--topic", TOPIC))
    assert len(every) >= len(served(golden, TOPIC))
    assert every != served(golden, TOPIC), "the places are those in the CommitLog"
    cat = ("cat", golden.path, "--topic", TOPIC, "--history")
    assert places(objects(*cat)) == every
    checked = places(objects(*cat, "--verify-queue", "--queue", "1"))
    assert checked == [row for row in every if row[0] == 1]
    middle = sorted(row[1] for row in every)[len(every) // 2]
    assert places(objects(*cat, "--offset", str(middle))) == [r for r in every if r[1] >= middle]
    (when,) = objects(*cat, "--queue", "0", "--offset", "1", "--limit", "1")
    time = ("--since", when["storeTimestamp"])
    since = places(objects(*cat, *time))
    assert since == places(objects("find", golden.path, "--topic", TOPIC, *time))
    assert set(since) < set(every)
    query = f"select queueId, queueOffset, commitLogOffset from messages where topic = '{TOPIC}'"
    assert places(objects("sql", golden.path, query, "--history")) == every


def test_the_history_of_a_damaged_compaction_log_is_there(golden: GoldenStore) -> None:
    """The queue itself is whole."""
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    every = places(objects("find", golden.path, "--topic", TOPIC))
    assert places(objects("cat", golden.path, "--topic", TOPIC, "--history")) == every


def test_an_offset_of_the_history_is_one_of_the_queue(golden: GoldenStore) -> None:
    """The compaction log may lack the last messages: its end is not that of the queue."""
    cat = ("cat", golden.path, "--topic", TOPIC, "--queue", "1", "--history")
    end = max(row[1] for row in places(objects(*cat))) + 1
    assert objects(*cat, "--offset", str(end)) == []
    assert f"queue 1: 0 to {end}" in complaint(*cat, "--offset", str(end + 1), expect=2)


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_queue_that_cannot_be_read_is_named_for_any_time(
    golden: GoldenStore, option: str
) -> None:
    """Where its messages would be in time is not known."""
    cat = ("cat", golden.path, "--topic", TOPIC, "--json")
    time = objects(*cat)[9]["storeTimestamp"]
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    assert "compactionCq/state/1" in complaint(*cat, option, time, expect=2)
    assert "compactionCq/state/1" in complaint(*cat, option, time, "--skip-damaged", expect=1)


def test_a_damaged_queue_is_left_out_if_asked(golden: GoldenStore) -> None:
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    cat = ("cat", golden.path, "--topic", TOPIC, "--json")
    assert "compactionCq/state/1" in complaint(*cat, expect=2)
    assert "compactionCq/state/1" in complaint(*cat, "--skip-damaged", expect=1)
    rows = places(objects(*cat[:-1], "--skip-damaged", expect=1))
    assert rows == [row for row in served(golden, TOPIC) if row[0] != 1]


CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"


@pytest.fixture(params=[CLEAN, CRASHED])
def rocksdb(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_kind(request.param, tmp_path)


def test_a_key_finds_its_messages(rocksdb: GoldenStore) -> None:
    served = [line for line in rocksdb.lines("served") if line["topic"] == "orders"]
    key = served[0]["props"]["KEYS"].split(" ")[0]
    wanted = {line["phy"] for line in served if key in line["props"].get("KEYS", "").split(" ")}
    done = call("find", rocksdb.path, "--topic", "orders", "--key", key, "--json")
    assert {json.loads(line)["commitLogOffset"] for line in done.stdout.splitlines()} == wanted


@pytest.mark.parametrize("words", [("recover",), ("retention", "--apply")])
def test_writers_refuse(rocksdb: GoldenStore, words: tuple[str, ...]) -> None:
    before = rocksdb.fingerprint()
    done = call(words[0], rocksdb.path, *words[1:])
    assert done.returncode != 0
    assert "RocksDB database too, which rmqstore does not change" in done.both
    assert rocksdb.fingerprint() == before
