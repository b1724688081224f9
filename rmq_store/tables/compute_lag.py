"""How far consumer groups are behind, and since when they wait: a row for each committed offset."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rmq_store.config.consumer_offsets import Committed
from rmq_store.config.json_files import written_at
from rmq_store.config.topics_json import queue_count
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.queues import QueueId
from rmq_store.search.log_partitions import COUNTED, bytes_between
from rmq_store.store import MessageStore
from rmq_store.tables.table import Row

NOT_READ, ABOVE_MAX = "NOT_READ", "ABOVE_MAX"
NOT_KNOWN, LOST_ENTRIES, LOST_RECORDS = "NOT_KNOWN", "LOST_ENTRIES", "LOST_RECORDS"


def source_of(store: MessageStore, name: str) -> tuple[str, int | None]:
    """The path of a config file that was read, and when it was written (ms); None if it is gone now."""
    path = Path(store.path) / CONFIG_DIR / name
    return str(path), written_at(path)


def group_rows(
    store: MessageStore, offsets: Iterable[Committed], counted: int = COUNTED
) -> Iterator[Row]:
    """A row of the table `groups` for each committed offset. `counted`: as for `bytes_between`."""
    now = time.time_ns() // 1_000_000
    there, declared = set(store.queues()), store.view.topics.declared
    without_files = "NO_SUCH_QUEUE" if store.view.topics.problem is None else NOT_KNOWN
    sources: dict[str, tuple[str, int | None]] = {}
    for _, name, group, queue, offset in offsets:
        if name not in sources:
            sources[name] = source_of(store, name)
        path, written = sources[name]
        row: dict[str, Any] = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "consumerOffset": offset,
            "status": without_files,
            "configFile": path,
            "configModified": written,
            "configAgeMs": None if written is None else now - written,
        }
        if queue in there:
            row |= _lag(store, queue, offset, counted)
        elif queue.queue_id < queue_count(declared.get(queue.topic)):
            # A queue gets files with its first message.
            row |= {"minOffset": 0, "maxOffset": 0, "lag": 0, "lagBytes": 0, "lagMs": 0}
            row["status"] = ABOVE_MAX if offset > 0 else "OK"
        yield row


def _lag(store: MessageStore, queue: QueueId, offset: int, counted: int) -> Row:
    low, high = store.view.limits(queue)
    status = "BELOW_MIN" if offset < low else ABOVE_MAX if offset > high else "OK"
    if status == "OK" and offset < high and not store.view.topics.is_read(queue):
        status = NOT_READ
    start = min(max(offset, low), high)
    has_hole = any(_within(start, high, store.view.offsets_without_entry(queue)))
    if has_hole:
        status = LOST_ENTRIES
    elif start < high and any(_within(start, high, store.view.offsets_without_log(queue))):
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
    return row


def _within(start: int, stop: int, ranges: Iterable[tuple[int, int]]) -> Iterator[bool]:
    """Of each range, whether it has something of [start, stop)."""
    return (max(start, low) < min(stop, high) for low, high in ranges)
