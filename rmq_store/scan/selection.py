"""Select queue ranges of the stores by the options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq_store import MessageStore
from rmq_store.config.topics_json import queue_count
from rmq_store.errors import (
    LOG,
    DataLossError,
    InvalidArgumentError,
    UnknownQueueError,
    nearest,
    shown_path,
)
from rmq_store.files.parallel import side_by_side
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import is_system_topic
from rmq_store.reading.log_reader import QueueLimits
from rmq_store.scan.option_values import EARLIEST, LATEST, ByQueue
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.snapshot.compacted_view import QueueSource
from rmq_store.text.times import RelativeTime, Time, shown_time


class TopicWithoutQueueError(UnknownQueueError):
    """A named topic is in topics.json and has no queue: it has no message yet, or its queues are
    lost."""

    code = "RMQSTORE_TOPIC_WITHOUT_QUEUE"


def check_names(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every named topic and queue exists in at least one store.

    Raises UnknownQueueError or InvalidArgumentError, with the nearest name. TopicWithoutQueueError
    comes last: nothing else is wrong with the names then.
    """
    known = {topic for store in stores for topic in store.view.topics.every}
    assigned = _assigned(stores, options)
    topics = dict.fromkeys([*(options.topics or ()), *(queue.topic for queue in assigned)])
    for topic in topics:
        if topic not in known:
            raise _unknown_topic(stores, topic, known)
    for queue in assigned:
        _check_queue(stores, queue)
    _check_all_selected(stores, options)
    for topic in topics:
        if not any(store.queues(topic) for store in stores):
            raise TopicWithoutQueueError(
                _paths(stores),
                reason=f"topic {topic!r} has no queue, although topics.json has the topic: no message "
                "was dispatched to it, or its queues are lost",
                advice="source=commitlog reads what the log has of it, readStream waits for its first "
                "message",
            )


def check_brokers(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every named broker is one of the stores. Raises InvalidArgumentError."""
    brokers = {store.broker_name for store in stores}
    named = options.assign.brokers() if options.assign is not None else set()
    for _, by_queue in _of_queues(options):
        named = named | by_queue.brokers()
    for broker in sorted(named - brokers):
        raise InvalidArgumentError(
            reason=f"no broker {broker!r} among the stores", advice=nearest(broker, brokers)
        )


def _check_queue(stores: Sequence[MessageStore], queue: QueueId) -> None:
    """Raise UnknownQueueError for a queue that has no files and that no topics.json includes."""
    if any(queue in store.queues(queue.topic) or _is_declared(store, queue) for store in stores):
        return
    numbers = {q.queue_id for store in stores for q in store.queues(queue.topic)}
    raise UnknownQueueError(
        _paths(stores),
        reason=f"topic {queue.topic!r} has no queue {queue.queue_id}",
        expected=f"one of {sorted(numbers)}",
        actual=queue.queue_id,
    )


def _is_declared(store: MessageStore, queue: QueueId) -> bool:
    """Whether topics.json includes a queue. Before its first message it has no files."""
    return 0 <= queue.queue_id < queue_count(store.view.topics.declared.get(queue.topic))


def _of_queues(options: ScanOptions) -> tuple[tuple[str, ByQueue], ...]:
    """The options that have a number per queue."""
    return (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
        ("startingOffsetsByTimestamp", options.starting_timestamps),
        ("endingOffsetsByTimestamp", options.ending_timestamps),
    )


def _assigned(stores: Sequence[MessageStore], options: ScanOptions) -> list[QueueId]:
    if options.assign is None:
        return []
    return [queue for store in stores for queue in options.assign.of(store.broker_name)]


def _paths(stores: Sequence[MessageStore]) -> str:
    return ", ".join(shown_path(str(store.path)) for store in stores)


def _unknown_topic(
    stores: Sequence[MessageStore], topic: str, topics: Iterable[str]
) -> UnknownQueueError:
    return UnknownQueueError(
        _paths(stores),
        reason=f"no topic {topic!r} in this store",
        advice=nearest(topic, topics, last=is_system_topic),
    )


# --- the ranges of one store ----------------------------------------------------------------------


def select_ranges(store: MessageStore, options: ScanOptions) -> tuple[QueueSlice, ...]:
    """The range of every selected queue with files, maybe empty, in order of topic and queue.

    For each queue, a timestamp for all queues takes precedence, then the queue's timestamp, then
    its offset, then its own end, as in Kafka's source. Raises InvalidArgumentError for an offset
    that is not in its queue, DataLossError for one that expired.
    """
    queues = sorted(_selected_queues(store, options))
    view = store.ranges_for(options.sees_compacted)
    ranges: dict[QueueId, QueueSlice] = {}

    def look(queue: QueueId) -> None:
        ranges[queue] = _range_of(store, queue, options, view)

    # In an object store, finding a time takes some requests per queue.
    side_by_side(look, queues, store.log.chain.cost.looks_at_once)
    return tuple(ranges[queue] for queue in queues if queue in store.snapshot().queues)


def first_offsets(store: MessageStore, options: ScanOptions) -> dict[QueueId, int]:
    """The first wanted queue offset of every selected queue, also of those without a message.

    A stream reads the log, which has all messages of a compaction topic. Raises as `select_ranges`.
    """
    queues = _selected_queues(store, options)
    return {queue: _range_of(store, queue, options, store.view).start for queue in queues}


def _selected_queues(store: MessageStore, options: ScanOptions) -> list[QueueId]:
    """The selected queues that have files, and those of topics.json that an option names."""
    queues = store.snapshot().queues
    if options.assign is not None:
        assigned = options.assign.of(store.broker_name)
        return [queue for queue in assigned if queue in queues or _is_declared(store, queue)]
    wanted = WantedQueues.of(store, options)
    named = {
        queue
        for _, by_queue in _of_queues(options)
        for queue in by_queue.on(store.broker_name)
        if queue not in queues and _is_declared(store, queue)
    }
    return sorted(filter(wanted, {*queues, *named}))


@dataclass(frozen=True, slots=True)
class WantedQueues:
    """Says whether a queue of a store is selected. Plain data, so that executors can use it."""

    assigned: frozenset[QueueId] | None
    topics: frozenset[str] | None
    pattern: str | None
    include_system: bool
    broker_name: str
    own_names: frozenset[str | None]  # of the broker and its cluster

    @classmethod
    def of(cls, store: MessageStore, options: ScanOptions) -> WantedQueues:
        """The queues selected in `store`."""
        return cls(
            None if options.assign is None else frozenset(options.assign.of(store.broker_name)),
            None if options.topics is None else frozenset(options.topics),
            options.topic_pattern,
            options.include_system_topics,
            store.broker_name,
            store.own_names,
        )

    def __call__(self, queue: QueueId) -> bool:
        if self.assigned is not None:
            return queue in self.assigned
        topic = queue.topic
        if self.topics is not None:
            return topic in self.topics
        if not self.include_system and is_system_topic(topic, self.own_names):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None


def _check_all_selected(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every queue with its own offset or time is selected in at least one store."""
    if not any(by_queue for _, by_queue in _of_queues(options)):
        return
    chosen = {store.broker_name: set(_selected_queues(store, options)) for store in stores}
    anywhere: set[QueueId] = set().union(*chosen.values())
    for option, by_queue in _of_queues(options):
        strangers = [queue for queue in by_queue.everywhere if queue not in anywhere]
        strangers += [q for broker, q in by_queue.on_broker if q not in chosen[broker]]
        for queue in strangers:
            raise InvalidArgumentError(
                reason=f"{option} names queue {queue.queue_id} of topic {queue.topic!r}, "
                "which is not selected",
                advice="Select it with 'subscribe' or 'assign', or leave out its offset",
            )


def _range_of(
    store: MessageStore, queue: QueueId, options: ScanOptions, view: QueueSource
) -> QueueSlice:
    name = store.broker_name
    from_time = _first(options.starting_timestamp, options.starting_timestamps.of(name, queue))
    to_time = _first(options.ending_timestamp, options.ending_timestamps.of(name, queue))
    has_files = queue in store.snapshot().queues
    low, high = limits = view.limits(queue) if has_files else (0, 0)
    if from_time is None:
        start = _offset(store, queue, options.starting_offsets.of(name, queue), limits, options)
    else:
        start = view.first_since(queue, from_time) if has_files else 0
        if options.timestamp_strategy == "error" and start >= high:
            raise InvalidArgumentError(
                store.path,
                reason=f"queue {queue.queue_id} of topic {queue.topic!r} has no message stored at "
                f"{shown_time(from_time)} or later",
                advice="Set startingOffsetsByTimestampStrategy=latest to skip the queue",
            )
    if to_time is None:
        stop = _offset(store, queue, options.ending_offsets.of(name, queue), limits, options)
    else:
        stop = view.first_since(queue, to_time, unreadable_before=True) if has_files else 0
    if from_time is None and to_time is None and start is not None and stop is not None:
        _refuse_end_before_latest(store, queue, start, stop, low)
    first, last = low if start is None else start, high if stop is None else stop
    first, last = (min(max(offset, low), high) for offset in (first, last))
    return QueueSlice(queue, first, max(first, last))


def _refuse_end_before_latest(
    store: MessageStore, queue: QueueId, start: int, stop: int, least: int
) -> None:
    """Raise InvalidArgumentError if -1 for the start makes a range end before it begins."""
    if start > stop >= least:  # an end before the first offset has expired
        raise InvalidArgumentError(
            store.path,
            reason=f"the offsets of queue {queue.queue_id} of topic {queue.topic!r} start at {start} and "
            f"end at {stop}",
            advice="Give an end that is not before the start; -2 is the earliest offset, -1 the latest",
        )


def _first(for_all: Time | None, of_queue: int | None) -> int | None:
    """The time for all queues if there is one, else that of the queue."""
    assert not isinstance(for_all, RelativeTime)  # Scan.of fixed it
    return of_queue if for_all is None else for_all


def _offset(
    store: MessageStore,
    queue: QueueId,
    offset: int | None,
    limits: tuple[int, int],
    options: ScanOptions,
) -> int | None:
    """The queue offset that an option gives; None without one. One that has expired may be outside."""
    if offset is None:
        return None
    offset = {EARLIEST: limits[0], LATEST: limits[1]}.get(offset, offset)
    if limits[0] <= offset <= limits[1]:
        return offset
    what = f"offset {offset} of queue {queue.queue_id} of topic {queue.topic!r}"
    if not options.fail_on_data_loss:
        LOG.warning("%s is not in %s to %s; the remaining messages are read", what, *limits)
        return offset
    kind = DataLossError if offset < limits[0] else InvalidArgumentError
    raise kind(
        store.path,
        reason=f"{what} is not in the queue",
        expected=f"{limits[0]} to {limits[1]}",
        actual=offset,
        advice="The messages may have expired; -2 is the earliest offset, -1 the latest; "
        "failOnDataLoss=false reads the remaining messages",
    )


# --- the same for the log as the source -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The limits of each queue if the log is the source, where only the records name the queues."""

    wanted: WantedQueues
    options: ScanOptions

    def __call__(self, queue: QueueId) -> QueueLimits | None:
        options, name = self.options, self.wanted.broker_name
        if not self.wanted(queue):
            return None
        from_time = _first(options.starting_timestamp, options.starting_timestamps.of(name, queue))
        to_time = _first(options.ending_timestamp, options.ending_timestamps.of(name, queue))
        start = None if from_time is not None else options.starting_offsets.of(name, queue)
        stop = None if to_time is not None else options.ending_offsets.of(name, queue)
        whole = QueueLimits()
        if start == LATEST or stop == EARLIEST:
            return None
        return QueueLimits(
            whole.first_offset if start is None or start == EARLIEST else start,
            whole.stop_offset if stop is None or stop == LATEST else stop,
            whole.first_time if from_time is None else from_time,
            whole.stop_time if to_time is None else to_time,
        )
