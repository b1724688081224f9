"""Finds messages missing at the end of a queue or of the log.

Nothing in a queue file says where the queue ends, so a lost end looks like a shorter queue. The proof is
in other files: bytes after the last entry, offsets that consumers have reached, records in the log, the
checkpoint. It is looked at once, when a read reaches the first or last message of a queue.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from rmq_store.commitlog.doubled_records import contradictions
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.next_intact_record import walk_to_record
from rmq_store.commitlog.walk import SoundRun, end_now
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.consumer_offsets import read_consumer_offsets, read_delay_offsets
from rmq_store.consumequeue.entry_of_record import other_queues
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    ListedAt,
    StoreError,
    shown_path,
)
from rmq_store.format.entries import concat_entries
from rmq_store.format.layout import (
    ABORT_FILE,
    BATCH_CONSUMEQUEUE_DIR,
    CHECKPOINT_FILE,
    CONSUMEQUEUE_DIR,
    QUEUE_ENTRY,
)
from rmq_store.format.properties import decode_properties
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.index.index_file_reader import open_index_files
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.snapshot.snapshot import StoreSnapshot
from rmq_store.snapshot.uncovered_bytes import UncoveredBytes, WholeRange
from rmq_store.snapshot.undispatched_records import guess_record
from rmq_store.snapshot.unlisted_records import (
    EntriesOf,
    Missing,
    MissingRecords,
    Unlisted,
    UnlistedRecords,
)
from rmq_store.text.sizes import size

LOG = logging.getLogger("rmqstore")

LOOKED_AT = 4 << 20
"""Bytes at the start and at the end of the log that every read compares with the queues."""

MOST_LISTED = 250_000
"""Entries of all queues, up to which a read that reaches a queue's end compares them with the whole log.

Their places and sizes say which bytes no queue lists, and only these are looked at: 10 to 20 ms for so
many, once a snapshot. In a larger store it would take longer than many a read.
"""

_SAID: set[Path] = set()  # stores of which was said what reads do not compare
_MOST_UNLISTED = 16 << 20  # bytes in no entry, as of a deleted topic, that are looked at for that
_SEARCHED = 64 << 20  # bytes of the log searched for what a consumer's offset says was in a queue
_ITEMS_TRIED = 64  # of all index files; each is a place of the disk
_MOST_DAMAGE = 10  # damaged ranges compared with the entries
_SKIPPED = "Read with source=commitlog to get the message; rebuild skips it, as a broker does"
_REBUILD = "Read with source=commitlog, or rebuild the queues: rmqstore rebuild"


class Health:
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
        self._root, self.log, self._config = root, log, config
        self.snapshot, self.entries_of = snapshot, entries_of
        self._offset_at_log = offset_at_log
        self.records = UnlistedRecords(root, log, config, snapshot, entries_of, offset_at_log)
        self._searched: dict[QueueId, Missing | None] = {}

    def errors(
        self,
        parts: Sequence[QueueSlice],
        whole_log: bool = False,
        uncovered: UncoveredBytes | None = None,
        *,
        sound: bool = False,
    ) -> Iterator[StoreError]:
        """An error for each queue of `parts` that lacks messages at an end that `parts` reach.

        One for each record inside of `parts` that its queue does not list, and one more if the log
        lacks its own end. With `whole_log`, compares every record of the log with the queues;
        with `uncovered`, those that no entry lists. By default, the latter if the store has up to
        `MOST_LISTED` entries, else the records near the log's ends. `sound`: the entries of `uncovered`
        lead to records of their own queues.
        """
        first, last = self._reached_ends(parts)
        if whole_log:
            start, stop = self.snapshot.log_start, self.snapshot.log_end
            found = self.records.search({part.queue for part in parts}, start, stop)
            missing = {queue: lost for queue, lost in found.ends.items() if queue in first | last}
            yield from self._inside(found, parts)
        else:
            seen: UncoveredBytes | WholeRange | None = uncovered
            found_all = self._in_whole_log if uncovered is None else None
            # Where an entry of another queue (a light one, or one that leads to the wrong place) lists the
            # bytes of a record, a look at those that none lists does not see that its queue lost it.
            all_seen = sound and self._covers_log(uncovered) and not _light(self.snapshot.queues)
            missing = {} if all_seen else self._missing_near(first, last)
            self._say_unseen(first | last, uncovered is not None or found_all is not None)
            if found_all is not None:
                ends = found_all.ends.items()
                missing |= {queue: lost for queue, lost in ends if queue in first | last}
                yield from self._inside(found_all, parts)
                seen = WholeRange(frozenset(), ())
            yield from self._inside_near(parts, seen)
        if uncovered is not None:
            missing |= uncovered.missing.ends
            yield from self._inside(uncovered.missing)
        for queue in sorted(missing):
            yield self._unlisted(queue, missing[queue])
        for error in () if self._covers_log(uncovered) else self._damage_near_end(last):
            if uncovered is None or error.offset is None or not uncovered.covers(error.offset):
                yield error
        if uncovered is not None:
            yield from self._uncovered_damage(uncovered)
        yield from self._beside_records(last, missing)

    def errors_beside_records(self, parts: Sequence[QueueSlice]) -> Iterator[StoreError]:
        """The errors that no comparison of records with queues finds; `unlisted` gives the others."""
        _, last = self._reached_ends(parts)
        yield from self._beside_records(last, ())

    def errors_beside_bytes(
        self, parts: Sequence[QueueSlice], whole: WholeRange | None = None
    ) -> Iterator[StoreError]:
        """Errors not found by the check of `uncovered` bytes, which `errors_of` gives.

        Those of records that another queue lists too, as a light queue does. `whole`: the range of these
        bytes, if nobody else reads the others; then what queues lack outside of it is an error too.
        """
        first, last = self._reached_ends(parts)
        missing = self._missing_near(_light(first), _light(last))
        if _light(self.snapshot.queues):
            found = self._missing_near(first, last).items()
            missing |= {q: lost for q, lost in found if self._is_listed_elsewhere(lost)}
        self._say_unseen(first | last, True)
        if whole is not None and not whole.is_log:
            found = self._missing_near(first, last).items()
            missing |= {q: lost for q, lost in found if not whole.covers(lost.log_offset)}
        for queue in sorted(missing):
            yield self._unlisted(queue, missing[queue])
        yield from self._inside_near(parts, whole)
        # Where the log has records after the end of such a queue, the uncovered bytes show them.
        short = {queue for queue in last if self.snapshot.queues[queue].bytes_after}
        known = {queue for queue in short if self._short_of_consumers(queue) is not None}
        yield from self._beside_records(last, known | missing.keys())

    def _covers_log(self, shown: UncoveredBytes | WholeRange | None) -> bool:
        """Whether a look at what no entry lists sees all of the log."""
        start, end = self.snapshot.log_start, self.snapshot.log_end
        return shown is not None and shown.covers(start) and shown.covers(max(start, end - 1))

    def _say_unseen(self, queues: set[QueueId], whole_log: bool) -> None:
        """Say once of a store that only the ends of its log are compared with some of these queues.

        `whole_log`: all of it is, but for light queues, whose records other queues list.
        """
        unseen = self.snapshot.log_end - self.snapshot.log_start - 2 * LOOKED_AT
        if unseen <= 0 or not (_light(queues) if whole_log else queues) or self._root in _SAID:
            return
        _SAID.add(self._root)
        LOG.warning(
            "%s: %s of the log between its first and last %s were not compared with %s: a message there "
            "that its queue has lost is not reported. --verify-queue (verifyQueue=true in Spark) and "
            "rmqstore verify compare all",
            shown_path(os.fspath(self._root)),
            size(unseen),
            size(LOOKED_AT),
            "the light queues" if whole_log else "the queues",
        )

    def _reached_ends(self, parts: Sequence[QueueSlice]) -> tuple[set[QueueId], set[QueueId]]:
        """The queues of `parts` of which they reach the first message, and those with the last."""
        states = self.snapshot.queues
        there = [part for part in parts if part.queue in states]
        first = {part.queue for part in there if part.start <= states[part.queue].min_offset}
        last = {part.queue for part in there if part.stop >= states[part.queue].max_offset}
        return first, last

    def uncovered(self, whole: WholeRange) -> UncoveredBytes:
        """An empty collection for the entries of a range.

        The range ends at the first records at or after its `start` and `stop`.
        """
        return UncoveredBytes(self.records, whole.queues, *self._range(whole.start, whole.stop))

    def errors_of(self, uncovered: UncoveredBytes) -> Iterator[StoreError]:
        """The errors of bytes that no entry lists."""
        for queue, missing in sorted(uncovered.missing.ends.items()):
            yield self._unlisted(queue, missing)
        yield from self._inside(uncovered.missing)
        yield from self._uncovered_damage(uncovered)

    def _range(self, start: int | None, stop: int | None) -> tuple[int, int]:
        end = self.snapshot.log_end
        low = self.snapshot.log_start if start is None else walk_to_record(self.log, start, end)
        high = end if stop is None else min(walk_to_record(self.log, stop, end), end)
        return low, high

    def unlisted(
        self, parts: Sequence[QueueSlice], start: int | None, stop: int | None
    ) -> Iterator[StoreError]:
        """An error for each queue of `parts` that lacks records of a log range at one of its ends.

        And one for each record inside of `parts` that its queue does not list. None means the log's
        start or end. Adjacent ranges, wherever they are cut, report every such record once.
        """
        queues = {part.queue for part in parts if part.queue in self.snapshot.queues}
        found = self.records.search(queues, *self._range(start, stop))
        for queue, missing in sorted(found.ends.items()):
            yield self._unlisted(queue, missing)
        yield from self._inside(found, parts)

    def _beside_records(
        self, last: Collection[QueueId], known: Collection[QueueId]
    ) -> Iterator[StoreError]:
        for error in self.snapshot.misplaced:
            if error.entry is not None and QueueId(*error.entry[:2]) in last:
                yield error
        if last and self._lost_log is not None:
            yield self._lost_log
        yield from self._doubled if last else ()
        for queue in sorted(last):
            if self.snapshot.queues[queue].bytes_after and self._is_closed and queue not in known:
                yield self._bytes_after(queue)

    def _damage_near_end(self, last: Collection[QueueId]) -> Iterator[StoreError]:
        yield from self.unlisted_damage if last and not self.snapshot.part else ()

    def _uncovered_damage(self, uncovered: UncoveredBytes) -> Iterator[StoreError]:
        for start, length, why in uncovered.damage:
            yield self._damaged(start, length, why)

    # --- the log ----------------------------------------------------------------------------------

    @cached_property
    def _is_closed(self) -> bool:
        """Whether nothing has written the store since its last clean stop, which ended it."""
        snapshot = self.snapshot
        if not snapshot.closed or (self._root / ABORT_FILE).exists():
            return False
        return end_now(self.log, snapshot.log_end) == snapshot.log_end

    @cached_property
    def _lost_log(self) -> StoreError | None:
        """The error if the checkpoint of a closed store is later than the log's last record."""
        last = self.snapshot.last_record
        stored = 0 if last is None else self.log.store_time_at(last)
        if stored is None or not self._is_closed or (last is None and self.log.chain.segments):
            return None
        flushed = Checkpoint.read_or_zero(self._root / CHECKPOINT_FILE).physic_msg_timestamp
        if flushed <= stored or flushed <= self._newest_near_end:
            return None
        return DataLossError(
            self.log.path_at(self.snapshot.log_end),
            offset=self.snapshot.log_end,
            reason="the end of the log is lost: the checkpoint has a later time than the last record",
            expected=f"a record stored at {flushed} ms",
            actual="no record" if last is None else f"the last one stored at {stored} ms",
            advice="The offset is a log offset. Look for the rest in a replica or a copy; if the "
            "checkpoint is wrong, move it away",
        )

    @cached_property
    def _doubled(self) -> list[StoreError]:
        """The errors of files of the log with records that another file of the same name has not."""
        return list(contradictions(self.log))

    @property
    def _newest_near_end(self) -> int:
        """The latest store time (ms) of the last bytes: a clock may have been set back since."""
        runs = (p for p in self.records.pieces(*self._last_bytes) if isinstance(p, SoundRun))
        stamps = (run.headers.store_timestamp.max() for run in runs)
        return max(map(int, stamps), default=0)

    # --- the queues -------------------------------------------------------------------------------

    def _missing_near(self, first: set[QueueId], last: set[QueueId]) -> dict[QueueId, Missing]:
        missing: dict[QueueId, Missing] = {}
        if any(self._starts_late(queue) for queue in first):
            missing |= {queue: lost for queue, lost in self._at_start.items() if queue in first}
        if last and self._is_closed:
            missing |= {queue: lost for queue, lost in self._at_end.ends.items() if queue in last}
        if last - missing.keys() and self._is_closed:
            listed = self._at_items.items()
            missing |= {q: lost for q, lost in listed if q in last and q not in missing}
        for queue in sorted(last - missing.keys()):
            lost = self._short_of_consumers(queue)
            if lost is not None:
                missing[queue] = lost
        return missing

    def _is_listed_elsewhere(self, lost: Missing) -> bool:
        """Whether the first of these records is in an entry of one of its other queues; True if unknown."""
        try:
            record = self.log.record_at(lost.log_offset)
            others = other_queues(decode_properties(record.properties), record.queue_id)
            return any(self._lists(queue, at, lost.log_offset) for queue, at in others)
        except StoreError:
            return True

    def _lists(self, queue: QueueId, offset: int, log_offset: int) -> bool:
        state = self.snapshot.queues.get(queue)
        if state is None or not state.min_offset <= offset < state.max_offset:
            return False
        return bool((self.entries_of(queue, offset, offset + 1).log_offset == log_offset).any())

    def _inside_near(
        self, parts: Sequence[QueueSlice], shown: UncoveredBytes | WholeRange | None
    ) -> Iterator[StoreError]:
        """Errors of records near the end of the log that are inside of `parts`, and that no queue lists.

        `shown`: the range of the log of which another look reports them, but for those of light
        queues, which lie in bytes that another queue lists.
        """
        if not self._reached_ends(parts)[1]:
            return
        if self._covers_log(shown) and not _light(self.snapshot.queues):
            return
        near = self._at_end
        unseen = [
            one
            for one in near.inside
            if shown is None
            or one.at.topic.startswith(LMQ_PREFIX)
            or not shown.covers(one.at.log_offset)
        ]
        yield from self._inside(MissingRecords({}, unseen, near.further), parts)

    def _inside(
        self, found: MissingRecords, parts: Sequence[QueueSlice] | None = None
    ) -> Iterator[StoreError]:
        """An error for each record inside of `parts`, by default of everything."""
        ranges: dict[QueueId, list[QueueSlice]] = {}
        for part in parts or ():
            ranges.setdefault(part.queue, []).append(part)

        def asked(entry: ListedAt) -> bool:
            mine = ranges.get(QueueId(entry.topic, entry.queue_id), ())
            return any(part.start <= entry.queue_offset < part.stop for part in mine)

        for one in found.inside:
            if parts is None or asked(one.at):
                yield self._unlisted_record(one)
        for queue, count in found.further.items():
            if parts is None or queue in ranges:
                yield self._further_unlisted(queue, count)

    def _starts_late(self, queue: QueueId) -> bool:
        """Whether all files before the queue's first are gone, and none of its records has expired."""
        state = self.snapshot.queues[queue]
        return not state.batch and 0 < state.file_start == state.min_offset < state.file_stop

    @cached_property
    def _at_start(self) -> dict[QueueId, Missing]:
        start, end = self.snapshot.log_start, self.snapshot.log_end
        near = min(start + LOOKED_AT, end)
        return self.records.search(self.snapshot.queues.keys(), start, near).ends

    @cached_property
    def _at_end(self) -> MissingRecords:
        return self.records.search(self.snapshot.queues.keys(), *self._last_bytes)

    @cached_property
    def _in_whole_log(self) -> MissingRecords | None:
        """What the whole log has and queues lack; None where finding that out would take long.

        Does not see what light queues lack, whose records other queues list.
        """
        snapshot, states = self.snapshot, self.snapshot.queues
        entries = sum(state.max_offset - state.min_offset for state in states.values())
        most = min(MOST_LISTED, self.log.chain.cost.spare // QUEUE_ENTRY.itemsize)
        if snapshot.part or not 0 < entries <= most:
            return None
        try:
            listed = concat_entries(
                [
                    self.entries_of(q, state.min_offset, state.max_offset)
                    for q, state in states.items()
                ]
            )
        except StoreError:
            return None  # a damaged queue; who reads it reports that
        leads = listed.points_to_record & (listed.log_offset <= snapshot.log_end - listed.size)
        listed = listed.take(leads & (listed.log_offset >= snapshot.log_start))
        listed = listed.take(np.argsort(listed.log_offset, kind="stable"))
        holes = sum(stop - start for start, stop in self.log.chain.holes)
        there = snapshot.log_end - snapshot.log_start - holes
        if there - int(listed.size.sum()) > _MOST_UNLISTED:
            return None
        uncovered = self.uncovered(WholeRange(frozenset(states), ()))
        uncovered.add(listed.log_offset, listed.size)
        uncovered.close()
        return uncovered.missing

    @cached_property
    def _at_items(self) -> dict[QueueId, Missing]:
        """What some items of the index lead to; none where each of them costs a request."""
        snapshot = self.snapshot
        if self.log.chain.cost.looks_at_once > 1:
            return {}
        found: set[int] = set()
        try:
            files = open_index_files(self._root, self._config)
            for file in files:
                found.update(file.sampled_places(max(1, _ITEMS_TRIED // len(files))))
        except StoreError:
            return {}  # a damaged index proves nothing; verify reports it
        inside = [at for at in sorted(found) if snapshot.log_start <= at < snapshot.log_end]
        places = np.array(inside[:_ITEMS_TRIED], dtype=np.int64)
        return self.records.search_at(places).ends

    @cached_property
    def _last_bytes(self) -> tuple[int, int]:
        end = self.snapshot.log_end
        return guess_record(self.log, end - LOOKED_AT, end), end

    @cached_property
    def unlisted_damage(self) -> list[StoreError]:
        """The errors of damage near the end of the log that is longer than what entries list there.

        Only a snapshot of all queues can say so.
        """
        errors: list[StoreError] = []
        pieces = self.records.pieces(*self._last_bytes)
        extents = (piece for piece in pieces if not isinstance(piece, SoundRun))
        damage = (extent for extent in extents if self.records.is_damage(extent))
        for extent in islice(damage, _MOST_DAMAGE):
            stop = min(extent.stop, self.snapshot.log_end)
            listed = 0
            for queue in self.snapshot.queues:
                places = (self._offset_at_log(queue, at) for at in (extent.start, stop))
                listed += int(self.entries_of(queue, *places).size.clip(0).sum())
            if listed < stop - extent.start:
                why = extent.reason or "a record that names another place"
                errors.append(self._damaged(extent.start, stop - extent.start, why))
        return errors

    @cached_property
    def reached(self) -> dict[QueueId, int]:
        """The queue offset up to which consumers, and the broker's delay service, have read."""
        reached: dict[QueueId, int] = {}
        try:
            groups = [*read_consumer_offsets(self._root).values(), read_delay_offsets(self._root)]
        except StoreError as error:  # damaged: proves nothing
            LOG.warning("the ends of queues are not compared with consumer offsets: %s", error)
            return {}
        for topics in groups:
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    queue = QueueId(topic, queue_id)
                    reached[queue] = max(offset, reached.get(queue, 0))
        return reached

    def _short_of_consumers(self, queue: QueueId) -> Missing | None:
        """Records after the last entry of a queue whose consumers have read more than it has.

        The offset alone proves nothing: the topic may have been deleted and created again.
        """
        state, end = self.snapshot.queues[queue], self.snapshot.log_end
        if self.reached.get(queue, 0) <= state.max_offset and not state.bytes_after:
            return None
        if queue not in self._searched:
            start = max(self.records.last_listed(queue), self.snapshot.log_start)
            stop = min(start + _SEARCHED, end)
            self._searched[queue] = self.records.search({queue}, start, stop).ends.get(queue)
            if self._searched[queue] is None and stop < end and not state.bytes_after:
                LOG.warning(
                    "queue %s/%d has offsets up to %d, but a consumer is at %d: its end may be "
                    "lost, or the topic was created again. Read with verifyQueue=true to find out",
                    *queue,
                    state.max_offset,
                    self.reached[queue],
                )
        return self._searched[queue]

    # --- errors -----------------------------------------------------------------------------------

    def _unlisted(self, queue: QueueId, missing: Missing) -> StoreError:
        state = self.snapshot.queues[queue]
        end = "ends before" if missing.offset >= state.max_offset else "starts after"
        return self._error(
            queue,
            missing,
            f"queue {queue.topic}/{queue.queue_id} {end} its messages: at least {missing.count} whole "
            f"records of it are in the log and not in the queue; the first has queue offset "
            f"{missing.offset} and log offset {missing.log_offset}",
        )

    def _unlisted_record(self, one: Unlisted) -> StoreError:
        entry = one.at
        why = (
            f", because an earlier record has its queue offset {entry.queue_offset}; a broker skips it"
            if one.skipped
            else f" of queue offset {entry.queue_offset}"
        )
        error = CorruptQueueError(
            self.log.path_at(entry.log_offset),
            offset=entry.log_offset,
            reason=f"queue {entry.topic}/{entry.queue_id} does not list this record{why}, no consumer gets "
            "it: the record",
            advice=f"The offset is a log offset. {_SKIPPED if one.skipped else _REBUILD}",
        )
        error.entry = entry
        return error

    def _further_unlisted(self, queue: QueueId, count: int) -> StoreError:
        return CorruptQueueError(
            self._folder(queue),
            reason=f"{count} more records of queue {queue.topic}/{queue.queue_id} are in no entry of it",
            advice=f"{_REBUILD}. It skips those whose queue offsets earlier records have, as a broker does",
        )

    def _damaged(self, start: int, length: int, why: str) -> StoreError:
        return CorruptRecordError(
            self.log.path_at(start),
            offset=start,
            reason=f"{length} bytes of the log are damaged ({why}), and no queue lists all that was there",
            advice="The offset is a log offset; the messages there are lost, of any queue",
        )

    def _bytes_after(self, queue: QueueId) -> StoreError:
        stop = self.snapshot.queues[queue].max_offset
        return self._error(
            queue,
            Missing(1, stop, -1, 0),
            f"bytes that are not an entry follow the last entry of queue {queue.topic}/"
            f"{queue.queue_id}: the queue's end is damaged",
        )

    def _folder(self, queue: QueueId) -> str:
        batch = self.snapshot.queues[queue].batch
        kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
        return f"{self._root}/{kind}/{queue.topic}/{queue.queue_id}"

    def _error(self, queue: QueueId, missing: Missing, reason: str) -> StoreError:
        state = self.snapshot.queues[queue]
        error = CorruptQueueError(
            self._folder(queue),
            offset=missing.offset,
            reason=reason,
            actual=f"queue offsets {state.min_offset} to {state.max_offset}",
            advice=f"The offset is a queue offset. {_REBUILD}",
        )
        error.entry = ListedAt(*queue, missing.offset, missing.log_offset, missing.size)
        return error


def _light(queues: Collection[QueueId]) -> set[QueueId]:
    return {queue for queue in queues if queue.topic.startswith(LMQ_PREFIX)}
