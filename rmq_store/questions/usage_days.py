"""Messages and bytes by day for stores of many queues: the log is cut at midnight, not each queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise

import numpy as np

from rmq_store.consumequeue.entries import Entries
from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.search.log_by_time import log_offsets_since, times_in_order
from rmq_store.search.log_slices import bytes_between
from rmq_store.store import MessageStore
from rmq_store.tables.table import Row

_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_MOST_DAYS = 400
_LAST_DAY = (date.max - _EPOCH).days
_SMALL = 1 << 16  # entries that are read at once


@dataclass(frozen=True, slots=True)
class DaysOfLog:
    """The first day, UTC, since 1970, and the log offsets where the next days begin."""

    first: int
    cuts: Ints


def days_of_log(store: MessageStore) -> DaysOfLog | None:
    """The days of a log; None where the log is not in the order of its store times, or they
    are too many to be times of a broker."""
    times = times_in_order(store)
    if times is None:
        return None
    first, last = times[0] // _DAY_MS, times[1] // _DAY_MS
    if last - first > _MOST_DAYS:
        return None
    midnights = [day * _DAY_MS for day in range(first + 1, last + 1)]
    return DaysOfLog(first, np.array([*log_offsets_since(store, midnights)], dtype=np.int64))


def small_queue(store: MessageStore, part: QueueSlice, most: int | None) -> Entries | None:
    """All entries of a range; None if they are many (more than `most`), or not each is one message in
    its order."""
    if len(part) > (_SMALL if most is None else min(_SMALL, most)):
        return None
    entries = store.entries(part.queue, part.start, part.stop)
    plain = (
        len(entries) == len(part)
        and bool(entries.points_to_record.all())
        and bool((np.diff(entries.log_offset) > 0).all())
    )
    return entries if plain else None


def rows_of_days(part: QueueSlice, entries: Entries, days: DaysOfLog) -> Iterator[Row]:
    """Rows of the table `usage` for the entries of a range."""
    bounds = [0, *np.searchsorted(entries.log_offset, days.cuts).tolist(), len(entries)]
    summed = np.concatenate([[0], np.cumsum(entries.size, dtype=np.int64)])
    for number, (start, stop) in enumerate(pairwise(bounds)):
        if start < stop:
            size = int(summed[stop] - summed[start])
            yield _row(part.cut(part.start + start, part.start + stop), days.first + number, size)


def estimated_days(
    store: MessageStore, part: QueueSlice, days: DaysOfLog, most: int
) -> Iterator[Row]:
    """Rows of the table `usage` for a range; the bytes of more than `most` messages are estimated."""
    at = [store.view.offset_at_log(part.queue, cut) for cut in days.cuts.tolist()]
    bounds = np.maximum.accumulate(np.clip([part.start, *at, part.stop], part.start, part.stop))
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        if start < stop:
            size = bytes_between(store, part.queue, start, stop, most)
            yield _row(part.cut(start, stop), days.first + number, size)


def _row(part: QueueSlice, day: int, size: int) -> Row:
    return {
        "topic": part.queue.topic,
        "queueId": part.queue.queue_id,
        "day": _EPOCH + timedelta(days=day),
        "messages": len(part),
        "bytes": size,
        "shared": part.queue.topic.startswith(LMQ_PREFIX),
        "firstOffset": part.start,
        "stopOffset": part.stop,
    }
