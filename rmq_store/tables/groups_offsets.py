"""Tables `groups` and `offsets`: committed consumer offsets, and how far consumers are behind."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rmq_store.config.consumer_offsets import (
    DELAY_FILE,
    Committed,
    committed_offsets,
    read_delay_offsets,
)
from rmq_store.config.topics_json import queue_count
from rmq_store.format.layout import CONFIG_DIR
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.store import MessageStore
from rmq_store.tables.bytes_between import COUNTED, bytes_between
from rmq_store.tables.table import BROKER, INT, LONG, TEXT, TIMESTAMP, Row, Table, TableColumn


def _source(store: MessageStore, name: str) -> tuple[str, int | None]:
    """The file read for a config file's name, and when it was written (ms)."""
    folder = Path(store.path) / CONFIG_DIR
    for path in (folder / name, folder / f"{name}.bak"):
        if path.exists() and path.stat().st_size:
            return str(path), path.stat().st_mtime_ns // 1_000_000
    return str(folder / name), None


def group_rows(
    store: MessageStore, offsets: Iterable[Committed], counted: int = COUNTED
) -> Iterator[Row]:
    """A row of the table `groups` for each committed offset. `counted`: as for `bytes_between`."""
    now = time.time_ns() // 1_000_000
    there, declared = set(store.queues()), store.view.declared_topics
    sources: dict[str, tuple[str, int | None]] = {}
    for _, name, group, queue, offset in offsets:
        if name not in sources:
            sources[name] = _source(store, name)
        path, written = sources[name]
        row: dict[str, Any] = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "consumerOffset": offset,
            "status": "NO_SUCH_QUEUE",
            "configFile": path,
            "configModified": written,
            "configAgeMs": None if written is None else now - written,
        }
        if queue in there:
            row |= _lag(store, queue, offset, counted)
        elif queue.queue_id < queue_count(declared.get(queue.topic)):
            # A queue gets files with its first message.
            row |= {"minOffset": 0, "maxOffset": 0, "lag": 0, "lagBytes": 0, "lagMs": 0}
            row["status"] = "ABOVE_MAX" if offset > 0 else "OK"
        yield row


def _groups(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    return group_rows(store, committed_offsets(store.path))


def _lag(store: MessageStore, queue: QueueId, offset: int, counted: int) -> Row:
    low, high = store.min_offset(*queue), store.max_offset(*queue)
    status = "BELOW_MIN" if offset < low else "ABOVE_MAX" if offset > high else "OK"
    start = min(max(offset, low), high)
    row: dict[str, Any] = {
        "minOffset": low,
        "maxOffset": high,
        "lag": high - start,
        "lagBytes": bytes_between(store, queue, start, high, counted),
        "status": status,
        "lagMs": 0,
    }
    if start < high:
        first, last = store.view.store_time(queue, start), store.view.store_time(queue, high - 1)
        row["firstUnconsumedTimestamp"] = first
        row["lagMs"] = None if first is None or last is None else last - first
    return row


GROUPS = Table(
    "groups",
    "how far each consumer group is in each queue, according to the broker's file",
    (
        BROKER,
        TableColumn("consumerGroup", TEXT, "the group"),
        TableColumn("topic", TEXT, "topic of the queue"),
        TableColumn("queueId", INT, "number of the queue"),
        TableColumn("consumerOffset", LONG, "the next queue offset that the group will consume"),
        TableColumn("minOffset", LONG, "the first queue offset that has a message"),
        TableColumn("maxOffset", LONG, "the queue offset after the last message"),
        TableColumn("lag", LONG, "messages not consumed yet"),
        TableColumn("lagBytes", LONG, "bytes of their records; estimated above a million messages"),
        TableColumn(
            "lagMs", LONG, "store time of the newest message minus that of the first unconsumed one"
        ),
        TableColumn(
            "firstUnconsumedTimestamp", TIMESTAMP, "when the first unconsumed message was stored"
        ),
        TableColumn(
            "status",
            TEXT,
            "OK, BELOW_MIN (unconsumed messages expired), ABOVE_MAX "
            "(the offset is after the last message) or NO_SUCH_QUEUE",
        ),
        TableColumn("configFile", TEXT, "the file that says so"),
        TableColumn("configModified", TIMESTAMP, "when that was written"),
        TableColumn("configAgeMs", LONG, "age of the file, which misses what was consumed since"),
    ),
    _groups,
)


def _offsets(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for kind, name, group, queue, offset in committed_offsets(store.path):
        yield {
            "kind": kind,
            "file": _source(store, name)[0],
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "offset": offset,
        }
    for topic, levels in read_delay_offsets(store.path).items():
        for queue_id, offset in levels.items():
            yield {
                "kind": "delay",
                "file": _source(store, DELAY_FILE)[0],
                "topic": topic,
                "queueId": queue_id,
                "offset": offset,
            }


OFFSETS = Table(
    "offsets",
    "every offset in the broker's files, unchanged",
    (
        BROKER,
        TableColumn("kind", TEXT, "consumer, lmq (light queue) or delay (delay level)"),
        TableColumn("file", TEXT, "the file that says so"),
        TableColumn("consumerGroup", TEXT, "the group; null for a delay level"),
        TableColumn("topic", TEXT, "topic of the queue"),
        TableColumn("queueId", INT, "number of the queue; for a delay level, the level minus one"),
        TableColumn("offset", LONG, "the next queue offset to consume or to deliver"),
    ),
    _offsets,
)
