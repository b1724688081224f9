"""What a stream selects, as its checkpoint keeps it: a query that goes on must not select more.

A place in the log counts for all topics. So a topic, tag, key or queue that is added later would lack
its messages before the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QueueId
from spark_source.options.parse import SourceOptions
from spark_source.planning.selection import WantedQueues

_Words = frozenset[Any] | None


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """Which messages a stream wants; None is all. `queues`: (broker, topic, id), broker "" is any."""

    topics: _Words = None
    pattern: str | None = None
    queues: _Words = None
    system: bool = False
    tags: _Words = None
    keys: _Words = None

    @classmethod
    def of(cls, asked: SourceOptions) -> StreamSelection:
        """The selection by the options."""
        queues = None
        if asked.assign is not None:
            queues = frozenset(
                [("", *queue) for queue in asked.assign.everywhere]
                + [(broker, *queue) for broker, queue in asked.assign.on_broker]
            )
        topics, tags, keys = (
            None if words is None else frozenset(words)
            for words in (asked.topics, asked.tags, asked.keys)
        )
        return cls(topics, asked.topic_pattern, queues, asked.include_system_topics, tags, keys)

    def to_dict(self) -> dict[str, Any]:
        """What is given of it, for Spark's checkpoint: the same text for the same selection."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in given.items()
            if value is not None and value is not False
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StreamSelection:
        """The selection from Spark's checkpoint."""
        given = dict(stored)
        for name in ("topics", "tags", "keys", "queues"):
            if name in given:
                given[name] = frozenset(
                    tuple(one) if isinstance(one, list) else one for one in given[name]
                )
        return cls(**given)

    def added_to(self, before: StreamSelection, stores: Iterable[MessageStore]) -> str | None:
        """What it selects of some stores that `before` does not; None for nothing."""
        return (
            _words_added("tag", self.tags, before.tags)
            or _words_added("key", self.keys, before.keys)
            or next(filter(None, (self._queue_added_to(before, store) for store in stores)), None)
        )

    def _queue_added_to(self, before: StreamSelection, store: MessageStore) -> str | None:
        """The first queue of a store that `before` lacks, or its topic if `before` has none of it."""
        had, there = before._wanted(store), store.queues()
        added = sorted(filter(lambda queue: not had(queue), filter(self._wanted(store), there)))
        if not added:
            return None
        topic, number = added[0]
        partly = any(one.topic == topic and had(one) for one in there)
        return f"queue {number} of topic {topic!r}" if partly else f"topic {topic!r}"

    def _wanted(self, store: MessageStore) -> WantedQueues:
        name, queues = store.broker_name, self.queues
        return WantedQueues(
            None
            if queues is None
            else frozenset(QueueId(t, n) for b, t, n in queues if b in ("", name)),
            self.topics,
            self.pattern,
            self.system,
            name,
            store.own_names,
        )


def _words_added(kind: str, now: _Words, before: _Words) -> str | None:
    if before is None or now == before:
        return None
    if now is None:
        return f"messages with any {kind}"
    added = sorted(now - before)
    return f"{kind} {added[0]!r}" if added else None


def check_selection(
    stored: Mapping[str, Any], asked: SourceOptions, stores: Iterable[MessageStore]
) -> None:
    """Raise InvalidArgumentError, or warn with failOnDataLoss=false, if a query that goes on from the
    offset `stored` selects more than before of its stores, which are opened only if needed.

    A topic that a store does not have yet has no earlier message.
    """
    now = StreamSelection.of(asked)
    if stored.get("selection", now.to_dict()) == now.to_dict():  # an early release did not keep it
        return
    added = now.added_to(StreamSelection.from_dict(stored["selection"]), stores)
    if added is None:
        return
    asked.lose(
        InvalidArgumentError(
            asked.path,
            reason=f"the options select {added}, which the query may not have selected up to the place in "
            "its checkpoint, so that earlier messages may be missing",
            advice="Start a query with another checkpoint for what was added; with failOnDataLoss=false "
            "this one goes on without these messages",
        )
    )
