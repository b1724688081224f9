"""Records of the log that their queue does not list before its first or after its last entry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.log import CommitLog, Extent
from rmq_store.commitlog.scan import SoundRun, scan
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import declared_batch_topics
from rmq_store.consumequeue.entries import Entries
from rmq_store.consumequeue.entry_of_record import DispatchRequests, dispatch
from rmq_store.errors import MissingFileError, StoreError
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import RECORD_HEAD, Property, SysFlag
from rmq_store.format.properties import decode_utf8
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Gap
from rmq_store.snapshot.queue_range import QueueState
from rmq_store.snapshot.snapshot import StoreSnapshot

_DAMAGE = (Gap.DAMAGED, Gap.TORN, Gap.STALE)
_ENTRIES_TRIED = 64  # last entries of a queue, for one that points to a record
_NO_STATE = QueueState(0, 0, 0, 0)

EntriesOf = Callable[[QueueId, int, int], Entries]


@dataclass(frozen=True, slots=True)
class Missing:
    """Records of one queue that the queue does not list: their number, and the first of them."""

    count: int
    offset: int  # queue offset
    log_offset: int
    size: int


class UnlistedRecords:
    """Looks for such records in ranges of the log of one snapshot. `entries_of`: that of QueueView."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        config: StoreConfig,
        snapshot: StoreSnapshot,
        entries_of: EntriesOf,
    ) -> None:
        self._root, self._log, self._config = root, log, config
        self._snapshot, self._entries_of = snapshot, entries_of

    def search(self, queues: Collection[QueueId], start: int, stop: int) -> dict[QueueId, Missing]:
        """What the log has in [start, stop) for `queues` before their first or after their last entry."""
        missing: dict[QueueId, Missing] = {}
        for requests in self.requests(start, stop):
            self._note_missing(queues, requests, missing)
        return missing

    def search_at(self, places: Iterable[int]) -> dict[QueueId, Missing]:
        """As `search`, for all queues and the records that start at some log offsets."""
        missing: dict[QueueId, Missing] = {}
        for place in places:
            if self._is_within_its_queue(place):
                continue
            for requests in self.requests(place, place + 1):
                self._note_missing(self._snapshot.queues.keys(), requests, missing)
        return missing

    def _is_within_its_queue(self, place: int) -> bool:
        """Whether a record belongs to one queue, which has its queueOffset. False also if unknown.

        One record costs a fraction of what it costs as a run of one.
        """
        try:
            record = self._log.record_at(place)
        except StoreError:
            return False
        queue = QueueId(decode_utf8(record.topic), record.queue_id)
        if record.sys_flag & SysFlag.INNER_BATCH or queue.topic in self._batch_topics:
            return False
        if Property.INNER_MULTI_DISPATCH.encode() in record.properties:
            return False
        state = self._snapshot.queues.get(queue, _NO_STATE)
        return state.min_offset <= record.queue_offset < state.max_offset

    def look_at(
        self,
        queues: Collection[QueueId],
        start: int,
        stop: int,
        missing: dict[QueueId, Missing],
    ) -> Iterator[Extent]:
        """As `search`, added to `missing`. Yields the damage in the range."""
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                self._note_missing(queues, self._request_of(piece), missing)
            elif self.is_damage(piece):
                yield piece

    def _note_missing(
        self,
        queues: Collection[QueueId],
        requests: DispatchRequests,
        missing: dict[QueueId, Missing],
    ) -> None:
        states = self._snapshot.queues
        asked = np.array([queue in queues for queue in requests.queues], dtype=bool)
        there = [states[q] if q in queues else _NO_STATE for q in requests.queues]
        low = np.array([state.min_offset for state in there], dtype=np.int64)
        high = np.array([state.max_offset for state in there], dtype=np.int64)
        outside = requests.offset < low[requests.queue]
        outside |= requests.offset >= high[requests.queue]
        rows = np.flatnonzero(outside & asked[requests.queue])
        for number in np.unique(requests.queue[rows]).tolist():
            queue = requests.queues[number]
            lost = self._lost(queue, requests, rows[requests.queue[rows] == number])
            if len(lost):
                missing[queue] = _added(missing.get(queue), requests, lost)

    def requests(self, start: int, stop: int) -> Iterator[DispatchRequests]:
        """What the whole records that start in [start, stop) of the log give the queues."""
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                yield self._request_of(piece)

    def pieces(self, start: int, stop: int) -> Iterator[SoundRun | Extent]:
        """The records and gaps of [start, stop). Passes over a file that expired since the store was
        opened."""
        at, chain = start, self._log.chain
        while at < stop:
            try:
                for piece in scan(self._log, at, stop, check_crc=False):
                    yield piece
                    at = piece.stop
                return
            except MissingFileError:
                gone = chain.segment_at(at)
                at = stop if gone is None else chain.segment_end(gone)

    def _request_of(self, run: SoundRun) -> DispatchRequests:
        return dispatch(
            DecodedRecords.of(run.headers),
            delay_levels_ms=self._config.delay_levels_ms,
            batch_topics=self._batch_topics,
        )

    @cached_property
    def _batch_topics(self) -> set[str]:
        batch = {queue.topic for queue, state in self._snapshot.queues.items() if state.batch}
        return batch | declared_batch_topics(self._root)

    def is_damage(self, piece: Extent) -> bool:
        """Whether a gap is damage. A ghost is, if it is no copy of the record that it names."""
        if piece.gap is not Gap.GHOST:
            return piece.gap in _DAMAGE
        chain, size = self._log.chain, piece.stop - piece.start
        window = chain.window(piece.start, piece.stop)
        named = int(window[: RECORD_HEAD.itemsize].view(RECORD_HEAD)[0]["physical_offset"])
        if named < self._snapshot.log_start:
            return False  # expired
        if not self._log.is_record(named, size):
            return True
        copied = np.array_equal(window, chain.window(named, named + size))
        chain.check_reads()
        return not copied

    def _lost(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> Ints:
        """The rows that belong before the first entry, or after the last one, also by log offset.

        Other records are of an earlier topic of that name, which was deleted.
        """
        state = self._snapshot.queues[queue]
        places, misplaced = requests.log_offset[rows], self._snapshot.misplaced
        if state.min_offset < state.max_offset:
            before = requests.offset[rows] < state.min_offset
            first = self._listed_at(queue, state.min_offset, state.min_offset + _ENTRIES_TRIED)
            kept = (before & (places < (first[0] if len(first) else 0))) | (
                ~before & (places > self.last_listed(queue))
            )
            rows, places = rows[kept], places[kept]
        reported = [error.entry.log_offset for error in misplaced if error.entry is not None]
        lost: Ints = rows[~np.isin(places, reported)]
        return lost

    def last_listed(self, queue: QueueId) -> int:
        """The log offset of the last entry that points to a record; -1 without one."""
        stop = self._snapshot.queues[queue].max_offset
        places = self._listed_at(queue, max(0, stop - _ENTRIES_TRIED), stop)
        return int(places[-1]) if len(places) else -1

    def _listed_at(self, queue: QueueId, start: int, stop: int) -> Ints:
        """The log offsets of the records that entries of a range point to."""
        state = self._snapshot.queues[queue]
        entries = self._entries_of(queue, max(start, state.min_offset), min(stop, state.max_offset))
        whole = self._log.whole_records(entries.log_offset, entries.size)
        return entries.log_offset[whole]


def _added(known: Missing | None, requests: DispatchRequests, rows: Ints) -> Missing:
    """Those known, and the ones of some more rows; the first has the lowest queue offset."""
    first = rows[int(np.argmin(requests.offset[rows]))]
    offset, log_offset = int(requests.offset[first]), int(requests.log_offset[first])
    if known is not None and known.offset <= offset:
        return Missing(known.count + len(rows), known.offset, known.log_offset, known.size)
    count = len(rows) + (0 if known is None else known.count)
    return Missing(count, offset, log_offset, int(requests.size[first]))
