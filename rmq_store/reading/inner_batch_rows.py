"""Inner batches: one record whose body holds many messages, split as a consumer splits it, row by row.

Source: MessageDecoder#decodeMessages. A member is totalSize, magic, bodyCRC (both unused), flag,
body length, body, properties length, properties. Member i has the queueOffset INNER_BASE + i.
Members have no hosts, times, ids or sysFlag of their own; as in the client, those of the record
apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.column_values import BatchBuilder
from rmq_store.arrow.property_columns import PropertyColumns, decode_property_columns
from rmq_store.arrow.string_slices import buffers, slices
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import BodyError, ListedAt, LogOffset, StoreError
from rmq_store.format.array_types import Columns, Ints
from rmq_store.format.queue_entries import ListedEntries
from rmq_store.format.queues import QueueId
from rmq_store.loops.members import count_members, split_members

RangesOf = Callable[[QueueId], Sequence[tuple[int, int]]]
"""Gives the wanted queue offsets of a queue as half-open ranges."""

Matches = Callable[[PropertyColumns], npt.NDArray[np.bool_]]
Damaged = Callable[[StoreError, ListedAt | None], None]

_ROWS = 1 << 16  # most messages of a batch: an inner batch may hold millions


class MemberBatches:
    """Splits the records of inner batches into messages. `damaged` receives the errors of what is
    left out, or raises them."""

    def __init__(
        self,
        log: CommitLog,
        builder: BatchBuilder,
        ranges_of: RangesOf,
        matches: Matches | None,
        damaged: Damaged,
    ) -> None:
        """`matches`: which messages have the requested tags and keys; None if all are wanted."""
        self._log = log
        self._builder = builder
        self._ranges_of = ranges_of
        self._matches = matches
        self._damaged = damaged

    def batches(
        self, rows: ListedEntries, headers: Headers, bodies: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """A row for each wanted message. `rows` are records of inner batches, `bodies` their bodies."""
        members, broken = members_of(bodies)
        for row in broken.tolist():
            self._damaged(
                BodyError(
                    self._log.path_at(int(rows.log_offset[row])),
                    offset=LogOffset(int(rows.log_offset[row])),
                    reason="the body of an inner batch cannot be split into messages",
                    advice="Read with unwrapBatches=false and rawBody to get the stored bytes",
                ),
                rows.entry(row),
            )
        members = members.take(np.flatnonzero(self._in_parts(rows, members)))
        for start in range(0, len(members), _ROWS):
            some = members.take(np.arange(start, min(start + _ROWS, len(members))))
            yield self._batch(rows, headers, some)

    def _batch(self, rows: ListedEntries, headers: Headers, members: Members) -> pa.RecordBatch:
        """The wanted ones of some members."""
        properties = decode_property_columns(
            members.properties(), with_map="properties" in self._builder.names
        )
        if self._matches is not None:
            hits = np.flatnonzero(self._matches(properties))
            members = members.take(hits)
            properties = decode_property_columns(
                members.properties(), with_map="properties" in self._builder.names
            )
        if not len(members):
            return self._builder.empty()
        return self._member_batch(rows, headers, members, properties)

    def _in_parts(self, rows: ListedEntries, members: Members) -> npt.NDArray[np.bool_]:
        """Which members have a queue offset in the requested slices. A slice may start inside a
        batch."""
        offset = rows.offset[members.row] + members.number
        inside = np.ones(len(members), dtype=bool)
        for number in np.unique(rows.queue).tolist():
            mine = (rows.queue == number)[members.row]
            wanted = np.zeros(len(members), dtype=bool)
            for start, stop in self._ranges_of(rows.queues[number]):
                wanted |= (offset >= start) & (offset < stop)
            inside &= ~mine | wanted
        return inside

    def _member_batch(
        self, rows: ListedEntries, headers: Headers, members: Members, properties: PropertyColumns
    ) -> pa.RecordBatch:
        names = self._builder.names
        bodies = members.bodies() if {"body", "rawBody"}.intersection(names) else None
        own = {
            "queueOffset": pa.array(rows.offset[members.row] + members.number),
            "flag": pa.array(members.flag),
            "body": bodies,
            "rawBody": bodies,
            "tags": properties.tags,
            "keys": properties.keys,
            "uniqKey": properties.uniq_key,
            "properties": properties.properties,
            "rawProperties": members.properties() if "rawProperties" in names else None,
        }
        used, row = np.unique(members.row, return_inverse=True)
        records = self._builder.build(
            rows.take(used), headers.take(used), bodies=pa.nulls(len(used), pa.binary())
        )
        # Only the columns that members share: a body a record would be copied for each member.
        shared = records.select([name for name in names if name not in own]).take(pa.array(row))
        columns = [own[name] if name in own else shared.column(name) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=self._builder.schema)


MOST_MEMBERS = 2**15 - 1
"""A queue counts the messages of a batch in two bytes (BatchConsumeQueue, batchSize)."""


@dataclass(slots=True)
class Members(Columns):
    """n members of the bodies of some records, in order within each record.

    `row` is the index of the body, `number` the index of the member in it. Positions count in
    the data of the `stored` bodies.
    """

    stored: pa.Array
    row: Ints
    number: Ints
    flag: npt.NDArray[np.int32]
    body_at: Ints
    body_length: Ints
    properties_at: Ints
    properties_length: Ints

    def __len__(self) -> int:
        return len(self.row)

    def bodies(self) -> pa.Array:
        """The members' bodies."""
        return slices(buffers(self.stored)[1], self.body_at, self.body_length, pa.binary())

    def properties(self) -> pa.Array:
        """The members' properties as stored."""
        return slices(
            buffers(self.stored)[1], self.properties_at, self.properties_length, pa.binary()
        )


def members_of(bodies: pa.Array) -> tuple[Members, Ints]:
    """The members of all `bodies` (binary, without nulls), and the rows that do not add up.

    A body with more than MOST_MEMBERS does not add up.
    """
    ends, data = buffers(bodies)
    counts = np.empty(len(bodies), dtype=np.int64)
    count_members(data.data, ends.data, MOST_MEMBERS, counts.data)
    broken = np.flatnonzero(counts < 0)
    counts[broken] = 0
    places = np.empty((6, int(counts.sum())), dtype=np.int64)
    flags = np.empty(places.shape[1], dtype=np.int32)
    row, number, *found = places
    split_members(
        *(data.data, ends.data, counts.data, row.data, number.data, flags.data),
        *(column.data for column in found),
    )
    return Members(bodies, row, number, flags, *found), broken
