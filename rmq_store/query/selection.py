"""Topics and numbers of queues that were asked for, held against those that a store has."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.config.broker_conf import declared_topics
from rmq_store.errors import UnknownQueueError, nearest
from rmq_store.store import MessageStore


def require_topic(store: MessageStore, topic: str) -> None:
    """Raises UnknownQueueError for a topic that has no queue and does not stand in topics.json."""
    known = store.known_topics()
    if topic not in known:
        raise UnknownQueueError(
            store.path,
            reason=f"there is no topic {topic!r}",
            advice=nearest(topic, known) if known else "The store has no queues at all",
        )


def require_queue_ids(store: MessageStore, topic: str, queue_ids: Iterable[int]) -> None:
    """Raises UnknownQueueError for a number that the topic has neither files of nor is made with.

    A queue that topics.json counts and that never had a message has no files, and is there.
    """
    there = {queue.queue_id for queue in store.queues(topic)}
    unknown = sorted(set(queue_ids) - there)
    if not there or not unknown:
        return  # an unknown topic is refused where it is asked for
    declared = declared_topics(store.path).get(topic, {})
    counts = (declared.get(name) for name in ("readQueueNums", "writeQueueNums"))
    count = max((one for one in counts if isinstance(one, int)), default=0)
    unknown = [queue_id for queue_id in unknown if not 0 <= queue_id < count]
    if unknown:
        raise UnknownQueueError(
            store.path,
            reason=f"topic {topic!r} has no queue {unknown[0]}",
            advice=f"Queues with messages are {', '.join(map(str, sorted(there)))}",
        )
