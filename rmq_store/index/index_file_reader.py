"""IndexFile: a hash index from topic#key to CommitLog offsets (IndexFile, IndexHeader).

A file is a header of 40 bytes, slots of 4 bytes and items of 20 bytes. Each item points to the
previous one in its slot. The file does not store the number of slots and items that it was created
with.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import CorruptIndexError, IndexGeometryError
from rmq_store.files.segments import LARGEST_FILE, SegmentFile, folder_entries, size_of_file
from rmq_store.files.source import Ranges, Sources, Window
from rmq_store.format.byte_layout import (
    DEFAULT_MAX_HASH_SLOTS,
    DEFAULT_MAX_INDEX_ITEMS,
    INDEX_DIR,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_SLOT,
    Bytes,
    Ints,
    index_item_at,
    is_index_name,
)

_SAMPLE = 256  # items checked from either end to prove a geometry
_REMOTE_SAMPLE = 8  # in an object store, where each item costs one or two requests
_SEARCH_STEP = 64 << 20
_LEAST_STEP = 1 << 20
REMOTE_BLOCK = 4 << 10
"""Smallest fetch in bytes from an index file in an object store: items are far apart."""
_OFFSET_IN_ITEM = 4
_SLOT = struct.Struct(">i")  # INDEX_SLOT
_ITEM = struct.Struct(">iqii")  # INDEX_ITEM: key_hash, log_offset, time_diff, previous
_PIECE = 1 << 16  # items
_ALL_ITEMS = 1 << 16  # in a file of no more items, all are looked at for a jump
_JUMP_SAMPLE = 33
_JUMP = 8  # times the usual distance between items
_SAMPLED_JUMP = 2  # the same between sampled items, each of many
_MOST_JUMPS = 64
FILES_MAPPED = 2
_LEAST_ITEMS = 2  # item 0 is never used; a file without items does not show how many it can have


def list_index_files(
    folder: str | os.PathLike[str], *, too_short: bool = False
) -> list[SegmentFile]:
    """Index files, oldest first, by name as in the broker; or those `too_short` to have a header.

    `base` has no meaning here.
    """
    entries = sorted(folder_entries(folder, "listing index files"), key=lambda entry: entry.name)
    sizes = ((entry.path, size_of_file(entry)) for entry in entries if is_index_name(entry.name))
    files = [SegmentFile(path, 0, size) for path, size in sizes if size is not None]
    return [file for file in files if (file.size < INDEX_HEADER.itemsize) is too_short]


class IndexFile:
    """One index file, opened for reading."""

    def __init__(
        self,
        segment: SegmentFile,
        *,
        slots: int | None = None,
        items: int | None = None,
        sources: Sources | None = None,
        like: Geometry | None = None,
        assumed: Geometry | None = None,
    ) -> None:
        """`slots` and `items`: the known geometry, which is checked against the file.

        `like`: the proven geometry of another file of the store, which is tried first. Raises
        IndexGeometryError if the numbers do not fit the file, or if no geometry fits.

        `assumed`: an unproven geometry, to look for damage in a file of its size. Its header may count more
        items than it has places.
        """
        self.path = segment.path
        if segment.size > LARGEST_FILE:
            raise CorruptIndexError(
                segment.path,
                reason="the file is larger than a broker can write",
                expected=f"at most {LARGEST_FILE} bytes",
                actual=f"{segment.size} bytes",
                advice="Move it away; rmqstore rebuild makes the index again from the log",
            )
        self._segment = segment
        self._sources = sources or Sources(1, block=REMOTE_BLOCK)
        self.cost = self._sources.get(segment).cost
        raw = self._bytes(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0]
        self.header = Header(*(int(value) for value in raw))
        self.geometry = assumed or self._resolve_geometry(slots, items, like)

    def _window(self, start: int = 0) -> Window:
        """The file from a position on, of which ranges may have to be fetched."""
        return self._sources.window(self._segment, start, self._segment.size, fetch=False)

    def _bytes(self, start: int, stop: int) -> Bytes:
        """A copy of a range of the file."""
        return self._sources.get(self._segment).read(start, stop)

    def ranges(self, starts: Ints, stops: Ints) -> Ranges:
        """Ranges of the file, for `fetch_all`."""
        return Ranges(self._sources.get(self._segment), starts, stops)

    def _gather(self, dtype: Any, first: int, numbers: Ints) -> npt.NDArray[Any]:
        """The structures with these `numbers` from an array of structures that starts at `first`."""
        width = np.dtype(dtype).itemsize
        starts = numbers.astype(np.int64) * width
        with self._window(first) as window:
            window.fetch(starts, starts + width)
            whole = window.bytes[: len(window.bytes) // width * width]
            values: npt.NDArray[Any] = whole.view(dtype)[numbers]
        return values

    # --- geometry ---------------------------------------------------------------------------------

    def _resolve_geometry(
        self, slots: int | None, items: int | None, like: Geometry | None
    ) -> Geometry:
        named = self._given_geometry(slots, items)
        # An item in the first place, with the header's first offset and no predecessor, is enough
        # proof for a file of the same series, and saves requests. Offset 0 proves nothing.
        usable = self.cost.looks_at_once > 1 and self.header.begin_log_offset
        if usable and like is not None and named in (None, like) and self._begins_as(like):
            return like
        if named is not None:
            if not self.fits(named):
                raise self._wrong(named)
            return named
        usual = Geometry(DEFAULT_MAX_HASH_SLOTS, DEFAULT_MAX_INDEX_ITEMS)
        for guess in chain([usual], self._guesses()):
            if self.fits(guess):
                return guess
        raise IndexGeometryError(
            self.path,
            reason="the file does not show its number of slots and items",
            actual=f"{self._segment.size} bytes, {self.header.items} items",
            advice="Give the broker's configuration, or set maxHashSlotNum and maxIndexNum as in it",
        )

    def _given_geometry(self, slots: int | None, items: int | None) -> Geometry | None:
        """The geometry if at least one number was given; the file size determines the other."""
        rest = self._segment.size - INDEX_HEADER.itemsize
        if slots is not None:
            left = max(0, rest - slots * INDEX_SLOT.itemsize) // INDEX_ITEM.itemsize
            return Geometry(slots, left if items is None else items)
        if items is not None:
            left = max(0, rest - items * INDEX_ITEM.itemsize) // INDEX_SLOT.itemsize
            return Geometry(left, items)
        return None

    def _wrong(self, named: Geometry) -> IndexGeometryError:
        actual = f"{self._segment.size} bytes"
        if named.file_size == self._segment.size:
            actual += " whose items are not in these slots"
        return IndexGeometryError(
            self.path,
            reason="the index file was not created with these numbers of slots and items",
            expected=f"maxHashSlotNum={named.slots}, maxIndexNum={named.items}: {named.file_size} bytes",
            actual=actual,
            advice="Omit both to infer them from the file, or take them from broker.conf",
        )

    def _guesses(self) -> Iterator[Geometry]:
        """Geometries that put an item with the header's first (or last) offset in its place."""
        if not self.header.items:
            rest = self._segment.size - INDEX_HEADER.itemsize - INDEX_ITEM.itemsize
            yield Geometry(max(1, rest // INDEX_SLOT.itemsize), 1)
            return
        if not self.header.end_log_offset:
            yield from filter(self._newest_hangs, self._guesses_by_last_item())
            return
        tried, header = set(), self.header
        anchors = ((1, header.begin_log_offset), (header.items, header.end_log_offset))
        for number, offset in sorted(anchors, key=lambda anchor: -anchor[1]):
            for at in self._find_all(offset.to_bytes(8, "big", signed=True)):
                slots_end = at - _OFFSET_IN_ITEM - number * INDEX_ITEM.itemsize
                slots, odd = divmod(slots_end - INDEX_HEADER.itemsize, INDEX_SLOT.itemsize)
                if odd or slots < 1 or slots in tried:
                    continue
                tried.add(slots)
                items, odd = divmod(self._segment.size - slots_end, INDEX_ITEM.itemsize)
                if not odd:
                    yield Geometry(slots, items)

    def _guesses_by_last_item(self) -> Iterator[Geometry]:
        """Geometries by the end of the stored bytes, for items that are all of the record at offset 0.

        Zeros are everywhere, so that offset shows the place of no item. The last word that is not zero is a
        field of the last item.
        """
        word = self._last_word()
        for field in range(0, INDEX_ITEM.itemsize, INDEX_SLOT.itemsize):
            slots_end = word - field - self.header.items * INDEX_ITEM.itemsize
            slots = (slots_end - INDEX_HEADER.itemsize) // INDEX_SLOT.itemsize
            items, odd = divmod(self._segment.size - slots_end, INDEX_ITEM.itemsize)
            if slots >= 1 and not odd:
                yield Geometry(slots, items)

    def _last_word(self) -> int:
        """The position of the last four bytes that are not zero, as slots and fields lie."""
        width = INDEX_SLOT.itemsize
        stop = self._segment.size // width * width
        while stop > 0:
            step = min(_SEARCH_STEP, max(_LEAST_STEP, self.cost.spare))
            start = max(0, stop - step)
            stored = np.flatnonzero(self._bytes(start, stop).view(INDEX_SLOT))
            if len(stored):
                return start + int(stored[-1]) * width
            stop = start
        return 0

    def _newest_hangs(self, geometry: Geometry) -> bool:
        """Whether the newest item is the one that its slot points to, in a file of this geometry."""
        if not self._begins_as(geometry):
            return False
        newest = self._items(np.array([self.header.items]), geometry)["key_hash"].astype(np.int64)
        heads = self._heads(newest % geometry.slots)
        return bool(newest[0] > 0) and int(heads[0]) == self.header.items

    def fits(self, geometry: Geometry) -> bool:
        """Whether `geometry` matches the file: its size, and a check of its items.

        Another geometry of the same size shifts every item by whole places, so the used places
        identify the right one: place 0 is empty, item 1 has the header's first offset and no
        predecessor, and every item is in the slot of its hash.
        """
        count = self.header.items
        if not self._begins_as(geometry):
            return False
        if not count:
            return True
        # Skips the newest item: a live writer may not have linked it yet.
        looked_at = _SAMPLE if self.cost.looks_at_once == 1 else min(_SAMPLE, _REMOTE_SAMPLE)
        ends = np.r_[1 : min(count, looked_at) + 1, max(1, count - looked_at) : count]
        hashes = self._items(ends, geometry)["key_hash"].astype(np.int64)
        heads = self._heads(hashes % geometry.slots).astype(np.int64)
        return bool(((heads >= ends) | (ends == count)).all() and (heads <= count + 1).all())

    def _begins_as(self, geometry: Geometry) -> bool:
        """Whether size, place 0 and item 1 are as in a file of `geometry`."""
        if geometry.file_size != self._segment.size or geometry.slots < 1 or geometry.items < 1:
            return False
        if not self.header.items:
            return True
        if self.header.items >= geometry.items:
            return False
        empty, first = self._items(np.array([0, 1]), geometry)
        if empty.tobytes().strip(b"\0") or int(first["previous"]):
            return False
        return int(first["log_offset"]) == self.header.begin_log_offset

    def _heads(self, slots: Ints) -> npt.NDArray[Any]:
        return self._gather(INDEX_SLOT, INDEX_HEADER.itemsize, slots)

    def _items(self, numbers: Ints, geometry: Geometry | None = None) -> npt.NDArray[Any]:
        """Items by number. `geometry`: another one than that of the file, to try it."""
        slots = (geometry or self.geometry).slots
        return self._gather(INDEX_ITEM, index_item_at(slots, 0), numbers)

    def _places(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Places `start` to `stop`, adjacent."""
        slots = self.geometry.slots
        return self._bytes(index_item_at(slots, start), index_item_at(slots, stop)).view(INDEX_ITEM)

    # --- reading ----------------------------------------------------------------------------------

    def pieces(
        self, wanted: Callable[[int], bool] = lambda _: True
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """All items in pieces: the number of the first item of each piece, and the piece as stored.

        `wanted`: whether to read a piece, by the number behind its last item.
        """
        for first in range(1, self.header.items + 1, _PIECE):
            behind = min(first + _PIECE, self.header.items + 1)
            if wanted(behind):
                yield first, self._places(first, behind)

    def possible_gaps(self) -> list[tuple[int, int]]:
        """Long stretches of the log between two items, as the log offsets of both.

        Their records may have no item: a broker that ran for a while with messageIndexEnable=false
        goes on in the same file. In a file of many items only a few are looked at, so a stretch
        that is short for the file is not noticed; nor is any in an object store.
        """
        count = self.header.items
        if self.cost.looks_at_once > 1 or count < 2:
            return []
        looked_at = count if count <= _ALL_ITEMS else _JUMP_SAMPLE
        numbers = np.linspace(1, count, looked_at, dtype=np.int64)
        offsets = self._items(numbers)["log_offset"].astype(np.int64)
        length = np.diff(offsets)
        usual = float(np.median(length[length > 0])) if (length > 0).any() else 0
        rows = np.flatnonzero(length > usual * (_JUMP if count <= _ALL_ITEMS else _SAMPLED_JUMP))
        longest = np.sort(rows[np.argsort(-length[rows])][:_MOST_JUMPS])
        return [self._jump_in(int(numbers[row]), int(numbers[row + 1])) for row in longest]

    def _jump_in(self, first: int, last: int) -> tuple[int, int]:
        """The log offsets of two neighbouring items, far apart, between items `first` and `last`."""
        while last - first > 1:
            middle = (first + last) // 2
            ends = self._items(np.array([first, middle, last]))["log_offset"]
            low, between, high = ends.astype(np.int64).tolist()
            first, last = (first, middle) if between - low > high - between else (middle, last)
        start, stop = self._items(np.array([first, last]))["log_offset"].tolist()
        return int(start), int(stop)

    def slot_heads(self) -> Iterator[tuple[int, Ints]]:
        """The slot table in pieces: the first slot of each piece, and the slots' newest items."""
        for first in range(0, self.geometry.slots, _PIECE):
            stop = min(first + _PIECE, self.geometry.slots)
            at = INDEX_HEADER.itemsize + first * INDEX_SLOT.itemsize
            raw = self._bytes(at, at + (stop - first) * INDEX_SLOT.itemsize)
            yield first, raw.view(INDEX_SLOT).astype(np.int64)

    def slots_of(self, numbers: Ints) -> Ints:
        """The slots that belong to the hashes of these items."""
        return self._items(numbers)["key_hash"].astype(np.int64) % self.geometry.slots

    def item(self, number: int) -> np.void:
        """An item as stored."""
        item: np.void = self._items(np.array([number]))[0]
        return item

    def item_at(self, number: int) -> int:
        """The position of an item in the file."""
        return index_item_at(self.geometry.slots, number)

    def key_hashes(self, start: int, stop: int) -> Ints:
        """Hashes of items number `start` + 1 to `stop`; call it for pieces, to limit memory."""
        return self._places(start + 1, stop + 1)["key_hash"].astype(np.int64)

    def walk(self, key_hash: int, hits: list[int]) -> Iterator[tuple[int, int]]:
        """Add the log offsets of the items with exactly this hash to `hits`, newest first.

        Yields the byte range of the file before each access. Raises CorruptIndexError if the chain
        does not descend or leaves its slot, and DataLossError if the file was cut, whose bytes read
        as zeros.
        """
        count, slots = self.header.index_count, self.geometry.slots
        slot, counts = key_hash % slots, self._sources.counts
        counts.files[self.path] = None
        with self._window() as window:
            at = INDEX_HEADER.itemsize + slot * INDEX_SLOT.itemsize
            yield at, at + _SLOT.size
            (number,) = _unpacked(_SLOT, window, at)
            while number > 0:
                at = self.item_at(number)
                if number >= self.geometry.items:
                    raise self._never_written(number)
                yield at, at + _ITEM.size
                counts.checked += 1
                item = _unpacked(_ITEM, window, at)
                # The first item of a log may be zeros except its hash. Only a lost item is all zeros.
                if not any(item):
                    raise self._never_written(number)
                item_hash, log_offset, _, previous = item
                # Skip an item written after the header was read, but follow it to older ones.
                if number <= count and item_hash == key_hash:
                    hits.append(log_offset)
                if item_hash < 0 or item_hash % slots != slot:
                    what = "an item is in the chain of another slot than that of its hash"
                    raise self._broken_chain(at, what, f"a hash of slot {slot}", item_hash)
                if previous >= number or previous < 0:
                    what = "an item points to one that is not older"
                    raise self._broken_chain(at, what, f"0 to {number - 1}", previous)
                number = previous

    def _broken_chain(self, at: int, reason: str, expected: str, actual: int) -> CorruptIndexError:
        """The error for a wrong item at a position of the file."""
        return CorruptIndexError(
            self.path,
            offset=at,
            reason=reason,
            expected=expected,
            actual=actual,
            advice="Delete this index file in a copy of the store and rebuild the index from the log",
        )

    def _never_written(self, number: int) -> CorruptIndexError:
        """The error for a slot that points to a missing item: the older items of the slot are lost."""
        return self._broken_chain(
            self.item_at(min(number, self.geometry.items)),
            "a slot points to an item that was never written",
            f"1 to {self.header.index_count}",
            number,
        )

    def covered(self) -> tuple[int, int]:
        """The log offsets of the first and the last item, both at most what the header says.

        In an object store the header alone says it.
        """
        header = self.header
        if self.cost.looks_at_once > 1 or not header.items:
            return header.begin_log_offset, header.end_log_offset
        last = min(header.items, self.geometry.items - 1)
        (offset,) = self._items(np.array([last]))["log_offset"].tolist()
        return header.begin_log_offset, min(header.end_log_offset, offset)

    def hashes_at(self, log_offset: int) -> set[int]:
        """The hashes of the items of one record, which are beside each other; none if it has none."""
        header = self.header
        if not header.begin_log_offset <= log_offset <= header.end_log_offset:
            return set()
        numbers = range(1, min(header.items, self.geometry.items - 1) + 1)
        first = bisect_left(numbers, log_offset, key=lambda number: self.item(number)["log_offset"])
        following = map(self.item, numbers[first:])
        own = takewhile(lambda item: int(item["log_offset"]) == log_offset, following)
        return {int(item["key_hash"]) for item in own}

    def _find_all(self, pattern: bytes) -> Iterator[int]:
        """The positions of `pattern` in the file; at most a few thousand per step of the search."""
        step = min(_SEARCH_STEP, max(_LEAST_STEP, self.cost.spare))
        for start in range(0, self._segment.size, step):
            stop = min(start + step + len(pattern) - 1, self._segment.size)
            piece = self._bytes(start, stop).tobytes()
            at = piece.find(pattern)
            for _ in range(4096):
                if at < 0:
                    break
                yield start + at
                at = piece.find(pattern, at + 1)


def _unpacked(layout: struct.Struct, window: Window, at: int) -> tuple[int, ...]:
    """One structure of the file by a call that costs less than an array of one item."""
    window.fetch([at], [at + layout.size])
    return layout.unpack_from(window.bytes.data, at)


def open_index_files(root: Path, config: StoreConfig) -> list[IndexFile]:
    """The readable index files."""
    sources = Sources(FILES_MAPPED)
    segments = list_index_files(root / INDEX_DIR)
    opened = [open_index_file(segment, config, sources) for segment in segments]
    return [file for file in opened if isinstance(file, IndexFile)]


def open_index_file(
    segment: SegmentFile, config: StoreConfig, sources: Sources
) -> IndexFile | IndexGeometryError:
    slots, items = config.maxHashSlotNum, config.maxIndexNum
    try:
        return IndexFile(segment, slots=slots, items=items, sources=sources)
    except IndexGeometryError as error:
        return error


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of slots (maxHashSlotNum) and item places (maxIndexNum) of an index file."""

    slots: int
    items: int

    @property
    def file_size(self) -> int:
        """Bytes of a file of this geometry: up to where an item behind the last would be."""
        return index_item_at(self.slots, self.items)


def index_geometry(
    files: Sequence[SegmentFile], config: StoreConfig, *, damaged: bool = True
) -> Geometry | None:
    """The geometry of a store's index: that of the newest file that shows it, with the numbers of `config` if
    it has any; None if no file does.

    A damaged file is passed over; without `damaged` it raises IndexGeometryError or CorruptIndexError.
    """
    for segment in reversed(files):
        try:
            file = IndexFile(segment, slots=config.maxHashSlotNum, items=config.maxIndexNum)
        except (IndexGeometryError, CorruptIndexError):
            if not damaged:
                raise
            continue
        if file.geometry.items >= _LEAST_ITEMS:
            return file.geometry
    return None


@dataclass(frozen=True, slots=True)
class Header:
    """The 40 bytes at the start of the file; timestamps in ms."""

    begin_timestamp: int
    end_timestamp: int
    begin_log_offset: int
    end_log_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def items(self) -> int:
        """The number of items in the file; index_count is the number of the next one."""
        return max(self.index_count, 1) - 1
