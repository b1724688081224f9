"""Turns one message into a record, with the checks of the broker. `batch_to_records` does it for many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmq_store.arrow.encoding.batch_to_records import KNOWN_COLUMNS, LOOPBACK, NUMBER_COLUMNS
from rmq_store.arrow.encoding.checks import needs_v2, size_limits, topic_fault
from rmq_store.arrow.encoding.properties import PROPERTY_WORDS, with_crc_place, without_crc_item
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError, nearest
from rmq_store.format.byte_layout import (
    HOST_V4_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_LENGTH,
    PROPERTY_SEPARATOR,
    Property,
)
from rmq_store.format.message import Message
from rmq_store.format.properties import (
    decode_properties,
    decode_utf8,
    encode_properties,
    encode_utf8,
    format_host,
    parse_host,
)
from rmq_store.format.record import Record
from rmq_store.format.releases import Dialect
from rmq_store.format.sys_flag import SysFlag


def to_record(
    message: Message | Record | Mapping[str, Any], release: Dialect, config: StoreConfig
) -> Record:
    """The record of a message, without its offsets. Raises InvalidMessageError.

    The limits for new messages do not hold for what was in a store (`is_copied`).
    """
    copied = is_copied(message)
    values = _values_of(message, release)
    topic = values["topic"]
    fault = topic_fault(topic, release, config, copied=copied)
    if fault is not None:
        raise _invalid(fault)
    born_host, store_host = _host(values, "bornHost"), _host(values, "storeHost")
    record = Record(
        **{field: int(values.get(name) or 0) for name, field in _NUMBER_FIELDS.items()},
        queue_offset=0,
        physical_offset=0,
        sys_flag=_sys_flag(int(values.get("sysFlag") or 0), born_host, store_host, release),
        born_host=born_host,
        store_host=store_host,
        body=bytes(values["body"]),
        topic=encode_utf8(topic),
        properties=_properties(values, release, config),
        magic=MAGIC_V2 if needs_v2(topic) else MAGIC_V1,
    )
    sizes = {
        "body": len(record.body),
        "properties": len(record.properties),
        "record": record.total_size,
        "room": record.total_size,
    }
    for name, what, limit in size_limits(config, release, copied=copied):
        _refuse_larger(what, sizes[name], limit)
    if not copied and record.queue_id < 0:
        raise _invalid("queueId is below 0")
    return record


def is_copied(message: Message | Record | Mapping[str, Any]) -> bool:
    """Whether a message was in a store before: a Message or Record is what a store returned."""
    return isinstance(message, (Message, Record))


def check_properties(stored: bytes) -> None:
    """Raises InvalidMessageError if stored properties are longer than a record can hold."""
    _refuse_larger("the properties", len(stored), MAX_PROPERTIES_LENGTH)


def _refuse_larger(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise _invalid(f"{what} is too large", expected=f"at most {limit} bytes", actual=size)


_ITEM_END = bytes([PROPERTY_SEPARATOR])

_NUMBER_FIELDS = {
    "queueId": "queue_id",
    "flag": "flag",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
}


def _invalid(reason: str, **sides: Any) -> InvalidMessageError:
    sides.setdefault("advice", "Nothing of it was written")
    return InvalidMessageError(reason=reason, **sides)


def _values_of(
    message: Message | Record | Mapping[str, Any], release: Dialect
) -> Mapping[str, Any]:
    if isinstance(message, Record):
        return _values_of_record(message)
    if isinstance(message, Message):
        return _values_of_message(message, release)
    for name in message:
        if name not in KNOWN_COLUMNS:
            raise _invalid(
                f"unknown field {name!r} in the message", advice=nearest(name, KNOWN_COLUMNS)
            )
    for name in ("topic", "queueId", "body"):
        if message.get(name) is None:
            raise _invalid(f"the message lacks {name}")
    return message


def _values_of_record(record: Record) -> dict[str, Any]:
    values = {name: getattr(record, field) for name, field in _NUMBER_FIELDS.items()}
    return values | {
        "topic": decode_utf8(record.topic),
        "body": record.body,
        "rawProperties": record.properties,
        "sysFlag": record.sys_flag,
        "bornHost": format_host(record.born_host),
        "storeHost": format_host(record.store_host),
    }


def _values_of_message(message: Message, release: Dialect) -> dict[str, Any]:
    values = {name: getattr(message, field) for name, field in _NUMBER_FIELDS.items()}
    values |= {
        "topic": message.topic,
        "body": message.raw_body,
        "sysFlag": message.sys_flag,
        "storeTimestamp": 0,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
    }
    # The stored string may have what the map cannot have, such as a name with an empty value. A
    # caller who replaced the map means the map.
    if decode_properties(message.raw_properties) == message.properties:
        items = message.raw_properties.removesuffix(_ITEM_END)
        ends = items and not release.has("no_last_separator")
        return values | {"rawProperties": items + _ITEM_END if ends else items}
    return values | {"properties": message.properties}


def _host(values: Mapping[str, Any], name: str) -> bytes:
    try:
        return parse_host(values.get(name) or LOOPBACK)
    except (ValueError, OverflowError) as error:
        raise _invalid(f"{name} is not ip:port or [ip]:port", actual=values.get(name)) from error


def _sys_flag(flags: int, born_host: bytes, store_host: bytes, release: Dialect) -> int:
    """sysFlag with the IPv6 bits that match the hosts."""
    flags &= ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    if len(born_host) > HOST_V4_SIZE:
        flags |= SysFlag.BORN_HOST_V6
    if len(store_host) > HOST_V4_SIZE:
        flags |= SysFlag.STORE_HOST_V6
    if flags & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6) and not release.has("ipv6_hosts"):
        raise _invalid(f"release {release} cannot store an IPv6 host")
    return flags


def _properties(values: Mapping[str, Any], release: Dialect, config: StoreConfig) -> bytes:
    words, given = _words_of(values), _given_map(values)
    if values.get("rawProperties") is None:
        found = words if given is None else given
        raw = encode_properties(found, last_separator=not release.has("no_last_separator"))
        _check_words(words, found)
    else:
        raw = bytes(values["rawProperties"])
        found = decode_properties(raw)
        _check_words(words, found)
        if given is not None and decode_properties(encode_properties(given)) != found:
            raise _invalid(
                "rawProperties and properties differ",
                expected=found,
                actual=given,
                advice="Omit one of the two. Nothing of it was written",
            )
    if config.enabledAppendPropCRC and release.has("record_crc"):
        return with_crc_place(raw)
    return without_crc_item(raw)


def _words_of(values: Mapping[str, Any]) -> dict[str, str]:
    return {PROPERTY_WORDS[name]: values[name] for name in PROPERTY_WORDS if values.get(name)}


def _given_map(values: Mapping[str, Any]) -> dict[str, str] | None:
    given = values.get("properties")
    try:
        return None if given is None else dict(given)
    except (TypeError, ValueError) as error:
        raise _invalid("properties is not a map of names to values", actual=given) from error


def _check_words(words: Mapping[str, str], properties: Mapping[str, str]) -> None:
    for name, value in words.items():
        if properties.get(name, "") != value:
            raise _invalid(
                f"the {name} given and properties[{name}] differ",
                expected=properties.get(name),
                actual=value,
                advice="Omit one of the two. Nothing of it was written",
            )


def messages_in(record: Record, *, copied: bool) -> int:
    """The number of messages in a record; more than one only in an inner batch. A copied one without
    its number counts as one, as the broker counts it."""
    if not record.sys_flag & SysFlag.INNER_BATCH:
        return 1
    number = decode_properties(record.properties).get(Property.INNER_NUM, "")
    if number.isdigit() and int(number):
        return int(number)
    if not copied:
        raise _invalid(f"an inner batch without {Property.INNER_NUM}")
    return 1


assert set(_NUMBER_FIELDS) == {"queueId", *NUMBER_COLUMNS} - {"sysFlag"}
