"""IndexFile: a hash index from topic#key to CommitLog offsets (IndexFile, IndexHeader).

A header of 40 bytes, slots of 4, items of 20; an item leads to the one before it in its slot. How
many slots and items a file was made with stands nowhere in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.errors import CorruptIndexError, IndexGeometryError, from_os_error
from rmq_store.files import Bytes, MappingCache, SegmentFile
from rmq_store.headers import Ints
from rmq_store.layout import (
    DEFAULT_MAX_HASH_SLOTS,
    DEFAULT_MAX_INDEX_ITEMS,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_NAME_DIGITS,
    INDEX_SLOT,
    index_file_size,
    index_item_at,
)

_SAMPLE = 256  # items looked at from either end to prove a geometry
_OFFSET_IN_ITEM = 4
_PIECE = 1 << 20  # items


@dataclass(frozen=True, slots=True)
class Geometry:
    """Slots (maxHashSlotNum) and item places (maxIndexNum) of an index file."""

    slots: int
    items: int

    @property
    def file_size(self) -> int:
        """Bytes of a file of this geometry."""
        return index_file_size(self.slots, self.items)


@dataclass(frozen=True, slots=True)
class Header:
    """The 40 bytes at the front; timestamps in ms."""

    begin_timestamp: int
    end_timestamp: int
    begin_log_offset: int
    end_log_offset: int
    hash_slot_count: int
    index_count: int

    @property
    def items(self) -> int:
        """How many items the file holds: its count is the number of the next one."""
        return max(self.index_count, 1) - 1


def list_index_files(folder: str | os.PathLike[str]) -> list[SegmentFile]:
    """Index files, oldest first: the broker goes by their names. `base` means nothing here."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(folder, error, "listing index files") from error
    found = []
    for entry in entries:
        if len(entry.name) != INDEX_NAME_DIGITS or not (
            entry.name.isascii() and entry.name.isdigit()
        ):
            continue
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            continue
        if size >= INDEX_HEADER.itemsize:
            found.append(SegmentFile(entry.path, 0, size))
    return found


class IndexFile:
    """One index file, to read."""

    def __init__(
        self,
        segment: SegmentFile,
        *,
        slots: int | None = None,
        items: int | None = None,
        mappings: MappingCache | None = None,
    ) -> None:
        """`slots` and `items`: the geometry, where it is known; both are proved against the file.

        Raises IndexGeometryError where they do not fit it, or where nothing fits.
        """
        self.path = segment.path
        self._segment = segment
        self._mappings = mappings or MappingCache(1)
        self.header = self._read_header()
        self.geometry = self._resolve_geometry(slots, items)

    def _bytes(self) -> Bytes:
        mapping = self._mappings.get(self._segment)
        mapping.check(self._segment.size, self._segment)
        return mapping.bytes

    def _read_header(self) -> Header:
        raw = self._bytes()[: INDEX_HEADER.itemsize].view(INDEX_HEADER)[0]
        return Header(*(int(value) for value in raw))

    # --- geometry ---------------------------------------------------------------------------------

    def _resolve_geometry(self, slots: int | None, items: int | None) -> Geometry:
        said = self._said(slots, items)
        if said is not None:
            if not self.fits(said):
                raise self._wrong(said)
            return said
        usual = Geometry(DEFAULT_MAX_HASH_SLOTS, DEFAULT_MAX_INDEX_ITEMS)
        if self.fits(usual):
            return usual
        for guess in self._guesses():
            if self.fits(guess):
                return guess
        raise IndexGeometryError(
            self.path,
            reason="the number of slots and items cannot be told from the file",
            actual=f"{self._segment.size} bytes, {self.header.items} items",
            advice="Say maxHashSlotNum and maxIndexNum as in the broker's configuration",
        )

    def _said(self, slots: int | None, items: int | None) -> Geometry | None:
        """The geometry of which at least one number was given; the file's size tells the other."""
        rest = self._segment.size - INDEX_HEADER.itemsize
        if slots is not None:
            left = max(0, rest - slots * INDEX_SLOT.itemsize) // INDEX_ITEM.itemsize
            return Geometry(slots, left if items is None else items)
        if items is not None:
            return Geometry(
                max(0, rest - items * INDEX_ITEM.itemsize) // INDEX_SLOT.itemsize, items
            )
        return None

    def _wrong(self, said: Geometry) -> IndexGeometryError:
        return IndexGeometryError(
            self.path,
            reason="the index file was not made with these numbers of slots and items",
            expected=f"maxHashSlotNum={said.slots}, maxIndexNum={said.items}: {said.file_size} bytes",
            actual=f"{self._segment.size} bytes whose items do not hang in these slots"
            if said.file_size == self._segment.size
            else f"{self._segment.size} bytes",
            advice="Leave both out to have them found from the file, or take them from broker.conf",
        )

    def _guesses(self) -> Iterator[Geometry]:
        """Geometries that put an item with the header's first (or last) offset in its place."""
        if not self.header.items:
            rest = self._segment.size - INDEX_HEADER.itemsize - INDEX_ITEM.itemsize
            yield Geometry(max(1, rest // INDEX_SLOT.itemsize), 1)
            return
        raw = self._bytes()
        tried = set()
        anchors = (
            (1, self.header.begin_log_offset),
            (self.header.items, self.header.end_log_offset),
        )
        for number, offset in sorted(anchors, key=lambda anchor: -anchor[1]):
            for at in _find_all(raw, offset.to_bytes(8, "big", signed=True)):
                slots_end = at - _OFFSET_IN_ITEM - number * INDEX_ITEM.itemsize
                slots, odd = divmod(slots_end - INDEX_HEADER.itemsize, INDEX_SLOT.itemsize)
                if odd or slots < 1 or slots in tried:
                    continue
                tried.add(slots)
                items, odd = divmod(self._segment.size - slots_end, INDEX_ITEM.itemsize)
                if not odd:
                    yield Geometry(slots, items)

    def fits(self, geometry: Geometry) -> bool:
        """Whether the file can have been made with `geometry`: its size, and a proof on its items.

        Another geometry of the same size shifts every item by whole places, so the places in use
        say which it is: place 0 stays empty, item 1 is the header's first and has none before it,
        and every item hangs in the slot of its hash.
        """
        if geometry.file_size != self._segment.size or geometry.slots < 1 or geometry.items < 1:
            return False
        count = self.header.items
        if not count:
            return True
        if count >= geometry.items:
            return False
        places = self._places(geometry)
        first = places[1]
        if places[0].tobytes().strip(b"\0") or int(first["previous"]):
            return False
        if int(first["log_offset"]) != self.header.begin_log_offset:
            return False
        return self._hang_in_their_slots(geometry, places, count)

    def _hang_in_their_slots(self, geometry: Geometry, places: Any, count: int) -> bool:
        # The newest item is left out: a live writer may not have linked it yet.
        ends = np.r_[1 : min(count, _SAMPLE) + 1, max(1, count - _SAMPLE) : count]
        sample = places[ends]
        hashes = sample["key_hash"].astype(np.int64)
        previous = sample["previous"].astype(np.int64)
        if (hashes < 0).any() or (previous < 0).any() or (previous >= ends).any():
            return False
        slots = hashes % geometry.slots
        before = places[previous]["key_hash"].astype(np.int64) % geometry.slots
        if ((previous > 0) & (before != slots)).any():
            return False
        heads = self._slots(geometry)[slots].astype(np.int64)
        return bool(((heads >= ends) | (ends == count)).all() and (heads <= count + 1).all())

    def _slots(self, geometry: Geometry) -> npt.NDArray[Any]:
        first = INDEX_HEADER.itemsize
        return self._bytes()[first : index_item_at(geometry.slots, 0)].view(INDEX_SLOT)

    def _places(self, geometry: Geometry) -> npt.NDArray[Any]:
        first = index_item_at(geometry.slots, 0)
        return self._bytes()[first : first + geometry.items * INDEX_ITEM.itemsize].view(INDEX_ITEM)

    # --- reading ----------------------------------------------------------------------------------

    def items(self) -> npt.NDArray[Any]:
        """All items from number 1 on, as stored."""
        found: npt.NDArray[Any] = self._places(self.geometry)[1 : self.header.items + 1].copy()
        return found

    def pieces(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """All items, some at a time: the number of the first of a piece, and the piece as stored."""
        places = self._places(self.geometry)
        for first in range(1, self.header.items + 1, _PIECE):
            yield first, places[first : min(first + _PIECE, self.header.items + 1)].copy()

    def item_at(self, number: int) -> int:
        """Where an item stands in the file."""
        return index_item_at(self.geometry.slots, number)

    def key_hashes(self, start: int, stop: int) -> Ints:
        """Hashes of items number `start` + 1 to `stop`: a part of them, so that memory stays flat."""
        hashes: Ints = self._places(self.geometry)["key_hash"][start + 1 : stop + 1].astype(
            np.int64
        )
        return hashes

    def chain(self, key_hash: int) -> Iterator[tuple[int, int, int]]:
        """The items of a hash's slot that have this very hash, newest first.

        Yields item number, log offset and whole seconds since begin_timestamp. Raises
        CorruptIndexError where the chain does not descend.
        """
        places = self._places(self.geometry)
        number = int(self._slots(self.geometry)[key_hash % self.geometry.slots])
        while number > 0:
            # An item written since the header was read is not ours, but older ones hang behind it.
            is_ours = number <= self.header.index_count
            if not is_ours:
                self._require_written(number)
            item = places[number]
            if is_ours and int(item["key_hash"]) == key_hash:
                yield number, int(item["log_offset"]), int(item["time_diff"])
            previous = int(item["previous"])
            if previous >= number or previous < 0:
                raise CorruptIndexError(
                    self.path,
                    offset=index_item_at(self.geometry.slots, number),
                    reason="an item leads to one that is not older",
                    expected=f"0 to {number - 1}",
                    actual=previous,
                    advice="Delete the index file's copy and rebuild the index from the log",
                )
            number = previous

    def _require_written(self, number: int) -> None:
        """A slot that leads to an item that is not there has lost the items behind it."""
        there = number < self.geometry.items
        if there and self._places(self.geometry)[number].tobytes().strip(b"\0"):
            return
        raise CorruptIndexError(
            self.path,
            offset=index_item_at(self.geometry.slots, min(number, self.geometry.items)),
            reason="a slot leads to an item that was never written",
            expected=f"1 to {self.header.index_count}",
            actual=number,
            advice="Delete the index file's copy and rebuild the index from the log",
        )

    def log_offsets(self, key_hash: int) -> list[int]:
        """Log offsets of all items with this hash, newest first."""
        return [log_offset for _, log_offset, _ in self.chain(key_hash)]


def _find_all(raw: Bytes, pattern: bytes) -> Iterator[int]:
    """Where `pattern` stands in `raw`, at most a few thousand places."""
    step = 64 << 20
    for start in range(0, len(raw), step):
        piece = raw[start : start + step + len(pattern) - 1].tobytes()
        at = piece.find(pattern)
        for _ in range(4096):
            if at < 0:
                break
            yield start + at
            at = piece.find(pattern, at + 1)


def unique_in_order(offsets: list[int]) -> Ints:
    """Distinct offsets, ascending."""
    return np.unique(np.array(offsets, dtype=np.int64))
