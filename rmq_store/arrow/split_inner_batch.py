"""Inner batches: one record whose body holds many messages, split as a consumer splits it.

Source: MessageDecoder#decodeMessages. A member is totalSize, magic, bodyCRC (both unused), flag,
body length, body, properties length, properties. Member i has the queueOffset INNER_BASE + i.
Members have no hosts, times, ids or sysFlag of their own; as in the client, those of the record
apply.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.string_slices import buffers, slices
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.loops.members import count_members, split_members

MOST_MEMBERS = 2**15 - 1
"""A queue counts the messages of a batch in two bytes (BatchConsumeQueue, batchSize)."""


@dataclass(slots=True)
class Members:
    """n members of the bodies of some records, in order within each record.

    `row` is the index of the body, `number` the index of the member in it. Positions count in
    `data`.
    """

    data: Bytes
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
        return slices(self.data, self.body_at, self.body_length, pa.binary())

    def properties(self) -> pa.Array:
        """The members' properties as stored."""
        return slices(self.data, self.properties_at, self.properties_length, pa.binary())

    def take(self, rows: npt.NDArray[np.int64]) -> Members:
        """Some of the members."""
        return Members(
            self.data,
            self.row[rows],
            self.number[rows],
            self.flag[rows],
            self.body_at[rows],
            self.body_length[rows],
            self.properties_at[rows],
            self.properties_length[rows],
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
    return Members(data, row, number, flags, *found), broken
