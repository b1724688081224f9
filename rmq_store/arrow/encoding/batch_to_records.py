"""An Arrow batch of messages to the bytes of their records.

All checks run before the first byte is built, so a batch is written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_definitions import FIELDS, PROPERTIES
from rmq_store.arrow.encoding.checks import (
    cast_column,
    check_sizes,
    invalid_message,
    lengths,
    needs_record_version_2,
    topic_fault,
)
from rmq_store.arrow.encoding.properties import (
    PROPERTY_WORDS,
    merged_property_strings,
    property_strings,
    rows_with_property,
)
from rmq_store.arrow.property_columns import buffers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError, nearest
from rmq_store.format.byte_layout import (
    CRC_ITEM_SIZE,
    CRC_MASK,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    MULTI_DISPATCH_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    V6_EXTRA,
    Bytes,
    Ints,
    Mask,
    Numbers,
    Property,
)
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.hashes import crc32_of_slices, crc32_of_strings
from rmq_store.format.queues import QueueId
from rmq_store.format.record import (
    Message,
    Record,
    decode_properties,
    decode_utf8,
    encode_utf8,
    format_host,
    is_dispatched_to,
    parse_host,
)
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.loops import encode_records as loops

LOOPBACK = "127.0.0.1:0"

# Optional columns besides topic, queueId and body; timestamps in ms or as Arrow timestamps.
NUMBER_COLUMNS = {
    "flag": np.int32,
    "sysFlag": np.int32,
    "bornTimestamp": np.int64,
    "storeTimestamp": np.int64,
    "reconsumeTimes": np.int32,
    "preparedTransactionOffset": np.int64,
}
REQUIRED = ("topic", "queueId", "body")
_OTHERS = ("properties", "rawProperties", "bornHost", "storeHost")
KNOWN_COLUMNS = frozenset((*REQUIRED, *NUMBER_COLUMNS, *PROPERTY_WORDS, *_OTHERS))
_FORMS = ("properties", "rawProperties", *PROPERTY_WORDS)
_NAME_END = bytes([NAME_VALUE_SEPARATOR])


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of n messages: `code` is the place of each in `table`.

    `table`: 20 bytes a host, the first 8 of them with IPv4.
    """

    table: Bytes
    is_v6: Mask
    code: Numbers

    def is_ipv6(self) -> Mask:
        """Mask of the messages with an IPv6 host."""
        return self.is_v6[self.code]


@dataclass(slots=True)
class PreparedMessages:
    """n checked messages, with all parts of their records except offsets and times.

    `total` is the size of each record in bytes. Numbers are arrays of n. `store_timestamp` is 0 if
    the store assigns the time. `topic_fields`: length and topic of each of `topics`, as stored.
    """

    topics: list[str]
    topic_code: Ints
    queue_id: Numbers
    body: pa.Array
    topic_fields: list[bytes]
    properties: pa.Array
    numbers: dict[str, npt.NDArray[Any]]
    born_host: Hosts
    store_host: Hosts
    total: Ints
    with_record_crc: bool
    copied: bool = False

    def __len__(self) -> int:
        return len(self.total)

    @property
    def sys_flag(self) -> Numbers:
        """The sysFlag of every message."""
        return self.numbers["sysFlag"]

    @property
    def store_timestamp(self) -> Ints:
        """The given store time of every message in ms; 0: the store assigns it."""
        return self.numbers["storeTimestamp"]

    @property
    def counts(self) -> Ints:
        """The number of messages in each record; more than one only in an inner batch.

        Raises InvalidMessageError for an inner batch without that number. A copied one counts as one
        message, as the broker counts it.
        """
        counts = np.ones(len(self), dtype=np.int64)
        for row in np.flatnonzero(self.sys_flag & SysFlag.INNER_BATCH).tolist():
            number = decode_properties(self.properties[row].as_py()).get(Property.INNER_NUM, "")
            if number.isdigit() and int(number):
                counts[row] = int(number)
            elif not self.copied:
                raise invalid_message(row, f"an inner batch without {Property.INNER_NUM}")
        return counts

    def placed(
        self, rows: slice, queue_offset: Ints, log_offset: Ints, store_timestamp: Ints
    ) -> Bytes:
        """The bytes of the records `rows`, one after the other, with the given offsets and times."""
        ends = slice(rows.start, rows.stop + 1)
        body_ends, bodies = buffers(self.body)
        property_ends, properties = buffers(self.properties)
        topic_ends = np.cumsum([0, *map(len, self.topic_fields)], dtype=np.int32)
        magics = [MAGIC_V2 if needs_record_version_2(topic) else MAGIC_V1 for topic in self.topics]
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        total = self.total[rows]
        data = np.empty(int(total.sum()), dtype=np.uint8)
        columns = (
            total,
            crc32_of_strings(bodies, body_ends[ends]) & CRC_MASK,
            self.queue_id[rows],
            numbers["flag"],
            queue_offset,
            log_offset,
            numbers["sysFlag"],
            numbers["bornTimestamp"],
            self.born_host.table.reshape(-1),
            self.born_host.code[rows],
            store_timestamp,
            self.store_host.table.reshape(-1),
            self.store_host.code[rows],
            numbers["reconsumeTimes"],
            numbers["preparedTransactionOffset"],
            body_ends[ends],
            bodies,
            self.topic_code[rows],
            np.array(magics, dtype=np.uint32).view(np.int32),
            topic_ends,
            np.frombuffer(b"".join(self.topic_fields), dtype=np.uint8),
            property_ends[ends],
            properties,
        )
        loops.put_records(data.data, *(np.ascontiguousarray(column).data for column in columns))
        if self.with_record_crc:
            stops = np.cumsum(total)
            crcs = crc32_of_slices(data, stops - total, total - CRC_ITEM_SIZE) & CRC_MASK
            loops.put_record_crcs(data.data, stops.data, crcs.data)
        return data


def prepare(
    batch: pa.RecordBatch,
    config: StoreConfig,
    dialect: Dialect,
    default_host: str,
    *,
    copied: bool = False,
) -> PreparedMessages:
    """Check a batch and build the parts of its records.

    Raises InvalidMessageError, with the row, for anything that the broker of this release refuses.
    `copied`: the rows are records of a store, and only what the files cannot hold is refused.
    """
    columns = columns_of(batch)
    topics, topic_code = _topics(columns["topic"], dialect, config, copied)
    properties = property_strings(columns, dialect, config)
    numbers = {
        name: _number(columns, name, kind, len(batch)) for name, kind in NUMBER_COLUMNS.items()
    }
    born_host = _hosts(columns, "bornHost", len(batch), default_host)
    store_host = _hosts(columns, "storeHost", len(batch), default_host)
    born_v6, store_v6 = born_host.is_ipv6(), store_host.is_ipv6()
    if (born_v6 | store_v6).any() and not dialect.has("ipv6_hosts"):
        row = int(np.argmax(born_v6 | store_v6))
        raise invalid_message(row, f"release {dialect} cannot store an IPv6 host")
    flags = numbers["sysFlag"] & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    flags |= np.where(born_v6, np.int32(SysFlag.BORN_HOST_V6), np.int32(0))
    flags |= np.where(store_v6, np.int32(SysFlag.STORE_HOST_V6), np.int32(0))
    numbers["sysFlag"] = flags
    raw_topics = [
        (encode_utf8(topic), 2 if needs_record_version_2(topic) else 1) for topic in topics
    ]
    fields = [len(raw).to_bytes(width, "big") + raw for raw, width in raw_topics]
    body = columns["body"]
    of_topics = np.array([len(field) for field in fields], dtype=np.int64)[topic_code]
    of_bodies, of_properties = lengths(body), lengths(properties)
    v6_extra = (born_v6.astype(np.int64) + store_v6) * V6_EXTRA
    prepared = PreparedMessages(
        topics,
        topic_code,
        _number(columns, "queueId", np.int32, len(batch)),
        body,
        fields,
        properties,
        numbers,
        born_host,
        store_host,
        MIN_RECORD_SIZE - 1 + v6_extra + of_bodies + of_topics + of_properties,
        bool(config.enabledAppendPropCRC and dialect.has("record_crc")),
        copied,
    )
    sizes = {"body": of_bodies, "properties": of_properties, "record": prepared.total}
    check_sizes({**sizes, "room": prepared.total}, config, dialect, copied=copied)
    _refuse_last_queue_id(prepared.queue_id)
    if not copied:
        _refuse_negative(prepared.queue_id, "queueId")
        _refuse_negative(prepared.store_timestamp, "storeTimestamp")
    return prepared


def _refuse_null(column: pa.Array, name: str) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise invalid_message(row, f"{name} is null")


def _refuse_negative(values: npt.NDArray[Any], name: str) -> None:
    negative = np.flatnonzero(values < 0)
    if len(negative):
        raise invalid_message(int(negative[0]), f"{name} is below 0")


def _refuse_last_queue_id(numbers: npt.NDArray[np.int32]) -> None:
    """topics.json has the number of queues as 32 bits, so no topic has a queue of the highest id."""
    rows = np.flatnonzero(numbers == np.iinfo(np.int32).max)
    if len(rows):
        raise invalid_message(
            int(rows[0]), f"no topic has so many queues as queueId {numbers[rows[0]]}"
        )


def columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of a batch by name. Raises InvalidMessageError for names, nulls and types."""
    for name in batch.schema.names:
        if name not in KNOWN_COLUMNS:
            raise InvalidMessageError(
                reason=f"unknown column {name!r} in the batch", advice=nearest(name, KNOWN_COLUMNS)
            )
    for name in REQUIRED:
        if name not in batch.schema.names:
            raise InvalidMessageError(reason=f"the batch lacks the column {name!r}")
        _refuse_null(batch.column(name), name)
    columns = {name: batch.column(name) for name in batch.schema.names}
    properties = columns.get("properties")
    if properties is not None and pa.types.is_null(properties.type):
        del columns["properties"]
    elif properties is not None and not pa.types.is_map(properties.type):
        raise InvalidMessageError(
            reason="column properties has the wrong type",
            expected=PROPERTIES,
            actual=properties.type,
        )
    for name, kind in {"topic": pa.string(), "body": pa.binary(), "queueId": pa.int32()}.items():
        if columns[name].type != kind:
            columns[name] = cast_column(columns[name], kind, name)
    return columns


def _topics(
    column: pa.Array, dialect: Dialect, config: StoreConfig, copied: bool
) -> tuple[list[str], Ints]:
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    names: list[str] = encoded.dictionary.to_pylist()
    for code, name in enumerate(names):
        fault = topic_fault(name, dialect, config, copied=copied)
        if fault is not None:
            raise invalid_message(int(np.argmax(codes == code)), fault)
    return names, codes


def _number(columns: dict[str, pa.Array], name: str, kind: Any, count: int) -> npt.NDArray[Any]:
    column = columns.get(name)
    if column is None:
        return np.zeros(count, dtype=kind)
    _refuse_null(column, name)
    if pa.types.is_timestamp(column.type):
        column = cast_column(column, pa.timestamp("ms", tz=column.type.tz), name).view(pa.int64())
    numbers = cast_column(column, pa.from_numpy_dtype(kind), name)
    values: npt.NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return values


def _hosts(columns: dict[str, pa.Array], name: str, count: int, default: str) -> Hosts:
    """The host of each message; nulls become the default host."""
    names, codes = [default], np.zeros(count, dtype=np.int32)
    if name in columns:
        texts = cast_column(columns[name], pa.string(), name).fill_null(default).dictionary_encode()
        names, codes = texts.dictionary.to_pylist(), texts.indices.to_numpy()
    table = np.zeros((max(1, len(names)), HOST_V6_SIZE), dtype=np.uint8)
    is_v6 = np.zeros(len(table), dtype=bool)
    for code, text in enumerate(names):
        try:
            raw = parse_host(text)
        except (ValueError, OverflowError) as error:
            raise invalid_message(
                int(np.argmax(codes == code)), f"{name} is not ip:port or [ip]:port", actual=text
            ) from error
        table[code, : len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        is_v6[code] = len(raw) == HOST_V6_SIZE
    return Hosts(table, is_v6, codes)


_ITEM_END = bytes([PROPERTY_SEPARATOR])
_KINDS = {
    **{name: pa.from_numpy_dtype(kind) for name, kind in NUMBER_COLUMNS.items()},
    "queueId": pa.int32(),
    "body": pa.binary(),
    "rawProperties": pa.binary(),
    "properties": PROPERTIES,
}


def batch_of_message(
    message: Message | Record | Mapping[str, Any], dialect: Dialect
) -> pa.RecordBatch:
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
    values = {name: value for name, value in message.items() if value is not None}
    for name in values:
        if name not in KNOWN_COLUMNS:
            hint = nearest(name, KNOWN_COLUMNS)
            raise _invalid(f"unknown field {name!r} in the message", advice=hint)
    for name in REQUIRED:
        if name not in values:
            raise _invalid(f"the message lacks {name}")
    columns = [_column(name, value) for name, value in values.items()]
    return pa.RecordBatch.from_arrays(columns, list(values))


def store_host_of(batch: pa.RecordBatch) -> bytes:
    """The storeHost of the only row, as stored."""
    named = "storeHost" in batch.schema.names
    return parse_host(batch.column("storeHost")[0].as_py() if named else LOOPBACK)


def was_in_a_store(message: Message | Record | Mapping[str, Any]) -> bool:
    """Whether a message was in a store before: a Message or Record is what a store returned."""
    return isinstance(message, (Message, Record))


def _column(name: str, value: Any) -> pa.Array:
    kind, values = _KINDS.get(name, pa.string()), value
    try:
        if kind is PROPERTIES:
            values = [(_text(word), _text(text)) for word, text in dict(value).items()]
        elif kind == pa.string():
            values = _text(value)
        elif kind == pa.binary():
            values = bytes(memoryview(value))
        return pa.array([values], kind)
    except (ValueError, TypeError, OverflowError) as error:  # those of Arrow are such too
        a_map = "is not a map of names to values, all texts"
        wrong = {PROPERTIES: a_map, pa.string(): "is not a text"}
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
    values = {name: getattr(message, field) for name, field in FIELDS.items()} | {
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


class OffsetProperties:
    """Assigns queueOffsets while records are built, and sets the properties that hold one. `lmq` holds the
    new ends of LMQ queues (BatchConsumeQueue, LmqDispatch).

    INNER_BASE of an inner batch is its queueOffset. INNER_MULTI_QUEUE_OFFSET holds the offsets in the light
    message queues (LMQ) that also list a record.

    The assignment is provisional until the records are written: then the caller adds `lmq` to its
    counters.
    """

    def __init__(self, config: StoreConfig, max_offset: Callable[[QueueId], int]) -> None:
        self._assigns = bool(config.enableLmq)
        self._max_offset = max_offset
        self._ends: dict[QueueId, int] = {}
        self.lmq: dict[QueueId, int] = {}

    def _take(self, queue: QueueId, count: int) -> int:
        at = self._ends.get(queue, self._max_offset(queue))
        self._ends[queue] = at + count
        return at

    def are_in(self, raw: bytes, sys_flag: int) -> bool:
        """Whether a record with these properties holds a queueOffset in them."""
        if sys_flag & SysFlag.INNER_BATCH:
            return True
        name = Property.INNER_MULTI_DISPATCH if self._assigns else Property.INNER_MULTI_QUEUE_OFFSET
        return name.encode() in raw

    def set(self, raw: bytes, sys_flag: int, queue: QueueId, listed: bool) -> bytes:
        """The stored properties of the next record, with its assigned offsets."""
        properties = decode_properties(raw)
        inner = bool(sys_flag & SysFlag.INNER_BATCH)
        number = properties.get(Property.INNER_NUM, "") if inner else "1"
        base = self._take(queue, int(number) if number.isdigit() else 1) if listed else 0
        if inner and Property.INNER_NUM in properties:
            raw = _with(raw, Property.INNER_BASE, str(base))
        if Property.INNER_MULTI_DISPATCH not in properties:
            return raw
        if self._assigns or Property.INNER_MULTI_QUEUE_OFFSET in properties:
            names = properties[Property.INNER_MULTI_DISPATCH].split(MULTI_DISPATCH_SEPARATOR)
            joined = MULTI_DISPATCH_SEPARATOR.join([self._lmq_offset(name) for name in names])
            raw = _with(raw, Property.INNER_MULTI_QUEUE_OFFSET, joined)
        return raw

    def _lmq_offset(self, name: str) -> str:
        if not name.startswith(LMQ_PREFIX):
            return ""
        queue = QueueId(name, 0)
        at = self._take(queue, 1)
        self.lmq[queue] = at + 1
        return str(at)


def with_offset_properties(
    batch: pa.RecordBatch, places: OffsetProperties, dialect: Dialect
) -> pa.RecordBatch:
    """`batch` with these properties set in `rawProperties`; the batch itself if it has none of them.

    Processes rows one by one only in batches that have such properties.
    """
    flags = np.zeros(len(batch), dtype=np.int64)
    if "sysFlag" in batch.schema.names:
        flags = batch.column("sysFlag").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not (flags & SysFlag.INNER_BATCH).any() and not _names_queues(batch):
        return batch
    columns = columns_of(batch)
    stored = merged_property_strings(columns, dialect).to_pylist()
    ends_last = "rawProperties" in columns or not dialect.has("no_last_separator")
    queues = map(QueueId, columns["topic"].to_pylist(), columns["queueId"].to_pylist())
    for row, (flag, queue) in enumerate(zip(flags.tolist(), queues, strict=True)):
        if queue.topic.startswith(LMQ_PREFIX) and is_dispatched_to(
            decode_properties(stored[row]), queue.topic
        ):
            raise invalid_message(
                row,
                f"it was read from the light queue {queue.topic}, which lists a record of another topic",
                advice=f"Leave out the topics {LMQ_PREFIX}...: the record's own row brings its entries there",
            )
        if places.are_in(stored[row], flag):
            raw = places.set(stored[row], flag, queue, enters_queue(flag))
            stored[row] = raw if ends_last else raw.removesuffix(_ITEM_END)
        elif enters_queue(flag):
            places.set(b"", 0, queue, True)
    batch = batch.drop_columns([name for name in _FORMS if name in batch.schema.names])
    return batch.append_column("rawProperties", pa.array(stored, pa.binary()))


def _names_queues(batch: pa.RecordBatch) -> bool:
    """Whether properties name light message queues."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    stored, maps = columns.get("rawProperties"), columns.get("properties")
    if stored is not None and len(stored):
        known = stored.cast(pa.binary())
        known = known.drop_null() if known.null_count else known
        if rows_with_property(known, (Property.INNER_MULTI_DISPATCH,)).any():
            return True
    if maps is not None and pa.types.is_map(maps.type) and len(maps):
        first, last = (maps.offsets[row].as_py() for row in (0, -1))
        # A slice of a table has the keys of all of it.
        ends, data = buffers(maps.keys[first:last].cast(pa.binary()))
        return Property.INNER_MULTI_DISPATCH.encode() in data[ends[0] : ends[-1]].tobytes()
    return False


def _with(raw: bytes, name: str, value: str) -> bytes:
    """Stored properties with one property set; an existing one keeps its position, if repeated too."""
    front, items = name.encode() + _NAME_END, raw.split(_ITEM_END)
    new = front + value.encode()
    if any(item.startswith(front) for item in items):
        return _ITEM_END.join(new if item.startswith(front) else item for item in items)
    if raw and not raw.endswith(_ITEM_END):
        raw += _ITEM_END
    return raw + new + _ITEM_END
