"""Records that lack bytes of their properties: all lengths and the CRC of the body are right.

A crash, a bad sector or a page that was not flushed leaves them. Without the rule such a record is a row that
lacks tags, keys and properties, and is no message of the store.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptRecordError, InvalidMessageError, StoreError
from rmq_store.recovery import plan_recovery
from rmq_store.verify import verify
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, in_a_queue, user_topic
from tests.support.log_records import parts, records
from tests.support.running.campaigns import few
from tests.support.running.commands import run
from tests.support.stores import SMALL

NAMES = ["clean-5.5.0", "clean-4.9.7", "crash-5.3.3", "geometry-5.5.0"]
COLUMNS = ["commitLogOffset", "properties", "tags", "keys"]


def zero_the_end_of(root: Path, log_offset: int, chosen: random.Random) -> str:
    """Zeros from somewhere in the properties, or before them in the topic, to the end of a record."""
    for file, at, raw in records(root):
        if int(file.name) + at == log_offset:
            _, _, topic, properties = parts(raw)
            most = len(properties) + (2 + len(topic) if chosen.random() < 0.3 else 0)
            zeros = chosen.randint(1, max(most, 3))
            write_at(file, at + len(raw) - zeros, bytes(zeros))
            return f"{zeros} bytes of the record at {log_offset}"
    raise AssertionError(log_offset)


LONG = "long" + "y" * 2000


@pytest.mark.parametrize("first", [*range(0, 2004 - 512, 97), 2004 - 513])
def test_a_sector_of_zeros_inside_of_the_properties_is_damage(tmp_path: Path, first: int) -> None:
    """At any place; one zero less is a value."""
    message = {"topic": "orders", "queueId": 0, "body": b"x", "properties": {"a": LONG}}
    with MessageStore.create(tmp_path / "s", SMALL) as writer:
        places = [writer.append(message).commit_log_offset for _ in range(3)]
    path = tmp_path / "s/commitlog" / ("0" * 20)
    whole = path.read_bytes()
    at = whole.index(LONG.encode(), places[1]) + first
    for zeros in (511, 512):
        path.write_bytes(whole[:at] + bytes(zeros) + whole[at + zeros :])
        with MessageStore.open(tmp_path / "s") as store:
            met: list[StoreError] = []
            rows = store.read_batches("orders", on_damage=met.append).read_all()["queueOffset"]
        assert rows.to_pylist() == ([0, 1, 2] if zeros == 511 else [0, 2])
        assert len(met) == zeros - 511


def copy_of(store: GoldenStore, tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "copy", ignore_errors=True)
    return Path(shutil.copytree(store.path, tmp_path / "copy"))


@pytest.mark.parametrize("seed", few("unwritten", range(6), 0))
@pytest.mark.parametrize("name", NAMES)
def test_such_a_record_is_an_error_at_its_place_and_no_row(
    golden: Golden, tmp_path: Path, name: str, seed: int
) -> None:
    chosen, store = random.Random(f"{name} {seed}"), golden(name)
    row = chosen.choice([r for r in store.truth if in_a_queue(r) and user_topic(r)][:-30])
    root, met = copy_of(store, tmp_path), list[StoreError]()
    case = zero_the_end_of(root, row["commitLogOffset"], chosen)
    with store.open() as opened:
        whole = opened.read_batches(row["topic"]).read_all().select(COLUMNS)
    with MessageStore.open(root, broker_conf=store.conf) as opened:
        with pytest.raises(CorruptRecordError) as caught:
            opened.read_batches(row["topic"]).read_all()
        assert int(caught.value.offset or 0) == row["commitLogOffset"], case
        left = opened.read_batches(row["topic"], on_damage=met.append).read_all().select(COLUMNS)
        findings = verify(opened).findings
    expected = whole.filter(pc.not_equal(whole["commitLogOffset"], row["commitLogOffset"]))
    assert left.to_pylist() == expected.to_pylist(), case
    assert met, case
    assert [f for f in findings if f.code == "log-damaged"], case
    query = f"select count(tags) from messages where topic = '{row['topic']}'"
    run("sql", str(root), query, "--broker-conf", store.conf, expect=2)


def test_a_broker_takes_such_a_record(golden: Golden, tmp_path: Path) -> None:
    """It checks lengths and the CRC of the body, and no more (CommitLog#checkMessageAndReturnSize)."""
    store = golden("crash-5.5.0")
    root, last = copy_of(store, tmp_path), store.truth[-1]
    end = last["commitLogOffset"] + last["storeSize"]
    for file, at, raw in records(root):
        if int(file.name) + at == last["commitLogOffset"]:
            write_at(file, at + len(raw) - 5, bytes(5))
    assert plan_recovery(root, store.conf, method="broker").log_end == end
    assert plan_recovery(root, store.conf).log_end == last["commitLogOffset"]


@pytest.mark.parametrize("properties", [{"A": "b\0"}, {"A": "b", "C": "\0\0"}])
def test_what_would_be_read_as_such_a_record_is_not_written(
    properties: dict[str, str], tmp_path: Path
) -> None:
    """Behind a separator a value may end in zeros."""
    message = {"topic": "orders", "queueId": 0, "body": b"x", "properties": properties}
    with MessageStore.create(tmp_path / "old", SMALL, release="4.9.7") as store:
        with pytest.raises(InvalidMessageError, match="end in a zero byte"):
            store.append(message)
        assert store.max_offset("orders", 0) == 0
    with MessageStore.create(tmp_path / "new", SMALL, release="5.5.0") as store:
        with pytest.raises(InvalidMessageError, match="512 zero bytes in a row"):
            store.append({**message, "properties": {"A": "\0" * 512}})
        store.append(message)
    with MessageStore.open(tmp_path / "new") as store:
        (row,) = store.read_batches("orders").read_all().to_pylist()
        assert dict(row["properties"]) == properties
