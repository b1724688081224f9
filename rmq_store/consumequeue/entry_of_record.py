"""The queue entries that the broker derives from records (CommitLogDispatcher).

Used for records that no queue lists yet, and to rebuild queues. Input and output are columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.column_values import DecodedRecords, numbered_topics
from rmq_store.arrow.property_columns import numbers
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import LOG
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.byte_layout import MULTI_DISPATCH_SEPARATOR, Bytes, Ints, Mask, Property
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, QUEUE_ENTRY, ListedEntries, QueueId, Queues
from rmq_store.format.record import decode_properties
from rmq_store.format.topics import LMQ_PREFIX, SCHEDULE_TOPIC
from rmq_store.loops import queue_entries

_NOT_COMPACTED = -1
_UNKNOWN_LEVEL_MS = 1000  # ScheduleMessageService#computeDeliverTimestamp


@dataclass(slots=True)
class DispatchRequests(ListedEntries):
    """n queue entries that follow from records, in log order. Arrays of n.

    `offset` is the record's own queueOffset. `store_timestamp`: ms. `batch` marks the entries of
    BatchConsumeQueues.
    """

    store_timestamp: Ints
    batch: Mask

    def batch_topics(self) -> set[str]:
        """The topics of the entries of BatchConsumeQueues."""
        return {queue.topic for queue, _ in self.by_queue(np.flatnonzero(self.batch))}


def units_of(requests: DispatchRequests, rows: Ints, *, batch: bool) -> npt.NDArray[Any]:
    """The units of entries of one queue, as its files hold them; `batch`: of a BatchConsumeQueue."""
    units = np.zeros(len(rows), dtype=BATCH_QUEUE_ENTRY if batch else QUEUE_ENTRY)
    units["log_offset"] = requests.log_offset[rows]
    units["size"] = requests.size[rows]
    units["tags_code"] = requests.tags_code[rows]
    if batch:
        units["store_timestamp"] = requests.store_timestamp[rows]
        units["base_offset"] = requests.offset[rows]
        units["batch_size"] = requests.count[rows]
        units["compacted_offset"] = _NOT_COMPACTED
    return units


def rows_to_append(offset: Ints, end: int) -> Ints:
    """The rows that a ConsumeQueue with `end` units appends, of the queueOffsets of its next records.

    A row whose queueOffset is before the end is skipped: an earlier record has that offset. An offset
    after the end does not leave a gap, and the queueOffset 0 is always appended
    (ConsumeQueue#putMessagePositionInfo). A BatchConsumeQueue appends every row.
    """
    if not len(offset) or (offset[0] >= end and (np.diff(offset) > 0).all()):
        return np.arange(len(offset))
    kept = []
    for row, its in enumerate(offset.tolist()):
        if its == 0 or its >= end:
            kept.append(row)
            end += 1
    return np.array(kept, dtype=np.int64)


def dispatch(
    records: DecodedRecords,
    delay_levels_ms: Mapping[int, int],
    batch_topics: Collection[str],
    *,
    lmq: bool = True,
) -> DispatchRequests:
    """The queue entries of records.

    Prepared and rolled-back records enter no queue. `lmq`: records with queue offsets for other
    queues (INNER_MULTI_QUEUE_OFFSET) enter those too.
    """
    headers, names, codes = records.headers, records.topics, records.topic_code
    offset, tags_code = headers.queue_offset.copy(), records.keys.tags_codes()
    count = np.ones(len(headers), dtype=np.int64)
    is_batch = np.isin(codes, [names.index(t) for t in batch_topics if t in names])
    is_batch |= (headers.sys_flag & SysFlag.INNER_BATCH) != 0
    batches = np.flatnonzero(is_batch)
    if len(batches):
        offset[batches] = property_numbers_of(
            headers, batches, Property.INNER_BASE, offset[batches]
        )
        count[batches] = property_numbers_of(headers, batches, Property.INNER_NUM, count[batches])
    delayed = codes == (names.index(SCHEDULE_TOPIC) if SCHEDULE_TOPIC in names else -1)
    waiting = np.flatnonzero(delayed & ~is_batch)
    if len(waiting):
        levels = property_numbers_of(headers, waiting, Property.DELAY, np.zeros_like(waiting))
        late, levels = waiting[levels > 0], levels[levels > 0]
        tags_code[late] = headers.store_timestamp[late] + _delays(levels, delay_levels_ms)
    listed = enters_queue(headers.sys_flag)
    rows = np.flatnonzero(listed)
    own = DispatchRequests(
        offset[rows],
        headers.at[rows] + headers.base,
        headers.total[rows],
        tags_code[rows],
        count[rows],
        *numbered_queues(names, codes[rows], headers.queue_id[rows].astype(np.int64)),
        headers.store_timestamp[rows],
        is_batch[rows],
    )
    others = np.flatnonzero(records.keys.other_queues & listed) if lmq else ()
    return _with_others(own, headers, others, tags_code)


def numbered_queues(names: Sequence[str], codes: Ints, queue_ids: Ints) -> tuple[Queues, Ints]:
    """The distinct queues of records, and the place of each record's queue among them.

    `codes`: the place of each record's topic in `names`.
    """
    keys, queue = np.unique(codes << 32 | (queue_ids & 0xFFFFFFFF), return_inverse=True)
    topics = [names[code] for code in (keys >> 32).tolist()]
    ids = keys.astype(np.int32).tolist()  # the lower half, with its sign
    return Queues(map(QueueId, topics, ids)), queue.astype(np.int64)


def plain_entries(
    names: Sequence[str],
    codes: Ints,
    queue_ids: Ints,
    offset: Ints,
    log_offset: Ints,
    size: Ints,
    tags_code: Ints,
    store_timestamp: Ints,
) -> DispatchRequests:
    """The entries of records that one queue lists each, and whose properties change nothing in them.

    `codes`: the place of each topic in `names`. Arrays of n, in log order.
    """
    return DispatchRequests(
        offset,
        log_offset,
        size,
        tags_code,
        np.ones(len(codes), dtype=np.int64),
        *numbered_queues(names, codes, queue_ids),
        store_timestamp,
        np.zeros(len(codes), dtype=bool),
    )


def properties_of(headers: Headers, row: int) -> dict[str, str]:
    """The properties of one record."""
    at, length = int(headers.properties_at[row]), int(headers.properties_length[row])
    return decode_properties(headers.window[at : at + length].tobytes())


def _integer(text: str | None, otherwise: int) -> int:
    """A number that Java's Long can have; `otherwise` for anything else."""
    try:
        number = otherwise if text is None else int(text)
    except ValueError:
        return otherwise
    return number if -(2**63) <= number < 2**63 else otherwise


def property_numbers_of(headers: Headers, rows: Ints, name: str, otherwise: Ints) -> Ints:
    """The number that a property of some records has; `otherwise` where it has none."""
    at, length = headers.properties_at[rows], headers.properties_length[rows]
    return numbers(headers.window, at, length, name, otherwise)


def _delays(levels: Ints, delays: Mapping[int, int]) -> Ints:
    """The delays (ms) of levels above 0; a level above all has the one of the last."""
    last = max(delays, default=0)
    known = [delays.get(level, _UNKNOWN_LEVEL_MS) for level in range(last + 1)]
    return np.array(known, dtype=np.int64)[np.minimum(levels, last)]


def compare_with_records(listed: ListedEntries, headers: Headers) -> Bytes:
    """How n entries compare with the records they lead to, as loops/queue_entries.py names it; all zeros if
    these are their records. `headers`: of the bytes that each leads to."""
    names, starts, stops = listed.queues.topic_texts
    verdicts = np.empty(len(listed), dtype=np.uint8)
    queue_entries.compare(
        headers.window.data,
        headers.fault.data,
        headers.total.data,
        headers.topic_at.data,
        headers.topic_length.data,
        headers.queue_id.data,
        headers.queue_offset.data,
        names.data,
        starts.data,
        stops.data,
        listed.queues.queue_ids.data,
        listed.queue.data,
        listed.offset.data,
        listed.size.data,
        verdicts.data,
    )
    return verdicts


def other_queues_of_record(
    properties: Mapping[str, str], queue_id: int
) -> list[tuple[QueueId, int]]:
    """The other queues of a record and its offset in each (ConsumeQueue#multiDispatchLmqQueue)."""
    names = properties.get(Property.INNER_MULTI_DISPATCH, "").split(MULTI_DISPATCH_SEPARATOR)
    offsets = properties.get(Property.INNER_MULTI_QUEUE_OFFSET, "").split(MULTI_DISPATCH_SEPARATOR)
    if len(names) != len(offsets):
        return []
    return [
        (QueueId(name, 0 if name.startswith(LMQ_PREFIX) else queue_id), at)
        for name, text in zip(names, offsets, strict=True)
        if name and "/" not in name and (at := _integer(text, -1)) >= 0
    ]


def _with_others(
    own: DispatchRequests, headers: Headers, rows: Iterable[int], tags_code: Ints
) -> DispatchRequests:
    """`own` plus the entries of other queues that list the records `rows`, in log order."""
    others = [
        (row, queue, at)
        for row in rows
        for queue, at in other_queues_of_record(
            properties_of(headers, row), int(headers.queue_id[row])
        )
    ]
    if not others:
        return own
    rows_listed, queues, offsets = zip(*others, strict=True)
    listed = np.array(rows_listed, dtype=np.int64)
    entries = plain_entries(
        [queue.topic for queue in queues],
        np.arange(len(others)),
        np.array([queue.queue_id for queue in queues], dtype=np.int64),
        np.array(offsets, dtype=np.int64),
        headers.at[listed] + headers.base,
        headers.total[listed],
        tags_code[listed],
        headers.store_timestamp[listed],
    )
    joined = DispatchRequests.concat([own, entries])
    return joined.take(np.argsort(joined.log_offset, kind="stable"))


def message_counts(log: CommitLog, log_offset: Ints, size: Ints) -> Ints:
    """How many messages each of these records holds: an inner batch says so. 1 where there is no record."""
    count = np.ones(len(log_offset), dtype=np.int64)
    for rows, headers in log.whole_headers(log_offset, size):
        batches = np.flatnonzero(headers.sys_flag & SysFlag.INNER_BATCH)
        counts = property_numbers_of(headers, batches, Property.INNER_NUM, np.ones_like(batches))
        count[rows[batches]] = np.maximum(counts, 1)
    return count


def entries_to_write(
    records: DecodedRecords, config: StoreConfig, batch: set[str], *, lmq: bool = True
) -> DispatchRequests:
    """The queue entries of records that a writer of queues can write."""
    requests = dispatch(records, config.delay_levels_ms, batch, lmq=lmq)
    # A broker stores no topic that cannot name a folder; a foreign log may have one.
    odd = [n for n, queue in enumerate(requests.queues) if not is_plain_name(queue.topic)]
    if not odd:
        return requests
    left_out = np.isin(requests.queue, odd)
    LOG.warning(
        "%d records from log offset %d on are in no queue: topic %r cannot name a folder",
        int(left_out.sum()),
        int(requests.log_offset[left_out].min()),
        requests.queues[odd[0]].topic,
    )
    return requests.take(np.flatnonzero(~left_out))


def start_of_last_life(offset: Ints, count: Ints) -> int:
    """The row at which the last life of a queue begins, by the queue offsets of its records in log order and
    their numbers of messages.

    A topic that is deleted and created again begins at queue offset 0 again, and no broker lists the earlier
    records any more. One that dispatches such a log again lists the earlier ones, the first of the last life
    behind them, and skips the rest.

    A record with queue offset 0 begins one unless the record behind it goes on from those before: no CRC
    covers a queue offset, and a wrong 0 makes no new life.
    """
    for row in np.flatnonzero(offset[1:] == 0)[::-1] + 1:
        if row + 1 == len(offset):
            return int(row)
        behind, end = int(offset[row + 1]), int(offset[:row].max()) + 1
        if behind == int(count[row]) or behind < end:
            return int(row)
    return 0


class QueuesBegun:
    """Finds the queues that begin in a part of the log, by headers in its order: those with a record of
    queue offset 0."""

    def __init__(self) -> None:
        self.begun: set[QueueId] = set()
        self.again: set[QueueId] = set()
        """Those of them with an earlier record, whose topic may have been deleted and created again."""
        self._seen: set[QueueId] = set()

    def add_headers(self, headers: Headers) -> None:
        """Look at the next records of the log."""
        headers = headers.take(enters_queue(headers.sys_flag))
        names, codes = numbered_topics(headers)
        queues, number = numbered_queues(names, codes, headers.queue_id.astype(np.int64))
        first = np.full(len(queues), len(headers), dtype=np.int64)
        np.minimum.at(first, number, np.arange(len(headers)))
        for row in np.flatnonzero(headers.queue_offset == 0).tolist():
            queue = queues[number[row]]
            self.begun.add(queue)
            if queue in self._seen or first[number[row]] < row:
                self.again.add(queue)
        self._seen.update(queues)


class LastLivesOfQueues:
    """Where in a part of the log the last life of each queue begins, of those with an earlier one.

    `begin`: log offsets. `earlier`: the number of messages of earlier lives in the part.
    """

    def __init__(
        self,
        queues: QueuesBegun,
        before: Mapping[QueueId, int],
        dispatched: Iterable[DispatchRequests],
    ) -> None:
        """`before`: the ends of queues that have entries before the part. `dispatched`: the entries of its
        records, in the log's order."""
        self.begin: dict[QueueId, int] = {}
        self.earlier: dict[QueueId, int] = {}
        wanted, parts = queues.again | (queues.begun & before.keys()), []
        for requests in dispatched if wanted else ():
            mine = np.array([queue in wanted for queue in requests.queues], dtype=bool)
            parts.append(requests.take(np.flatnonzero(mine[requests.queue])))
        if not parts:
            return
        tail_requests = DispatchRequests.concat(parts)
        for queue, rows in tail_requests.by_queue():
            last = np.array([before[queue] - 1] if queue in before else [], dtype=np.int64)
            row = start_of_last_life(
                np.append(last, tail_requests.offset[rows]),
                np.append(last, tail_requests.count[rows]),
            )
            if row:
                row -= len(last)
                self.begin[queue] = int(tail_requests.log_offset[rows[row]])
                self.earlier[queue] = int(tail_requests.count[rows[:row]].sum())

    def entries_of_last_lives(self, requests: DispatchRequests) -> DispatchRequests:
        """The entries that are not of an earlier life."""
        if not self.begin:
            return requests
        begin = np.array([self.begin.get(queue, 0) for queue in requests.queues], dtype=np.int64)
        return requests.take(np.flatnonzero(requests.log_offset >= begin[requests.queue]))
