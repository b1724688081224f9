"""One record: its values, what stands in its place, and why bytes are no record.

`commitlog.headers` has the fields of many records as columns, from the same loop.
"""

from __future__ import annotations

import codecs
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final, NoReturn

import numpy as np

from rmq_store.errors import CorruptRecordError, LogOffset
from rmq_store.format.byte_layout import (
    BLANK_SIZE,
    BORN_HOST_AT,
    CRC_DIGITS,
    CRC_ITEM_SIZE,
    CRC_MASK,
    CRC_PROPERTY,
    HEAD_SIZE,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    MULTI_DISPATCH_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    V6_EXTRA,
    Property,
)
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import body_crc, crc32
from rmq_store.loops import checksums, record_fields

_SURROGATE_LEAD = 0xED
_NAME_VALUE = chr(NAME_VALUE_SEPARATOR)
_ITEM_END = chr(PROPERTY_SEPARATOR)
_V4_MAPPED = bytes(10) + b"\xff\xff"


def _replace_like_java(error: UnicodeError) -> tuple[str, int]:
    """One U+FFFD for each malformed sequence, as `java.lang.String` decodes it.

    Python and Java both replace a maximal invalid prefix once. They differ only for encoded
    surrogates: Java replaces the three bytes ED A0..BF xx once, Python three times.
    """
    assert isinstance(error, UnicodeDecodeError)
    raw, start = error.object, error.start
    if (
        raw[start] != _SURROGATE_LEAD
        or not 0xA0 <= int.from_bytes(raw[start + 1 : start + 2], "big") < 0xC0
    ):
        return "\ufffd", error.end
    third_follows = start + 2 < len(raw) and raw[start + 2] & 0xC0 == 0x80
    return "\ufffd", start + (3 if third_follows else 2)


codecs.register_error("rmq_store.java", _replace_like_java)


def decode_utf8(raw: bytes) -> str:
    """`new String(raw, UTF_8)`: never fails; malformed sequences become U+FFFD."""
    return raw.decode("utf-8", "rmq_store.java")


def encode_utf8(text: str) -> bytes:
    """`text.getBytes(UTF_8)`: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace")


def is_dispatched_to(properties: Mapping[str, str], topic: str) -> bool:
    """Whether a record says that a queue of another topic lists it too (INNER_MULTI_DISPATCH)."""
    names = properties.get(Property.INNER_MULTI_DISPATCH, "")
    return topic in names.split(MULTI_DISPATCH_SEPARATOR)


def decode_properties(raw: bytes) -> dict[str, str]:
    """Properties by the broker's rule (MessageDecoder#string2messageProperties).

    An item ends at 0x02 or at the end of the string. The first 0x01 of an item separates name and
    value. Items with an empty name or an empty value are skipped. If a name is repeated, its last
    value is used.
    """
    properties: dict[str, str] = {}
    for item in decode_utf8(raw).split(_ITEM_END):
        at = item.find(_NAME_VALUE)
        if 0 < at < len(item) - 1:
            properties[item[:at]] = item[at + 1 :]
    return properties


def format_host(raw: bytes) -> str:
    """`ip:port` or `[ip]:port` of a stored host, with the address as Java prints it."""
    ip, port = raw[:-4], int.from_bytes(raw[-4:], "big", signed=True)
    if len(raw) == HOST_V4_SIZE:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    if ip.startswith(_V4_MAPPED):  # java.net reads it as the IPv4 address inside
        return f"{ip[12]}.{ip[13]}.{ip[14]}.{ip[15]}:{port}"
    groups = (format(int.from_bytes(ip[at : at + 2], "big"), "x") for at in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"


@lru_cache(maxsize=1024)
def parse_host(text: str) -> bytes:
    """The stored bytes of `ip:port` or `[ip]:port`: 8 bytes with IPv4, 20 with IPv6.

    Raises ValueError if the text has neither form.
    """
    address, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} is not ip:port")
    ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    return ip.packed + int(port).to_bytes(4, "big", signed=True)


def message_id(store_host: bytes, log_offset: int) -> str:
    """offsetMsgId (MessageDecoder#createMessageId): 32 hex digits with an IPv4 storeHost, 56 with IPv6."""
    return (store_host + log_offset.to_bytes(8, "big", signed=True)).hex().upper()


def log_offset_of_id(message_id: str) -> int | None:
    """The log offset in an offsetMsgId of 32 or 56 hex digits; None for another form."""
    if len(message_id) not in (2 * HOST_V4_SIZE + 16, 2 * HOST_V6_SIZE + 16):
        return None
    try:
        return int.from_bytes(bytes.fromhex(message_id)[-8:], "big", signed=True)
    except ValueError:
        return None


def log_offsets_of_ids(message_ids: Iterable[str]) -> frozenset[int] | None:
    """The log offsets in offsetMsgIds; None if one is of another form."""
    offsets = list(map(log_offset_of_id, message_ids))
    return (
        None if None in offsets else frozenset(offset for offset in offsets if offset is not None)
    )


class Gap(Enum):
    """Why no record of this log starts at a place."""

    FILLER = "filler to the end of the file"
    UNWRITTEN = "preallocated zeros"
    TORN = "the writer stopped inside a record"
    GHOST = "a whole record whose physicalOffset is another place"
    STALE = "left from before the log was cut here"
    DAMAGED = "not a record, although records follow"
    MISSING = "no file holds this range"


NO_RECORD = "no valid record in the CommitLog: "
"""How the reason of an error begins; what is wrong follows."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as stored: body and properties not decoded, hosts as ip and port bytes."""

    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: bytes
    properties: bytes
    magic: int = MAGIC_V1
    body_crc: int | None = None  # None: computed when the record is encoded

    @property
    def total_size(self) -> int:
        """Bytes of the whole record."""
        return (
            MIN_RECORD_SIZE
            + (len(self.born_host) - HOST_V4_SIZE)
            + (len(self.store_host) - HOST_V4_SIZE)
            + len(self.body)
            + (1 if self.magic == MAGIC_V2 else 0)
            + len(self.topic)
            + len(self.properties)
        )


def host_size(sys_flag: int, v6_bit: int) -> int:
    """Bytes of a host field: the address, and a port of four bytes."""
    return HOST_V6_SIZE if sys_flag & v6_bit else HOST_V4_SIZE


def decode_record(
    buffer: bytes | memoryview,
    at: int,
    log_offset: int,
    path: str | None = None,
    *,
    copied: bool = False,
) -> Record | Gap:
    """The record at `buffer[at:]`, or the gap there; `log_offset` is its place in the log.

    `buffer` ends at the end of the file. Checks everything: the magic, the sum of all lengths, the last
    byte, the body CRC, the record CRC, and that physicalOffset equals `log_offset` (else Gap.GHOST). Raises
    CorruptRecordError if the bytes are not a record. Only the caller, who knows what follows, can
    decide whether that is a torn tail or damage. Source: CommitLog#checkMessageAndReturnSize.

    `copied`: the record CRC is not checked, since it was computed with another physicalOffset.
    """
    remaining = len(buffer) - at
    if remaining < BLANK_SIZE:
        if any(buffer[at:]):
            _fail(path, log_offset, "end of file", None, None)
        return Gap.FILLER
    total = int.from_bytes(buffer[at : at + 4], "big", signed=True)
    magic = int.from_bytes(buffer[at + 4 : at + 8], "big")
    if magic == MAGIC_BLANK:
        return Gap.FILLER
    if magic == 0 and total == 0:
        return Gap.UNWRITTEN
    if magic not in (MAGIC_V1, MAGIC_V2):
        _fail(path, log_offset, "magic", f"{MAGIC_V1:#x} or {MAGIC_V2:#x}", f"{magic:#x}")
    if not MIN_RECORD_SIZE <= total <= remaining:
        how = "leads beyond the file" if total > remaining else "is less than any record has"
        what = f"total size {total} {how}"
        _fail(path, log_offset, what, f"{MIN_RECORD_SIZE} to {remaining}", total)
    record = _split(bytes(buffer[at : at + total]), magic, log_offset, path)
    _check_crcs(bytes(buffer[at : at + total]), record, log_offset, path, copied)
    return record if record.physical_offset == log_offset else Gap.GHOST


def _fail(path: str | None, at: int, what: str, expected: object, actual: object) -> NoReturn:
    raise CorruptRecordError(
        path,
        offset=LogOffset(at),
        reason=NO_RECORD + what,
        expected=expected,
        actual=actual,
        advice="Records after the offset are still readable; rmqstore verify lists the damaged ranges",
    )


def _split(raw: bytes, magic: int, log_offset: int, path: str | None) -> Record:
    """The fields of one whole record. Checks that their lengths add up to its size."""
    longs = np.empty((len(record_fields.LONG_FIELDS), 1), dtype=np.int64)
    ints = np.empty((len(record_fields.INT_FIELDS), 1), dtype=np.int32)
    start = np.zeros(1, dtype=np.int64)
    record_fields.split(memoryview(raw), log_offset, start.data, longs.data, ints.data)
    fields = dict(zip(record_fields.LONG_FIELDS, longs[:, 0].tolist(), strict=True))
    fields |= zip(record_fields.INT_FIELDS, ints[:, 0].tolist(), strict=True)
    fault = record_fields.FAULTS[fields["fault"]]
    if fault not in ("intact", "elsewhere"):
        _refuse(fault, fields, path, log_offset)
    sys_flag = fields["sys_flag"]
    born_end = BORN_HOST_AT + host_size(sys_flag, SysFlag.BORN_HOST_V6)
    store_at = born_end + _STORE_TIMESTAMP_SIZE
    body, topic, properties = (
        raw[fields[f"{name}_at"] : fields[f"{name}_at"] + fields[f"{name}_length"]]
        for name in _FIELDS
    )
    return Record(
        queue_id=fields["queue_id"],
        flag=fields["flag"],
        queue_offset=fields["queue_offset"],
        physical_offset=fields["physical_offset"],
        sys_flag=sys_flag,
        born_timestamp=fields["born_timestamp"],
        born_host=raw[BORN_HOST_AT:born_end],
        store_timestamp=fields["store_timestamp"],
        store_host=raw[store_at : store_at + host_size(sys_flag, SysFlag.STORE_HOST_V6)],
        reconsume_times=fields["reconsume_times"],
        prepared_transaction_offset=fields["prepared_transaction_offset"],
        body=body,
        topic=topic,
        properties=properties,
        magic=magic,
        body_crc=fields["body_crc"],
    )


_FIELDS = ("body", "topic", "properties")
_STORE_TIMESTAMP_SIZE = 8  # between the hosts


def _refuse(fault: str, fields: Mapping[str, int], path: str | None, log_offset: int) -> NoReturn:
    """Raise CorruptRecordError for what the loop refused a record for."""
    size = fields["total"]
    if fault == "unwritten":
        what = "a part of its topic or of its properties was not written"
        _fail(path, log_offset, what, "text", "zeros")
    if fault == "head":
        hosts = (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6)
        head = HEAD_SIZE + sum(V6_EXTRA for host in hosts if fields["sys_flag"] & host)
        what = f"total size {size} ends inside of its head"
        _fail(path, log_offset, what, f"{head} or more", size)
    before = _FIELDS[: _FIELDS.index(fault)] if fault in _FIELDS else _FIELDS
    lengths = ", ".join(f"{name} length {fields[f'{name}_length']}" for name in before)
    if fault == "sum":
        what = f"total size {size} is not the sum of its fields, with {lengths}: total size"
        _fail(path, log_offset, what, fields["properties_at"] + fields["properties_length"], size)
    behind = f", behind {lengths}" if lengths else ""
    length, room = fields[f"{fault}_length"], size - fields[f"{fault}_at"]
    if room < 0:
        what = f"total size {size} ends inside of its {fault} length{behind}"
        _fail(path, log_offset, what, size - room, size)
    how = "is below 0" if length < 0 else "leads beyond the record"
    what = f"{fault} length {length} {how} of total size {size}{behind}"
    _fail(path, log_offset, what, f"0 to {room}", length)


def _check_crcs(
    raw: bytes, record: Record, log_offset: int, path: str | None, copied: bool
) -> None:
    if record.body and body_crc(record.body) != record.body_crc:
        _fail(path, log_offset, "bodyCRC", record.body_crc, body_crc(record.body))
    stored = None if copied else record_crc_of(record.properties)
    if stored is not None and record.physical_offset == log_offset:
        computed = crc32(raw[:-CRC_ITEM_SIZE]) & CRC_MASK
        if stored != computed:
            _fail(path, log_offset, CRC_PROPERTY, stored, computed)


def crc_item(value: int) -> bytes:
    """The record CRC as a property item: ten digits, least significant first."""
    digits = f"{value:0{CRC_DIGITS}d}"[::-1]
    return f"{CRC_PROPERTY}{_NAME_VALUE}{digits}{_ITEM_END}".encode()


def record_crc_of(properties: bytes) -> int | None:
    """The record CRC at the end of the properties, or None (MessageDecoder#createCrc32)."""
    places = np.array([0, len(properties), 0], dtype=np.int64).data
    if not checksums.stored_in_records(memoryview(properties), places[:1], places[1:2], places[2:]):
        return None
    return int(places[2])


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer sees it; its fields are the columns of `rmq_store.arrow.column_definitions`.

    Timestamps are milliseconds since the epoch, UTC. `queue_offset` is the position in the queue.
    `body` is decompressed; `raw_body`, `raw_properties`, `body_crc` and `store_size` describe the
    stored bytes.
    """

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int | None
    commit_log_offset: int
    store_size: int
    tags: str | None
    keys: str | None
    uniq_key: str | None
    msg_id: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes = field(repr=False)
    properties: dict[str, str] = field(default_factory=dict)
    raw_body: bytes = field(default=b"", repr=False)
    raw_properties: bytes = field(default=b"", repr=False)
    tags_code: int | None = None
    record_queue_offset: int | None = None
    corrupt_record: str | None = None


def to_message(
    record: Record,
    *,
    broker_name: str,
    body: bytes,
    topic: str | None = None,
    queue_id: int | None = None,
    queue_offset: int | None = None,
    tags_code: int | None = None,
) -> Message:
    """The message in a record. topic, queueId and queueOffset default to the record's own values."""
    properties = decode_properties(record.properties)
    assert record.body_crc is not None
    return Message(
        broker_name=broker_name,
        topic=decode_utf8(record.topic) if topic is None else topic,
        queue_id=record.queue_id if queue_id is None else queue_id,
        queue_offset=queue_offset,
        commit_log_offset=record.physical_offset,
        store_size=record.total_size,
        tags=properties.get(Property.TAGS),
        keys=properties.get(Property.KEYS),
        uniq_key=properties.get(Property.UNIQ_KEY),
        msg_id=message_id(record.store_host, record.physical_offset),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=format_host(record.born_host),
        store_timestamp=record.store_timestamp,
        store_host=format_host(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        body=body,
        properties=properties,
        raw_body=record.body,
        raw_properties=record.properties,
        tags_code=tags_code,
        record_queue_offset=None if record.queue_offset == queue_offset else record.queue_offset,
    )


# DLedgerEntryType. Only a normal entry has a body; the others are of the members alone.
NORMAL: Final = 1
NO_OPERATION: Final = 2
CONFIG_CHANGE: Final = 3
BLANK: Final = -1
"""In place of the magic: nothing, up to the end of the file or to the log's first entry (MmapFileList)."""

ENTRY_HEAD: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),  # whole entry, bytes, this head included
        ("index", ">i8"),  # one more than that of the entry before
        ("term", ">i8"),  # of the leader that wrote it; never descends
        ("pos", ">i8"),  # the entry's own place in the log
        ("channel", ">i4"),  # 0: no release uses these three
        ("chain_crc", ">i4"),
        ("body_crc", ">i4"),
        ("body_length", ">i4"),
    ]
)
ENTRY_HEAD_SIZE: Final = ENTRY_HEAD.itemsize
BLANK_ENTRY_SIZE: Final = 8  # magic and size

INDEX_UNIT: Final = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
"""One entry in the index of a DLedger log, at 32 bytes times its index."""


@dataclass(frozen=True, slots=True)
class DLedgerEntryHead:
    """The head of an entry, as stored."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    body_length: int

    @classmethod
    def of(cls, raw: bytes) -> DLedgerEntryHead:
        """The head in the first bytes of `raw`; what is missing counts as zeros."""
        head = np.frombuffer(raw[:ENTRY_HEAD_SIZE].ljust(ENTRY_HEAD_SIZE, b"\0"), ENTRY_HEAD)[0]
        return cls(*(int(head[name]) for name in cls.__slots__))

    def is_blank(self, room: int) -> bool:
        """Whether it is a blank of a possible size; `room`: the bytes up to the end of the file."""
        return self.magic == BLANK and BLANK_ENTRY_SIZE <= self.size <= room

    def fault_at(self, place: int) -> tuple[str, object, object] | None:
        """The first field that is not right for an entry at a log offset: its name, what was expected
        and found; None if all are."""
        if self.magic not in (NORMAL, NO_OPERATION, CONFIG_CHANGE):
            return "magic", "1, 2 or 3", self.magic
        if self.pos != place:
            return "pos", place, self.pos
        if self.body_length < 0 or self.size != ENTRY_HEAD_SIZE + self.body_length:
            return "size", ENTRY_HEAD_SIZE + self.body_length, self.size
        return None
