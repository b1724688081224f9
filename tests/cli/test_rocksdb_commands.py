"""The commands on stores in RocksDB, against counts of what a client got from the broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.golden import GoldenStore, unpack_kind
from tests.support.running.commands import call

CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"


@pytest.fixture(params=[CLEAN, CRASHED])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> GoldenStore:
    return unpack_kind(request.param, tmp_path)


def test_a_key_finds_its_messages(golden: GoldenStore) -> None:
    served = [line for line in golden.lines("served") if line["topic"] == "orders"]
    key = served[0]["props"]["KEYS"].split(" ")[0]
    wanted = {line["phy"] for line in served if key in line["props"].get("KEYS", "").split(" ")}
    done = call("find", golden.path, "--topic", "orders", "--key", key, "--json")
    assert {json.loads(line)["commitLogOffset"] for line in done.stdout.splitlines()} == wanted


@pytest.mark.parametrize("words", [("recover",), ("retention", "--apply")])
def test_writers_refuse(golden: GoldenStore, words: tuple[str, ...]) -> None:
    before = golden.fingerprint()
    done = call(words[0], golden.path, *words[1:])
    assert done.returncode != 0
    assert "RocksDB database too, which rmqstore does not change" in done.both
    assert golden.fingerprint() == before
