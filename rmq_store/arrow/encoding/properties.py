"""Property strings of many messages, from columns; the inverse of `property_columns`."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.encoding.input_columns import cast_to, invalid, lengths
from rmq_store.arrow.property_columns import decode_property_columns
from rmq_store.arrow.string_slices import buffers, slices
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.layout import CRC_ITEM_SIZE, CRC_PROPERTY, PROPERTY_SEPARATOR, Property
from rmq_store.format.properties import decode_properties
from rmq_store.format.record import crc_item, record_crc_of
from rmq_store.format.releases import Dialect

PROPERTY_WORDS = {"keys": Property.KEYS, "tags": Property.TAGS, "uniqKey": Property.UNIQ_KEY}
# Kernel constants as Arrow scalars: converting a plain value makes pyarrow search for pandas,
# and without pandas each search walks the import path.
_BEHIND_NAME = pa.scalar(b"\x01", pa.binary())
_BEHIND_VALUE = pa.scalar(b"\x02", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_NO_TEXT = pa.scalar("", pa.string())
_NULL = pa.scalar(None, pa.binary())
_ZERO = pa.scalar(0, pa.int32())


def property_strings(
    columns: dict[str, pa.Array], dialect: Dialect, config: StoreConfig
) -> pa.Array:
    """The stored property string of every message, with space for a record CRC if the store uses it."""
    stored = _without_crc_items(given_strings(columns, dialect))
    if config.enabledAppendPropCRC and dialect.has("record_crc"):
        stored = pa.array([with_crc_place(raw) for raw in stored.to_pylist()], pa.binary())
    return stored


def given_strings(columns: dict[str, pa.Array], dialect: Dialect) -> pa.Array:
    """The property string of every message by all columns that give properties; null is not given.

    `rawProperties` comes first. Raises InvalidMessageError if another column differs from it.
    """
    if "rawProperties" not in columns:
        return _encoded_properties(columns, dialect)
    stored = cast_to(columns["rawProperties"], pa.binary(), "rawProperties")
    if stored.null_count:
        others = {name: column for name, column in columns.items() if name != "rawProperties"}
        stored = pc.coalesce(stored, _encoded_properties(others, dialect))
    _check_agreement(stored, _words_of(columns))
    if "properties" in columns:
        _check_same_map(stored, columns["properties"])
    return stored


def _without_crc_items(stored: pa.Array) -> pa.Array:
    """The strings without record CRCs, which cover offsets that change on writing."""
    _, raw = buffers(stored)
    if CRC_PROPERTY.encode() not in raw.tobytes():
        return stored
    return pa.array([without_crc_item(raw) for raw in stored.to_pylist()], pa.binary())


def without_crc_item(raw: bytes) -> bytes:
    """A property string without the record CRC at its end."""
    return raw if record_crc_of(raw) is None else raw[:-CRC_ITEM_SIZE]


def with_crc_place(raw: bytes) -> bytes:
    """A property string with space for the record CRC at its end; drops an existing CRC."""
    raw = without_crc_item(raw)
    if raw and raw[-1] != PROPERTY_SEPARATOR:
        raw += bytes([PROPERTY_SEPARATOR])
    return raw + crc_item(0)


def _encoded_properties(columns: dict[str, pa.Array], dialect: Dialect) -> pa.Array:
    words = _words_of(columns)
    if "properties" in columns:
        stored = map_strings(columns["properties"])
        given = columns["properties"].is_valid()
        if columns["properties"].null_count:
            stored = pc.if_else(given, stored, _of_words(words, len(given)))
        _check_agreement(stored, words)
    else:
        stored = _of_words(words, len(columns["topic"]))
    if not dialect.has("no_last_separator"):
        return stored
    ends, raw = buffers(stored)
    filled = np.diff(ends) > 0
    return slices(raw, ends[:-1].astype(np.int64), np.diff(ends) - filled, pa.binary())


def _words_of(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    return {name: columns[name] for name in PROPERTY_WORDS if name in columns}


def map_strings(column: pa.Array) -> pa.Array:
    """Strings of a map column. A row's items are adjacent, so joining items joins rows."""
    column = column.fill_null(pa.scalar([], type=column.type)) if column.null_count else column
    keys, values = column.keys.cast(pa.binary()), column.items.cast(pa.binary())
    first = column.offsets[0].as_py() if len(column) else 0
    if keys.null_count or values.null_count:
        keep = pc.and_(keys.is_valid(), values.is_valid())
        raise invalid(
            _row_of_item(column, int(np.argmin(keep.to_numpy(zero_copy_only=False))) + first),
            "a property is null",
        )
    items = pc.binary_join_element_wise(keys, _BEHIND_NAME, values, _BEHIND_VALUE, _NOTHING)
    item_ends, raw = buffers(items)
    row_ends = item_ends[column.offsets.to_numpy() - first]
    return pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(row_ends.astype(np.int32)), pa.py_buffer(raw)]
    )


def _row_of_item(column: pa.Array, item: int) -> int:
    return int(np.searchsorted(column.offsets.to_numpy(), item, side="right")) - 1


def _of_words(words: dict[str, pa.Array], count: int) -> pa.Array:
    """Strings of only KEYS, TAGS and UNIQ_KEY; skips null and empty values."""
    given = {
        name: cast_to(words[column], pa.string(), column).cast(pa.binary())
        for column, name in PROPERTY_WORDS.items()
        if column in words
    }
    if not given:
        return pa.repeat(_NOTHING, count)
    pieces = {
        name: (pa.scalar(name.encode() + b"\x01", pa.binary()), value, _BEHIND_VALUE)
        for name, value in given.items()
    }
    if all(value.null_count == 0 and lengths(value).all() for value in given.values()):
        return pc.binary_join_element_wise(*chain.from_iterable(pieces.values()), _NOTHING)
    items = []
    for front, value, behind in pieces.values():
        filled = pc.if_else(pc.equal(pc.binary_length(value), _ZERO), _NULL, value)
        items.append(pc.binary_join_element_wise(front, filled, behind, _NOTHING).fill_null(b""))
    return pc.binary_join_element_wise(*items, _NOTHING) if len(items) > 1 else items[0]


def _check_agreement(stored: pa.Array, words: dict[str, pa.Array]) -> None:
    """Raises InvalidMessageError if tags, keys or uniqKey differ from the same property.

    A null or empty one is not given.
    """
    if not words:
        return
    found = decode_property_columns(stored, with_map=False)
    for name, there in (("tags", found.tags), ("keys", found.keys), ("uniqKey", found.uniq_key)):
        if name not in words:
            continue
        given = cast_to(words[name], pa.string(), name).fill_null("")
        agrees = pc.or_(pc.equal(given, there.fill_null("")), pc.equal(given, _NO_TEXT))
        same = agrees.to_numpy(zero_copy_only=False)
        if not same.all():
            row = int(np.argmin(same))
            raise invalid(
                row,
                f"{name} and properties[{PROPERTY_WORDS[name]}] differ",
                expected=there[row].as_py(),
                actual=given[row].as_py(),
                advice="Omit one of the two columns. Nothing of the batch was written",
            )


def _check_same_map(stored: pa.Array, given: pa.Array) -> None:
    """Raises InvalidMessageError if a row's map has other properties than its stored string.

    A null is not given.
    """
    found = map_strings(decode_property_columns(stored, with_map=True).properties)
    encoded = map_strings(given)
    differ = pc.and_(pc.not_equal(found, encoded), given.is_valid())
    for row in np.flatnonzero(differ.to_numpy(zero_copy_only=False)).tolist():
        there, wanted = (decode_properties(column[row].as_py()) for column in (found, encoded))
        if there != wanted:  # they may differ in order alone
            raise invalid(
                row,
                "rawProperties and properties differ",
                expected=there,
                actual=wanted,
                advice="Omit one of the two columns. Nothing of the batch was written",
            )
