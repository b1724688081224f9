"""Queues after a crash: wrong entries are truncated, missing ones are added."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.entry_of_record import (
    DispatchRequests,
    LastLivesOfQueues,
    rows_to_append,
)
from rmq_store.consumequeue.queue_database import QueueDatabaseWriter
from rmq_store.consumequeue.queue_files import QueueExt, QueueFiles, QueueWriter, queue_folder
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.files.durable_files import cut
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import CONSUMEQUEUE_EXT_DIR, Ints
from rmq_store.format.queues import Entries, QueueId
from rmq_store.format.record import decode_utf8
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery.report import ChangeList, UnlistedRecords, add_unlisted_records
from rmq_store.recovery.strict_log_end import LogWalk

_UNITS_AT_A_TIME = 8192
_NEAR = 64  # last units before a place, for one that leads to a record of the log


class EntriesBeforeScanMissing(Exception):
    """A queue lacks entries of records before the scanned range."""


@dataclass
class _Queue:
    """A queue during the comparison: units before `at` are right, those up to `stop` are unchecked."""

    queue: QueueId
    files: QueueFiles
    batch: bool
    at: int
    stop: int
    last_log_offset: int = -1
    end: int = 0  # the queueOffset after unit `at - 1`
    first: int | None = None  # the queueOffset of the first entry that was added
    kept: int = 0  # the unit after those that were there before
    loose: bool = False  # bytes that are no entry follow the last one, or a file without any
    ext: QueueExt | None = None

    @property
    def compared(self) -> bool:
        """Whether all units were checked, so that entries can be added."""
        return self.at >= self.stop


class QueueRecovery:
    """Scans all queues along the log; the caller passes the entries of records in log order.

    If it `may_look_further`, no change is certain before `finish`: LookFurther ends the scan, and
    another one begins.
    """

    def __init__(
        self, folders: QueueFolders, config: StoreConfig, walk: LogWalk, changes: ChangeList
    ) -> None:
        """`walk`: gives the records that will be passed, and knows the end of the log."""
        self._log, self._start, self._log_end = walk.log, walk.start, walk.stop or 0
        self._folders = folders
        self.may_look_further = walk.start > walk.log.start
        self._damage = np.array(sorted(walk.damage), dtype=np.int64).reshape(-1, 2)
        self._queues: dict[QueueId, _Queue] = {}
        self.cut = self.rebuilt = self.delayed = 0  # units; `delayed` are among those rebuilt
        self.left_out: dict[QueueId, UnlistedRecords] = {}
        self._changes = changes
        self._writer = QueueWriter(folders.root, config, changes, {})
        for queue, batch in folders.listed().items():
            self._queues[queue] = self._open(queue, batch)

    def _open(self, queue: QueueId, batch: bool) -> _Queue:
        """Accept units before the scan as right, except a hole among the last of them."""
        folder = queue_folder(self._folders.root, CONSUMEQUEUE_EXT_DIR, queue)
        ext = QueueExt(folder) if Path(folder).is_dir() else None
        files = self._folders.files(queue, batch=batch)
        stop, first = files.find_end_unit(), files.first_unit
        at = files.find_unit_at_log(self._start, first, stop)
        at = min(at, _first_hole(files, at), _first_missing_file(files, stop))
        if at > first:
            last = files.entries(max(first, at - files.units_per_file), at)
            if not last.points_to_record.any():
                at = first  # only filler remains: a broker would never add to such a queue
        loose = files.has_bytes_after(stop) or files.ends_with_empty_file(stop)
        state = _Queue(queue, files, batch, at, stop, loose=loose, ext=ext)
        self._note_end(state)
        here = files.unit_or_none(at) if at < stop else None  # none in a missing file
        if here is not None and sum(here) > self._log_end:
            self._cut(state)
        self._drop_loose(state)
        return state

    def _note_end(self, state: _Queue) -> None:
        if state.at <= state.files.first_unit:
            state.last_log_offset = -1
            state.end = 0  # it may begin with any offset
            return
        near = state.files.entries(max(state.files.first_unit, state.at - _NEAR), state.at)
        # A damaged one may lead far after the log, and all records would count as listed before it.
        listed = near.points_to_record & (near.log_offset + near.size <= self._log_end)
        state.last_log_offset = int(near.log_offset[listed][-1]) if listed.any() else -1
        state.end = int(near.offset[-1] + near.count[-1]) if state.batch else state.at

    def _cut(self, state: _Queue) -> None:
        """Truncate the queue at unit `at`: zeros from there on, and no later files."""
        self.cut += max(0, state.stop - state.at)
        state.stop, state.loose = state.at, True
        self._drop_loose(state)

    def _drop_loose(self, state: _Queue) -> None:
        """Remove what follows the last unit of a queue that was compared, and its units of the extension."""
        if not (state.loose and state.compared):
            return
        state.loose = False
        empty = state.at <= state.files.first_unit
        self._cut_chain(state.files.chain, 0 if empty else state.at * state.files.dtype.itemsize)
        if state.ext is not None:
            self._cut_chain(state.ext.chain, _end_of_ext(state, state.ext))
            state.ext.chain.close()

    def _cut_chain(self, chain: SegmentChain, end: int) -> None:
        """Write zeros from byte `end` of the stream on, and remove the files after it."""
        for segment in chain.segments:
            if segment.base >= end:
                self._changes.remove(segment.path, segment.size)
            elif segment.base + chain.file_size > end:
                for change in cut(segment.path, end - segment.base):
                    self._changes.add(change)

    def offsets_before_scan(self) -> dict[QueueId, int]:
        """The queue offset after the entries before the scan, of each queue that has some."""
        states = self._queues.items()
        return {queue: state.end for queue, state in states if state.at > state.files.first_unit}

    def cut_earlier_lives(self, lives: LastLivesOfQueues) -> None:
        """Cut the queues whose last life begins in the scan, and that have entries from before it."""
        for queue, state in self._queues.items():
            if queue in lives.begin and state.at > state.files.first_unit:
                state.at = state.files.first_unit
                self._cut(state)
                self._note_end(state)

    def take(self, requests: DispatchRequests, upto: int) -> None:
        """Compare or add the entries of records before log offset `upto`, after the previous call's."""
        wanted = [self._take_one(requests, *part, upto) for part in requests.by_queue()]
        missing = np.sort(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)
        if len(missing):
            self.rebuilt += len(missing)
            self.delayed += int(requests.is_of((SCHEDULE_TOPIC,))[missing].sum())
            self._writer.add_entries(requests.take(missing))

    def _take_one(self, requests: DispatchRequests, queue: QueueId, rows: Ints, upto: int) -> Ints:
        """The rows of one queue that it lacks."""
        state = self._queues.get(queue)
        if state is None:
            batch = bool(requests.batch[rows[0]])
            state = _Queue(queue, self._folders.files(queue, batch=batch), batch, 0, 0)
            self._queues[queue] = state
        if not state.compared and self._lacks_front(state, requests, rows):
            state.at = state.files.first_unit
            self._cut(state)
        if not state.compared:
            self._compare(state, requests, rows, upto)
            self._drop_loose(state)
        if not state.compared:
            return rows[:0]  # later units exist, so nothing can be inserted before them
        rows = rows[requests.log_offset[rows] > state.last_log_offset]
        if state.batch:
            self._note_doubled(state, requests, rows)
        else:
            rows = self._appended(state, requests, rows)
        if not len(rows):
            return rows
        if int(requests.offset[rows[0]]) > state.end and self.may_look_further:
            raise EntriesBeforeScanMissing
        self._begin(state, int(requests.offset[rows[0]]))
        state.last_log_offset = int(requests.log_offset[rows[-1]])
        state.end += int(requests.count[rows].sum())
        state.at = state.stop = state.at + len(rows)
        return rows

    def _appended(self, state: _Queue, requests: DispatchRequests, rows: Ints) -> Ints:
        """The rows that the queue lists; notes the others."""
        offset = requests.offset[rows]
        empty = state.at <= state.files.first_unit and state.first is None
        end = int(offset[0]) if empty and len(rows) else state.end
        taken = rows_to_append(offset, end)
        left = np.delete(rows, taken)
        if len(left):
            at = requests.offset[left], requests.log_offset[left]
            add_unlisted_records(self.left_out, state.queue, *at)
        return rows[taken]

    def _note_doubled(self, state: _Queue, requests: DispatchRequests, rows: Ints) -> None:
        """Note the rows of a BatchConsumeQueue whose queue offsets it has; it lists them all the same."""
        offset = requests.offset[rows]
        ends = np.maximum.accumulate(np.append(state.end, offset + requests.count[rows]))
        again = rows[offset < ends[:-1]]
        if len(again):
            at = requests.offset[again], requests.log_offset[again]
            add_unlisted_records(self.left_out, state.queue, *at, listed=True)

    def _lacks_front(self, state: _Queue, requests: DispatchRequests, rows: Ints) -> bool:
        """Whether the files that listed these records are missing or overwritten, although later ones exist.

        A broker deletes files of a queue only after their records are gone, and all of them with a topic.
        """
        first = state.files.first_unit
        if state.at != first:
            return False
        where, size = state.files.unit(first)
        before = rows[requests.log_offset[rows] < where]
        if state.batch or not len(before) or not self._log.is_record(where, size):
            return bool(first and state.batch and len(before))
        listed = self._log.record_at(where)
        is_own = (decode_utf8(listed.topic), listed.queue_id) == state.queue  # not of a light queue
        return is_own and bool((requests.offset[before] < listed.queue_offset).any())

    def _begin(self, state: _Queue, first: int) -> None:
        """Set the writer's start; a queue without entries begins at its first offset."""
        if state.first is not None:
            return
        state.first, state.kept = first, state.at
        if state.at <= state.files.first_unit:
            self._writer.set_end(state.queue, None, batch=state.batch)
            state.end = first
            state.at = 0 if state.batch else first
        else:
            self._writer.set_end(state.queue, state.at, batch=state.batch)

    def _compare(self, state: _Queue, requests: DispatchRequests, rows: Ints, upto: int) -> None:
        """Skip units that list these records, and mend their tags; truncate the queue before a unit that
        lists none, and where one of the records is not listed."""
        log_offsets, sizes = requests.log_offset[rows], requests.size[rows]
        while not state.compared:
            units = state.files.entries(state.at, min(state.stop, state.at + _UNITS_AT_A_TIME))
            right = self._right(units, log_offsets, sizes)
            right &= np.diff(units.log_offset, prepend=state.last_log_offset) > 0
            wrong = np.flatnonzero(~right)
            count = int(wrong[0]) if len(wrong) else len(units)
            lacking = self._first_lacking(state, requests, rows, units, count)
            count = count if lacking is None else lacking
            if count:
                if state.queue.topic != SCHEDULE_TOPIC:  # times there depend on the delay levels
                    self._mend_tags(state, requests.take(rows), units.take(slice(0, count)))
                state.at += count
                self._note_end(state)
            if lacking is not None:
                self._cut(state)
                return
            if count == len(units):
                continue
            if int(units.log_offset[count]) < upto or not self._is_own(state.queue, units, count):
                self._cut(state)
            return

    def _mend_tags(self, state: _Queue, requests: DispatchRequests, units: Entries) -> None:
        """Write the hash of the record's tag into the next units where they lack it: the page of an entry's
        last bytes may be lost, and no consumer that filters by tag would get the message."""
        place = np.searchsorted(requests.log_offset, units.log_offset)
        place = place.clip(max=len(requests.log_offset) - 1)
        codes = units.tags_code
        if state.ext is not None:
            codes = state.ext.tags_codes(codes)
            state.ext.chain.close()
        wrong = codes != requests.tags_code[place]
        wrong &= requests.log_offset[place] == units.log_offset  # others lead into damage
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        self.rebuilt += len(rows)
        numbers, chain, width = state.at + rows, state.files.chain, state.files.dtype.itemsize
        for first, stop in chain.held(int(numbers[0]), int(numbers[-1]) + 1, width):
            unit, here = state.files.raw(first, stop), (numbers >= first) & (numbers < stop)
            unit["tags_code"][numbers[here] - first] = requests.tags_code[place[rows[here]]]
            file = chain.segment_at(first * width)
            assert file is not None
            at = first * width - file.base
            self._changes.write(Path(file.path), chain.file_size, at, unit.view(np.uint8).data)

    def _first_lacking(
        self, state: _Queue, requests: DispatchRequests, rows: Ints, units: Entries, count: int
    ) -> int | None:
        """The first of the next units before which the queue lacks one of these records; None without any.

        `count`: units that are right. A broker skips a record whose queueOffset the queue has reached. What
        is before the first unit may be of a topic that was deleted.
        """
        listed = units.log_offset[:count]
        places, own = requests.log_offset[rows], requests.offset[rows]
        rest = places > state.last_log_offset
        if count == len(units):
            rest &= places <= listed[-1]
        if state.batch or np.count_nonzero(rest) == count:
            return None
        rest &= ~np.isin(places, listed)
        before = np.searchsorted(listed, places[rest])
        lacking = before[own[rest] >= state.at + before]
        lacking = lacking[(lacking > 0) | (state.last_log_offset >= 0)]
        return int(lacking.min()) if len(lacking) else None

    def _right(self, units: Entries, log_offsets: Ints, sizes: Ints) -> Ints:
        place = np.searchsorted(log_offsets, units.log_offset).clip(max=len(log_offsets) - 1)
        right: Ints = (log_offsets[place] == units.log_offset) & (sizes[place] == units.size)
        for start, stop in self._damage.tolist():
            right |= (units.log_offset >= start) & (units.log_offset < stop) & (units.size > 0)
        return right

    def _is_own(self, queue: QueueId, units: Entries, row: int) -> bool:
        """Whether a unit that points further along the log points to a record that its queue may list."""
        where, size = int(units.log_offset[row]), int(units.size[row])
        if not units.points_to_record[row] or where + size > self._log_end:
            return False
        return self._log.store_time_at(where, size, queue) is not None

    def finish(self) -> None:
        """Truncate the units that match no record, after all records were passed."""
        for state in self._queues.values():
            if not state.compared:
                rest = state.files.entries(state.at, state.stop)
                right = self._right(rest, np.array([-1]), np.array([0]))
                if right.all():  # they point into damage; nothing of the queue follows it
                    state.at = state.stop
                    self._note_end(state)
                    self._drop_loose(state)
                elif self.may_look_further:
                    raise EntriesBeforeScanMissing
                else:
                    state.at += int(np.flatnonzero(~right)[0])
                    self._cut(state)

    def discard(self) -> None:
        """Does nothing: the next recovery compares what was written."""

    def ranges(self) -> dict[QueueId, tuple[int, int]]:
        """Min and max offset of each queue after its changes. Call it after `finish`."""
        return {
            queue: self._range(state)
            for queue, state in sorted(self._queues.items())
            if is_plain_name(queue.topic)  # others have no files
        }

    def _range(self, state: _Queue) -> tuple[int, int]:
        files = state.files
        kept = state.at if state.first is None else state.kept
        unit = files.find_unit_at_log(self._log.start, files.first_unit, kept)
        first = state.end if state.first is None else state.first
        if unit < kept:
            first = int(files.entries(unit, unit + 1).offset[0]) if state.batch else unit
        return min(first, state.end), max(first, state.end)


def _end_of_ext(state: _Queue, ext: QueueExt) -> int:
    """Where the extension ends with the last unit that an entry before `at` leads to; 0 without any."""
    first = state.files.first_unit
    for stop in range(state.at, first, -_UNITS_AT_A_TIME):
        end = ext.end_of(state.files.entries(max(first, stop - _UNITS_AT_A_TIME), stop).tags_code)
        if end:
            return end
    return 0


def _first_hole(files: QueueFiles, stop: int) -> int:
    """The first zero unit among the last units before `stop`, if entries follow it; else `stop`."""
    per_file = max(1, files.units_per_file)
    start = max(files.first_unit, (stop - 1) // per_file * per_file)
    if start >= stop:
        return stop
    holes = np.flatnonzero(files.raw(start, stop)["size"] <= 0)
    return start + int(holes[0]) if len(holes) else stop


def _first_missing_file(files: QueueFiles, stop: int) -> int:
    """The first unit of a missing file, if later files exist; else `stop`."""
    width, size = files.dtype.itemsize, files.chain.file_size
    for before, after in pairwise(files.chain.segments):
        if after.base != before.base + size:
            return (before.base + size) // width
    return stop


class DatabaseQueues:
    """Takes the entries of all records of the log, as `QueueRecovery` does for queue files."""

    cut = 0  # entries: a new database has none before
    may_look_further = False

    def __init__(self, folder: Path, walk: LogWalk) -> None:
        """Raises AccessError, and LookFurther unless the walk has all records."""
        if walk.start > walk.log.start:
            raise EntriesBeforeScanMissing
        self.rebuilt = self.delayed = 0
        self.left_out: dict[QueueId, UnlistedRecords] = {}
        self.inner_batches: set[str] = set()  # topics of entries that stand for several messages
        self._log_end = walk.stop or 0
        self._writer = QueueDatabaseWriter(folder, self._note)

    def offsets_before_scan(self) -> dict[QueueId, int]:
        """No queue has entries before the scan."""
        return {}

    def cut_earlier_lives(self, lives: LastLivesOfQueues) -> None:
        """Does nothing: no queue has entries yet."""

    def take(self, requests: DispatchRequests, upto: int) -> None:
        """Add the entries of records that follow those of earlier calls. Raises AccessError."""
        self._writer.add_entries(requests)
        several = np.flatnonzero(requests.count > 1)
        self.inner_batches |= {queue.topic for queue, _ in requests.by_queue(several)}
        self.rebuilt += len(requests)
        self.delayed += int(requests.is_of((SCHEDULE_TOPIC,)).sum())

    def finish(self) -> None:
        """Finish the database. Raises AccessError."""
        self._writer.finish(self._log_end)

    def discard(self) -> None:
        """Close the database, which is not finished."""
        self._writer.discard()

    def ranges(self) -> dict[QueueId, tuple[int, int]]:
        """Min and max offset of each queue."""
        return self._writer.ranges()

    def _note(self, queue: QueueId, offset: Ints, log_offset: Ints) -> None:
        add_unlisted_records(self.left_out, queue, offset, log_offset, replaced=True)
        self.rebuilt -= len(offset)
