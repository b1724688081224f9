"""Queue entries that lead to no record, as errors: filler, outside the log, or back in the log."""

from __future__ import annotations

from rmq_store.consumequeue.entries import Entries
from rmq_store.errors import CorruptQueueError, ListedAt
from rmq_store.format.layout import FILLER_SIZE
from rmq_store.format.queues import QueueId


def listed_at(queue: QueueId, entries: Entries, row: int) -> ListedAt:
    """The entry in one row of `entries`, as plain numbers."""
    numbers = (entries.offset, entries.log_offset, entries.size)
    offset, log_offset, size = (int(column[row]) for column in numbers)
    return ListedAt(*queue, offset, log_offset, size)


def leads_nowhere(folder: str, entry: ListedAt, log_end: int) -> CorruptQueueError:
    """The error of filler, and of an entry that points outside the log. `folder`: of the queue."""
    what = "filler" if entry.size == FILLER_SIZE else "an entry that points outside the log"
    return CorruptQueueError(
        folder,
        offset=entry.queue_offset,
        reason=f"{what} in queue {entry.topic}/{entry.queue_id}",
        expected=f"a record before log offset {log_end}",
        actual=f"log offset {entry.log_offset}, size {entry.size}",
        advice="The offset is a queue offset. Read with on_damage to skip it",
    )


def points_back(folder: str, entry: ListedAt, before: int) -> CorruptQueueError:
    """The error of an entry that points before `before`, where the record of the last one ends."""
    return CorruptQueueError(
        folder,
        offset=entry.queue_offset,
        reason=f"an entry of queue {entry.topic}/{entry.queue_id} points back in the log",
        expected=f"log offset {before} or more",
        actual=entry.log_offset,
        advice="The offset is a queue offset. Read with verifyQueue to check the entries against "
        "their records",
    )
