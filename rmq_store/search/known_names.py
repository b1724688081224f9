"""The topics and consumer groups that a store knows, and the errors for others."""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.config.consumer_offsets import table_in
from rmq_store.config.json_files import read_config
from rmq_store.errors import InvalidArgumentError, UnknownQueueError, nearest
from rmq_store.format.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_group_of_broker,
    is_system_topic,
    retry_of,
)
from rmq_store.store import MessageStore


def require_topic(store: MessageStore, topic: str) -> None:
    """Raise UnknownQueueError for a topic that has no queue and is not in topics.json."""
    topics = store.view.topics.every
    if topic not in topics:
        raise UnknownQueueError(
            store.path,
            reason=f"there is no topic {topic!r}",
            advice=nearest(topic, topics, last=is_system_topic),
        )


def known_groups(store: MessageStore) -> set[str]:
    """The consumer groups that have settings, offsets, or a topic of retries or dead letters.

    Raises CorruptConfigError and AccessError.
    """
    settings = read_config(
        store.path,
        "subscriptionGroup.json",
        lambda path, content: table_in(path, content, "subscriptionGroupTable"),
    )
    return _groups_with_traces(store).union(() if settings is None else settings.value)


def _groups_with_traces(store: MessageStore) -> set[str]:
    """Those that have offsets, or a topic of retries or dead letters."""
    groups = set(store.consumer_offsets())
    for topic in store.view.topics.every:
        if topic.startswith(RETRY_PREFIX):
            groups.add(retry_of(topic, {}, store.view.topics.known_names).group)
        elif topic.startswith(DLQ_PREFIX):
            groups.add(topic.removeprefix(DLQ_PREFIX))
    return groups


def users_groups(store: MessageStore) -> list[str]:
    """Sorted `known_groups`, but for those that each broker has. Raises as that."""
    return sorted(group for group in known_groups(store) if not is_group_of_broker(group))


def require_group(store: MessageStore, group: str, met: Iterable[str] = ()) -> None:
    """Raise InvalidArgumentError for a group that the store does not know; `met`: further known names."""
    if group in met or group in _groups_with_traces(store):
        return  # whether or not the settings can be read
    groups = known_groups(store).union(met)
    if group not in groups:
        raise InvalidArgumentError(
            store.path,
            reason=f"there is no group {group!r}",
            advice=nearest(group, groups, last=is_group_of_broker),
        )
