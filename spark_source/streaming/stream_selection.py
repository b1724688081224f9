"""What a stream selects, as its checkpoint keeps it: a query that goes on must not select more.

A place in the log counts for all topics. So a topic, tag, key or queue that is added later would lack
its messages before the place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rmq_store.errors import InvalidArgumentError
from rmq_store.escaping import LOG
from rmq_store.format.topics import is_system_topic
from spark_source.options.parse import SourceOptions

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

    def added_to(self, before: StreamSelection) -> str | None:
        """What it selects that `before` does not, or may not; None for nothing."""
        return (
            self._topics_added_to(before)
            or _words_added("tag", self.tags, before.tags)
            or _words_added("key", self.keys, before.keys)
        )

    def _topics_added_to(self, before: StreamSelection) -> str | None:
        if self.queues is not None and before.queues is not None:
            for broker, topic, number in sorted(self.queues - before.queues):
                if ("", topic, number) not in before.queues:
                    return f"queue {number} of topic {topic!r}" + (broker and f" of {broker!r}")
            return None
        if before.queues is not None:
            return "queues that 'assign' did not name"
        names = self.topics or frozenset(topic for _, topic, _ in self.queues or ())
        if names:
            added = sorted(topic for topic in names if not before._has(topic))
            return f"topic {added[0]!r}" if added else None
        if before.topics is not None or before.pattern not in (None, self.pattern):
            return "topics that were not selected"
        return "system topics" if self.system and not before.system else None

    def _has(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        if not self.system and is_system_topic(topic):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None


def _words_added(kind: str, now: _Words, before: _Words) -> str | None:
    if before is None or now == before:
        return None
    if now is None:
        return f"messages with any {kind}"
    added = sorted(now - before)
    return f"{kind} {added[0]!r}" if added else None


def check_selection(stored: Mapping[str, Any], asked: SourceOptions) -> None:
    """Raise InvalidArgumentError, or warn with failOnDataLoss=false, if a query that goes on from the
    offset `stored` selects more than before."""
    if "selection" not in stored:  # of a release that did not keep it
        return
    before = StreamSelection.from_dict(stored["selection"])
    added = StreamSelection.of(asked).added_to(before)
    if added is None:
        return
    error = InvalidArgumentError(
        asked.path,
        reason=f"the options select {added}, which the query may not have selected up to the place in its "
        "checkpoint, so that earlier messages may be missing",
        advice="Start a query with another checkpoint for what was added; with failOnDataLoss=false "
        "this one goes on without these messages",
    )
    if asked.fail_on_data_loss:
        raise error
    LOG.warning("%s", error)
