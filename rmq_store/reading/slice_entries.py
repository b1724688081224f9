"""The entries of queue slices that lead to a record, in log order or queue after queue, and the checks of
entries against their records: size, queue, queueOffset and CRC."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import bodies_with_crcs, stored_topics
from rmq_store.commitlog.headers import Headers, wrong_crc_rows
from rmq_store.consumequeue.compacted_queue import CompactedQueue
from rmq_store.consumequeue.entry_of_record import (
    compare_with_records,
    other_queues_of_record,
    properties_of,
)
from rmq_store.consumequeue.log_order import in_log_order, queue_after_queue
from rmq_store.errors import (
    LOG,
    CorruptQueueError,
    ListedAt,
    LogOffset,
    MissingFileError,
    QueueOffset,
    StoreError,
    shown_path,
)
from rmq_store.format.byte_layout import Bytes, Ints, Mask
from rmq_store.format.hashes import tags_code
from rmq_store.format.queues import (
    EXT_MAX_ADDRESS,
    FILLER_SIZE,
    Entries,
    ListedEntries,
    QueueId,
    QueueSlice,
)
from rmq_store.format.record import is_dispatched_to
from rmq_store.loops import queue_entries
from rmq_store.loops.queue_entries import OTHER_QUEUE, OTHER_RECORD, SAME
from rmq_store.reading.query import Query
from rmq_store.snapshot.queue_view import QueueView

_MASK32 = 0xFFFFFFFF
_MOST_MESSAGES = 32_767  # of an entry
_SKIP_IT = "Read with on_damage to skip it"
SoundRows = tuple[ListedEntries, Headers, pa.Array | None]
"""Rows, the headers of their records, and their bodies as stored if these are known."""

OTHER_OFFSET = "lists a record at another queue offset than its own"
"""The end of the reason for an entry whose record says another queueOffset."""
NOT_OF_QUEUE = "lists a record of another queue"
"""The end of the reason for an entry whose record names another queue."""

_SAID: set[str] = set()  # stores of which was said that messages moved up in their queues


class CompactedEntries:
    """The entries of one queue of a compaction topic as those of any queue."""

    def __init__(self, files: CompactedQueue) -> None:
        self._files, self.log, self.log_end = files, files.log, files.log_end
        self.replaced = files.replaced

    def _no(self, queue: QueueId) -> bool:
        return False

    is_batch = _no  # a file with an entry of several messages is refused
    is_dense = _no  # messages that were compacted away have no entry
    # The broker compares no tags here (CompactionStore#getMessage), and nothing else proves their hashes.
    has_tag_hashes = _no
    was_deleted = _no  # the files are open

    def entries_starting_in(self, queue: QueueId, start: int, stop: int) -> Entries:
        """The entries of a range of queue offsets."""
        return self._files.entries(start, stop)

    entries_with_ext = entries_starting_in

    def folder(self, queue: QueueId) -> str:
        """The folder of the entries."""
        return self._files.folder

    def why_offsets_missing(self, queue: QueueId) -> str:
        """Offsets between others are those of messages that were compacted away."""
        return "it was compacted away"

    def offsets_without_file(self, queue: QueueId) -> Sequence[tuple[int, int, bool]]:
        """None are known: a compaction leaves out offsets."""
        return ()


EntriesOfQueues = QueueView | CompactedEntries


class WantedEntries:
    """Chooses entries of one view by tag hash. `damaged` takes the errors of those that lead to no record:
    filler, and entries that point outside the log or back in it.

    `reads_log`: whether the caller compares each entry with its record.
    """

    def __init__(
        self,
        view: EntriesOfQueues,
        query: Query,
        damaged: Callable[[StoreError, ListedAt | None], None],
        *,
        reads_log: bool,
    ) -> None:
        self._view, self._log, self._log_end = view, view.log, view.log_end
        self._query, self._damaged, self._reads_log = query, damaged, reads_log
        self._holes = self._log.chain.holes
        self._hashes: Ints | None = None
        if query.tags is not None:
            hashes = [tags_code(tag) & _MASK32 for tag in query.tags]
            self._hashes = np.array(hashes, dtype=np.int64)

    def wanted(self, slices: Sequence[QueueSlice]) -> Iterator[ListedEntries]:
        """The wanted entries of all slices, in log order unless the caller lets go of it."""
        filled = [slice_ for slice_ in slices if slice_.start < slice_.stop]
        ends = [-1] * len(filled)
        batched = {slice_.queue for slice_ in filled if self._view.is_batch(slice_.queue)}
        before = _stops_before(filled) if batched and self._reads_log else [-1] * len(filled)

        def keep(number: int, entries: Entries) -> Entries:
            slice_ = filled[number]
            if before[number] >= 0 and slice_.queue in batched:
                entries = entries.take(entries.offset >= before[number])
            entries = self._leading(slice_, entries)
            wanted = self._with_tags(slice_.queue, entries)
            if not self._reads_log and len(wanted):
                wanted, ends[number] = self._trusted(slice_, wanted, ends[number])
            return wanted

        # Records are read in the order of the log in any case, to go through it once.
        ordered = in_log_order if self._query.log_order or self._reads_log else queue_after_queue
        return ordered(
            filled,
            self._view.entries_with_ext
            if self._query.unwrap_batches
            else self._view.entries_starting_in,
            keep,
            batch_queues=batched,
            least_rows=self._query.batch_rows,
            first_rows=self._query.first_batch_rows,
        )

    def _leading(self, slice_: QueueSlice, entries: Entries) -> Entries:
        """The entries without those that point nowhere, which are reported."""
        if not queue_entries.all_lead(entries.log_offset.data, entries.size.data, self._log_end):
            leads = entries.points_to_record & (entries.log_offset <= self._log_end - entries.size)
            others = self._report_missing_files(slice_, entries.take(~leads))
            self._report_dead_ends(slice_.queue, others)
            entries = entries.take(leads)
        if self._holes and not self._reads_log:
            entries = self._in_files(slice_.queue, entries)
        return entries

    def _with_tags(self, queue: QueueId, entries: Entries) -> Entries:
        """The entries without those that have another tag hash."""
        if self._hashes is None or not self._view.has_tag_hashes(queue):
            return entries
        if self._query.unwrap_batches and self._view.is_batch(queue):
            return entries  # tagsCode is that of one of several messages
        codes = entries.tags_code
        return entries.take(np.isin(codes & _MASK32, self._hashes) | (codes <= EXT_MAX_ADDRESS))

    def _in_files(self, queue: QueueId, entries: Entries) -> Entries:
        """The entries whose records are in files. A reader of records notices the others itself."""
        held = np.ones(len(entries), dtype=bool)
        for start, stop in self._holes:
            held &= (entries.log_offset >= stop) | (entries.log_offset + entries.size <= start)
        for row in np.flatnonzero(~held).tolist():
            try:
                self._log.record_at(int(entries.log_offset[row]))
            except StoreError as error:
                self._damaged(error, entries.listed_at(queue, row))
        return entries.take(held)

    def _trusted(self, slice_: QueueSlice, entries: Entries, end: int) -> tuple[Entries, int]:
        """Entries that are trusted without their record. Each must point after the one before.

        `end` is the end of the record before them. Also returns the new end.
        """
        before = np.append(end, (entries.log_offset + entries.size)[:-1])
        if (entries.log_offset < before).any():
            back = entries.log_offset < np.maximum.accumulate(before)
            for row in np.flatnonzero(back).tolist():
                # Its neighbours may be the wrong ones: how many messages it hides is not known.
                entry = entries.listed_at(slice_.queue, row)._replace(messages=0)
                self._refuse(
                    entry,
                    f"an entry of queue {entry.name} points back in the log",
                    expected=f"log offset {int(before[row])} or more",
                    actual=entry.log_offset,
                    advice="Read with verifyQueue to check the entries against their records",
                )
            entries = entries.take(~back)
            if not len(entries):
                return entries, end
        end = int(entries.log_offset[-1] + entries.size[-1])
        if self._query.unwrap_batches and self._view.is_batch(slice_.queue):
            entries = _each_message(self._countable(slice_, entries), slice_)
        return entries, end

    def _countable(self, slice_: QueueSlice, entries: Entries) -> Entries:
        """The entries without those that claim more messages than one can: batchSize is a Java short."""
        large = entries.count > _MOST_MESSAGES
        for row in np.flatnonzero(large).tolist():
            entry = entries.listed_at(slice_.queue, row)
            self._refuse(
                entry,
                f"an inner batch of queue {entry.name} claims to have {entry.messages:,} messages",
                expected=f"at most {_MOST_MESSAGES:,}",
            )
        return entries.take(~large) if large.any() else entries

    def _report_missing_files(self, slice_: QueueSlice, entries: Entries) -> Entries:
        """The entries without the places of missing files, which are reported: those of one file one by one.

        A file that was renamed to a distant number leaves millions of such places, reported as one.
        """
        if len(entries) and self._view.was_deleted(slice_.queue):
            entry = entries.listed_at(slice_.queue, 0)._replace(messages=int(entries.count.sum()))
            last = entry.queue_offset + entry.messages - 1
            error = MissingFileError(
                self._view.folder(slice_.queue),
                reason=f"queue {entry.name} was deleted with its topic since the store was opened: its "
                f"queue offsets {entry.queue_offset} to {last} are gone",
                advice=f"Open the store again to read what it has now. {_SKIP_IT}",
            )
            self._damaged(error, entry)
            return entries.take(slice(0))
        for start, stop, as_one in (
            self._view.offsets_without_file(slice_.queue) if len(entries) else ()
        ):
            first, behind = max(start, slice_.start), min(stop, slice_.stop)
            inside = (entries.offset >= first) & (entries.offset < behind)
            count = behind - first if as_one else 1
            for offset in entries.offset[inside & ((entries.offset - first) % count == 0)].tolist():
                entry = ListedAt(*slice_.queue, offset, 0, 0, count)
                offsets = f"s {offset} to {offset + count - 1}" if count > 1 else f" {offset}"
                self._refuse(
                    entry,
                    f"queue {entry.name} has no file for its queue offset{offsets}: a file is gone, empty "
                    "or cut, or the next one has a wrong name",
                    advice="Look for the file in a copy, or rebuild the queues: rmqstore rebuild STORE "
                    f"--to NEW. {_SKIP_IT}",
                )
            entries = entries.take(~inside)
        return entries

    def _report_dead_ends(self, queue: QueueId, entries: Entries) -> None:
        """Report filler, entries that point outside the log, and queue offsets that no entry has: between
        undispatched records, or in a BatchConsumeQueue."""
        for row in range(len(entries)):
            entry = entries.listed_at(queue, row)
            if entry.log_offset < 0 and not entry.size:
                why = self._view.why_offsets_missing(queue)
                self._refuse(
                    entry, f"queue {entry.name}, which has later messages, lists none ({why})"
                )
                continue
            what = "filler" if entry.size == FILLER_SIZE else "an entry that points outside the log"
            self._refuse(
                entry,
                f"{what} in queue {entry.name}",
                expected=f"a record before log offset {self._log_end}",
                actual=f"log offset {entry.log_offset}, size {entry.size}",
            )

    def _refuse(
        self, entry: ListedAt, reason: str, *, advice: str = _SKIP_IT, **sides: Any
    ) -> None:
        """Report an entry. `sides`: what was expected, and the actual value."""
        folder, offset = self._view.folder(QueueId(*entry[:2])), QueueOffset(entry.queue_offset)
        self._damaged(
            CorruptQueueError(folder, offset=offset, reason=reason, advice=advice, **sides), entry
        )


def _stops_before(parts: Sequence[QueueSlice]) -> list[int]:
    """Where the part before each part in its queue stops, -1 without one: that part reads the members of an
    inner batch that begins there, for all parts of the queue."""
    stops = [-1] * len(parts)
    order = sorted(range(len(parts)), key=lambda number: (parts[number].queue, parts[number].start))
    for one, other in pairwise(order):
        if parts[one].queue == parts[other].queue:
            stops[other] = parts[one].stop
    return stops


def _each_message(entries: Entries, slice_: QueueSlice) -> Entries:
    """The entries of `slice_` with one entry per message, where an entry has several messages."""
    counts = entries.count
    first = np.repeat(np.cumsum(counts) - counts, counts)
    many = entries.take(np.repeat(np.arange(len(entries)), counts))
    offset = many.offset + np.arange(len(many)) - first
    many = replace(many, offset=offset, count=np.ones_like(offset))
    return many.take((offset >= slice_.start) & (offset < slice_.stop))


class EntryCheck:
    """Checks entries of `view` against the records in its log. `damaged` takes the errors of the others.

    An entry that leads to no record, to one of another queue or at another queue offset, or to one with a
    wrong CRC, becomes an error, and its row is left out. But one that moved up is sound: a broker that
    rebuilds a queue of a log that lost records leaves no gap, and later messages get smaller queue offsets.
    """

    def __init__(
        self,
        view: EntriesOfQueues,
        damaged: Callable[[StoreError, ListedAt | None], None],
        *,
        reads_bodies: bool,
        check_crc: bool,
        copy_bodies: bool,
    ) -> None:
        """`reads_bodies`: whether the caller reads the bytes of bodies. `check_crc`: compare the CRC of
        bodies; with `copy_bodies` the copies that this makes are returned."""
        self._view, self._log, self._damaged = view, view.log, damaged
        self._reads_bodies = reads_bodies
        self._check_crc, self._copy_bodies = check_crc, copy_bodies

    def sound_rows(self, window: Bytes, first: int, rows: ListedEntries) -> SoundRows:
        """The rows with intact records; other rows are damage."""
        headers = Headers(window, rows.log_offset - first, first)
        verdicts = compare_with_records(rows, headers)
        if OTHER_RECORD in verdicts:
            self.report_bad_rows(rows, np.flatnonzero(verdicts == OTHER_RECORD))
            whole = np.flatnonzero(verdicts != OTHER_RECORD)
            rows, headers, verdicts = rows.take(whole), headers.take(whole), verdicts[whole]
        counts = self._log.chain.counts
        counts.checked += len(headers)
        counts.bytes += int(headers.total.sum())
        if not self._reads_bodies:
            counts.bytes -= int(headers.body_length.sum())
        wrong = self._disproved(rows, headers, verdicts) if verdicts.any() else verdicts != SAME
        stored = None
        if self._check_crc and len(rows):
            bad_crc, stored = self._checked(headers)
            self.report_bad_rows(rows, bad_crc[~wrong[bad_crc]])
            wrong[bad_crc] = True
        if not wrong.any():
            return rows, headers, stored
        keep = np.flatnonzero(~wrong)
        return rows.take(keep), headers.take(keep), None

    def _disproved(self, rows: ListedEntries, headers: Headers, verdicts: Bytes) -> Mask:
        """The rows with records of another queue, or of another place in it, which are reported."""
        strangers, numbers = [], headers.queue_offset.copy()
        for row in np.flatnonzero(verdicts == OTHER_QUEUE).tolist():
            own = _offset_in(rows, headers, row)
            if own is None:
                strangers.append(row)
            else:
                numbers[row] = own
        # Entries of records that no queue lists have the queue offset -1.
        renumbered: Mask = (numbers != rows.offset) & (rows.offset >= 0)
        renumbered[strangers] = False
        if renumbered.any():
            renumbered &= ~self._moved_up(rows, numbers)
        wrong: Mask = renumbered.copy()
        wrong[strangers] = True
        for row in np.flatnonzero(wrong).tolist():
            if renumbered[row]:
                self._refuse(
                    rows,
                    row,
                    OTHER_OFFSET,
                    expected=f"queue offset {int(rows.offset[row])}",
                    actual=int(numbers[row]),
                    advice="The entry is damaged, or was written after a loss of entries. Read with "
                    "source=commitlog, which numbers messages as their records say",
                )
            else:
                topic = stored_topics(headers.take(np.array([row])))[0].as_py()
                self._refuse(
                    rows,
                    row,
                    NOT_OF_QUEUE,
                    expected=rows.queue_of(row).name,
                    actual=f"{topic}/{int(headers.queue_id[row])}",
                    advice="The entry is damaged, left from before the log was cut, or in a file or folder "
                    "that was renamed. Rebuild the queues: rmqstore rebuild STORE --to NEW",
                )
        return wrong

    def _checked(self, headers: Headers) -> tuple[Ints, pa.Array | None]:
        """Rows with a wrong CRC, and the bodies of all rows if they come with the check."""
        copied = self._log.copied
        if not self._copy_bodies:
            return wrong_crc_rows(headers, copied=copied), None
        bodies, crcs = bodies_with_crcs(headers)
        return wrong_crc_rows(headers, crcs, copied=copied), bodies

    def report_bad_rows(self, rows: ListedEntries, bad: Ints) -> None:
        """Report each bad row. The slower decoder reads it again, because it says what is wrong."""
        for row in bad.tolist():
            where, size = int(rows.log_offset[row]), int(rows.size[row])
            try:
                record = self._log.record_at(where)
            except StoreError as error:
                self._damaged(error, rows.entry(row))
                continue
            self._refuse(
                rows,
                row,
                "lists a record of another size",
                expected=size,
                actual=record.total_size,
                advice="The entry is left from before the log was cut, or damaged",
            )

    def _refuse(self, rows: ListedEntries, row: int, reason: str, **sides: Any) -> None:
        """Report a row. `reason`: what its queue does. `sides`: expected, actual and the advice."""
        where = int(rows.log_offset[row])
        reason = f"queue {rows.queue_of(row).name} {reason}"
        error = CorruptQueueError(
            self._log.path_at(where), offset=LogOffset(where), reason=reason, **sides
        )
        self._damaged(error, rows.entry(row))

    def _moved_up(self, rows: ListedEntries, numbers: Ints) -> Mask:
        """The rows whose records have larger queue offsets than their entries, in a queue that is in order.

        Such an entry leads behind the record of the entry before, and to before that of the next. A queue
        that lists a record at its own queue offset too is not moved: a file of it was overwritten.
        """
        moved = np.zeros(len(rows), dtype=bool)
        larger = (numbers > rows.offset) & (rows.offset >= 0)
        for number in np.unique(rows.queue[larger]).tolist():
            queue, mine = rows.queues[number], np.flatnonzero(larger & (rows.queue == number))
            if self._view.is_dense(queue):
                for near in rows.pieces_of_near_rows(mine):
                    ends = near[[0, -1]]
                    places = zip(
                        numbers[ends].tolist(), rows.log_offset[ends].tolist(), strict=True
                    )
                    if not any(self._lists(queue, *place) for place in places):
                        moved[near] = self._in_order(queue, rows.take(near))
        if moved.any():
            self._say_moved(rows, numbers, int(moved.argmax()))
        return moved

    def _lists(self, queue: QueueId, offset: int, place: int) -> bool:
        return place in self._view.entries_starting_in(queue, offset, offset + 1).log_offset

    def _in_order(self, queue: QueueId, rows: ListedEntries) -> Mask:
        """Which of some rows of one queue follow the entry before them in the log, and precede the next."""
        start, stop = int(rows.offset[0]) - 1, int(rows.offset[-1]) + 2
        near = self._view.entries_starting_in(queue, max(start, 0), stop)
        near = near.take(near.points_to_record)
        if not np.isin(rows.offset, near.offset).all():  # their file has expired meanwhile
            return np.zeros(len(rows), dtype=bool)
        at = np.searchsorted(near.offset, rows.offset)
        ends = np.append(near.log_offset + near.size, 0)  # none is before the first
        begins = np.append(near.log_offset, np.iinfo(np.int64).max)
        return (ends[at - 1] <= rows.log_offset) & (rows.log_offset + rows.size <= begins[at + 1])

    def _say_moved(self, rows: ListedEntries, numbers: Ints, row: int) -> None:
        """Say once of a store that messages have other queue offsets than their records say."""
        store = os.fspath(self._log.chain.folders[0])
        if store in _SAID:
            return
        _SAID.add(store)
        LOG.warning(
            "%s: queue %s lists the record of queue offset %d at %d, as after a rebuild of a log that had "
            "lost records. Rows have the queue offsets by which consumers get messages. Other queues may "
            "have moved too: rmqstore verify names them",
            shown_path(self._view.folder(rows.queue_of(row))),
            rows.queue_of(row).name,
            int(numbers[row]),
            int(rows.offset[row]),
        )


def _offset_in(rows: ListedEntries, headers: Headers, row: int) -> int | None:
    """The queue offset that a record has in a queue other than its own (LMQ), as its properties say.

    None if it does not name the queue. One that gives no offset is believed to be in its place.
    """
    properties = properties_of(headers, row)
    (topic, queue_id), listed_at = rows.queue_of(row), int(rows.offset[row])
    if not is_dispatched_to(properties, topic):
        return None
    queues = other_queues_of_record(properties, queue_id)
    offsets = [offset for queue, offset in queues if queue.topic == topic]
    return listed_at if listed_at in offsets else next(iter(offsets), listed_at)
