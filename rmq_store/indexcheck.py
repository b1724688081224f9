"""Index files held against themselves and against the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.config import StoreConfig
from rmq_store.dialects import dialect
from rmq_store.errors import CorruptIndexError, IndexGeometryError
from rmq_store.findings import Finding, Findings, Severity
from rmq_store.headers import Headers, Ints
from rmq_store.indexfile import IndexFile, list_index_files
from rmq_store.layout import INDEX_DIR, INDEX_ITEM
from rmq_store.mappings import MappingCache
from rmq_store.store import MessageStore

_FILES_MAPPED = 2
_NONE: Ints = np.zeros(0, dtype=np.int64)
# Whether the index holds items for tags is a matter of the release, which no file tells.
_WITHOUT_TAG_ITEMS = dialect("5.3.3")
_SHORTEN = "Delete a copy's index files and rebuild them from the log: rmqstore rebuild"


@dataclass(frozen=True, slots=True)
class IndexHealth:
    """How full a file is and how far a look-up walks in it at most."""

    path: str
    items: int
    capacity: int
    slots: int
    slots_used: int
    longest_chain: int


def open_index_files(
    root: Path, config: StoreConfig, findings: Findings | None = None
) -> list[IndexFile]:
    """The index files that can be read; the others are findings."""
    mappings = MappingCache(_FILES_MAPPED)
    files = []
    for segment in list_index_files(root / INDEX_DIR):
        try:
            files.append(
                IndexFile(
                    segment,
                    slots=config.maxHashSlotNum,
                    items=config.maxIndexNum,
                    mappings=mappings,
                )
            )
        except (IndexGeometryError, CorruptIndexError) as error:
            if findings is not None:
                findings.add(
                    Finding(
                        Severity.WARNING,
                        "index-unreadable",
                        segment.path,
                        f"{error.reason}. The broker misses every key that it holds",
                        error.advice or _SHORTEN,
                    )
                )
    return files


def check_file(
    file: IndexFile, log_range: tuple[int, int], findings: Findings, *, closed: bool
) -> IndexHealth:
    """One file by itself: every item leads to an older one of its slot.

    Of a store that was not `closed` in order the log may be older than its index.
    """
    count, slots = file.header.items, file.geometry.slots
    slot_of = np.zeros(count + 1, dtype=np.int32)
    used = np.zeros(slots, dtype=np.int32)
    broken: list[Ints] = []
    beyond, newest = 0, -1
    for first, items in file.pieces():
        number = np.arange(first, first + len(items), dtype=np.int64)
        hashes = items["key_hash"].astype(np.int64)
        slot = hashes % slots
        slot_of[number] = slot
        used += np.bincount(slot, minlength=slots).astype(np.int32)
        previous = items["previous"].astype(np.int64)
        bad = (hashes < 0) | (previous < 0) | (previous >= number)
        linked = np.where(bad, 0, previous)
        bad |= (linked > 0) & (slot_of[linked] != slot)
        broken.append(number[bad])
        offsets = items["log_offset"].astype(np.int64)
        beyond += int((offsets >= log_range[1]).sum())
        newest = max(newest, int(offsets.max()))
    _add_broken_chain(file, np.concatenate([_NONE, *broken]), findings)
    _check_range(file, beyond, newest, log_range, findings, closed)
    return IndexHealth(
        file.path,
        count,
        file.geometry.items,
        slots,
        int(np.count_nonzero(used)),
        int(used.max(initial=0)),
    )


def _add_broken_chain(file: IndexFile, numbers: Ints, findings: Findings) -> None:
    if not len(numbers):
        return
    start = file.item_at(int(numbers[0]))
    findings.add(
        Finding(
            Severity.WARNING,
            "index-broken-chain",
            file.path,
            f"{len(numbers)} items do not lead to an older item of their slot; the first is item "
            f"{int(numbers[0])}. Look-ups that come past them end there",
            _SHORTEN,
            start,
            start + INDEX_ITEM.itemsize,
            len(numbers),
        )
    )


def _check_range(
    file: IndexFile,
    beyond: int,
    newest: int,
    log_range: tuple[int, int],
    findings: Findings,
    closed: bool,
) -> None:
    start, end = log_range
    if beyond:
        findings.add(
            Finding(
                Severity.WARNING if closed else Severity.NOTE,
                "index-beyond-log",
                file.path,
                f"{beyond} items lead behind the end of the log ({end}): the log was cut, or copied "
                "before the index",
                "The broker drops what it cannot read; later records at those places give wrong "
                f"hits, which a client has to filter. {_SHORTEN}",
                count=beyond,
            )
        )
    if 0 <= newest < start:
        findings.add(
            Finding(
                Severity.NOTE,
                "index-expired",
                file.path,
                "all items lead before the start of the log",
                "The broker deletes the file when it deletes log files next, unless it is the last",
                count=file.header.items,
            )
        )


def items_between(files: Sequence[IndexFile], start: int, stop: int) -> npt.NDArray[np.int64]:
    """Items that lead into [start, stop) of the log, each as one number, sorted; some come twice.

    The number is the place in the range and the hash; ranges are shorter than 2 GiB.
    """
    parts = []
    for file in files:
        header = file.header
        if not header.items or header.end_log_offset < start or header.begin_log_offset >= stop:
            continue
        for _, piece in file.pieces():
            offset = piece["log_offset"].astype(np.int64)
            rows = np.flatnonzero((offset >= start) & (offset < stop))
            parts.append(pair(offset[rows] - start, piece["key_hash"][rows].astype(np.int64)))
    if not parts:
        return np.zeros(0, dtype=np.int64)
    joined: npt.NDArray[np.int64] = np.concatenate(parts)
    joined.sort()
    return joined


def pair(place: Ints, hashes: Ints) -> Ints:
    """Place and hash as one number."""
    return place << 32 | (hashes & 0xFFFFFFFF)


def missing_from(wanted: Ints, items: Ints) -> npt.NDArray[np.bool_]:
    """Which of `wanted` are not among the sorted `items`."""
    if not len(items):
        return np.ones(len(wanted), dtype=bool)
    at = np.minimum(np.searchsorted(items, wanted), len(items) - 1)
    return np.asarray(items[at] != wanted, dtype=bool)


class IndexPart:
    """The index items of one part of the log, and what of it they miss."""

    def __init__(self, store: MessageStore, start: int, stop: int) -> None:
        """Of the log range [start, stop)."""
        files = open_index_files(store.path, store.config)
        self.dialect = _WITHOUT_TAG_ITEMS
        self._base = start
        self._items = items_between(files, start, stop)
        self._end = _end_of(files)
        self._there = bool(files)
        self._path = str(store.path / INDEX_DIR)
        self._missing = 0
        self._first_missing = -1
        self._behind = 0

    def check(self, headers: Headers, row: Any, hashes: Any) -> None:
        """Hold what records ask for against the items."""
        if not self._there:
            return
        places = headers.at + headers.base
        behind = places[row] > self._end
        self._behind += len(np.unique(row[behind]))
        row, hashes = row[~behind], hashes[~behind]
        lost = missing_from(pair(places[row] - self._base, hashes), self._items)
        if lost.any():
            self._missing += int(lost.sum())
            if self._first_missing < 0:
                self._first_missing = int(places[row[lost][0]])

    def conclude(self, findings: Findings) -> int:
        """Add what was found; gives how many records stand behind the end of the index."""
        if self._missing:
            findings.add(
                Finding(
                    Severity.WARNING,
                    "index-gap",
                    self._path,
                    f"{self._missing} keys of records from log offset {self._first_missing} on are "
                    "in no index file: the broker does not find these messages by key",
                    "A broker that crashed leaves such gaps. Look-ups of rmq_store read the log "
                    "there; to mend it, rebuild the index: rmqstore rebuild",
                    count=self._missing,
                )
            )
        return self._behind


def _end_of(files: Sequence[IndexFile]) -> int:
    return max((file.header.end_log_offset for file in files if file.header.items), default=-1)
