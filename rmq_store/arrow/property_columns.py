"""Property strings of many records at once: tags, keys, uniqKey and the whole map as columns.

The fast counterpart of `format.properties.decode_properties`. A property test keeps the two equal.
Copies the strings of a batch once, end to end, and finds all separators in one pass; names and
values are slices between separators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.property_layout import (
    Layout,
    Table,
    all_values,
    largest_word,
    layout_of,
    repeated_names,
    value_column,
)
from rmq_store.arrow.property_patterns import Patterns, patterns_of, words_of_names
from rmq_store.arrow.string_slices import alternating, as_java_reads, buffers, every_second, slices
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Property

_WORD = 8  # bytes
_PAIR = PROPERTY_SEPARATOR << 8 | NAME_VALUE_SEPARATOR  # two separators as one number
LOOKED_AT = (Property.TAGS, Property.KEYS, Property.UNIQ_KEY)


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """tags, keys, uniqKey (null if absent) and, if requested, the map of all properties."""

    tags: pa.Array
    keys: pa.Array
    uniq_key: pa.Array
    properties: pa.Array | None


def decode_property_columns(stored: pa.Array, *, with_map: bool) -> PropertyColumns:
    """The columns of a binary array of stored property strings, without nulls."""
    text = as_java_reads(stored)
    ends, raw = buffers(text)
    table = _as_table(ends, raw)
    layout = None if table is None else layout_of(table)
    if table is not None and layout is not None:
        return _columns_of_one_layout(table, layout, with_map)
    regular = _regular_items(ends, raw)
    if regular is not None and not with_map:
        words = _columns_of_words(regular)
        if words is not None:
            return words
    items = _any_items(ends, raw) if regular is None else regular
    shape = _one_shape(items, len(text))
    if shape is not None:
        return _columns_of_one_shape(items, len(text), shape, with_map)
    patterns = None
    if regular is not None:
        patterns = patterns_of(items.raw, items.name_at, items.name_length, items.per_row)
    if patterns is not None:
        return _columns_of_patterns(items, patterns, with_map)
    return _columns(items, len(text), with_map)


def _as_table(ends: npt.NDArray[np.int32], raw: Bytes) -> Table | None:
    """The strings as rows of a table of bytes; None if their lengths differ."""
    lengths = np.diff(ends)
    if not len(lengths) or not lengths[0] or (lengths != lengths[0]).any():
        return None
    return raw[ends[0] : ends[-1]].reshape(len(lengths), -1)


def _columns_of_one_layout(table: Table, layout: Layout, with_map: bool) -> PropertyColumns:
    rows = len(table)
    places = dict(zip(layout.names, layout.values, strict=True))

    def values_of(name: str) -> pa.Array:
        place = places.get(name.encode())
        return pa.nulls(rows, pa.string()) if place is None else value_column(table, place)

    entries = None
    if with_map:
        per_row = np.full(rows, len(layout.names))
        entries = _map(per_row, repeated_names(layout.names, rows), all_values(table, layout))
    tags, keys, uniq_key = (values_of(name) for name in LOOKED_AT)
    return PropertyColumns(tags, keys, uniq_key, entries)


def _columns_of_patterns(items: _Items, patterns: Patterns, with_map: bool) -> PropertyColumns:
    values = alternating(items.raw, items.value_at, items.value_length, pa.string())
    starts = np.cumsum(items.per_row) - items.per_row

    def values_of(name: str) -> pa.Array:
        place = patterns.places_of(name.encode())
        there = place >= 0
        if not there.any():
            return pa.nulls(len(there), pa.string())
        valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
        item = pa.py_buffer(2 * (starts + place))
        return values.take(pa.Array.from_buffers(pa.int64(), len(there), [valid, item]))

    entries = None
    if with_map:
        entries = _map(items.per_row, patterns.all_names(), every_second(values))
    tags, keys, uniq_key = (values_of(name) for name in LOOKED_AT)
    return PropertyColumns(tags, keys, uniq_key, entries)


@dataclass(slots=True)
class _Items:
    """All properties of all rows: positions of name and value, and the number per row."""

    raw: Bytes
    name_at: Ints
    name_length: Ints
    value_at: Ints
    value_length: Ints
    per_row: Ints  # number of items of each row

    def rows_of(self, some: Ints) -> Ints:
        """The rows of some items, which ascend."""
        rows = len(self.per_row)
        ends = np.cumsum(self.per_row)
        if len(some) == rows and (some < ends).all() and (some >= ends - self.per_row).all():
            return np.arange(rows)  # one in each row
        of_items: Ints = np.repeat(np.arange(rows), self.per_row)[some]
        return of_items

    def keep(self, wanted: npt.NDArray[np.bool_]) -> _Items:
        """Only the `wanted` items."""
        rows = np.repeat(np.arange(len(self.per_row)), self.per_row)
        return _Items(
            self.raw,
            self.name_at[wanted],
            self.name_length[wanted],
            self.value_at[wanted],
            self.value_length[wanted],
            np.bincount(rows[wanted], minlength=len(self.per_row)),
        )


def _regular_items(ends: npt.NDArray[np.int32], raw: Bytes) -> _Items | None:
    """The items, if each is name, 0x01, value, 0x02 without empty parts; else None.

    All releases except 4.9.1 to 5.1.4 write them so, with values that do not contain 0x01.
    """
    first, last = int(ends[0]), int(ends[-1])
    used = raw[first:last]
    separators = _places_of_separators(used)
    if len(separators) % 2 or not len(separators):
        return None
    if not (used[separators].view("<u2") == _PAIR).all():
        return None
    name_ends, item_ends = separators[0::2], separators[1::2]
    starts = np.empty_like(item_ends)
    starts[0] = 0
    starts[1:] = item_ends[:-1] + 1
    upto = _items_upto(item_ends, ends.astype(np.int64) - first)
    if upto is None:
        return None
    names, values = name_ends - starts, item_ends - name_ends - 1
    if not (names.min() > 0 and values.min() > 0):
        return None
    return _Items(used, starts, names, name_ends + 1, values, np.diff(upto))


def _places_of_separators(used: Bytes) -> Ints:
    """The positions of bytes up to 0x02.

    numpy is slow where few bytes of many are hits. So words with a hit are found first, and then
    the hits among their bytes.
    """
    is_separator = used <= PROPERTY_SEPARATOR
    whole = len(used) - len(used) % _WORD
    words = is_separator[:whole].view(np.uint64)
    at = np.flatnonzero(words != 0)
    hits = np.flatnonzero(words[at].view(bool))
    at *= _WORD
    places = at[hits >> 3]  # a word has eight bytes
    hits &= 7
    places += hits
    rest = np.flatnonzero(is_separator[whole:])
    return np.concatenate((places, rest + whole)) if len(rest) else places


def _items_upto(item_ends: Ints, row_ends: Ints) -> Ints | None:
    """How many items end before each row end; None if a row does not end with its last item."""
    count = len(row_ends) - 1
    per_row, rest = divmod(len(item_ends), count)
    if not rest and np.array_equal(item_ends[per_row - 1 :: per_row] + 1, row_ends[1:]):
        return np.arange(0, len(item_ends) + 1, per_row)
    upto = np.searchsorted(item_ends, row_ends)
    inside = row_ends > 0
    if not np.array_equal(item_ends[upto[inside] - 1] + 1, row_ends[inside]):
        return None
    return upto


def _any_items(ends: npt.NDArray[np.int32], raw: Bytes) -> _Items:
    """The items by the complete rule: any bytes, with or without the last separator."""
    first = int(ends[0])
    used = raw[first : int(ends[-1])]
    row_ends = ends.astype(np.int64) - first
    marks = np.flatnonzero(used == PROPERTY_SEPARATOR)
    open_ends = _ends_without_separator(used, row_ends)
    item_ends = np.sort(np.concatenate((marks, open_ends)), kind="stable")
    # An item starts after the previous separator, or after a row end without a separator.
    # If a separator is at that row end too, the item between is empty anyway.
    starts = np.zeros_like(item_ends)
    is_mark = np.zeros(len(used) + 1, dtype=bool)
    is_mark[marks] = True
    starts[1:] = item_ends[:-1] + is_mark[item_ends[:-1]]
    rows = np.searchsorted(row_ends, starts, side="right") - 1
    name_marks = np.flatnonzero(used == NAME_VALUE_SEPARATOR)
    at = np.searchsorted(name_marks, starts)
    padded = np.append(name_marks, len(used) + 1)
    name_ends = padded[at]
    good = (name_ends < item_ends - 1) & (name_ends > starts)
    per_row = np.bincount(rows[good], minlength=len(row_ends) - 1)
    return _Items(
        used,
        starts[good],
        (name_ends - starts)[good],
        name_ends[good] + 1,
        (item_ends - name_ends - 1)[good],
        per_row,
    )


def _ends_without_separator(used: Bytes, row_ends: Ints) -> Ints:
    """Ends of the rows whose last byte is not 0x02: there the string's end terminates the item."""
    if not len(used):
        return row_ends[:0]
    filled = np.diff(row_ends) > 0
    ends: Ints = row_ends[1:][filled & (used[row_ends[1:] - 1] != PROPERTY_SEPARATOR)]
    return ends


def _columns(items: _Items, rows: int, with_map: bool) -> PropertyColumns:
    names = slices(items.raw, items.name_at, items.name_length, pa.string()).dictionary_encode()
    codes = names.indices.to_numpy()
    items, codes = _last_of_each_name(items, codes)
    spelled = names.dictionary.to_pylist()
    tags, keys, uniq_key = (_one_property(items, codes, spelled, name, rows) for name in LOOKED_AT)
    entries = None
    if with_map:
        named = names.dictionary.take(pa.array(codes))
        values = slices(items.raw, items.value_at, items.value_length, pa.string())
        entries = _map(items.per_row, named, values)
    return PropertyColumns(tags, keys, uniq_key, entries)


def _columns_of_words(items: _Items) -> PropertyColumns | None:
    """The columns without a map, from names compared as words of eight bytes.

    None if one of them is twice in a row, or if there are no eight bytes.
    """
    words = words_of_names(items.raw, items.name_at, items.name_length)
    if words is None:
        return None
    columns: dict[str, pa.Array] = {}
    for name in LOOKED_AT:
        hit = np.flatnonzero(words == int.from_bytes(name.encode(), "little"))
        hit = hit[items.name_length[hit] == len(name)]
        row = items.rows_of(hit)
        if (row[1:] == row[:-1]).any():
            return None
        columns[name] = _values_in_rows(items, hit, row)
    return PropertyColumns(
        columns[Property.TAGS], columns[Property.KEYS], columns[Property.UNIQ_KEY], None
    )


def _one_shape(items: _Items, rows: int) -> list[bytes] | None:
    """The names of a row, if all rows have the same ones in the same order; else None.

    Messages of one producer usually do. Compares lengths as a table of rows, then the names byte
    for byte.
    """
    if not rows or not len(items.name_at) or (items.per_row != items.per_row[0]).any():
        return None
    width = int(items.per_row[0])
    lengths = items.name_length.reshape(rows, width)
    if (lengths != lengths[0]).any():
        return None
    names: list[bytes] = []
    for column in range(width):
        at = items.name_at[column::width]
        length = int(lengths[0, column])
        if not _all_equal(items.raw, at, length):
            return None
        names.append(items.raw[at[0] : at[0] + length].tobytes())
    return names if len(set(names)) == width else None


def _all_equal(raw: Bytes, at: Ints, length: int) -> bool:
    """Whether the `length` bytes at all positions `at` are equal; compares word by word."""
    word = largest_word(length)
    words = np.ndarray((len(raw) - word + 1,), dtype=f"u{word}", buffer=raw, strides=(1,))
    for step in (*range(0, length - word, word), length - word):
        found = words[at + step]
        if not (found == found[0]).all():
            return False
    return True


def _columns_of_one_shape(
    items: _Items, rows: int, names: list[bytes], with_map: bool
) -> PropertyColumns:
    """As `_columns` for rows with identical names; does not compare names row by row."""
    width = len(names)
    by_name = {name.decode(): place for place, name in enumerate(names)}

    def values_of(name: str) -> pa.Array:
        place = by_name.get(name)
        if place is None:
            return pa.nulls(rows, pa.string())
        return slices(
            items.raw, items.value_at[place::width], items.value_length[place::width], pa.string()
        )

    entries = None
    if with_map:
        values = slices(items.raw, items.value_at, items.value_length, pa.string())
        entries = _map(items.per_row, repeated_names(tuple(names), rows), values)
    tags, keys, uniq_key = (values_of(name) for name in LOOKED_AT)
    return PropertyColumns(tags, keys, uniq_key, entries)


def _last_of_each_name(items: _Items, codes: npt.NDArray[Any]) -> tuple[_Items, npt.NDArray[Any]]:
    """The items without those whose name is repeated later in the same row: the last one counts."""
    if not len(codes):
        return items, codes
    rows = np.repeat(np.arange(len(items.per_row)), items.per_row)
    pair = rows * (int(codes.max()) + 1) + codes
    order = np.argsort(pair, kind="stable")
    ordered = pair[order]
    repeated = ordered[:-1] == ordered[1:]
    if not repeated.any():
        return items, codes
    wanted = np.ones(len(codes), dtype=bool)
    wanted[order[:-1][repeated]] = False
    return items.keep(wanted), codes[wanted]


def _one_property(
    items: _Items, codes: npt.NDArray[Any], spelled: list[str], name: str, rows: int
) -> pa.Array:
    """The values of one property; null in rows without it."""
    if name not in spelled:
        return pa.nulls(rows, pa.string())
    hit = np.flatnonzero(codes == spelled.index(name))
    return _values_in_rows(items, hit, items.rows_of(hit))


def _values_in_rows(items: _Items, some: Ints, row: Ints) -> pa.Array:
    """The values of some items, each in a row of its own; null in the other rows."""
    rows = len(items.per_row)
    if not len(some):
        return pa.nulls(rows, pa.string())
    values = slices(items.raw, items.value_at[some], items.value_length[some], pa.string())
    if len(some) == rows:
        return values
    at = np.zeros(rows, dtype=np.int32)
    absent = np.ones(rows, dtype=bool)
    at[row] = np.arange(len(some))
    absent[row] = False
    return values.take(pa.array(at, mask=absent))


def _map(per_row: Ints, keys: pa.Array, values: pa.Array) -> pa.Array:
    offsets = np.zeros(len(per_row) + 1, dtype=np.int32)
    np.cumsum(per_row, out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values, type=PROPERTIES)
