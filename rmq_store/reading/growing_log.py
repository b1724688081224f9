"""Follow a log while a broker writes it: places, how far it is whole, and whether it is the same.

A place is an offset of the log with digests of bytes before it. So a follower that comes back later
notices a log that was cut behind it, and another store at the same path. A stream of Spark and
`rmqstore tail -f` follow a log with the same `LogFollower`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.other_store_at_path import IF_OTHER_STORE, MARK_BYTES, Mark, refuse_other
from rmq_store.commitlog.walk import last_from, next_start
from rmq_store.errors import DataLossError, LogCutError, LogOffset, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_view import QueueView

_ZEROS_LOOKED_AT = 4096
_MOST_ZEROS = 4 << 20  # zeros after the end of a log that are read, if the file system stored them
_QUEUES_EVERY = 10.0  # seconds between looks at all queues while the last file of a log changes
_QUIET_QUEUES_EVERY = 60.0  # the same once the file has not changed for some seconds


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A log offset up to which a follower has read. Small, however large the store is.

    `before`: bytes right before the offset. `first`: the first bytes of the log at that time.
    """

    offset: int
    before: Mark | None = None
    first: Mark | None = None

    @classmethod
    def at(cls, log: CommitLog, offset: int) -> LogPlace:
        """The place at an offset where a record ends, or a file."""
        if not log.chain.segments:  # the broker makes the first file with the first message
            return cls(offset)
        start = log.start
        file_start = (offset - 1) // log.chain.file_size * log.chain.file_size
        before = Mark.of(log, max(start, file_start, offset - MARK_BYTES), offset)
        first_end = min(offset, start + MARK_BYTES, start + log.chain.file_size)
        return cls(offset, before, Mark.of(log, start, first_end))


def check_place(log: CommitLog, place: LogPlace, path: str) -> None:
    """Check that a log still continues at a place.

    Raises OtherStoreError if the log began with other bytes, LogCutError if the bytes before the
    place are gone or others, DataLossError if the place has expired.
    """
    first = None if place.first is None else Mark.of(log, place.first.start, place.first.stop)
    if place.first is not None:
        refuse_other(place.first, first, path)
    if place.offset < log.start:
        raise expired(path, place.offset, log.start)
    if place.before is not None and place.before.start >= log.start:
        now = Mark.of(log, place.before.start, place.before.stop)
        if now != place.before:
            actual = f"a log that ends before {place.offset}" if now is None else "other bytes"
            raise LogCutError(
                path,
                offset=LogOffset(place.offset),
                reason="the log was cut behind what was already read: a broker lost what it had not flushed",
                expected=f"the bytes that ended at {place.offset}",
                actual=actual,
                advice="The broker may have lost messages that were read after the cut. Start "
                "again, or let a stream continue at the end of the log with failOnDataLoss=false"
                + ("" if first else f". {IF_OTHER_STORE}"),
            )


def expired(path: str, offset: int, log_start: int) -> DataLossError:
    """The error for files of a log that expired before they were read."""
    return DataLossError(
        path,
        offset=LogOffset(offset),
        reason="files of the log expired before they were read",
        expected=f"the log from {offset} on",
        actual=f"the log from {log_start} on",
        advice="Read more often than files expire; start again, or let a stream continue with what "
        f"is left with failOnDataLoss=false. {IF_OTHER_STORE}",
    )


class LogFollower:
    """Finds how far one log has grown, look after look.

    `listed_end` opens the store with its queues and gives the end of the last record that they list.
    It looks at every queue, so it is called only if the bytes of the log do not decide: every few
    seconds while the last file of the log changes, and every minute while it does not.
    """

    def __init__(self, listed_end: Callable[[], int]) -> None:
        self._listed_end = listed_end
        self._known = 0
        self._whole: LogPlace | None = None  # the end at the last look
        self._looked_at = self._changed_at = float("-inf")
        self._change: tuple[int | None, ...] = ()  # of the last file, at the last look

    def after(self, log: CommitLog, place: LogPlace, path: str) -> int:
        """The end of the whole records after a place. Raises as `check_place`."""
        check_place(log, place, path)
        return self.end(log, place.offset)

    def end(self, log: CommitLog, start: int) -> int:
        """The end of the whole records at or after log offset `start`, as `whole_end`.

        Goes on from the end at the last look, so that a follower which is far behind does not check
        the same records at each look.
        """
        end = whole_end(
            log, self._known_whole(log, start), lambda end: self._end_by_queues(log, end)
        )
        self._whole = LogPlace.at(log, end)
        return end

    def _known_whole(self, log: CommitLog, start: int) -> int:
        """`start`, or the end at the last look if it is after that and the log is still the same."""
        if self._whole is None or self._whole.offset <= start:
            return start
        try:
            check_place(log, self._whole, "")
        except StoreError:
            self._known, self._looked_at = 0, float("-inf")  # of a log that was cut
            return start
        return self._whole.offset

    def _end_by_queues(self, log: CommitLog, end: int) -> int:
        """`end`: of the last record. A new one counts as a change of the file, whose time may stay the
        same while a broker writes into its mapping."""
        now, change = time.monotonic(), (*_change_of(log), end)
        if change != self._change:
            self._change, self._changed_at = change, now
        # A broker dispatches a record a moment after it wrote it.
        quiet = self._looked_at - self._changed_at >= _QUEUES_EVERY
        if now - self._looked_at >= (_QUIET_QUEUES_EVERY if quiet else _QUEUES_EVERY):
            self._known, self._looked_at = self._listed_end(), now
        return self._known


def _change_of(log: CommitLog) -> tuple[int | None, ...]:
    """The number and the time of change of the last file; None for both where nothing says that."""
    last = log.last_file() if log.chain.cost.grows else None
    try:
        return (None, None) if last is None else (last.base, os.stat(last.path).st_mtime_ns)
    except OSError:
        return None, None


def whole_end(log: CommitLog, start: int, listed_end: Callable[[int], int]) -> int:
    """The end of the last record that is whole, at or after `start`.

    A torn end is not included: a broker may be writing it. Damage is, if a later file or an entry
    of a queue proves that the log continues after it. `listed_end` gives the end of the last record
    that a queue lists, and is called only if the bytes do not decide: with the end before them.
    """
    last = log.last_file()
    if last is None:
        return max(start, log.start)
    _, end = last_from(log, max(start, last.base))
    file_end = log.chain.segment_end(last)
    while end < file_end:
        near = log.chain.read(end, min(end + _ZEROS_LOOKED_AT, file_end))
        if not near.any() and (end > start or _only_zeros_after(log, last, end)):
            return end
        proven = listed_end(end)
        following = log.next_record(last, end + 1, file_end) if proven > end else None
        if following is None or following >= proven:
            return end
        _, end = last_from(log, following)
    return end


def _only_zeros_after(log: CommitLog, file: SegmentFile, offset: int) -> bool:
    """Whether nothing is stored after a log offset in a file, which the broker made as a hole.

    False if that is not known without reading much.
    """
    stop = file.base + log.chain.file_of(file).stored_until()
    if stop - offset > min(_MOST_ZEROS, log.chain.cost.spare):
        return False
    return stop <= offset or not log.chain.read(offset, stop).any()


def dispatched_end(view: QueueView, queues: Iterable[QueueId]) -> int:
    """The end of the last record that is known to be whole; 0 without any.

    It is listed in a queue's files, or is the last one of a store that was closed.
    """
    ends = [view.closed_end()]
    for queue in queues:
        state = view.state(queue)
        last = state.max_offset if state.batch else state.file_stop
        listed = last > state.min_offset and (state.tail is None or not state.batch)
        entry = view.entry_at(queue, last - 1) if listed else None
        if entry is not None:
            ends.append(int(entry.log_offset + entry.size))
    return max(ends)


def end_by_bytes(log: CommitLog, start: int, end: int, most: int) -> int:
    """The end of the record that contains offset `start + most`, or `end` if that is earlier."""
    cut = start + most
    segment = log.chain.segment_at(cut) if cut < end else None
    return end if segment is None else min(end, next_start(log, segment, cut)[0])


def end_by_rows(batches: Iterator[pa.RecordBatch], end: int, most: int) -> int:
    """The end of the record with the last of at most `most` rows, but of at least one record.

    `batches`: rows from the start on in log order, with commitLogOffset and storeSize. Returns
    `end` if there are no more rows.
    """
    count = 0
    last: tuple[int, int] | None = None  # the record that a further row must not be in
    for batch in batches:
        offsets, sizes = (batch[name].to_numpy() for name in ("commitLogOffset", "storeSize"))
        upto = max(0, min(most - count, batch.num_rows))
        if upto:
            last = int(offsets[upto - 1]), int(sizes[upto - 1])
        count += upto
        if last is not None and (offsets[upto:] != last[0]).any():
            return last[0] + last[1]
    return end
