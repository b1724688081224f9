"""What fills the disk: messages and bytes by topic, queue and day, and the largest messages."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rmq_store.consumequeue.entries import Entries
from rmq_store.format.queues import QueueSlice
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.questions.usage_days import (
    days_of_log,
    estimated_days,
    rows_of_days,
    small_queue,
)
from rmq_store.search.queue_offset_steps import offset_steps
from rmq_store.store import MessageStore
from rmq_store.tables.table import Row, all_ranges
from rmq_store.tables.usage_damage import usage_rows

_ENTRIES_A_SHARE = 4_000_000
_ENTRIES_AT_ONCE = 1 << 16

Ranges = tuple[QueueSlice, ...]


@dataclass(frozen=True, slots=True)
class UsagePart:
    """Rows of the table `usage` for a share, and its largest messages, largest first."""

    rows: list[Row]
    largest: list[Row]


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
    def listed_bytes(self) -> int:
        """Bytes of the records that queues list, without light queues."""
        return sum(row["bytes"] for row in self.rows if not row["shared"])

    @property
    def shared_messages(self) -> int:
        """The number of messages in light queues."""
        return sum(row["messages"] for row in self.rows if row["shared"])

    def by(self, *names: str) -> list[dict[str, Any]]:
        """Messages, bytes and the share of the log for each value of the columns `names`.

        The largest groups come first. `shared`: the bytes are also counted in other topics. Groups
        without the topic have no light queues in them.
        """
        totals: dict[tuple[Any, ...], tuple[int, int]] = {}
        shared: dict[tuple[Any, ...], bool] = {}
        for row in self.rows:
            if row["shared"] and "topic" not in names:
                continue
            key = tuple(row[name] for name in names)
            shared[key] = row["shared"]
            messages, size = totals.get(key, (0, 0))
            totals[key] = messages + row["messages"], size + row["bytes"]
        order = sorted(totals, key=lambda key: (-totals[key][1], [str(value) for value in key]))
        return [
            {
                **dict(zip(names, key, strict=True)),
                "messages": totals[key][0],
                "bytes": totals[key][1],
                "shared": shared[key],
                "share of the log": round(totals[key][1] / self.log_bytes, 4)
                if self.log_bytes
                else None,
            }
            for key in order
        ]


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """The usage of `ranges` (default: all queues). `largest`: how many of the largest messages to
    list.

    `most_of_a_queue`: to read at most about so many entries of a queue. Longer days are estimated from
    samples, and the largest messages are those of the newest of each queue.

    `days_by_log`: a day begins where the log reaches it, which is fast for many queues. That differs from
    the table `usage` only where the broker's clock jumped back over midnight.
    """

    ranges: Ranges | None = None
    largest: int = 0
    most_of_a_queue: int | None = None
    days_by_log: bool = False

    def plan(self, store: MessageStore) -> list[Ranges]:
        """Queue ranges, about a million entries per share."""
        shares: list[list[QueueSlice]] = [[]]
        room = _ENTRIES_A_SHARE
        for part in all_ranges(store) if self.ranges is None else self.ranges:
            start = part.start
            usual = offset_steps(store, start, part.stop, _ENTRIES_A_SHARE).step
            while start < part.stop:
                stop = min(part.stop, start + (room if usual == _ENTRIES_A_SHARE else usual))
                shares[-1].append(QueueSlice(part.queue, start, stop))
                room -= stop - start
                start = stop
                if room <= 0:
                    shares.append([])
                    room = _ENTRIES_A_SHARE
        return [tuple(share) for share in shares if share]

    def work(self, store: MessageStore, share: Ranges, progress: OnProgress) -> UsagePart:
        """The rows and the largest messages of some ranges."""
        days = days_of_log(store) if self.days_by_log else None
        rows: list[Row] = []
        large: list[Row] = []
        for part in share:
            most = self.most_of_a_queue
            entries = None if days is None else small_queue(store, part, most)
            if days is not None and entries is not None:
                rows += rows_of_days(part, entries, days)
                large += _largest_of(part, entries, self.largest)
            else:
                if days is not None and most is not None:
                    rows += estimated_days(store, part, days, most)
                else:
                    rows += usage_rows(store, [part], most)
                large += _large_messages(store, [self._newest(store, part)], self.largest)
            large = heapq.nsmallest(self.largest, large, _size)
        progress(self.weight(share))
        return UsagePart(rows, large)

    def _newest(self, store: MessageStore, part: QueueSlice) -> QueueSlice:
        """Of a range, what is searched for the largest messages."""
        if self.most_of_a_queue is None:
            return part
        first = store.max_offset(*part.queue) - self.most_of_a_queue
        return part.cut(min(max(part.start, first), part.stop), part.stop)

    def weight(self, share: Ranges) -> int:
        """The number of messages in the ranges."""
        return sum(map(len, share))

    def merge(self, store: MessageStore, parts: Sequence[UsagePart]) -> UsageAnswer:
        """All rows, and the largest messages of all parts."""
        start, end = store.log_range()
        every = (message for part in parts for message in part.largest)
        rows = [row for part in parts for row in part.rows]
        return UsageAnswer(rows, heapq.nsmallest(self.largest, every, _size), end - start)


def _size(message: Row) -> tuple[int, int, str]:
    """Sort key: the largest messages first, then by position in the log."""
    return -message["storeSize"], message["commitLogOffset"], message["topic"]


def _large_messages(store: MessageStore, share: Sequence[QueueSlice], count: int) -> Iterator[Row]:
    """Candidates for the `count` largest messages. Reads only the queues, not the log."""
    if not count:
        return
    for part in share:
        steps = offset_steps(store, part.start, part.stop, _ENTRIES_AT_ONCE)
        for start in steps:
            stop = min(start + steps.step, part.stop)
            entries = store.entries(part.queue, start, stop)
            entries = entries.take(entries.points_to_record & (entries.offset >= start))
            yield from _largest_of(part, entries, count)


def _largest_of(part: QueueSlice, entries: Entries, count: int) -> list[Row]:
    """The `count` largest of some entries."""
    return [
        {
            "topic": part.queue.topic,
            "queueId": part.queue.queue_id,
            "queueOffset": int(entries.offset[row]),
            "commitLogOffset": int(entries.log_offset[row]),
            "storeSize": int(entries.size[row]),
        }
        for row in np.lexsort((entries.log_offset, -entries.size))[:count].tolist()
    ]
