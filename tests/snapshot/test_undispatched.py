"""Messages that no queue lists yet keep the queue offset that is written in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rmq_store import QueueId, StoreError
from rmq_store.errors import CorruptQueueError
from rmq_store.format.queues import QUEUE_ENTRY
from tests.support.damage import write_at, write_in_log
from tests.support.golden import GoldenStore, unpack

QUEUE = QueueId("orders", 0)
WIDTH = QUEUE_ENTRY.itemsize


def without_tail(golden: GoldenStore, stop: int) -> None:
    """Let the queue end at unit `stop`: a crash lost the rest of its entries."""
    folder = Path(golden.path, "consumequeue", QUEUE.topic, str(QUEUE.queue_id))
    for path in folder.iterdir():
        first = max(0, stop * WIDTH - int(path.name))
        write_at(path, first, bytes(max(0, path.stat().st_size - first)))


def numbers(golden: GoldenStore) -> tuple[dict[int, int], list[StoreError]]:
    """Queue offset -> log offset of the rows of the queue, and the errors."""
    met: list[StoreError] = []
    rows: dict[int, int] = {}
    with golden.open() as store:
        names = ["queueOffset", "commitLogOffset", "flag"]
        for batch in store.read_batches(QUEUE.topic, [0], columns=names, on_damage=met.append):
            rows |= zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
    return rows, met


def test_a_lost_message_among_undispatched_ones_does_not_renumber_those_after_it(
    tmp_path: Path,
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    records = golden.by_queue[QUEUE]
    stop = len(records) - 8
    without_tail(golden, stop)
    truth = {record["queueOffset"]: record["commitLogOffset"] for record in records}
    assert numbers(golden) == (truth, [])
    for lost in ([stop], [stop + 3], [stop + 2, stop + 3]):
        for offset in lost:
            write_in_log(golden, records[offset]["commitLogOffset"], bytes(200))
        rows, met = numbers(golden)
        assert rows == {offset: at for offset, at in truth.items() if offset not in lost}
        assert [e.entry.queue_offset for e in met if e.entry is not None] == lost
        with golden.open() as store, pytest.raises(CorruptQueueError):
            list(store.read_batches(QUEUE.topic))
        golden = unpack("crash-5.3.3", tmp_path / str(lost[0]) / str(len(lost)))
        without_tail(golden, stop)


@pytest.mark.parametrize("damaged", [2**40, 5, 0])
def test_an_undispatched_record_with_a_damaged_number_is_reported(
    damaged: int, tmp_path: Path
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    records = golden.by_queue[QUEUE]
    stop, hit = len(records) - 8, len(records) - 5
    without_tail(golden, stop)
    write_in_log(golden, records[hit]["commitLogOffset"] + 20, damaged.to_bytes(8, "big"))
    rows, met = numbers(golden)
    truth = {record["queueOffset"]: record["commitLogOffset"] for record in records}
    assert rows == {offset: at for offset, at in truth.items() if offset != hit}
    assert records[hit]["commitLogOffset"] in [e.entry and e.entry.log_offset for e in met]


def test_an_entry_that_lists_another_message_of_its_queue_is_reported(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    records = golden.by_queue[QUEUE]
    path = Path(golden.path, "consumequeue", QUEUE.topic, "0", "0" * 20)
    write_at(path, 10 * WIDTH, path.read_bytes()[11 * WIDTH : 12 * WIDTH])
    rows, met = numbers(golden)
    truth = {record["queueOffset"]: record["commitLogOffset"] for record in records}
    assert rows == {offset: at for offset, at in truth.items() if offset != 10}
    assert [error.entry and error.entry.queue_offset for error in met] == [10]
    with golden.open() as store, pytest.raises(CorruptQueueError, match="another queue offset"):
        list(store.read_batches(QUEUE.topic, columns=["queueOffset", "flag"]))


def test_inner_batches_of_a_queue_without_files_count_all_their_messages(tmp_path: Path) -> None:
    """The columns that queues have are read from the entries alone."""
    golden = unpack("clean-5.2.0", tmp_path)
    for folder in ("consumequeue", "batchconsumequeue/inner"):
        shutil.rmtree(Path(golden.path, folder))
    with golden.open() as store:
        of_entries, of_records = (
            store.read_batches("inner", columns=names, unwrap_batches=True).read_all()
            for names in (["queueOffset"], ["queueOffset", "body"])
        )
        assert store.messages("inner", unwrap_batches=True).count_rows() == len(of_records)
    assert of_entries["queueOffset"].to_pylist() == of_records["queueOffset"].to_pylist()
    assert len(of_entries) == 36


def test_light_queues_have_what_was_not_dispatched(tmp_path: Path) -> None:
    golden = unpack("lmq-5.3.3", tmp_path)
    Path(golden.path, "abort").touch()
    listed = golden.truth[len(golden.truth) // 2]["commitLogOffset"]
    for path in Path(golden.path, "consumequeue").glob("*/*/*"):
        entries = np.fromfile(path, QUEUE_ENTRY)
        entries[entries["log_offset"] >= listed] = 0
        entries.tofile(path)
    light = {
        queue: [record["commitLogOffset"] for record in records]
        for queue, records in golden.by_queue.items()
        if queue.topic.startswith("%LMQ%")
    }
    assert max(map(max, light.values())) >= listed
    with golden.open() as store:
        for queue, places in light.items():
            rows = store.read_batches(queue.topic, columns=["commitLogOffset"]).read_all()
            assert rows["commitLogOffset"].to_pylist() == places
