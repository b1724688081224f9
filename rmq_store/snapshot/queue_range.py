"""The range of one queue."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_store.consumequeue.queue_files import QueueFiles
from rmq_store.format.queue_entries import Entries


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue: offsets [min_offset, max_offset) have messages.

    The queue's files list those up to `file_stop` (a unit of its files). `tail` holds the entries
    of records that the broker had not dispatched, found in the log. `after_log`: units after
    `file_stop` that were left out, because they lead after the end of the log. `has_hole`: no file
    holds some units between others.
    """

    min_offset: int
    max_offset: int
    file_start: int
    file_stop: int
    batch: bool = False
    tail: Entries | None = None
    after_log: int = 0
    has_hole: bool = False


EMPTY_QUEUE = QueueState(0, 0, 0, 0)


@dataclass(slots=True)
class ListedQueue:
    """A queue while its state is being determined: units [first, stop), and its last record's end."""

    files: QueueFiles
    first: int
    stop: int
    min_unit: int  # the first unit that still has its record
    log_stop: int = -1  # after the record of the last entry; -1 without entries
    last_log_offset: int = -1
    after_log: int = 0  # units after `stop` that were left out, as in QueueState
