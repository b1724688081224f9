"""From what was asked for to queue ranges: the one place where the options meet the store."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store import MessageStore
from rmq_store.consumequeue import QueueId
from rmq_store.errors import InvalidArgumentError, UnknownQueueError, nearest
from rmq_store.planning import Bound, QueueSlice, resolve
from spark_source.options import EARLIEST, LATEST, SourceOptions


def select_ranges(store: MessageStore, options: SourceOptions) -> tuple[QueueSlice, ...]:
    """The range of every selected queue that has messages in it, in order of topic and queue.

    For each queue an offset given for it counts first, then the timestamp, then its own end. Raises
    UnknownQueueError for a topic or queue that the store does not have, InvalidArgumentError for an
    offset that is not in its queue and for offsets of a queue that is not selected.
    """
    queues = _selected_queues(store, options)
    _check_all_selected("startingOffsets", options.starting_offsets, queues)
    _check_all_selected("endingOffsets", options.ending_offsets, queues)
    ranges = (_range_of(store, queue, options) for queue in sorted(queues))
    return tuple(part for part in ranges if len(part))


def _selected_queues(store: MessageStore, options: SourceOptions) -> list[QueueId]:
    if options.assign is not None:
        for queue in options.assign:
            _check_known(store, queue)
        return list(options.assign)
    if options.topics is not None:
        known = store.topics()
        for topic in options.topics:
            if topic not in known:
                raise _unknown_topic(store, topic)
        return [queue for topic in options.topics for queue in store.queues(topic)]
    topics = store.topics(include_system=options.include_system_topics)
    return [queue for topic in topics for queue in store.queues(topic)]


def _check_known(store: MessageStore, queue: QueueId) -> None:
    queues = store.queues(queue.topic) if queue.topic in store.topics() else None
    if queues is None:
        raise _unknown_topic(store, queue.topic)
    if queue not in queues:
        raise UnknownQueueError(
            store.path,
            reason=f"topic {queue.topic!r} has no queue {queue.queue_id}",
            expected=f"one of {[q.queue_id for q in queues]}",
            actual=queue.queue_id,
        )


def _unknown_topic(store: MessageStore, topic: str) -> UnknownQueueError:
    return UnknownQueueError(
        store.path,
        reason=f"no topic {topic!r} in this store",
        advice=nearest(topic, store.topics()),
    )


def _check_all_selected(option: str, offsets: Iterable[QueueId], queues: list[QueueId]) -> None:
    for queue in offsets:
        if queue not in queues:
            raise InvalidArgumentError(
                None,
                reason=f"{option} names queue {queue.queue_id} of topic {queue.topic!r}, "
                "which is not selected",
                advice="Select it with 'topic' or 'assign', or leave its offset out",
            )


def _range_of(store: MessageStore, queue: QueueId, options: SourceOptions) -> QueueSlice:
    limits = store.min_offset(*queue), store.max_offset(*queue)
    start = _bound(
        store, queue, options.starting_offsets.get(queue), options.starting_timestamp, limits
    )
    stop = _bound(store, queue, options.ending_offsets.get(queue), options.ending_timestamp, limits)

    def by_time(queue: QueueId, moment: int) -> int:
        return store.offset_by_time(queue.topic, queue.queue_id, moment)

    return resolve(queue, limits, start, stop, by_time)


def _bound(
    store: MessageStore,
    queue: QueueId,
    offset: int | None,
    moment: int | None,
    limits: tuple[int, int],
) -> Bound:
    if offset is None:
        return Bound(time_ms=moment)
    offset = {EARLIEST: limits[0], LATEST: limits[1]}.get(offset, offset)
    if not limits[0] <= offset <= limits[1]:
        raise InvalidArgumentError(
            store.path,
            reason=f"offset {offset} is not in queue {queue.queue_id} of topic {queue.topic!r}",
            expected=f"{limits[0]} to {limits[1]}",
            actual=offset,
            advice="What was there may have expired; -2 is the earliest offset, -1 the latest",
        )
    return Bound(offset=offset)
