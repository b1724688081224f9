"""Ranges of a store: slices of the log, the parts of queue ranges in them, and the range of one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rmq_store.consumequeue.queue_files import QueueFiles
from rmq_store.format.queues import FILLER_SIZE, Entries, QueueId, QueueSlice


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A range of the commitLog between two cuts. None means the end of the selection."""

    start: int | None  # commitLog offset, included
    stop: int | None  # commitLog offset, excluded
    selected_bytes: int  # an estimate


def parts_in_log_slice(
    wanted: Iterable[QueueSlice], piece: LogSlice, offset_at_log: Callable[[QueueId, int], int]
) -> list[QueueSlice]:
    """The part of every selected range whose records are in `piece`, without empty parts.

    `offset_at_log` returns the first queue offset whose record is at or after a log position. If
    its answers are always the same, every selected entry is in exactly one of the adjacent slices,
    even if a queue's log offsets are not in order.
    """
    pieces = []
    for slice_ in wanted:
        start, stop = slice_.start, slice_.stop
        if piece.start is not None:
            start = min(max(start, offset_at_log(slice_.queue, piece.start)), slice_.stop)
        if piece.stop is not None:
            stop = max(min(stop, offset_at_log(slice_.queue, piece.stop)), start)
        if start < stop:
            pieces.append(QueueSlice(slice_.queue, start, stop))
    return pieces


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

    @property
    def tail_start(self) -> int:
        """The queue offset where the tail begins; `max_offset` without a tail."""
        return self.max_offset if self.tail is None else int(self.tail.offset[0])

    @property
    def lost_from_tail(self) -> Entries:
        """An entry for each message that the log lost before a queue file listed it: records after it in the
        tail have the next queue offsets."""
        if self.tail is None:
            return Entries.none()
        return self.tail.take(~self.tail.points_to_record)


EMPTY_QUEUE = QueueState(0, 0, 0, 0)


@dataclass(slots=True)
class UnsettledQueue:
    """A queue while its state is being determined: units [first, stop), and its last record's end."""

    files: QueueFiles
    first: int
    stop: int
    min_unit: int  # the first unit that still has its record
    log_stop: int = -1  # after the record of the last entry; -1 without entries
    last_log_offset: int = -1
    after_log: int = 0  # units after `stop` that were left out, as in QueueState

    def set_last_entry(self, where: int, size: int) -> None:
        """Note where the record of the last entry lies; filler has none."""
        if size != FILLER_SIZE:
            self.log_stop, self.last_log_offset = where + size, where

    def cut_at_log_end(self, log_end: int) -> None:
        """Leave out the units that lead after the end of the log."""
        if self.log_stop > log_end:
            every, self.log_stop, self.last_log_offset = self.stop, -1, -1
            self.stop = self.files.stop_before_log(log_end, every)
            self.after_log = every - self.stop
            if self.stop > self.first:
                self.set_last_entry(*self.files.unit(self.stop - 1))

    def end_offset(self) -> int:
        """The queue offset after the last unit."""
        if not self.files.batch:
            return self.stop
        last = self.files.entries(self.stop - 1, self.stop)
        return int(last.offset[0] + last.count[0])
