"""How many messages were stored when: by topic, in equal periods of store time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.search.log_by_time import log_offsets_since, times_in_order
from rmq_store.search.log_partitions import offset_steps
from rmq_store.store import MessageStore
from rmq_store.tables.table import all_ranges

_COUNTED = 1 << 16  # messages of a queue up to which its entries may be read; above it, bisected
_ENTRIES = 20_000_000  # that are read in all: some seconds
_BISECTIONS = 200_000  # in all: some ten seconds
_FEWEST_PERIODS = 12
_QUEUES_A_SHARE = 500

Cuts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RateShare:
    """Queue ranges, and the log offsets where the periods begin; the last one is the log's end.

    `counted`: messages of a queue up to which its entries are read.
    """

    counted: int
    cuts: Cuts
    ranges: tuple[QueueSlice, ...]


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


@dataclass(frozen=True, slots=True)
class MessageRateQuestion:
    """The messages of every queue, in at most `periods` equal periods of store time.

    Records are in the order of their store time but for jumps of the broker's clock. So the log is cut
    where a period begins, and a queue's messages are counted between two cuts. That reads queue
    entries and some thousand heads of records. Many queues make fewer periods.
    """

    periods: int = 96

    def plan(self, store: MessageStore) -> list[RateShare]:
        """The queues, some hundred per share."""
        ranges = [part for part in all_ranges(store) if len(part)]
        ranges = [part for part in ranges if not part.queue.topic.startswith(LMQ_PREFIX)]
        cuts = _cuts(store, self._edges(store))
        if not cuts:
            return []
        starts = range(0, len(ranges), _QUEUES_A_SHARE)
        counted = self._counted(store)
        return [RateShare(counted, cuts, tuple(ranges[at : at + _QUEUES_A_SHARE])) for at in starts]

    def work(
        self, store: MessageStore, share: RateShare, progress: OnProgress
    ) -> dict[str, tuple[int, ...]]:
        """Messages of each topic by period."""
        counts: dict[str, Ints] = {}
        for part in share.ranges:
            found = _counts(store, part, share)
            before = counts.get(part.queue.topic)
            counts[part.queue.topic] = found if before is None else before + found
        progress(self.weight(share))
        return {topic: tuple(found.tolist()) for topic, found in counts.items()}

    def weight(self, share: RateShare) -> int:
        """The number of messages in the share."""
        return sum(map(len, share.ranges))

    def merge(
        self, store: MessageStore, parts: Sequence[dict[str, tuple[int, ...]]]
    ) -> MessageRate:
        """The sums of all parts."""
        counts: dict[str, tuple[int, ...]] = {}
        for part in parts:
            for topic, found in part.items():
                before = counts.get(topic, (0,) * len(found))
                counts[topic] = tuple(a + b for a, b in zip(before, found, strict=True))
        return MessageRate(tuple(self._edges(store)), counts)

    def _counted(self, store: MessageStore) -> int:
        return min(_COUNTED, _ENTRIES // max(1, len(store.queues())))

    def _edges(self, store: MessageStore) -> list[int]:
        """Where the periods begin and end (ms), evenly from the first to after the last record."""
        times = times_in_order(store)
        if times is None:
            return []
        first, stop = times[0], times[1] + 1
        counted = self._counted(store)
        large = sum(len(part) > counted for part in all_ranges(store))
        fits = max(_FEWEST_PERIODS, _BISECTIONS // max(1, large))
        count = max(1, min(self.periods, fits, stop - first))
        return [first + (stop - first) * at // count for at in range(count + 1)]


def _cuts(store: MessageStore, edges: Sequence[int]) -> Cuts:
    """The log offset of each edge."""
    start, end = store.log_range()
    return (start, *log_offsets_since(store, edges[1:-1]), end) if edges else ()


def _counts(store: MessageStore, part: QueueSlice, share: RateShare) -> Ints:
    """The messages of a queue range between each two cuts."""
    cuts = share.cuts
    if len(part) > share.counted:
        at = [store.view.offset_at_log(part.queue, cut) for cut in cuts[1:-1]]
        bounds = np.clip([part.start, *at, part.stop], part.start, part.stop)
        found: Ints = np.maximum(np.diff(bounds), 0)
        return found
    counts: Ints = np.zeros(max(0, len(cuts) - 1), dtype=np.int64)
    steps = offset_steps(store, part.start, part.stop, _COUNTED)
    for start in steps:
        entries = store.entries(part.queue, start, min(start + steps.step, part.stop))
        mine = entries.points_to_record & (entries.offset >= start)
        period = np.searchsorted(cuts[1:-1], entries.log_offset[mine], side="right")
        np.add.at(counts, period, entries.count[mine])
    return counts
