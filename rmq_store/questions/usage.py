"""What fills the disk: messages and bytes by topic, queue and day, and the largest messages.

In stores of many queues the log is cut at midnight, not each queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timezone, tzinfo
from itertools import pairwise
from typing import Any

import numpy as np

from rmq_store.format.byte_layout import Ints
from rmq_store.format.queues import Entries, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.questions.answer_by_shares import OnProgress, ignore
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import (
    bytes_between,
    log_offsets_since,
    queue_offset_steps,
    times_in_order,
)
from rmq_store.tables.queues import usage_row, usage_rows
from rmq_store.tables.table import Row, all_ranges
from rmq_store.text.times import DAY_MS

_ENTRIES_AT_ONCE = 1 << 16
_GROWTH_DAYS = 7

_MOST_DAYS = 400
_COUNTED = 1 << 16  # messages of a queue up to which its entries may be read; above it, bisected
_ENTRIES = 20_000_000  # that are read in all: some seconds
_BISECTIONS = 200_000  # in all: some ten seconds
_FEWEST_PERIODS = 12

Cuts = Sequence[int]


@dataclass(frozen=True, slots=True)
class UsageAnswer:
    """Rows of the table `usage`, the largest messages, and the size of the log in bytes.

    Light queues list records of other topics. So sums leave out their rows, which are `shared`.
    """

    rows: Sequence[Row]
    largest: Sequence[Row]
    log_bytes: int

    @property
    def messages(self) -> int:
        """The number of messages that queues list, without light queues."""
        return sum(row["messages"] for row in self.rows if not row["shared"])

    @property
    def bytes_in_queues(self) -> int:
        """Bytes of the records that queues list, without light queues."""
        return sum(row["bytes"] for row in self.rows if not row["shared"])

    def by(self, *names: str) -> list[dict[str, Any]]:
        """Messages, bytes and the share of the log for each value of the columns `names`.

        The largest groups come first. `shared`: the bytes are also counted in other topics. Groups
        without the topic have no light queues in them.
        """
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            if not row["shared"] or "topic" in names:
                groups.setdefault(tuple(row[name] for name in names), []).append(row)
        totals = []
        for key in sorted(groups, key=lambda key: list(map(str, key))):
            size = sum(row["bytes"] for row in groups[key])
            total = {
                "messages": sum(row["messages"] for row in groups[key]),
                "bytes": size,
                "shared": groups[key][-1]["shared"],
                "share of the log": round(size / self.log_bytes, 4) if self.log_bytes else None,
            }
            totals.append(dict(zip(names, key, strict=True)) | total)
        return sorted(totals, key=lambda total: -total["bytes"])

    def changes(self) -> dict[date, int]:
        """The change in bytes from the day before, of each day but the first."""
        return {day: size - before for (_, before), (day, size) in pairwise(sorted(self._days()))}

    def growth(self) -> tuple[int, int] | None:
        """A number of days, and their mean bytes; None without one.

        They are the last seven days with messages, and those without up to the last day. That is left out,
        because it is not complete.
        """
        days = sorted(self._days())[-_GROWTH_DAYS - 1 :]
        if len(days) < 2:
            return None
        count = (days[-1][0] - days[0][0]).days
        return count, sum(size for _, size in days[:-1]) // count

    def _days(self) -> list[tuple[date, int]]:
        return [(row["day"], row["bytes"]) for row in self.by("day") if row["day"] is not None]


def usage_of(
    store: StoreReader,
    ranges: tuple[QueueSlice, ...] | None = None,
    largest: int = 0,
    *,
    entries_of_a_queue: int | None = None,
    days_by_log: bool = False,
    zone: tzinfo = timezone.utc,
    hours: bool = False,
    progress: OnProgress = ignore,
) -> UsageAnswer:
    """The usage of `ranges` (default: all queues), with the `largest` messages.

    `entries_of_a_queue`: to read at most about so many entries of a queue. Longer days are estimated from
    samples, and the largest messages are those of the newest of each queue.

    `days_by_log`: a day begins where the log reaches it, which is fast for many queues. That differs from
    the table `usage` only where the broker's clock jumped back over midnight.

    `zone`: of the days; those by the log are in UTC. `hours`: rows of hours, not by the log. `progress`
    counts messages.
    """
    days = days_of_log(store) if days_by_log else None
    rows: list[Row] = []
    large: list[Row] = []
    for slice_ in all_ranges(store) if ranges is None else ranges:
        entries = None
        if days is None:
            rows += usage_rows(store, [slice_], entries_of_a_queue, zone, hours=hours)
        else:
            entries = small_queue(store, slice_, min(_COUNTED, entries_of_a_queue or _COUNTED))
            rows += rows_of_days(store, slice_, entries, days, entries_of_a_queue)
        if entries is None:
            large += _large_messages(store, _newest(store, slice_, entries_of_a_queue), largest)
        else:
            large += _largest_of(slice_, entries, largest)
        large = heapq.nsmallest(largest, large, _size)
        progress(len(slice_))
    start, end = store.log_range()
    return UsageAnswer(rows, large, end - start)


def _newest(store: StoreReader, slice_: QueueSlice, most: int | None) -> QueueSlice:
    """Of a range, what is searched for the largest messages."""
    if most is None:
        return slice_
    first = store.max_offset(*slice_.queue) - most
    return slice_.cut(min(max(slice_.start, first), slice_.stop), slice_.stop)


def _size(message: Row) -> tuple[int, int, str]:
    """Sort key: the largest messages first, then by position in the log."""
    return -message["storeSize"], message["commitLogOffset"], message["topic"]


def _large_messages(store: StoreReader, slice_: QueueSlice, count: int) -> Iterator[Row]:
    """Candidates for the `count` largest messages of a range. Reads only the queue, not the log."""
    if not count:
        return
    steps = queue_offset_steps(store, slice_.start, slice_.stop, _ENTRIES_AT_ONCE)
    for start in steps:
        entries = store.entries(slice_.queue, start, min(start + steps.step, slice_.stop))
        entries = entries.take(entries.points_to_record & (entries.offset >= start))
        yield from _largest_of(slice_, entries, count)


def _largest_of(slice_: QueueSlice, entries: Entries, count: int) -> list[Row]:
    """The `count` largest of some entries."""
    return [
        {
            "topic": slice_.queue.topic,
            "queueId": slice_.queue.queue_id,
            "queueOffset": int(entries.offset[row]),
            "commitLogOffset": int(entries.log_offset[row]),
            "storeSize": int(entries.size[row]),
        }
        for row in np.lexsort((entries.log_offset, -entries.size))[:count].tolist()
    ]


@dataclass(frozen=True, slots=True)
class DaysOfLog:
    """The first day, UTC, since 1970, and the log offsets where the next days begin."""

    first: int
    cuts: Cuts


def days_of_log(store: StoreReader) -> DaysOfLog | None:
    """The days of a log; None where the log is not in the order of its store times, or they
    are too many to be times of a broker."""
    times = times_in_order(store)
    if times is None:
        return None
    first, last = times[0] // DAY_MS, times[1] // DAY_MS
    if last - first > _MOST_DAYS:
        return None
    midnights = [day * DAY_MS for day in range(first + 1, last + 1)]
    return DaysOfLog(first, [*log_offsets_since(store, midnights)])


def small_queue(store: StoreReader, slice_: QueueSlice, most: int) -> Entries | None:
    """All entries of a range; None if they are more than `most`, or not each is one message in its order."""
    if len(slice_) > most:
        return None
    entries = store.entries(slice_.queue, slice_.start, slice_.stop)
    in_order = entries.points_to_record.all() and (np.diff(entries.log_offset) > 0).all()
    return entries if len(entries) == len(slice_) and in_order else None


def _bounds(
    store: StoreReader, slice_: QueueSlice, entries: Entries | None, cuts: Cuts
) -> list[int]:
    """The queue offsets of a range where the log reaches each of `cuts`, with those of both ends. By the
    entries of a small queue, else by bisection."""
    if entries is None:
        at = [store.view.offset_at_log(slice_.queue, cut) for cut in cuts]
    else:
        at = (slice_.start + np.searchsorted(entries.log_offset, cuts)).tolist()
    bounds = np.clip([slice_.start, *at, slice_.stop], slice_.start, slice_.stop)
    ascending: list[int] = np.maximum.accumulate(bounds).tolist()
    return ascending


def rows_of_days(
    store: StoreReader,
    slice_: QueueSlice,
    entries: Entries | None,
    days: DaysOfLog,
    most: int | None = None,
) -> Iterator[Row]:
    """Rows of the table `usage` for a range and its entries, if it is small. The bytes of more than `most`
    messages are estimated."""
    for number, (start, stop) in enumerate(pairwise(_bounds(store, slice_, entries, days.cuts))):
        if start == stop:
            continue
        if entries is None:
            size = bytes_between(store, slice_.queue, start, stop, most or stop - start)
        else:
            size = int(entries.size[start - slice_.start : stop - slice_.start].sum(dtype=np.int64))
        yield usage_row(slice_.cut(start, stop), days.first + number, size)


@dataclass(frozen=True, slots=True)
class MessageRate:
    """Messages by topic and period. `edges`: ms since the epoch, one more than there are periods.

    Light queues list records of other topics, and are left out. No periods where no time is readable, or
    the log is not in the order of its store times.
    """

    edges: tuple[int, ...]
    counts: dict[str, tuple[int, ...]]

    @property
    def messages(self) -> int:
        """All messages that are counted."""
        return sum(map(sum, self.counts.values()))


def message_rate(store: StoreReader, periods: int = 96) -> MessageRate:
    """The messages of every queue, in at most `periods` equal periods of store time.

    Records are in the order of their store time but for jumps of the broker's clock. So the log is cut
    where a period begins, and a queue's messages are counted between two cuts. That reads queue
    entries and some thousand heads of records. Many queues make fewer periods.
    """
    edges = _edges(store, periods)
    if not edges:
        return MessageRate((), {})
    cuts, most = [*log_offsets_since(store, edges[1:-1])], _read_whole(store)
    none: Ints = np.zeros(len(edges) - 1, dtype=np.int64)
    counts: dict[str, Ints] = {}
    for slice_ in all_ranges(store):
        topic = slice_.queue.topic
        if len(slice_) and not topic.startswith(LMQ_PREFIX):
            bounds = _bounds(store, slice_, small_queue(store, slice_, most), cuts)
            counts[topic] = counts.get(topic, none) + np.diff(bounds)
    by_topic = {topic: tuple(numbers.tolist()) for topic, numbers in counts.items()}
    return MessageRate(tuple(edges), by_topic)


def _read_whole(store: StoreReader) -> int:
    """The messages of a queue up to which its entries are read; more are found by bisection."""
    return min(_COUNTED, _ENTRIES // max(1, len(store.queues())))


def _edges(store: StoreReader, periods: int) -> list[int]:
    """Where the periods begin and end (ms), evenly from the first to after the last record."""
    times = times_in_order(store)
    if times is None:
        return []
    first, stop = times[0], times[1] + 1
    most = _read_whole(store)
    large = sum(len(part) > most for part in all_ranges(store))
    fits = max(_FEWEST_PERIODS, _BISECTIONS // max(1, large))
    count = max(1, min(periods, fits, stop - first))
    return [first + (stop - first) * at // count for at in range(count + 1)]
