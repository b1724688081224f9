"""Messages by what is known of them: topic, key, id, tag, property, time, text in the body."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumequeue import QueueId
from rmq_store.errors import CorruptRecordError, MissingFileError
from rmq_store.keyplan import KeyPlan, plan_keys
from rmq_store.layout import SysFlag
from rmq_store.logreading import Limits, QueueLimits
from rmq_store.planning import QueueSlice
from rmq_store.queueids import require_queue_ids, require_topic
from rmq_store.reading import OnDamage
from rmq_store.schema import column_names
from rmq_store.store import MessageStore
from rmq_store.strings import decode_utf8


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for; all that is given must hold.

    Times are ms, `begin` included and `end` not. `key`: one word of KEYS, or the UNIQ_KEY. `text`:
    bytes anywhere in the decompressed body.
    """

    topics: Sequence[str] | None = None
    queue_ids: Collection[int] | None = None
    begin: int | None = None
    end: int | None = None
    key: str | None = None
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    text: bytes | None = None
    include_system_topics: bool = False


def find(
    store: MessageStore,
    search: Search,
    columns: Sequence[str] | None = None,
    on_damage: OnDamage | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages, in the order of the log as far as they are found together.

    A key is looked up in the index, and what that does not cover in the log; so it is found as well
    where its queue has lost its files. Without a key the selected part of the log is read. Raises
    UnknownQueueError for a topic that is not there.
    """
    wanted = column_names(columns)
    needed = [*wanted, *(name for name in _needed(search) if name not in wanted)]
    for batch in _candidates(store, search, needed, on_damage):
        kept = _matching(batch, search)
        if kept.num_rows:
            yield kept.select(wanted)


def selected_slices(store: MessageStore, search: Search) -> list[QueueSlice]:
    """The queue ranges that topics, queues and times leave."""
    found = []
    topics = _topics(store, search)
    if len(topics) == 1:
        require_queue_ids(store, topics[0], search.queue_ids or ())
    for topic in topics:
        for queue in store.queues(topic):
            if search.queue_ids is not None and queue.queue_id not in search.queue_ids:
                continue
            start, stop = store.min_offset(*queue), store.max_offset(*queue)
            if search.begin is not None:
                start = max(start, store.offset_by_time(*queue, search.begin))
            if search.end is not None and not store.is_batch(queue):
                stop = min(stop, store.offset_by_time(*queue, search.end))
            if start < stop:
                found.append(QueueSlice(queue, start, stop))
    return found


def _topics(store: MessageStore, search: Search) -> list[str]:
    if search.topics is None:
        return store.topics(search.include_system_topics)
    for topic in search.topics:
        require_topic(store, topic)
    return list(search.topics)


def _needed(search: Search) -> list[str]:
    names = ["storeTimestamp"]
    names += ["properties"] if search.properties else []
    names += ["body"] if search.text is not None else []
    return names


def _candidates(
    store: MessageStore, search: Search, columns: Sequence[str], on_damage: OnDamage | None
) -> Iterator[pa.RecordBatch]:
    slices = selected_slices(store, search)
    if search.key is None:
        yield from store.read_slices(slices, columns=columns, tags=search.tags, on_damage=on_damage)
        return
    keys = [search.key]
    plan = plan_keys(store, slices, keys)
    if plan is None:  # nearly every message has the key
        yield from store.read_slices(
            slices, columns=columns, tags=search.tags, keys=keys, on_damage=on_damage
        )
        return
    if plan.hits or plan.unindexed:
        yield from store.read_slices(
            [*plan.hits, *plan.unindexed],
            columns=columns,
            tags=search.tags,
            keys=keys,
            on_damage=on_damage,
        )
    for offset in _unlisted_hits(store, search, search.key, plan):
        yield from store.read_log(
            offset,
            offset + 1,
            limits=_limits(search, _topics_anywhere(store, search)),
            columns=columns,
            tags=search.tags,
            keys=keys,
            on_damage=on_damage,
        )
    limits = {part.queue: QueueLimits(part.start, part.stop) for part in plan.indexed}
    for gap in plan.gaps:
        yield from store.read_log(
            gap.start,
            gap.stop,
            limits=limits.get,
            columns=columns,
            tags=search.tags,
            keys=keys,
            on_damage=on_damage,
        )


def _unlisted_hits(store: MessageStore, search: Search, key: str, plan: KeyPlan) -> list[int]:
    """Log offsets of records that the index leads to and no queue: their queue has lost files."""
    wanted = [(topic, key) for topic in _topics_anywhere(store, search)]
    hits = set().union(*store.key_index().indexed(wanted).values())
    hits -= {store.log_offset_of(one.queue, one.start) for one in plan.hits}
    start, end = store.log_range()
    return [at for at in sorted(hits) if start <= at < end and not _is_listed(store, at)]


def _is_listed(store: MessageStore, log_offset: int) -> bool:
    """Whether the queue of a record reaches to it; what cannot be read is left to others."""
    try:
        record = store.log.record_at(log_offset)
    except (CorruptRecordError, MissingFileError):
        return True
    if record.transaction in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK):
        return True  # in the queue of another topic, or in none
    state = store.snapshot().queues.get(QueueId(decode_utf8(record.topic), record.queue_id))
    return state is not None and state.min_offset <= record.queue_offset < state.max_offset


def _limits(search: Search, topics: Collection[str]) -> Limits:
    """What is wanted of a queue that is not there as it should be."""
    whole = QueueLimits()
    times = QueueLimits(
        first_time=whole.first_time if search.begin is None else search.begin,
        stop_time=whole.stop_time if search.end is None else search.end,
    )

    def limits(queue: QueueId) -> QueueLimits | None:
        wanted = search.queue_ids is None or queue.queue_id in search.queue_ids
        return times if wanted and queue.topic in topics else None

    return limits


def _topics_anywhere(store: MessageStore, search: Search) -> Collection[str]:
    """The topics to look in, with those that have no queue left and stand in topics.json alone."""
    if search.topics is not None:
        return search.topics
    return [
        topic
        for topic in store.known_topics()
        if search.include_system_topics or not store.is_system_topic(topic)
    ]


def _matching(batch: pa.RecordBatch, search: Search) -> pa.RecordBatch:
    kept = np.ones(batch.num_rows, dtype=bool)
    if search.begin is not None or search.end is not None:
        stored = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
        kept &= stored >= (stored if search.begin is None else search.begin)
        if search.end is not None:
            kept &= stored < search.end
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
