"""Where the messages with some keys are to be looked for: index hits, and what the index lacks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rmq_store.planning import LogSlice, QueueSlice
from rmq_store.store import MessageStore
from rmq_store.topics import LMQ_PREFIX

MOST_HITS = 100_000
"""With more hits than this reading the ranges through is no dearer, and plans stay small."""


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """Where to look, each place once; what is found there is still to be held against the keys.

    `hits` are single entries, in the order of the log. `gaps` are stretches of the log that no
    index file covers, for the queues in `indexed`. `unindexed` are ranges that no index serves.
    """

    hits: tuple[QueueSlice, ...]
    gaps: tuple[LogSlice, ...]
    indexed: tuple[QueueSlice, ...]
    unindexed: tuple[QueueSlice, ...]


def plan_keys(
    store: MessageStore, ranges: Sequence[QueueSlice], keys: Collection[str]
) -> KeyPlan | None:
    """Where in `ranges` messages with one of `keys` can be; None where too many places are.

    The index and the queues are read, and not the log. Light queues are not in the index (it has
    the topic of the record), nor are the messages inside an inner batch.
    """
    served: list[QueueSlice] = []
    others: list[QueueSlice] = []
    for part in ranges:
        outside = part.queue.topic.startswith(LMQ_PREFIX) or store.is_batch(part.queue)
        (others if outside else served).append(part)
    index = store.key_index()
    by_topic: dict[str, list[QueueSlice]] = {}
    for part in served:
        by_topic.setdefault(part.queue.topic, []).append(part)
    found = {topic: set[int]() for topic in by_topic}
    for topic, offsets in found.items():
        for key in keys:
            offsets.update(index.indexed(topic, key))
    gaps = list(index.gaps())
    if sum(map(len, found.values())) > MOST_HITS:
        return None
    start, end = store.log_range()
    hits: list[tuple[int, QueueSlice]] = []
    for topic, offsets in found.items():
        for offset in sorted(offsets):
            in_gap = any(low <= offset < high for low, high in gaps)
            if not in_gap and start <= offset < end:
                hits += [(offset, one) for one in _entries_at(store, by_topic[topic], offset)]
    return KeyPlan(
        tuple(one for _, one in sorted(hits)),
        tuple(LogSlice(low, high, high - low) for low, high in gaps) if served else (),
        tuple(served),
        tuple(others),
    )


def _entries_at(
    store: MessageStore, parts: Sequence[QueueSlice], log_offset: int
) -> list[QueueSlice]:
    """The entries in `parts` that lead to the record at a log offset."""
    found = []
    for part in parts:
        at = store.offset_at_log(part.queue, log_offset)
        if part.start <= at < part.stop and store.log_offset_of(part.queue, at) == log_offset:
            found.append(QueueSlice(part.queue, at, at + 1))
    return found
