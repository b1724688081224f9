"""System topics, and the characters that the broker accepts in the topic of a new message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
OP_TOPICS: Final = {HALF_TOPIC: OP_TOPIC, ROCKSDB_HALF_TOPIC: ROCKSDB_OP_TOPIC}
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
LMQ_PREFIX: Final = "%LMQ%"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"

# From TopicValidator, TimerMessageStore, BrokerController and topics that brokers create.
_NAMES = frozenset(
    (
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        "TBW102",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "DefaultHeartBeatSyncerTopic",
        TRACE_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_TOPIC,
        GIVEN_UP_TOPIC,
        "CHECKPOINT_TOPIC",
    )
)
RESERVED_PREFIX: Final = "rmq_sys_"  # by TopicValidator, for topics of the broker
REVIVE_PREFIX: Final = RESERVED_PREFIX + "REVIVE_LOG_"  # check points and acknowledgements of pop
# %LMQ% queues list records of other topics a second time.
_PREFIXES = (RESERVED_PREFIX, "RMQ_SYS_", RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX)
_REPLY_SUFFIX = "_REPLY_TOPIC"
_NAMED_AFTER_BROKERS = (REVIVE_PREFIX, RESERVED_PREFIX + "SYNC_BROKER_MEMBER_")

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]")
# Between group and topic in a pop retry topic of version 2 (KeyBuilder), in this release or another.
_SEPARATORS_OF_RETRY = "+:"


def topic_of_broker(broker_name: str, path: str) -> str | None:
    """The topic that a broker names after itself; None if its name is only known from the path.

    A store in a folder `orders` is not of a broker of that name, and its topic `orders` is a user's.
    """
    return None if broker_name in path.split("/") else broker_name


def cluster_and_broker_names(topics: Iterable[str]) -> frozenset[str]:
    """The names of clusters and brokers after which topics of a store are named that no user can create.

    Brokers of 5.0 and later have them (PopAckConstants, TopicValidator).
    """
    return frozenset(
        topic.removeprefix(prefix)
        for topic in topics
        for prefix in _NAMED_AFTER_BROKERS
        if topic.startswith(prefix)
    )


def is_system_topic(topic: str, own: Collection[str | None] = ()) -> bool:
    """Whether `topic` belongs to the broker and was not created by a user.

    These are retry, dead-letter, delay, timer, transaction, trace and pop topics, and `%LMQ%`
    queues, whose records are in a user's topic too. With `own`, names of clusters and brokers, also the
    topics that a broker names after its cluster and itself.
    """
    named = topic.startswith(_PREFIXES) or topic in _NAMES
    return named or topic in own or topic.removesuffix(_REPLY_SUFFIX) in own


def forbidden_character(topic: str) -> str | None:
    """The first character that no new message may have in its topic (TopicValidator), or None.

    A broker itself puts more into names: `%RETRY%group+topic`, or its cluster with a dot.
    """
    more = _SEPARATORS_OF_RETRY if topic.startswith(RETRY_PREFIX) else ""
    for character in topic:
        if character not in more and not _ALLOWED.fullmatch(character):
            return character
    return None


TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_GROUPS_OF_BROKER = {
    *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER"),
    *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
}


def is_group_of_broker(group: str) -> bool:
    """Whether a broker makes a consumer group by itself (SubscriptionGroupManager#init, MixAll)."""
    return group.startswith("CID_RMQ_SYS_") or group in _GROUPS_OF_BROKER


# Consumer group and origin topic of a record in a retry topic (KeyBuilder).
#
# | topic | written for |
# |---|---|
# | `%RETRY%group` | a message that a push consumer sent back; the record has RETRY_TOPIC |
# | `%RETRY%group+topic` | a message that a pop consumer did not acknowledge, version 2 |
# | `%RETRY%group_topic` | the same, version 1 |
#
# Names of groups and topics may have `_`, so that the last form alone says neither. See `retry_origin`.

ORIGIN_GROUP, RETRY_TOPIC = "ORIGIN_GROUP", "RETRY_TOPIC"
DLQ_ORIGIN_TOPIC, REAL_TOPIC = "DLQ_ORIGIN_TOPIC", "REAL_TOPIC"
FIRST_POP = "1ST_POP_TIME"
HALF_PLACE = "TRANS_OFFSET"  # of an op message: the log offset of its half message (RocksDB)
PROPERTIES = (ORIGIN_GROUP, RETRY_TOPIC, DLQ_ORIGIN_TOPIC, REAL_TOPIC)
"""Names of the properties that `retry_origin` and `dead_letter_origin` look at."""

_V1, _V2 = "_", "+"


class GroupAndOrigin(NamedTuple):
    """The group that sent a message back, and the topic that it had it from, if that is known."""

    group: str
    topic: str | None


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names of one store: its topics, and the groups that have offsets in each retry topic."""

    topics: Collection[str] = frozenset()
    readers: Mapping[str, Collection[str]] = field(default_factory=dict)


def dead_letter_origin(topic: str, properties: Mapping[str, str]) -> GroupAndOrigin:
    """The group and the origin topic of a record in the dead-letter topic `topic`."""
    group = topic.removeprefix(DLQ_PREFIX)
    origin = properties.get(DLQ_ORIGIN_TOPIC) or properties.get(RETRY_TOPIC)
    return GroupAndOrigin(group, None if origin is None else origin_topic(group, origin))


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


def retry_origin(topic: str, properties: Mapping[str, str], names: KnownNames) -> GroupAndOrigin:
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
        return GroupAndOrigin(group, behind)
    by_group = _of_groups(name, [properties.get(ORIGIN_GROUP) or ""], sent_from)
    if by_group is not None:
        return by_group
    if sent_from is not None:
        return GroupAndOrigin(name, sent_from)
    by_reader = _of_groups(name, names.readers.get(topic, ()), None)
    if by_reader is not None:
        return by_reader
    splits = list(_splits(name))
    for topics in ((properties.get(REAL_TOPIC),), names.topics):
        fitting = [split for split in splits if split.topic in topics]
        if len(fitting) == 1:
            return fitting[0]
    return GroupAndOrigin(name, None)


def _of_groups(name: str, groups: Collection[str], sent_from: str | None) -> GroupAndOrigin | None:
    """What the name means by the only one of `groups` that it can be of; None if there is not one."""
    topics = [
        GroupAndOrigin(group, name[len(group) + 1 :] or sent_from)
        for group in groups
        if group
        and (name == group or (name.startswith(group + _V1) and len(name) > len(group) + 1))
    ]
    return topics[0] if len(topics) == 1 else None


def _splits(name: str) -> Iterator[GroupAndOrigin]:
    """Every group and topic that a name of version 1 can be made of."""
    for at, character in enumerate(name):
        if character == _V1 and 0 < at < len(name) - 1:
            yield GroupAndOrigin(name[:at], name[at + 1 :])
