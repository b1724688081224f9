"""Property strings of many records at once: tags, keys, uniqKey and the whole map as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.string_slices import (
    as_java_reads,
    buffers,
    is_utf8,
    known_slices,
    slices,
    string_array,
)
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import Property
from rmq_store.loops import property_items

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


class _Found:
    """What the loop finds in n strings."""

    def __init__(self, raw: Bytes, at: Ints, length: Ints, with_map: bool) -> None:
        rows, size, longest = len(at), int(length.sum()), int(length.max(initial=0))
        most = longest // _SMALLEST_ITEM + 1
        self._raw = raw
        self._places = np.empty((2 * len(LOOKED_AT) + 2, rows), dtype=np.int64)
        self._map: pa.Array | None = None
        strings = (raw.data, np.ascontiguousarray(at).data, np.ascontiguousarray(length).data)
        items = np.empty((4, most), dtype=np.int64)
        seen = np.zeros(1 << (2 * most).bit_length(), dtype=np.int64)
        places = np.empty(longest, dtype=np.int64)
        room = (self._places.data, items.data, seen.data, places.data)
        if not with_map:
            self.is_ascii = not property_items.look(*strings, *room)
            return
        names, values = (np.empty(size, dtype=np.uint8) for _ in range(2))
        ends = [np.empty(size // _SMALLEST_ITEM + rows + 1, dtype=np.int32) for _ in range(2)]
        row_ends = np.empty(rows + 1, dtype=np.int32)
        self.is_ascii = not property_items.split(
            *strings, *room, names.data, ends[0].data, values.data, ends[1].data, row_ends.data
        )
        count = int(row_ends[-1])
        self._map = pa.MapArray.from_arrays(
            pa.array(row_ends),
            string_array(names, ends[0][: count + 1], pa.string()),
            string_array(values, ends[1][: count + 1], pa.string()),
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
        places: npt.NDArray[np.int64] = self._places
        return [
            known_slices(self._raw, places[row], places[row + 1], pa.string())
            for row in range(0, 2 * len(LOOKED_AT), 2)
        ]
