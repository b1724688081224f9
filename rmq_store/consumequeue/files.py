"""ConsumeQueue and BatchConsumeQueue: the queues of a topic as entries that point into the CommitLog.

A queue is a cache of the log: an entry is believed only once its record has been looked at.
`file_stop` (behind the last entry that is there at all) is not stored anywhere and is found by
bisection; so is the first entry that still has its record.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.consumequeue.bisection import bisect_first, recheck_neighbours
from rmq_store.consumequeue.entries import Entries, concat_entries, hole_at
from rmq_store.errors import from_os_error
from rmq_store.files.chain import SegmentChain
from rmq_store.files.mapping import MappingCache
from rmq_store.files.segments import SegmentFile
from rmq_store.format.layout import (
    BATCH_QUEUE_ENTRY,
    FILLER_SIZE,
    QUEUE_ENTRY,
)

_LAST_LOOK = 200  # units, about a page of a ConsumeQueue
_LAST_BASE_OFFSET = 2**62  # beyond it lies damage, and arithmetic overflows


class Glance(NamedTuple):
    """First and last entry of a queue, each as log offset and size, and the unit behind the last."""

    first: tuple[int, int]
    last: tuple[int, int]
    stop: int


def _read(segment: SegmentFile, start: int, stop: int) -> bytes:
    """Bytes of a local file without mapping it; fewer where it is short."""
    try:
        fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, stop - start, start)
        finally:
            os.close(fd)
    except OSError as error:
        raise from_os_error(segment.path, error, "reading") from error


class QueueFiles:
    """The files of one queue as numbered units: unit i stands at byte i * unit size of the stream.

    In a ConsumeQueue the unit's number is the queue offset; in a BatchConsumeQueue (`batch`) a unit
    holds a range of queue offsets and its number means nothing outside.
    """

    def __init__(
        self,
        folder: str,
        *,
        batch: bool = False,
        file_size: int | None = None,
        mappings: MappingCache | None = None,
    ) -> None:
        self.folder = folder
        self.batch = batch
        self.dtype = BATCH_QUEUE_ENTRY if batch else QUEUE_ENTRY
        self.chain = SegmentChain(
            [folder],
            file_size=file_size,
            mappings=mappings,
            setting="mapperFileSizeBatchConsumeQueue" if batch else "mappedFileSizeConsumeQueue",
        )

    @property
    def first_unit(self) -> int:
        """Number of the first unit of the first file."""
        return self.chain.start // self.dtype.itemsize

    @property
    def units_per_file(self) -> int:
        """How many whole units a file holds."""
        return self.chain.file_size // self.dtype.itemsize

    @property
    def has_holes(self) -> bool:
        """Whether files are missing between the first and the last."""
        return len(self.chain.segments) * self.chain.file_size != self.chain.stop - self.chain.start

    def raw(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Units `start` to `stop` as they are stored; zeros where no file holds them.

        Not to be asked across a hole between files, which can be of any width: `entries` may.
        A batch unit that cannot be (BatchConsumeQueue#recover) loses its size and so counts as none.
        """
        units = np.zeros(stop - start, dtype=self.dtype)
        for first, last in self._held(start, stop):
            units[first - start : last - start] = self._stored(first, last)
        if self.batch:
            base = units["base_offset"]
            units["size"][(base < 0) | (base > _LAST_BASE_OFFSET) | (units["batch_size"] < 1)] = 0
        return units

    def _stored(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Units that one file holds, as they lie there: not to be kept."""
        window = self.chain.window(start * self.dtype.itemsize, stop * self.dtype.itemsize)
        self.chain.counts.bytes += len(window)
        return window.view(self.dtype)

    def _held(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of units in [start, stop) that lie in files, one a file."""
        width = self.dtype.itemsize
        for segment in self.chain.segments_from(start * width):
            first = max(start, -(-segment.base // width))
            last = min(stop, self.chain.segment_end(segment) // width)
            if segment.base >= stop * width:
                return
            if first < last:
                yield first, last

    def entries(self, start: int, stop: int) -> Entries:
        """Units `start` to `stop` as entries; a hole between files is one entry that leads nowhere."""
        parts: list[Entries] = []
        at = start
        for first, last in self._held(start, stop):
            if at < first:
                parts.append(hole_at(at))
            parts.append(self._entries_held(first, last))
            at = last
        if at < stop:
            parts.append(hole_at(at))
        return concat_entries(parts)

    def _entries_held(self, start: int, stop: int) -> Entries:
        """The entries of units that one file holds."""
        raw = self.raw(start, stop) if self.batch else self._stored(start, stop)
        log_offset = raw["log_offset"].astype(np.int64)
        size = raw["size"].astype(np.int64)
        tags_code = raw["tags_code"].astype(np.int64)
        if self.batch:
            offset = raw["base_offset"].astype(np.int64).clip(0, _LAST_BASE_OFFSET)
            count = raw["batch_size"].astype(np.int64).clip(0)
        else:
            offset = np.arange(start, start + len(raw), dtype=np.int64)
            count = np.ones(len(raw), dtype=np.int64)
        return Entries(offset, log_offset, size, tags_code, count)

    def unit(self, number: int) -> tuple[int, int]:
        """Log offset and size in unit `number`."""
        width = self.dtype.itemsize
        if self.batch:
            item = self.raw(number, number + 1)[0]
        else:
            item = self.chain.window(number * width, (number + 1) * width).view(self.dtype)[0]
        return int(item["log_offset"]), int(item["size"])

    def peek(self, number: int) -> tuple[int, int] | None:
        """Log offset and size in unit `number` by one short read, nothing mapped; None in a hole.

        For a few looks at each of many queues, where mapping a file costs more than reading it.
        """
        width = self.dtype.itemsize
        segment = self.chain.segment_at(number * width)
        if segment is None:
            return None
        raw = self._look(
            segment, number * width - segment.base, (number + 1) * width - segment.base
        )
        if len(raw) < width:
            return 0, 0
        item = np.frombuffer(raw, dtype=self.dtype)[0]
        return int(item["log_offset"]), int(item["size"])

    def glance(self) -> Glance | None:
        """The first entry, and the last one where it stands on the last page of the last file.

        Two short reads and nothing mapped, for stores of many thousand queues. None where that does
        not tell: a queue of batches or without files, or a last file with its last page empty.
        """
        segments, width = self.chain.segments, self.dtype.itemsize
        if self.batch or not segments:
            return None
        front = self._look(segments[0], 0, width)
        count = min(self.units_per_file, segments[-1].size // width)
        skipped = max(0, count - _LAST_LOOK)
        page = self._look(segments[-1], skipped * width, count * width)
        if len(front) < width or len(page) < (count - skipped) * width:
            return None
        units = np.frombuffer(page, dtype=self.dtype)
        filled = np.flatnonzero(units["size"] > 0)
        if not len(filled):
            return None
        last = units[filled[-1]]
        stop = segments[-1].base // width + skipped + int(filled[-1]) + 1
        first = np.frombuffer(front, dtype=self.dtype)[0]
        return Glance(
            (int(first["log_offset"]), int(first["size"])),
            (int(last["log_offset"]), int(last["size"])),
            stop,
        )

    def _look(self, segment: SegmentFile, start: int, stop: int) -> bytes:
        """Bytes of a file that is not going to be read on; of a remote one they are kept."""
        if not self.chain.is_remote:
            return _read(segment, start, stop)
        stop = min(stop, segment.size)
        return self.chain.window(segment.base + start, segment.base + stop).tobytes()

    def find_stop(self) -> int:
        """Behind the last unit that was ever written, as far as it shows: size above 0.

        Zeros in front of a file that holds entries behind them (a write that was lost) do not end
        the queue.
        """
        for segment in reversed(self.chain.segments):
            first = segment.base // self.dtype.itemsize
            filled = self._filled_units(segment, first)
            if filled:
                return first + filled
        return self.first_unit

    def _filled_units(self, segment: SegmentFile, first: int) -> int:
        """How many units of a file count as written: up to the last one of the first filled run."""
        count = min(self.units_per_file, segment.size // self.dtype.itemsize)
        # A full file, or one with no more than its last page to go, needs no search; nor do holes
        # before that page, in a sparse copy, mislead one.
        front = max(0, count - _LAST_LOOK)
        filled = np.flatnonzero(self.raw(first + front, first + count)["size"] > 0)
        if len(filled):
            return front + int(filled[-1]) + 1
        known = bisect_first(0, count, lambda place: self.unit(first + place)[1] <= 0)
        if known == 0:
            return self._filled_behind_zeros(first, count)
        return known

    def _filled_behind_zeros(self, first: int, count: int) -> int:
        """The same where the file begins with zeros: look at all of it."""
        filled = np.flatnonzero(self.raw(first, first + count)["size"] > 0)
        return int(filled[-1]) + 1 if len(filled) else 0

    def find_unit_at_log(self, log_offset: int, start: int, stop: int) -> int:
        """The first unit in [start, stop) that points to `log_offset` or behind it; else `stop`."""
        if start < stop and self._points_behind(start, log_offset):
            return start  # nothing has expired
        found = bisect_first(start, stop, lambda unit: self._points_behind(unit, log_offset))
        return recheck_neighbours(found, start, stop, self._log_offset_at, log_offset)

    def first_pointing_behind(self, log_offset: int, start: int, stop: int) -> int:
        """The first unit in [start, stop) whose log offset is `log_offset` or more; else `stop`.

        For units without holes. Which file by its last unit, for the first of a file may never have
        reached the disk; then inside that one's mapped bytes: nothing is made for a look, so that
        many thousand queues can be asked.
        """
        held = list(self._held(start, stop))
        number = bisect_first(0, len(held), lambda n: self.unit(held[n][1] - 1)[0] >= log_offset)
        if number == len(held):
            return recheck_neighbours(stop, start, stop, self._log_offset_at, log_offset)
        first, last = held[number]
        if self.chain.is_remote:  # there a window is fetched
            found = bisect_first(first, last, lambda unit: self.unit(unit)[0] >= log_offset)
            return recheck_neighbours(found, start, stop, self._log_offset_at, log_offset)
        width = self.dtype.itemsize
        units = self.chain.window(first * width, last * width).view(self.dtype)
        found = first + bisect_left(units["log_offset"], log_offset)
        low, high = max(start, found - 2), min(stop, found + 2)
        if first <= low and high <= last and _in_order(units[low - first : high - first]):
            return found
        return recheck_neighbours(found, start, stop, self._log_offset_at, log_offset)

    def _log_offset_at(self, unit: int) -> int | None:
        """Where a unit points in the log; None where it leads nowhere or no file holds it."""
        if unit < 0 or self.chain.segment_at(unit * self.dtype.itemsize) is None:
            return None
        where, size = self.unit(unit)
        return where if size > 0 and size != FILLER_SIZE and where >= 0 else None

    def _points_behind(self, unit: int, log_offset: int) -> bool:
        if self.chain.segment_at(unit * self.dtype.itemsize) is None:
            return False  # a hole in front; what comes behind decides
        return is_behind(*self.unit(unit), log_offset)

    def stop_before_log(self, log_end: int, stop: int) -> int:
        """The unit behind the last one whose record ends at `log_end` or before.

        Entries behind the log's end are left from before the log was cut, or the log was copied
        before its queue: they do not count. Log offsets ascend, so they are all at the end.
        """

        def beyond(unit: int) -> bool:
            if self.chain.segment_at(unit * self.dtype.itemsize) is None:
                return False
            where, size = self.unit(unit)
            return size != FILLER_SIZE and where + size > log_end

        if stop <= self.first_unit or not beyond(stop - 1):
            return stop
        return bisect_first(self.first_unit, stop, beyond)


def is_behind(where: int, size: int, log_offset: int) -> bool:
    """Whether an entry leads to a record at `log_offset` or behind it."""
    return size != FILLER_SIZE and size > 0 and where >= log_offset


def _in_order(units: npt.NDArray[Any]) -> bool:
    """Whether neighbouring units all lead somewhere, one behind the other."""
    places = list(zip(units["log_offset"].tolist(), units["size"].tolist(), strict=True))
    return all(size > 0 for _, size in places) and all(
        where + size <= behind for (where, size), (behind, _) in pairwise(places)
    )
