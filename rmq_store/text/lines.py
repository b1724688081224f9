"""Convert Arrow batches to lines of JSON or tab-separated text, those of messages without a Python loop per
row. A query gives columns of any Arrow type."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.property_columns import buffers
from rmq_store.errors import CONTROLS, json_text, printable
from rmq_store.text.bodies import UTF8, base64_of, text_and_base64, text_or_marked_base64
from rmq_store.text.times import LATEST_MS, utc_text

_EMPTY = pa.scalar("", pa.string())
_QUOTE = pa.scalar('"', pa.string())
_NULL = pa.scalar("null", pa.string())
_PLAIN = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)
_BLANK = 0x20  # lower codes are control characters
_QUOTE_BYTE, _BACKSLASH = 0x22, 0x5C
_WIDE = CONTROLS.removeprefix("\x00-\x1f")
_WIDE_STARTS = (0x7F, 0xC2, 0xD8, 0xE2, 0xEF)  # their first bytes
_MILLIS = pa.array([f".{ms:03d}" for ms in range(1000)])
_UTC = ("UTC", "Etc/UTC")
_SECONDS = len("2024-05-01T12:00:00")
BODY = "body"
BASE64_SUFFIX = "Base64"  # added to a column's name if a value is not UTF-8


def json_lines(batch: pa.RecordBatch, charset: str = UTF8) -> bytes:
    """One JSON object per row, with the column names as keys.

    Timestamps are ISO 8601 in UTC. A binary value is written as text. If it is not UTF-8, it is
    null, and a second key of its line, the name plus `Base64`, has it as base64. `charset`: that of
    bodies, as `charset_named` has it. Lists and structs are such, decimals are exact, and a number that
    JSON does not have (NaN, infinity) is text.
    """
    batch = _with_plain_types(batch)
    if not batch.num_rows:
        return b""
    if not all(map(_is_plain, batch.schema.types)):
        return _lines_of_any_types(batch)
    pieces: list[pa.Array | pa.Scalar] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(_key(name, first=not pieces))
        encoded = None
        if pa.types.is_binary(column.type):
            column, encoded = text_and_base64(column, charset if name == BODY else UTF8)
        pieces.append(_json_values(column))
        if encoded is not None:
            key, values = _key(name + BASE64_SUFFIX), _quoted(encoded)
            pieces.append(pc.binary_join_element_wise(key, values, _EMPTY).fill_null(_EMPTY))
    return _joined([*pieces, pa.scalar("}\n", pa.string())])


def _lines_of_any_types(batch: pa.RecordBatch) -> bytes:
    names, lines = batch.schema.names, []
    for row in zip(*map(_listed, batch.columns), strict=True):
        cells: dict[str, Any] = {}
        for name, kind, value in zip(names, batch.schema.types, row, strict=True):
            cells[name] = _json_value(value, kind)
            if isinstance(cells[name], bytes):  # bytes that are no text have a second key
                cells[name + BASE64_SUFFIX] = base64.b64encode(cells[name]).decode()
                cells[name] = None
        lines.append(json_text(cells))
    return "".join(f"{line}\n" for line in lines).encode()


def _key(name: str, *, first: bool = False) -> pa.Scalar:
    return pa.scalar(f"{'{' if first else ','}{json_text(name)}:", pa.string())


def _joined(pieces: Sequence[pa.Array | pa.Scalar]) -> bytes:
    ends, raw = buffers(pc.binary_join_element_wise(*pieces, _EMPTY))
    return raw[int(ends[0]) : int(ends[-1])].tobytes()


def _json_values(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        values = _quoted(column)
    elif pa.types.is_timestamp(kind):
        values = pc.binary_join_element_wise(_QUOTE, iso_times(column), _QUOTE, _EMPTY)
    elif pa.types.is_map(kind):
        values = _objects(column)
    else:
        values = pc.cast(column, pa.string())
    return values.fill_null(_NULL)


def _quoted(strings: pa.Array) -> pa.Array:
    escaped = _with_escapes(strings, (_QUOTE_BYTE, _BACKSLASH))
    return pc.binary_join_element_wise(_QUOTE, escaped, _QUOTE, _EMPTY)


def _objects(column: pa.Array) -> pa.Array:
    keys, items = column.keys, column.items
    entries = pc.binary_join_element_wise(_quoted(keys), ":", _json_values(items), _EMPTY)
    lists = pa.ListArray.from_arrays(column.offsets, entries)
    objects = pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", _EMPTY)
    return pc.if_else(column.is_valid(), objects, pa.scalar(None, pa.string()))


def iso_times(column: pa.Array) -> pa.Array:
    """Timestamps as `2024-05-01T12:00:00.123Z`, or with the offset of the column's zone. Each distinct second
    is formatted once.

    A time that is centuries away stays a number, as `4611686018427387904 ms`.
    """
    ms = column.cast(pa.int64())
    numbers = ms.fill_null(0).to_numpy()
    far = (numbers > LATEST_MS) | (numbers < -LATEST_MS)
    if far.any():
        near = pc.if_else(pa.array(far), pa.scalar(None, column.type), column)
        as_number = pc.binary_join_element_wise(ms.cast(pa.string()), pa.scalar("ms"), " ")
        return pc.if_else(pa.array(far), as_number, iso_times(near))
    seconds, millis = np.divmod(numbers, 1000)
    distinct = pa.array(seconds).dictionary_encode()
    whole, zones = _at_seconds(distinct.dictionary, column.type.tz)
    ends = zones if isinstance(zones, pa.Scalar) else zones.take(distinct.indices)
    iso = pc.binary_join_element_wise(
        whole.take(distinct.indices), _MILLIS.take(pa.array(millis)), ends, _EMPTY
    )
    return pc.if_else(column.is_valid(), iso, pa.scalar(None, pa.string()))


def _at_seconds(seconds: pa.Array, zone: str | None) -> tuple[pa.Array, pa.Array | pa.Scalar]:
    """Whole seconds as ISO 8601, and what stands behind their milliseconds: the offset of a zone."""
    if zone in (None, *_UTC):
        whole = pc.cast(seconds, pa.timestamp("s"))
        return pc.strftime(whole, format="%Y-%m-%dT%H:%M:%S"), pa.scalar("Z")
    at = ZoneInfo(zone)
    texts = [datetime.fromtimestamp(second, at).isoformat() for second in seconds.to_pylist()]
    offsets = [text[_SECONDS:].replace("+00:00", "Z") for text in texts]
    return pa.array((text[:_SECONDS] for text in texts), pa.string()), pa.array(offsets)


def csv_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in types that CSV has. Null stays null.

    Binary values are base64, whatever their bytes are. Timestamps and maps are as in JSON lines.
    """
    return _each_column(batch, _for_csv)


def _each_column(batch: pa.RecordBatch, convert: Callable[[pa.Array], pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(map(convert, batch.columns)), names=batch.schema.names)


def _for_csv(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind):
        return base64_of(column)
    if pa.types.is_timestamp(kind):
        return iso_times(column)
    return _objects(column) if pa.types.is_map(kind) else column


def text_lines(batch: pa.RecordBatch) -> bytes:
    """One line per row, values separated by tabs. Control characters in a value are escaped as in
    JSON.

    Null is empty. A binary value that is not UTF-8 is written as `base64:...`.
    """
    if not batch.num_rows:
        return b""
    pieces: list[pa.Array | pa.Scalar] = []
    for column in batch.columns:
        pieces += [plain_text(column), pa.scalar("\t", pa.string())]
    return _joined([*pieces[:-1], pa.scalar("\n", pa.string())])


def plain_text(column: pa.Array) -> pa.Array:
    """The values as `text_lines` writes them."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        texts = iso_times(column)
    elif pa.types.is_map(kind):
        texts = _objects(column)
    elif pa.types.is_binary(kind):
        texts = _with_escapes(text_or_marked_base64(column))
    else:
        texts = _with_escapes(column) if pa.types.is_string(kind) else pc.cast(column, pa.string())
    return texts.fill_null(_EMPTY)


def _with_escapes(strings: pa.Array, others: Sequence[int] = ()) -> pa.Array:
    """The strings with control characters, and some other bytes, escaped as in JSON."""
    ends, raw = buffers(strings)
    used = raw[int(ends[0]) : int(ends[-1])]
    seen = set(np.unique(used[used < _BLANK]).tolist())
    seen |= {byte for byte in others if (used == byte).any()}
    # The backslash first, because the other escapes add backslashes.
    for byte in sorted(seen, reverse=True):
        strings = pc.replace_substring(strings, chr(byte), json.dumps(chr(byte))[1:-1])
    return _each_printable(strings, used)


def _each_printable(strings: pa.Array, used: np.ndarray) -> pa.Array:
    """Escape DEL, C1 controls and marks that reorder a line. Few texts have a byte that starts one."""
    if not any((used == first).any() for first in _WIDE_STARTS):
        return strings
    hits = pc.match_substring_regex(strings, f"[{_WIDE}]").fill_null(False)
    if not pc.any(hits).as_py():
        return strings
    escaped = pa.array([printable(text) for text in strings.filter(hits).to_pylist()], pa.string())
    return pc.replace_with_mask(strings, hits, escaped)


# --- columns of any type --------------------------------------------------------------------------


def printable_columns(batch: pa.RecordBatch, *, in_zones: bool = False) -> pa.RecordBatch:
    """The rows in the types of message columns: what has no such type is text, or JSON as text. `in_zones`:
    times stay in the zones of their columns; else they are in UTC."""
    return _each_column(_with_plain_types(batch, in_zones=in_zones), _in_plain_type)


def _in_plain_type(column: pa.Array) -> pa.Array:
    if _is_plain(column.type):
        return column
    if pa.types.is_floating(column.type):
        # As Arrow writes it, without the digits that a float of 32 bits does not have.
        return pc.cast(column, pa.string())
    values = (_json_value(value, column.type) for value in _listed(column))
    texts = (
        v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values
    )
    return pa.array(texts, pa.string())


def _with_plain_types(batch: pa.RecordBatch, *, in_zones: bool = False) -> pa.RecordBatch:
    return _each_column(batch, partial(_as_time, in_zone=in_zones))


def _as_time(column: pa.Array, in_zone: bool) -> pa.Array:
    """A column of moments in whole ms as such. DuckDB counts in microseconds."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return column
    try:
        return column.cast(pa.timestamp("ms", column.type.tz if in_zone else "UTC"))
    except pa.ArrowInvalid:
        return column


def _is_plain(kind: pa.DataType) -> bool:
    return kind == PROPERTIES or _is_moment(kind) or any(is_one(kind) for is_one in _PLAIN)


def _is_moment(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.unit == "ms" and kind.tz is not None


def _listed(column: pa.Array) -> list[Any]:
    """In Python's types; where Python has no such time, all times of the column are numbers."""
    if _is_moment(column.type):
        return list(iso_times(column).to_pylist())
    try:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            # Refuses what would lose digits, as pandas, where it is loaded, does not.
            return list(column.cast(pa.timestamp("us", column.type.tz)).to_pylist())
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return list(column.cast(_with_numbers(column.type)).to_pylist())


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in place of dates and times, also within lists, structs and maps."""
    if pa.types.is_map(kind):
        return pa.map_(_with_numbers(kind.key_type), _with_numbers(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_numbers(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_numbers(kind.value_type), kind.list_size)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _json_value(value: Any, kind: pa.DataType) -> Any:
    """A value for JSON. Bytes that are not UTF-8 stay bytes at the top, and are base64 inside."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        return str(value)
    if isinstance(value, Decimal):
        near = int(value) if kind.scale <= 0 else float(value)
        return near if Decimal(repr(near)) == value else str(value)  # a float may lack digits
    if isinstance(value, datetime):
        digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
        return value.isoformat(timespec=digits) if value.tzinfo is None else utc_text(value, digits)
    if isinstance(value, date):
        return value.isoformat()
    return _duration(value) if isinstance(value, pa.MonthDayNano) else _inner(value, kind)


def _duration(value: Any) -> str:
    """An interval as `2 months 3 days 04:05:06.007`, without what is 0."""
    sign = "-" if value.nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(value.nanoseconds) // 1000, 1_000_000)
    digits = f".{fraction:06d}".rstrip("0").rstrip(".")
    clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}"
    parts = [f"{value.months} months" * bool(value.months), f"{value.days} days" * bool(value.days)]
    parts.append(clock * bool(value.nanoseconds or not (value.months or value.days)))
    return " ".join(filter(None, parts))


def _inner(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_map(kind) and value is not None:
        keys = (_within(key, kind.key_type) for key, _ in value)
        texts = (key if isinstance(key, str) else json.dumps(key) for key in keys)
        return dict(zip(texts, (_within(item, kind.item_type) for _, item in value), strict=True))
    if isinstance(value, Mapping):
        return {name: _within(one, kind.field(name).type) for name, one in value.items()}
    if isinstance(value, list):
        return [_within(one, kind.value_type) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _within(value: Any, kind: pa.DataType) -> Any:
    found = _json_value(value, kind)
    return f"base64:{base64.b64encode(found).decode()}" if isinstance(found, bytes) else found
