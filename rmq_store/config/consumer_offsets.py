"""consumerOffset.json: the committed offsets of consumer groups (ConsumerOffsetManager)."""

from __future__ import annotations

import os

from rmq_store.config.json_files import read_config_json
from rmq_store.format.topics import SCHEDULE_TOPIC

ConsumerOffsets = dict[str, dict[str, dict[int, int]]]


def read_consumer_offsets(store: str | os.PathLike[str]) -> ConsumerOffsets:
    """Committed offsets as group -> topic -> queueId -> next offset to consume; {} without a file.

    Source: ConsumerOffsetManager. With enableLmq, LmqConsumerOffsetManager replaces its file and
    stores LMQ offsets in a separate table.
    """
    committed: ConsumerOffsets = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        value = read_config_json(store, name) or {}
        for key, queues in (value.get("offsetTable") or {}).items():
            topic, _, group = key.partition("@")
            offsets = {int(queue): int(offset) for queue, offset in queues.items()}
            committed.setdefault(group, {}).setdefault(topic, {}).update(offsets)
        for key, offset in (value.get("lmqOffsetTable") or {}).items():
            topic, _, group = key.partition("@")
            committed.setdefault(group, {}).setdefault(topic, {})[0] = int(offset)
    return committed


def read_delay_offsets(store: str | os.PathLike[str]) -> dict[str, dict[int, int]]:
    """How far the broker has delivered each delay level, as the topic's queueId -> next offset."""
    levels = (read_config_json(store, "delayOffset.json") or {}).get("offsetTable") or {}
    return {SCHEDULE_TOPIC: {int(level) - 1: int(offset) for level, offset in levels.items()}}
