"""Find messages by topic, key, tag, property, time or text in the body.

Keys are planned first: hits of the index, and ranges without an index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import column_names
from rmq_store.commitlog.walk import next_record_or_gap, record_or_damage
from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import Property
from rmq_store.format.compression import SysFlag, enters_queue
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import Message, decode_utf8
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.index.index_writer import indexed_word
from rmq_store.reading.message_lookup import error_of_indexed_record
from rmq_store.reading.query import OnDamage, ReadOptions, raise_error
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import joined_ranges
from rmq_store.search.selection import (
    CLOCK_SLACK_MS,
    DamageInRanges,
    QueueLimitsInLog,
    Search,
    WantedQueues,
    ranges_in_store,
    stored_in_time,
)
from rmq_store.snapshot.compacted_view import QueueSource
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice
from rmq_store.text.progress import Progress
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

    def ranges_beside_hits(self, offset_at_log: Callable[[QueueId, int], int]) -> list[QueueSlice]:
        """The ranges to scan: those in gaps of the index, and those of queues that are not in the index."""
        gaps = (LogSlice(low, high, high - low) for low, high in self.gaps)
        in_gaps = (
            part for gap in gaps for part in parts_in_log_slice(self.indexed, gap, offset_at_log)
        )
        return joined_ranges((*self.unindexed, *in_gaps))

    def ranges(self, offset_at_log: Callable[[QueueId, int], int]) -> list[QueueSlice]:
        """All places to search."""
        return joined_ranges((*self.hits, *self.ranges_beside_hits(offset_at_log)))


def plan_keys(
    store: StoreReader,
    ranges: Sequence[QueueSlice],
    keys: Collection[str],
    *,
    topics: Collection[str] = (),
    view: QueueSource | None = None,
) -> KeyPlan | None:
    """The places in `ranges` where messages with one of `keys` can be; None if there are too many.

    `topics`: those of which the index is asked too if none of the ranges is of them.

    Reads the index and the queues. In the log it reads only records that no queue seems to list
    and, if hits times queues are very many, the records of index hits. Light queues are not in the
    index, which has the record's topic, nor are the messages in an inner batch. `view`: what the ranges are
    of, by default the queues themselves. Its queues that are not in the log are not in the index either.
    """
    view = view or store.view
    served: list[QueueSlice] = []
    others: list[QueueSlice] = []
    for slice_ in ranges:
        outside = slice_.queue.topic.startswith(LMQ_PREFIX) or store.view.is_batch(slice_.queue)
        (others if outside or not view.is_in_log(slice_.queue) else served).append(slice_)
    index = store.key_index()
    by_topic: dict[str, _Parts] = {topic: {} for topic in topics}
    for slice_ in served:
        by_topic.setdefault(slice_.queue.topic, {}).setdefault(slice_.queue, []).append(slice_)
    # A UNIQ_KEY is one item, whatever it has; of all of KEYS each word is one.
    words = {word for key in keys for word in (key, indexed_word(key)) if word}
    wanted = [(topic, word) for topic in by_topic for word in words]
    by_topic_hits = index.indexed(wanted)
    gaps = list(index.to_read())
    if sum(map(len, by_topic_hits.values())) > MOST_HITS:
        return None
    by_request = store.log.chain.cost.looks_at_once > 1
    if by_request and by_topic:
        # Finding the part of each queue in a gap takes more requests than reading it.
        missed = index.look_up_short_gaps(wanted)
        if missed is not None:
            gaps = []
            for topic, offsets in missed.items():
                by_topic_hits[topic] |= offsets
    looks = sum(len(offsets) * len(by_topic[topic]) for topic, offsets in by_topic_hits.items())
    said = _said_places(store, by_topic_hits) if by_request or looks > _MOST_LOOKS else {}
    start, end = store.log_range()
    hits: list[tuple[int, QueueSlice]] = []
    unlisted: dict[int, str] = {}
    for topic, offsets in by_topic_hits.items():
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


def is_listed_at(store: StoreReader, queue: QueueId, log_offset: int) -> bool:
    """Whether an entry of the queue points to that log offset."""
    at = store.view.offset_at_log(queue, log_offset)
    return at < store.max_offset(*queue) and store.log_offset_of(queue, at) == log_offset


def _said_places(store: StoreReader, hits: Mapping[str, Collection[int]]) -> dict[int, QueueSlice]:
    """The queue entries that the records at these log offsets name.

    Reads the records in parallel, then the entries. Empty for many records, because then the queues
    are smaller.
    """
    start, end = store.log_range()
    offsets = [o for of_topic in hits.values() for o in of_topic if start <= o < end]
    if store.log.chain.cost.looks_at_once > 1 and len(offsets) > _MOST_RECORDS:
        return {}
    store.log.chain.fetch((offset, offset + 1) for offset in offsets)
    said = {offset: store.lookup.recorded_queue_offset(offset) for offset in offsets}
    places = {offset: place for offset, place in said.items() if place is not None}
    store.view.fetch_ahead(list(places.values()))
    return places


def _entries_at(
    store: StoreReader, parts: _Parts, log_offset: int, said: QueueSlice | None
) -> list[QueueSlice]:
    """The entries in `parts` that point to the record at a log offset. `said`: the entry that it names."""
    slices = []
    if said is not None:
        # The entry is nearly always there, so one look-up replaces several per queue.
        if said.queue not in parts:  # another key has the same hash
            return []
        if store.log_offset_of(said.queue, said.start) == log_offset:
            return [said] if _is_in(parts, said) else []
    for slice_ in (slice_ for of_queue in parts.values() for slice_ in of_queue):
        at = store.view.offset_at_log(slice_.queue, log_offset)
        if slice_.start <= at < slice_.stop and store.log_offset_of(slice_.queue, at) == log_offset:
            slices.append(QueueSlice(slice_.queue, at, at + 1))
    return slices


def _said_by_record(store: StoreReader, parts: _Parts, log_offset: int) -> list[QueueSlice]:
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


def why_not_found(store: StoreReader, key: str, topics: Collection[str] = ()) -> str:
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


PLACE = "commitLogOffset"
_PLACE = ("topic", "queueId", "queueOffset", PLACE)
_MOST_LOOKED_UP = 1000  # slices whose places are looked up


def with_place_column(columns: Sequence[str]) -> list[str]:
    """The columns with the one that `with_progress` needs."""
    return [*columns] if PLACE in columns else [*columns, PLACE]


def with_progress(
    store: StoreReader,
    slices: Sequence[QueueSlice],
    batches: Iterable[pa.RecordBatch],
    progress: Progress,
    view: QueueSource | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches that `read_slices` returns for `slices`, with progress in bytes of the log.

    They must have the column PLACE. Without a terminal the batches are passed on as they are.
    `view`: what the slices are of, by default the queues themselves.
    """
    if not progress.active:
        yield from batches
        return
    place, end = log_range_of_slices(store, slices, view or store.view)
    progress.expect(max(0, end - place))
    for batch in batches:
        if batch.num_rows:
            reached = batch.column(PLACE)[-1].as_py()
            progress(max(0, reached - place))
            place = max(place, reached)
        yield batch
    progress(max(0, end - place))


def log_range_of_slices(
    store: StoreReader, slices: Sequence[QueueSlice], view: QueueSource
) -> tuple[int, int]:
    """About where in the log the entries of some slices begin and end; the whole log for many."""
    start, end = store.log_range()
    some = [slice_ for slice_ in slices if len(slice_)]
    if not some:
        return end, end
    if len(some) > _MOST_LOOKED_UP:
        return start, end
    try:
        first = min(view.log_offset_of(slice_.queue, slice_.start) for slice_ in some)
        last = max(view.log_offset_of(slice_.queue, slice_.stop - 1) for slice_ in some)
    except StoreError:
        return start, end  # the read says what is wrong there
    return max(start, first), min(end, last)


_GAP_STEP = 256 << 20  # bytes of the log per share


@dataclass(frozen=True, slots=True)
class _Share:
    """A part of a search: ranges of queues, or a range of the log with what to read of it."""

    slices: tuple[QueueSlice, ...] = ()
    log: tuple[int, int] = (0, 0)
    limits: QueueLimitsInLog | None = None
    starts_gap: bool = False  # damage before the log range may reach into it


def find(
    store: StoreReader,
    search: Search,
    columns: Sequence[str] | None = None,
    on_damage: OnDamage | None = None,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages that match `search`.

    Messages of one share are in log order. A key is looked up in the index, and in the parts of the
    log that the index does not cover, so it is found even if its queue lost its files. Without a key,
    the selected queues are read. Raises UnknownQueueError for an unknown topic.
    """
    shares: Iterable[_Share] = _shares(store, search, on_damage)
    if progress is not None and progress.active:
        shares = list(shares)
        progress.expect(sum(share.log[1] - share.log[0] for share in shares))
    for share in shares:
        yield from _find_in(store, search, share, columns, on_damage, progress)


def _shares(store: StoreReader, search: Search, on_damage: OnDamage | None) -> Iterator[_Share]:
    """The places to search for `search`, without repeats."""
    slices = ranges_in_store(store, search, CLOCK_SLACK_MS)
    topics = _topics_anywhere(store, search)
    plan = plan_keys(store, slices, search.keys, topics=topics) if search.keys else None
    if plan is None:  # there is no key, or nearly every message has it
        yield _Share(tuple(slices))
        return
    if plan.hits or plan.unindexed:
        yield _Share((*plan.hits, *plan.unindexed))
    wanted = WantedQueues.of(store, replace(search, topics=topics))
    anywhere = QueueLimitsInLog(wanted, without=frozenset(part.queue for part in plan.unindexed))
    for offset in _in_no_queue(store, search, plan, on_damage or raise_error):
        yield _Share(log=(offset, offset + 1), limits=anywhere)
    for start, stop in plan.gaps:
        for at in range(start, stop, _GAP_STEP):
            upto = min(at + _GAP_STEP, stop)
            yield _Share(log=(at, upto), limits=anywhere, starts_gap=at == start)


def find_by_id(
    store: StoreReader,
    message_id: str,
    columns: Sequence[str] | None = None,
    on_damage: OnDamage | None = None,
    *,
    unwrap_batches: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The messages with an offsetMsgId or a UNIQ_KEY. A message in no queue is read from the log.

    Raises as `MessageStore.messages_by_id`.
    """
    how: ReadOptions = {"columns": columns, "check_ends": False, "on_damage": on_damage}
    of_queue: ReadOptions = {**how, "unwrap_batches": unwrap_batches, "compacted": False}
    for message in store.messages_by_id(message_id, on_damage):
        if message.queue_offset is None:
            at = message.commit_log_offset
            wanted = column_names(columns)
            how["columns"] = _with_columns(wanted, _PLACE)
            for batch in store.read_log(at, at + message.store_size, include_unqueued=True, **how):
                yield with_listed_offsets_only(store, batch).select(wanted)
            continue
        queue = QueueId(message.topic, message.queue_id)
        stop = message.queue_offset + _messages_in(message, message_id)
        part = QueueSlice(queue, message.queue_offset, stop)
        yield from store.read_slices([part], **of_queue)


def _messages_in(message: Message, message_id: str) -> int:
    """The number of messages that an id leads to: an offsetMsgId leads to a whole inner batch."""
    if not message.sys_flag & SysFlag.INNER_BATCH or message.msg_id != message_id.upper():
        return 1
    stated = message.properties.get(Property.INNER_NUM, "")
    return int(stated) if re.fullmatch("[0-9]{1,9}", stated) else 1


def _find_in(
    store: StoreReader,
    search: Search,
    share: _Share,
    columns: Sequence[str] | None,
    on_damage: OnDamage | None,
    progress: Progress | None,
) -> Iterator[pa.RecordBatch]:
    """The messages of one share that match. `progress` gets bytes of the log, for queues the total too."""
    wanted = column_names(columns)
    needed = _with_columns(wanted, _needed(search))
    if share.limits is not None:
        needed = _with_columns(needed, _PLACE)
    if progress is not None and progress.active:
        needed = with_place_column(needed)
    how: ReadOptions = {
        "columns": needed,
        "tags": search.tags,
        "keys": search.keys or None,
        "unwrap_batches": search.unwrap_batches,
        "check_ends": not search.keys,  # a key is looked up in the index and the log
        "compacted": search.compacted,
        "on_damage": on_damage,
    }
    if share.limits is None:
        how["concerns"] = DamageInRanges(store, search)
        batches = store.read_slices(share.slices, **how)
        if progress is not None:
            batches = with_progress(store, share.slices, batches, progress)
    else:
        if share.starts_gap:
            _tell_damage_around(store, share.log[0], on_damage or raise_error)
        batches = store.read_log(*share.log, limits=share.limits, **how)
    for batch in batches:
        kept = _matching(batch, search)
        if kept.num_rows and share.limits is not None:
            kept = with_listed_offsets_only(store, kept)
        if kept.num_rows:
            yield kept.select(wanted)
    if progress is not None:
        progress(share.log[1] - share.log[0])


def with_listed_offsets_only(store: StoreReader, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the log with queueOffset null where no queue lists the record there: the queue has lost it, or
    its topic was deleted since, and another record may have the place."""
    at, queues = rows.schema.get_field_index("queueOffset"), store.view.snapshot.queues
    listed = []
    for topic, queue_id, offset, place in zip(*(rows[n].to_pylist() for n in _PLACE), strict=True):
        queue = QueueId(topic, queue_id)
        known = offset is not None and queue in queues
        entry = store.view.entry_at(queue, offset) if known else None
        listed.append(entry is not None and entry.log_offset == place)
    column = pc.if_else(
        pa.array(listed, pa.bool_()), rows.column(at), pa.scalar(None, rows.column(at).type)
    )
    return rows.set_column(at, rows.schema.field(at), column)


def _with_columns(columns: Sequence[str], others: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*columns, *others)))


def _needed(search: Search) -> list[str]:
    names = ["storeTimestamp"]
    names += ["properties"] if search.properties else []
    names += ["body"] if search.text is not None else []
    return names


def _tell_damage_around(store: StoreReader, start: int, on_damage: OnDamage) -> None:
    """Report damage that starts before `start` and reaches into the range. A read from `start` does
    not report it, because the read of its start does."""
    segment = store.log.chain.segment_at(start)
    if segment is not None:
        whole = (store.log.entry_start(start), None)
        if next_record_or_gap(store.log, segment, start) == whole:
            return
    record = record_or_damage(store.log, store.log_range()[1], start)
    if isinstance(record, StoreError):
        on_damage(record)


def _in_no_queue(
    store: StoreReader, search: Search, plan: KeyPlan, on_damage: OnDamage
) -> Iterator[int]:
    """Log offsets of records that the index has but no queue lists, because their queue lost files."""
    end = store.log_range()[1]
    for offset, topic in sorted(plan.unlisted.items()):
        queues, record = store.queues(topic), record_or_damage(store.log, end, offset)
        if isinstance(record, StoreError):
            if not any(is_listed_at(store, queue, offset) for queue in queues):
                on_damage(error_of_indexed_record(record, topic, " || ".join(search.keys), offset))
            continue
        if record is None or not enters_queue(record.sys_flag):
            continue  # in the queue of another topic, or in no queue
        own = QueueId(decode_utf8(record.topic), record.queue_id)
        if own not in queues or not is_listed_at(store, own, offset):
            yield offset


def _topics_anywhere(store: StoreReader, search: Search) -> Sequence[str]:
    """The topics to search, including those that have no queue and are only in topics.json."""
    if search.topics is not None:
        return search.topics
    return [
        topic
        for topic in store.view.topics.every
        if search.include_system_topics or not store.is_system_topic(topic)
    ]


def _matching(batch: pa.RecordBatch, search: Search) -> pa.RecordBatch:
    kept = np.ones(batch.num_rows, dtype=bool)
    if search.is_timed:
        kept &= stored_in_time(batch, *search.times)
    for name, value in search.properties.items():
        kept &= _has_property(batch.column("properties"), name, value)
    if search.text is not None:
        hits = pc.match_substring(batch.column("body"), search.text)
        kept &= hits.to_numpy(zero_copy_only=False)
    return batch if kept.all() else batch.filter(pa.array(kept))


def _has_property(properties: pa.Array, name: str, value: str) -> np.ndarray:
    same = pc.and_(pc.equal(properties.keys, name), pc.equal(properties.items, value))
    hits = np.concatenate(([0], np.cumsum(same.to_numpy(zero_copy_only=False))))
    offsets = properties.offsets.to_numpy()
    return np.asarray(hits[offsets[1:]] > hits[offsets[:-1]])
