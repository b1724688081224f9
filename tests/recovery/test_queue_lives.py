"""A topic that was deleted and created again: its queue begins at queue offset 0 again, and what the log has
of before is in no queue, nor comes back."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.rebuild import DATABASE, rebuild
from rmq_store.consumequeue.entry_of_record import start_of_last_life
from rmq_store.recovery import recover
from rmq_store.verify import Severity, verify
from tests.support.golden import GoldenStore, unpack, unpack_field, verified
from tests.support.renumbered import renumber, units_of, write_units

AGAIN, ORDERS = QueueId("again", 0), QueueId("orders", 0)
OLD, NEW = 25, 10  # messages of the topic before it was deleted, and after it was created again
NEW_BODIES = [f"new{n}".encode() for n in range(NEW)]


@pytest.fixture
def again(tmp_path: Path) -> Path:
    """The store of a broker on which a topic of 25 messages was deleted, created again and got 10."""
    return (
        unpack_field("deleted-topic-5.5.0", tmp_path).parent / "deleted-topic" / "c2-created-again"
    )


def places_in(root: Path) -> list[int]:
    """The log offsets that the queue lists, from its first file on."""
    raw = b"".join(path.read_bytes() for path in sorted((root / "consumequeue/again/0").iterdir()))
    units = [struct.unpack_from(">qi", raw, at) for at in range(0, len(raw), 20)]
    return [place for place, size in units if size]


def bodies(store: MessageStore) -> list[bytes]:
    column = store.read_batches("again", columns=["body"]).read_all()["body"]
    return [bytes(body) for body in column.to_pylist()]


def test_nothing_is_wrong_with_it(again: Path) -> None:
    with MessageStore.open(again) as store:
        assert bodies(store) == NEW_BODIES
        report = verify(store)
    assert report.nothing_wrong
    (note,) = [one for one in report.findings if one.code == "queue-earlier-life"]
    assert (note.severity, note.count) == (Severity.NOTE, OLD)


@pytest.mark.parametrize("store_type", ["default", DATABASE])
def test_a_rebuild_lists_the_last_life_as_the_live_broker_had_it(
    again: Path, tmp_path: Path, store_type: str
) -> None:
    report = rebuild(again, tmp_path / "new", store_type=store_type)
    assert (report.all_well, report.recovery.earlier_lives) == (True, {AGAIN: OLD})
    with MessageStore.open(tmp_path / "new") as store:
        assert (store.min_offset(*AGAIN), store.max_offset(*AGAIN)) == (0, NEW)
        assert bodies(store) == NEW_BODIES
        assert verify(store).nothing_wrong
    if store_type != DATABASE:
        assert places_in(tmp_path / "new") == places_in(again)


def test_a_recovery_lists_the_last_life_of_a_lost_queue(again: Path) -> None:
    live = places_in(again)
    shutil.rmtree(again / "consumequeue/again")
    (again / "checkpoint").unlink()  # so that all of the log counts as not dispatched
    report = recover(again)
    assert (report.left_out, report.earlier_lives) == ({}, {AGAIN: OLD})
    assert places_in(again) == live


def test_a_queue_of_both_lives_which_a_broker_dispatched_is_mended(again: Path) -> None:
    live, lost = places_in(again), again.parent / "run-lost" / "store"
    assert places_in(lost)[OLD : OLD + 1] == live[:1]  # only the first of the new ones
    errors = [one for one in verified(lost).findings if one.severity is Severity.ERROR]
    assert {one.code for one in errors} == {"queue-misses-record", "queue-lists-too-high"}
    assert sum(one.count for one in errors) == NEW
    assert all("rmqstore rebuild lists the new ones" in (one.advice or "") for one in errors)
    rebuild(lost, lost.parent / "new")
    assert places_in(lost.parent / "new")[:NEW] == live


def test_a_recovery_from_behind_the_earlier_life_cuts_its_entries(copy: GoldenStore) -> None:
    """The checkpoint of the store leads to its last file, in which the new life begins."""
    units = units_of(copy, *ORDERS)
    logs = sorted(Path(copy.path, "commitlog").iterdir())
    begins = [struct.unpack_from(">q", unit)[0] >= int(logs[-1].name) for unit in units]
    first = begins.index(True)
    assert 0 < first < len(units) - 1
    renumber(copy, *ORDERS, lambda n: n if n < first else n - first)
    write_units(copy, *ORDERS, units[: first + 1])
    Path(copy.path, "abort").touch()
    recover(copy.path)
    assert units_of(copy, *ORDERS) == units[first:]


def test_the_beginning_of_the_earlier_life_may_have_expired(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    units = units_of(golden, *ORDERS)
    renumber(golden, *ORDERS, lambda n: 5000 + n if n < 100 else n - 100)
    write_units(golden, *ORDERS, units[100:])
    assert {one.code for one in golden.verified().findings} <= {
        "queue-earlier-life",
        "consumer-ahead",
    }
    report = rebuild(golden.path, tmp_path / "new")
    assert (report.recovery.left_out, report.recovery.earlier_lives) == ({}, {ORDERS: 100})
    with MessageStore.open(tmp_path / "new") as store:
        entries = store.entries(ORDERS, 0, store.max_offset(*ORDERS))
    assert entries.log_offset.tolist() == [struct.unpack_from(">q", one)[0] for one in units[100:]]


def test_a_wrong_queue_offset_begins_no_life(copy: GoldenStore, tmp_path: Path) -> None:
    """No CRC covers the field. A broker lists the record behind those before it, and goes on."""
    units = units_of(copy, *ORDERS)
    renumber(copy, *ORDERS, lambda n: 0 if n == 100 else n)
    report = rebuild(copy.path, tmp_path / "new")
    assert report.recovery.earlier_lives == {}
    with MessageStore.open(tmp_path / "new") as store:
        entries = store.entries(ORDERS, 0, store.max_offset(*ORDERS))
    assert entries.log_offset.tolist() == [struct.unpack_from(">q", one)[0] for one in units]


@pytest.mark.parametrize("is_declared", [True, False])
def test_records_without_their_queue_have_two_readings_while_the_topic_is_there(
    copy: GoldenStore, tmp_path: Path, is_declared: bool
) -> None:
    count = len(units_of(copy, "documents", 0))
    renumber(copy, "documents", 0, lambda n: n if n < count - NEW else n - (count - NEW))
    shutil.rmtree(Path(copy.path, "consumequeue/documents"))
    if not is_declared:
        for file in Path(copy.path, "config").glob("topics.json*"):
            table = json.loads(file.read_text())
            del table["topicConfigTable"]["documents"]
            file.write_text(json.dumps(table))
    code = "queue-missing" if is_declared else "queue-deleted"
    (finding,) = [one for one in copy.verified().findings if one.code == code]
    assert finding.severity is (Severity.WARNING if is_declared else Severity.NOTE)
    assert finding.count == count
    assert f"brings back the last {NEW}," in (finding.advice or "")
    assert ("No file shows which" in finding.meaning) is is_declared
    rebuild(copy.path, tmp_path / "new")
    with MessageStore.open(tmp_path / "new") as store:
        assert store.max_offset("documents", 0) == NEW


@pytest.mark.parametrize(
    ("offsets", "row"),
    [
        ([0, 1, 2], 0),
        ([0, 1, 0], 2),
        ([0, 1, 2, 0, 1], 3),
        ([0, 0, 1], 1),
        ([7, 8, 0, 1, 2, 0, 1], 5),
        ([0, 1, 2, 3, 0, 2], 4),  # queue offset 1 is lost
        ([0, 1, 0, 3, 4], 0),  # a wrong one
        ([0, 1, 2, 1, 2], 0),  # a broker that lost its last entries
        ([5, 6], 0),
    ],
)
def test_where_the_last_life_begins(offsets: list[int], row: int) -> None:
    assert start_of_last_life(np.array(offsets), np.ones(len(offsets), dtype=np.int64)) == row
