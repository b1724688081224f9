"""What a test says of a store: its topics, keys and order, with the difference where they are others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_store.format.queues import QueueId
from rmq_store.format.record import Message
from rmq_store.reading.get_message import MessageGetter
from rmq_store.store import MessageStore

_AT_A_TIME = 1000  # messages


class StoreChecks:
    """A store in a folder, opened anew for each question, so that a test can go on writing to it.

    Reads every message of the queues into memory: for the small stores of tests.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def messages(self, topic: str | None = None, queue_id: int | None = None) -> list[Message]:
        """The messages of a topic (None: of all that are not the broker's own) and queue.

        They come in the order of the log, which is the order of arrival; so each queue is in its
        order. Raises StoreError for damage, and UnknownQueueError for an unknown topic.
        """
        with MessageStore.open(self.path) as store:
            wanted = [topic] if topic is not None else _of_users(store)
            messages = [
                message
                for name in wanted
                for queue in store.queues(name)
                if queue_id in (None, queue.queue_id)
                for message in _all_of(store, queue)
            ]
        return sorted(
            messages, key=lambda message: (message.commit_log_offset, message.queue_offset)
        )

    def assert_topics(self, counts: Mapping[str, int]) -> None:
        """The topics of users, and how many messages each of them has, are these and no others."""
        with MessageStore.open(self.path) as store:
            counted = {
                topic: sum(store.max_offset(*q) - store.min_offset(*q) for q in store.queues(topic))
                for topic in _of_users(store)
            }
        _assert_same(f"messages by topic in {self.path}", dict(sorted(counts.items())), counted)

    def assert_keys(self, topic: str, keys: Iterable[str]) -> None:
        """The words in KEYS of all messages of a topic are these, each as often, in any order."""
        words = Counter(word for m in self.messages(topic) for word in (m.keys or "").split())
        _assert_same(f"keys of {topic} in {self.path}", Counter(keys), words)

    def assert_order(
        self, topic: str, bodies: Sequence[str | bytes], queue_id: int | None = None
    ) -> None:
        """The bodies of a topic, or of one of its queues, are these in this order."""
        where = topic if queue_id is None else f"{topic}/{queue_id}"
        expected = [body.encode() if isinstance(body, str) else body for body in bodies]
        found = [message.body for message in self.messages(topic, queue_id)]
        _assert_same(f"bodies of {where} in {self.path}", expected, found)


def _all_of(store: MessageStore, queue: QueueId) -> Iterator[Message]:
    """All messages of the queue, also of a compaction topic: what was sent is checked."""
    getter = MessageGetter(store.view, store.opening, store.lookup)
    offset, stop = store.min_offset(*queue), store.max_offset(*queue)
    while offset < stop:
        answer = getter.exact(queue, offset, _AT_A_TIME, None)
        yield from answer.messages
        offset = answer.next_begin_offset


def _of_users(store: MessageStore) -> list[str]:
    return [topic for topic in store.topics() if not store.is_system_topic(topic)]


def _assert_same(what: str, expected: object, actual: object) -> None:
    assert actual == expected, f"{what}: expected {expected!r}, found {actual!r}"


class StoreFactory:
    """Creates stores below a folder that the test owns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __call__(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        path: Path | None = None,
        release: str | None = None,
        broker_conf: Mapping[str, Any] | None = None,
    ) -> StoreChecks:
        """A new store with the messages, in their order, closed as a broker closes it.

        A message is a mapping of columns: `topic` and `body` (text is UTF-8), and if wanted
        `queueId` (0), `keys` (text, or a list of words) and `tags`, or instead of both all
        `properties` (with KEYS and TAGS), `storeTimestamp` (ms; now), and the others of
        `StoreWriter.append_batch`. `path`: where; by default a new folder. `broker_conf`:
        settings, such as mappedFileSizeCommitLog. Raises InvalidMessageError for what a broker of
        that release would refuse.
        """
        if path is None:
            self._count += 1
            path = self._folder / f"store-{self._count}"
        with MessageStore.create(path, broker_conf, release=release) as store:
            for message in messages:
                store.append(_columns_of(message))
        return StoreChecks(path)


def _columns_of(message: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"queueId": 0, **message}
    if isinstance(columns.get("body"), str):
        columns["body"] = columns["body"].encode()
    if isinstance(columns.get("keys"), (list, tuple)):
        columns["keys"] = " ".join(columns["keys"])
    return columns
