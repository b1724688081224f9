"""An Arrow batch of messages to the bytes of their records.

All checks run before the first byte is built, so a batch is written completely or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_definitions import PROPERTIES
from rmq_store.arrow.encoding.checks import (
    cast_to,
    check_sizes,
    invalid,
    lengths,
    needs_v2,
    topic_fault,
)
from rmq_store.arrow.encoding.properties import PROPERTY_WORDS, property_strings
from rmq_store.arrow.string_slices import buffers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidMessageError, nearest
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import (
    CRC_ITEM_SIZE,
    CRC_MASK,
    HOST_V6_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    V6_EXTRA,
    Property,
)
from rmq_store.format.crc import crc32_of_slices
from rmq_store.format.properties import decode_properties, encode_utf8, parse_host
from rmq_store.format.releases import Dialect
from rmq_store.format.sys_flag import SysFlag
from rmq_store.loops import encode_records as loops

LOOPBACK = "127.0.0.1:0"
_V6_BITS = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6

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
KNOWN_COLUMNS = frozenset(
    (
        *REQUIRED,
        *NUMBER_COLUMNS,
        *PROPERTY_WORDS,
        "properties",
        "rawProperties",
        "bornHost",
        "storeHost",
    )
)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of n messages: `code` is the place of each in `table`.

    `table`: 20 bytes a host, the first 8 of them with IPv4.
    """

    table: npt.NDArray[np.uint8]
    is_v6: npt.NDArray[np.bool_]
    code: npt.NDArray[np.int32]

    def rows_v6(self) -> npt.NDArray[np.bool_]:
        """Mask of the messages with an IPv6 host."""
        found: npt.NDArray[np.bool_] = self.is_v6[self.code]
        return found


@dataclass(slots=True)
class Prepared:
    """n checked messages, with all parts of their records except offsets and times.

    `total` is the size of each record in bytes. Numbers are arrays of n. `store_timestamp` is 0 if
    the store assigns the time. `topic_fields`: length and topic of each of `topics`, as stored.
    """

    topics: list[str]
    topic_code: npt.NDArray[np.int64]
    queue_id: npt.NDArray[np.int32]
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
    def sys_flag(self) -> npt.NDArray[np.int32]:
        """The sysFlag of every message."""
        flags: npt.NDArray[np.int32] = self.numbers["sysFlag"]
        return flags

    @property
    def store_timestamp(self) -> Ints:
        """The given store time of every message in ms; 0: the store assigns it."""
        times: Ints = self.numbers["storeTimestamp"]
        return times

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
                raise invalid(row, f"an inner batch without {Property.INNER_NUM}")
        return counts

    def placed(
        self, rows: slice, queue_offset: Ints, log_offset: Ints, store_timestamp: Ints
    ) -> Bytes:
        """The bytes of the records `rows`, one after the other, with the given offsets and times."""
        ends = slice(rows.start, rows.stop + 1)
        body_ends, bodies = buffers(self.body)
        property_ends, properties = buffers(self.properties)
        topic_ends = np.cumsum([0, *map(len, self.topic_fields)], dtype=np.int32)
        magics = [MAGIC_V2 if needs_v2(topic) else MAGIC_V1 for topic in self.topics]
        numbers = {name: values[rows] for name, values in self.numbers.items()}
        total = self.total[rows]
        data = np.empty(int(total.sum()), dtype=np.uint8)
        columns = (
            total,
            body_crcs(bodies, body_ends[ends]),
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
) -> Prepared:
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
    born_v6, store_v6 = born_host.rows_v6(), store_host.rows_v6()
    if (born_v6 | store_v6).any() and not dialect.has("ipv6_hosts"):
        row = int(np.argmax(born_v6 | store_v6))
        raise invalid(row, f"release {dialect} cannot store an IPv6 host")
    flags = numbers["sysFlag"] & ~_V6_BITS
    flags |= np.where(born_v6, np.int32(SysFlag.BORN_HOST_V6), np.int32(0))
    flags |= np.where(store_v6, np.int32(SysFlag.STORE_HOST_V6), np.int32(0))
    numbers["sysFlag"] = flags
    fields = [_topic_field(topic) for topic in topics]
    body = columns["body"]
    of_topics = np.array([len(field) for field in fields], dtype=np.int64)[topic_code]
    parts = (lengths(body), of_topics, lengths(properties))
    v6_extra = (born_v6.astype(np.int64) + store_v6) * V6_EXTRA
    prepared = Prepared(
        topics,
        topic_code,
        _number(columns, "queueId", np.int32, len(batch)),
        body,
        fields,
        properties,
        numbers,
        born_host,
        store_host,
        MIN_RECORD_SIZE - 1 + v6_extra + parts[0] + parts[1] + parts[2],
        bool(config.enabledAppendPropCRC and dialect.has("record_crc")),
        copied,
    )
    sizes = {
        "body": parts[0],
        "properties": parts[2],
        "record": prepared.total,
        "room": prepared.total,
    }
    check_sizes(sizes, config, dialect, copied=copied)
    if not copied:
        _refuse_negative(prepared.queue_id, "queueId")
        _refuse_negative(prepared.store_timestamp, "storeTimestamp")
    return prepared


def _refuse_negative(values: npt.NDArray[Any], name: str) -> None:
    negative = np.flatnonzero(values < 0)
    if len(negative):
        raise invalid(int(negative[0]), f"{name} is below 0")


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
        if batch.column(name).null_count:
            row = int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
            raise invalid(row, f"{name} is null")
    kinds = {"topic": pa.string(), "body": pa.binary(), "queueId": pa.int32()}
    columns = {name: batch.column(name) for name in batch.schema.names}
    given = columns.get("properties")
    if given is not None and pa.types.is_null(given.type):
        del columns["properties"]
    elif given is not None and not pa.types.is_map(given.type):
        raise InvalidMessageError(
            reason="column properties has the wrong type", expected=PROPERTIES, actual=given.type
        )
    for name, kind in kinds.items():
        if columns[name].type != kind:
            columns[name] = cast_to(columns[name], kind, name)
    return columns


def _topics(
    column: pa.Array, dialect: Dialect, config: StoreConfig, copied: bool
) -> tuple[list[str], npt.NDArray[np.int64]]:
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    names: list[str] = encoded.dictionary.to_pylist()
    for code, name in enumerate(names):
        fault = topic_fault(name, dialect, config, copied=copied)
        if fault is not None:
            raise invalid(int(np.argmax(codes == code)), fault)
    return names, codes


def _topic_field(topic: str) -> bytes:
    """Length and topic as they are stored in the record."""
    raw = encode_utf8(topic)
    width = 2 if needs_v2(topic) else 1
    return len(raw).to_bytes(width, "big") + raw


def _number(columns: dict[str, pa.Array], name: str, kind: Any, count: int) -> npt.NDArray[Any]:
    column = columns.get(name)
    if column is None:
        return np.zeros(count, dtype=kind)
    if column.null_count:
        raise invalid(
            int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))), f"{name} is null"
        )
    if pa.types.is_timestamp(column.type):
        column = cast_to(column, pa.timestamp("ms", tz=column.type.tz), name).view(pa.int64())
    numbers = cast_to(column, pa.from_numpy_dtype(kind), name)
    values: npt.NDArray[Any] = numbers.to_numpy(zero_copy_only=False)
    return values


def _hosts(columns: dict[str, pa.Array], name: str, count: int, default: str) -> Hosts:
    """The host of each message; nulls become the default host."""
    names, codes = [default], np.zeros(count, dtype=np.int32)
    if name in columns:
        texts = cast_to(columns[name], pa.string(), name).fill_null(default).dictionary_encode()
        names, codes = texts.dictionary.to_pylist(), texts.indices.to_numpy()
    table = np.zeros((max(1, len(names)), HOST_V6_SIZE), dtype=np.uint8)
    is_v6 = np.zeros(len(table), dtype=bool)
    for code, text in enumerate(names):
        try:
            raw = parse_host(text)
        except (ValueError, OverflowError) as error:
            raise invalid(
                int(np.argmax(codes == code)), f"{name} is not ip:port or [ip]:port", actual=text
            ) from error
        table[code, : len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        is_v6[code] = len(raw) == HOST_V6_SIZE
    return Hosts(table, is_v6, codes)


def body_crcs(raw: Bytes, ends: npt.NDArray[np.int32]) -> Ints:
    """bodyCRC of every body raw[ends[i]:ends[i + 1]]."""
    starts = ends[:-1].astype(np.int64)
    return crc32_of_slices(raw, starts, np.diff(ends).astype(np.int64)) & CRC_MASK
