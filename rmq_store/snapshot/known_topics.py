"""The topics of a store: as its queues, topics.json and the log show them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.config.json_files import config_names
from rmq_store.config.topics_json import (
    TOPICS_FILE,
    lists_all_topics,
    perm_allows_read,
    queue_count,
    read_queue_count,
)
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import LOG, StoreError, UnknownQueueError, nearest
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    OP_TOPICS,
    RETRY_PREFIX,
    KnownNames,
    is_system_topic,
)
from rmq_store.snapshot.snapshot import StoreSnapshot

_ANY_NUMBER = 1 << 31  # of queues


def unknown_topic(
    where: str | os.PathLike[str], topic: str, topics: Iterable[str]
) -> UnknownQueueError:
    """The error for a topic that is none of those of a store, or of several."""
    advice = nearest(topic, topics, last=is_system_topic)
    return UnknownQueueError(where, reason=f"there is no topic {topic!r}", advice=advice)


class KnownTopics:
    """The topics of a snapshot."""

    def __init__(self, snapshot: StoreSnapshot, folders: QueueFolders) -> None:
        self._snapshot, self._folders, self._root = snapshot, folders, folders.root

    @cached_property
    def with_queues(self) -> list[str]:
        """Sorted names of all topics that have a queue."""
        return sorted({queue.topic for queue in self._snapshot.queues})

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """topics.json, read once: topic -> its settings; {} if it is damaged. Raises AccessError."""
        return self._folders.declared[0]

    @cached_property
    def queue_counts(self) -> dict[str, int]:
        """How many queues topics.json gives a topic. Raises AccessError.

        Brokers of 4.9 write op messages without such an entry, to the queues of the half messages.
        """
        said = {topic: queue_count(settings) for topic, settings in self.declared.items()}
        return {op: said[half] for half, op in OP_TOPICS.items() if half in said} | said

    def most_queues(self, topic: str) -> int:
        """How many queues a topic may have. Raises AccessError.

        Where topics.json does not say it, a topic that has some may have any, unless it was deleted: a
        recovery may then have listed the newest messages of some of its queues again. A light queue is the
        only one of its topic.
        """
        if topic in self.queue_counts or topic.startswith(LMQ_PREFIX):
            return self.queue_counts.get(topic, 0)
        own = is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        may_be_deleted = self.lists_all and not own
        return 0 if may_be_deleted or topic not in self.with_queues else _ANY_NUMBER

    @property
    def problem(self) -> StoreError | None:
        """Why topics.json cannot be read. Raises AccessError."""
        return self._folders.declared[1]

    @cached_property
    def has_file(self) -> bool:
        """Whether there is a topics.json, a .bak of it or a database in its place. Raises AccessError."""
        return TOPICS_FILE in config_names(self._root)

    @cached_property
    def every(self) -> list[str]:
        """Sorted names of the topics that have a queue or an entry in topics.json.

        The log may hold messages of a topic that lost its queues. Raises AccessError.
        """
        return sorted({*self.with_queues, *self.declared})

    @cached_property
    def lists_all(self) -> bool:
        """Whether a topic that topics.json does not have is unknown to the broker. Raises AccessError."""
        return self.problem is None and lists_all_topics(self._root)

    def is_undeclared(self, topic: str) -> bool:
        """Whether a broker that starts now does not know a topic: topics.json, which is there and can be
        read, does not have it, and the broker does not create it by itself.

        It creates its own ones (TopicConfigManager#init), and the retry topic of a group with the group's
        first consumer (ClientManageProcessor). It refuses pulls of others (PullMessageProcessor).
        """
        if topic in self.declared or topic.startswith(RETRY_PREFIX):
            return False
        own = is_system_topic(topic) and not topic.startswith(DLQ_PREFIX)
        return not own and self.lists_all

    def is_read(self, queue: QueueId) -> bool:
        """Whether consumers get the messages of a queue: topics.json has its topic and lets them read it.

        True for the queues that only the broker reads, and for a topic without readQueueNums. A broker
        makes dead letters without the right to be read.
        """
        topic, number = queue
        if is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return True
        if self.is_undeclared(topic):
            return False
        settings = self.declared.get(topic)
        count = read_queue_count(settings)
        readable = topic.startswith(DLQ_PREFIX) or perm_allows_read(settings)
        return readable and (count is None or number < count)

    @cached_property
    def known_names(self) -> KnownNames:
        """The topics, and which groups have offsets in which retry topic. Raises AccessError."""
        readers: dict[str, set[str]] = {}
        try:
            committed = read_consumer_offsets(self._root, self._folders.config.enableLmq)
        except StoreError as error:
            LOG.warning("which groups read a retry topic is not known: %s", error)
            committed = {}
        for group, topics in committed.items():
            for topic in topics:
                if topic.startswith(RETRY_PREFIX):
                    readers.setdefault(topic, set()).add(group)
        return KnownNames(frozenset(self.every), readers)
