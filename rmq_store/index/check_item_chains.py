"""All items of an index file in one pass: how they link, and where they lead (IndexFile#putKey)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Ints
from rmq_store.index.index_file_reader import IndexFile
from rmq_store.loops.index_items import check_items

_WRONG, _ZEROS = 1, 2  # as the loop marks items


@dataclass(slots=True)
class CheckedItems:
    """The result of one pass over all items. Per slot: the number of its newest item (0: none), and
    of its items.

    `bad` (by number): items that do not lead to the one before them in their slot, and zeros.
    """

    newest: npt.NDArray[np.int32]
    used: npt.NDArray[np.int32]
    bad: npt.NDArray[np.bool_]
    broken: Ints  # numbers of items with a wrong chain
    zeros: Ints  # numbers of items that were never written
    astray: int  # items that lead out of the log range in the header
    first_astray: int  # the number of the first of them
    before_broken: int  # the number that the first item with a wrong chain should have
    beyond: int  # items that point after the log
    newest_offset: int  # log offset, the highest
    first_offset: int = -1
    last_offset: int = -1
    last_time_diff: int = 0  # seconds


def check_file(file: IndexFile, log_end: int) -> CheckedItems:
    """Read all items that the header counts."""
    header, slots = file.header, file.geometry.slots
    newest = np.zeros(slots, dtype=np.int32)
    used = np.zeros(slots, dtype=np.int32)
    faults = np.zeros(header.items + 1, dtype=np.uint8)
    numbers = np.array([0, 0, -1, 0, -1], dtype=np.int64)
    ends: list[npt.NDArray[Any]] = []
    for first, items in file.pieces():
        check_items(
            *(items.view(np.uint8).data, first, slots),
            *(header.begin_log_offset, header.end_log_offset, log_end),
            *(newest.data, used.data, faults.data, numbers.data),
        )
        if first == 1 and header.begin_log_offset == 0 and not (faults[2:] & _ZEROS).any():
            faults[1] &= _WRONG  # a key of hash 0 in the first record of the log
        ends = [*ends[:1], items[0], items[-1]]
    numbers[2] = max(numbers[2], 0)  # -1 without a wrong chain
    wrong, zeros = (np.flatnonzero(faults & kind) for kind in (_WRONG, _ZEROS))
    found = CheckedItems(newest, used, faults != 0, wrong, zeros, *numbers.tolist())
    if ends:
        found.first_offset, found.last_offset = (int(ends[n]["log_offset"]) for n in (0, -1))
        found.last_time_diff = int(ends[-1]["time_diff"])
    return found
