"""What is missing in a snapshot, as errors, in the same words for all who ask.

A read reports what it meets; what is missing is asked of Health when its rows are read. It joins what is
proven of the ends of queues (lost_queue_ends), of whole queues (lost_queues), of records that their queue
does not list (unlisted_records), of bytes that no entry lists (uncovered_bytes), and of the log's own end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_store.commitlog.compare_doubled_files import contradictions
from rmq_store.commitlog.misnamed_files import MisnamedFile, misnamed_files
from rmq_store.commitlog.next_intact_record import walk_to_record
from rmq_store.consumequeue.log_order import spans_of_log
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    ListedAt,
    LogOffset,
    QueueOffset,
    StoreError,
    shown_path,
)
from rmq_store.escaping import LOG
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.queue_entries import Entries, point_to_records
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.snapshot.covered_range import LogRange, light_queues, users_queues
from rmq_store.snapshot.files_of_other_queues import FilesOfOtherQueues
from rmq_store.snapshot.log_slices import LogSlice, pieces_of
from rmq_store.snapshot.lost_log_end import LostLogEnd
from rmq_store.snapshot.lost_queue_ends import LostQueueEnds
from rmq_store.snapshot.lost_queues import LOOKED_AT, LostQueue, lost_queues
from rmq_store.snapshot.queue_range import QueueState
from rmq_store.snapshot.snapshot import Fact, StoreSnapshot
from rmq_store.snapshot.uncovered_bytes import Places, SeenPlaces, missing_in
from rmq_store.snapshot.unlisted_records import Missing, MissingRecords, Unlisted, UnlistedRecords
from rmq_store.text.sizes import counted, size

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView


_SAID: set[Path] = set()  # stores of which was said what reads do not compare
_MOST_UNLISTED = 16 << 20  # bytes in no entry, as of a deleted topic, that are looked at for that
_ROWS = 1 << 16  # entries looked at together
_SKIPPED = "Read with source=commitlog to get the message; rebuild skips it, as a broker does"
_REBUILD = "Read with source=commitlog, or rebuild the queues: rmqstore rebuild STORE --to NEW"


class Health:
    """What is missing in the snapshot of a view, and the errors that say so.

    That is: messages at the start and the end of queues, the end of the log, records that their queue
    does not list, bytes of the log that no entry lists, and queues that have lost all messages.
    """

    def __init__(self, view: QueueView) -> None:
        self.view, self.log, self.snapshot = view, view.log, view.snapshot
        self.records = UnlistedRecords(view)
        self.ends = LostQueueEnds(view, self.records)
        self.log_end = LostLogEnd(view, self.records, self.ends)
        self._of_all: dict[LogRange, MissingRecords] = {}  # of selections that have the whole log

    def errors(
        self,
        parts: Sequence[QueueSlice],
        *,
        compare: bool = False,
        covered: LogRange | None = None,
        elsewhere: bool = False,
        sound: bool = True,
        reads_records: bool = True,
        seen: SeenPlaces | None = None,
    ) -> Iterator[StoreError]:
        """What a read of `parts` lacks, as errors.

        One for each queue that lacks messages at an end that `parts` reach, one for each record inside of
        `parts` that its queue does not list, and one if the log lacks its own end. Looks at:

        - with `compare`, all records of the log;
        - with `covered`, the range of the log of which `parts` are all messages, the bytes there that
          no entry lists;
        - by default, the same bytes of all of the log if the store has up to `MOST_LISTED` entries, else
          the records near the log's ends.

        `elsewhere`: other processes look, by `errors_in`. `sound`: the entries of `covered` lead to
        records of their own queues. `reads_records`: the read notices entries that do not. `seen`: the
        entries of `parts`, if a read has noted them.
        """
        first, last = self._reached_ends(parts)
        found = None if elsewhere else self._found(parts, covered, seen, compare=compare)
        all_seen = found is not None if covered is None else self._is_all(covered)
        near = MissingRecords()
        if not compare:
            near = self.ends.near(first, last, covered, all_seen=all_seen, sound=sound)
            is_seen = found is not None or covered is not None
            self._say_unseen(first | last, whole_log=is_seen)
        missing = near.ends
        if found is not None:
            missing |= {
                queue: lost
                for queue, lost in found.ends.items()
                if (
                    self._reaches(queue, lost, first, last)
                    if covered is None
                    else queue in covered.queues
                )
            }
            yield from self._inside(found, parts, covered)
        yield from self._inside(near, parts)
        yield from (self._unlisted(queue, missing[queue]) for queue in sorted(missing))
        if not reads_records:
            yield from self._covered_up({} if found is None else found.covered_up, parts)
        if last and not self._is_all(covered) and not (covered and covered.alone):
            damage = self.damage_near_end
            yield from (e for e in damage if covered is None or not covered.covers(e.offset))
        if found is not None and covered is not None:
            yield from self._damage(found)
        yield from self._beside_records(last, missing)
        gone = {part.queue for part in parts if part.queue not in self._states}
        yield from (self._lost(queue) for queue in sorted(gone) if queue in self.lost_queues)

    def errors_in(
        self, piece: LogSlice, parts: Sequence[QueueSlice], *, compare: bool
    ) -> Iterator[StoreError]:
        """The errors of `errors` for a slice of the log, of which `parts` are all messages.

        With `compare`, for one of which they are some. Adjacent slices, wherever they are cut, give
        each record once.
        """
        users = users_queues(self.view, {part.queue.topic for part in parts})
        # The log may begin and end with damage, which a range between two records leaves out.
        start = None if piece.start == self.snapshot.log_start else piece.start
        stop = None if piece.stop == self.snapshot.log_end else piece.stop
        covered = LogRange(start, stop, users)
        found = self._compared(parts, covered) if compare else self._uncovered(covered, ())
        yield from (self._unlisted(queue, found.ends[queue]) for queue in sorted(found.ends))
        yield from self._inside(found, parts, None if compare else covered)
        yield from self._damage(found)

    def errors_at(self, places: Ints, parts: Sequence[QueueSlice]) -> Iterator[StoreError]:
        """The errors of `errors` that are about the whole records at some log offsets."""
        if not len(places):
            return
        found, chosen = self.records.search_at(places), {part.queue for part in parts}
        first, last = self._reached_ends(parts)
        for queue, lost in sorted(found.ends.items()):
            if self._reaches(queue, lost, first, last):
                yield self._unlisted(queue, lost)
        yield from self._inside(found, parts)
        if chosen - self._states.keys():
            near = (self.records.queues_named(at, at + 1) for at in places.tolist())
            gone = set().union(*near) & chosen & self.lost_queues.keys() - self._states.keys()
            yield from map(self._lost, sorted(gone))

    def lost_start(self, queue: QueueId) -> StoreError | None:
        """The error if messages before the first of a queue are lost; None if they may have expired."""
        low, _ = self.view.limits(queue)
        for error in self.errors([QueueSlice(queue, low, low)]):
            entry = error.entry
            if entry is not None and entry[:2] == queue and entry.queue_offset < low:
                return error
        return None

    @Fact
    def short_queues(self) -> dict[QueueId, Missing]:
        """What queues lack at their ends, as far as a read of all of them looks for it."""
        if self.snapshot.part:
            return {}
        found, every = self._in_whole_log, set(self._states)
        whole = None if found is None else LogRange(None, None, frozenset(every))
        near = self.ends.near(every, every, whole, all_seen=found is not None, sound=False)
        return near.ends | (found.ends if found is not None else {})

    def short_queue_errors(self) -> Iterator[StoreError]:
        """An error for each of the `short_queues`, of the `holed_queues`, of those that list records of
        others, and for damage that is not all listed, for what counts entries and reads no message."""
        for queue, lost in self.short_queues.items():
            if queue not in self.lost_queues:  # those have a warning of their own
                yield self._unlisted(queue, lost)
        for queue, lost in self.holed_queues.items():
            yield self._damaged_inside(queue, lost)
        for queue in sorted(self.of_other_queues.by_queue.keys() - self.holed_queues.keys()):
            yield self._lists_others(queue)
        yield from self._damage_seen()

    def warn_of_short_queues(self) -> None:
        """Log the `short_queue_errors`."""
        for error in self.short_queue_errors():
            where = shown_path(os.fspath(self.view.root))
            LOG.warning("%s: %s. %s", where, error.reason, error.advice)

    @cached_property
    def holed_queues(self) -> dict[QueueId, Missing]:
        """What queues lack between their ends, in files that are there, if the whole log was looked at."""
        found = self._in_whole_log
        return {
            queue: lost
            for queue, lost in ({} if found is None else found.between).items()
            if not any(
                start <= lost.offset and lost.stop <= stop
                for start, stop in self.view.offsets_without_entry(queue)
            )
        }

    @Fact
    def of_other_queues(self) -> FilesOfOtherQueues:
        """Files of queues that list records of other queues."""
        return self.records.of_other_queues

    @Fact
    def damaged_ranges(self) -> list[tuple[int, int]]:
        """The ranges of the log without a record around damage that a look at what no queue lists has met."""
        damage = [] if self._in_whole_log is None else self._in_whole_log.damage
        found: list[tuple[int, int]] = []
        for at, _, _ in damage:
            if not found or at >= found[-1][1]:
                stop = walk_to_record(self.log, at, self.snapshot.log_end)
                found.append((self.records.end_before(at), stop))
        return found

    def queue_holes(self) -> Iterator[StoreError]:
        """An error for each range of queue offsets between others that no file holds."""
        for queue, state in self._states.items():
            for start, stop in self.view.offsets_without_entry(queue) if state.has_hole else ():
                yield CorruptQueueError(
                    self.view.folder(queue),
                    reason=f"queue {queue.name} lists no message at queue offset {start} "
                    f"to {stop}: a file of it is missing, empty or cut",
                    advice=_REBUILD,
                    entry=ListedAt(*queue, start, -1, 0, stop - start),
                )

    def only(self, queues: Iterable[QueueId]) -> StoreSnapshot:
        """The snapshot with only these `queues`, for a part of a job, and what only all of them prove."""
        some = {queue: self._states[queue] for queue in queues if queue in self._states}
        _ = self._in_whole_log, self.damage_near_end, self.damaged_ranges, self.lost_queues
        return replace(self.snapshot, queues=some, part=True, facts=dict(self.snapshot.facts))

    def is_quick(self, covered: LogRange, parts: Sequence[QueueSlice]) -> bool:
        """Whether `errors` takes milliseconds to look at a range of which `parts` are all messages."""
        return sum(map(len, self._parts_in(covered, parts))) <= self.records.most_listed

    def _found(
        self,
        parts: Sequence[QueueSlice],
        covered: LogRange | None,
        seen: SeenPlaces | None,
        *,
        compare: bool,
    ) -> MissingRecords | None:
        if compare:
            return self._compared(parts, LogRange(None, None, frozenset()))
        if covered is None or (covered.is_log and self._in_whole_log is not None):
            return self._in_whole_log
        if not covered.is_log:
            return self._uncovered(covered, parts, seen)
        if covered not in self._of_all:
            self._of_all[covered] = self._uncovered(covered, parts, seen)
        return self._of_all[covered]

    def _compared(self, parts: Sequence[QueueSlice], covered: LogRange) -> MissingRecords:
        """What a range of the log has and the queues of `parts` do not list."""
        queues = {part.queue for part in parts if part.queue in self._states}
        return self.records.search(queues, *self._range(covered))

    def _uncovered(
        self, covered: LogRange, parts: Sequence[QueueSlice], seen: SeenPlaces | None = None
    ) -> MissingRecords:
        """What a range of the log has and no entry lists; `parts` as in `_parts_in`.

        The range ends at the first records at or after its `start` and `stop`. `seen` as in `errors`.
        """
        inside = self._parts_in(covered, parts)
        beside, known = inside[len(parts) :], None if seen is None else seen.places()
        if known is None or sum(map(len, beside)) > self.records.most_listed:
            listed = self._listed(inside)
        else:  # the entries need not be read again
            listed = iter([Places.concat([known, *self._listed(beside)]).by_log_offset()])
        return missing_in(self.records, listed, covered.queues, *self._range(covered))

    def _parts_in(self, covered: LogRange, parts: Sequence[QueueSlice]) -> list[QueueSlice]:
        """The parts of all queues in a range of the log; `parts`: those that are known."""
        known, at = {part.queue for part in parts}, self.view.offset_at_log
        every = [QueueSlice(q, one.min_offset, one.max_offset) for q, one in self._states.items()]
        others = [part for part in every if part.queue not in known]
        _, end = self._range(covered)
        found = [*parts, *pieces_of(others, LogSlice(covered.start, covered.stop, 0), at)]
        if covered.stop is not None and end > covered.stop:  # inside of damage
            found += pieces_of(every, LogSlice(covered.stop, end, 0), at)
        return found

    def _listed(self, parts: Sequence[QueueSlice]) -> Iterator[Places]:
        """The entries that lead to a record, sorted by log offset."""
        some, entries_of = [part for part in parts if part.start < part.stop], self.view.entries
        if sum(part.stop - part.start for part in some) > self.records.most_listed:
            for span in spans_of_log(
                some,
                entries_of,
                lambda _, entries: entries.take(self._leads(entries)),
                batch_queues={part.queue for part in some if self.view.is_batch(part.queue)},
                least_rows=_ROWS,
            ):
                yield Places.concat([entries for _, entries in span]).by_log_offset()
        elif some:
            found = [entries_of(part.queue, part.start, part.stop) for part in some]
            listed = Places.concat(found).by_log_offset()
            yield listed.take(self._leads(listed))

    def _leads(self, listed: Entries | Places) -> Mask:
        at, long = listed.log_offset, listed.size
        return point_to_records(at, long) & (at <= self.snapshot.log_end - long)

    @property
    def _states(self) -> Mapping[QueueId, QueueState]:
        return self.snapshot.queues

    def _is_all(self, covered: LogRange | None) -> bool:
        """Whether a range covers all of the log."""
        start, end = self.snapshot.log_start, self.snapshot.log_end
        return covered is not None and covered.covers(start) and covered.covers(max(start, end - 1))

    def _say_unseen(self, queues: set[QueueId], *, whole_log: bool) -> None:
        """Say once of a store that only the ends of its log are compared with some of these queues.

        `whole_log`: all of it is, but for light queues, whose records other queues list.
        """
        unseen = self.snapshot.log_end - self.snapshot.log_start - 2 * LOOKED_AT
        if (
            unseen <= 0
            or not (light_queues(queues) if whole_log else queues)
            or self.view.root in _SAID
        ):
            return
        _SAID.add(self.view.root)
        LOG.warning(
            "%s: %s of the log between its first and last %s were not compared with %s: a message there "
            "that its queue has lost is not reported. --verify-queue (verifyQueue=true in Spark) and "
            "rmqstore verify compare all",
            shown_path(os.fspath(self.view.root)),
            size(unseen),
            size(LOOKED_AT),
            "the light queues" if whole_log else "the queues",
        )

    def _reached_ends(self, parts: Sequence[QueueSlice]) -> tuple[set[QueueId], set[QueueId]]:
        """The queues of `parts` of which they reach the first message, and those with the last."""
        states = self._states
        there = [part for part in parts if part.queue in states]
        first = {part.queue for part in there if part.start <= states[part.queue].min_offset}
        last = {part.queue for part in there if part.stop >= states[part.queue].max_offset}
        return first, last

    def _reaches(
        self, queue: QueueId, lost: Missing, first: Collection[QueueId], last: Collection[QueueId]
    ) -> bool:
        """Whether a read that reaches the `first` and the `last` message of queues meets what is lost.

        `lost` may begin before the first message and have some after the last one too.
        """
        if queue in last or queue not in self._states:  # a look at all queues found it
            return queue in last
        return queue in first and lost.offset < self._states[queue].max_offset

    def _range(self, covered: LogRange) -> tuple[int, int]:
        """A range of the log, from its first record at or after `start` to the one at or after `stop`."""
        low, high = self.snapshot.log_start, self.snapshot.log_end
        if covered.start is not None:
            low = walk_to_record(self.log, covered.start, high)
        if covered.stop is not None:
            high = min(walk_to_record(self.log, covered.stop, high), high)
        return low, high

    def _beside_records(
        self, last: Collection[QueueId], known: Collection[QueueId]
    ) -> Iterator[StoreError]:
        """The errors that no look at records finds."""
        for error in self.snapshot.misplaced:
            if error.entry is not None and QueueId(*error.entry[:2]) in last:
                yield error
        yield from self.log_end.errors(last)
        yield from self._doubled if last else ()
        for queue in sorted(last):
            if not self._states[queue].bytes_after or not self.ends.is_closed or queue in known:
                continue
            if (
                self.ends.short_of_consumers(queue) is None
            ):  # else the log has records after its end
                yield self._bytes_after(queue)

    @Fact
    def _doubled(self) -> list[StoreError]:
        """The errors of files of the log with records that another file of the same name has not."""
        return list(contradictions(self.log))

    # --- the records inside ------------------------------------------------------------------------

    def _inside(
        self, found: MissingRecords, parts: Sequence[QueueSlice], covered: LogRange | None = None
    ) -> Iterator[StoreError]:
        """An error for each record inside of `parts`, or of a queue of the range that they cover."""
        ranges: dict[QueueId, list[QueueSlice]] = {}
        for part in parts:
            ranges.setdefault(part.queue, []).append(part)
        queues = ranges.keys() if covered is None else covered.queues
        for one in found.inside:
            queue, at = QueueId(one.at.topic, one.at.queue_id), one.at.queue_offset
            if queue not in queues:
                continue
            if covered or any(part.start <= at < part.stop for part in ranges[queue]):
                yield self._unlisted_record(one)
        for queue, count in found.further.items():
            if queue in queues:
                yield self._further_unlisted(queue, count)

    def _covered_up(
        self, known: Mapping[QueueId, Missing], parts: Sequence[QueueSlice]
    ) -> Iterator[StoreError]:
        """An error for each queue in `parts` whose entries stand for records of other queues.

        `known`: the queue's own records for which they stand; a copied folder hides none.
        """
        others = self.of_other_queues.by_queue
        for queue in sorted(known.keys() | others.keys()):
            lost = known.get(queue)
            ranges = [(lost.offset, lost.stop)] if lost else [one[:2] for one in others[queue]]
            mine = [part for part in parts if part.queue == queue]
            if any(p.start < stop and start < p.stop for p in mine for start, stop in ranges):
                yield self._damaged_inside(queue, lost) if lost else self._lists_others(queue)

    @Fact
    def _in_whole_log(self) -> MissingRecords | None:
        """What the whole log has and queues lack; None where finding that out would take long.

        Does not see what light queues lack, whose records other queues list.
        """
        found, _ = self.whole_log, self.lost_queues
        return None if found is None else replace(found, queueless=[])  # `lost_queues` has them

    @cached_property
    def whole_log(self) -> MissingRecords | None:
        """As `_in_whole_log`, with the records of queues without messages."""
        snapshot, known = self.snapshot, self.records.all_listed
        if known is None:
            return None
        listed = Places.of(known.take(known.log_offset >= snapshot.log_start))
        holes = sum(stop - start for start, stop in self.log.chain.holes)
        there = snapshot.log_end - snapshot.log_start - holes
        frames = int((listed.log_offset - self.log.fronts(listed.log_offset)).sum())
        if there - int(listed.size.sum()) - frames > _MOST_UNLISTED:
            return None
        return missing_in(
            self.records, [listed], self._states.keys(), snapshot.log_start, snapshot.log_end
        )

    @Fact
    def damage_near_end(self) -> list[StoreError]:
        """The errors of damage near the end of the log that is longer than what entries list there.

        Only a snapshot of all queues can say so: else empty, unless it was known before.
        """
        errors: list[StoreError] = []
        if self.snapshot.part:
            return errors
        for extent in self.ends.at_end.gaps:
            stop = min(extent.stop, self.snapshot.log_end)
            listed = 0
            for queue in self._states:
                places = (self.view.offset_at_log(queue, at) for at in (extent.start, stop))
                sizes = self.view.entries(queue, *places).size
                listed += int(sizes.clip(0).sum()) + len(sizes) * self.log.frame_at(extent.start)
            if listed < stop - extent.start:
                why = extent.reason or "a record that names another place"
                errors.append(self._damaged(extent.start, stop - extent.start, why))
        return list(self._in_misnamed_or(errors))

    @Fact
    def lost_queues(self) -> dict[QueueId, LostQueue]:
        """Queues without messages that had some, with the proof; see `lost_queues`. Raises AccessError."""
        return lost_queues(self)

    # --- errors -----------------------------------------------------------------------------------

    def _unlisted(self, queue: QueueId, missing: Missing) -> StoreError:
        state = self._states[queue]
        end = "ends before" if missing.offset >= state.max_offset else "starts after"
        return self._error(
            queue,
            missing,
            f"queue {queue.name} {end} its messages: the log has at least "
            f"{counted(missing.count, 'whole record')} of it that the queue does not list; the first has "
            f"queue offset {missing.offset} and log offset {missing.log_offset}",
        )

    def _damaged_inside(self, queue: QueueId, missing: Missing) -> StoreError:
        records, offset = counted(missing.count, "whole record"), missing.offset
        entry = self.view.entry_at(queue, offset)
        is_strange = (
            entry is not None
            and self.log.is_record(entry.log_offset, int(entry.size))
            and self.view.store_time(queue, offset) is None
        )
        return self._error(
            queue,
            missing,
            f"queue {queue.name} does not list {records} that the log has of it, at queue offsets from "
            f"{offset} to {missing.stop - 1}; the first has log offset {missing.log_offset}"
            + (", and its entry leads to a record of another queue" if is_strange else ""),
        )

    def _lists_others(self, queue: QueueId) -> StoreError:
        found, files = self.of_other_queues, self.of_other_queues.by_queue[queue]
        first, count = files[0], found.count(queue)
        return self._error(
            queue,
            Missing(count, first.start, first.log_offset, first.size),
            f"queue {queue.name} lists {'' if found.is_all else 'at least '}"
            f"{counted(count, 'record')} of other queues, at queue offsets between {first.start} and "
            f"{files[-1].stop - 1}: its folder, or a file in it, was copied, renamed or exchanged",
            advice="Move it away if it is a copy, or rebuild the queues: rmqstore rebuild STORE --to NEW",
        )

    def _lost(self, queue: QueueId) -> StoreError:
        lost = self.lost_queues[queue]
        return CorruptQueueError(
            self.view.folder(queue),
            reason=f"queue {queue.name} {lost}",
            advice=f"{_REBUILD}. If the topic was deleted and created again, nothing is lost",
            entry=ListedAt(*queue, 0, -1, 0, lost.records),
        )

    def _unlisted_record(self, one: Unlisted) -> StoreError:
        entry = one.at
        why = (
            f", because an earlier record has its queue offset {entry.queue_offset}; a broker skips it"
            if one.skipped
            else f" of queue offset {entry.queue_offset}"
        )
        return CorruptQueueError(
            self.log.path_at(entry.log_offset),
            offset=LogOffset(entry.log_offset),
            reason=f"queue {entry.name} does not list this record{why}, no consumer gets it: the record",
            advice=_SKIPPED if one.skipped else _REBUILD,
            entry=entry,
        )

    def _further_unlisted(self, queue: QueueId, count: int) -> StoreError:
        return CorruptQueueError(
            self.view.folder(queue),
            reason=f"{count} more records of queue {queue.name} are in no entry of it",
            advice=f"{_REBUILD}. It skips those whose queue offsets earlier records have, as a broker does",
        )

    def _damage(self, found: MissingRecords) -> Iterator[StoreError]:
        yield from self._in_misnamed_or(self._damaged(*damage) for damage in found.damage)

    def _damage_seen(self) -> Iterator[StoreError]:
        """The errors of damage that was met in a look at what no queue lists: maybe at a part of it."""
        damage = [] if self._in_whole_log is None else self._in_whole_log.damage
        holes = self.log.chain.holes
        yield from self._in_misnamed_or(
            CorruptRecordError(
                self.log.path_at(place),
                offset=LogOffset(place),
                reason=f"the log is damaged at log offset {place} ({why}), and messages there are lost",
                advice="rmqstore verify shows how far, and of which queues",
            )
            for place, _, why in damage
            if not any(start <= place < stop for start, stop in holes)
        )

    def _in_misnamed_or(self, damage: Iterable[StoreError]) -> Iterator[StoreError]:
        """The errors of damage, but one for all in a log file that has the name of another place."""
        known: dict[int, list[MisnamedFile]] = {}
        for error in damage:
            assert error.offset is not None
            file = self.log.chain.segment_at(error.offset)
            if file is not None and file.base not in known:
                known[file.base] = list(misnamed_files(self.log, [file]))
                yield from (one.error for one in known[file.base])
            if file is None or not known[file.base]:
                yield error

    def _damaged(self, start: int, length: int, why: str) -> StoreError:
        return CorruptRecordError(
            self.log.path_at(start),
            offset=LogOffset(start),
            reason=f"{length} bytes of the log are damaged ({why}), and no queue lists all that was there",
            advice="The messages there are lost, of any queue",
        )

    def _bytes_after(self, queue: QueueId) -> StoreError:
        stop = self._states[queue].max_offset
        return self._error(
            queue,
            Missing(0, stop, -1, 0),
            f"bytes that are not an entry follow the last entry of queue {queue.topic}/"
            f"{queue.queue_id}: the queue's end is damaged",
        )

    def _error(
        self, queue: QueueId, missing: Missing, reason: str, advice: str = _REBUILD
    ) -> StoreError:
        state = self._states[queue]
        return CorruptQueueError(
            self.view.folder(queue),
            offset=QueueOffset(missing.offset),
            reason=reason,
            actual=f"queue offsets {state.min_offset} to {state.max_offset}",
            advice=advice,
            entry=ListedAt(*queue, missing.offset, missing.log_offset, missing.size, missing.count),
        )
