"""Records of one window as an Arrow batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_definitions import BY_NAME, FIELDS, arrow_schema, column_names
from rmq_store.arrow.property_columns import (
    PropertyColumns,
    decoded_as_java,
    find_properties,
    number_array,
    property_columns_at,
    room_for_values,
    slices,
    slices_with_crcs,
    string_array,
    texts_array,
)
from rmq_store.commitlog.headers import Headers
from rmq_store.errors import BodyError
from rmq_store.format.byte_layout import Bytes, Ints, Mask
from rmq_store.format.compression import SysFlag, decompress
from rmq_store.format.queues import ListedEntries
from rmq_store.loops import texts
from rmq_store.loops.hashes import tags_codes

_MOST_OTHERS = 256  # names of a dictionary, besides those of its rows
_FROM_PROPERTIES = {
    "tags": "tags",
    "keys": "keys",
    "uniqKey": "uniq_key",
    "properties": "properties",
}
OPENED_BYTES = 16 << 20
"""Decompressed bytes in one batch, beside the stored ones. Only a single body may have more."""


class BatchBuilder:
    """Builds Arrow batches of one schema for one broker."""

    def __init__(
        self, broker_name: str, columns: Sequence[str] | None = None, *, encoded: bool = False
    ) -> None:
        """`encoded`: as in `arrow_schema`."""
        self.names = column_names(columns)
        self.schema = arrow_schema(self.names, encoded=encoded)
        self._makers = {**_MAKERS, **_ENCODED} if encoded else _MAKERS
        self.broker_name = broker_name
        self._of_properties = [
            (name, _FROM_PROPERTIES[name]) for name in self.names if name in _FROM_PROPERTIES
        ]

    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        nothing = [pa.nulls(0, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(nothing, schema=self.schema)

    def build(
        self,
        rows: ListedEntries,
        headers: Headers | None,
        properties: PropertyColumns | None = None,
        bodies: pa.Array | None = None,
    ) -> pa.RecordBatch:
        """The batch of `rows`; `headers` are those of the same records, None if no column needs them.

        All rows of `headers` must be valid. `properties` and `bodies`: those of the same records, if
        they are known; column `body` needs the opened bodies.
        """
        arrays: dict[str, pa.Array] = {} if bodies is None else {"body": bodies}
        if headers is not None and self._of_properties:
            decoded = properties or self.properties(headers)
            arrays |= {name: getattr(decoded, field) for name, field in self._of_properties}
        columns = [
            arrays[name] if name in arrays else self._makers[name](self, rows, headers)
            for name in self.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def properties(self, headers: Headers) -> PropertyColumns:
        """The property columns; includes the map only if it is a requested column."""
        return property_columns_at(
            headers.window,
            headers.properties_at,
            headers.properties_length,
            with_map="properties" in self.names,
        )


def stored_bodies(headers: Headers) -> pa.Array:
    """Bodies as stored."""
    return slices(headers.window, headers.body_at, headers.body_length)


def bodies_with_crcs(headers: Headers) -> tuple[pa.Array, Ints]:
    """Bodies as stored, and their CRC-32."""
    return slices_with_crcs(headers.window, headers.body_at, headers.body_length)


def stored_properties(headers: Headers) -> pa.Array:
    """Property strings as stored."""
    return slices(headers.window, headers.properties_at, headers.properties_length)


def stored_topics(headers: Headers) -> pa.Array:
    """The topics that the records name."""
    return decoded_as_java(slices(headers.window, headers.topic_at, headers.topic_length))


_TOPICS_IN_MIND = 1024


def numbered_topics(headers: Headers) -> tuple[list[str], Ints]:
    """The distinct topics of records, and the place of each record's topic among them."""
    at, length = headers.topic_at, headers.topic_length
    number, rows = np.empty((2, len(headers)), dtype=np.int64)
    memory = np.zeros(_TOPICS_IN_MIND, dtype=np.int32)
    count = texts.number(
        headers.window.data, at.data, length.data, memory.data, number.data, rows.data
    )
    rows = rows[:count]  # a topic may have several numbers, and Java reads several as one
    names = decoded_as_java(slices(headers.window, at[rows], length[rows])).to_pylist()
    code = {name: place for place, name in enumerate(dict.fromkeys(names))}
    codes = np.array([code[name] for name in names], dtype=np.int64)
    return [*code], codes[number]


def hosts(headers: Headers, of_store: bool) -> pa.Array:
    """`ip:port` or `[ip]:port` of bornHost, or of storeHost."""
    bit = SysFlag.STORE_HOST_V6 if of_store else SysFlag.BORN_HOST_V6
    longest = texts.LONGEST_HOST if (headers.sys_flag & bit).any() else texts.LONGEST_V4_HOST
    count = len(headers)
    data, ends = room_for_values(longest * count, count)
    of = (headers.window.data, headers.at.data, headers.sys_flag.data)
    host = headers.store_host if of_store else headers.born_host
    texts.hosts(*of, host.data, of_store, data.data, ends.data)
    return string_array(data, ends, pa.string())


def message_ids(headers: Headers) -> pa.Array:
    """offsetMsgId: store host and log offset in upper-case hex."""
    count = len(headers)
    data, ends = room_for_values(texts.LONGEST_MESSAGE_ID * count, count)
    of = (headers.window.data, headers.at.data, headers.sys_flag.data)
    places = (headers.store_host.data, headers.physical_offset.data)
    texts.message_ids(*of, *places, data.data, ends.data)
    return string_array(data, ends, pa.string())


_Maker = Callable[[BatchBuilder, ListedEntries, Any], pa.Array]


def _number(column: str, field: str) -> _Maker:
    """A maker for a fixed-size number of the record."""
    kind = BY_NAME[column].type

    def make(builder: BatchBuilder, rows: ListedEntries, headers: Headers) -> pa.Array:
        # A copy: all fields lie in one table, which one column would keep.
        return number_array(getattr(headers, field).copy(), kind)

    return make


@lru_cache(maxsize=16)  # batches are mostly of one size
def _constant(text: str, count: int) -> pa.Array:
    return texts_array([text]).take(number_array(np.zeros(count, dtype=np.int32)))


def _topics(rows: ListedEntries) -> pa.Array:
    queues = rows.queues
    if len(queues.topics) == 1:
        return _constant(queues.topics[0], len(rows))
    names, starts, stops = queues.topic_texts
    data, ends = room_for_values(int((stops - starts)[rows.queue].sum()), len(rows))
    texts.gather_numbered(
        names.data, starts.data, stops.data, rows.queue.data, data.data, ends.data
    )
    return string_array(data, ends, pa.string())


def _encoded_topics(rows: ListedEntries) -> pa.Array:
    """The topics as numbers of a dictionary, which has few that no row has."""
    names, codes = rows.queues.topics, rows.queues.topic_codes[rows.queue]
    if len(names) > _MOST_OTHERS:
        some, places = np.unique(codes, return_inverse=True)
        names, codes = [names[code] for code in some.tolist()], places.astype(np.int32)
    return pa.DictionaryArray.from_arrays(number_array(codes), texts_array(names))


_MAKERS: dict[str, _Maker] = {
    **{column: _number(column, field) for column, field in FIELDS.items()},
    "brokerName": lambda b, r, h: _constant(b.broker_name, len(r)),
    "topic": lambda b, r, h: _topics(r),
    "queueId": lambda b, r, h: number_array(r.queue_id),
    "queueOffset": lambda b, r, h: number_array(r.offset, nulls=r.offset < 0),
    "commitLogOffset": lambda b, r, h: number_array(r.log_offset),
    "storeSize": lambda b, r, h: number_array(r.size.astype(np.int32)),
    "msgId": lambda b, r, h: message_ids(h),
    "bornHost": lambda b, r, h: hosts(h, of_store=False),
    "storeHost": lambda b, r, h: hosts(h, of_store=True),
    "bodyCrc": _number("bodyCrc", "body_crc"),
    "rawBody": lambda b, r, h: stored_bodies(h),
    "rawProperties": lambda b, r, h: stored_properties(h),
    "tagsCode": lambda b, r, h: number_array(r.tags_code),
    "recordQueueOffset": lambda b, r, h: number_array(
        h.queue_offset.copy(), nulls=h.queue_offset == r.offset
    ),
    "corruptRecord": lambda b, r, h: pa.nulls(len(r), pa.string()),
}
_ENCODED: dict[str, _Maker] = {
    "brokerName": lambda b, r, h: pa.DictionaryArray.from_arrays(
        number_array(np.zeros(len(r), dtype=np.int32)), texts_array([b.broker_name])
    ),
    "topic": lambda b, r, h: _encoded_topics(r),
}


_OTHER_QUEUES_END = 7  # of PLACES


@dataclass(frozen=True, slots=True)
class KeyPositions:
    """Where the values of TAGS, KEYS and UNIQ_KEY of n records lie in `data`.

    `values`: n * PLACES int64 (loops/property_items.py). `other_queues` marks the records with offsets
    in queues besides their own.
    """

    data: Bytes
    values: Ints
    other_queues: Mask

    @classmethod
    def of(cls, data: Bytes, starts: Ints, lengths: Ints) -> KeyPositions:
        """Those of n property strings in `data`."""
        values, _ = find_properties(data, starts, lengths)
        return cls(data, values.reshape(-1), values[:, _OTHER_QUEUES_END] > 0)

    def __len__(self) -> int:
        return len(self.other_queues)

    def tags_codes(self) -> Ints:
        """tagsCode of every record: the Java hash of TAGS, 0 without them."""
        codes = np.empty(len(self), dtype=np.int64)
        tags_codes(self.data.data, self.values.data, codes.data)
        return codes


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """n valid records. `topic_code`: the place of each record's topic in `topics`."""

    headers: Headers
    topics: list[str]
    topic_code: Ints
    keys: KeyPositions

    @classmethod
    def of(cls, headers: Headers) -> DecodedRecords:
        """Decode the records of a window of the log."""
        keys = KeyPositions.of(headers.window, headers.properties_at, headers.properties_length)
        return cls(headers, *numbered_topics(headers), keys)


def opened_bodies(
    headers: Headers,
    stored: pa.Array,
    needed: Mask,
    *,
    max_body_bytes: int,
    path: str | None,
    failed: Callable[[int, BodyError], None],
) -> Iterator[tuple[Ints, pa.Array]]:
    """Consecutive rows, as row numbers, and their bodies, in steps of up to OPENED_BYTES.

    `stored`: the bodies of all rows as stored. A body is decompressed according to sysFlag where
    `needed`; a frame need not say how large its content is, so each is opened to find out. A row
    that does not open goes to `failed`, and is left out if that returns.
    """
    start, size = 0, 0
    opened: dict[int, bytes] = {}
    lost: list[int] = []
    compressed = (headers.sys_flag & SysFlag.COMPRESSED) != 0
    for row in np.flatnonzero(compressed & needed).tolist():
        try:
            body = decompress(
                stored[row].as_py(),
                int(headers.sys_flag[row]),
                max_body_bytes=max_body_bytes,
                path=path,
                log_offset=headers.base + int(headers.at[row]),
            )
        except BodyError as error:
            failed(row, error)
            lost.append(row)
            continue
        if size and size + len(body) > OPENED_BYTES:
            yield _with_opened(stored, range(start, row), opened, lost)
            start, size, lost = row, 0, []
        opened[row] = body
        size += len(body)
        del body
    yield _with_opened(stored, range(start, len(headers)), opened, lost)


def _with_opened(
    stored: pa.Array, rows: range, opened: dict[int, bytes], lost: list[int]
) -> tuple[Ints, pa.Array]:
    """The rows that are not lost, and their bodies. Empties `opened`, the bodies of some by row."""
    kept = np.arange(rows.start, rows.stop, dtype=np.int64)
    if lost:
        kept = np.setdiff1d(kept, lost)
    bodies_as_stored = stored.slice(rows.start, len(rows))
    if not opened and not lost:
        return kept, bodies_as_stored
    places, bodies = list(opened), pa.array(opened.values(), pa.binary())
    opened.clear()
    at = kept - rows.start
    at[np.searchsorted(kept, places)] = len(bodies_as_stored) + np.arange(len(places))
    return kept, pa.concat_arrays([bodies_as_stored, bodies]).take(pa.array(at))
