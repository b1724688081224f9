"""The commands on stores with compaction topics, against what a client got from the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.commands import call, complaint, run

NAME, TOPIC = "compacted-5.5.0", "state"


@pytest.fixture(params=[NAME, "compact-timer-5.5.0"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_kind(request.param, tmp_path)


def lines_of(*words: str) -> list[dict[str, Any]]:
    said = run(*words, "--json")
    return [json.loads(line) for line in said.splitlines()]


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return sorted((row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in rows)


def served(golden: GoldenStore, topic: str) -> list[tuple[int, int, int]]:
    lines = [line for line in golden.lines("served") if line["topic"] == topic]
    return sorted((line["queue"], line["offset"], line["phy"]) for line in lines)


def test_cat_begins_at_an_offset_and_at_a_time_and_checks_the_queue(golden: GoldenStore) -> None:
    rows = served(golden, TOPIC)
    cat = ("cat", golden.path, "--topic", TOPIC)
    for offset in (0, rows[2][1] + 1, rows[-1][1]):
        found = places(lines_of(*cat, "--offset", str(offset)))
        assert found == [row for row in rows if row[1] >= offset]
    assert places(lines_of(*cat, "--verify-queue")) == rows
    assert places(lines_of(*cat, "--queue", "1")) == [row for row in rows if row[0] == 1]
    times = {
        (line["queue"], line["offset"], line["phy"]): line["storeTs"]
        for line in golden.lines("served")
        if line["topic"] == TOPIC
    }
    middle = sorted(times.values())[len(times) // 2]
    found = places(lines_of(*cat, "--since", str(middle)))
    assert found == [row for row in rows if times[row] >= middle]


def test_the_history_has_every_message_of_the_queues(golden: GoldenStore) -> None:
    """As find, which searches the log."""
    every = places(lines_of("find", golden.path, "--topic", TOPIC))
    assert len(every) >= len(served(golden, TOPIC))
    assert every != served(golden, TOPIC), "the places are those in the CommitLog"
    cat = ("cat", golden.path, "--topic", TOPIC, "--history")
    assert places(lines_of(*cat)) == every
    assert places(lines_of(*cat, "--verify-queue", "--queue", "1")) == [
        row for row in every if row[0] == 1
    ]
    middle = sorted(row[1] for row in every)[len(every) // 2]
    assert places(lines_of(*cat, "--offset", str(middle))) == [r for r in every if r[1] >= middle]
    (when,) = lines_of(*cat, "--queue", "0", "--offset", "1", "--limit", "1")
    time = ("--since", when["storeTimestamp"])
    since = places(lines_of(*cat, *time))
    assert since == places(lines_of("find", golden.path, "--topic", TOPIC, *time))
    assert set(since) < set(every)
    query = f"select queueId, queueOffset, commitLogOffset from messages where topic = '{TOPIC}'"
    assert places(lines_of("sql", golden.path, query, "--history")) == every


def test_the_history_of_a_damaged_compaction_log_is_there(golden: GoldenStore) -> None:
    """The queue itself is whole."""
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    every = places(lines_of("find", golden.path, "--topic", TOPIC))
    assert places(lines_of("cat", golden.path, "--topic", TOPIC, "--history")) == every


def test_an_offset_of_the_history_is_one_of_the_queue(golden: GoldenStore) -> None:
    """The compaction log may lack the last messages: its end is not that of the queue."""
    cat = ("cat", golden.path, "--topic", TOPIC, "--queue", "1", "--history")
    end = max(row[1] for row in places(lines_of(*cat))) + 1
    assert lines_of(*cat, "--offset", str(end)) == []
    assert f"queue 1: 0 to {end}" in complaint(*cat, "--offset", str(end + 1), expect=2)


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_queue_that_cannot_be_read_is_named_for_any_time(
    golden: GoldenStore, option: str
) -> None:
    """Where its messages would be in time is not known."""
    cat = ("cat", golden.path, "--topic", TOPIC, "--json")
    time = lines_of(*cat)[9]["storeTimestamp"]
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    assert "compactionCq/state/1" in complaint(*cat, option, time, expect=2)
    assert "compactionCq/state/1" in complaint(*cat, option, time, "--skip-damaged", expect=1)


def test_a_damaged_queue_is_left_out_if_asked(golden: GoldenStore) -> None:
    Path(golden.path, f"compaction/compactionCq/{TOPIC}/1/{0:020d}").unlink()
    done = call("cat", golden.path, "--topic", TOPIC, "--json")
    assert done.returncode != 0
    assert "compactionCq/state/1" in done.stderr
    done = call("cat", golden.path, "--topic", TOPIC, "--json", "--skip-damaged")
    assert done.returncode == 1
    rows = places([json.loads(line) for line in done.stdout.splitlines()])
    assert rows == [row for row in served(golden, TOPIC) if row[0] != 1]
    assert "compactionCq/state/1" in done.stderr
