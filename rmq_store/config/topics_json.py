"""topics.json: what a broker must know of a topic before it serves it (TopicConfigManager)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmq_store.config.broker_conf import read_config_json, write_config_json
from rmq_store.consumequeue.files import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

_READ_WRITE = 6  # perm bits: 4 read, 2 write


def update_topics(
    root: Path, dialect: Dialect, queues: list[QueueId], declared: Mapping[str, Mapping[str, Any]]
) -> None:
    """Add the topics of `queues` and those `declared` to topics.json; what is there stays.

    The system's own topics are left to the broker, which makes them itself.
    """
    value = read_config_json(root, "topics.json") or {}
    table: dict[str, Any] = dict(value.get("topicConfigTable") or {})
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or not is_system_topic(topic):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic in {**counts, **declared}:
        table[topic] = _entry(topic, table.get(topic), counts.get(topic, 1), declared, dialect)
    version = dict(value.get("dataVersion") or {"counter": 0, "stateVersion": 0, "timestamp": 0})
    version["counter"] = int(version.get("counter", 0)) + 1
    version["timestamp"] = time.time_ns() // 1_000_000
    if not dialect.has("json_data_version"):
        version.pop("stateVersion", None)
    text = to_fastjson({"dataVersion": version, "topicConfigTable": table})
    write_config_json(root, "topics.json", text)


def _entry(
    topic: str,
    there: Mapping[str, Any] | None,
    count: int,
    declared: Mapping[str, Mapping[str, Any]],
    dialect: Dialect,
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "order": False,
        "perm": _READ_WRITE,
        "readQueueNums": count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": count,
    }
    if dialect.has("json_data_version"):
        entry["attributes"] = {}
    entry.update(there or {})
    entry.update(declared.get(topic, {}))
    for name in ("readQueueNums", "writeQueueNums"):
        entry[name] = max(int(entry[name]), count)
    return entry


def to_fastjson(value: Any, indent: str = "") -> str:
    """JSON as the broker writes it: indented by tabs, names in order, no space behind a colon.

    Keys that are integers stand without quotes, which only fastjson reads.
    """
    if isinstance(value, Mapping):
        inner = indent + "\t"
        parts = [f"{inner}{_key(key)}:{to_fastjson(value[key], inner)}" for key in sorted(value)]
        return "{" + ("\n" + ",\n".join(parts) + "\n" + indent if parts else "") + "}"
    if isinstance(value, list):
        inner = indent + "\t"
        items = [inner + to_fastjson(item, inner) for item in value]
        return "[" + ("\n" + ",\n".join(items) + "\n" + indent if items else "") + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
