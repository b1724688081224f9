"""Files of ConsumeQueue and BatchConsumeQueue: entries that point into the CommitLog.

A queue is a cache of the log, so an entry is trusted only after its record was checked. No file
stores `file_stop` (after the last existing entry) or the first entry that still has its record;
both are found by bisection. `consumequeue_ext` holds what an entry has no room for.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.bisection import bisect_first, longest_ascending, recheck_neighbours
from rmq_store.consumequeue.entry_of_record import DispatchRequests, rows_to_append, units_of
from rmq_store.errors import LOG, StoreError
from rmq_store.files.safe_paths import path_inside
from rmq_store.files.segment_chain import OpenFiles, SegmentChain, SegmentWriter
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Sources
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_DIR, Bytes, Ints
from rmq_store.format.queues import (
    BATCH_QUEUE_ENTRY,
    EXT_ADDRESS_BASE,
    EXT_HEAD,
    EXT_MAX_ADDRESS,
    FILLER_SIZE,
    QUEUE_ENTRY,
    Entries,
    QueueId,
    hole_at,
)
from rmq_store.loops import queue_entries

_LAST_LOOK = 200  # units, about a page of a ConsumeQueue
_LAST_BASE_OFFSET = 2**62  # larger values are damage and would overflow
_READ_WHOLE = 4096  # units among which no search is worth its steps
_UNITS_COMPARED = 1 << 16  # of a BatchConsumeQueue, at once
_SHORT = 2 * _LAST_LOOK  # units before the end of what is stored, if that is not the end of a file
_MOST_KEPT = 1000  # units of a queue that is kept; a longer one is read again at little cost
_NOTHING: Bytes = np.zeros(0, dtype=np.uint8)
_COLUMNS = len(Entries.__match_args__)
_ENTRY = 8 * _COLUMNS  # bytes


def queue_folder(root: str | os.PathLike[str], kind: str, queue: QueueId) -> str:
    """The folder of a queue's files. `kind`: CONSUMEQUEUE_DIR or its like.

    Raises UnsafeNameError for a topic that is no folder name: records of a foreign log may say any.
    """
    return path_inside(os.path.join(root, kind), queue.topic, str(queue.queue_id))


class EndEntries(NamedTuple):
    """First and last entry of a queue, as log offset and size, and the unit after the last."""

    first: tuple[int, int]
    last: tuple[int, int]
    stop: int


class QueueFiles:
    """The files of one queue as numbered units: unit i is at byte i * unit size of the stream.

    In a ConsumeQueue the unit number is the queueOffset. In a BatchConsumeQueue (`batch`) a unit
    holds a range of queueOffsets, and its number has no meaning elsewhere. `first_unit`: the first one of
    the first file; `units_per_file`: whole ones.
    """

    def __init__(
        self,
        folder: str,
        *,
        batch: bool = False,
        file_size: int | None = None,
        segments: Sequence[SegmentFile] | None = None,
        sources: Sources | None = None,
    ) -> None:
        """`folder`: what errors name. `segments`: the files, if they are no files of it. `sources`: of many
        queues. They say how much of them stays in memory."""
        self.folder, self.batch, self._sources = folder, batch, sources
        self._short: range | None = None  # units that are read once and kept; empty: none are
        self._seen = _NOTHING  # their bytes, if `ends` has read them
        self._kept: Entries | None = None  # the entries of these units
        self._mended: Entries | None = None  # all units of a damaged BatchConsumeQueue
        self._in_order_to = -1  # the units before it were compared, and their offsets ascend
        self.dtype = BATCH_QUEUE_ENTRY if batch else QUEUE_ENTRY
        self.chain = SegmentChain(
            [folder] if segments is None else (),
            file_size=file_size,
            segments=segments,
            sources=sources,
            setting="mapperFileSizeBatchConsumeQueue" if batch else "mappedFileSizeConsumeQueue",
        )
        self.first_unit = self.chain.start // self.dtype.itemsize
        self.units_per_file = self.chain.file_size // self.dtype.itemsize

    @property
    def _spare(self) -> int:
        """Units that may be read where a search needs few."""
        return self.chain.cost.spare // self.dtype.itemsize

    @property
    def has_holes(self) -> bool:
        """Whether files are missing between the first and the last."""
        return len(self.chain.segments) * self.chain.file_size != self.chain.stop - self.chain.start

    def raw(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Units `start` to `stop` as stored; zeros where no file holds them.

        Do not call it across a hole between files, which can be very wide; use `entries` there.
        Sets the size of an impossible batch unit (BatchConsumeQueue#recover) to zero, so that it
        counts as no entry.
        """
        units = np.zeros(stop - start, dtype=self.dtype)
        for first, last in self.chain.held(start, stop, self.dtype.itemsize):
            units[first - start : last - start] = self._stored(first, last).view(self.dtype)
        if self.batch:
            base = units["base_offset"]
            units["size"][(base < 0) | (base > _LAST_BASE_OFFSET) | (units["batch_size"] < 1)] = 0
        return units

    def _stored(self, start: int, stop: int) -> Bytes:
        """The bytes of units in one file."""
        width = self.dtype.itemsize
        return self.chain.read(start * width, stop * width, counted=True)

    def entries(self, start: int, stop: int) -> Entries:
        """Units `start` to `stop` as entries; a hole between files becomes one entry without a
        record.

        So does a unit of a BatchConsumeQueue whose queue offset is not between those around it.
        """
        if self._short is not None and self._short.start <= start and stop <= self._short.stop:
            kept = self._keep_all(self._short) if self._kept is None else self._kept
            if kept is not None:
                first, last = start - self._short.start, stop - self._short.start
                return kept if last - first == len(kept.offset) else kept.take(slice(first, last))
        stored = self._entries(start, stop)
        can_descend = self.batch and not self.has_holes and len(stored)
        if not can_descend or self._is_in_order(start, stop):
            return stored
        if self._mended is None:
            self._mended = _mended(self._entries(self.first_unit, self.find_end_unit()))
        mended = self._mended.take(slice(start - self.first_unit, stop - self.first_unit))
        return mended if len(mended) == len(stored) else stored

    def _is_in_order(self, start: int, stop: int) -> bool:
        """Whether the queue offsets of the units around a range ascend; of a short queue, all of them.

        So what a short queue gives does not depend on which range was read first.
        """
        if stop <= self._in_order_to:
            return True
        end = self.find_end_unit()
        whole = end - self.first_unit <= min(_UNITS_COMPARED, self._spare)
        first, last = (self.first_unit, max(end, stop)) if whole else (start, stop)
        around = self._entries(max(self.first_unit, first - 1), last + 1)
        is_last = int(around.size[-1]) <= 0 and last >= end
        is_ordered = _is_ascending(around.take(slice(0, -1)) if is_last else around)
        if is_ordered and whole:
            self._in_order_to = end
        return is_ordered

    def entries_if_cheap(self, start: int, stop: int) -> Entries | None:
        """One entry for each unit, where reading all costs less than a search among them; else None."""
        if stop - start > min(_READ_WHOLE, self._spare):
            return None
        entries = self.entries(start, stop)
        return entries if len(entries) == stop - start else None  # shorter where a file is missing

    def _entries(self, start: int, stop: int) -> Entries:
        parts: list[Entries] = []
        at = start
        for first, last in self.chain.held(start, stop, self.dtype.itemsize):
            if at < first:
                parts.append(hole_at(at, first - at))
            parts.append(self._entries_held(first, last))
            at = last
        if at < stop:
            # The hole goes on to the first unit that a file holds.
            following = (file.base for file in self.chain.segments_from(stop * self.dtype.itemsize))
            behind = max(stop, next(following, 0) // self.dtype.itemsize)
            parts.append(hole_at(at, behind - at))
        return Entries.concat(parts)

    def _entries_held(self, start: int, stop: int) -> Entries:
        """The entries of units in one file."""
        if not self.batch:
            return _split(self._stored(start, stop), start, stop)
        raw = self.raw(start, stop)
        return Entries(
            raw["base_offset"].astype(np.int64).clip(0, _LAST_BASE_OFFSET),
            raw["log_offset"].astype(np.int64),
            raw["size"].astype(np.int64),
            raw["tags_code"].astype(np.int64),
            raw["batch_size"].astype(np.int64).clip(0),
        )

    def unit(self, number: int) -> tuple[int, int]:
        """Log offset and size of unit `number`."""
        width = self.dtype.itemsize
        if self.batch:
            return _place_of(self.raw(number, number + 1)[0])
        return _place_of(self.chain.read(number * width, (number + 1) * width).view(self.dtype)[0])

    def unit_or_none(self, number: int) -> tuple[int, int] | None:
        """Log offset and size of unit `number`; None in a hole between files."""
        held = self.chain.segment_at(number * self.dtype.itemsize) is not None
        return self.unit(number) if held else None

    def ends(self) -> EndEntries | None:
        """The first entry, and the last one if it is on the last stored page of the last file.

        Uses few short reads, for stores with many thousand queues: a file is created at full size,
        and touching its holes one by one costs far more. A short file is read whole. None if that is
        not enough: a BatchConsumeQueue, a queue without files, or a last file whose entries do not
        end in its last stored page.
        """
        segments, width = self.chain.segments, self.dtype.itemsize
        if self.batch or not segments:
            return None
        file = self.chain.file_of(segments[-1])
        count = min(self.units_per_file, segments[-1].size // width)
        stored = min(count, -(-file.stored_until() // width))
        at_end = stored > count - _LAST_LOOK
        skipped = max(0, count - _LAST_LOOK if at_end else stored - _SHORT)
        whole = count <= min(_READ_WHOLE, file.cost.spare // width)
        skipped, upto = (0, count) if whole else (skipped, count if at_end else stored)
        units = file.read(skipped * width, upto * width).view(self.dtype)
        filled = np.flatnonzero(units["size"] > 0)
        if not len(filled):
            return None
        # Before the last page only where one run of entries ends: other ends need a search.
        in_last_page = at_end and skipped + int(filled[-1]) >= count - _LAST_LOOK
        begin = int(filled[0]) if whole else 0
        if not in_last_page and int(filled[-1]) + 1 - begin != len(filled):
            return None
        last, behind = units[filled[-1]], int(filled[-1]) + 1
        front = segments[0].base
        stop = segments[-1].base // width + skipped + behind
        first_units = units[:behind] if len(segments) == 1 and not skipped else units[:0]
        if len(first_units):
            self.keep_few_units(self.first_unit, stop, first_units.view(np.uint8))
        else:
            first_units = self.chain.read(front, front + width).view(self.dtype)
        return EndEntries(_place_of(first_units[0]), _place_of(last), stop)

    def keep_few_units(self, start: int, stop: int, raw: Bytes = _NOTHING) -> None:
        """Note that a queue has few units with messages, which are then read once, and kept; later ones may
        follow. `raw`: their bytes, if they were just read.
        """
        count, sources = stop - start, self._sources
        if self._short is not None or sources is None or count > _MOST_KEPT:
            return
        if count * _ENTRY <= sources.room:
            sources.room -= count * _ENTRY
            self._short, self._seen = range(start, stop), raw.copy()

    def _keep_all(self, short: range) -> Entries | None:
        """Keep all entries of a short queue; None, from now on, where a file is missing."""
        if len(self._seen):
            self.chain.count_read(self.chain.segments[0], len(self._seen))
            self._kept, self._seen = _split(self._seen, short.start, short.stop), _NOTHING
            return self._kept
        try:
            entries = self._entries(short.start, short.stop)
        except StoreError:  # maybe of a file that is not asked for
            entries = Entries.none()
        if len(entries) == len(short):
            self._kept = entries
        elif self._sources is not None:
            self._sources.room += len(short) * _ENTRY
            self._short = range(0)
        return self._kept

    def find_end_unit(self) -> int:
        """The unit after the last written one, as far as visible: its size is above 0.

        Zeros at the start of a file that holds later entries (a lost write) do not end the queue.
        """
        for segment in reversed(self.chain.segments):
            first = segment.base // self.dtype.itemsize
            filled = self._filled_units(segment, first)
            if filled:
                return first + filled
        return self.first_unit

    def has_bytes_after(self, unit: int) -> bool:
        """Whether bytes that are not zeros are in the units from `unit` on, about a page of them."""
        width = self.dtype.itemsize
        held = self.chain.held(unit, unit + _LAST_LOOK, width)
        return any(self.chain.read(first * width, last * width).any() for first, last in held)

    def ends_with_empty_file(self, unit: int) -> bool:
        """Whether the last file begins at `unit`, the one after the last, or later: it has zeros, as a loss
        of power leaves it. A broker takes the first for an entry (ConsumeQueue#truncateDirtyLogicFiles).
        Not where all entries before it expired: there the file tells the next queue offset."""
        segments = self.chain.segments
        if not segments or segments[-1].base < unit * self.dtype.itemsize:
            return False
        return unit > self.first_unit or not segments[0].base

    def _filled_units(self, segment: SegmentFile, first: int) -> int:
        """How many units of a file count as written: up to the end of the first filled run."""
        count = min(self.units_per_file, segment.size // self.dtype.itemsize)
        # A file that is full up to its last page needs no search, and holes before that page
        # (in a sparse copy) do not matter.
        front = max(0, count - _LAST_LOOK)
        filled = np.flatnonzero(self.raw(first + front, first + count)["size"] > 0)
        if len(filled):
            return front + int(filled[-1]) + 1
        if count <= min(_READ_WHOLE, self._spare):
            sizes = self.raw(first, first + count)["size"]  # one look instead of one for each step
            settled = bisect_first(0, count, lambda place: int(sizes[place]) <= 0)
        else:
            settled = bisect_first(0, count, lambda place: self.unit(first + place)[1] <= 0)
        if settled:
            return settled
        filled = np.flatnonzero(self.raw(first, first + count)["size"] > 0)  # after zeros
        return int(filled[-1]) + 1 if len(filled) else 0

    def find_unit_at_log(self, log_offset: int, start: int, stop: int) -> int:
        """The first unit in [start, stop) that points to `log_offset` or later; else `stop`."""
        if start < stop and self._points_at_or_after(start, log_offset):
            return start  # nothing has expired
        first = bisect_first(start, stop, lambda unit: self._points_at_or_after(unit, log_offset))
        return recheck_neighbours(first, start, stop, self._log_offset_at, log_offset)

    def first_pointing_at_or_after(self, log_offset: int, start: int, stop: int) -> int:
        """The first unit in [start, stop) whose log offset is `log_offset` or more; else `stop`.

        Only for units without holes. Chooses the file by its last unit, because its first may never
        have reached the disk, and then bisects its units in one window, which is fast for many
        thousand queues.
        """
        held = self.chain.held(start, stop, self.dtype.itemsize)
        number = bisect_first(0, len(held), lambda n: self.unit(held[n][1] - 1)[0] >= log_offset)
        if number == len(held):
            return recheck_neighbours(stop, start, stop, self._log_offset_at, log_offset)
        first, last = held[number]
        width = self.dtype.itemsize
        with self.chain.window(first * width, last * width, fetch=False) as window:
            units = window.bytes.view(self.dtype)

            def log_offset_of(number: int) -> int:
                window.fetch([number * width], [(number + 1) * width])
                return int(units["log_offset"][number])

            unit = first + bisect_left(range(last - first), log_offset, key=log_offset_of)
            low, high = max(start, unit - 2), min(stop, unit + 2)
            if first <= low and high <= last:
                window.fetch([(low - first) * width], [(high - first) * width])
                if _follow_each_other(units[low - first : high - first]):
                    return unit
        return recheck_neighbours(unit, start, stop, self._log_offset_at, log_offset)

    def _log_offset_at(self, unit: int) -> int | None:
        """The log offset of a unit; None if it points to no record or no file holds it."""
        if unit < 0 or self.chain.segment_at(unit * self.dtype.itemsize) is None:
            return None
        where, size = self.unit(unit)
        return where if size > 0 and size != FILLER_SIZE and where >= 0 else None

    def _points_at_or_after(self, unit: int, log_offset: int) -> bool:
        if self.chain.segment_at(unit * self.dtype.itemsize) is None:
            return False  # a hole: later units decide
        return is_at_or_after(*self.unit(unit), log_offset)

    def stop_before_log(self, log_end: int, stop: int) -> int:
        """The unit after the last one whose record ends at or before `log_end`.

        Entries beyond the end of the log do not count: the log was truncated, or copied before its
        queue. Log offsets ascend, so such entries are all at the end.
        """

        def beyond(unit: int) -> bool:
            if self.chain.segment_at(unit * self.dtype.itemsize) is None:
                return False
            where, size = self.unit(unit)
            return size != FILLER_SIZE and where + size > log_end

        if stop <= self.first_unit or not beyond(stop - 1):
            return stop
        return bisect_first(self.first_unit, stop, beyond)


def _split(raw: Bytes, start: int, stop: int) -> Entries:
    """The entries of the bytes of units `start` to `stop` of a ConsumeQueue."""
    columns = np.empty(_COLUMNS * (stop - start), dtype=np.int64)
    queue_entries.split(raw.data, start, columns.data)
    return Entries(*columns.reshape(_COLUMNS, stop - start))


def _place_of(unit: np.void) -> tuple[int, int]:
    return int(unit["log_offset"]), int(unit["size"])


def is_at_or_after(where: int, size: int, log_offset: int) -> bool:
    """Whether an entry points to a record at or after `log_offset`."""
    return size != FILLER_SIZE and size > 0 and where >= log_offset


def _follow_each_other(units: npt.NDArray[Any]) -> bool:
    """Whether all neighbouring units point to records in ascending order."""
    places = list(zip(units["log_offset"].tolist(), units["size"].tolist(), strict=True))
    return all(size > 0 for _, size in places) and all(
        where + size <= behind for (where, size), (behind, _) in pairwise(places)
    )


# --- the order of a BatchConsumeQueue, whose queue offsets may be damaged -------------------------


def _is_ascending(entries: Entries) -> bool:
    """Whether each entry has messages, and their queue offsets follow those of the one before."""
    ends = entries.offset + entries.count
    return bool((entries.count > 0).all() and (entries.offset[1:] == ends[:-1]).all())


def _mended(entries: Entries) -> Entries:
    """The entries of a BatchConsumeQueue in ascending order of queue offsets.

    Of those with messages, the longest ascending sequence keeps its offsets. Each other entry gets
    the next offset at its place, and points to no record.
    """
    good = np.zeros(len(entries), dtype=bool)
    filled = np.flatnonzero(entries.points_to_record & (entries.count > 0))
    good[filled[longest_ascending(entries.offset[filled].tolist())]] = True
    nothing = np.zeros_like(entries.offset)
    mended = Entries(
        entries.offset.copy(),
        np.where(good, entries.log_offset, nothing - 1),
        np.where(good, entries.size, nothing),
        entries.tags_code,
        np.where(good, entries.count, nothing + 1),
    )
    following = np.flatnonzero(good)
    room = np.diff(mended.offset[following])  # up to the next entry; a count may be damaged as well
    mended.count[following[:-1]] = np.minimum(mended.count[following[:-1]], room)
    for row in np.flatnonzero(~good).tolist():
        at = int(np.searchsorted(following, row))
        end = int(mended.offset[row - 1] + mended.count[row - 1]) if row else 0
        if at < len(following):
            after = int(entries.offset[following[at]])
            end = min(end, after) if row else max(0, after - int(following[at]))
        mended.offset[row] = end
    return mended


# --- the extension --------------------------------------------------------------------------------


class QueueExt:
    """ConsumeQueueExt: the units that a queue entry's tagsCode points to if it is an address."""

    def __init__(self, folder: str) -> None:
        self.chain = SegmentChain([folder])

    def _unit(self, address: int) -> np.void | None:
        """The head of the unit at an address; None if it is missing, as in the broker."""
        at = address - EXT_ADDRESS_BASE
        segment = self.chain.segment_at(at)
        if segment is None or at + EXT_HEAD.itemsize > self.chain.segment_end(segment):
            return None
        head: np.void = self.chain.read(at, at + EXT_HEAD.itemsize).view(EXT_HEAD)[0]
        size, bitmap = int(head["size"]), int(head["bitmap_length"])
        is_whole = bitmap >= 0 and size == EXT_HEAD.itemsize + bitmap
        return head if is_whole and at + size <= self.chain.segment_end(segment) else None

    def tags_codes(self, codes: Ints) -> Ints:
        """`codes` with each address replaced by the tagsCode of its unit, if that exists."""
        resolved: Ints = codes.copy()
        for row in np.flatnonzero(codes <= EXT_MAX_ADDRESS).tolist():
            unit = self._unit(int(codes[row]))
            if unit is not None:
                resolved[row] = unit["tags_code"]
        return resolved

    def end_of(self, codes: Ints) -> int:
        """The byte of the stream after the unit of the last address that has one; 0 if none has."""
        for address in codes[codes <= EXT_MAX_ADDRESS][::-1].tolist():
            unit = self._unit(address)
            if unit is not None:
                return int(address) - EXT_ADDRESS_BASE + int(unit["size"])
        return 0


class QueueWriter:
    """Writes entries of all queues of a store. `ends`: the number of existing units per queue."""

    def __init__(
        self, root: Path, config: StoreConfig, files: OpenFiles, ends: dict[QueueId, int]
    ) -> None:
        self._root = root
        self._config = config
        self._files = files
        self._ends = ends
        self._batches: set[QueueId] = set()
        self._streams: dict[tuple[QueueId, bool], SegmentWriter] = {}
        self._last_log_offsets: dict[QueueId, int] = {}
        self._said_moved = False

    def set_end(self, queue: QueueId, units: int | None, *, batch: bool) -> None:
        """Set the number of units that the caller found in the queue.

        None: the queue is empty and begins with its next entry.
        """
        if units is None:
            self._ends.pop(queue, None)
        else:
            self._ends[queue] = units
        if batch:
            self._batches.add(queue)

    def add_entries(self, requests: DispatchRequests) -> None:
        """Append the entries to their queues, each at the queue's end.

        Skips records at or before the last log offset given for a queue, so that the same entries
        can be passed again after a failure.
        """
        for queue, rows in requests.by_queue():
            self._write_queue(queue, requests, rows)

    def _write_queue(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> None:
        rows = rows[requests.log_offset[rows] > self._last_log_offsets.get(queue, -1)]
        if not len(rows):
            return
        batch = bool(requests.batch[rows[0]])
        if batch:
            self._batches.add(queue)
        end = self._ends.get(queue)
        if end is None:
            # A ConsumeQueue starts at its first queueOffset, a BatchConsumeQueue at unit 0.
            end = 0 if batch else self._fill_front(queue, int(requests.offset[rows[0]]))
        if not batch:
            taken = rows[rows_to_append(requests.offset[rows], end)]
            if len(taken) < len(rows):
                LOG.warning(
                    "%d records of queue %s are in no queue: earlier records have their queue offsets",
                    len(rows) - len(taken),
                    queue.name,
                )
            rows = taken
            if not len(rows):
                return
            moved = requests.offset[rows] != end + np.arange(len(rows))
            if moved.any() and not self._said_moved:
                self._said_moved = True
                LOG.warning(
                    "records of queue %s get smaller queue offsets than their own, from %d instead of %d "
                    "on: records before them are missing, damaged or of another queue. Offsets that "
                    "consumers committed mean other messages there. Other queues may have such "
                    "records too: rmqstore verify counts them all",
                    queue.name,
                    end + int(moved.argmax()),
                    int(requests.offset[rows][moved][0]),
                )
        units = units_of(requests, rows, batch=batch)
        self._stream(queue, batch).write(end * units.itemsize, units.view(np.uint8))
        self._ends[queue] = end + len(rows)
        self._last_log_offsets[queue] = int(requests.log_offset[rows[-1]])

    def _fill_front(self, queue: QueueId, first: int) -> int:
        """Write filler from the first file's start to the first offset (ConsumeQueue#fillPreBlank)."""
        count = first % (self._config.queue_file_size // QUEUE_ENTRY.itemsize)
        if count:
            filler = np.zeros(count, dtype=QUEUE_ENTRY)
            filler["size"] = FILLER_SIZE
            at = (first - count) * QUEUE_ENTRY.itemsize
            self._stream(queue, False).write(at, filler.view(np.uint8))
        return first

    def _stream(self, queue: QueueId, batch: bool) -> SegmentWriter:
        stream = self._streams.get((queue, batch))
        if stream is None:
            kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            folder = Path(queue_folder(self._root, kind, queue))
            size = self._config.batch_queue_file_size if batch else self._config.queue_file_size
            stream = SegmentWriter(self._files, lambda base: folder, size)
            self._streams[queue, batch] = stream
        return stream
