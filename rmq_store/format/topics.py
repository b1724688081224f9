"""System topics, and the characters that the broker accepts in the topic of a new message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

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


def names_of_brokers(topics: Iterable[str]) -> frozenset[str]:
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
