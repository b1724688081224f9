"""All items of an index file in one pass: how they link, and where they lead (IndexFile#putKey)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Ints
from rmq_store.index.index_file_reader import IndexFile


@dataclass(slots=True)
class IndexScan:
    """The result of one pass over all items. Per slot: the number of its newest item (0: none), and
    of its items.

    `bad` (by number): items that do not lead to the one before them in their slot, and zeros.
    """

    newest: npt.NDArray[np.int32]
    used: npt.NDArray[np.int32]
    bad: npt.NDArray[np.bool_]
    broken: Ints  # numbers of items with a wrong chain
    zeros: Ints  # numbers of items that were never written
    astray: int = 0  # items that lead out of the log range in the header
    first_astray: int = 0  # the number of the first of them
    before_broken: int = 0  # the number that the first item with a wrong chain should have
    beyond: int = 0  # items that point after the log
    newest_offset: int = -1  # log offset, the highest
    first_offset: int = -1
    last_offset: int = -1
    last_time_diff: int = 0  # seconds


def scan(file: IndexFile, log_end: int) -> IndexScan:
    """Read all items that the header counts."""
    count, slots = file.header.items, file.geometry.slots
    found = IndexScan(
        np.zeros(slots, dtype=np.int32),
        np.zeros(slots, dtype=np.int32),
        np.zeros(count + 1, dtype=np.bool_),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
    )
    broken, zeros = [found.broken], [found.zeros]
    for first, items in file.pieces():
        number = np.arange(first, first + len(items), dtype=np.int64)
        hashes = items["key_hash"].astype(np.int64)
        offsets = items["log_offset"].astype(np.int64)
        previous = items["previous"].astype(np.int64)
        slot = hashes % slots
        empty = (hashes == 0) & (offsets == 0) & (previous == 0) & (items["time_diff"] == 0)
        if first == 1 and file.header.begin_log_offset == 0 and not empty[1:].any():
            empty[0] = False  # a key of hash 0 in the first record of the log
        before = _newest_before(slot, number, found.newest)
        wrong = previous != before
        if wrong.any() and not any(map(len, broken)):
            found.before_broken = int(before[wrong][0])
        found.bad[number] = wrong | empty
        found.newest[slot] = (
            number  # for several items in a slot, the last assignment is the newest
        )
        found.used += np.bincount(slot, minlength=slots).astype(np.int32)
        out = (offsets < file.header.begin_log_offset) | (offsets > file.header.end_log_offset)
        out &= ~empty
        if out.any() and not found.astray:
            found.first_astray = int(number[out][0])
        found.astray += int(out.sum())
        found.beyond += int((offsets >= log_end).sum())
        found.newest_offset = max(found.newest_offset, int(offsets.max()))
        broken.append(number[wrong])
        zeros.append(number[empty])
        if first == 1:
            found.first_offset = int(offsets[0])
        found.last_offset, found.last_time_diff = int(offsets[-1]), int(items["time_diff"][-1])
    found.broken, found.zeros = np.concatenate(broken), np.concatenate(zeros)
    return found


def _newest_before(slot: Ints, number: Ints, newest: npt.NDArray[np.int32]) -> Ints:
    """The number of the item before each one in its slot; 0 without one. `newest`: before all these."""
    order = np.argsort(slot, kind="stable")
    before = newest[slot].astype(np.int64)
    again = np.flatnonzero(slot[order][1:] == slot[order][:-1]) + 1
    before[order[again]] = number[order[again - 1]]
    return before


def is_linked(file: IndexFile, found: IndexScan) -> bool:
    """Whether all items are there, and each slot leads to all of its items.

    A slot may lead to an item that was written after the header was read.
    """
    if len(found.broken) or len(found.zeros):
        return False
    for first, heads in file.slot_heads():
        newest = found.newest[first : first + len(heads)]
        if ((heads != newest) & (heads <= file.header.items)).any():
            return False
    return True
