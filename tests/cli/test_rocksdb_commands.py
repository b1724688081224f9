"""The commands on stores in RocksDB, against counts of what a client got from the broker."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.commands import call

CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"


@pytest.fixture(params=[CLEAN, CRASHED])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_kind(request.param, tmp_path)


def lines_of(*words: str) -> list[dict[str, Any]]:
    done = call(*words, "--json")
    assert done.returncode == 0, done.both
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_cat_prints_what_a_client_got(golden: GoldenStore) -> None:
    before, served = golden.fingerprint(), golden.lines("served")
    for topic in sorted({line["topic"] for line in served}):
        rows = lines_of("cat", golden.path, "--topic", topic)
        found = Counter(
            (row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in rows
        )
        mine = [line for line in served if line["topic"] == topic]
        assert found == Counter((line["queue"], line["offset"], line["phy"]) for line in mine)
    assert golden.fingerprint() == before


def test_topics_and_queues_count_them(golden: GoldenStore) -> None:
    served = golden.lines("served")
    counts = Counter(line["topic"] for line in served)
    rows = {row["topic"]: row["messages"] for row in lines_of("topics", golden.path)}
    assert {topic: rows[topic] for topic in counts} == counts
    ends = Counter((line["topic"], line["queue"]) for line in served)
    queues = {(r["topic"], r["queueId"]): r["maxOffset"] for r in lines_of("queues", golden.path)}
    assert {queue: queues[queue] for queue in ends} == ends
    used = {
        row["topic"]: row["messages"] for row in lines_of("usage", golden.path) if "topic" in row
    }
    assert {topic: used[topic] for topic in counts} == counts


def test_a_key_finds_its_messages(golden: GoldenStore) -> None:
    served = [line for line in golden.lines("served") if line["topic"] == "orders"]
    key = served[0]["props"]["KEYS"].split(" ")[0]
    wanted = {line["phy"] for line in served if key in line["props"].get("KEYS", "").split(" ")}
    done = call("find", golden.path, "--topic", "orders", "--key", key, "--json")
    assert {json.loads(line)["commitLogOffset"] for line in done.stdout.splitlines()} == wanted


def test_lag_is_that_of_the_offsets_in_the_database(tmp_path: Path) -> None:
    golden = unpack_kind(CLEAN, tmp_path)
    rows = {
        r["queueId"]: r for r in lines_of("lag", golden.path) if r.get("consumerGroup") == "g-slow"
    }
    ends = Counter(line["queue"] for line in golden.lines("served") if line["topic"] == "orders")
    committed = {0: 19, 1: 44, 2: 73, 3: 0}  # as the database's keys say: tests/config
    assert {q: row["consumerOffset"] for q, row in rows.items()} == committed
    assert {q: row["lag"] for q, row in rows.items()} == {q: ends[q] - committed[q] for q in ends}


def test_info_and_verify(golden: GoldenStore) -> None:
    folder = f"{golden.path}/consumequeue"
    done = call("info", golden.path)
    assert (done.returncode, f"{folder}: queues" in done.stdout) == (0, True)
    assert call("verify", golden.path).returncode == 0


@pytest.mark.parametrize("words", [("recover",), ("retention", "--apply")])
def test_writers_refuse(golden: GoldenStore, words: tuple[str, ...]) -> None:
    before = golden.fingerprint()
    done = call(words[0], golden.path, *words[1:])
    assert done.returncode != 0
    assert "RocksDB database too, which rmqstore does not change" in done.both
    assert golden.fingerprint() == before


def test_without_the_library(golden: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rmq_store.files.rocksdb", "rmq_store.config.rocksdb_config"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    for command in ("topics", "queues", "verify", "usage"):
        done = call(command, golden.path)
        assert done.returncode != 0
        assert "pip install 'rmqstore[rocksdb]'" in done.both
    done = call("info", golden.path)
    assert done.returncode == 1
    assert re.search("queues +not known: .*the queues of this store are in a RocksDB", done.stdout)


def test_a_damaged_database_is_an_error_of_ours(golden: GoldenStore) -> None:
    folder = Path(golden.path, "consumequeue")
    for path in folder.glob("MANIFEST-*"):
        path.write_bytes(path.read_bytes()[:20])
    done = call("topics", golden.path)
    assert "RMQSTORE_CORRUPT_QUEUE" in done.stderr
    shutil.rmtree(folder)
    assert call("topics", golden.path).returncode in (0, 1)
