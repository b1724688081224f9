"""The message columns: name, type, nullability and meaning, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.errors import InvalidArgumentError, nearest

TIMESTAMP = pa.timestamp("ms", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
_FROM_QUEUE = frozenset(
    ("brokerName", "topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode")
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a message: its name, type and meaning."""

    name: str
    type: pa.DataType
    nullable: bool
    meaning: str
    on_request: bool = False  # included only if requested by name

    @property
    def field(self) -> pa.Field:
        """The column as a field of an Arrow schema."""
        return pa.field(self.name, self.type, nullable=self.nullable)


COLUMNS: tuple[Column, ...] = (
    Column("brokerName", pa.string(), False, "the broker's name: as given, else the folder's name"),
    Column("topic", pa.string(), False, "topic of the queue"),
    Column("queueId", pa.int32(), False, "number of the queue"),
    Column("queueOffset", pa.int64(), True, "position in the queue; null where no queue lists it"),
    Column("commitLogOffset", pa.int64(), False, "place of the record in the CommitLog, bytes"),
    Column("storeSize", pa.int32(), False, "size of the whole record, bytes"),
    Column("tags", pa.string(), True, "property TAGS"),
    Column("keys", pa.string(), True, "property KEYS as stored: words separated by spaces"),
    Column("uniqKey", pa.string(), True, "property UNIQ_KEY: the id set by the producer"),
    Column("msgId", pa.string(), False, "offsetMsgId: store host and CommitLog offset in hex"),
    Column("flag", pa.int32(), False, "the application's flag"),
    Column(
        "sysFlag", pa.int32(), False, "bits as stored: compression, transaction, inner batch, IPv6"
    ),
    Column("bornTimestamp", TIMESTAMP, False, "when the producer created it, by its clock"),
    Column("bornHost", pa.string(), False, "ip:port of the producer"),
    Column("storeTimestamp", TIMESTAMP, False, "when the broker stored it, by its clock"),
    Column("storeHost", pa.string(), False, "ip:port of the broker that stored it"),
    Column("reconsumeTimes", pa.int32(), False, "how often a consumer sent it back"),
    Column(
        "preparedTransactionOffset", pa.int64(), False, "CommitLog offset of the half message, or 0"
    ),
    Column("bodyCrc", pa.int32(), False, "CRC-32 of the body as stored, bit 31 dropped"),
    Column("body", pa.binary(), False, "body, decompressed; may be empty"),
    Column("properties", PROPERTIES, False, "all properties, by the broker's decoding rule"),
    Column("rawBody", pa.binary(), False, "body as stored, possibly compressed", True),
    Column("rawProperties", pa.binary(), False, "all properties as stored", True),
    Column(
        "tagsCode",
        pa.int64(),
        True,
        "tagsCode of the queue entry: hash of TAGS; of a delayed message its time",
        True,
    ),
    Column(
        "recordQueueOffset",
        pa.int64(),
        True,
        "queueOffset in the record, if another than the position; else null",
        True,
    ),
    Column("corruptRecord", pa.string(), True, "position and reason of damage; else null", True),
)
ENCODED = ("brokerName", "topic")
"""Columns with few values, which an engine that groups by them takes as dictionaries in less time."""
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
FIELDS = {
    "queueId": "queue_id",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
}
"""Columns of numbers that a record has itself, and their fields in Record, Headers and Message."""
BY_NAME = {column.name: column for column in COLUMNS}
DEFAULT_NAMES: tuple[str, ...] = tuple(c.name for c in COLUMNS if not c.on_request)


def column_names(columns: Sequence[str] | None = None) -> tuple[str, ...]:
    """`columns` in the given order, validated; by default all columns except those on request.

    Raises InvalidArgumentError for an unknown name (with the nearest known one) or a repeated one.
    """
    if columns is None:
        return DEFAULT_NAMES
    for name in columns:
        if name not in BY_NAME:
            raise InvalidArgumentError(
                reason=f"unknown column {name!r}", advice=nearest(name, BY_NAME)
            )
    if len(set(columns)) != len(columns):
        raise InvalidArgumentError(reason=f"a column is named twice: {list(columns)}")
    return tuple(columns)


def arrow_schema(columns: Sequence[str] | None = None, *, encoded: bool = False) -> pa.Schema:
    """The Arrow schema of `columns`, by default of the default columns.

    `encoded`: those of ENCODED are dictionaries.
    """
    fields = [BY_NAME[name].field for name in column_names(columns)]
    return pa.schema(
        [one.with_type(DICTIONARY) if encoded and one.name in ENCODED else one for one in fields]
    )


def needs_log(columns: Sequence[str]) -> bool:
    """Whether any of `columns` is stored in the CommitLog and not in the ConsumeQueue."""
    return not _FROM_QUEUE.issuperset(columns)
