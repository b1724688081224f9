"""Appends messages as records to the log, with the queueOffset, place and store time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmq_store.arrow.encoding.batch_to_records import (
    LOOPBACK,
    OffsetProperties,
    PreparedMessages,
    prepare,
    with_offset_properties,
)
from rmq_store.arrow.encoding.checks import check_sizes
from rmq_store.commitlog.log import LogAppender
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import InvalidArgumentError, InvalidMessageError
from rmq_store.format.byte_layout import BLANK_SIZE, Columns, Ints
from rmq_store.format.compression import enters_queue
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_duration
from rmq_store.writing.dispatcher import Dispatcher
from rmq_store.writing.encoded_records import (
    EncodedRecords,
    RecordFacts,
    Unplaced,
    record_facts,
    rows_by_queue,
)

_FEW = 16  # messages whose entries are found together with those of others, in the log's bytes


@dataclass(frozen=True, slots=True)
class AppendedMessage:
    """The place of one appended message. `store_timestamp` is in ms."""

    queue_offset: int
    commit_log_offset: int
    store_size: int
    store_timestamp: int
    msg_id: str


@dataclass(frozen=True, slots=True)
class AppendResult(Columns):
    """The places of appended messages: arrays of n in batch order. Timestamps in ms."""

    queue_offset: Ints
    commit_log_offset: Ints
    store_size: Ints
    store_timestamp: Ints

    def __len__(self) -> int:
        return len(self.commit_log_offset)


@dataclass(eq=False, repr=False)
class RecordAppender:
    """Appends records to the log. Not thread-safe: the caller holds the writer's lock.

    `last_record` (log offset) and `last_timestamp` (ms) belong to the last appended record. An
    invalid message raises before a byte is written. If writing itself fails, it is `broken`: the end of
    the log is unknown then. `lists`: whether the dispatcher gets the records.
    """

    log: LogAppender
    offsets: QueueCounters
    config: StoreConfig
    dialect: Dialect
    last_record: int
    last_timestamp: int
    dispatcher: Dispatcher
    lists: bool = True
    broken: bool = False
    times_back: ClockSetBack | None = None

    def append_rows(
        self, batch: pa.RecordBatch, together: bool, copied: bool, halves: Ints | None = None
    ) -> AppendResult:
        """Append the messages of a batch; `together`: all of them in one file of the log; `copied`:
        they are records of another store; `halves`: see `StoreWriter.append_batch`."""
        assigned = OffsetProperties(self.config, self.offsets.next_offset)
        placed = with_offset_properties(batch, assigned, self.dialect)
        prepared = prepare(placed, self.config, self.dialect, LOOPBACK, copied=copied)
        if together and int(prepared.total.sum()) + BLANK_SIZE > self.config.commitlog_file_size:
            raise InvalidMessageError(reason="the batch does not fit into one file of the log")
        if halves is not None:  # the values that the caller gave are not ours to change
            given = prepared.numbers["preparedTransactionOffset"]
            prepared.numbers["preparedTransactionOffset"] = given.copy()
        many = self.lists and len(prepared) > _FEW
        facts = record_facts(prepared, self.dialect) if many else None
        done = self._append(prepared, prepared.counts, facts, together, halves)
        self.offsets.raise_offsets_to(assigned.lmq)
        return done

    def append_encoded(self, records: EncodedRecords) -> AppendResult:
        """Append encoded records, at least one."""
        records.check()
        check_sizes({"room": records.total}, self.config, self.dialect, copied=True)
        if self.config.enabledAppendPropCRC and self.dialect.has("record_crc"):
            raise InvalidArgumentError(
                reason="encoded records have no record CRC, and the store has enabledAppendPropCRC",
                advice="Append the messages as a batch of columns",
            )
        return self._append(records, np.ones(len(records), dtype=np.int64), records)

    def _append(
        self,
        records: Unplaced,
        counts: Ints,
        facts: RecordFacts | None,
        together: bool = False,
        halves: Ints | None = None,
    ) -> AppendResult:
        queue_offset = self.offsets.assign(records, counts)
        # As given, else now; never before the previous one.
        now, given = time.time_ns() // 1_000_000, records.store_timestamp
        stamps = np.where(given > 0, given, max(now, self.last_timestamp))
        if self.times_back is not None:
            self.times_back.take(records, stamps)
        self.broken = True  # until all of them are written
        places = np.empty(len(records), dtype=np.int64)
        at = 0
        while at < len(records):
            count = self.log.fitting(records.total[at:], together=together)
            if not count:
                self.log.end_file()
                continue
            rows = slice(at, at + count)
            sizes = records.total[rows]
            places[rows] = self.log.end + np.cumsum(sizes) - sizes
            if halves is not None and isinstance(records, PreparedMessages):
                named = at + np.flatnonzero(halves[rows] >= 0)
                records.numbers["preparedTransactionOffset"][named] = places[halves[named]]
            place = queue_offset[rows], places[rows], stamps[rows]
            data = records.placed(rows, *place)
            self.log.write(data)
            at += count
            self.last_record = int(places[at - 1])
            if self.lists:
                listing = None if facts is None else facts.listed(rows, *place)
                self.dispatcher.collect(data, places[rows], listing)
        self.broken = False
        self.last_timestamp = int(stamps[-1])
        return AppendResult(queue_offset, places, records.total, stamps)


class QueueCounters:
    """The next queueOffset of every queue. Not thread-safe: the writer holds a lock."""

    def __init__(self, ends: Mapping[QueueId, int]) -> None:
        """`ends`: the max offset of each existing queue."""
        self._next = dict(ends)

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._next)

    def next_offset(self, queue: QueueId) -> int:
        """The queueOffset of the next message of a queue; 0 for a new queue."""
        return self._next.get(queue, 0)

    def raise_offsets_to(self, ends: Mapping[QueueId, int]) -> None:
        """Raise counters to at least these ends."""
        for queue, end in ends.items():
            self._next[queue] = max(self.next_offset(queue), end)

    def assign(self, prepared: Unplaced, counts: Ints) -> Ints:
        """queueOffset of each record: the queue's counter; 0 for records that enter no queue."""
        offsets = np.zeros(len(prepared), dtype=np.int64)
        listed = np.flatnonzero(enters_queue(prepared.sys_flag))
        for queue, rows in rows_by_queue(prepared, listed):
            ends = self.next_offset(queue) + np.cumsum(counts[rows])
            offsets[rows] = ends - counts[rows]
            self._next[queue] = int(ends[-1])
        return offsets


class ClockSetBack:
    """Counts messages that are given an earlier store time than one before them in their queue."""

    def __init__(self, last_of: Callable[[QueueId], int]) -> None:
        """`last_of`: the store time (ms) of the last message that a queue has so far; 0 if not known."""
        self._last_of = last_of
        self._newest: dict[QueueId, int] = {}
        self._queues: set[QueueId] = set()
        self._count = self._most = 0

    def take(self, records: Unplaced, stamps: Ints) -> None:
        """Count messages that are about to be appended with these times (ms)."""
        for queue, rows in rows_by_queue(records, np.arange(len(records))):
            times = stamps[rows]
            if queue not in self._newest:
                self._newest[queue] = self._last_of(queue)
            newest = np.maximum.accumulate(np.r_[self._newest[queue], times])
            self._newest[queue] = int(newest[-1])
            back = np.maximum(newest[:-1] - times, 0)
            if back.any():
                self._queues.add(queue)
                self._count += int(np.count_nonzero(back))
                self._most = max(self._most, int(back.max()))

    def __str__(self) -> str:
        """A sentence about them; empty for none."""
        if not self._count:
            return ""
        queue = min(self._queues)
        return (
            f"given store times go back within {counted(len(self._queues), 'queue')}, such as {queue.name}: "
            f"{counted(self._count, 'message')}, by up to {shown_duration(self._most)}. A broker, and "
            "readers by time, find a time in a queue by binary search and miss messages there: write rows in "
            "the order of their store time, or without their times"
        )
