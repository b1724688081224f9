"""Read the log itself as Arrow batches, and follow it while a broker writes it.

`dispatch` computes from the records what the broker would put into its queues, so the rows are
those of the queues. Every byte of a range is checked: it is a record, filler, a gap or damage.

A place is an offset of the log with digests of bytes before it. So a follower that comes back later
notices a log that was cut behind it, and another store at the same path. A stream of Spark and
`rmqstore tail -f` follow a log with the same `LogEndFinder`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import DecodedRecords, numbered_topics
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import IF_OTHER_STORE, MARK_BYTES, CommitLog, Mark, refuse_other_bytes
from rmq_store.commitlog.walk import (
    RecordOrGap,
    SoundRun,
    first_record_from,
    last_record_and_end,
    next_record_or_gap,
    walk,
)
from rmq_store.consumequeue.entry_of_record import DispatchRequests, numbered_queues
from rmq_store.errors import (
    LOG,
    CorruptRecordError,
    DataLossError,
    LogCutError,
    LogOffset,
    MissingFileError,
    StoreError,
    shown_path,
)
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import Ints
from rmq_store.format.compression import enters_queue
from rmq_store.format.queues import Entries, ListedEntries, QueueId, Queues
from rmq_store.format.record import Gap
from rmq_store.reading.slice_reader import RangesOf, SliceReader
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.text.sizes import counted

_SAID: set[str] = set()  # folders of logs of which was said that ranges were left out


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The wanted queue offsets and store timestamps (ms) of a queue, each half-open."""

    first_offset: int = 0
    stop_offset: int = 2**63 - 1
    first_time: int = -(2**63)
    stop_time: int = 2**63 - 1


Limits = Callable[[QueueId], QueueLimits | None]
"""Gives the limits of a queue; None if nothing is wanted."""


def no_limits(queue: QueueId) -> QueueLimits:
    """Limits that include everything."""
    return QueueLimits()


def ranges_of_limits(limits: Limits) -> RangesOf:
    """The wanted queue offsets of each queue within limits."""

    def ranges_of(queue: QueueId) -> list[tuple[int, int]]:
        of_queue = limits(queue)
        return [] if of_queue is None else [(of_queue.first_offset, of_queue.stop_offset)]

    return ranges_of


@dataclass(slots=True)
class _Ghosts:
    """How many ranges of a log have records that name another place of it, and their bytes."""

    count: int = 0
    bytes: int = 0
    first: int = 0

    def add(self, extent: RecordOrGap) -> None:
        """Count one more."""
        self.first = self.first if self.count else extent.start
        self.count, self.bytes = self.count + 1, self.bytes + extent.stop - extent.start

    def say(self, folder: str) -> None:
        """Say once of a store that they were left out: they prove no loss, and may be one."""
        if self.count and folder not in _SAID:
            _SAID.add(folder)
            LOG.warning(
                "%s: left out %s of the log (%d bytes, the first at log offset %d) where records name "
                "another place: from before a file was reused, or damaged. rmqstore verify compares them "
                "with the queues",
                shown_path(folder),
                counted(self.count, "range"),
                *(self.bytes, self.first),
            )


class LogReader:
    """Reads ranges of one log. `rows_reader` makes batches of the rows.

    `limits`: the wanted queues and their ranges. `requests_of`: what records give the queues. With
    `include_unqueued`, records that are in no queue are rows too. `unread`: the errors about what the store
    has after the end of this log, for a range that reaches the end.
    """

    def __init__(
        self,
        rows_reader: SliceReader,
        limits: Limits,
        requests_of: Callable[[DecodedRecords], DispatchRequests],
        include_unqueued: bool = False,
        unread: Callable[[], Iterable[StoreError]] = tuple,
    ) -> None:
        self.rows_reader, self._limits = rows_reader, cache(limits)
        self.log, self.log_end = rows_reader.log, rows_reader.log_end
        self._requests_of = requests_of
        self.include_unqueued, self.unread = include_unqueued, unread
        # A batch is read if one of its messages is wanted.
        self.unwrap = rows_reader.query.unwrap_batches
        self.on_damage, self._concerns = rows_reader.query.on_damage, rows_reader.query.concerns

    def read(self, start: int | None, stop: int | None) -> Iterator[pa.RecordBatch]:
        """Batches of the records that start at log offsets [start, stop). None means the log's
        start or end.

        Adjacent ranges return every record exactly once, wherever they are cut.
        """
        return self.rows_reader.batches_of(self._rows(start, stop))

    def _rows(self, start: int | None, stop: int | None) -> Iterator[ListedEntries]:
        # What precedes the first record of the log belongs to the range that begins with the log.
        first = self.next_record_start(start or 0)
        last = self.log_end if stop is None else min(self.next_record_start(stop), self.log_end)
        # The rows reader checks CRCs, and only if requested.
        ghosts = _Ghosts()
        for piece in walk(self.log, first, last, check_crc=False):
            if isinstance(piece, SoundRun):
                yield from self._wanted(piece.headers)
            elif piece.gap is Gap.GHOST:
                ghosts.add(piece)
            elif piece.gap in (Gap.MISSING, Gap.DAMAGED, Gap.TORN, Gap.STALE):
                self._damaged(self._error_of(piece, last))
        for error in self.unread() if stop is None or stop >= self.log_end else ():
            self._damaged(error)
        ghosts.say(self.log.chain.folders[0])

    def _wanted(self, headers: Headers) -> Iterator[ListedEntries]:
        # Before the first row is yielded, because its reader may discard fetched bytes.
        pieces = list(self._in_limits(self._requests_of(DecodedRecords.of(headers))))
        if self.include_unqueued:
            rows = np.flatnonzero(~enters_queue(headers.sys_flag))
            if len(rows):
                pieces += self._unqueued(headers.take(rows))
        yield from pieces

    def _in_limits(self, requests: DispatchRequests) -> Iterator[ListedEntries]:
        offset, time = requests.offset, requests.store_timestamp
        last = offset + requests.count - 1 if self.unwrap else offset
        first_offset, stop_offset, first_time, stop_time = self._bounds(
            requests.queues, requests.queue
        )
        wanted = (first_offset <= last) & (offset < stop_offset)
        rows = np.flatnonzero(wanted & (first_time <= time) & (time < stop_time))
        if len(rows):
            yield requests.take(rows)

    def _bounds(self, queues: Queues, queue: Ints) -> Iterator[Ints]:
        """Each of the four limits of some rows, by the places of their queues."""
        limits = [self._limits(queue_id) or _NOTHING for queue_id in queues]
        for name in QueueLimits.__match_args__:
            yield np.array([getattr(limit, name) for limit in limits], dtype=np.int64)[queue]

    def _unqueued(self, headers: Headers) -> Iterator[ListedEntries]:
        """Records that are in no queue, with a wanted topic and time."""
        ids = headers.queue_id.astype(np.int64)
        queues, queue = numbered_queues(*numbered_topics(headers), ids)
        _, _, first, stop = self._bounds(queues, queue)
        time = headers.store_timestamp
        kept = np.flatnonzero((first <= time) & (time < stop))
        if len(kept):
            nothing = np.zeros(len(kept), dtype=np.int64)
            place = headers.at[kept] + headers.base
            entries = Entries(nothing - 1, place, headers.total[kept], nothing, nothing + 1)
            yield entries.extended(ListedEntries, queues=queues, queue=queue[kept])

    # --- boundaries of ranges ----------------------------------------------------------------------

    def next_record_start(self, cut: int) -> int:
        """Where the first record at or after `cut` starts, a gap, or the log. Every caller gets the same."""
        chain = self.log.chain
        if cut <= chain.start:
            return chain.start
        if chain.segment_at(cut) is None and chain.segment_at(cut - 1) is not None:
            return cut  # a missing file begins, or the log ends
        return first_record_from(self.log, cut, self.log_end)

    # --- damage ------------------------------------------------------------------------------------

    def _error_of(self, piece: RecordOrGap, stop: int) -> StoreError:
        """The error of a gap up to a log offset."""
        start, size = piece.start, min(piece.stop, stop) - piece.start
        if piece.gap is Gap.MISSING:
            return MissingFileError(
                self.log.chain.folders[0],
                offset=LogOffset(start),
                reason=f"no commitLog file has {size} bytes",
                advice="A file was lost or not copied",
            )
        return CorruptRecordError(
            self.log.path_at(start),
            offset=LogOffset(start),
            reason=f"{size} bytes are not a record: {piece.reason or 'left from something else'}",
            advice="These bytes are lost, the rest can be read",
        )

    def _damaged(self, error: StoreError) -> None:
        if self._concerns is not None and not self._concerns(error):
            return
        if self.on_damage is None:
            raise error
        self.on_damage(error)


_NOTHING = QueueLimits(0, 0, 0, 0)

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


def require_same_log(log: CommitLog, place: LogPlace, path: str) -> None:
    """Check that a log still continues at a place.

    Raises OtherStoreError if the log began with other bytes, LogCutError if the bytes before the
    place are gone or others, DataLossError if the place has expired.
    """
    first = None if place.first is None else Mark.of(log, place.first.start, place.first.stop)
    if place.first is not None:
        refuse_other_bytes(place.first, first, path)
    if place.offset < log.start:
        raise error_of_expired_files(path, place.offset, log.start)
    if place.before is not None and place.before.start >= log.start:
        now = Mark.of(log, place.before.start, place.before.stop)
        if now != place.before:
            raise LogCutError(
                path,
                offset=LogOffset(place.offset),
                reason="the log was cut behind what was already read: a broker lost what it had not flushed",
                expected=f"the bytes that ended at {place.offset}",
                actual=f"a log that ends before {place.offset}" if now is None else "other bytes",
                advice="The broker may have lost messages that were read after the cut. Start "
                "again, or let a stream continue at the end of the log with failOnDataLoss=false"
                + ("" if first else f". {IF_OTHER_STORE}"),
            )


def error_of_expired_files(path: str, offset: int, log_start: int) -> DataLossError:
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


class LogEndFinder:
    """Finds how far one log has grown, look after look.

    `listed_end` opens the store with its queues and gives the end of the last record that they list.
    It looks at every queue, so it is called only if the bytes of the log do not decide: every few
    seconds while the last file of the log changes, and every minute while it does not.
    """

    def __init__(self, listed_end: Callable[[], int]) -> None:
        self._listed_end = listed_end
        self._listed = 0
        self._whole: LogPlace | None = None  # the end at the last look
        self._looked_at = self._changed_at = float("-inf")
        self._change: tuple[int | None, ...] = ()  # of the last file, at the last look

    def end_after(self, log: CommitLog, place: LogPlace, path: str) -> int:
        """The end of the whole records after a place. Raises as `require_same_log`."""
        require_same_log(log, place, path)
        return self.end(log, place.offset)

    def end(self, log: CommitLog, start: int) -> int:
        """The end of the whole records at or after log offset `start`, as `end_of_whole_records`.

        Goes on from the end at the last look, so that a follower which is far behind does not check
        the same records at each look.
        """
        end = end_of_whole_records(
            log, self._known_whole(log, start), lambda end: self._end_by_queues(log, end)
        )
        self._whole = LogPlace.at(log, end)
        return end

    def _known_whole(self, log: CommitLog, start: int) -> int:
        """`start`, or the end at the last look if it is after that and the log is still the same."""
        if self._whole is None or self._whole.offset <= start:
            return start
        try:
            require_same_log(log, self._whole, "")
        except StoreError:
            self._listed, self._looked_at = 0, float("-inf")  # of a log that was cut
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
            self._listed, self._looked_at = self._listed_end(), now
        return self._listed


def _change_of(log: CommitLog) -> tuple[int | None, ...]:
    """The number and the time of change of the last file; None for both where nothing says that."""
    last = log.last_file() if log.chain.cost.grows else None
    try:
        return (None, None) if last is None else (last.base, os.stat(last.path).st_mtime_ns)
    except OSError:
        return None, None


def end_of_whole_records(log: CommitLog, start: int, listed_end: Callable[[int], int]) -> int:
    """The end of the last record that is whole, at or after `start`.

    A torn end is not included: a broker may be writing it. Damage is, if a later file or an entry
    of a queue proves that the log continues after it. `listed_end` gives the end of the last record
    that a queue lists, and is called only if the bytes do not decide: with the end before them.
    """
    last = log.last_file()
    if last is None:
        return max(start, log.start)
    _, end = last_record_and_end(log, max(start, last.base))
    file_end = log.chain.segment_end(last)
    while end < file_end:
        near = log.chain.read(end, min(end + _ZEROS_LOOKED_AT, file_end))
        if not near.any() and (end > start or _only_zeros_after(log, last, end)):
            return end
        proven = listed_end(end)
        following = log.next_record(last, end + 1, file_end) if proven > end else None
        if following is None or following >= proven:
            return end
        _, end = last_record_and_end(log, following)
    return end


def _only_zeros_after(log: CommitLog, file: SegmentFile, offset: int) -> bool:
    """Whether nothing is stored after a log offset in a file, which the broker made as a hole.

    False if that is not known without reading much.
    """
    stop = file.base + log.chain.file_of(file).stored_until()
    if stop - offset > min(_MOST_ZEROS, log.chain.cost.spare):
        return False
    return stop <= offset or not log.chain.read(offset, stop).any()


def end_of_known_records(view: QueueView, queues: Iterable[QueueId]) -> int:
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


def end_after_bytes(log: CommitLog, start: int, end: int, most: int) -> int:
    """The end of the record that contains offset `start + most`, or `end` if that is earlier."""
    cut = start + most
    segment = log.chain.segment_at(cut) if cut < end else None
    return end if segment is None else min(end, next_record_or_gap(log, segment, cut)[0])


def end_after_rows(batches: Iterator[pa.RecordBatch], end: int, most: int) -> int:
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
