"""How many messages were stored when: by topic, in equal periods of store time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.search.log_by_time import log_offsets_since, times_in_order
from rmq_store.search.log_partitions import offset_steps
from rmq_store.store import MessageStore
from rmq_store.tables.table import all_ranges

_COUNTED = 1 << 16  # messages of a queue up to which its entries may be read; above it, bisected
_ENTRIES = 20_000_000  # that are read in all: some seconds
_BISECTIONS = 200_000  # in all: some ten seconds
_FEWEST_PERIODS = 12

Cuts = tuple[int, ...]


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


def message_rate(store: MessageStore, periods: int = 96) -> MessageRate:
    """The messages of every queue, in at most `periods` equal periods of store time.

    Records are in the order of their store time but for jumps of the broker's clock. So the log is cut
    where a period begins, and a queue's messages are counted between two cuts. That reads queue
    entries and some thousand heads of records. Many queues make fewer periods.
    """
    edges = _edges(store, periods)
    if not edges:
        return MessageRate((), {})
    start, end = store.log_range()
    cuts = (start, *log_offsets_since(store, edges[1:-1]), end)
    most = _read_whole(store)
    none: Ints = np.zeros(len(cuts) - 1, dtype=np.int64)
    counts: dict[str, Ints] = {}
    for part in all_ranges(store):
        topic = part.queue.topic
        if len(part) and not topic.startswith(LMQ_PREFIX):
            counts[topic] = counts.get(topic, none) + _counts(store, part, cuts, most)
    by_topic = {topic: tuple(numbers.tolist()) for topic, numbers in counts.items()}
    return MessageRate(tuple(edges), by_topic)


def _read_whole(store: MessageStore) -> int:
    """The messages of a queue up to which its entries are read; more are found by bisection."""
    return min(_COUNTED, _ENTRIES // max(1, len(store.queues())))


def _edges(store: MessageStore, periods: int) -> list[int]:
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


def _counts(store: MessageStore, part: QueueSlice, cuts: Cuts, most: int) -> Ints:
    """The messages of a queue range between each two cuts."""
    if len(part) > most:
        at = [store.view.offset_at_log(part.queue, cut) for cut in cuts[1:-1]]
        bounds = np.clip([part.start, *at, part.stop], part.start, part.stop)
        found: Ints = np.maximum(np.diff(bounds), 0)
        return found
    counts: Ints = np.zeros(len(cuts) - 1, dtype=np.int64)
    steps = offset_steps(store, part.start, part.stop, _COUNTED)
    for start in steps:
        entries = store.entries(part.queue, start, min(start + steps.step, part.stop))
        mine = entries.points_to_record & (entries.offset >= start)
        period = np.searchsorted(cuts[1:-1], entries.log_offset[mine], side="right")
        np.add.at(counts, period, entries.count[mine])
    return counts
