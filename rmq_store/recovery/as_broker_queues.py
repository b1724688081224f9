"""A queue as the broker holds it in memory during a start (ConsumeQueue, BatchConsumeQueue).

Reproduces its files, how far each is filled, and the broker's rules for scanning, appending and
truncating, including known defects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.consumequeue.entry_of_record import DispatchRequests, appended_rows, units_of
from rmq_store.errors import DataLossError, UnrecoverableStoreError
from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import segment_name
from rmq_store.format.queue_entries import BATCH_QUEUE_ENTRY, FILLER_SIZE, QUEUE_ENTRY
from rmq_store.recovery.report import ChangeList

_FILES_SCANNED = 3  # ConsumeQueue#recover
_LARGEST_OFFSET = 2**55  # a larger queueOffset is damage and has no valid file name


def load_files(
    folders: list[Path], size: int, setting: str, changes: ChangeList
) -> list[tuple[int, Path]]:
    """The files of a chain by offset, as MappedFileQueue#load accepts them.

    Deletes an empty last file. Raises UnrecoverableStoreError if the broker would not start: a file
    of another size, or with a name that is not a number.
    """
    for error in refused_files(folders, size, setting):
        raise error
    found = _files_in(folders)
    if found and not found[-1].stat().st_size:
        changes.remove(found.pop(), 0)
    return [(int(path.name), path) for path in found]


def refused_files(
    folders: list[Path], size: int, setting: str
) -> Iterator[UnrecoverableStoreError]:
    """An error for each file of a chain that MappedFileQueue#load does not accept.

    `size`: 0 where no file showed it when the chain was opened, while a broker made the first one.
    """
    found = _files_in(folders)
    for path in found:
        try:
            actual = path.stat().st_size
        except FileNotFoundError:
            continue  # a broker has just deleted it
        if not actual and path == found[-1]:
            continue
        if not actual or actual != (size or actual) or not path.name.isdigit():
            yield UnrecoverableStoreError(
                path,
                reason="the broker does not start on a store with this file",
                expected=f"a number as its name and {setting}={size or 'more than 0'} bytes",
                actual=f"{actual} bytes",
                advice="A strict recovery gives a short file its size again, without what it lost. If the "
                "sizes are those of another broker, use the broker.conf of the one that created the files",
            )


def _files_in(folders: list[Path]) -> list[Path]:
    found = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted((path for path in found if not path.is_dir()), key=lambda path: path.name)


class BrokerQueue:
    """A ConsumeQueue in the broker's memory."""

    dtype = QUEUE_ENTRY

    def __init__(self, folder: Path, size: int, changes: ChangeList) -> None:
        self.folder = folder
        self.size = size
        self._changes = changes
        self.files: list[tuple[int, Path]] = []
        self.position = size  # how far the last file is filled
        self.max_physic_offset = -1
        self.min_logic_offset = 0

    def load(self, setting: str) -> None:
        """Load the existing files."""
        self.files = load_files([self.folder], self.size, setting, self._changes)

    @property
    def stop(self) -> int:
        """The stream byte after the last unit."""
        return self.files[-1][0] + self.position if self.files else 0

    def _units(self, number: int) -> npt.NDArray[Any]:
        count = self.size // self.dtype.itemsize
        return self._changes.read(self.files[number][1], self.dtype, count)

    def _units_before(self, number: int, stop: int) -> npt.NDArray[Any]:
        """The units of a file before byte `stop`. Raises DataLossError if somebody cuts it meanwhile."""
        units = self._units(number)
        if units.nbytes < stop - stop % self.dtype.itemsize:
            raise DataLossError(
                self.files[number][1],
                offset=units.nbytes,
                reason="the file became shorter while it was being read",
                expected=f"{stop} bytes or more",
                actual=f"{units.nbytes} bytes",
                advice="Somebody else changes the store: try again when nobody does",
            )
        return units[: stop // self.dtype.itemsize]

    @staticmethod
    def _sound(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        sound: npt.NDArray[np.bool_] = (units["log_offset"] >= 0) & (units["size"] > 0)
        return sound

    def _reached(self, unit: Any) -> int:
        """The value that a unit contributes to maxPhysicOffset."""
        return int(unit["log_offset"]) + int(unit["size"])

    def recover(self) -> None:
        """Scan the last three files up to the first invalid unit, and drop everything after it."""
        if not self.files:
            return
        number = max(0, len(self.files) - _FILES_SCANNED)
        while True:
            units = self._units(number)
            wrong = np.flatnonzero(~self._sound(units))
            count = int(wrong[0]) if len(wrong) else len(units)
            if count:
                self.max_physic_offset = self._reached(units[count - 1])
            filled = count * self.dtype.itemsize
            if filled < self.size or number + 1 >= len(self.files):
                break
            number += 1
        self._remove_from(number + 1)
        self.position = filled

    def truncate(self, log_end: int) -> None:
        """Drop units of records after the log's end.

        As in the broker, a file's first unit is barely checked.
        """
        self._start_truncating(log_end)
        while self.files:
            units = self._units(len(self.files) - 1)
            if not len(units) or int(units[0]["log_offset"]) >= log_end:
                self._remove_from(len(self.files) - 1)
                self.position = self.size
                continue
            stops = ~self._sound(units) | (units["log_offset"] >= log_end)
            stops[0] = False
            wrong = np.flatnonzero(stops)
            count = int(wrong[0]) if len(wrong) else len(units)
            self.position = count * self.dtype.itemsize
            self.max_physic_offset = self._reached(units[count - 1])
            break
        self._truncated()

    def _remove_from(self, number: int) -> None:
        for _, path in self.files[number:]:
            self._changes.remove(path, self.size)
        del self.files[number:]

    def _start_truncating(self, log_end: int) -> None:
        self.max_physic_offset = log_end

    def _truncated(self) -> None:
        pass

    def put(self, requests: DispatchRequests) -> tuple[int, Ints]:
        """Add entries of records in log order, by the broker's rules.

        Returns the number added, and the rows of new records that it left out.
        """
        new = np.flatnonzero(requests.log_offset + requests.size > self.max_physic_offset)
        if not len(new):
            return 0, new
        if not self.files and not self._first_file(int(requests.offset[new[0]])):
            return 0, new[:0]  # no earlier record has the queueOffset: the number itself is damaged
        taken = appended_rows(requests.offset[new], self.stop // self.dtype.itemsize)
        if len(taken):
            units = units_of(requests, new[taken], batch=False)
            self._append(units)
            self.max_physic_offset = self._reached(units[-1])
        return len(taken), np.delete(new, taken)

    def _first_file(self, offset: int) -> bool:
        """Create the first file, with filler up to the first offset (ConsumeQueue#fillPreBlank)."""
        if not 0 <= offset < _LARGEST_OFFSET:
            return False
        begin = offset * self.dtype.itemsize
        base = begin - begin % self.size
        self._new_file(base)
        if offset:
            self.min_logic_offset = begin
            filler = np.zeros((begin - base) // self.dtype.itemsize, dtype=self.dtype)
            filler["size"] = FILLER_SIZE
            self._append(filler)
        return True

    def _new_file(self, base: int) -> None:
        self.files.append((base, self.folder / segment_name(base)))
        self.position = 0

    def _append(self, units: npt.NDArray[Any]) -> None:
        raw = units.view(np.uint8)
        while len(raw):
            if self.position + self.dtype.itemsize > self.size:
                self._new_file(self.files[-1][0] + self.size)
            count = min(len(raw), self.size - self.position)
            count -= count % self.dtype.itemsize
            self._changes.write(self.files[-1][1], self.size, self.position, raw[:count].data)
            self.position += count
            raw = raw[count:]

    def destroy(self) -> None:
        """Delete all files: the log has none."""
        self._remove_from(0)

    def count_left(self, log_end: int) -> int:
        """How many units of the last file are after the queue's end, or lead after the log's end."""
        if not self.files:
            return 0
        units = self._units(len(self.files) - 1)
        left = units["log_offset"] >= log_end
        left[self.position // self.dtype.itemsize :] = True
        return int(np.count_nonzero(left & (units["size"] > 0)))

    # --- values that a broker reports ---------------------------------------------------------------------

    def correct_min(self, log_start: int) -> None:
        """Find the first unit whose record exists (ConsumeQueue#correctMinOffset)."""
        if self.min_logic_offset >= self.stop or not self.files:
            return
        unit = self.dtype.itemsize
        if self.position >= unit:
            last = self._units_before(len(self.files) - 1, self.position)[-1]
            if int(last["log_offset"]) < log_start:
                self.min_logic_offset = self.stop
                return
        base = self.files[0][0]
        readable = self.position if len(self.files) == 1 else self.size
        start = self.min_logic_offset - base
        intact, start = start >= 0, max(0, start)
        if start >= readable:
            return
        where = self._units_before(0, readable)["log_offset"][start // unit :].astype(np.int64)
        if intact and int(where[0]) >= log_start:
            return
        found = _search(where, log_start)
        if found is not None:
            self.min_logic_offset = base + start + found * unit

    @property
    def min_offset(self) -> int:
        """minOffsetInQueue."""
        return self.min_logic_offset // self.dtype.itemsize

    @property
    def max_offset(self) -> int:
        """maxOffsetInQueue."""
        return self.stop // self.dtype.itemsize


def _search(where: Ints, log_start: int) -> int | None:
    """The broker's own bisection, with its results for unordered units."""
    low, high = 0, len(where) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if where[middle] > log_start:
            high = middle
        elif where[middle] == log_start:
            low = high = middle
        else:
            low = middle
    return next((at for at in range(low, high + 1) if where[at] >= log_start), None)


class BrokerBatchQueue(BrokerQueue):
    """A BatchConsumeQueue in the broker's memory."""

    dtype = BATCH_QUEUE_ENTRY

    def __init__(self, folder: Path, size: int, changes: ChangeList) -> None:
        super().__init__(folder, size, changes)
        self._min = -1
        self._max = 0

    @staticmethod
    def _sound(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        sound: npt.NDArray[np.bool_] = (
            (units["log_offset"] >= 0)
            & (units["size"] > 0)
            & (units["base_offset"] >= 0)
            & (units["batch_size"] > 0)
        )
        return sound

    def _reached(self, unit: Any) -> int:
        return int(unit["log_offset"])

    def recover(self) -> None:
        """As a ConsumeQueue; then reads min and max from the first and the last unit."""
        super().recover()
        if self.files:
            self._revise()

    def _start_truncating(self, log_end: int) -> None:
        self.max_physic_offset = log_end - 1

    def _truncated(self) -> None:
        self._revise()

    def _revise(self) -> None:
        self._revise_min()
        unit = self.dtype.itemsize
        last = None
        if self.files and self.position >= unit:
            last = self._units(len(self.files) - 1)[self.position // unit - 1]
        elif len(self.files) > 1:
            last = self._units(len(self.files) - 2)[-1]
        self._max = 0 if last is None else int(last["base_offset"]) + int(last["batch_size"])

    def _revise_min(self) -> None:
        if not self.files:
            self._min, self._max = -1, 0
            return
        readable = self.position if len(self.files) == 1 else self.size
        filled = readable >= self.dtype.itemsize
        self._min = int(self._units(0)[0]["base_offset"]) if filled else -1

    def put(self, requests: DispatchRequests) -> tuple[int, Ints]:
        """As in a ConsumeQueue, but leaves no new record out."""
        rows = np.flatnonzero(requests.log_offset > self.max_physic_offset)
        if not len(rows):
            return 0, rows
        if not self.files:
            self._new_file(0)
        self._append(units_of(requests, rows, batch=True))
        self.max_physic_offset = int(requests.log_offset[rows[-1]])
        self._max = int(requests.offset[rows[-1]] + requests.count[rows[-1]])
        if self._min == -1:
            self._revise_min()
        return len(rows), rows[:0]

    def destroy(self) -> None:
        """Delete all files: the log has none."""
        super().destroy()
        self._revise_min()

    def correct_min(self, log_start: int) -> None:
        """Find the first unit of the first file whose record exists."""
        self._revise_min()
        if not self.files:
            return
        readable = self.position if len(self.files) == 1 else self.size
        units = self._units(0)[: readable // self.dtype.itemsize]
        gone = np.flatnonzero(units["log_offset"] >= log_start)
        count = int(gone[0]) if len(gone) else len(units)
        if count:
            last = units[count - 1]
            self._min = int(last["base_offset"]) + int(last["batch_size"])

    @property
    def min_offset(self) -> int:
        """minOffsetInQueue; -1 for an empty queue."""
        return self._min

    @property
    def max_offset(self) -> int:
        """maxOffsetInQueue."""
        return self._max
