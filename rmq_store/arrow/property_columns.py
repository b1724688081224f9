"""Property strings of many records at once: tags, keys, uniqKey and the whole map as columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.byte_layout import Bytes, Ints, Mask, Numbers, Property
from rmq_store.format.hashes import CRC32_IN_C, crc32
from rmq_store.format.record import decode_utf8
from rmq_store.loops import checksums, property_items, texts
from rmq_store.loops.property_items import LAYOUTS, PLACES

OFFSETS_END = 2**31 - 1
"""Bytes; a column of more has no 32-bit offsets."""
_NUMBERS = {4: pa.int32(), 8: pa.int64()}
_BINARY = pa.binary()
LOOKED_AT = (Property.TAGS, Property.KEYS, Property.UNIQ_KEY)
_SMALLEST_ITEM = 3  # bytes: name, separator, value; the last item needs no other separator


def slices(source: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType = _BINARY) -> pa.Array:
    """An Arrow array (string or binary) of the slices `source[starts[i]:starts[i] + lengths[i]]`.

    The bytes are copied, so nothing keeps `source` alive. Raises InvalidArgumentError if all slices
    together have 2 GiB or more, and IndexError for a slice outside of `source`.
    """
    data, ends = room_for_values(int(lengths.sum()), len(starts))
    texts.gather(source.data, _whole(starts).data, _whole(lengths).data, data.data, ends.data)
    return string_array(data, ends, kind)


def slices_with_crcs(source: Bytes, starts: Ints, lengths: Ints) -> tuple[pa.Array, Ints]:
    """As `slices`, binary, and the CRC-32 of each slice, from one pass over them."""
    data, ends = room_for_values(int(lengths.sum()), len(starts))
    crcs = np.empty(len(starts), dtype=np.int64)
    of = (crc32, CRC32_IN_C, source.data, _whole(starts).data, _whole(lengths).data)
    checksums.of_copies(*of, data.data, ends.data, crcs.data)
    return string_array(data, ends, _BINARY), crcs


def property_values(source: Bytes, values: Ints, first: int) -> pa.Array:
    """The values of one name in n property strings, as strings; null where there is none.

    `values`: n rows as `property_items.look` fills them; start and end stand from column `first` on.
    """
    count, width = values.shape
    data, ends = room_for_values(int((values[:, first + 1] - values[:, first]).sum()), count)
    is_there = np.empty(count, dtype=np.uint8)
    texts.gather_values(
        source.data, values.reshape(-1).data, first, width, data.data, ends.data, is_there.data
    )
    return values_array(data, ends, is_there)


def values_array(data: Bytes, ends: Numbers, is_there: Bytes) -> pa.Array:
    """n strings of their bytes and n + 1 offsets, as `string_array`; null where `is_there` is 0."""
    if is_there.all():
        return string_array(data, ends, pa.string())
    if not is_there.any():
        return pa.nulls(len(is_there), pa.string())
    return string_array(
        data, ends, pa.string(), pa.py_buffer(np.packbits(is_there, bitorder="little"))
    )


def room_for_values(size: int, count: int) -> tuple[Bytes, Numbers]:
    """Memory for the bytes and the offsets of `count` values."""
    if size >= OFFSETS_END:
        raise InvalidArgumentError(
            reason="a column of one batch has 2 GiB or more",
            advice="Read with smaller batches: batch_bytes and batch_rows limit them",
        )
    return np.empty(size, dtype=np.uint8), np.empty(count + 1, dtype=np.int32)


def _whole(numbers: Ints) -> Ints:
    return np.ascontiguousarray(numbers, dtype=np.int64)


def string_array(
    data: Bytes,
    ends: Numbers,
    kind: pa.DataType,
    valid: pa.Buffer | None = None,
    count: int | None = None,
) -> pa.Array:
    """n values of a type with 32-bit offsets, from their bytes and n + 1 offsets, without a copy.

    Both arrays may have more room than is used; it is given back, so that a column does not keep it.
    `count`: n, if `ends` has room for more.
    """
    if count is not None:
        _shorten(ends, count + 1)
    _shorten(data, int(ends[-1]))
    return pa.Array.from_buffers(
        kind, len(ends) - 1, [valid, pa.py_buffer(ends), pa.py_buffer(data)]
    )


def _shorten(values: npt.NDArray[Any], size: int) -> None:
    """Give back the memory behind the first values; nothing else may use this array."""
    if size < len(values):
        values.resize(size, refcheck=False)


def number_array(
    values: npt.NDArray[Any], kind: pa.DataType | None = None, nulls: Mask | None = None
) -> pa.Array:
    """An array of n numbers of 4 or 8 bytes; `kind`: int32 or int64 of their size if not given.

    It keeps all memory that `values` is a view of. `nulls`: a mask of rows without a value.
    """
    kind = kind or _NUMBERS[values.dtype.itemsize]
    valid = None
    if nulls is not None and nulls.any():
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [valid, data])


def texts_array(values: Sequence[str]) -> pa.Array:
    """A string array of a few texts."""
    raw = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int32)
    return string_array(np.frombuffer(b"".join(raw), dtype=np.uint8), ends, pa.string())


def numbers_of(array: pa.Array, kind: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    """The numbers of an array without nulls, whose type has the width of `kind`, as a numpy view."""
    if not len(array):
        return np.zeros(0, dtype=kind)
    return np.frombuffer(array.buffers()[1], dtype=kind)[array.offset : array.offset + len(array)]


def buffers(array: pa.Array) -> tuple[Numbers, Bytes]:
    """Offsets and data of a string or binary array that starts at 0, as numpy views."""
    _, offsets, data = array.buffers()
    first = array.offset
    ends = np.frombuffer(offsets, dtype=np.int32)[first : first + len(array) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    return ends, raw


def is_utf8(strings: pa.Array) -> bool:
    """Whether all values of a string column are well-formed."""
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def decoded_as_java(strings: pa.Array) -> pa.Array:
    """A binary array as strings; replaces malformed UTF-8 as `new String(raw, UTF_8)` does."""
    found = strings.view(pa.string())
    if is_utf8(found):
        return found
    return pa.array([decode_utf8(raw) for raw in strings.to_pylist()], pa.string())


def decode_property_columns(stored: pa.Array, *, with_map: bool) -> PropertyColumns:
    """The columns of a binary array of stored property strings, without nulls."""
    ends, raw = buffers(stored)
    starts = ends[:-1].astype(np.int64)
    return property_columns_at(raw, starts, ends[1:] - starts, with_map=with_map)


def property_columns_at(raw: Bytes, at: Ints, length: Ints, *, with_map: bool) -> PropertyColumns:
    """The columns of n stored property strings, `raw[at[i]:at[i] + length[i]]`."""
    columns = PropertyColumns(raw, at, length, with_map=with_map)
    if columns.is_ascii or columns.is_utf8():
        return columns
    text = decoded_as_java(slices(raw, at, length))
    return decode_property_columns(text.view(_BINARY), with_map=with_map)


def find_properties(raw: Bytes, at: Ints, length: Ints) -> tuple[Ints, bool]:
    """Where the values of some names lie in n property strings: n rows of PLACES numbers.

    See loops/property_items.py. And whether all strings are ASCII.
    """
    room = _Room(raw, at, length)
    values = np.empty((len(at), PLACES), dtype=np.int64)
    return values, not property_items.look(
        *room.strings, values.reshape(-1).data, room.places, room.items.data
    )


def numbers(raw: Bytes, at: Ints, length: Ints, name: str, otherwise: Ints) -> Ints:
    """The number that a property has in each of n property strings; `otherwise` where it has none."""
    room = _Room(raw, at, length)
    values: Ints = otherwise.copy()
    wanted = memoryview(name.encode())
    property_items.numbers(*room.strings, wanted, values.data, room.places, room.items.data)
    return values


class _Room:
    """The strings as the loops take them, and room for the items of one string."""

    def __init__(self, raw: Bytes, at: Ints, length: Ints) -> None:
        longest = int(length.max(initial=0))
        at, length = np.ascontiguousarray(at), np.ascontiguousarray(length)
        self.strings = (raw.data, at.data, length.data)
        self.places = np.empty(longest + 1, dtype=np.int64).data
        self.items = np.empty(4 * (longest // _SMALLEST_ITEM + 1), dtype=np.int64)


class PropertyColumns:
    """tags, keys, uniqKey (null if absent) of n strings and, if requested, the map of all properties.

    Without the map, the first three are made when they are asked for, of the bytes that they were found in.
    """

    def __init__(self, raw: Bytes, at: Ints, length: Ints, *, with_map: bool) -> None:
        self._raw = raw
        self._count = len(at)
        self.properties: pa.Array | None = None
        if with_map:
            self._split(at, length)
        else:
            self._values, self.is_ascii = find_properties(raw, at, length)

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
        return property_values(self._raw, self._values, 2 * LOOKED_AT.index(name))

    def _split(self, at: Ints, length: Ints) -> None:
        room = _Room(self._raw, at, length)
        rows, size = len(at), int(length.sum())
        seen = np.zeros(1 << (len(room.items) // 2).bit_length(), dtype=np.int64)
        most = size // _SMALLEST_ITEM + rows
        (names, name_ends), (texts, text_ends) = (room_for_values(size, most) for _ in range(2))
        row_ends = np.empty(rows + 1, dtype=np.int32)
        copies = [room_for_values(size, rows) for _ in LOOKED_AT]
        (tags, tag_ends), (keys, key_ends), (uniq_keys, uniq_key_ends) = copies
        is_there = np.empty((len(LOOKED_AT), rows), dtype=np.uint8)
        self.is_ascii = not property_items.split(
            *room.strings,
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
            is_there.reshape(-1).data,
        )
        count = int(row_ends[-1])
        self.properties = pa.MapArray.from_arrays(
            number_array(row_ends),
            string_array(names, name_ends, pa.string(), count=count),
            string_array(texts, text_ends, pa.string(), count=count),
            type=PROPERTIES,
        )
        self.tags = values_array(tags, tag_ends, is_there[0])
        self.keys = values_array(keys, key_ends, is_there[1])
        self.uniq_key = values_array(uniq_keys, uniq_key_ends, is_there[2])
