"""Plain values for a queue, a range of a queue, and its entries: one, or arrays of many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from rmq_store.errors import ListedAt
from rmq_store.format.byte_layout import Bytes, Columns, Ints, Mask, Numbers


class QueueId(NamedTuple):
    """A queue: its topic and its number in the topic."""

    topic: str
    queue_id: int

    @property
    def name(self) -> str:
        """The queue in messages."""
        return f"{self.topic}/{self.queue_id}"


@dataclass(frozen=True, slots=True, order=True)
class QueueSlice:
    """A range of queue offsets of one queue."""

    queue: QueueId
    start: int  # queue offset, included
    stop: int  # queue offset, excluded

    def __len__(self) -> int:
        return min(max(0, self.stop - self.start), sys.maxsize)  # all that len can say

    def cut(self, start: int, stop: int) -> QueueSlice:
        """What of it lies in [start, stop); maybe empty."""
        return QueueSlice(self.queue, max(self.start, start), min(self.stop, stop))


class Entry(NamedTuple):
    """The place of the message at a queue offset, and its size."""

    log_offset: int  # CommitLog offset of its record, bytes
    size: float  # bytes; in an inner batch, this message's share of the record


EntryAt = Callable[[QueueId, int], Entry | None]
"""The entry at a queue offset; None if it does not point to a record."""


# --- in the files (ConsumeQueue, BatchConsumeQueue, ConsumeQueueExt) -------------------------------
QUEUE_ENTRY: Final = np.dtype(
    [
        ("log_offset", ">i8"),  # CommitLog offset of the record, bytes
        ("size", ">i4"),  # of the whole record, bytes
        ("tags_code", ">i8"),  # Java hash of TAGS, deliver time (delay topic), or ext address
    ]
)
FILLER_SIZE: Final = 0x7FFFFFFF  # size in filler entries, before a queue's first offset

BATCH_QUEUE_ENTRY: Final = np.dtype(
    [
        ("log_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),  # ms
        ("base_offset", ">i8"),  # queueOffset of the first message
        ("batch_size", ">i2"),  # number of messages
        ("compacted_offset", ">i4"),  # -1: none
        ("reserved", ">i4"),
    ]
)

EXT_HEAD: Final = np.dtype(
    [
        ("size", ">i2"),  # of the unit, bytes
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bitmap_length", ">i2"),
    ]
)
# ConsumeQueueExt#MAX_ADDR: a tagsCode up to this is an address.
EXT_MAX_ADDRESS: Final = -(2**31) - 1
EXT_ADDRESS_BASE: Final = -(2**63)
DEFAULT_QUEUE_FILE_SIZE: Final = 300_000 * QUEUE_ENTRY.itemsize
DEFAULT_BATCH_QUEUE_FILE_SIZE: Final = 300_000 * BATCH_QUEUE_ENTRY.itemsize

_FEW = 1 << 15  # numbers of two bytes are sorted in the time that reading them takes
_FAR = 4096  # queue offsets

# --- as columns -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Entries(Columns):
    """n queue entries as int64 arrays of n in native byte order.

    `offset` is the queueOffset of the (first) message. `count` is the number of messages in the
    record.
    """

    offset: Ints
    log_offset: Ints
    size: Ints
    tags_code: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def points_to_record(self) -> Mask:
        """Mask of the entries that point to a record; filler and zeros do not."""
        points: Mask = (self.size > 0) & (self.size != FILLER_SIZE)
        return points & (self.log_offset >= 0)

    def pieces_of_near_rows(self, rows: Ints) -> Iterator[Ints]:
        """Some rows by queue offset, in pieces: of offsets far apart, each piece is looked up by itself."""
        rows = rows[np.argsort(self.offset[rows], kind="stable")]
        pieces = np.split(rows, np.flatnonzero(np.diff(self.offset[rows]) > _FAR) + 1)
        return (piece for piece in pieces if len(piece))

    def offsets_of(self, rows: Ints) -> tuple[int, int]:
        """The queue offsets [start, stop) from the first to the last of some rows, in ascending order."""
        first, last = rows[0], rows[-1]
        return int(self.offset[first]), int(self.offset[last] + self.count[last])

    def listed_at(self, queue: QueueId, row: int) -> ListedAt:
        """One entry, as plain numbers; `queue`: the one that lists it."""
        columns = (self.offset, self.log_offset, self.size, self.count)
        return ListedAt(*queue, *(int(column[row]) for column in columns))


def hole_at(at: int, count: int) -> Entries:
    """The entry that stands for the missing units from `at` on, which no file holds."""
    nothing = np.zeros(1, dtype=np.int64)
    return Entries(nothing + at, nothing, nothing, nothing, nothing + count)


class Queues(tuple[QueueId, ...]):
    """Queues that entries number. Arrays have an element for each queue."""

    @cached_property
    def topics(self) -> list[str]:
        """The distinct topics, in order."""
        return sorted({queue.topic for queue in self})

    @cached_property
    def topic_codes(self) -> Numbers:
        """The place of each queue's topic in `topics`."""
        number = {topic: code for code, topic in enumerate(self.topics)}
        return np.array([number[queue.topic] for queue in self], dtype=np.int32)

    @cached_property
    def topic_texts(self) -> tuple[Bytes, Numbers, Numbers]:
        """The bytes of `topics`, and where the topic of each queue begins and ends in them."""
        raw, code = [topic.encode() for topic in self.topics], self.topic_codes
        ends = np.cumsum([0, *map(len, raw)], dtype=np.int32)
        return np.frombuffer(b"".join(raw), dtype=np.uint8), ends[code], ends[code + 1]

    @cached_property
    def queue_ids(self) -> Numbers:
        """The queueIds."""
        return np.array([queue.queue_id for queue in self], dtype=np.int32)


@dataclass(slots=True)
class ListedEntries(Entries):
    """n entries of several queues: `queue` holds places in `queues`.

    `offset` is -1 of a record that no queue lists.
    """

    numbered = ("queues", "queue")

    queues: Queues
    queue: Ints

    @property
    def queue_id(self) -> Numbers:
        """The queueId of each entry."""
        return self.queues.queue_ids[self.queue]

    def queue_of(self, row: int) -> QueueId:
        """The queue of one entry."""
        return self.queues[int(self.queue[row])]

    def entry(self, row: int) -> ListedAt:
        """One entry, as plain numbers."""
        return self.listed_at(self.queue_of(row), row)

    def is_of(self, topics: Collection[str]) -> Mask:
        """A mask of the entries of some topics."""
        wanted = np.array([queue.topic in topics for queue in self.queues], dtype=bool)
        return wanted[self.queue]

    def by_queue(self, rows: Ints | None = None) -> Iterator[tuple[QueueId, Ints]]:
        """Each queue with entries, and the rows of those, in order; only some `rows` if given."""
        rows = np.arange(len(self)) if rows is None else rows
        queue = self.queue[rows]
        if len(self.queues) <= _FEW:
            queue = queue.astype(np.int16)
        rows = rows[np.argsort(queue, kind="stable")]
        for part in np.split(rows, np.flatnonzero(np.diff(self.queue[rows])) + 1):
            if len(part):
                yield self.queue_of(int(part[0])), part
