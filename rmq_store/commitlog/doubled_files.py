"""Log files of one name in several folders: which of them the log is read from.

A broker puts both into its list of files and reads the one whose folder comes first in a Java HashSet
(MultiPathMappedFileQueue#load). Here it is the one with the most intact records. Of large files that is
found by looks at a few places of each, so that a log with many such files opens fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rmq_store.commitlog.check_crcs import wrong_crc_rows
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.record_runs import follow, next_record
from rmq_store.files.checked_window import Window
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile

_PLACES = 16  # of a file, evenly spread, that are looked at first
_SEEN = 64 << 10  # bytes searched at a place for the next record
_COUNTED = 64 << 20  # bytes of the largest file whose records are all counted


def fullest(files: Sequence[SegmentFile]) -> SegmentFile:
    """The file with the most records, of several of one name, at least one: the first of equal ones.

    Records with a wrong CRC do not count, where all are counted.
    """
    if len(files) == 1:
        return files[0]
    size = max(file.size for file in files)
    return max(files, key=lambda file: _Looks(file).filled(size))


def first_difference(file: SegmentFile, other: SegmentFile) -> int | None:
    """The log offset of a record of `other` that `file` has not; None if looks at some find none."""
    mine, its = _Looks(file), _Looks(other)
    size = max(file.size, other.size)
    for place in its.record_places(size):
        record = its.record_at(place)
        if mine.bytes_at(place, len(record)) != record:
            return other.base + place
    return None


class _Filled(NamedTuple):
    """How much of a file is records; larger is more."""

    intact: int  # bytes of all records with the right CRC; 0 where they are not counted
    places: int  # with a record nearby, of those looked at
    stop: int  # of the records after the last of them
    size: int  # of the file: a broker does not start with a short one


class _Looks:
    """Looks at a few places of one file."""

    def __init__(self, file: SegmentFile) -> None:
        self._file = file
        self._chain = SegmentChain(
            [os.path.dirname(file.path)], segments=[file] if file.size else []
        )

    def filled(self, size: int) -> _Filled:
        """How much of the file is records; places are of a file of `size` bytes."""
        found = list(self.record_places(size))
        if not found:
            return _Filled(0, 0, 0, self._file.size)
        low = found[-1]
        high = min(self._file.size, low + max(_SEEN, size // _PLACES + _SEEN))
        while high - low > 2 * _SEEN:
            middle = (low + high) // 2
            record = self._next(middle, min(middle + _SEEN, high))
            low, high = (low, middle) if record is None else (record, high)
        with self._window(low, self._file.size) as window:
            run = follow(window.bytes, self._file.base, low, self._file.size)
        counted = self._size_of_intact_records() if size <= _COUNTED else 0
        return _Filled(counted, len(found), run.stop, self._file.size)

    def _size_of_intact_records(self) -> int:
        base, size, counted = self._file.base, self._file.size, 0
        at = self._next(0, size)
        with self._window(0, size) as window:
            while at is not None:
                run = follow(window.bytes, base, at, size)
                headers = Headers(window.bytes, run.at, base)
                headers = headers.take(np.flatnonzero(headers.valid))
                counted += int(headers.total.sum() - headers.total[wrong_crc_rows(headers)].sum())
                at = self._next(run.stop + 1, size)
        return counted

    def record_places(self, size: int) -> Iterator[int]:
        """Places in the file of records near evenly spread places of a file of `size` bytes."""
        step = max(1, size // _PLACES)
        for place in range(0, min(size, self._file.size), step):
            record = self._next(place, min(place + min(step, _SEEN), self._file.size))
            if record is not None:
                yield record

    def record_at(self, place: int) -> bytes:
        """The bytes of the record at a place."""
        total = int.from_bytes(self.bytes_at(place, 4), "big")
        return self.bytes_at(place, total)

    def bytes_at(self, place: int, count: int) -> bytes:
        """Bytes of the file from a place on; fewer at its end."""
        stop = min(place + count, self._file.size)
        if place >= stop:
            return b""
        base = self._file.base
        return self._chain.read(base + place, base + stop).tobytes()

    def _next(self, start: int, stop: int) -> int | None:
        if start >= stop:
            return None
        with self._window(start, stop) as window:
            return next_record(window, self._file.base, start, stop)

    def _window(self, start: int, stop: int) -> Window:
        """The bytes of the file; of a remote one only those from `start` to `stop` and a head more."""
        base, size = self._file.base, self._file.size
        window = self._chain.window(base, base + size, fetch=False)
        window.fetch([start], [stop + _HEAD])
        return window


_HEAD = 128  # bytes, at least as many as tell whether a record begins
