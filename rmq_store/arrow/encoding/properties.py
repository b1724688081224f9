"""Property strings of many messages, from columns; the inverse of `property_columns`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.encoding.checks import cast_column, invalid_message
from rmq_store.arrow.property_columns import (
    OFFSETS_END,
    buffers,
    decode_property_columns,
    room_for_values,
    string_array,
)
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError
from rmq_store.format.byte_layout import (
    CRC_ITEM_SIZE,
    CRC_PROPERTY,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    Bytes,
    Ints,
    Mask,
    Numbers,
    Property,
)
from rmq_store.format.record import crc_item, decode_properties, record_crc_of
from rmq_store.format.releases import Dialect
from rmq_store.loops import encode_records as loops

PROPERTY_WORDS = {"keys": Property.KEYS, "tags": Property.TAGS, "uniqKey": Property.UNIQ_KEY}
# An Arrow scalar, because converting a plain value makes pyarrow search for pandas,
# and without pandas each search walks the import path.
_NO_TEXT = pa.scalar("", pa.string())
_SEPARATORS = (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
_SECTOR = bytes(512)  # what a disk writes at once
_CRC_FRONT = np.frombuffer(CRC_PROPERTY.encode() + bytes([NAME_VALUE_SEPARATOR]), dtype=np.uint8)


def property_strings(
    columns: dict[str, pa.Array], dialect: Dialect, config: StoreConfig
) -> pa.Array:
    """The stored property string of every message, with space for a record CRC if the store uses it."""
    stored = _without_crc_items(merged_property_strings(columns, dialect))
    _refuse_unwritten(stored)
    if config.enabledAppendPropCRC and dialect.has("record_crc"):
        stored = pa.array([with_room_for_crc(raw) for raw in stored.to_pylist()], pa.binary())
    return stored


def _refuse_unwritten(stored: pa.Array) -> None:
    """Raises InvalidMessageError for a string that a reader takes for one that was not written as a whole
    (docs/format-commitlog.md)."""
    ends, raw = buffers(stored)
    lengths = np.diff(ends)
    some = np.flatnonzero(lengths)
    wrong = some[raw[ends[some + 1] - 1] == 0]
    if len(wrong):
        raise invalid_message(int(wrong[0]), "its properties end in a zero byte")
    for row in np.flatnonzero(lengths > len(_SECTOR)).tolist():
        if _SECTOR in raw[ends[row] : ends[row + 1]].tobytes():
            raise invalid_message(row, f"its properties have {len(_SECTOR)} zero bytes in a row")


def merged_property_strings(columns: dict[str, pa.Array], dialect: Dialect) -> pa.Array:
    """The property string of every message by all columns that give properties; a null counts as absent.

    `rawProperties` comes first. Raises InvalidMessageError if another column differs from it.
    """
    if "rawProperties" not in columns:
        return _encoded_properties(columns, dialect)
    stored = cast_column(columns["rawProperties"], pa.binary(), "rawProperties")
    if stored.null_count:
        others = {name: column for name, column in columns.items() if name != "rawProperties"}
        stored = pc.coalesce(stored, _encoded_properties(others, dialect))
    _check_agreement(stored, _words_of(columns))
    if "properties" in columns:
        _check_same_map(stored, columns["properties"])
    return stored


def _without_crc_items(stored: pa.Array) -> pa.Array:
    """The strings without record CRCs, which cover offsets that change on writing."""
    ends, raw = buffers(stored)
    if not loops.any_has(raw.data, ends.data, _CRC_FRONT.data, CRC_ITEM_SIZE):
        return stored
    return pa.array([without_crc_item(raw) for raw in stored.to_pylist()], pa.binary())


def without_crc_item(raw: bytes) -> bytes:
    """A property string without the record CRC at its end."""
    return raw if record_crc_of(raw) is None else raw[:-CRC_ITEM_SIZE]


def with_room_for_crc(raw: bytes) -> bytes:
    """A property string with space for the record CRC at its end; drops an existing CRC."""
    raw = without_crc_item(raw)
    if raw and raw[-1] != PROPERTY_SEPARATOR:
        raw += bytes([PROPERTY_SEPARATOR])
    return raw + crc_item(0)


def rows_with_property(stored: pa.Array, names: Sequence[str]) -> Mask:
    """Rows whose property string has an item of one of some names, with any value. No string is null."""
    ends, raw = buffers(stored)
    mask = np.empty(len(stored), dtype=np.bool_)
    loops.have_item(raw.data, ends.data, *_fronts_of(names), mask.view(np.uint8).data)
    return mask


def with_properties_appended(
    stored: pa.Array, texts: Mapping[str, pa.Array], numbers: Mapping[str, Ints]
) -> pa.Array:
    """n property strings, each with the same items behind it and a separator at the end.

    `texts`: the values of the first two names, strings. `numbers`: those of the other names. Each
    n values, none null.
    """
    (ends, raw), *words = map(buffers, (stored, *texts.values()))
    count, most = len(stored), len(texts) + len(numbers)
    fronts, front_ends = _fronts_of((*texts, *numbers))
    size = sum(int(its_ends[-1] - its_ends[0]) for its_ends, _ in ((ends, raw), *words))
    size += count * (1 + len(fronts) + most + loops.LONGEST_NUMBER * len(numbers))
    out, out_ends = _room_for(size, count)
    (first_ends, first), (second_ends, second) = words
    loops.add_items(
        *(raw.data, ends.data, fronts, front_ends),
        *(first.data, first_ends.data, second.data, second_ends.data),
        *(np.concatenate(list(numbers.values())).data, out.data, out_ends.data),
    )
    return string_array(out, out_ends, pa.binary())


def _fronts_of(names: Iterable[str]) -> tuple[memoryview, memoryview]:
    """Names with the separator behind each, and their ends, as loops take them."""
    fronts = [name.encode() + bytes([NAME_VALUE_SEPARATOR]) for name in names]
    ends = np.cumsum([0, *map(len, fronts)], dtype=np.int32)
    return np.frombuffer(b"".join(fronts), dtype=np.uint8).data, ends.data


def _encoded_properties(columns: dict[str, pa.Array], dialect: Dialect) -> pa.Array:
    words = _words_of(columns)
    ends_last = not dialect.has("no_last_separator")
    if "properties" not in columns:
        return _of_words(words, len(columns["topic"]), ends_last)
    maps = columns["properties"]
    stored = property_strings_of_maps(maps, last_separator=ends_last)
    if maps.null_count:
        stored = pc.if_else(maps.is_valid(), stored, _of_words(words, len(maps), ends_last))
    _check_agreement(stored, words)
    return stored


def _words_of(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    return {name: columns[name] for name in PROPERTY_WORDS if name in columns}


def property_strings_of_maps(column: pa.Array, *, last_separator: bool = True) -> pa.Array:
    """Property strings of a map column."""
    column = column.fill_null(pa.scalar([], type=column.type)) if column.null_count else column
    keys, values = column.keys.cast(pa.binary()), column.items.cast(pa.binary())
    items = column.offsets.to_numpy()
    if keys.null_count or values.null_count:
        _refuse_null(pc.and_(keys.is_valid(), values.is_valid()), items)
    (key_ends, names), (value_ends, texts) = buffers(keys), buffers(values)
    first, last = int(items[0]), int(items[-1])
    _refuse_other_items(keys.slice(first, last - first), values.slice(first, last - first), items)
    size = sum(int(ends[last] - ends[first]) for ends in (key_ends, value_ends))
    out, ends = _room_for(size + 2 * (last - first), len(column))
    loops.join_items(
        *(items.data, names.data, key_ends.data, texts.data, value_ends.data),
        *(last_separator, out.data, ends.data),
    )
    return string_array(out, ends, pa.binary())


def _refuse_null(given: pa.Array, items: Numbers) -> None:
    """Raises InvalidMessageError if one of the items that rows have is not given."""
    missing = np.flatnonzero(~given.to_numpy(zero_copy_only=False)[items[0] : items[-1]])
    if len(missing):
        raise invalid_message(_row_of_item(missing[0], items), "a property is null")


def _refuse_other_items(names: pa.Array, values: pa.Array, items: Numbers) -> None:
    """Raises InvalidMessageError for an item that readers take for others (MessageDecoder). An empty value
    counts as absent."""
    for column, what, separators in (
        (names, "name", _SEPARATORS),
        (values, "value", _SEPARATORS[1:]),
    ):
        ends, raw = buffers(column)
        lengths = np.diff(ends)
        if what == "name" and not lengths.all():
            row = _row_of_item(int(np.argmin(lengths)), items)
            raise invalid_message(row, "a property has no name")
        for separator in separators:
            number = _first_with(ends, raw, separator)
            if number is not None:
                fault = f"the {what} of a property has the separator {separator:#04x}"
                raise invalid_message(_row_of_item(number, items), fault)


def _first_with(ends: Numbers, raw: Bytes, byte: int) -> int | None:
    """The number of the first of some strings that has a byte; None if none has it."""
    has = raw[ends[0] : ends[-1]] == byte
    if not has.any():
        return None
    return int(np.searchsorted(ends, int(ends[0]) + int(np.argmax(has)), side="right")) - 1


def _row_of_item(number: int, items: Numbers) -> int:
    return int(np.searchsorted(items, items[0] + number, side="right")) - 1


def _room_for(size: int, count: int) -> tuple[Bytes, Numbers]:
    """Memory for the bytes and the offsets of `count` strings."""
    if size >= OFFSETS_END:
        raise InvalidMessageError(
            reason="the properties of a batch have 2 GiB or more",
            advice="Append smaller batches. Nothing of the batch was written",
        )
    return room_for_values(size, count)


def _of_words(words: dict[str, pa.Array], count: int, last_separator: bool) -> pa.Array:
    """Strings of only KEYS, TAGS and UNIQ_KEY; skips null and empty values."""
    nothing = pa.repeat(_NO_TEXT, count)
    (key_ends, keys), (tag_ends, tags), (id_ends, ids) = columns = [
        buffers(cast_column(words.get(name, nothing), pa.string(), name).fill_null(_NO_TEXT))
        for name in PROPERTY_WORDS
    ]
    for (its_ends, raw), name in zip(columns, PROPERTY_WORDS, strict=True):
        row = _first_with(its_ends, raw, PROPERTY_SEPARATOR)
        if row is not None:
            raise invalid_message(row, f"{name} has the separator {PROPERTY_SEPARATOR:#04x}")
    fronts, front_ends = _fronts_of(PROPERTY_WORDS.values())
    size = sum(int(its_ends[-1] - its_ends[0]) for its_ends, _ in columns)
    out, ends = _room_for(size + count * (len(fronts) + len(PROPERTY_WORDS)), count)
    loops.join_words(
        *(fronts, front_ends, keys.data, key_ends.data, tags.data, tag_ends.data),
        *(ids.data, id_ends.data, last_separator, out.data, ends.data),
    )
    return string_array(out, ends, pa.binary())


def _check_agreement(stored: pa.Array, words: dict[str, pa.Array]) -> None:
    """Raises InvalidMessageError if tags, keys or uniqKey differ from the same property.

    A null or empty one counts as absent.
    """
    if not words:
        return
    columns = decode_property_columns(stored, with_map=False)
    for name, stored_words in (
        ("tags", columns.tags),
        ("keys", columns.keys),
        ("uniqKey", columns.uniq_key),
    ):
        if name not in words:
            continue
        words_of_column = cast_column(words[name], pa.string(), name).fill_null("")
        agrees = pc.or_(
            pc.equal(words_of_column, stored_words.fill_null("")),
            pc.equal(words_of_column, _NO_TEXT),
        )
        same = agrees.to_numpy(zero_copy_only=False)
        if not same.all():
            row = int(np.argmin(same))
            raise invalid_message(
                row,
                f"{name} and properties[{PROPERTY_WORDS[name]}] differ",
                expected=stored_words[row].as_py(),
                actual=words_of_column[row].as_py(),
                advice="Omit one of the two columns. Nothing of the batch was written",
            )


def _check_same_map(stored: pa.Array, maps: pa.Array) -> None:
    """Raises InvalidMessageError if a row's map has other properties than its stored string.

    A null counts as absent.
    """
    strings = property_strings_of_maps(decode_property_columns(stored, with_map=True).properties)
    encoded = property_strings_of_maps(maps)
    differ = pc.and_(pc.not_equal(strings, encoded), maps.is_valid())
    for row in np.flatnonzero(differ.to_numpy(zero_copy_only=False)).tolist():
        stored_items, items = (
            decode_properties(column[row].as_py()) for column in (strings, encoded)
        )
        if stored_items != items:  # they may differ in order alone
            raise invalid_message(
                row,
                "rawProperties and properties differ",
                expected=stored_items,
                actual=items,
                advice="Omit one of the two columns. Nothing of the batch was written",
            )
