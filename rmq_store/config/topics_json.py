"""topics.json: the topic settings that a broker needs to serve a topic (TopicConfigManager)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmq_store.config.json_files import (
    NUMBER,
    config_names,
    next_version,
    read_config,
    refuse_names_of_older_fastjson,
    refuse_odd_version,
    to_fastjson,
    undecoded,
    whole_number,
    write_config_json,
)
from rmq_store.config.rocksdb import may_lack_topics
from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import LOG, CorruptConfigError
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

TOPICS_FILE = "topics.json"
TopicConfigs = dict[str, dict[str, Any]]
BATCH: Mapping[str, Any] = {"attributes": {"queue.type": "BatchCQ"}}
"""Settings of a topic with batch queues."""

_READ, _READ_WRITE = 4, 6  # perm bits: 4 read, 2 write
_NUMBERS = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
_SETTINGS = frozenset((*_NUMBERS, "attributes", "order", "topicFilterType", "topicName"))
_TEXT = re.compile(rf"{NUMBER.pattern}|[+-]?\d{{1,10}}\.0*", re.ASCII)
_LIMIT = 1 << 31
_BOOLEANS = ("true", "false", "0", "1", "none")


def update_topics(
    root: Path,
    dialect: Dialect,
    queues: list[QueueId],
    declared: Mapping[str, Mapping[str, Any]],
    others: Iterable[QueueId] = (),
) -> None:
    """Add the topics of `queues` and those in `declared` to topics.json; keep existing ones, and let
    consumers read the queues. `others` of a topic that is added are read too; without a topics.json all are.

    A topic that is added has batch queues if it has a folder of such. System topics are skipped: the broker
    creates them.
    """
    before = read_config(root, TOPICS_FILE, undecoded)
    table = {} if before is None else dict(decode_topics(before.path, before.content))
    counts: dict[str, int] = {}
    new = {queue.topic for queue in queues}.difference(table)
    for topic, queue_id in (*queues, *(q for q in others if before is None or q.topic in new)):
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or not is_system_topic(topic):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    for topic in {**counts, **declared}:
        has_batch_folder = topic not in table and (root / BATCH_CONSUMEQUEUE_DIR / topic).is_dir()
        of_folder = BATCH if has_batch_folder else {}
        settings = {**of_folder, **table.get(topic, {}), **declared.get(topic, {})}
        table[topic] = _entry(topic, settings, counts.get(topic, 1), dialect)
    stored = None if before is None else before.content.get("dataVersion")
    version = next_version(stored if isinstance(stored, dict) else {"stateVersion": 0})
    if not dialect.has("json_data_version"):
        version.pop("stateVersion", None)
    text = to_fastjson({"dataVersion": version, "topicConfigTable": table})
    write_config_json(root, TOPICS_FILE, text, decode_topics)


def _entry(topic: str, settings: Mapping[str, Any], count: int, dialect: Dialect) -> dict[str, Any]:
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
    entry.update(settings)
    entry["readQueueNums"] = max(int(entry["readQueueNums"]), count)
    entry["writeQueueNums"] = int(entry["writeQueueNums"])  # fewer where queues are being emptied
    return entry


def read_topic_configs(store: str | os.PathLike[str]) -> TopicConfigs:
    """topics.json as topic -> settings; {} without a file.

    Raises CorruptConfigError, also for JSON that is not a table of topics; AccessError.
    """
    file = read_config(store, TOPICS_FILE, decode_topics)
    return {} if file is None else file.value


def topic_configs_to_change(store: str | os.PathLike[str]) -> TopicConfigs:
    """As `read_topic_configs`, for writers: settings that nobody understands are not written over.

    Raises CorruptConfigError for them, although there is a .bak.
    """
    file = read_config(store, TOPICS_FILE, undecoded)
    return {} if file is None else decode_topics(file.path, file.content)


def decode_topics(path: Path, content: Mapping[str, Any]) -> TopicConfigs:
    """The topics in the content of topics.json, with their settings. Raises CorruptConfigError."""
    refuse_names_of_older_fastjson(path, content, ("topicConfigTable",))
    refuse_odd_version(path, content.get("dataVersion", {}))
    table = content.get("topicConfigTable", {})  # null is refused, as by brokers
    is_table = isinstance(table, dict)
    topics = {topic: _settings(value) for topic, value in table.items()} if is_table else None
    if topics is None or None in topics.values():
        raise CorruptConfigError(
            path,
            reason="topicConfigTable is not a table of topics",
            expected='{"topic": {"readQueueNums": 8, ...}, ...}',
            advice=advice_on_broken(path),
        )
    for settings in table.values():
        if settings.keys() - _SETTINGS:
            refuse_names_of_older_fastjson(path, settings, _SETTINGS)
    return {topic: settings for topic, settings in topics.items() if settings is not None}


def _settings(settings: Any) -> dict[str, Any] | None:
    """The settings of a topic: an object with numbers of 32 bits and attributes where they belong.

    With whole numbers for what Java's parser takes too: in quotes, or with a fraction. None for all else.
    """
    if (
        not isinstance(settings, dict)
        or not isinstance(settings.get("attributes") or {}, dict)
        or settings.get("attributes") == []
        or str(settings.get("order", False)).lower() not in _BOOLEANS
    ):
        return None
    read = {}
    for name in _NUMBERS:
        value = settings.get(name)
        if value is None or (type(value) is int and -_LIMIT <= value < _LIMIT):
            continue
        read[name] = whole_number(int(value) if isinstance(value, bool) else value, 31, _TEXT)
    return None if None in read.values() else {**settings, **read}


def declared_topics(store: str | os.PathLike[str]) -> TopicConfigs:
    """As `read_topic_configs`, but {} if the file is damaged, for callers that do not depend on it.

    Raises AccessError.
    """
    return topics_or_problem(store)[0]


def topics_or_problem(
    store: str | os.PathLike[str],
) -> tuple[TopicConfigs, CorruptConfigError | None]:
    """As `declared_topics`, with the error of a damaged file; a warning with it goes to the log."""
    try:
        return read_topic_configs(store), None
    except CorruptConfigError as error:
        LOG.warning("what topics.json declares is not known: %s", error)
        return {}, error


def lists_all_topics(root: Path) -> bool:
    """Whether a topic that topics.json does not have is unknown to the broker: the file, its .bak or a
    database in its place is there, which is not behind the broker. Raises AccessError."""
    return TOPICS_FILE in config_names(root) and not may_lack_topics(root)


def batch_topics(topic_configs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Topics whose queues are BatchConsumeQueues (attribute queue.type=BatchCQ)."""
    return {
        topic
        for topic, settings in topic_configs.items()
        if (settings.get("attributes") or {}).get("queue.type") == "BatchCQ"
    }


def is_compacted(settings: Mapping[str, Any] | None) -> bool:
    """Whether a broker keeps the last message of each key of a topic (cleanup.policy=COMPACTION)."""
    return ((settings or {}).get("attributes") or {}).get("cleanup.policy") == "COMPACTION"


def queue_count(settings: Mapping[str, Any] | None) -> int:
    """How many queues a topic is declared with: the larger of those to read and to write."""
    counts = ((settings or {}).get(name) for name in ("readQueueNums", "writeQueueNums"))
    return max(count if isinstance(count, int) else 0 for count in counts)


def perm_allows_read(settings: Mapping[str, Any] | None) -> bool:
    """Whether perm lets consumers read a topic (PermName); true if nothing says otherwise."""
    perm = (settings or {}).get("perm")
    return not isinstance(perm, int) or bool(perm & _READ)


def read_queue_count(settings: Mapping[str, Any] | None) -> int | None:
    """How many queues of a topic its consumers read (readQueueNums); None if it is not declared."""
    count = (settings or {}).get("readQueueNums")
    return count if isinstance(count, int) else None
