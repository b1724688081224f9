"""Where the messages with some keys are to be looked for: index hits, and what the index lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.query.log_slices import LogSlice, joined, pieces_of
from rmq_store.store import MessageStore

MOST_HITS = 100_000
"""With more hits than this reading the ranges through is no dearer, and plans stay small."""


_MOST_LOOKS = 20_000  # hits times queues, each a bisection; else records are asked where they are
_MOST_RECORDS = 1_000  # of index hits in an object store, that are asked where they are listed


_Parts = dict[QueueId, list[QueueSlice]]


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

    def beside_hits(self, offset_at_log: Callable[[QueueId, int], int]) -> list[QueueSlice]:
        """The ranges that have to be read through: in gaps of the index, and those it never serves."""
        in_gaps = (
            part for gap in self.gaps for part in pieces_of(self.indexed, gap, offset_at_log)
        )
        return joined((*self.unindexed, *in_gaps))


def plan_keys(
    store: MessageStore, ranges: Sequence[QueueSlice], keys: Collection[str]
) -> KeyPlan | None:
    """Where in `ranges` messages with one of `keys` can be; None where too many places are.

    The index and the queues are read; of the log only records that no queue seems to list, and
    where hits times queues are very many those that the index leads to. Light queues are not in
    the index (it has the topic of the record), nor are the messages inside an inner batch.
    """
    served: list[QueueSlice] = []
    others: list[QueueSlice] = []
    for part in ranges:
        outside = part.queue.topic.startswith(LMQ_PREFIX) or store.view.is_batch(part.queue)
        (others if outside else served).append(part)
    index = store.key_index()
    by_topic: dict[str, _Parts] = {}
    for part in served:
        by_topic.setdefault(part.queue.topic, {}).setdefault(part.queue, []).append(part)
    wanted = [(topic, key) for topic in by_topic for key in keys]
    found = index.indexed(wanted)
    gaps = list(index.to_read())
    if sum(map(len, found.values())) > MOST_HITS:
        return None
    if store.log.chain.is_remote and served:
        # To find the part of each queue that lies in a gap takes more requests than to read it.
        missed = index.look_up_short_gaps(wanted)
        if missed is not None:
            gaps = []
            for topic, offsets in missed.items():
                found[topic] |= offsets
    looks = sum(len(offsets) * len(by_topic[topic]) for topic, offsets in found.items())
    said = _said_places(store, found) if store.log.chain.is_remote or looks > _MOST_LOOKS else {}
    start, end = store.log_range()
    hits: list[tuple[int, QueueSlice]] = []
    for topic, offsets in found.items():
        for offset in sorted(offsets):
            in_gap = any(low <= offset < high for low, high in gaps)
            if not in_gap and start <= offset < end:
                parts = _entries_at(store, by_topic[topic], offset, said.get(offset))
                hits += [(offset, one) for one in parts]
    return KeyPlan(
        tuple(one for _, one in sorted(hits)),
        tuple(LogSlice(low, high, high - low) for low, high in gaps) if served else (),
        tuple(served),
        tuple(others),
    )


def _said_places(
    store: MessageStore, found: Mapping[str, Collection[int]]
) -> dict[int, QueueSlice]:
    """The queue entries at which the records at these log offsets say that they are listed.

    Records first, then entries, each side by side; not where they are many, for then the queues
    are the smaller part.
    """
    start, end = store.log_range()
    offsets = [o for of_topic in found.values() for o in of_topic if start <= o < end]
    if store.log.chain.is_remote and len(offsets) > _MOST_RECORDS:
        return {}
    store.log.fetch_ranges((offset, offset + 1) for offset in offsets)
    said = {offset: store.lookup.recorded_queue_offset(offset) for offset in offsets}
    places = {offset: place for offset, place in said.items() if place is not None}
    store.view.fetch_ahead(list(places.values()))
    return places


def _entries_at(
    store: MessageStore, parts: _Parts, log_offset: int, said: QueueSlice | None
) -> list[QueueSlice]:
    """The entries in `parts` that lead to the record at a log offset; `said`: where it may be."""
    found = []
    if said is not None:
        # Nearly always it is there: one look, and not some for each queue.
        mine = parts.get(said.queue)
        if not mine:  # another key has the same hash
            return []
        if store.log_offset_of(said.queue, said.start) == log_offset:
            inside = any(part.start <= said.start < part.stop for part in mine)
            return [said] if inside else []
    every = [part for of_queue in parts.values() for part in of_queue]
    for part in every:
        at = store.view.offset_at_log(part.queue, log_offset)
        if part.start <= at < part.stop and store.log_offset_of(part.queue, at) == log_offset:
            found.append(QueueSlice(part.queue, at, at + 1))
    # A damaged entry leads the search astray: the record knows where it is listed.
    return found or _said_by_record(store, every, log_offset)


def _said_by_record(
    store: MessageStore, parts: Sequence[QueueSlice], log_offset: int
) -> list[QueueSlice]:
    """The entry in `parts` that the record at a log offset names, if it leads there or nowhere.

    One that leads nowhere is damage, to be told by whoever reads it.
    """
    said = store.lookup.recorded_queue_offset(log_offset)
    if said is None:
        return []
    for part in parts:
        if part.queue == said.queue and part.start <= said.start < part.stop:
            entries = store.entries(said.queue, said.start, said.stop)
            if not len(entries):
                return []
            where, size = int(entries.log_offset[0]), int(entries.size[0])
            return [said] if where == log_offset or not store.log.is_record(where, size) else []
    return []


class GoneKey(NamedTuple):
    """Log offsets, ascending, to which index items of a key lead: before the log's start, where
    records expire, and at its end or behind it, where they were lost. Another key of the same hash
    (32 bits) would lead there too."""

    expired: tuple[int, ...]
    lost: tuple[int, ...]


def gone_key(store: MessageStore, key: str, topics: Collection[str] | None = None) -> GoneKey:
    """Where the index leads for `key` outside the log, in `topics` or in all that are known.

    The index is read, and not the log.
    """
    wanted = [(topic, key) for topic in topics or store.view.known_topics]
    found = sorted(set().union(*store.key_index().indexed(wanted).values()))
    start, end = store.log_range()
    return GoneKey(
        tuple(offset for offset in found if offset < start),
        tuple(offset for offset in found if offset >= end),
    )
