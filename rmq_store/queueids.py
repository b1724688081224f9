"""Numbers of queues that were asked for, held against those that a topic has."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.config import read_topic_configs
from rmq_store.errors import UnknownQueueError
from rmq_store.store import MessageStore


def require_queue_ids(store: MessageStore, topic: str, queue_ids: Iterable[int]) -> None:
    """Raises UnknownQueueError for a number that the topic has neither files of nor is made with.

    A queue that topics.json counts and that never had a message has no files, and is there.
    """
    there = {queue.queue_id for queue in store.queues(topic)}
    unknown = sorted(set(queue_ids) - there)
    if not there or not unknown:
        return  # an unknown topic is refused where it is asked for
    declared = read_topic_configs(store.path).get(topic, {})
    count = max(int(declared.get(name) or 0) for name in ("readQueueNums", "writeQueueNums"))
    unknown = [queue_id for queue_id in unknown if not 0 <= queue_id < count]
    if unknown:
        raise UnknownQueueError(
            store.path,
            reason=f"topic {topic!r} has no queue {unknown[0]}",
            advice=f"Queues with messages are {', '.join(map(str, sorted(there)))}",
        )
