"""Queues in a RocksDB database (RocksDBConsumeQueueStore), as files that hold the same entries.

Family `default`: topic, queueId and queueOffset -> log offset, size, tagsCode, storeTimestamp
(RocksDBConsumeQueueTable). Family `offset`: topic, "max", queueId -> the last queue offset
(RocksDBConsumeQueueOffsetTable). Entries beyond that are left from a log that was cut, and do not count;
those of expired messages are gone one by one (its compaction filter). So the bytes of a queue file with
the entries that are there say all of a queue, and every reader takes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.consumequeue.queue_files import EndEntries, QueueFiles
from rmq_store.errors import CorruptQueueError, is_utf8
from rmq_store.files.rocksdb import Database, NewDatabase, open_database, require_rocksdict
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import PartOfDatabase, ReadableFile, Sources
from rmq_store.format.byte_layout import Bytes, Ints, Mask
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, FILLER_SIZE, QUEUE_ENTRY, QueueId

ENTRIES, OFFSETS = "default", "offset"  # the families
_MARK, _MAX = b"\x01", b"\x01max\x01"
_INT, _LONG, _PLACE = struct.Struct(">i"), struct.Struct(">q"), struct.Struct(">qq")
_VALUE = 28  # bytes: log offset, size, tagsCode as in a queue file; then storeTimestamp
_MOST_IN_BATCH = 2**15 - 1
QUEUE_VALUE = np.dtype(
    [("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("store_timestamp", ">i8")]
)
MOST_OFFSET = 2**62  # queue offset; a larger one is damage
MOST_OFFSETS = 2**36  # queue offsets from the first to the last entry; more is damage
_UNITS = 300_000  # of a queue file by default; bounds what one of ours holds in memory
_READ = 1 << 14  # entries at a time
_WIDTH = QUEUE_ENTRY.itemsize
_OTHERWISE = (
    "Without it the log can be read (source=commitlog in Spark, queues=False in Python), and rmqstore "
    "rebuild writes queue files in a new store"
)
MessagesIn = Callable[[Ints, Ints], Ints]
"""Says of records, by log offsets and sizes, how many messages each holds."""
LeftOutOf = Callable[[QueueId, Ints, Ints], None]
"""Receives queue offsets and log offsets of records that are not listed."""


class QueueRange(NamedTuple):
    """The queue offsets [first, stop) of a queue; entries inside may be gone."""

    first: int
    stop: int

    def holds(self, other: QueueRange) -> bool:
        """Whether a range is a part of this one."""
        return self.first <= other.first and other.stop <= self.stop


class QueueDatabase:
    """The queues of one database, as they were when it was opened."""

    def __init__(self, folder: Path) -> None:
        """Raises UnsupportedStoreError without rocksdict, AccessError, CorruptQueueError."""
        self.folder = str(folder)
        require_rocksdict(
            folder,
            "the queues of this store are in a RocksDB database, which needs a library to be read",
            _OTHERWISE,
        )
        self._database = open_database(self.folder, (ENTRIES, OFFSETS), self._damaged)

    @cached_property
    def ranges(self) -> dict[QueueId, QueueRange]:
        """Every queue that has had a message, and its range. Raises CorruptQueueError."""
        ranges = {}
        for key, value in self._database.items(OFFSETS):
            queue = _queue_of(key)
            if queue is not None and len(value) == _PLACE.size:
                last = _PLACE.unpack(value)[1]
                if 0 <= last < MOST_OFFSET:
                    ranges[queue] = self._range_of(queue, last)
        return dict(sorted(ranges.items()))

    def _range_of(self, queue: QueueId, last: int) -> QueueRange:
        """The range of a queue whose last offset is `last`. It begins with the first entry that is there:
        what the database calls the least offset may have expired."""
        key = self._database.first_key(ENTRIES, *_keys_of(queue, 0, last + 1))
        start = last + 1 if key is None else _LONG.unpack_from(key, len(key_prefix(queue)))[0]
        if last - start >= MOST_OFFSETS:
            raise self._damaged(f"queue {queue.name} is from {start} to {last}")
        return QueueRange(start, last + 1)

    def files(
        self, queue: QueueId, range_: QueueRange, sources: Sources, beside: QueueFiles | None = None
    ) -> QueueFiles:
        """The range `range_` of a queue as files. `beside`: the queue's own files, for entries that
        the database does not have."""
        units = _Units(self._database, queue, beside)
        return _DatabaseQueue(units, self.folder, range_, sources, batch=False)

    def batch_files(self, queue: QueueId, messages_in: MessagesIn, sources: Sources) -> QueueFiles:
        """A queue with inner batches, as the files of a BatchConsumeQueue: a unit for each entry.

        The database lists a batch at its first queue offset alone. Raises CorruptQueueError.
        """
        front = key_prefix(queue)
        keys = self._database.keys(ENTRIES, *_keys_of(queue, *self.ranges[queue]))
        offsets = np.array([_LONG.unpack(key[len(front) :])[0] for key in keys], dtype=np.int64)
        units = _BatchUnits(self._database, queue, offsets, messages_in)
        return _DatabaseQueue(units, self.folder, QueueRange(0, len(keys)), sources, batch=True)

    def _damaged(self, problem: str) -> CorruptQueueError:
        return CorruptQueueError(
            self.folder,
            reason=f"the RocksDB database with the queues cannot be read: {problem}",
            advice="Restore it from a copy, or read the log itself (source=commitlog in Spark, queues=False "
            "in Python); rmqstore rebuild writes queue files in a new store",
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class _BatchUnits(NamedTuple):
    """The entries of a queue as units of a BatchConsumeQueue. `offsets`: their queue offsets, ascending."""

    database: Database
    queue: QueueId
    offsets: Ints
    messages_in: MessagesIn
    width: int = BATCH_QUEUE_ENTRY.itemsize

    def read(self, start: int, stop: int) -> Bytes:
        """The bytes of the units [start, stop). Where no offset is free, an entry is one message.

        Raises the error of a damaged database.
        """
        units, at = np.zeros(stop - start, dtype=BATCH_QUEUE_ENTRY), self.offsets[start:stop]
        if not len(at):
            return units.view(np.uint8)
        values = self.database.values(ENTRIES, *_keys_of(self.queue, int(at[0]), int(at[-1]) + 1))
        if len(values) != len(at) or any(len(value) != _VALUE for value in values):
            raise self.database.damaged("it lists fewer entries than it has keys")
        stored = np.frombuffer(b"".join(values), dtype=QUEUE_VALUE)
        for name in ("log_offset", "size", "tags_code", "store_timestamp"):
            units[name] = stored[name]
        units["base_offset"], units["batch_size"], units["compacted_offset"] = at, 1, -1
        gap = np.diff(self.offsets[start : stop + 1], append=at[-1] + 2)[: len(at)]
        rows = np.flatnonzero(gap > 1)
        places = stored["log_offset"][rows].astype(np.int64), stored["size"][rows].astype(np.int64)
        units["batch_size"][rows] = self.messages_in(*places).clip(1, _MOST_IN_BATCH)
        return units.view(np.uint8)


class _Units(NamedTuple):
    """The entries of one queue as units of a ConsumeQueue. `beside`: see `QueueDatabase.files`."""

    database: Database
    queue: QueueId
    beside: QueueFiles | None
    width: int = QUEUE_ENTRY.itemsize

    def read(self, start: int, stop: int) -> Bytes:
        """The bytes of the entries [start, stop); one that leads nowhere for each that is not there.

        Raises the error of a damaged database.
        """
        front, span = key_prefix(self.queue), _keys_of(self.queue, start, stop)
        values = self.database.values(ENTRIES, *span)
        if len(values) == stop - start and all(len(value) == _VALUE for value in values):
            raw = np.frombuffer(b"".join(values), dtype=np.uint8)
            return np.ascontiguousarray(raw.reshape(-1, _VALUE)[:, :_WIDTH]).reshape(-1)
        units = np.zeros(stop - start, dtype=QUEUE_ENTRY)
        units["log_offset"] = -1
        if self.beside is not None:
            held = self.beside.raw(start, stop)
            real = (held["size"] > 0) & (held["size"] != FILLER_SIZE)
            units[real] = held[real]
        rows = units.view(np.uint8).reshape(-1, _WIDTH)
        for key, value in self.database.items(ENTRIES, *span):
            if len(key) == len(span[0]) and len(value) == _VALUE:
                at = _LONG.unpack(key[len(front) :])[0] - start
                rows[at] = np.frombuffer(value, dtype=np.uint8)[:_WIDTH]
        return rows.reshape(-1)


_UnitsOfQueue = _BatchUnits | _Units


def key_prefix(queue: QueueId) -> bytes:
    """What the keys of a queue's entries begin with; a queue offset follows."""
    name = queue.topic.encode("utf-8")
    return b"".join((_INT.pack(len(name)), _MARK, name, _MARK, _INT.pack(queue.queue_id), _MARK))


def _keys_of(queue: QueueId, first: int, stop: int) -> tuple[bytes, bytes]:
    """The keys of the entries at two queue offsets: of a range, that of its end not included."""
    front = key_prefix(queue)
    return front + _LONG.pack(first), front + _LONG.pack(stop)


def _offset_key(topic: str, number: int) -> bytes:
    """The key in `offset` of a queue's last offset."""
    name = topic.encode("utf-8")
    return b"".join((_INT.pack(len(name)), _MARK, name, _MAX, _INT.pack(number)))


_DISPATCHED = _offset_key("CHECKPOINT_TOPIC", 0)
"""The key of the log offset up to which all records are in the database."""


def _queue_of(key: bytes) -> QueueId | None:
    """The queue of a key of `offset`, if it is the one of a last offset."""
    if len(key) < _INT.size:
        return None
    stop = _INT.size + 1 + _INT.unpack_from(key)[0]
    rest = key[stop:]
    if stop <= _INT.size or len(rest) != len(_MAX) + _INT.size or not rest.startswith(_MAX):
        return None
    number = _INT.unpack_from(rest, len(_MAX))[0]
    try:
        name = key[_INT.size + 1 : stop].decode("utf-8")
    except UnicodeDecodeError:  # a broker takes the name from a topic, which is UTF-8
        return None
    if number < 0 or not name or not is_utf8(name) or not is_plain_name(name):
        return None
    return QueueId(name, number)


class _DatabaseQueue(QueueFiles):
    """The entries of a queue as a chain of files. The database says where the queue begins and ends."""

    def __init__(
        self,
        units: _UnitsOfQueue,
        folder: str,
        range_: QueueRange,
        sources: Sources,
        *,
        batch: bool,
    ) -> None:
        """`range_`: the first unit and the one after the last."""
        super().__init__(
            folder,
            batch=batch,
            file_size=_UNITS * units.width,
            segments=list(_segments(units, folder, range_)),
            sources=sources,
        )
        self.first_unit, self._stop = range_

    def find_end_unit(self) -> int:
        """The queue offset, or entry, after the last one."""
        return self._stop

    def ends(self) -> EndEntries | None:
        """The first and the last entry; None if there is none."""
        first, stop = self.first_unit, self._stop
        if first >= stop or self.batch:
            return None
        return EndEntries(self.unit(first), self.unit(stop - 1), stop)

    def has_bytes_after(self, unit: int) -> bool:
        """Nothing follows: what is in the database beyond its last offset does not count."""
        return False


def _segments(units: _UnitsOfQueue, folder: str, known: QueueRange) -> Iterator[SegmentFile]:
    for base in range(known.first - known.first % _UNITS, known.stop, _UNITS):
        count, at = min(known.stop - base, _UNITS), base * units.width
        name = f"{folder}:{units.queue.name}/{at:020}"
        opened = partial(_DatabaseFile, units, base, count)
        yield PartOfDatabase(name, at, count * units.width, opened=opened)


class _DatabaseFile(ReadableFile):
    """Some entries of a queue as bytes, read from the database when they are asked for. It stays open, as
    it was at one moment."""

    is_there = False

    def __init__(self, units: _UnitsOfQueue, base: int, count: int) -> None:
        """`base`: the first of `count` units."""
        self._units, self._base, self.size = units, base, count * units.width

    @cached_property
    def bytes(self) -> Bytes:
        """All bytes; those that were fetched are there, the others are zeros."""
        return np.zeros(self.size, dtype=np.uint8)

    def read(self, start: int, stop: int) -> Bytes:
        """A copy of some bytes. Raises CorruptQueueError."""
        width = self._units.width
        first, last = start // width, -(-stop // width)
        parts = [
            self._units.read(self._base + at, self._base + min(at + _READ, last))
            for at in range(first, last, _READ)
        ]
        units = np.concatenate(parts) if len(parts) != 1 else parts[0]
        return units[start - first * width : stop - first * width]

    def fetch(self, starts: Ints, stops: Ints, *, first: bool = False) -> None:
        """Read these ranges into `bytes`. Raises CorruptQueueError."""
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                self.bytes[start:stop] = self.read(start, stop)

    def stored_from(self, position: int) -> int:
        """Returns `position`."""
        return position

    def stored_until(self) -> int:
        """The size of the file."""
        return self.size


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
    """Writes the queues of a new store into one database. `left_out`: see `LeftOutOf`.

    As a broker with storeType=defaultRocksDB (RocksDBConsumeQueueStore#putMessagePosition) it lists every
    record at its own queueOffset: of two records with one offset the later one, and an offset that no record
    has stays free. The last offset of a queue is that of its last record in the log. A record with an offset
    that a reader takes for damage is not listed.
    """

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
        end.first = min(end.first, int(offset.min()))
        end.highest = max(end.highest, int(offset.max()))
        end.last, end.last_log_offset = last, place
        self._database.put(ENTRIES, self._pairs(queue, requests, rows))

    @staticmethod
    def _pairs(queue: QueueId, requests: DispatchRequests, rows: Ints) -> list[tuple[bytes, bytes]]:
        values = np.zeros(len(rows), dtype=QUEUE_VALUE)
        for name in QUEUE_VALUE.names or ():
            values[name] = getattr(requests, name)[rows]
        front = key_prefix(queue)
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
        front = key_prefix(queue)
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
            if end.highest > end.last:  # entries behind the last offset count no more
                front, span = key_prefix(queue), _keys_of(queue, end.last + 1, end.highest + 1)
                for key, value in self._database.items(ENTRIES, *span):
                    self._note_one(queue, _LONG.unpack(key[len(front) :])[0], value)
        offsets = [
            (_offset_key(*queue), _PLACE.pack(end.last_log_offset, end.last))
            for queue, end in self._ends.items()
        ]
        self._database.put(OFFSETS, [*offsets, (_DISPATCHED, _LONG.pack(log_end))])
        self._database.close(keep=True)

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
