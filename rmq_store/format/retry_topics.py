"""Consumer group and origin topic of a record in a retry topic (KeyBuilder).

| topic | written for |
|---|---|
| `%RETRY%group` | a message that a push consumer sent back; the record has RETRY_TOPIC |
| `%RETRY%group+topic` | a message that a pop consumer did not acknowledge, version 2 |
| `%RETRY%group_topic` | the same, version 1 |

Names of groups and topics may have `_`, so that the last form alone says neither. See `retry_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_store.format.topics import DLQ_PREFIX, RETRY_PREFIX

ORIGIN_GROUP, RETRY_TOPIC, DLQ_ORIGIN_TOPIC, REAL_TOPIC = (
    *("ORIGIN_GROUP", "RETRY_TOPIC"),
    *("DLQ_ORIGIN_TOPIC", "REAL_TOPIC"),
)
FIRST_POP = "1ST_POP_TIME"
PROPERTIES = (ORIGIN_GROUP, RETRY_TOPIC, DLQ_ORIGIN_TOPIC, REAL_TOPIC)
"""Names of the properties that `retry_of` and `dead_letter_of` look at."""

_V1, _V2 = "_", "+"


class SentBack(NamedTuple):
    """The group that sent a message back, and the topic that it had it from, if that is known."""

    group: str
    topic: str | None


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names of one store: its topics, and the groups that have offsets in each retry topic."""

    topics: Collection[str] = frozenset()
    readers: Mapping[str, Collection[str]] = field(default_factory=dict)


def dead_letter_of(topic: str, properties: Mapping[str, str]) -> SentBack:
    """The group and the origin topic of a record in the dead-letter topic `topic`."""
    group = topic.removeprefix(DLQ_PREFIX)
    origin = properties.get(DLQ_ORIGIN_TOPIC) or properties.get(RETRY_TOPIC)
    return SentBack(group, None if origin is None else origin_topic(group, origin))


def origin_topic(group: str, sent_from: str) -> str:
    """The topic that a dead letter of a group came from, by what its record names: of pop a retry topic."""
    name = sent_from.removeprefix(RETRY_PREFIX)
    if name == sent_from:
        return sent_from
    fronts = (front for front in (group + _V2, group + _V1) if name.startswith(front))
    return name.removeprefix(next(fronts, "")) or sent_from


def times_given(reconsume_times: int, popped: bool) -> int:
    """How often a dead letter was given to consumers. Of pop, the proxy counts one more time when it writes
    it, instead of giving it."""
    return max(0, reconsume_times - 1) if popped else reconsume_times


def retry_of(topic: str, properties: Mapping[str, str], known: KnownNames) -> SentBack:
    """The group and the origin topic of a record in the retry topic `topic`.

    The first of these decides:

    1. a `+` in the name
    2. ORIGIN_GROUP, which brokers from 5.4 on write with each pop retry
    3. RETRY_TOPIC, which only a message has that was sent back: the whole name is the group
    4. the only group that has consumer offsets in this topic
    5. the end of the name, if it is REAL_TOPIC, or the only topic of the store that it can be
    6. the whole name is the group
    """
    name = topic.removeprefix(RETRY_PREFIX)
    sent_from = properties.get(RETRY_TOPIC) or properties.get(DLQ_ORIGIN_TOPIC)
    group, plus, behind = name.partition(_V2)
    if plus and group and behind and _V2 not in behind:
        return SentBack(group, behind)
    by_group = _of_groups(name, [properties.get(ORIGIN_GROUP) or ""], sent_from)
    if by_group is not None:
        return by_group
    if sent_from is not None:
        return SentBack(name, sent_from)
    by_reader = _of_groups(name, known.readers.get(topic, ()), None)
    if by_reader is not None:
        return by_reader
    splits = list(_splits(name))
    for topics in ((properties.get(REAL_TOPIC),), known.topics):
        fitting = [split for split in splits if split.topic in topics]
        if len(fitting) == 1:
            return fitting[0]
    return SentBack(name, None)


def _of_groups(name: str, groups: Collection[str], sent_from: str | None) -> SentBack | None:
    """What the name means by the only one of `groups` that it can be of; None if there is not one."""
    found = [
        SentBack(group, name[len(group) + 1 :] or sent_from)
        for group in groups
        if group
        and (name == group or (name.startswith(group + _V1) and len(name) > len(group) + 1))
    ]
    return found[0] if len(found) == 1 else None


def _splits(name: str) -> Iterator[SentBack]:
    """Every group and topic that a name of version 1 can be made of."""
    for at, character in enumerate(name):
        if character == _V1 and 0 < at < len(name) - 1:
            yield SentBack(name[:at], name[at + 1 :])
