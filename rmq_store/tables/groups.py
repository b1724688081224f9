"""Tables `groups` and `offsets`: committed consumer offsets, how far consumers are behind, and since when
they wait."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmq_store.commitlog.walk import current_end
from rmq_store.config.broker_conf import RetentionPolicy
from rmq_store.config.consumer_offsets import (
    GroupOffset,
    committed_offsets,
    committed_pulled_and_popped_offsets,
    read_delay_file,
)
from rmq_store.config.json_files import last_write_ms
from rmq_store.config.topics_json import queue_count
from rmq_store.errors import LOG, InvalidArgumentError, StoreError
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import COUNTED, bytes_between
from rmq_store.system_topics.pop import GroupQueue, not_acknowledged
from rmq_store.tables.table import INT, LONG, TEXT, TIMESTAMP, Row, Table, table_columns
from rmq_store.text.times import LATEST_MS

NOT_READ, ABOVE_MAX = "NOT_READ", "ABOVE_MAX"
NOT_KNOWN, LOST_ENTRIES, LOST_RECORDS = "NOT_KNOWN", "LOST_ENTRIES", "LOST_RECORDS"


def path_and_write_time(store: StoreReader, name: str) -> tuple[str, int | None]:
    """The path of a config file that was read, and when it was written (ms); None if it is gone now."""
    path = Path(store.path) / CONFIG_DIR / name
    return str(path), last_write_ms(path)


def group_rows(
    store: StoreReader, offsets: Iterable[GroupOffset], counted: int = COUNTED
) -> Iterator[Row]:
    """A row of the table `groups` for each committed offset. `counted`: as for `bytes_between`."""
    listed = list(offsets)
    with _not_before(store, listed) as not_before:
        yield from _group_rows(not_before, listed, counted)


@contextmanager
def _not_before(store: StoreReader, offsets: Iterable[GroupOffset]) -> Iterator[StoreReader]:
    """The store; or as it is now, if a broker has written on: consumers may have read what came since."""
    states, end = store.snapshot().queues, store.log_range()[1]
    ends = {queue: state.max_offset for queue, state in states.items()}
    is_ahead = any(committed.offset > ends.get(committed.queue, 0) for committed in offsets)
    if is_ahead:
        store.refuse_other()
        if current_end(store.log, end) > end:
            with StoreReader.open(
                store.path, broker_name=store.broker_name, config=store.config
            ) as store_of_now:
                yield store_of_now
            return
    yield store


def _group_rows(store: StoreReader, listed: list[GroupOffset], counted: int) -> Iterator[Row]:
    now = time.time_ns() // 1_000_000
    queues, declared = set(store.queues()), store.view.topics.declared
    without_files = "NO_SUCH_QUEUE" if store.view.topics.problem is None else NOT_KNOWN
    sources: dict[str, tuple[str, int | None]] = {}
    unacknowledged = _unacknowledged(store, listed)
    for _, name, group, queue, offset in listed:
        if name not in sources:
            sources[name] = path_and_write_time(store, name)
        path, written = sources[name]
        row: dict[str, Any] = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "consumerOffset": offset,
            "notAcknowledged": None if unacknowledged is None else unacknowledged[group, queue],
            "status": without_files,
            "configFile": path,
            "configModified": written,
            "configAgeMs": None if written is None else now - written,
        }
        if queue in queues:
            row |= _lag(store, queue, offset, counted, now)
        elif queue.queue_id < queue_count(declared.get(queue.topic)):
            # A queue gets files with its first message.
            row |= {"minOffset": 0, "maxOffset": 0, "lag": 0, "lagBytes": 0, "lagMs": 0}
            row["status"] = ABOVE_MAX if offset > 0 else "OK"
        yield row


def _unacknowledged(
    store: StoreReader, offsets: Iterable[GroupOffset]
) -> Counter[GroupQueue] | None:
    """As `not_acknowledged`; None, and a warning, if a file that says it cannot be read."""
    try:
        return not_acknowledged(store, {(c.group, c.queue): c.offset for c in offsets})
    except StoreError as error:
        LOG.warning("which popped messages were not acknowledged is not known: %s", error)
        return None


def _lag(store: StoreReader, queue: QueueId, offset: int, counted: int, now: int) -> Row:
    low, high = store.view.limits(queue)
    status = "BELOW_MIN" if 0 <= offset < low else ABOVE_MAX if offset > high else "OK"
    if status == "OK" and offset < high and not store.view.topics.is_read(queue):
        status = NOT_READ
    start = min(max(offset, low), high)
    has_hole = _meets(start, high, store.view.offsets_without_entry(queue))
    if has_hole:
        status = LOST_ENTRIES
    elif start < high and _meets(start, high, store.view.offsets_without_log(queue)):
        status = LOST_RECORDS
    row: dict[str, Any] = {
        "minOffset": low,
        "maxOffset": high,
        "lag": high - start,
        "lagBytes": None if has_hole else bytes_between(store, queue, start, high, counted),
        "status": status,
        "lagMs": 0,
    }
    if start < high:
        first, last = store.view.store_time(queue, start), store.view.store_time(queue, high - 1)
        row["firstUnconsumedTimestamp"] = first
        row["lagMs"] = None if first is None or last is None else last - first
        row["deletedFrom"] = _deleted_from(store, store.view.log_offset_of(queue, start), now)
    return row


def _deleted_from(store: StoreReader, place: int, now: int) -> int | None:
    """When retention may delete the log file of a place (ms); None for the last file, and if unknown."""
    segment = store.log.chain.segment_at(place)
    if not store.log.chain.cost.grows or segment is None:
        return None
    if not store.log.may_go(segment, store.log_range()[1]):
        return None
    try:
        policy = RetentionPolicy.of(store.config)
        moment = policy.goes_at(os.stat(segment.path).st_mtime_ns // 1_000_000, now)
    except (OSError, OverflowError, InvalidArgumentError):
        return None
    return None if moment is None or moment > LATEST_MS else moment


def _meets(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether one of some ranges has something of [start, stop)."""
    return any(max(start, low) < min(stop, high) for low, high in ranges)


GROUPS = Table(
    "groups",
    "how far each consumer group is in each queue, according to the broker's file",
    table_columns(
        ("consumerGroup", TEXT, "the group"),
        ("topic", TEXT, "the queue's topic"),
        ("queueId", INT, "the queue's number"),
        ("consumerOffset", LONG, "next queue offset to consume"),
        ("minOffset", LONG, "queue offset of the first message"),
        ("maxOffset", LONG, "queue offset after the last message"),
        ("lag", LONG, "messages not consumed yet, without expired ones"),
        ("lagBytes", LONG, "their bytes; estimated above a million messages"),
        (
            "notAcknowledged",
            LONG,
            "messages before consumerOffset, popped and not acknowledged: they come again (by the "
            "newest 200,000 check points and acknowledgements)",
        ),
        ("lagMs", LONG, "store time of the queue's newest message minus firstUnconsumedTimestamp"),
        ("firstUnconsumedTimestamp", TIMESTAMP, "when the first unconsumed message was stored"),
        (
            "deletedFrom",
            TIMESTAMP,
            "when retention may delete that message for its age: fileReservedTime after its log "
            "file was written, in an hour of deleteWhen; null in the last file, or if not known",
        ),
        (
            "status",
            TEXT,
            "OK; BELOW_MIN: unconsumed messages expired; ABOVE_MAX: the offset is after the last "
            "message; NOT_READ: no consumer reads the queue (readQueueNums, perm, or not in "
            "topics.json); LOST_ENTRIES, LOST_RECORDS: entries or records of waiting messages are "
            "lost; NOT_KNOWN: no files, and topics.json cannot be read; NO_SUCH_QUEUE",
        ),
        ("configFile", TEXT, "file with the offset"),
        ("configModified", TIMESTAMP, "when it was written"),
        ("configAgeMs", LONG, "its age: later consumption is missing"),
    ),
    lambda store, ranges: group_rows(store, committed_offsets(store.path, store.config.enableLmq)),
)


def _offsets(store: StoreReader, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for kind, name, group, queue, offset in committed_pulled_and_popped_offsets(store.path):
        yield {
            "kind": kind,
            "file": path_and_write_time(store, name)[0],
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "offset": offset,
        }
    delay = read_delay_file(store.path)
    if delay is not None:
        level = {"kind": "delay", "file": str(delay.path), "topic": SCHEDULE_TOPIC}
        for queue_id, offset in delay.value.items():
            yield {**level, "queueId": queue_id, "offset": offset}


OFFSETS = Table(
    "offsets",
    "every offset in the broker's files, unchanged",
    table_columns(
        ("kind", TEXT, "consumer, lmq (light queue), pull, pop (in order) or delay (delay level)"),
        ("file", TEXT, "file with the offset"),
        ("consumerGroup", TEXT, "the group; null for a delay level"),
        ("topic", TEXT, "the queue's topic"),
        ("queueId", INT, "the queue's number; the delay level minus one"),
        ("offset", LONG, "next queue offset to consume, send or deliver"),
    ),
    _offsets,
)
