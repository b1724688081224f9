"""Proof that a queue or the log ends before the messages that it had.

Nothing in a queue file says where the queue ends, so a lost end looks like a shorter queue. The proof is
in other files: bytes after the last entry, offsets that consumers have reached, records in the log, the
checkpoint. It is looked at once, when a read reaches the first or last message of a queue.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.log import CommitLog, Extent
from rmq_store.commitlog.resync import record_start_at
from rmq_store.commitlog.scan import SoundRun, scan
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.consumer_offsets import read_consumer_offsets, read_delay_offsets
from rmq_store.config.topics_json import declared_batch_topics, declared_topics, queue_count
from rmq_store.consumequeue.dispatch import DispatchRequests, dispatch
from rmq_store.consumequeue.entries import Entries
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    ListedAt,
    StoreError,
)
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import (
    ABORT_FILE,
    BATCH_CONSUMEQUEUE_DIR,
    CHECKPOINT_FILE,
    CONSUMEQUEUE_DIR,
    RECORD_HEAD,
)
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import Gap
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.snapshot.queue_state import QueueState
from rmq_store.snapshot.snapshot import StoreSnapshot
from rmq_store.snapshot.undispatched import record_start_near

LOG = logging.getLogger("rmqstore")

LOOKED_AT = 4 << 20
"""Bytes at the start and at the end of the log that every read compares with the queues."""

_SEARCHED = 64 << 20  # bytes of the log searched for what a consumer's offset says was in a queue
_DAMAGE = (Gap.DAMAGED, Gap.TORN, Gap.STALE)
_MOST_DAMAGE = 10  # damaged ranges compared with the entries
_ENTRIES_TRIED = 64  # last entries of a queue, for one that points to a record
_REBUILD = "Read with source=commitlog, or rebuild the queues: rmqstore rebuild"

_NO_STATE = QueueState(0, 0, 0, 0)

EntriesOf = Callable[[QueueId, int, int], Entries]


@dataclass(frozen=True, slots=True)
class _Missing:
    """Records of one queue that the queue does not list: their number, and the first of them."""

    count: int
    offset: int  # queue offset
    log_offset: int
    size: int


class LostEnds:
    """What is missing at the ends of the queues of one snapshot.

    `entries_of`, `offset_at_log`: those of QueueView.
    """

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        config: StoreConfig,
        snapshot: StoreSnapshot,
        entries_of: EntriesOf,
        offset_at_log: Callable[[QueueId, int], int],
    ) -> None:
        self._root, self._log, self._config = root, log, config
        self._snapshot, self._entries_of = snapshot, entries_of
        self._offset_at_log = offset_at_log
        self._searched: dict[QueueId, _Missing | None] = {}

    def errors(self, parts: Sequence[QueueSlice], whole_log: bool = False) -> Iterator[StoreError]:
        """An error for each queue of `parts` that lacks messages at an end that `parts` reach.

        One more if the log lacks its own end. With `whole_log`, compares every record of the log
        with the queues instead of some near the ends.
        """
        states = self._snapshot.queues
        there = [part for part in parts if part.queue in states]
        first = {part.queue for part in there if part.start <= states[part.queue].min_offset}
        last = {part.queue for part in there if part.stop >= states[part.queue].max_offset}
        if whole_log:
            start, stop = self._snapshot.log_start, self._snapshot.log_end
            missing = self._search(first | last, start, stop)
        else:
            missing = self._missing_near(first, last)
        for queue in sorted(missing):
            yield self._unlisted(queue, missing[queue])
        yield from self._beside_records(last, missing)

    def errors_beside_records(self, parts: Sequence[QueueSlice]) -> Iterator[StoreError]:
        """The errors that no comparison of records with queues finds; `unlisted` gives the others."""
        states = self._snapshot.queues
        there = [part for part in parts if part.queue in states]
        last = {part.queue for part in there if part.stop >= states[part.queue].max_offset}
        yield from self._beside_records(last, ())

    def unlisted(
        self, parts: Sequence[QueueSlice], start: int | None, stop: int | None
    ) -> Iterator[StoreError]:
        """An error for each queue of `parts` that lacks records of a log range at one of its ends.

        None means the log's start or end. Adjacent ranges, wherever they are cut, report every such
        record once.
        """
        queues = {part.queue for part in parts if part.queue in self._snapshot.queues}
        end = self._snapshot.log_end
        low = self._snapshot.log_start if start is None else record_start_at(self._log, start, end)
        high = end if stop is None else min(record_start_at(self._log, stop, end), end)
        for queue, missing in sorted(self._search(queues, low, high).items()):
            yield self._unlisted(queue, missing)

    def _beside_records(
        self, last: Collection[QueueId], known: Collection[QueueId]
    ) -> Iterator[StoreError]:
        for error in self._snapshot.misplaced:
            if error.entry is not None and QueueId(*error.entry[:2]) in last:
                yield error
        if last and self._lost_log is not None:
            yield self._lost_log
        yield from self.unlisted_damage if last and not self._snapshot.part else ()
        for queue in sorted(last):
            if self._snapshot.queues[queue].bytes_after and self._is_closed and queue not in known:
                yield self._bytes_after(queue)

    def lost_queues(self) -> dict[QueueId, str]:
        """Declared queues that have no files although they had messages, and what proves it.

        Records in the first and last bytes of the log prove it. A consumer's offset may also be left
        from messages that expired.
        """
        states, declared = self._snapshot.queues, declared_topics(self._root)
        # Not every declared queue is looked at: a file may declare 2^31 of a topic.
        counts_said = {topic: queue_count(settings) for topic, settings in declared.items()}
        there = Counter(q.topic for q in states if q.queue_id < counts_said.get(q.topic, 0))

        def is_candidate(queue: QueueId) -> bool:
            return queue not in states and 0 <= queue.queue_id < counts_said.get(queue.topic, 0)

        lost = {
            queue: f"a consumer is at queue offset {reached}"
            for queue, reached in self._reached.items()
            if reached > 0 and is_candidate(queue)
        }
        if any(said > there[topic] for topic, said in counts_said.items()):
            counts = self._records_near_the_ends()
            lost |= {
                queue: f"the log has at least {count} records of it"
                for queue, count in counts.items()
                if is_candidate(queue)
            }
        return dict(sorted(lost.items()))

    def _records_near_the_ends(self) -> Counter[QueueId]:
        start, end = self._snapshot.log_start, self._snapshot.log_end
        near = min(start + LOOKED_AT, end)
        late = record_start_near(self._log, max(near, end - LOOKED_AT), end)
        counts: Counter[QueueId] = Counter()
        for requests in chain(self._requests(start, near), self._requests(late, end)):
            for number, count in enumerate(np.bincount(requests.queue).tolist()):
                counts[requests.queues[number]] += count
        return counts

    # --- the log ----------------------------------------------------------------------------------

    @cached_property
    def _is_closed(self) -> bool:
        """Whether nothing has written the store since its last clean stop, which ended it."""
        snapshot, chain = self._snapshot, self._log.chain
        if not snapshot.closed or (self._root / ABORT_FILE).exists():
            return False
        if chain.is_remote:  # its files are those of one listing
            return True
        log = CommitLog(chain.folders, file_size=self._config.mappedFileSizeCommitLog)
        try:
            return log.end_from(snapshot.log_end) == snapshot.log_end
        finally:
            log.chain.close()

    @cached_property
    def _lost_log(self) -> StoreError | None:
        """The error if the checkpoint of a closed store is later than the log's last record."""
        last = self._snapshot.last_record
        stored = 0 if last is None else self._log.store_time_at(last)
        if stored is None or not self._is_closed or (last is None and self._log.chain.segments):
            return None
        flushed = Checkpoint.read_or_zero(self._root / CHECKPOINT_FILE).physic_msg_timestamp
        if flushed <= stored:
            return None
        return DataLossError(
            self._log.path_at(self._snapshot.log_end),
            offset=self._snapshot.log_end,
            reason="the end of the log is lost: the checkpoint has a later time than the last record",
            expected=f"a record stored at {flushed} ms",
            actual="no record" if last is None else f"the last one stored at {stored} ms",
            advice="The offset is a log offset. Look for the rest in a replica or a copy; if the "
            "checkpoint is wrong, move it away",
        )

    # --- the queues -------------------------------------------------------------------------------

    def _missing_near(self, first: set[QueueId], last: set[QueueId]) -> dict[QueueId, _Missing]:
        missing: dict[QueueId, _Missing] = {}
        if any(self._starts_late(queue) for queue in first):
            missing |= {queue: lost for queue, lost in self._at_start.items() if queue in first}
        if last and self._is_closed:
            missing |= {queue: lost for queue, lost in self._at_end.items() if queue in last}
        for queue in sorted(last - missing.keys()):
            lost = self._short_of_consumers(queue)
            if lost is not None:
                missing[queue] = lost
        return missing

    def _starts_late(self, queue: QueueId) -> bool:
        """Whether all files before the queue's first are gone, and none of its records has expired."""
        state = self._snapshot.queues[queue]
        return not state.batch and 0 < state.file_start == state.min_offset < state.file_stop

    @cached_property
    def _at_start(self) -> dict[QueueId, _Missing]:
        start, end = self._snapshot.log_start, self._snapshot.log_end
        return self._search(self._snapshot.queues.keys(), start, min(start + LOOKED_AT, end))

    @cached_property
    def _at_end(self) -> dict[QueueId, _Missing]:
        return self._search(self._snapshot.queues.keys(), *self._last_bytes)

    @cached_property
    def _last_bytes(self) -> tuple[int, int]:
        end = self._snapshot.log_end
        return record_start_near(self._log, end - LOOKED_AT, end), end

    @cached_property
    def unlisted_damage(self) -> list[StoreError]:
        """The errors of damage near the end of the log that is longer than what entries list there.

        Only a snapshot of all queues can say so.
        """
        errors: list[StoreError] = []
        pieces = scan(self._log, *self._last_bytes, check_crc=False)
        extents = (piece for piece in pieces if not isinstance(piece, SoundRun))
        damage = (extent for extent in extents if self._is_damage(extent))
        for extent in islice(damage, _MOST_DAMAGE):
            stop = min(extent.stop, self._snapshot.log_end)
            listed = 0
            for queue in self._snapshot.queues:
                places = (self._offset_at_log(queue, at) for at in (extent.start, stop))
                listed += int(self._entries_of(queue, *places).size.clip(0).sum())
            if listed < stop - extent.start:
                why = extent.reason or "a record that names another place"
                error = CorruptRecordError(
                    self._log.path_at(extent.start),
                    offset=extent.start,
                    reason=f"{stop - extent.start} bytes of the log are damaged ({why}), and no queue "
                    "lists all that was there",
                    advice="The offset is a log offset; the messages there are lost, of any queue",
                )
                errors.append(error)
        return errors

    @cached_property
    def _reached(self) -> dict[QueueId, int]:
        """The queue offset up to which consumers, and the broker's delay service, have read."""
        reached: dict[QueueId, int] = {}
        try:
            groups = [*read_consumer_offsets(self._root).values(), read_delay_offsets(self._root)]
        except (StoreError, ValueError, TypeError, AttributeError):  # damaged: proves nothing
            return {}
        for topics in groups:
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    queue = QueueId(topic, queue_id)
                    reached[queue] = max(offset, reached.get(queue, 0))
        return reached

    def _short_of_consumers(self, queue: QueueId) -> _Missing | None:
        """Records after the last entry of a queue whose consumers have read more than it has.

        The offset alone proves nothing: the topic may have been deleted and created again.
        """
        state, end = self._snapshot.queues[queue], self._snapshot.log_end
        if self._reached.get(queue, 0) <= state.max_offset and not state.bytes_after:
            return None
        if queue not in self._searched:
            start = max(self._last_listed(queue), self._snapshot.log_start)
            stop = min(start + _SEARCHED, end)
            self._searched[queue] = self._search({queue}, start, stop).get(queue)
            if self._searched[queue] is None and stop < end and not state.bytes_after:
                LOG.warning(
                    "queue %s/%d has offsets up to %d, but a consumer is at %d: its end may be "
                    "lost, or the topic was created again. Read with verifyQueue=true to find out",
                    *queue,
                    state.max_offset,
                    self._reached[queue],
                )
        return self._searched[queue]

    def _search(
        self, queues: Collection[QueueId], start: int, stop: int
    ) -> dict[QueueId, _Missing]:
        """What the log has in [start, stop) for `queues` before their first or after their last entry."""
        missing: dict[QueueId, _Missing] = {}
        states = self._snapshot.queues
        for requests in self._requests(start, stop):
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
                    known = missing.get(queue)
                    missing[queue] = _added(known, requests, lost)
        return missing

    def _requests(self, start: int, stop: int) -> Iterator[DispatchRequests]:
        """What the whole records that start in [start, stop) of the log give the queues."""
        batch = declared_batch_topics(self._root)
        batch |= {queue.topic for queue, state in self._snapshot.queues.items() if state.batch}
        for piece in scan(self._log, start, stop, check_crc=False) if start < stop else ():
            if isinstance(piece, SoundRun):
                levels = self._config.delay_levels_ms
                records = DecodedRecords.of(piece.headers)
                yield dispatch(records, delay_levels_ms=levels, batch_topics=batch)

    def _is_damage(self, piece: Extent) -> bool:
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
        return not np.array_equal(window, chain.window(named, named + size))

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
                ~before & (places > self._last_listed(queue))
            )
            rows, places = rows[kept], places[kept]
        reported = [error.entry.log_offset for error in misplaced if error.entry is not None]
        lost: Ints = rows[~np.isin(places, reported)]
        return lost

    def _last_listed(self, queue: QueueId) -> int:
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

    # --- errors -----------------------------------------------------------------------------------

    def _unlisted(self, queue: QueueId, missing: _Missing) -> StoreError:
        state = self._snapshot.queues[queue]
        end = "ends before" if missing.offset >= state.max_offset else "starts after"
        return self._error(
            queue,
            missing,
            f"queue {queue.topic}/{queue.queue_id} {end} its messages: at least {missing.count} whole "
            f"records of it are in the log and not in the queue; the first has queue offset "
            f"{missing.offset} and log offset {missing.log_offset}",
        )

    def _bytes_after(self, queue: QueueId) -> StoreError:
        stop = self._snapshot.queues[queue].max_offset
        return self._error(
            queue,
            _Missing(1, stop, -1, 0),
            f"bytes that are not an entry follow the last entry of queue {queue.topic}/"
            f"{queue.queue_id}: the queue's end is damaged",
        )

    def _error(self, queue: QueueId, missing: _Missing, reason: str) -> StoreError:
        state = self._snapshot.queues[queue]
        kind = BATCH_CONSUMEQUEUE_DIR if state.batch else CONSUMEQUEUE_DIR
        error = CorruptQueueError(
            f"{self._root}/{kind}/{queue.topic}/{queue.queue_id}",
            offset=missing.offset,
            reason=reason,
            actual=f"queue offsets {state.min_offset} to {state.max_offset}",
            advice=f"The offset is a queue offset. {_REBUILD}",
        )
        error.entry = ListedAt(*queue, missing.offset, missing.log_offset, missing.size)
        return error


def _added(known: _Missing | None, requests: DispatchRequests, rows: Ints) -> _Missing:
    """Those known, and the ones of some more rows; the first has the lowest queue offset."""
    first = rows[int(np.argmin(requests.offset[rows]))]
    offset, log_offset = int(requests.offset[first]), int(requests.log_offset[first])
    if known is not None and known.offset <= offset:
        return _Missing(known.count + len(rows), known.offset, known.log_offset, known.size)
    count = len(rows) + (0 if known is None else known.count)
    return _Missing(count, offset, log_offset, int(requests.size[first]))
