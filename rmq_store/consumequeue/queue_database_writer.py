"""Queues written into a RocksDB database as a broker with storeType=defaultRocksDB dispatches records
(RocksDBConsumeQueueStore#putMessagePosition).

Every record is listed at its own queueOffset: of two records with one offset the later one is listed, and an
offset that no record has stays free. The last offset of a queue is that of its last record in the log. A
record with an offset that a reader takes for damage is not listed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.consumequeue.queue_database import (
    ENTRIES,
    MOST_OFFSET,
    MOST_OFFSETS,
    OFFSETS,
    QUEUE_VALUE,
    dispatched_key,
    entries_front,
    last_offset_key,
)
from rmq_store.files.rocksdb import NewDatabase, require_rocksdict
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.queues import QueueId

_LONG, _PLACE = struct.Struct(">q"), struct.Struct(">qq")

LeftOutOf = Callable[[QueueId, Ints, Ints], None]
"""Receives queue offsets and log offsets of records that are not listed."""


def require_writer(folder: Path) -> None:
    """Raise UnsupportedStoreError unless the extra `rocksdb` is installed."""
    require_rocksdict(
        folder,
        "a RocksDB database needs a library to be written",
        "Without the option the queues are files",
    )


@dataclass(slots=True)
class _End:
    """The queue offsets of a queue so far, and its last record."""

    first: int
    highest: int
    last: int
    last_log_offset: int


class QueueDatabaseWriter:
    """Writes the queues of a new store into one database. `left_out`: see `LeftOutOf`."""

    def __init__(self, folder: Path, left_out: LeftOutOf) -> None:
        """Raises AccessError. The caller has called `require_writer`."""
        self._database = NewDatabase(folder, ENTRIES, OFFSETS)
        self._left_out = left_out
        self._ends: dict[QueueId, _End] = {}

    def add_entries(self, requests: DispatchRequests) -> None:
        """List records, which are in log order and follow those of earlier calls. Raises AccessError."""
        for queue, rows in requests.by_queue():
            self._add(queue, requests, rows)

    def _add(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> None:
        end = self._ends.get(queue)
        legal = _may_be_listed(requests.offset[rows], None if end is None else end.first)
        if not legal.all():
            self._note(queue, requests, rows[~legal])
            rows = rows[legal]
            if not len(rows):
                return
        offset = requests.offset[rows]
        last, place = int(offset[-1]), int(requests.log_offset[rows[-1]])
        if end is None:
            end = self._ends[queue] = _End(int(offset[0]), -1, last, place)
        if int(offset[0]) <= end.highest or (np.diff(offset) <= 0).any():
            rows = self._without_replaced(queue, requests, rows, end)
        end.first, end.highest = (
            min(end.first, int(offset.min())),
            max(end.highest, int(offset.max())),
        )
        end.last, end.last_log_offset = last, place
        self._database.put(ENTRIES, self._pairs(queue, requests, rows))

    @staticmethod
    def _pairs(queue: QueueId, requests: DispatchRequests, rows: Ints) -> list[tuple[bytes, bytes]]:
        values = np.zeros(len(rows), dtype=QUEUE_VALUE)
        for name in QUEUE_VALUE.names or ():
            values[name] = getattr(requests, name)[rows]
        front = entries_front(queue)
        keys = requests.offset[rows].astype(">i8").tobytes()
        raw, width = values.tobytes(), QUEUE_VALUE.itemsize
        return [
            (front + keys[8 * n : 8 * n + 8], raw[width * n : width * (n + 1)])
            for n in range(len(rows))
        ]

    def _without_replaced(
        self, queue: QueueId, requests: DispatchRequests, rows: Ints, end: _End
    ) -> Ints:
        """The rows that no later one replaces; notes those, and entries that rows replace."""
        offset = requests.offset[rows]
        _, from_end = np.unique(offset[::-1], return_index=True)
        kept = np.sort(len(rows) - 1 - from_end)
        self._note(queue, requests, np.delete(rows, kept))
        front = entries_front(queue)
        for at in offset[kept][offset[kept] <= end.highest].tolist():
            there = self._database.get(ENTRIES, front + _LONG.pack(at))
            if there is not None:
                self._note_one(queue, at, there)
        return rows[kept]

    def _note(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> None:
        if len(rows):
            self._left_out(queue, requests.offset[rows], requests.log_offset[rows])

    def _note_one(self, queue: QueueId, offset: int, value: bytes) -> None:
        self._left_out(queue, np.array([offset]), np.array([_LONG.unpack_from(value)[0]]))

    def ranges(self) -> dict[QueueId, tuple[int, int]]:
        """The queue offsets of each queue: the first, and the one after the last."""
        return {
            queue: (min(end.first, end.last), end.last + 1)
            for queue, end in sorted(self._ends.items())
        }

    def finish(self, log_end: int) -> None:
        """Write the last offset of each queue, and `log_end`: all records before it are listed. Then the
        database is on the disk. Raises AccessError."""
        for queue, end in self._ends.items():
            if end.highest > end.last:
                self._note_beyond(queue, end)
        offsets = [
            (last_offset_key(queue), _PLACE.pack(end.last_log_offset, end.last))
            for queue, end in self._ends.items()
        ]
        self._database.put(OFFSETS, [*offsets, (dispatched_key(), _LONG.pack(log_end))])
        self._database.close(keep=True)

    def _note_beyond(self, queue: QueueId, end: _End) -> None:
        """Note the entries behind the last offset, which count no more."""
        front = entries_front(queue)
        first, stop = front + _LONG.pack(end.last + 1), front + _LONG.pack(end.highest + 1)
        for key, value in self._database.items(ENTRIES, first, stop):
            self._note_one(queue, _LONG.unpack(key[len(front) :])[0], value)

    def discard(self) -> None:
        """Close the files of a database that is not finished."""
        self._database.close(keep=False)


def _may_be_listed(offset: Ints, first: int | None) -> Mask:
    """Which queue offsets no reader takes for damage (`QueueDatabase.ranges`).

    A record with another one would hide all of its queue, or of the store. `first`: the least one so far.
    """
    least = np.minimum.accumulate(np.where(offset < 0, MOST_OFFSET, offset))
    if first is not None:
        least = np.minimum(least, first)
    return (offset >= 0) & (offset < MOST_OFFSET) & (offset - least < MOST_OFFSETS)
