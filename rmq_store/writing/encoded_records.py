"""Encoded records without queueId, offsets and store time.

They can be made anywhere, several batches at the same time; then one writer gives them their place.
What lists them in queues and index is computed with them, so that nobody has to read them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.column_values import KeyPositions
from rmq_store.arrow.encoding.batch_to_records import PreparedMessages
from rmq_store.arrow.property_columns import buffers
from rmq_store.consumequeue.entry_of_record import DispatchRequests, plain_entries
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.byte_layout import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    RECORD_HEAD,
    V6_EXTRA,
    Bytes,
    Columns,
    Ints,
    Property,
)
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.index.index_writer import items_of

_NAMES_OF_QUEUES = (Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET)


@dataclass(frozen=True, slots=True)
class RecordFacts(Columns):
    """What queues and index list of n records, but for their offsets. Arrays of n.

    `topic_code`: places in `topics`. `total`: bytes. `tags_code`: as a queue entry has it. `hashes`: the
    key hashes of all index items, `item_counts` of each record.
    """

    numbered = ("topics", "topic_code")

    topics: list[str]
    topic_code: Ints
    queue_id: npt.NDArray[np.int32]
    sys_flag: npt.NDArray[np.int32]
    total: Ints
    store_timestamp: Ints
    tags_code: Ints
    item_counts: Ints
    hashes: npt.NDArray[np.int32]

    def listed(
        self, rows: slice, queue_offset: Ints, log_offset: Ints, store_timestamp: Ints
    ) -> ListedRecords:
        """The records `rows` with their offsets and times."""
        counts = self.item_counts
        first, stop = int(counts[: rows.start].sum()), int(counts[: rows.stop].sum())
        some, hashes = RecordFacts.of(self).take(rows), self.hashes[first:stop]
        facts = replace(some, hashes=hashes, store_timestamp=store_timestamp)
        return facts.extended(ListedRecords, queue_offset=queue_offset, log_offset=log_offset)


@dataclass(frozen=True, slots=True)
class EncodedRecords(RecordFacts):
    """n records, one after the other in `data`.

    queueId, queueOffset, physicalOffset and storeTimestamp in `data` have no meaning: they are
    written with `queue_id` and the place.
    """

    data: Bytes

    def __len__(self) -> int:
        return len(self.total)

    def check(self) -> None:
        """Raise InvalidArgumentError if sizes, counts and the records themselves contradict."""
        columns = (
            *(self.topic_code, self.queue_id, self.sys_flag, self.store_timestamp),
            *(self.tags_code, self.item_counts),
        )
        if any(len(column) != len(self) for column in columns):
            raise _contradiction("their columns differ in length")
        counted = int(self.item_counts.sum()) == len(self.hashes) and (self.item_counts >= 0).all()
        sized = int(self.total.sum()) == len(self.data) and (self.total >= self._least()).all()
        known = int(self.topic_code.min()) >= 0 and int(self.topic_code.max()) < len(self.topics)
        if not (counted and sized and known and int(self.queue_id.min()) >= 0):
            raise _contradiction("their sizes, topics, queues or keys do not add up")
        at = np.cumsum(self.total) - self.total
        magic = _field(self.data, "magic")[at]
        agree = (_field(self.data, "total_size")[at] == self.total).all()
        agree &= (_field(self.data, "sys_flag")[at] == self.sys_flag).all()
        agree &= ((magic == MAGIC_V1) | (magic == MAGIC_V2)).all()
        if not agree:
            raise _contradiction("a record does not begin where it should, or has another sysFlag")

    def _least(self) -> Ints:
        """The smallest size of records with these hosts."""
        v6 = ((self.sys_flag & bit) != 0 for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6))
        return MIN_RECORD_SIZE + V6_EXTRA * sum(v6, np.zeros(len(self), dtype=np.int64))

    def placed(
        self, rows: slice, queue_offset: Ints, log_offset: Ints, store_timestamp: Ints
    ) -> Bytes:
        """The bytes of the records `rows`, with the given offsets and times."""
        first = int(self.total[: rows.start].sum())
        at = np.cumsum(self.total[rows]) - self.total[rows]
        data: Bytes = self.data[first : first + int(self.total[rows].sum())].copy()
        set_fields(data, at, "queue_id", self.queue_id[rows])
        set_fields(data, at, "queue_offset", queue_offset)
        set_fields(data, at, "physical_offset", log_offset)
        behind_v6 = (self.sys_flag[rows] & SysFlag.BORN_HOST_V6) != 0
        set_fields(data, at + behind_v6 * V6_EXTRA, "store_timestamp", store_timestamp)
        return data


Unplaced = PreparedMessages | EncodedRecords
"""n records without a place in the log. `store_timestamp`: ms; 0: the store assigns it."""


def rows_by_queue(records: Unplaced, rows: Ints) -> Iterator[tuple[QueueId, Ints]]:
    """Each queue of some rows, and its rows, in their order."""
    code, queue_id = records.topic_code[rows], records.queue_id[rows].astype(np.int64)
    keys = code << 32 | (queue_id & 0xFFFFFFFF)
    order = np.argsort(keys, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        if len(group):
            first = group[0]
            yield QueueId(records.topics[int(code[first])], int(queue_id[first])), rows[group]


def _contradiction(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        reason=f"these are not records as they were encoded: {what}",
        advice="Nothing was written. Encode the messages again",
    )


def _field(data: Bytes, name: str) -> npt.NDArray[Any]:
    """A field of RECORD_HEAD of a record that would begin at each position of `data`, as a view."""
    assert RECORD_HEAD.fields is not None
    kind, offset = RECORD_HEAD.fields[name][:2]
    count = len(data) - offset - kind.itemsize + 1
    every: npt.NDArray[Any] = np.ndarray((count,), kind, data, offset, strides=(1,))
    return every


def set_fields(data: Bytes, at: Ints, name: str, values: npt.NDArray[Any]) -> None:
    """Set a field of RECORD_HEAD in records with IPv4 hosts at some places of `data`."""
    _field(data, name)[at] = values


@dataclass(frozen=True, slots=True)
class ListedRecords(RecordFacts):
    """What lists n records of the log in queues and index."""

    queue_offset: Ints
    log_offset: Ints

    def entries(self) -> DispatchRequests:
        """The queue entries. Prepared and rolled-back records enter no queue."""
        listed = enters_queue(self.sys_flag)
        columns = (
            self.topic_code,
            self.queue_id.astype(np.int64),
            self.queue_offset,
            self.log_offset,
            self.total,
            self.tags_code,
            self.store_timestamp,
        )
        if not listed.all():
            columns = tuple(column[listed] for column in columns)
        return plain_entries(self.topics, *columns)


# --- encoding -------------------------------------------------------------------------------------


def is_encodable(prepared: PreparedMessages) -> bool:
    """Whether the bytes of these records do not depend on their place, except for its own fields.

    Not so with record CRCs, inner batches, messages for several queues, and delayed messages, whose
    queue entries hold a time that follows from the store time. Copies with a negative queueId, which
    `EncodedRecords` do not have, are not encoded either.
    """
    if prepared.with_record_crc or SCHEDULE_TOPIC in prepared.topics:
        return False
    if (prepared.sys_flag & SysFlag.INNER_BATCH).any() or (prepared.queue_id < 0).any():
        return False
    stored = buffers(prepared.properties)[1].tobytes()
    return not any(name.encode() in stored for name in _NAMES_OF_QUEUES)


def encoded_records_of(prepared: PreparedMessages, rows: slice, dialect: Dialect) -> EncodedRecords:
    """The records `rows` of checked messages as bytes. The caller has asked `is_encodable`."""
    nothing = np.zeros(rows.stop - rows.start, dtype=np.int64)
    data = prepared.placed(rows, nothing, nothing, nothing)
    facts = _facts(prepared, rows, _key_values(prepared, rows), dialect)
    return facts.extended(EncodedRecords, data=data)


def record_facts(prepared: PreparedMessages, dialect: Dialect) -> RecordFacts | None:
    """What lists checked messages; None if it follows from other properties than tags and keys, as
    that of inner batches."""
    if SCHEDULE_TOPIC in prepared.topics or (prepared.sys_flag & SysFlag.INNER_BATCH).any():
        return None
    rows = slice(0, len(prepared))
    keys = _key_values(prepared, rows)
    return None if keys.other_queues.any() else _facts(prepared, rows, keys, dialect)


def _facts(
    prepared: PreparedMessages, rows: slice, keys: KeyPositions, dialect: Dialect
) -> RecordFacts:
    code, flags = prepared.topic_code[rows], prepared.sys_flag[rows]
    items = items_of(keys, prepared.topics, code, flags, of_tags=dialect.has("tag_items"))
    return RecordFacts(
        prepared.topics,
        code,
        prepared.queue_id[rows],
        flags,
        prepared.total[rows],
        prepared.store_timestamp[rows],
        keys.tags_codes(),
        items.counts,
        items.hashes,
    )


def _key_values(prepared: PreparedMessages, rows: slice) -> KeyPositions:
    ends, stored = buffers(prepared.properties)
    some: Ints = ends[rows.start : rows.stop + 1].astype(np.int64)
    return KeyPositions.of(stored, some[:-1], np.diff(some))
