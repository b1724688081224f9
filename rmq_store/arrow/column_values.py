"""The fast path: many records of one window to an Arrow batch, without a Python loop per message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import BY_NAME, arrow_schema, column_names
from rmq_store.arrow.property_columns import PropertyColumns, decode_property_columns
from rmq_store.arrow.string_slices import as_java_reads, buffers, slices
from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import HOST_V6_SIZE
from rmq_store.format.properties import format_host

# Hex digits of every byte: two characters as one number in native byte order.
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), dtype=np.uint16)

_FROM_QUEUE = frozenset(
    ("brokerName", "topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "tagsCode")
)
_FROM_PROPERTIES = frozenset(("tags", "keys", "uniqKey", "properties"))


@dataclass(slots=True)
class Rows:
    """Facts about n records that are known before the log is read: int64 arrays of n.

    `topic_code` numbers the names in `topics`. `queue_offset` is the position in the queue, or -1
    if no queue lists the record.
    """

    topics: Sequence[str]
    topic_code: npt.NDArray[np.int32]
    queue_id: npt.NDArray[np.int32]
    queue_offset: Ints
    log_offset: Ints
    size: Ints
    tags_code: Ints
    _topics_of_rows: pa.Array | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.log_offset)

    def topics_of_rows(self) -> pa.Array:
        """The topic of each row, as strings; made once."""
        if self._topics_of_rows is None:
            if len(self.topics) == 1:
                self._topics_of_rows = _constant(self.topics[0], len(self))
            else:
                names = pa.array(list(self.topics), pa.string())
                self._topics_of_rows = names.take(pa.array(self.topic_code))
        return self._topics_of_rows

    def is_of(self, topics: Collection[str]) -> npt.NDArray[np.bool_]:
        """A mask of the rows of some topics."""
        codes = [code for code, topic in enumerate(self.topics) if topic in topics]
        return np.isin(self.topic_code, codes)

    def take(self, rows: Any) -> Rows:
        """Some of the rows: a mask, an index array or a slice."""
        return Rows(
            self.topics,
            self.topic_code[rows],
            self.queue_id[rows],
            self.queue_offset[rows],
            self.log_offset[rows],
            self.size[rows],
            self.tags_code[rows],
        )


def needs_log(columns: Sequence[str]) -> bool:
    """Whether any of `columns` is stored in the CommitLog and not in the ConsumeQueue."""
    return not _FROM_QUEUE.issuperset(columns)


class BatchBuilder:
    """Builds Arrow batches of one schema for one broker."""

    def __init__(
        self,
        broker_name: str,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.names = column_names(columns)
        self.schema = arrow_schema(self.names)
        self.broker_name = broker_name
        self._wants_properties = bool(_FROM_PROPERTIES.intersection(self.names))
        self._host_names: dict[int, str] = {}

    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        nothing = [pa.nulls(0, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(nothing, schema=self.schema)

    def build(
        self,
        rows: Rows,
        headers: Headers | None,
        properties: PropertyColumns | None = None,
        bodies: pa.Array | None = None,
    ) -> pa.RecordBatch:
        """The batch of `rows`; `headers` are those of the same records, None if no column needs them.

        All rows of `headers` must be valid. `properties` and `bodies`: those of the same records, if
        they are known; column `body` needs the opened bodies.
        """
        arrays: dict[str, pa.Array] = {} if bodies is None else {"body": bodies}
        if headers is not None and self._wants_properties:
            decoded = properties or self.properties(headers)
            arrays |= {
                "tags": decoded.tags,
                "keys": decoded.keys,
                "uniqKey": decoded.uniq_key,
                "properties": decoded.properties,
            }
        columns = [
            arrays[name] if name in arrays else _MAKERS[name](self, rows, headers)
            for name in self.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def properties(self, headers: Headers) -> PropertyColumns:
        """The property columns; includes the map only if it is a requested column."""
        return decode_property_columns(
            stored_properties(headers), with_map="properties" in self.names
        )

    def hosts(self, headers: Headers, which: str) -> pa.Array:
        """`ip:port` strings; the builder formats each distinct host once."""
        hosts = headers.hosts(which)
        if not headers.has_v6 and len(hosts) and (hosts == hosts[0]).all():
            return _constant(self._host_name(int(hosts[0])), len(hosts))
        packed = pa.array(hosts).dictionary_encode()
        names = [self._host_name(number) for number in packed.dictionary.to_pylist()]
        rows, at = headers.host_rows_v6(which) if headers.has_v6 else (_NO_ROWS, _NO_ROWS)
        codes = packed.indices
        if len(rows):
            with_v6 = codes.to_numpy().copy()
            with_v6[rows] = len(names) + np.arange(len(rows))
            window = headers.window
            names += [format_host(window[p : p + HOST_V6_SIZE].tobytes()) for p in at]
            codes = pa.array(with_v6)
        return pa.array(names, pa.string()).take(codes)

    def _host_name(self, packed: int) -> str:
        name = self._host_names.get(packed)
        if name is None:
            name = format_host(np.uint64(packed).tobytes())
            self._host_names[packed] = name
        return name


_NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


def stored_bodies(headers: Headers) -> pa.Array:
    """Bodies as stored."""
    return slices(headers.window, headers.body_at, headers.body_length, pa.binary())


def stored_properties(headers: Headers) -> pa.Array:
    """Property strings as stored."""
    return slices(headers.window, headers.properties_at, headers.properties_length, pa.binary())


def other_topic_rows(rows: Rows, headers: Headers) -> npt.NDArray[np.bool_]:
    """Mask of rows whose record names another topic or queue than the queue that lists it."""
    stored = slices(headers.window, headers.topic_at, headers.topic_length, pa.binary())
    wanted = rows.topics_of_rows().view(pa.binary())
    other_queue: npt.NDArray[np.bool_] = headers.field("queue_id", np.int32) != rows.queue_id
    if _same_buffers(stored, wanted):
        return other_queue
    same = pc.equal(stored, wanted).to_numpy(zero_copy_only=False)
    other_queue |= ~same
    return other_queue


def _same_buffers(left: pa.Array, right: pa.Array) -> bool:
    """Whether two binary arrays that start at 0 are equal; compares at memory speed."""
    (ends, raw), (other_ends, other_raw) = buffers(left), buffers(right)
    if not np.array_equal(ends, other_ends):
        return False
    size = int(ends[-1])
    return np.array_equal(raw[:size], other_raw[:size])


def stored_topics(headers: Headers) -> pa.Array:
    """The topics that the records name."""
    return as_java_reads(
        slices(headers.window, headers.topic_at, headers.topic_length, pa.binary())
    )


def message_ids(headers: Headers) -> pa.Array:
    """offsetMsgId: store host and log offset in upper-case hex."""
    count = len(headers)
    stored = (headers.hosts("store"), headers.physical_offset_bytes())
    words = np.stack(stored, axis=1).view(np.uint32)  # four of each row, in memory order
    digits = np.empty((count, words.shape[1], words.itemsize), dtype=_HEX.dtype)
    for place in range(words.shape[1]):
        word = words[:, place]
        # Mostly only the last half of the offset differs between the records of a batch.
        differs = count > 0 and (word != word[0]).any()
        digits[:, place] = _hex(np.ascontiguousarray(word if differs else word[:1]))
    ends = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    ids = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(digits)]
    )
    rows, at = headers.host_rows_v6("store") if headers.has_v6 else (_NO_ROWS, _NO_ROWS)
    if not len(rows):
        return ids
    offsets = headers.head["physical_offset"]
    window = headers.window
    long_ids = [
        (window[p : p + HOST_V6_SIZE].tobytes() + int(offsets[row]).to_bytes(8, "big"))
        .hex()
        .upper()
        for row, p in zip(rows, at, strict=True)
    ]
    choose = np.arange(count)
    choose[rows] = count + np.arange(len(rows))
    return pa.concat_arrays([ids, pa.array(long_ids, pa.string())]).take(pa.array(choose))


def _hex(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """The hex digits of n words in memory order, two characters per byte: shape (n, 4)."""
    return _HEX[words.view(np.uint8)].reshape(-1, words.itemsize)


_Maker = Callable[[BatchBuilder, Rows, Any], pa.Array]


def _number(column: str, field: str) -> _Maker:
    """A maker for a fixed-size number of the record."""
    kind = BY_NAME[column].type
    dtype = np.int64 if kind.bit_width == 64 else np.int32

    def make(builder: BatchBuilder, rows: Rows, headers: Headers) -> pa.Array:
        return pa.array(headers.field(field, dtype)).view(kind)

    return make


@lru_cache(maxsize=16)  # batches are mostly of one size
def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _queue_offsets(builder: BatchBuilder, rows: Rows, headers: Headers | None) -> pa.Array:
    unlisted = rows.queue_offset < 0
    return pa.array(rows.queue_offset, mask=unlisted if unlisted.any() else None)


def _record_queue_offsets(builder: BatchBuilder, rows: Rows, headers: Headers) -> pa.Array:
    written = headers.field("queue_offset", np.int64)
    return pa.array(written, mask=written == rows.queue_offset)


_MAKERS: dict[str, _Maker] = {
    "brokerName": lambda b, r, h: _constant(b.broker_name, len(r)),
    "topic": lambda b, r, h: r.topics_of_rows(),
    "queueId": lambda b, r, h: pa.array(r.queue_id),
    "queueOffset": _queue_offsets,
    "commitLogOffset": lambda b, r, h: pa.array(r.log_offset),
    "storeSize": lambda b, r, h: pa.array(r.size.astype(np.int32)),
    "msgId": lambda b, r, h: message_ids(h),
    "flag": _number("flag", "flag"),
    "sysFlag": _number("sysFlag", "sys_flag"),
    "bornTimestamp": _number("bornTimestamp", "born_timestamp"),
    "bornHost": lambda b, r, h: b.hosts(h, "born"),
    "storeTimestamp": _number("storeTimestamp", "store_timestamp"),
    "storeHost": lambda b, r, h: b.hosts(h, "store"),
    "reconsumeTimes": _number("reconsumeTimes", "reconsume_times"),
    "preparedTransactionOffset": _number(
        "preparedTransactionOffset", "prepared_transaction_offset"
    ),
    "bodyCrc": _number("bodyCrc", "body_crc"),
    "rawBody": lambda b, r, h: stored_bodies(h),
    "rawProperties": lambda b, r, h: stored_properties(h),
    "tagsCode": lambda b, r, h: pa.array(r.tags_code),
    "recordQueueOffset": _record_queue_offsets,
    "corruptRecord": lambda b, r, h: pa.nulls(len(r), pa.string()),
}
