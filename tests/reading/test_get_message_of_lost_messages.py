"""get_message does not say that there is no message where the store proves that one is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store import GetMessageStatus, QueueId
from rmq_store.errors import CorruptQueueError, DataLossError
from tests.support.golden import GoldenStore, log_files, unpack

QUEUE = QueueId("orders", 0)


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


def test_entries_of_another_queue_are_an_error(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    first, other = (Path(golden.path, f"consumequeue/orders/{number}") for number in (0, 1))
    name = sorted(os.listdir(first))[0]
    (first / name).write_bytes((other / name).read_bytes())
    with golden.open() as store, pytest.raises(CorruptQueueError, match="of another queue"):
        store.get_message(*QUEUE, 0)
