"""Constants, structures, and folder and file names of the store's format; no I/O.

All integers on disk are big-endian. `docs/format.md` describes the same layout in words. Comments
name the broker class that defines each structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt

# --- folders and files (StorePathConfigHelper, BrokerPathConfigHelper) -----------------------------
COMMITLOG_DIR: Final = "commitlog"
CONSUMEQUEUE_DIR: Final = "consumequeue"
BATCH_CONSUMEQUEUE_DIR: Final = "batchconsumequeue"
COMPACTION_DIR: Final = "compaction"
COMPACTION_LOG_DIR: Final = "compaction/compactionLog"
COMPACTION_QUEUE_DIR: Final = "compaction/compactionCq"
CONSUMEQUEUE_EXT_DIR: Final = "consumequeue_ext"
INDEX_DIR: Final = "index"
CONSUMEQUEUE_ROCKSDB_DIR: Final = "consumequeue_rocksdb"
ROCKSDB_STORE_DIR: Final = "rocksdbstore"  # since 5.4.0 in every store
TIMER_LOG: Final = "timerlog"
TIMER_CHECK: Final = "timercheck"
TIMER_WHEEL: Final = "timerwheel"
TIMER_WHEEL_SIZE: Final = 38_707_200  # of all slots (TimerWheel)
CONFIG_DIR: Final = "config"
CHECKPOINT_FILE: Final = "checkpoint"
ABORT_FILE: Final = "abort"
ABORT_BACKUP_FILE: Final = "abort.bak"  # empty; every 5.x leaves it
LOCK_FILE: Final = "lock"
LOCK_CONTENT: Final = b"lock"
OF_A_ROOT: Final = frozenset(
    (
        *(COMMITLOG_DIR, CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR, INDEX_DIR),
        *(COMPACTION_DIR, CONSUMEQUEUE_ROCKSDB_DIR, ROCKSDB_STORE_DIR, CONFIG_DIR, CHECKPOINT_FILE),
        *(ABORT_FILE, ABORT_BACKUP_FILE, LOCK_FILE, TIMER_LOG, TIMER_CHECK, TIMER_WHEEL),
        *("kvStore", "transaction"),
    )
)
"""What brokers and this package keep in the root of a store; the log may have another folder."""
SEGMENT_NAME_DIGITS: Final = 20  # UtilAll#offset2FileName
INDEX_NAME_DIGITS: Final = 17  # yyyyMMddHHmmssSSS, the broker's time zone

# --- CommitLog records (MessageExtEncoder, CommitLog#checkMessageAndReturnSize) --------------------
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB  # topic length in two bytes
MAGIC_BLANK: Final = 0xCBD43194

# The fixed head of a record with two IPv4 hosts. An IPv6 host moves the fields after it
# by V6_EXTRA; the fields up to bornTimestamp never move.
RECORD_HEAD: Final = np.dtype(
    [
        ("total_size", ">i4"),  # whole record, bytes, this field included
        ("magic", ">u4"),
        ("body_crc", ">i4"),  # crc32 of the stored body, bit 31 dropped; 0 without a body
        ("queue_id", ">i4"),
        ("flag", ">i4"),  # the application's
        ("queue_offset", ">i8"),  # the broker's counter at the time of writing
        ("physical_offset", ">i8"),  # the record's own CommitLog offset, bytes
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),  # ms, the producer's clock
        ("born_ip", "V4"),
        ("born_port", ">i4"),
        ("store_timestamp", ">i8"),  # ms, the broker's clock
        ("store_ip", "V4"),
        ("store_port", ">i4"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),  # log offset of a commit's half message, else 0
        ("body_length", ">i4"),
    ]
)
HEAD_SIZE: Final = RECORD_HEAD.itemsize
assert HEAD_SIZE == 88
V6_EXTRA: Final = 12
BORN_HOST_AT: Final = 48  # position of bornHost; fields before it are fixed
HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
PROPERTIES_LENGTH_SIZE: Final = 2
MAX_PROPERTIES_LENGTH: Final = 32767
MAX_TOPIC_LENGTH_V1: Final = 127  # characters; longer topics need V2
MAX_TOPIC_LENGTH: Final = 255  # bytes
MIN_RECORD_SIZE: Final = HEAD_SIZE + 1 + PROPERTIES_LENGTH_SIZE

# The blank record at the end of a full file: 8 bytes; the bytes after them are unspecified.
BLANK_HEAD: Final = np.dtype([("size", ">i4"), ("magic", ">u4")])
BLANK_SIZE: Final = BLANK_HEAD.itemsize

# The head of one message in the body of an inner batch (MessageDecoder#encodeMessage).
MEMBER_HEAD: Final = np.dtype(
    [
        ("total_size", ">i4"),  # whole member, bytes, this field included
        ("magic", ">i4"),  # 0
        ("body_crc", ">i4"),  # 0
        ("flag", ">i4"),  # the application's
        ("body_length", ">i4"),
    ]
)

CRC_MASK: Final = 0x7FFFFFFF
NAME_VALUE_SEPARATOR: Final = 0x01
PROPERTY_SEPARATOR: Final = 0x02

# The record CRC: the last 20 bytes of the properties (MessageDecoder#createCrc32).
CRC_PROPERTY: Final = "__CRC32#"
CRC_DIGITS: Final = 10
CRC_ITEM_SIZE: Final = len(CRC_PROPERTY) + 1 + CRC_DIGITS + 1


class Property:
    """Names of the properties that the store itself reads (MessageConst)."""

    KEYS: Final = "KEYS"
    TAGS: Final = "TAGS"
    UNIQ_KEY: Final = "UNIQ_KEY"
    DELAY: Final = "DELAY"
    INNER_NUM: Final = "INNER_NUM"
    INNER_BASE: Final = "INNER_BASE"
    INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"


KEY_SEPARATOR: Final = " "
TAG_SEPARATOR: Final = "||"
MULTI_DISPATCH_SEPARATOR: Final = ","

# --- IndexFile (IndexHeader, IndexFile) ------------------------------------------------------------
INDEX_HEADER: Final = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_log_offset", ">i8"),
        ("end_log_offset", ">i8"),
        ("hash_slot_count", ">i4"),  # slots in use; before 4.7.1 the number of items
        ("index_count", ">i4"),  # number of the next item (items + 1)
    ]
)
INDEX_SLOT: Final = np.dtype(">i4")
INDEX_ITEM: Final = np.dtype(
    [
        ("key_hash", ">i4"),
        ("log_offset", ">i8"),
        ("time_diff", ">i4"),  # whole seconds since begin_timestamp
        ("previous", ">i4"),  # number of the next older item in the slot, 0 if none
    ]
)
INDEX_TAG_TYPE: Final = "T"  # items of TAGS: topic#T#tags

# --- checkpoint (StoreCheckpoint) ------------------------------------------------------------------
CHECKPOINT: Final = np.dtype(
    [
        ("physic_msg_timestamp", ">i8"),
        ("logics_msg_timestamp", ">i8"),
        ("index_msg_timestamp", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirm_phy_offset", ">i8"),
        ("logics_physical_offset", ">i8"),  # from 5.5.0 on
    ]
)
CHECKPOINT_FILE_SIZE: Final = 4096
CHECKPOINT_SIZE_BEFORE_48: Final = 40  # bytes in use before 5.5.0

# --- defaults of the broker (MessageStoreConfig) ---------------------------------------------------
DEFAULT_COMMITLOG_FILE_SIZE: Final = 1 << 30
DEFAULT_MAX_HASH_SLOTS: Final = 5_000_000
DEFAULT_MAX_INDEX_ITEMS: Final = 20_000_000
DEFAULT_MAX_MESSAGE_SIZE: Final = 4 << 20
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def segment_name(offset: int) -> str:
    """The file name of a segment that starts at byte `offset` of its stream."""
    return f"{offset:0{SEGMENT_NAME_DIGITS}d}"


is_index_name = re.compile(rf"[0-9]{{{INDEX_NAME_DIGITS}}}").fullmatch
is_segment_name = re.compile(rf"[0-9]{{{SEGMENT_NAME_DIGITS}}}").fullmatch
"""Whether a file name is that of a segment."""


def index_item_at(slots: int, number: int) -> int:
    """Byte position of item `number` in an index file with `slots` hash slots."""
    return INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize + number * INDEX_ITEM.itemsize


Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

Some = TypeVar("Some", bound="Columns")


def in_portions(sizes: Ints, most: int) -> Iterator[slice]:
    """Slices of rows of these sizes, of at most so many bytes each; a larger row is one by itself."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


class Columns:
    """n rows: a dataclass whose fields are arrays of n, and names that arrays number."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]
    numbered: ClassVar[tuple[str, str] | None] = None
    """The field that holds names, and the array with the place of each row's name among them."""

    def columns(self) -> list[Any]:
        """The values of the fields, in their order."""
        return [getattr(self, name) for name in self.__match_args__]

    def take(self: Some, rows: Any) -> Some:
        """Some of the rows: a mask, an index array or a slice."""
        return type(self)(
            *[value[rows] if isinstance(value, np.ndarray) else value for value in self.columns()]
        )

    def extended(self, kind: type[Some], **more: Any) -> Some:
        """The same rows with more fields, as a `kind` that has them after these."""
        return kind(*self.columns(), **more)

    @classmethod
    def of(cls: type[Some], wider: Any) -> Some:
        """The rows of something that has these fields too."""
        return cls(*(getattr(wider, name) for name in cls.__match_args__))

    @classmethod
    def none(cls: type[Some]) -> Some:
        """No rows, of fields that are all int64."""
        assert cls.numbered is None
        return cls(*(np.zeros(0, dtype=np.int64) for _ in cls.__match_args__))

    @classmethod
    def concat(cls: type[Some], parts: Sequence[Any]) -> Some:
        """The rows of parts that have these fields, behind each other; without parts as `none`."""
        if not parts:
            return cls.none()
        if len(parts) == 1 and type(parts[0]) is cls:
            only: Some = parts[0]
            return only
        names, numbers = cls.numbered or ("", "")
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in cls.__match_args__
            if name not in (names, numbers)
        }
        if cls.numbered:
            given = [(getattr(part, names), getattr(part, numbers)) for part in parts]
            queues, joined[numbers] = _renumbered(given)
            joined[names] = type(given[0][0])(queues)
        return cls(**joined)


def _renumbered(parts: Sequence[tuple[Sequence[Any], Ints]]) -> tuple[list[Any], Ints]:
    """The distinct names of all parts, and the place among them of each row's name."""
    number: dict[Any, int] = {}
    codes = []
    for names, code in parts:
        places = [number.setdefault(name, len(number)) for name in names]
        codes.append(np.array(places, dtype=np.int64)[code])
    return list(number), np.concatenate(codes)
