"""One message as a batch of one row, of which `batch_to_records` makes a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rmq_store.arrow.column_definitions import FIELDS, PROPERTIES
from rmq_store.arrow.encoding.batch_to_records import (
    KNOWN_COLUMNS,
    LOOPBACK,
    NUMBER_COLUMNS,
    REQUIRED,
)
from rmq_store.errors import InvalidMessageError, nearest
from rmq_store.format.byte_layout import PROPERTY_SEPARATOR
from rmq_store.format.message import Message
from rmq_store.format.properties import (
    decode_properties,
    decode_utf8,
    encode_utf8,
    format_host,
    parse_host,
)
from rmq_store.format.record import Record
from rmq_store.format.releases import Dialect

_ITEM_END = bytes([PROPERTY_SEPARATOR])
_KINDS = {
    **{name: pa.from_numpy_dtype(kind) for name, kind in NUMBER_COLUMNS.items()},
    "queueId": pa.int32(),
    "body": pa.binary(),
    "rawProperties": pa.binary(),
    "properties": PROPERTIES,
}


def batch_of(message: Message | Record | Mapping[str, Any], dialect: Dialect) -> pa.RecordBatch:
    """The columns of a message, one row. A value of None is left out.

    Raises InvalidMessageError for an unknown name, and for a value that its column cannot have.
    """
    if isinstance(message, Record):
        message = _values_of_record(message)
    elif isinstance(message, Message):
        message = _values_of_message(message, dialect)
    elif not isinstance(message, Mapping):
        raise _invalid(
            "this is no message", expected="a Message, a Record or a mapping", actual=type(message)
        )
    given = {name: value for name, value in message.items() if value is not None}
    for name in given:
        if name not in KNOWN_COLUMNS:
            hint = nearest(name, KNOWN_COLUMNS)
            raise _invalid(f"unknown field {name!r} in the message", advice=hint)
    for name in REQUIRED:
        if name not in given:
            raise _invalid(f"the message lacks {name}")
    columns = [_column(name, value) for name, value in given.items()]
    return pa.RecordBatch.from_arrays(columns, list(given))


def store_host_of(batch: pa.RecordBatch) -> bytes:
    """The storeHost of the only row, as stored."""
    named = "storeHost" in batch.schema.names
    return parse_host(batch.column("storeHost")[0].as_py() if named else LOOPBACK)


def is_copied(message: Message | Record | Mapping[str, Any]) -> bool:
    """Whether a message was in a store before: a Message or Record is what a store returned."""
    return isinstance(message, (Message, Record))


def _column(name: str, value: Any) -> pa.Array:
    kind, found = _KINDS.get(name, pa.string()), value
    try:
        if kind is PROPERTIES:
            found = [(_text(word), _text(text)) for word, text in dict(value).items()]
        elif kind == pa.string():
            found = _text(value)
        elif kind == pa.binary():
            found = bytes(memoryview(value))
        return pa.array([found], kind)
    except (ValueError, TypeError, OverflowError) as error:  # those of Arrow are such too
        wrong = {
            PROPERTIES: "is not a map of names to values, all texts",
            pa.string(): "is not a text",
        }
        reason = f"{name} of the message {wrong.get(kind, f'does not fit {kind}')}"
        raise _invalid(reason, actual=repr(value)[:99]) from error


def _invalid(reason: str, **sides: Any) -> InvalidMessageError:
    sides.setdefault("advice", "Nothing of it was written")
    return InvalidMessageError(reason=reason, **sides)


def _text(value: Any) -> Any:
    """A text as Java stores it: a lone surrogate, which Arrow refuses, becomes a question mark."""
    return value if not isinstance(value, str) or value.isascii() else encode_utf8(value)


def _values_of_record(record: Record) -> dict[str, Any]:
    return {name: getattr(record, field) for name, field in FIELDS.items()} | {
        "topic": decode_utf8(record.topic),
        "body": record.body,
        "rawProperties": record.properties,
        "bornHost": format_host(record.born_host),
        "storeHost": format_host(record.store_host),
    }


def _values_of_message(message: Message, dialect: Dialect) -> dict[str, Any]:
    values = {name: getattr(message, field) for name, field in FIELDS.items()}
    values |= {
        "topic": message.topic,
        "body": message.raw_body,
        "storeTimestamp": None,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
    }
    # The stored string may have what the map cannot have, such as a name with an empty value. A
    # caller who replaced the map means the map.
    if decode_properties(message.raw_properties) != message.properties:
        return values | {"properties": message.properties}
    items = message.raw_properties.removesuffix(_ITEM_END)
    ends = items and not dialect.has("no_last_separator")
    return values | {"rawProperties": items + _ITEM_END if ends else items}
