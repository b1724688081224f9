"""Reset the offsets of a consumer group in the broker's file, while the broker is down.

Source: ConsumerOffsetManager (config/consumerOffset.json) and ConfigManager#persist. The old file
becomes the .bak if it was readable. A broker that starts afterwards serves the group from the new offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    config_table,
    consumer_file,
    decode_consumer_offsets,
    is_light_group,
    offset_by_queue_id,
    offset_tables,
)
from rmq_store.config.dledger import refuse_members_offsets
from rmq_store.config.json_files import next_version, read_config, to_fastjson, write_config_json
from rmq_store.config.rocksdb import refuse_rocksdb_config
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.markers import StoreLock
from rmq_store.reading.query import ReadOptions
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.selection import CLOCK_SLACK_MS
from rmq_store.snapshot.known_topics import unknown_topic
from rmq_store.system_topics.system_topic_rows import ignore_error

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The change of one queue. `before`: None if the group had no offset there."""

    group: str
    topic: str
    queue_id: int
    before: int | None
    after: int
    min_offset: int
    max_offset: int


def plan_reset(
    store: StoreReader,
    group: str,
    *,
    to: str | int | None = None,
    timestamp: int | None = None,
    topic: str | None = None,
    queue_ids: Sequence[int] | None = None,
    new_group: bool = False,
) -> list[OffsetReset]:
    """The changes that a reset of `group` would make. Writes nothing.

    `to`: "earliest", "latest" or a queue offset; or `timestamp` (ms): the first message stored at
    that time or later. `topic`: only that topic, with all its queues; by default the queues where
    the group has offsets. Raises InvalidArgumentError for an unknown group (unless `new_group`) or
    an offset that a queue does not have, and UnknownQueueError.
    """
    committed = store.consumer_offsets()
    if group not in committed and not (new_group and topic is not None):
        raise InvalidArgumentError(
            store.path,
            reason=f"there are no offsets of a consumer group {group!r}",
            advice=nearest(group, committed),
        )
    if topic is not None:
        store.view.require_queue_ids(topic, queue_ids or ())
        if not store.queues(topic):
            raise unknown_topic(store.path, topic, store.topics())
    offsets = committed.get(group, {})
    changes = []
    for name in sorted(offsets) if topic is None else [topic]:
        for queue in store.queues(name):
            if queue_ids is not None and queue.queue_id not in queue_ids:
                continue
            before = offsets.get(name, {}).get(queue.queue_id)
            if before is None and topic is None:
                continue
            limits = store.min_offset(*queue), store.max_offset(*queue)
            after = _target(store, queue, to, timestamp, limits)
            changes.append(OffsetReset(group, name, queue.queue_id, before, after, *limits))
    return changes


def _target(
    store: StoreReader,
    queue: QueueId,
    to: str | int | None,
    timestamp: int | None,
    limits: tuple[int, int],
) -> int:
    low, high = limits
    if timestamp is not None:
        return _first_since(store, queue, timestamp)
    if to == EARLIEST:
        return low
    if to == LATEST:
        return high
    if not isinstance(to, int):
        raise InvalidArgumentError(
            reason=f"{to!r} is not an offset to reset to",
            advice="Give earliest, latest or a queue offset; for a time use --reset-to-time",
        )
    if not low <= to <= high:
        raise InvalidArgumentError(
            store.path,
            reason=f"queue {queue.name} has no offset {to}",
            expected=f"{low} to {high}",
            advice="Reset queues one by one, or reset to a time",
        )
    return to


def _first_since(store: StoreReader, queue: QueueId, timestamp: int) -> int:
    """The first message stored at `timestamp` (ms) or later; in a batch queue a broker's answer is older.

    A broker whose clock is set back stores older messages behind it, so the messages of CLOCK_SLACK_MS
    before are looked at one by one.
    """
    first = store.view.first_since(queue, timestamp)
    early = min(first, store.view.first_since(queue, timestamp - CLOCK_SLACK_MS))
    how: ReadOptions = {
        "columns": ("queueOffset", "storeTimestamp"),
        "compacted": False,
        "check_ends": False,
        "on_damage": ignore_error,
    }
    for batch in store.read_slices([QueueSlice(queue, early, first)], **how):
        newer = pc.greater_equal(batch["storeTimestamp"].cast(pa.int64()), timestamp)
        if pc.any(newer).as_py():
            return int(pc.min(batch["queueOffset"].filter(newer)).as_py())
    return first


def apply_reset(store: StoreReader, changes: Sequence[OffsetReset]) -> str:
    """Write the changes under the store's lock. Returns the path of the written file.

    Raises StoreLockedError while a broker or another writer has the store open, InvalidArgumentError for
    an offset that no broker keeps, CorruptConfigError if the existing file cannot be read,
    UnsupportedStoreError if the offsets are in a RocksDB database, or the store is that of a broker in
    DLedger mode.
    """
    refuse_rocksdb_config(store.path)
    refuse_members_offsets(store.path, store.config)
    with StoreLock(store.path):
        name = _file_to_write(store)
        before = read_config(store.path, name, decode_consumer_offsets)
        if before is None:  # the groups of the other file stay where they are
            other = consumer_file(store.path, store.config.enableLmq)
            before = read_config(store.path, other, decode_consumer_offsets)
        path, value = store.path / CONFIG_DIR / name, {} if before is None else before.content
        table = {
            key: offset_by_queue_id(path, queues)
            for key, queues in config_table(path, value, "offsetTable").items()
        }
        for key, offset in config_table(path, value, "lmqOffsetTable").items():
            table[key] = offset_by_queue_id(path, {"0": offset})
        for change in changes:
            key = f"{change.topic}@{change.group}"
            if change.queue_id and name == CONSUMER_FILES[1] and is_light_group(key):
                raise InvalidArgumentError(
                    path,
                    reason=f"a broker keeps one offset of {change.topic} for the group {change.group}, that "
                    f"of queue 0, and none of queue {change.queue_id}",
                    advice="Nothing was written. Reset queue 0 alone: --queue 0",
                )
            table.setdefault(key, {})[change.queue_id] = change.after
        value.pop("lmqOffsetTable", None)
        value |= offset_tables(name, table)
        version = value.get("dataVersion")
        if isinstance(version, dict):  # 5.x brokers compare it to find changes
            value["dataVersion"] = next_version(version)
        write_config_json(store.path, name, to_fastjson(value), decode_consumer_offsets)
    return str(path)


def _file_to_write(store: StoreReader) -> str:
    """The file that a broker with this configuration reads; without its enableLmq, the one in use."""
    enable_lmq = store.config.enableLmq
    if enable_lmq is None:
        return consumer_file(store.path, None)
    return CONSUMER_FILES[enable_lmq]
