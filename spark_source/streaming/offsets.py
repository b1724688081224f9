"""The offset of a stream, as JSON in Spark's checkpoint: a place in the log of each store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.commitlog.other_store_at_path import Mark
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QueueId
from rmq_store.reading.growing_log import LogPlace

VERSION = 1


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A place in the log of one store.

    `since`: where the stream began in a store that appeared after the query. `first_offsets`: the
    first wanted queue offset of queues, for records that start before `first_until` in the log;
    only the first offsets of a query have them.
    """

    place: LogPlace
    since: int | None = None
    first_offsets: Mapping[QueueId, int] = field(default_factory=dict)
    first_until: int = 0


StreamOffset = Mapping[str, StorePlace]
"""Broker name -> place."""


def to_dict(offset: StreamOffset) -> dict[str, Any]:
    """The offset as Spark keeps it."""
    return {"version": VERSION, "stores": {name: _of_place(p) for name, p in offset.items()}}


def from_dict(given: Mapping[str, Any]) -> dict[str, StorePlace]:
    """The offset from Spark's checkpoint. Raises InvalidArgumentError for another format."""
    if given.get("version") != VERSION:
        raise InvalidArgumentError(
            reason="the checkpoint's offset has another format",
            expected=f"version {VERSION}",
            actual=repr(given.get("version")),
            advice="It is from another release of rmqstore or another source; use a new checkpoint",
        )
    return {name: _to_place(stored) for name, stored in given["stores"].items()}


def _of_place(place: StorePlace) -> dict[str, Any]:
    found: dict[str, Any] = {"log": place.place.offset}
    for name, mark in (("before", place.place.before), ("first", place.place.first)):
        if mark is not None:
            found[name] = [mark.start, mark.stop, mark.digest]
    if place.since is not None:
        found["since"] = place.since
    if place.first_offsets:
        by_topic: dict[str, dict[str, int]] = {}
        for queue, offset in place.first_offsets.items():
            by_topic.setdefault(queue.topic, {})[str(queue.queue_id)] = offset
        found |= {"firstOffsets": by_topic, "firstUntil": place.first_until}
    return found


def _to_place(stored: Mapping[str, Any]) -> StorePlace:
    marks = (None if stored.get(n) is None else Mark(*stored[n]) for n in ("before", "first"))
    first = {
        QueueId(topic, int(queue_id)): offset
        for topic, queues in stored.get("firstOffsets", {}).items()
        for queue_id, offset in queues.items()
    }
    return StorePlace(
        LogPlace(stored["log"], *marks), stored.get("since"), first, stored.get("firstUntil", 0)
    )
