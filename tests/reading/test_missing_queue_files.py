"""A queue whose file has the number of a distant one: one error for all that no file holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rmq_store import GetMessageStatus, QueueId, QueueSlice, StoreError
from rmq_store.errors import CorruptQueueError, DataLossError
from tests.support.golden import GoldenStore, log_files, unpack
from tests.support.running.commands import call

QUEUE = QueueId("orders", 0)
FILE = 2000  # bytes: 100 entries


def files_of(golden: GoldenStore) -> list[Path]:
    return sorted(Path(golden.path, "consumequeue", *map(str, QUEUE)).iterdir())


def read(golden: GoldenStore, part: QueueSlice, **how: Any) -> tuple[int, list[StoreError]]:
    met: list[StoreError] = []
    with golden.open() as store:
        batches = store.read_slices([part], columns=["queueOffset"], on_damage=met.append, **how)
        return sum(batch.num_rows for batch in batches), met


@pytest.mark.parametrize("number", [50, 10_000, 10**15])
@pytest.mark.parametrize("log_order", [True, False])
def test_a_file_with_the_name_of_a_distant_one_is_one_error(
    number: int, log_order: bool, copy: GoldenStore
) -> None:
    last = files_of(copy)[-1]
    last.rename(last.with_name(f"{number * FILE:020d}"))
    with copy.open() as store:
        end = store.max_offset(*QUEUE)
    assert end == number * 100 + 49
    how = {"check_ends": False, "log_order": log_order}
    rows, (error,) = read(copy, QueueSlice(QUEUE, 0, end), **how)
    assert rows == 249
    assert f"no file for its queue offsets 200 to {number * 100 - 1}" in error.reason
    assert error.entry is not None
    assert (error.entry.queue_offset, error.entry.messages) == (200, number * 100 - 200)
    rows, (error,) = read(copy, QueueSlice(QUEUE, 150, 1000), **how)
    assert rows == 50
    assert "queue offsets 200 to 999:" in error.reason
    assert "queue offsets 200 to" in call("cat", copy.path, "--topic", "orders").stderr


def test_the_messages_of_one_file_that_is_gone_are_accounted_for_one_by_one(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    files_of(golden)[1].unlink()
    rows, met = read(golden, QueueSlice(QUEUE, 0, 249), check_ends=False)
    assert rows == 149
    assert [error.entry and error.entry.queue_offset for error in met] == list(range(100, 200))
    gone = "has no file for its queue offset 100: a file is gone"
    assert gone in met[0].reason
    assert gone in call("cat", golden.path, "--topic", "orders", "--queue", "0").stderr
    assert gone in call("verify", golden.path).stdout


def without_log_end(tmp_path: Path) -> GoldenStore:
    store = unpack("clean-5.5.0", tmp_path)
    log_files(store)[-1].unlink()
    return store


def test_an_entry_behind_the_end_of_the_log_is_an_error(tmp_path: Path) -> None:
    golden = without_log_end(tmp_path)
    with golden.open() as store:
        end = store.log_range()[1]
        lost = sum(one["commitLogOffset"] < end for one in golden.by_queue[QUEUE])
        (last,) = store.get_message(*QUEUE, lost - 1, 1).messages
        assert last.commit_log_offset < end
        before = store.get_message(*QUEUE, 0, lost + 1)  # those before it come first
        assert (len(before.messages), before.next_begin_offset) == (lost, lost)
        for offset, tags in ((lost, None), (lost - 1, "no such tag")):
            with pytest.raises(CorruptQueueError, match=f"queueOffset {lost}"):
                store.get_message(*QUEUE, offset, tags=tags)
        as_broker = store.get_message(*QUEUE, lost, as_broker=True)
        assert as_broker.status is GetMessageStatus.MESSAGE_WAS_REMOVING


def test_the_end_of_a_queue_is_an_error_where_the_log_lost_its_own(tmp_path: Path) -> None:
    golden = without_log_end(tmp_path)
    with golden.open() as store:
        end, queue = store.log_range()[1], store.max_offset(*QUEUE)
        kept = sum(one["commitLogOffset"] < end for one in golden.by_queue[QUEUE])
    files = sorted(Path(golden.path, "consumequeue/orders/0").iterdir())
    for file in files:
        size, first = file.stat().st_size, int(file.name) // 20
        os.truncate(file, min(size, max(0, kept - first) * 20))
    with golden.open() as store:
        assert store.max_offset(*QUEUE) == kept < queue
        assert store.get_message(*QUEUE, kept - 1).status is GetMessageStatus.FOUND
        with pytest.raises(DataLossError, match="the end of the log is lost"):
            store.get_message(*QUEUE, kept)


def test_entries_of_another_queue_are_an_error(copy: GoldenStore) -> None:
    first, other = (Path(copy.path, f"consumequeue/orders/{number}") for number in (0, 1))
    name = sorted(os.listdir(first))[0]
    (first / name).write_bytes((other / name).read_bytes())
    with copy.open() as store, pytest.raises(CorruptQueueError, match="of another queue"):
        store.get_message(*QUEUE, 0)
