"""Which topics of a store have BatchConsumeQueues: by topics.json, by folders, and by records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rmq_store.config.topics_json import declared_topics, update_topics
from rmq_store.consumequeue.queue_folders import queue_folder
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import is_system_topic
from rmq_store.store import MessageStore

BATCH = {"attributes": {"queue.type": "BatchCQ"}}


@dataclass(slots=True)
class TopicKinds:
    """What is known of the topics of a store, for the new store that is made of its log.

    What topics.json declares counts. For another topic its folder proves the kind, and so does a
    record with an inner batch.
    """

    declared: frozenset[str]
    plain: frozenset[str]  # others, by their folders in consumequeue/
    batch: dict[str, set[int]]  # others with BatchConsumeQueues, and their queues

    @classmethod
    def of(cls, store: MessageStore) -> TopicKinds:
        """What the files of a store say. Raises AccessError."""
        declared = frozenset(declared_topics(store.path))
        batch: dict[str, set[int]] = {}
        plain = set()
        for queue, is_batch in store.view.folders().items():
            if is_batch and queue.topic not in declared:
                batch.setdefault(queue.topic, set()).add(queue.queue_id)
            elif not is_batch:
                plain.add(queue.topic)
        return cls(declared, frozenset(plain - declared - set(batch)), batch)

    def make_folders(self, root: Path) -> None:
        """Make the folders of the batch queues in a new store, so that its recovery knows them."""
        for topic, numbers in self.batch.items():
            for number in numbers:
                folder = queue_folder(root, BATCH_CONSUMEQUEUE_DIR, QueueId(topic, number))
                Path(folder).mkdir(parents=True, exist_ok=True)

    def learn(self, batch_topics: Iterable[str], queues: Iterable[QueueId]) -> bool:
        """Note the topics of inner batches among the `queues` of a recovery.

        Returns whether there is a new one. Its messages without an inner batch belong into batch queues
        too, and the recovery did not know that.
        """
        new = set(batch_topics) - self.declared - set(self.batch)
        for queue in queues:
            if queue.topic in new:
                self.batch.setdefault(queue.topic, set()).add(queue.queue_id)
        return bool(new)

    def declare(self, root: Path, release: Dialect, queues: Iterable[QueueId]) -> None:
        """Declare in a new store the batch topics that are not declared; all if none is."""
        made = [queue for queue in queues if not self.declared or queue.topic in self.batch]
        if made:
            batch = {topic: BATCH for topic in self.batch if any(q.topic == topic for q in made)}
            update_topics(root, release, made, batch)

    def unknown(self, queues: Iterable[QueueId]) -> tuple[str, ...]:
        """Topics with queues whose kind nothing says: they are made as plain ones."""
        known = self.declared | self.plain | set(self.batch)
        topics = {queue.topic for queue in queues}
        return tuple(sorted(name for name in topics - known if not is_system_topic(name)))
