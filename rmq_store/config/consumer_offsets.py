"""consumerOffset.json: the committed offsets of consumer groups (ConsumerOffsetManager)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rmq_store.config.json_files import ConfigFile, read_config
from rmq_store.errors import CorruptConfigError
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import SCHEDULE_TOPIC

ConsumerOffsets = dict[str, dict[str, dict[int, int]]]
CONSUMER_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")
DELAY_FILE = "delayOffset.json"
_INTEGER = re.compile(r"-?\d{1,19}")


class Committed(NamedTuple):
    """An offset that a group committed. `kind`: consumer or lmq. `file`: the name of the file, or of its
    .bak, that was read in config/."""

    kind: str
    file: str
    group: str
    queue: QueueId
    offset: int  # the next queue offset to consume


def committed_offsets(store: str | os.PathLike[str]) -> Iterator[Committed]:
    """Every offset in the broker's consumer offset files.

    Source: ConsumerOffsetManager. With enableLmq, LmqConsumerOffsetManager replaces its file and
    stores LMQ offsets in a separate table. Raises CorruptConfigError, also for JSON that is not a
    table of offsets, and AccessError.
    """
    for name in CONSUMER_FILES:
        found = read_config(store, name, decode_consumer_offsets)
        yield from () if found is None else found.value


def decode_consumer_offsets(path: Path, content: Mapping[str, Any]) -> list[Committed]:
    """The offsets in the content of a consumer offset file. Raises CorruptConfigError."""
    offsets = []
    for key, queues in table_in(path, content, "offsetTable").items():
        topic, _, group = key.partition("@")
        for queue, offset in offsets_of(path, queues).items():
            offsets.append(Committed("consumer", path.name, group, QueueId(topic, queue), offset))
    for key, offset in table_in(path, content, "lmqOffsetTable").items():
        topic, _, group = key.partition("@")
        number = _number(path, offset, 63)
        offsets.append(Committed("lmq", path.name, group, QueueId(topic, 0), number))
    return offsets


def read_consumer_offsets(store: str | os.PathLike[str]) -> ConsumerOffsets:
    """Committed offsets as group -> topic -> queueId -> next offset to consume; {} without a file.

    Raises as `committed_offsets`.
    """
    committed: ConsumerOffsets = {}
    for _, _, group, queue, offset in committed_offsets(store):
        committed.setdefault(group, {}).setdefault(queue.topic, {})[queue.queue_id] = offset
    return committed


def read_delay_offsets(store: str | os.PathLike[str]) -> dict[str, dict[int, int]]:
    """How far the broker has delivered each delay level, as the topic's queueId -> next offset.

    Raises as `committed_offsets`.
    """
    found = read_delay_file(store)
    return {SCHEDULE_TOPIC: {} if found is None else found.value}


def read_delay_file(store: str | os.PathLike[str]) -> ConfigFile[dict[int, int]] | None:
    """The file with `read_delay_offsets`: queueId -> next offset. Raises as `committed_offsets`."""
    return read_config(store, DELAY_FILE, decode_delay_offsets)


def decode_delay_offsets(path: Path, content: Mapping[str, Any]) -> dict[int, int]:
    """The offsets in the content of delayOffset.json, by queueId. Raises CorruptConfigError."""
    levels = offsets_of(path, content.get("offsetTable", {}))  # null is refused
    return {level - 1: at for level, at in levels.items()}


def table_in(path: Path, value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of a config file; {} if it is missing or null. Raises CorruptConfigError."""
    table = value.get(name)
    if table is not None and not isinstance(table, dict):
        raise _wrong(path, f"{name} is not a table")
    return table or {}


def offsets_of(path: Path, table: Any) -> dict[int, int]:
    """A table of queue ids (32 bits) and offsets (64 bits). Raises CorruptConfigError."""
    if not isinstance(table, dict):
        raise _wrong(path, f"{str(table)[:40]!r} is not a table of queues and offsets")
    return {_number(path, key, 31): _number(path, offset, 63) for key, offset in table.items()}


def _number(path: Path, value: Any, bits: int) -> int:
    # Java's parser takes a number in quotes too, true as 1, and cuts a fraction off; the keys are texts.
    whole = isinstance(value, int) or (isinstance(value, str) and _INTEGER.fullmatch(value))
    whole = whole or (isinstance(value, float) and math.isfinite(value))
    if not whole or not -(1 << bits) <= int(value) < 1 << bits:
        raise _wrong(path, f"{str(value)[:40]!r} is not a whole number of {bits + 1} bits")
    return int(value)


def _wrong(path: Path, reason: str) -> CorruptConfigError:
    return CorruptConfigError(
        path,
        reason=reason,
        expected='{"offsetTable": {"topic@group": {"0": 100, ...}, ...}}',
        advice="Restore the file from a backup, or move it away: the messages do not depend on it",
    )
