"""Tables `topics`, `queues`, `usage` and `damage`. The last two read all queue entries, and `damage`
the log too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta, timezone, tzinfo
from typing import Any

from rmq_store.errors import LOG, StoreError
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.reading.query import listed_record_size
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import bytes_between, times_in_order
from rmq_store.tables.table import (
    DAY,
    FLAG,
    INT,
    LONG,
    TEXT,
    TIMESTAMP,
    Row,
    Table,
    all_ranges,
    table_columns,
)
from rmq_store.text.times import HOUR_MS, day_of, start_of_day, start_of_hour


def _topics(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    declared, problem = store.view.topics.declared, store.view.topics.problem
    for topic in sorted({*store.topics(), *declared}):
        queues = store.queues(topic)
        said = declared.get(topic, {})
        yield {
            "topic": topic,
            "system": store.is_system_topic(topic),
            "queues": len(queues),
            "batch": any(store.view.is_batch(queue) for queue in queues),
            "messages": sum(store.max_offset(*q) - store.min_offset(*q) for q in queues),
            "declared": None if problem else topic in declared,
            "readQueueNums": said.get("readQueueNums"),
            "writeQueueNums": said.get("writeQueueNums"),
            "perm": said.get("perm"),
            "problem": None if problem is None else str(problem),
        }


TOPICS = Table(
    "topics",
    "the topics that have a queue or are in topics.json",
    table_columns(
        ("topic", TEXT, "the topic"),
        ("system", FLAG, "a system topic"),
        ("queues", INT, "queues with files or messages"),
        ("batch", FLAG, "its queues are BatchConsumeQueues"),
        ("messages", LONG, "messages in all its queues"),
        ("declared", FLAG, "in topics.json; null if unreadable"),
        ("readQueueNums", INT, "in topics.json"),
        ("writeQueueNums", INT, "in topics.json"),
        ("perm", INT, "in topics.json: 4 read, 2 write"),
        ("problem", TEXT, "why topics.json cannot be read"),
    ),
    _topics,
)


def queue_rows(store: StoreReader, queues: Iterable[QueueId]) -> Iterator[Row]:
    """A row of the table `queues` for each of some queues."""
    for queue in queues:
        low, high = store.min_offset(*queue), store.max_offset(*queue)
        state = store.snapshot().queues[queue]
        tail = state.tail
        row: dict[str, Any] = {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "batch": state.batch,
            "minOffset": low,
            "maxOffset": high,
            "messages": high - low,
            "dispatchLag": 0 if tail is None else int(tail.count.sum()),
            "dispatchLagBytes": 0 if tail is None else int(tail.size.sum()),
        }
        if low < high:
            row["firstCommitLogOffset"] = store.log_offset_of(queue, low)
            row["lastCommitLogOffset"] = store.log_offset_of(queue, high - 1)
            row["firstStoreTimestamp"] = store.view.store_time(queue, low)
            row["lastStoreTimestamp"] = store.view.store_time(queue, high - 1)
        yield row


QUEUES = Table(
    "queues",
    "the queues: start and end of each, and its messages that only the log has so far",
    table_columns(
        ("topic", TEXT, "its topic"),
        ("queueId", INT, "its number in the topic"),
        ("batch", FLAG, "a BatchConsumeQueue"),
        ("minOffset", LONG, "queue offset of the first message"),
        ("maxOffset", LONG, "queue offset after the last message"),
        ("messages", LONG, "maxOffset minus minOffset"),
        ("dispatchLag", LONG, "messages not yet in the queue's files"),
        ("dispatchLagBytes", LONG, "bytes of their records"),
        ("firstCommitLogOffset", LONG, "log offset of the first message"),
        ("lastCommitLogOffset", LONG, "log offset of the last message"),
        ("firstStoreTimestamp", TIMESTAMP, "when the first message was stored"),
        ("lastStoreTimestamp", TIMESTAMP, "when the last message was stored"),
    ),
    lambda store, ranges: queue_rows(store, store.queues()),
)


_EPOCH = date(1970, 1, 1)


def usage_rows(
    store: StoreReader,
    ranges: Iterable[QueueSlice],
    counted: int | None = None,
    zone: tzinfo = timezone.utc,
    *,
    hours: bool = False,
) -> Iterator[Row]:
    """Rows of the table `usage`: one for each range and day of store time, in `zone`. With `hours` one for
    each hour, which `hour` has as its start (ms); None if that is not known.

    `counted`: the bytes of a row with more messages are estimated from samples; by default of none.
    """
    for slice_ in ranges:
        at = slice_.start
        while at < slice_.stop:
            stored = store.view.store_time(slice_.queue, at)
            day = None if stored is None else day_of(stored, zone)
            upto = slice_.stop
            hour = None
            if stored is not None and day is not None:
                hour = start_of_hour(stored, zone)
                end = hour + HOUR_MS if hours else start_of_day(day + 1, zone)
                behind = store.first_since(slice_.queue, end)
                upto = min(slice_.stop, behind) if behind > at else slice_.stop
            exact = upto - at if counted is None else counted
            size = bytes_between(store, slice_.queue, at, upto, exact)
            row = usage_row(slice_.cut(at, upto), day, size)
            yield {**row, "hour": hour} if hours else row
            at = upto


def usage_row(slice_: QueueSlice, day: int | None, size: int) -> Row:
    """A row of the table `usage` for a range, of a day since 1970 if that is known."""
    return {
        "topic": slice_.queue.topic,
        "queueId": slice_.queue.queue_id,
        "day": None if day is None else _date(day),
        "messages": len(slice_),
        "bytes": size,
        "shared": slice_.queue.topic.startswith(LMQ_PREFIX),
        "firstOffset": slice_.start,
        "stopOffset": slice_.stop,
    }


def _date(day: int) -> date | None:
    """A day since 1970 as a date; None beyond the year 9999."""
    try:
        return _EPOCH + timedelta(days=day)
    except OverflowError:
        return None


def problem_of_times(store: StoreReader) -> str | None:
    """Why what is counted by day or hour may be wrong: these are parts of queues, each up to the next one."""
    start, end = store.log_range()
    if start == end or times_in_order(store) is not None:
        return None
    return (
        "the log is not in the order of its store times, as where the broker's clock was set back: what is "
        "counted by day or hour may be wrong. rmqstore sql counts messages by the time of each"
    )


def _usage_of_store(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    # A share of Spark is not asked: its log is not the user's.
    if ranges is None and (problem := problem_of_times(store)):
        LOG.warning("%s: %s", store.broker_name, problem)
    yield from usage_rows(store, all_ranges(store) if ranges is None else ranges)


USAGE = Table(
    "usage",
    "messages and bytes by topic, queue and day of store time (UTC)",
    table_columns(
        ("topic", TEXT, "the queue's topic"),
        ("queueId", INT, "the queue's number"),
        ("day", DAY, "day of store time, UTC; null if not known"),
        ("messages", LONG, "messages of that day"),
        ("bytes", LONG, "bytes of their records"),
        ("shared", FLAG, "a light queue: its records are of other topics too"),
        ("firstOffset", LONG, "queue offset of the first message"),
        ("stopOffset", LONG, "queue offset after the last message"),
    ),
    _usage_of_store,
)


def damage_row(error: StoreError) -> Row:
    """A row of the table `damage`."""
    row: dict[str, object] = {
        "code": error.code,
        "reason": str(error),
        "path": error.path,
        "commitLogOffset": error.log_offset,
        "storeSize": listed_record_size(error.entry),
    }
    if error.entry is not None:
        topic, queue_id, queue_offset, *_ = error.entry
        row |= {"topic": topic, "queueId": queue_id, "queueOffset": queue_offset}
    return row


def _damage(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    # What only this table needs takes longer to load than a short answer of the others to make.
    from rmq_store.verify.verify_store import errors_of_part, log_parts

    met: list[StoreError] = []
    wanted = all_ranges(store) if ranges is None else ranges
    for _ in store.read_slices(
        wanted, columns=("commitLogOffset", "body"), compacted=False, on_damage=met.append
    ):
        yield from map(damage_row, met)
        met.clear()
    yield from map(damage_row, met)
    queues = {part.queue for part in wanted}
    for start, stop in log_parts(store):
        errors = errors_of_part(store, start, stop, lambda queue: ranges is None or queue in queues)
        yield from map(damage_row, errors)


DAMAGE = Table(
    "damage",
    "every damaged queue entry, and what verify finds lost: damaged ranges of the log, and records that "
    "their queue does not list",
    table_columns(
        ("topic", TEXT, "topic of the damaged entry"),
        ("queueId", INT, "its queue"),
        ("queueOffset", LONG, "its queue offset"),
        ("commitLogOffset", LONG, "log offset where the record should be"),
        ("storeSize", INT, "bytes of the record"),
        ("code", TEXT, "error code: RMQSTORE_..."),
        ("path", TEXT, "the file"),
        ("reason", TEXT, "what is wrong, and what to do"),
    ),
    _damage,
)
