"""Where one queue begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_store.consumequeue.entries import Entries
from rmq_store.consumequeue.files import QueueFiles


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue: offsets [min_offset, max_offset) have messages.

    Those up to `file_stop` (a unit of its files) are listed by the queue; `tail` are the entries of
    records that the broker had not dispatched, found in the log.
    """

    min_offset: int
    max_offset: int
    file_start: int
    file_stop: int
    batch: bool = False
    tail: Entries | None = None


@dataclass(slots=True)
class ListedQueue:
    """A queue while it is being resolved: units [first, stop), and the end of the last record."""

    files: QueueFiles
    batch: bool
    first: int
    stop: int
    min_unit: int  # the first that still has its record
    log_stop: int = -1  # behind the record of the last entry; -1 without entries
    last_log_offset: int = -1
