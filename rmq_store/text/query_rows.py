"""Rows of any Arrow types, as a query gives them, in the forms that messages are printed in."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import PROPERTIES, TIMESTAMP
from rmq_store.escaping import json_text
from rmq_store.text.lines import BASE64_SUFFIX, iso_times, json_lines
from rmq_store.text.times import in_utc

_PLAIN = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)


def query_json_lines(batch: pa.RecordBatch) -> bytes:
    """One JSON object per row, as `json_lines`; lists and structs as such, decimals exact.

    A number that JSON does not have (NaN, infinity) is text.
    """
    batch = _with_plain_types(batch)
    if all(_is_plain(kind) for kind in batch.schema.types):
        return json_lines(batch)
    names, lines = batch.schema.names, []
    for row in zip(*map(_listed, batch.columns), strict=True):
        found: dict[str, Any] = {}
        for name, kind, value in zip(names, batch.schema.types, row, strict=True):
            _put(found, name, _value(value, kind))
        lines.append(json_text(found))
    return "".join(f"{line}\n" for line in lines).encode()


def printable_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows in the types of message columns: what has no such type is text, or JSON as text."""
    batch = _with_plain_types(batch)
    columns = [
        column if _is_plain(column.type) else pa.array(map(_text, _values(column)), pa.string())
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _with_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_as_time(column) for column in batch.columns], names=batch.schema.names
    )


def _as_time(column: pa.Array) -> pa.Array:
    """A column of moments in whole ms as such. DuckDB counts in microseconds."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return column
    try:
        return column.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return column


def _is_plain(kind: pa.DataType) -> bool:
    return kind in (TIMESTAMP, PROPERTIES) or any(is_one(kind) for is_one in _PLAIN)


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):
        # As Arrow writes it, without the digits that a float of 32 bits does not have.
        return list(pc.cast(column, pa.string()).to_pylist())
    return [_value(value, column.type) for value in _listed(column)]


def _listed(column: pa.Array) -> list[Any]:
    """The values in Python's types. Where Python has no such time, such as after the year 9999 or of
    whole nanoseconds, all times of the column are numbers of its unit."""
    if column.type == TIMESTAMP:
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


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _put(row: dict[str, Any], name: str, value: Any) -> None:
    """A column of a row; bytes that are no text have a second key, as in `json_lines`."""
    if isinstance(value, bytes):
        row[name], row[name + BASE64_SUFFIX] = None, base64.b64encode(value).decode()
    else:
        row[name] = value


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value for JSON. Bytes that are not UTF-8 stay bytes at the top, and are base64 inside."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, float) and not float("-inf") < value < float("inf"):
        return str(value)
    if isinstance(value, Decimal):
        return int(value) if kind.scale <= 0 else _exact(value)
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, pa.MonthDayNano):
        return _duration(value)
    return _inner(value, kind)


def _moment(value: datetime) -> str:
    """ISO 8601: in UTC with a Z, or without a zone; microseconds if there are any."""
    digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
    if value.tzinfo is None:
        return value.isoformat(timespec=digits)
    return in_utc(value, digits)


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
        pairs = [(_key(_within(k, kind.key_type)), _within(v, kind.item_type)) for k, v in value]
        return dict(pairs)
    if isinstance(value, Mapping):
        return {name: _within(one, kind.field(name).type) for name, one in value.items()}
    if isinstance(value, list):
        return [_within(one, kind.value_type) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _within(value: Any, kind: pa.DataType) -> Any:
    found = _value(value, kind)
    return f"base64:{base64.b64encode(found).decode()}" if isinstance(found, bytes) else found


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _exact(value: Decimal) -> float | str:
    """A number of JSON, if that has the same digits; else text."""
    near = float(value)
    return near if Decimal(repr(near)) == value else str(value)
