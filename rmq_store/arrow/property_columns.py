"""Property strings of many records at once: tags, keys, uniqKey and the whole map as columns."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.string_slices import (
    as_java_reads,
    buffers,
    is_utf8,
    number_array,
    room_for,
    slices,
    string_array,
    values_array,
    values_of,
)
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import Property
from rmq_store.loops import property_items
from rmq_store.loops.property_items import LAYOUTS, PLACES

LOOKED_AT = (Property.TAGS, Property.KEYS, Property.UNIQ_KEY)
_SMALLEST_ITEM = 3  # bytes: name, separator, value; the last item needs no other separator


def decode_property_columns(stored: pa.Array, *, with_map: bool) -> PropertyColumns:
    """The columns of a binary array of stored property strings, without nulls."""
    ends, raw = buffers(stored)
    starts = ends[:-1].astype(np.int64)
    return property_columns_at(raw, starts, ends[1:] - starts, with_map=with_map)


def property_columns_at(raw: Bytes, at: Ints, length: Ints, *, with_map: bool) -> PropertyColumns:
    """The columns of n stored property strings, `raw[at[i]:at[i] + length[i]]`."""
    found = PropertyColumns(raw, at, length, with_map=with_map)
    if found.is_ascii or found.is_utf8():
        return found
    text = as_java_reads(slices(raw, at, length, pa.binary()))
    return decode_property_columns(text.view(pa.binary()), with_map=with_map)


def look(raw: Bytes, at: Ints, length: Ints) -> tuple[Ints, bool]:
    """Where the values of some names lie in n property strings: n rows of PLACES numbers.

    See loops/property_items.py. And whether all strings are ASCII.
    """
    room = _Room(raw, at, length)
    values = np.empty((len(at), PLACES), dtype=np.int64)
    other = property_items.look(
        room.raw, room.at, room.length, values.reshape(-1).data, room.places, room.items.data
    )
    return values, not other


def numbers(raw: Bytes, at: Ints, length: Ints, name: str, otherwise: Ints) -> Ints:
    """The number that a property has in each of n property strings; `otherwise` where it has none."""
    room = _Room(raw, at, length)
    found: Ints = otherwise.copy()
    property_items.numbers(
        room.raw,
        room.at,
        room.length,
        memoryview(name.encode()),
        found.data,
        room.places,
        room.items.data,
    )
    return found


class _Room:
    """The strings as the loops take them, and room for the items of one string."""

    def __init__(self, raw: Bytes, at: Ints, length: Ints) -> None:
        longest = int(length.max(initial=0))
        self.raw = raw.data
        self.at, self.length = np.ascontiguousarray(at).data, np.ascontiguousarray(length).data
        self.places = np.empty(longest + 1, dtype=np.int64).data
        self.items = np.empty(4 * (longest // _SMALLEST_ITEM + 1), dtype=np.int64)


class PropertyColumns:
    """tags, keys, uniqKey (null if absent) of n strings and, if requested, the map of all properties.

    Without the map, the first three are made when they are asked for, of the bytes that they were found in.
    """

    def __init__(self, raw: Bytes, at: Ints, length: Ints, *, with_map: bool) -> None:
        self._raw = raw
        self._count = len(at)
        self._copied: dict[str, pa.Array] = {}
        self.properties: pa.Array | None = None
        if with_map:
            self._split(at, length)
        else:
            self._values, self.is_ascii = look(raw, at, length)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def tags(self) -> pa.Array:
        """Values of TAGS."""
        return self._values_of(Property.TAGS)

    @cached_property
    def keys(self) -> pa.Array:
        """Values of KEYS."""
        return self._values_of(Property.KEYS)

    @cached_property
    def uniq_key(self) -> pa.Array:
        """Values of UNIQ_KEY."""
        return self._values_of(Property.UNIQ_KEY)

    def is_utf8(self) -> bool:
        """Whether all that was found is well-formed."""
        texts = [self.tags, self.keys, self.uniq_key]
        if self.properties is not None:
            texts += [self.properties.keys, self.properties.items]
        return all(is_utf8(text) for text in texts)

    def _values_of(self, name: str) -> pa.Array:
        if name in self._copied:
            return self._copied[name]
        return values_of(self._raw, self._values, 2 * LOOKED_AT.index(name))

    def _split(self, at: Ints, length: Ints) -> None:
        room = _Room(self._raw, at, length)
        rows, size = len(at), int(length.sum())
        seen = np.zeros(1 << (len(room.items) // 2).bit_length(), dtype=np.int64)
        most = size // _SMALLEST_ITEM + rows
        (names, name_ends), (texts, text_ends) = (room_for(size, most) for _ in range(2))
        row_ends = np.empty(rows + 1, dtype=np.int32)
        copies = [room_for(size, rows) for _ in LOOKED_AT]
        (tags, tag_ends), (keys, key_ends), (uniq_keys, uniq_key_ends) = copies
        known = np.empty((len(LOOKED_AT), rows), dtype=np.uint8)
        self.is_ascii = not property_items.split(
            room.raw,
            room.at,
            room.length,
            np.empty(PLACES, dtype=np.int64).data,
            room.places,
            room.items.data,
            seen.data,
            np.zeros(LAYOUTS, dtype=np.int64).data,
            names.data,
            name_ends.data,
            texts.data,
            text_ends.data,
            row_ends.data,
            tags.data,
            tag_ends.data,
            keys.data,
            key_ends.data,
            uniq_keys.data,
            uniq_key_ends.data,
            known.reshape(-1).data,
        )
        count = int(row_ends[-1])
        self.properties = pa.MapArray.from_arrays(
            number_array(row_ends),
            string_array(names, name_ends, pa.string(), count=count),
            string_array(texts, text_ends, pa.string(), count=count),
            type=PROPERTIES,
        )
        for name, (data, ends), some in zip(LOOKED_AT, copies, known, strict=True):
            self._copied[name] = values_array(data, ends, some)
