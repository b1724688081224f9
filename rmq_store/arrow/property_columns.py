"""Property strings of many records at once: tags, keys, uniqKey and the whole map as columns."""

from __future__ import annotations

from dataclasses import dataclass

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
    values_of,
)
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import Property
from rmq_store.loops import property_items
from rmq_store.loops.property_items import LAYOUTS, PLACES

LOOKED_AT = (Property.TAGS, Property.KEYS, Property.UNIQ_KEY)
_SMALLEST_ITEM = 3  # bytes: name, separator, value; the last item needs no other separator


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """tags, keys, uniqKey (null if absent) and, if requested, the map of all properties."""

    tags: pa.Array
    keys: pa.Array
    uniq_key: pa.Array
    properties: pa.Array | None


def decode_property_columns(stored: pa.Array, *, with_map: bool) -> PropertyColumns:
    """The columns of a binary array of stored property strings, without nulls."""
    ends, raw = buffers(stored)
    starts = ends[:-1].astype(np.int64)
    return property_columns_at(raw, starts, ends[1:] - starts, with_map=with_map)


def property_columns_at(raw: Bytes, at: Ints, length: Ints, *, with_map: bool) -> PropertyColumns:
    """The columns of n stored property strings, `raw[at[i]:at[i] + length[i]]`."""
    found = _Found(raw, at, length, with_map)
    if found.is_ascii or found.is_utf8():
        return found.columns()
    text = as_java_reads(slices(raw, at, length, pa.binary()))
    return decode_property_columns(text.view(pa.binary()), with_map=with_map)


def look(raw: Bytes, at: Ints, length: Ints) -> tuple[Ints, bool]:
    """Where the values of some names lie in n property strings: n rows of PLACES numbers.

    See loops/property_items.py. And whether all strings are ASCII.
    """
    room = _Room(raw, at, length)
    other = property_items.look(
        room.raw, room.at, room.length, room.values.reshape(-1).data, room.places, room.items.data
    )
    return room.values, not other


class _Room:
    """The strings as the loops take them, room for their values, and for the items of one string."""

    def __init__(self, raw: Bytes, at: Ints, length: Ints) -> None:
        longest = int(length.max(initial=0))
        self.raw = raw.data
        self.at, self.length = (np.ascontiguousarray(numbers).data for numbers in (at, length))
        self.places = np.empty(longest + 1, dtype=np.int64).data
        self.items = np.empty(4 * (longest // _SMALLEST_ITEM + 1), dtype=np.int64)
        self.values = np.empty((len(at), PLACES), dtype=np.int64)


class _Found:
    """What the loop finds in n strings."""

    def __init__(self, raw: Bytes, at: Ints, length: Ints, with_map: bool) -> None:
        self._raw = raw
        self._map: pa.Array | None = None
        if with_map:
            self._split(at, length)
        else:
            self._values, self.is_ascii = look(raw, at, length)

    def _split(self, at: Ints, length: Ints) -> None:
        room = _Room(self._raw, at, length)
        self._values = room.values
        rows, size = len(at), int(length.sum())
        seen = np.zeros(1 << (len(room.items) // 2).bit_length(), dtype=np.int64)
        most = size // _SMALLEST_ITEM + rows
        (names, name_ends), (texts, text_ends) = (room_for(size, most) for _ in range(2))
        row_ends = np.empty(rows + 1, dtype=np.int32)
        self.is_ascii = not property_items.split(
            room.raw,
            room.at,
            room.length,
            room.values.reshape(-1).data,
            room.places,
            room.items.data,
            seen.data,
            np.zeros(LAYOUTS, dtype=np.int64).data,
            names.data,
            name_ends.data,
            texts.data,
            text_ends.data,
            row_ends.data,
        )
        count = int(row_ends[-1])
        self._map = pa.MapArray.from_arrays(
            number_array(row_ends),
            string_array(names, name_ends, pa.string(), count=count),
            string_array(texts, text_ends, pa.string(), count=count),
            type=PROPERTIES,
        )

    def is_utf8(self) -> bool:
        """Whether all that was found is well-formed."""
        texts = [*self._looked_at()]
        if self._map is not None:
            texts += [self._map.keys, self._map.items]
        return all(is_utf8(text) for text in texts)

    def columns(self) -> PropertyColumns:
        tags, keys, uniq_key = self._looked_at()
        return PropertyColumns(tags, keys, uniq_key, self._map)

    def _looked_at(self) -> list[pa.Array]:
        return [values_of(self._raw, self._values, 2 * number) for number in range(len(LOOKED_AT))]
