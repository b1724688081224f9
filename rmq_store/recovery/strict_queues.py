"""Queues after a crash: what they list is held against the log, cut where it is wrong, and added to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from rmq_store.commitlog.log import CommitLog
from rmq_store.consumequeue.dispatch import DispatchRequests
from rmq_store.consumequeue.entries import Entries
from rmq_store.consumequeue.files import QueueFiles
from rmq_store.consumequeue.folders import QueueFolders
from rmq_store.consumequeue.writer import QueueWriter
from rmq_store.files.truncate import clear_from, remove
from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId

_UNITS_AT_A_TIME = 8192


class LookFurther(Exception):
    """A queue lacks entries of records before those that were looked at."""


@dataclass
class _Queue:
    """A queue while it is being compared: units before `at` are right, those up to `stop` follow."""

    files: QueueFiles
    batch: bool
    at: int
    stop: int
    last_log_offset: int = -1
    end: int = 0  # the queue offset behind unit `at - 1`
    begun: bool = False  # entries were added

    @property
    def compared(self) -> bool:
        """Whether all units were looked at: entries can be added."""
        return self.at >= self.stop


@dataclass
class QueueChanges:
    """What was done to queues: units cut and written, and per file the bytes that went."""

    cut: int
    rebuilt: int
    files: list[tuple[Path, str, int]]


class QueueRecovery:
    """Goes along the log with all queues; give it the entries of the log's records in their order."""

    def __init__(
        self,
        log: CommitLog,
        folders: QueueFolders,
        writer: QueueWriter,
        log_range: tuple[int, int],
        *,
        start: int,
        damage: Iterable[tuple[int, int]],
    ) -> None:
        """`start`: where the first record stands that will be given. Cuts what lies behind the log."""
        self._log = log
        self._log_end = log_range[1]
        self._folders = folders
        self._writer = writer
        self._start = start
        self._may_look_further = start > log_range[0]
        self._damage = np.array(sorted(damage), dtype=np.int64).reshape(-1, 2)
        self._queues: dict[QueueId, _Queue] = {}
        self.changes = QueueChanges(0, 0, [])
        for queue, batch in folders.listed().items():
            self._queues[queue] = self._open(folders.files(queue, batch=batch), batch)

    # --- what is right ------------------------------------------------------------------------------

    def _open(self, files: QueueFiles, batch: bool) -> _Queue:
        """Units that lie before the walk are taken as right, but for a hole among the last of them."""
        stop, first = files.find_stop(), files.first_unit
        at = files.find_unit_at_log(self._start, first, stop)
        at = min(at, _first_hole(files, at), _first_missing_file(files, stop))
        if at > first and self._only_filler(files, first, at):
            at = first
        one = _Queue(files, batch, at, stop)
        self._note_end(one)
        if at < stop and self._points_beyond(files, at):
            self._cut(one)
        return one

    @staticmethod
    def _only_filler(files: QueueFiles, first: int, at: int) -> bool:
        """Filler with no entry behind it: a broker would never add to such a queue."""
        entries = files.entries(max(first, at - files.units_per_file), at)
        return not entries.points_to_record.any()

    def _points_beyond(self, files: QueueFiles, unit: int) -> bool:
        where, size = files.unit(unit)
        return where + size > self._log_end

    def _note_end(self, one: _Queue) -> None:
        if one.at <= one.files.first_unit:
            one.last_log_offset = -1
            one.end = 0  # it may begin with any offset
            return
        last = one.files.entries(one.at - 1, one.at)
        one.last_log_offset = int(last.log_offset[0]) if last.points_to_record[0] else -1
        one.end = int(last.offset[0] + last.count[0]) if one.batch else one.at

    def _cut(self, one: _Queue) -> None:
        """Nothing of the queue counts from unit `at` on: zeros there, no files behind."""
        width = one.files.dtype.itemsize
        cut_at = one.at * width
        self.changes.cut += max(0, one.stop - one.at)
        empty = one.at <= one.files.first_unit
        for segment in one.files.chain.segments:
            path = Path(segment.path)
            if segment.base >= cut_at or empty:
                self.changes.files.append((path, "removed", remove(path)))
            elif segment.base + one.files.chain.file_size > cut_at:
                cleared = clear_from(path, cut_at - segment.base)
                if cleared:
                    self.changes.files.append((path, "cut", cleared))
        one.files.chain.close()
        one.stop = one.at

    # --- going along --------------------------------------------------------------------------------

    def take(self, found: DispatchRequests, upto: int) -> None:
        """The entries that records before log offset `upto` and behind those of the last call have."""
        order = np.argsort(found.queue, kind="stable")
        edges = np.flatnonzero(np.diff(found.queue[order])) + 1
        wanted = []
        for rows in np.split(order, edges):
            if len(rows):
                wanted.append(self._take_one(found, rows, upto))
        missing = np.sort(np.concatenate(wanted)) if wanted else np.zeros(0, dtype=np.int64)
        if len(missing):
            self.changes.rebuilt += len(missing)
            self._writer.append(found.rows(missing))

    def _take_one(self, found: DispatchRequests, rows: Ints, upto: int) -> Ints:
        """Rows of one queue that it lacks."""
        queue = found.queues[int(found.queue[rows[0]])]
        one = self._queues.get(queue)
        if one is None:
            batch = bool(found.batch[rows[0]])
            one = _Queue(self._folders.files(queue, batch=batch), batch, 0, 0)
            self._queues[queue] = one
        if not one.compared and self._lacks_front(one, found, rows):
            one.at = one.files.first_unit
            self._cut(one)
        if not one.compared:
            self._compare(one, queue, found.log_offset[rows], found.size[rows], upto)
        if not one.compared:
            return rows[:0]  # further units are there, so nothing can be put before them
        rows = rows[found.log_offset[rows] > one.last_log_offset]
        # Asked for before the queue's end: of a topic that was deleted and made anew.
        rows = rows[found.offset[rows] >= one.end]
        if not len(rows):
            return rows
        if int(found.offset[rows[0]]) > one.end and self._may_look_further:
            raise LookFurther
        self._begin(one, queue, int(found.offset[rows[0]]))
        one.last_log_offset = int(found.log_offset[rows[-1]])
        one.end += int(found.count[rows].sum())
        one.at = one.stop = one.at + len(rows)
        return rows

    def _lacks_front(self, one: _Queue, found: DispatchRequests, rows: Ints) -> bool:
        """Whether the files that these records were listed in are gone, though later ones are there.

        A broker deletes files of a queue only once their records are gone.
        """
        first = one.files.first_unit
        if one.at != first or not first:
            return False
        where, size = one.files.unit(first)
        before = rows[found.log_offset[rows] < where]
        if one.batch or not len(before) or not self._log.is_record(where, size):
            return bool(one.batch and len(before))
        shifted = self._log.record_at(where).queue_offset != first
        return not shifted and bool((found.offset[before] < first).any())

    def _begin(self, one: _Queue, queue: QueueId, first: int) -> None:
        """Tell the writer where the queue goes on; one without entries begins at its first offset."""
        if one.begun:
            return
        one.begun = True
        if one.at <= one.files.first_unit:
            self._writer.set_end(queue, None, batch=one.batch)
            one.end = first
            one.at = 0 if one.batch else first
        else:
            self._writer.set_end(queue, one.at, batch=one.batch)

    def _compare(
        self, one: _Queue, queue: QueueId, log_offsets: Ints, sizes: Ints, upto: int
    ) -> None:
        """Go on over units that list these records; cut the queue before one that lists none."""
        while not one.compared:
            units = one.files.entries(one.at, min(one.stop, one.at + _UNITS_AT_A_TIME))
            right = self._right(units, log_offsets, sizes)
            right &= np.diff(units.log_offset, prepend=one.last_log_offset) > 0
            wrong = np.flatnonzero(~right)
            count = int(wrong[0]) if len(wrong) else len(units)
            if count:
                one.at += count
                self._note_end(one)
            if count == len(units):
                continue
            if int(units.log_offset[count]) < upto or not self._is_own(queue, units, count):
                self._cut(one)
            return

    def _right(self, units: Entries, log_offsets: Ints, sizes: Ints) -> Ints:
        place = np.searchsorted(log_offsets, units.log_offset).clip(max=len(log_offsets) - 1)
        right: Ints = (log_offsets[place] == units.log_offset) & (sizes[place] == units.size)
        for start, stop in self._damage.tolist():
            right |= (units.log_offset >= start) & (units.log_offset < stop) & (units.size > 0)
        return right

    def _is_own(self, queue: QueueId, units: Entries, row: int) -> bool:
        """Whether a unit that leads further along the log leads to a record."""
        where, size = int(units.log_offset[row]), int(units.size[row])
        inside = where + size <= self._log_end
        return bool(units.points_to_record[row]) and inside and self._log.is_record(where, size)

    def finish(self) -> None:
        """All records were given: units that none of them has are cut away."""
        for one in self._queues.values():
            if not one.compared:
                rest = one.files.entries(one.at, one.stop)
                right = self._right(rest, np.array([-1]), np.array([0]))
                if right.all():  # they lead into damage behind which nothing of the queue comes
                    one.at = one.stop
                elif self._may_look_further:
                    raise LookFurther
                else:
                    one.at += int(np.flatnonzero(~right)[0])
                    self._cut(one)
        self._folders.close()


def _first_hole(files: QueueFiles, stop: int) -> int:
    """The first of the last units before `stop` that is zero, though entries stand behind it."""
    per_file = max(1, files.units_per_file)
    start = max(files.first_unit, (stop - 1) // per_file * per_file)
    if start >= stop:
        return stop
    holes = np.flatnonzero(files.raw(start, stop)["size"] <= 0)
    return start + int(holes[0]) if len(holes) else stop


def _first_missing_file(files: QueueFiles, stop: int) -> int:
    """The first unit of a file that is not there, though later ones are; else `stop`."""
    width, size = files.dtype.itemsize, files.chain.file_size
    for before, after in pairwise(files.chain.segments):
        if after.base != before.base + size:
            return (before.base + size) // width
    return stop
