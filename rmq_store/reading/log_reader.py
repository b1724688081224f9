"""Read the log itself as Arrow batches, for stores whose queues are missing, damaged or not in
files.

`dispatch` computes from the records what the broker would put into its queues, so the rows are
those of the queues. Every byte of a range is checked: it is a record, filler, a gap or damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import DecodedRecords, numbered_topics
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.walk import Extent, SoundRun, first_record_from, walk
from rmq_store.consumequeue.entry_of_record import DispatchRequests, numbered_queues
from rmq_store.errors import (
    LOG,
    CorruptRecordError,
    LogOffset,
    MissingFileError,
    StoreError,
    shown_path,
)
from rmq_store.format.byte_layout import Ints
from rmq_store.format.compression import enters_queue
from rmq_store.format.queues import Entries, ListedEntries, QueueId, Queues
from rmq_store.format.record import Gap
from rmq_store.reading.slice_reader import RangesOf, SliceReader
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


def everything(queue: QueueId) -> QueueLimits:
    """Limits that include everything."""
    return QueueLimits()


def ranges_within(limits: Limits) -> RangesOf:
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

    def add(self, extent: Extent) -> None:
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
        first = self.record_start(start or 0)
        last = self.log_end if stop is None else min(self.record_start(stop), self.log_end)
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
        requests = self._requests_of(DecodedRecords.of(headers))
        # Before the first row is yielded, because its reader may discard fetched bytes.
        pieces = list(self._in_limits(requests))
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

    def record_start(self, cut: int) -> int:
        """Where the first record at or after `cut` starts, a gap, or the log. Every caller gets the same."""
        chain = self.log.chain
        if cut <= chain.start:
            return chain.start
        if chain.segment_at(cut) is None and chain.segment_at(cut - 1) is not None:
            return cut  # a missing file begins, or the log ends
        return first_record_from(self.log, cut, self.log_end)

    # --- damage ------------------------------------------------------------------------------------

    def _error_of(self, piece: Extent, stop: int) -> StoreError:
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
