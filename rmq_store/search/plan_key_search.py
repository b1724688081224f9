"""Plan where to search for messages with some keys: index hits, and ranges without an index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.index.index_writer import indexed_word
from rmq_store.search.log_partitions import joined_ranges
from rmq_store.snapshot.ranges import LogSlice, pieces_of
from rmq_store.store import MessageStore
from rmq_store.text.sizes import size

MOST_HITS = 100_000
"""Above this number of hits, scanning the ranges is not slower, and plans stay small."""
# Hits times queues, each a binary search. Above it, the records give their queue offsets.
_MOST_LOOKS = 20_000
_MOST_RECORDS = 1_000  # index hits in an object store whose records are read

_Parts = dict[QueueId, list[QueueSlice]]


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The places to search, without repeats. Messages found there must still be compared with the keys.

    `hits` are single entries in log order. `gaps` are log ranges that no index file covers, for the
    queues in `indexed`. `unindexed` are ranges of queues that are not in the index. `unlisted` are the
    log offsets of index items to which no entry of the ranges leads, each with the topic of the item.
    """

    hits: tuple[QueueSlice, ...]
    gaps: tuple[tuple[int, int], ...]
    indexed: tuple[QueueSlice, ...]
    unindexed: tuple[QueueSlice, ...]
    unlisted: Mapping[int, str]

    def beside_hits(self, offset_at_log: Callable[[QueueId, int], int]) -> list[QueueSlice]:
        """The ranges to scan: those in gaps of the index, and those of queues that are not in the index."""
        gaps = (LogSlice(low, high, high - low) for low, high in self.gaps)
        in_gaps = (part for gap in gaps for part in pieces_of(self.indexed, gap, offset_at_log))
        return joined_ranges((*self.unindexed, *in_gaps))

    def ranges(self, offset_at_log: Callable[[QueueId, int], int]) -> list[QueueSlice]:
        """All places to search."""
        return joined_ranges((*self.hits, *self.beside_hits(offset_at_log)))


def plan_keys(
    store: MessageStore,
    ranges: Sequence[QueueSlice],
    keys: Collection[str],
    *,
    topics: Collection[str] = (),
    compacted: bool = False,
) -> KeyPlan | None:
    """The places in `ranges` where messages with one of `keys` can be; None if there are too many.

    `topics`: those of which the index is asked too if none of the ranges is of them.

    Reads the index and the queues. In the log it reads only records that no queue seems to list
    and, if hits times queues are very many, the records of index hits. Light queues are not in the
    index, which has the record's topic, nor are the messages in an inner batch. With `compacted`, the
    queues of compaction topics are not either: their messages outlive those of the log.
    """
    served: list[QueueSlice] = []
    others: list[QueueSlice] = []
    for part in ranges:
        outside = part.queue.topic.startswith(LMQ_PREFIX) or store.view.is_batch(part.queue)
        outside = outside or (compacted and store.served.compacted(part.queue) is not None)
        (others if outside else served).append(part)
    index = store.key_index()
    by_topic: dict[str, _Parts] = {topic: {} for topic in topics}
    for part in served:
        by_topic.setdefault(part.queue.topic, {}).setdefault(part.queue, []).append(part)
    # A UNIQ_KEY is one item, whatever it has; of all of KEYS each word is one.
    words = {word for key in keys for word in (key, indexed_word(key)) if word}
    wanted = [(topic, word) for topic in by_topic for word in words]
    found = index.indexed(wanted)
    gaps = list(index.to_read())
    if sum(map(len, found.values())) > MOST_HITS:
        return None
    by_request = store.log.chain.cost.looks_at_once > 1
    if by_request and by_topic:
        # Finding the part of each queue in a gap takes more requests than reading it.
        missed = index.look_up_short_gaps(wanted)
        if missed is not None:
            gaps = []
            for topic, offsets in missed.items():
                found[topic] |= offsets
    looks = sum(len(offsets) * len(by_topic[topic]) for topic, offsets in found.items())
    said = _said_places(store, found) if by_request or looks > _MOST_LOOKS else {}
    start, end = store.log_range()
    hits: list[tuple[int, QueueSlice]] = []
    unlisted: dict[int, str] = {}
    for topic, offsets in found.items():
        for offset in sorted(offsets):
            in_gap = any(low <= offset < high for low, high in gaps)
            if not in_gap and start <= offset < end:
                parts = by_topic[topic]
                entries = _entries_at(store, parts, offset, said.get(offset))
                if not entries:
                    # A damaged entry misleads the binary search, but the record names its queue offset.
                    entries = _said_by_record(store, parts, offset)
                    leads = [store.log_offset_of(e.queue, e.start) == offset for e in entries]
                    unlisted |= {} if any(leads) else {offset: topic}
                hits += [(offset, entry) for entry in entries]
    return KeyPlan(
        tuple(piece for _, piece in sorted(hits)),
        tuple(gaps) if by_topic else (),
        tuple(served),
        tuple(others),
        unlisted,
    )


def leads_to(store: MessageStore, queue: QueueId, log_offset: int) -> bool:
    """Whether an entry of the queue points to that log offset."""
    at = store.view.offset_at_log(queue, log_offset)
    return at < store.max_offset(*queue) and store.log_offset_of(queue, at) == log_offset


def _said_places(
    store: MessageStore, found: Mapping[str, Collection[int]]
) -> dict[int, QueueSlice]:
    """The queue entries that the records at these log offsets name.

    Reads the records in parallel, then the entries. Empty for many records, because then the queues
    are smaller.
    """
    start, end = store.log_range()
    offsets = [o for of_topic in found.values() for o in of_topic if start <= o < end]
    if store.log.chain.cost.looks_at_once > 1 and len(offsets) > _MOST_RECORDS:
        return {}
    store.log.chain.fetch((offset, offset + 1) for offset in offsets)
    said = {offset: store.lookup.recorded_queue_offset(offset) for offset in offsets}
    places = {offset: place for offset, place in said.items() if place is not None}
    store.view.fetch_ahead(list(places.values()))
    return places


def _entries_at(
    store: MessageStore, parts: _Parts, log_offset: int, said: QueueSlice | None
) -> list[QueueSlice]:
    """The entries in `parts` that point to the record at a log offset. `said`: the entry that it names."""
    slices = []
    if said is not None:
        # The entry is nearly always there, so one look-up replaces several per queue.
        if said.queue not in parts:  # another key has the same hash
            return []
        if store.log_offset_of(said.queue, said.start) == log_offset:
            return [said] if _is_in(parts, said) else []
    for part in (part for of_queue in parts.values() for part in of_queue):
        at = store.view.offset_at_log(part.queue, log_offset)
        if part.start <= at < part.stop and store.log_offset_of(part.queue, at) == log_offset:
            slices.append(QueueSlice(part.queue, at, at + 1))
    return slices


def _said_by_record(store: MessageStore, parts: _Parts, log_offset: int) -> list[QueueSlice]:
    """The entry in `parts` that the record at a log offset names, unless it leads to another record that
    names it.

    An entry that leads nowhere, or to a record of another place, is damage, which its reader reports.
    """
    said = store.lookup.recorded_queue_offset(log_offset)
    if said is None or not _is_in(parts, said):
        return []
    entries = store.entries(said.queue, said.start, said.stop)
    if not len(entries):
        return []
    where, size = int(entries.log_offset[0]), int(entries.size[0])
    other = store.lookup.recorded_queue_offset(where)
    is_own = other == said and store.log.is_record(where, size)
    return [] if is_own and where != log_offset else [said]


def _is_in(parts: _Parts, entry: QueueSlice) -> bool:
    return any(part.start <= entry.start < part.stop for part in parts.get(entry.queue, ()))


_MOST_PLACES = 3  # that a sentence names


def where_it_was(store: MessageStore, key: str, topics: Collection[str] = ()) -> str:
    """What the index still lists for a key of which no message was found, and what was not read."""
    start, end = store.log_range()
    text = f"; the log ({size(end - start)}) was searched only where the index leads or has gaps. rmqstore "
    text += "verify compares both"
    # Another key of the same hash (32 bits) would lead there too.
    wanted = [(topic, key) for topic in topics or store.view.topics.every]
    offsets = sorted(set().union(*store.key_index().indexed(wanted).values()))
    if expired := [offset for offset in offsets if offset < start]:
        text += f"; the index lists it at {_offsets(expired)}, before the log's start"
        text += f" ({start}): it has expired, or log files are missing"
    if lost := [offset for offset in offsets if offset >= end]:
        text += f"; the index lists it at {_offsets(lost)}, after the log's end ({end}): it "
        text += "was lost with the end of the log (see rmqstore verify), or a broker just wrote it"
    return text


def _offsets(places: Sequence[int]) -> str:
    first = ", ".join(map(str, places[:_MOST_PLACES]))
    more = f" and {len(places) - _MOST_PLACES} more" if len(places) > _MOST_PLACES else ""
    return f"log offset {first}{more}"
