"""Check that what the options name is in one of the stores."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError, UnknownQueueError, nearest, shown_path
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import is_system_topic
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.search.selection import Assignment, is_declared, numbers_by_queue, selected_queues


class TopicWithoutQueueError(UnknownQueueError):
    """A named topic is in topics.json and has no queue: it has no message yet, or its queues are lost."""

    code = "RMQSTORE_TOPIC_WITHOUT_QUEUE"


def check_names(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every named topic and queue exists in at least one store.

    Raises UnknownQueueError or InvalidArgumentError, with the nearest name. TopicWithoutQueueError
    comes last: nothing else is wrong with the names then.
    """
    known = {topic for store in stores for topic in store.view.topics.every}
    where = ", ".join(shown_path(str(store.path)) for store in stores)
    assign = options.assign or Assignment()
    assigned = [queue for store in stores for queue in assign.of(store.broker_name)]
    topics = dict.fromkeys([*(options.topics or ()), *(queue.topic for queue in assigned)])
    for topic in topics:
        if topic not in known:
            raise UnknownQueueError(
                where,
                reason=f"no topic {topic!r} in this store",
                advice=nearest(topic, known, last=is_system_topic),
            )
    for queue in assigned:
        _check_queue(stores, queue, where)
    _check_all_selected(stores, options)
    for topic in topics:
        if not any(store.queues(topic) for store in stores):
            raise TopicWithoutQueueError(
                where,
                reason=f"topic {topic!r} has no queue, although topics.json has the topic: no message "
                "was dispatched to it, or its queues are lost",
                advice="source=commitlog reads what the log has of it, readStream waits for its first "
                "message",
            )


def require_named_brokers(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every named broker is one of the stores. Raises InvalidArgumentError."""
    brokers = {store.broker_name for store in stores}
    assigned = (options.assign or Assignment()).brokers()
    named = assigned.union(*(by_queue.brokers() for _, by_queue in numbers_by_queue(options)))
    for broker in sorted(named - brokers):
        raise InvalidArgumentError(
            reason=f"no broker {broker!r} among the stores", advice=nearest(broker, brokers)
        )


def _check_queue(stores: Sequence[MessageStore], queue: QueueId, where: str) -> None:
    """Raise UnknownQueueError for a queue that has no files and that no topics.json includes."""
    if any(queue in store.queues(queue.topic) or is_declared(store, queue) for store in stores):
        return
    numbers = {q.queue_id for store in stores for q in store.queues(queue.topic)}
    raise UnknownQueueError(
        where,
        reason=f"topic {queue.topic!r} has no queue {queue.queue_id}",
        expected=f"one of {sorted(numbers)}",
        actual=queue.queue_id,
    )


def _check_all_selected(stores: Sequence[MessageStore], options: ScanOptions) -> None:
    """Check that every queue with its own offset or time is selected in at least one store."""
    if not any(by_queue for _, by_queue in numbers_by_queue(options)):
        return
    chosen = {store.broker_name: set(selected_queues(store, options)) for store in stores}
    anywhere: set[QueueId] = set().union(*chosen.values())
    for option, by_queue in numbers_by_queue(options):
        strangers = [queue for queue in by_queue.everywhere if queue not in anywhere]
        strangers += [q for broker, q in by_queue.on_broker if q not in chosen[broker]]
        for queue in strangers:
            raise InvalidArgumentError(
                reason=f"{option} names queue {queue.queue_id} of topic {queue.topic!r}, "
                "which is not selected",
                advice="Select it with 'subscribe' or 'assign', or leave out its offset",
            )
