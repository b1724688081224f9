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
from rmq_store.format.layout import MEMBER_HEAD, PROPERTIES_LENGTH_SIZE

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

    Follows all bodies at once: step i reads member i of each, so the number of steps is the member
    count of the largest batch. A body with more than MOST_MEMBERS does not add up.
    """
    ends, data = buffers(bodies)
    at = ends[:-1].astype(np.int64)
    stop = ends[1:].astype(np.int64)
    rows = np.arange(len(bodies))
    broken = np.zeros(len(bodies), dtype=bool)
    steps: list[tuple[Ints, ...]] = []
    number = 0
    head_size, length_size = MEMBER_HEAD.itemsize, PROPERTIES_LENGTH_SIZE
    going = np.flatnonzero(at < stop)
    while len(going):
        if number == MOST_MEMBERS:
            broken[going] = True
            break
        here = at[going]
        fits = here + head_size + length_size <= stop[going]
        broken[going[~fits]] = True
        going, here = going[fits], here[fits]
        heads = _heads(data, here)
        total, body_length = (
            heads["total_size"].astype(np.int64),
            heads["body_length"].astype(np.int64),
        )
        properties_field = here + head_size + body_length
        fits = (body_length >= 0) & (properties_field + length_size <= stop[going])
        lengths = _big16(data, np.where(fits, properties_field, 0))
        behind = properties_field + length_size + lengths
        fits &= (lengths >= 0) & (behind <= stop[going]) & (total == behind - here)
        broken[going[~fits]] = True
        flag = heads["flag"].astype(np.int64)
        fields = (here + head_size, body_length, properties_field + length_size, lengths, flag)
        steps.append((going[fits], np.full(int(fits.sum()), number), *(f[fits] for f in fields)))
        at[going[fits]] = behind[fits]
        going = going[fits]
        going = going[at[going] < stop[going]]
        number += 1
    columns = [np.concatenate([s[i] for s in steps]) if steps else _NONE for i in range(7)]
    row, nth, body_at, body_length, properties_at, properties_length, flags = columns
    members = Members(
        data,
        row,
        nth,
        flags.astype(np.int32),
        body_at,
        body_length,
        properties_at,
        properties_length,
    )
    order = np.lexsort((nth, row))
    whole = order[~broken[row[order]]]
    return members.take(whole), rows[broken]


_NONE: Ints = np.zeros(0, dtype=np.int64)


def _heads(data: Bytes, at: Ints) -> npt.NDArray[np.void]:
    every = np.ndarray(
        (max(0, len(data) - MEMBER_HEAD.itemsize + 1),),
        dtype=f"V{MEMBER_HEAD.itemsize}",
        buffer=data,
        strides=(1,),
    )
    heads: npt.NDArray[np.void] = every[at].view(MEMBER_HEAD)
    return heads


def _big16(data: Bytes, at: Ints) -> Ints:
    every = np.ndarray((max(0, len(data) - 1),), dtype=">i2", buffer=data, strides=(1,))
    return every[at].astype(np.int64) if len(at) else _NONE
