"""Undispatched records: records in the log that no queue lists yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import SoundRun, walk
from rmq_store.config.topics_json import batch_topics
from rmq_store.consumequeue.entry_of_record import DispatchRequests, dispatch
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    LogOffset,
    StoreError,
    UndispatchedError,
)
from rmq_store.format.byte_layout import MIN_RECORD_SIZE, Mask
from rmq_store.format.queues import Entries, QueueId
from rmq_store.format.record import Gap
from rmq_store.snapshot.ranges import UnsettledQueue

MOST_UNDISPATCHED = 30_000_000
"""Maximum number of undispatched records in memory, at about 40 bytes each."""


_LOOK_BACK = 64 << 20  # bytes before the dispatched end to search for strays in an unclean store


def find_undispatched(
    log: CommitLog,
    folders: QueueFolders,
    listed: Mapping[QueueId, UnsettledQueue],
    dispatched: int,
    log_end: int,
    back_from: int | None,
) -> tuple[dict[QueueId, Entries], list[StoreError]]:
    """The entries of records after the last entry of their queue, and errors for those without one, and for
    damage among them.

    The broker dispatches in log order, so in its own store they are all after the place that the
    queues have reached. In a copy made while it ran, the files of one queue may be older than those
    of another. So an unclean store is also searched backwards from `back_from`, until a range adds
    nothing; records after it are in the queues that they belong to. None: it is not searched.
    """
    batch = {queue.topic for queue, listed_queue in listed.items() if listed_queue.files.batch}
    batch |= batch_topics(folders.declared[0])

    def requests_of(headers: Headers) -> DispatchRequests:
        return dispatch(DecodedRecords.of(headers), folders.config.delay_levels_ms, batch)

    misplaced: list[StoreError] = []
    strays = _strays_in(log, dispatched, log_end, listed, requests_of, misplaced)
    start = log.start if back_from is None else min(back_from, dispatched)
    while start > log.start:
        before = record_start_near(log, start - _LOOK_BACK, start)
        # Entries lead into damage there.
        more = _strays_in(log, before, start, listed, requests_of, [])
        start = before
        if not more:
            break
        for queue, entries in strays.items():
            more[queue] = Entries.concat([more[queue], entries]) if queue in more else entries
        strays = more
    tails: dict[QueueId, Entries] = {}
    for queue, entries in strays.items():
        placing = _Placing(log, queue, listed.get(queue))
        tails[queue] = placing.placed(entries)
        misplaced += placing.misplaced
    return tails, misplaced


def record_start_near(log: CommitLog, wanted: int, otherwise: int) -> int:
    """A log offset at or after `wanted` where a record starts; at most `otherwise`."""
    at = max(wanted, log.start)
    for segment in log.chain.segments_from(at):
        if segment.base >= otherwise:
            break
        first = max(at, segment.base)
        place = log.next_record(segment, first, min(log.chain.segment_end(segment), otherwise))
        if place is not None:
            return place
    return otherwise


def _strays_in(
    log: CommitLog,
    start: int,
    stop: int,
    listed: Mapping[QueueId, UnsettledQueue],
    requests_of: Callable[[Headers], DispatchRequests],
    damage: list[StoreError],
) -> dict[QueueId, Entries]:
    """Entries of the records in [start, stop) that are after the last entry of their queue.

    Adds an error to `damage` for each range between them that is no record.
    """
    parts: dict[QueueId, list[Entries]] = {}
    count = 0
    if start >= stop:
        return {}
    for piece in walk(log, start, stop):
        if not isinstance(piece, SoundRun):  # the records after it count too
            if piece.gap is Gap.DAMAGED:
                damage.append(
                    CorruptRecordError(
                        log.path_at(piece.start),
                        offset=LogOffset(piece.start),
                        reason=f"{piece.stop - piece.start} bytes of the log that are in no queue yet are "
                        f"damaged: {piece.reason}",
                        advice="The messages there are lost, of any queue. rmqstore verify says more",
                    )
                )
            continue
        requests = requests_of(piece.headers)
        states = [listed.get(queue) for queue in requests.queues]
        last = [-1 if state is None else state.last_log_offset for state in states]
        known = np.array(last, dtype=np.int64)[requests.queue]
        later = np.flatnonzero(requests.log_offset > known)
        entries = Entries.of(requests)
        for queue, rows in requests.by_queue(later):
            parts.setdefault(queue, []).append(entries.take(rows))
        count += len(later)
        if count > MOST_UNDISPATCHED:
            raise UndispatchedError(
                piece.segment.path,
                offset=LogOffset(piece.stop),
                reason=f"over {MOST_UNDISPATCHED:,} records are in the log and in no queue",
                advice="The queues are lost or far behind the log. Rebuild them in another store with "
                "rmqstore rebuild, or read the log itself with source=commitlog",
            )
    return {queue: Entries.concat(entries) for queue, entries in parts.items()}


class _Placing:
    """Gives the undispatched records of one queue their queue offsets: those written in them.

    The broker appends them without a look at these. The two differ if messages between the queue's
    last entry and a record are lost: then their queue offsets get entries that point to no record,
    so that a reader reports each.
    """

    def __init__(self, log: CommitLog, queue: QueueId, listed_queue: UnsettledQueue | None) -> None:
        self._log, self._queue, self._listed = log, queue, listed_queue
        self.misplaced: list[StoreError] = []

    def placed(self, entries: Entries) -> Entries:
        """The entries with their queue offsets, without a gap."""
        end, log_stop = int(entries.offset[0]), int(entries.log_offset[0])
        if self._listed is not None and self._listed.stop > self._listed.first:
            end, log_stop = self._listed.end_offset(), self._listed.log_stop
        stops = end + np.cumsum(entries.count)
        if (entries.offset == stops - entries.count).all():
            return entries
        parts: list[Entries] = []
        runs = _runs(entries)
        for number, run in enumerate(runs):
            first = int(run.offset[0])
            if first < end:
                run = self._after(run, end)
                if not len(run):
                    continue
                first = int(run.offset[0])
            size = int(run.count.sum())
            between = max(0, int(run.log_offset[0]) - log_stop)
            next_first = int(runs[number + 1].offset[0]) if number + 1 < len(runs) else -1
            if first > end and (
                (first - end) * MIN_RECORD_SIZE > between or next_first == end + size
            ):
                # Lost messages do not explain the number, so the number itself is damaged.
                self._report(run)
                continue
            parts += [_holes(end, first), run]
            end, log_stop = first + size, int(run.log_offset[-1] + run.size[-1])
        return Entries.concat(parts)

    def _after(self, run: Entries, end: int) -> Entries:
        """The entries of a run from `end` on. Reports the others, unless the queue lists them."""
        before = run.take(run.offset < end)
        if self._listed is not None and len(before):
            before = before.take(~self._is_answered(self._listed, before))
        self._report(before)
        return run.take(run.offset >= end)

    def _is_answered(self, listed: UnsettledQueue, entries: Entries) -> Mask:
        """Which queue offsets have an entry for the same record, for a later one, or for none.

        The offset of a later record is used again: the topic was deleted and created again. An
        entry for none is damage, which its reader reports.
        """
        first, stop = listed.first, listed.stop
        if not listed.files.batch:
            low, high = int(entries.offset.min()), int(entries.offset.max()) + 1
            first, stop = max(first, low), min(stop, high)
        listed_entries = listed.files.entries(first, stop)
        if not len(listed_entries):
            return np.zeros(len(entries), dtype=bool)
        listed_entries = listed_entries.take(
            np.searchsorted(listed_entries.offset, entries.offset).clip(max=len(listed_entries) - 1)
        )
        whole = self._log.whole_records(listed_entries.log_offset, listed_entries.size)
        same = listed_entries.offset == entries.offset
        answered: Mask = same & ((listed_entries.log_offset >= entries.log_offset) | ~whole)
        answered |= ~same & (entries.offset >= listed.first)
        return answered

    def _report(self, entries: Entries) -> None:
        for row in range(len(entries)):
            entry = entries.listed_at(self._queue, row)
            self.misplaced.append(
                CorruptQueueError(
                    self._log.path_at(entry.log_offset),
                    offset=LogOffset(entry.log_offset),
                    reason=f"a record that queue {self._queue.name} does not "
                    f"list says queue offset {entry.queue_offset}, which does not follow the queue's end",
                    advice="Read with source=commitlog to get the message, "
                    "or rebuild the queues: rmqstore rebuild STORE --to NEW",
                    entry=entry,
                )
            )


def _runs(entries: Entries) -> list[Entries]:
    """The entries in runs of consecutive queue offsets."""
    breaks = np.flatnonzero(entries.offset[1:] != (entries.offset + entries.count)[:-1]) + 1
    edges = [0, *breaks.tolist(), len(entries)]
    return [entries.take(slice(first, stop)) for first, stop in pairwise(edges)]


def _holes(start: int, stop: int) -> Entries:
    """An entry that points to no record for each of these queue offsets."""
    offset = np.arange(start, stop, dtype=np.int64)
    nothing = np.zeros_like(offset)
    return Entries(offset, nothing - 1, nothing, nothing, nothing + 1)
