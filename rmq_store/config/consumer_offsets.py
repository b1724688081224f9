"""How far consumer groups are: consumerOffset.json (ConsumerOffsetManager) and, of queues that are
popped in order, consumerOrderInfo.json (ConsumerOrderInfoManager)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from rmq_store.config.json_files import (
    NUMBER,
    ConfigFile,
    config_names,
    last_write_with_backup_ms,
    read_config,
    refuse_names_of_older_fastjson,
    refuse_odd_version,
    whole_number,
)
from rmq_store.config.rocksdb import names_in_databases
from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import LOG, CorruptConfigError
from rmq_store.format.byte_layout import CONFIG_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import LMQ_PREFIX

ConsumerOffsets = dict[str, dict[str, dict[int, int]]]
CONSUMER_FILES = ("consumerOffset.json", "lmqConsumerOffset.json")
DELAY_FILE = "delayOffset.json"
ORDER_FILE = "consumerOrderInfo.json"
_COMMITTED, _LIGHT, PULLED, POPPED = "consumer", "lmq", "pull", "pop"
_KEY = re.compile(r"[+-]?\d{1,40}(?:\.0*)?", re.ASCII)  # of a map, in quotes
_OF_AN_ORDER = ("o", "popTime", "i", "l", "cm")


class GroupOffset(NamedTuple):
    """An offset of a group. `kind`: consumer or lmq, which the group committed; pull, the end of what
    it was sent of the queue; or pop, the end of what it was given in order. `file`: the name of the
    file, or of its .bak, that was read in config/."""

    kind: str
    file: str
    group: str
    queue: QueueId
    offset: int  # the next queue offset to consume, or to be sent


def consumer_file(store: str | os.PathLike[str], enable_lmq: bool | None) -> str:
    """The one of CONSUMER_FILES that the broker reads: the second with enableLmq (BrokerController).

    Where one of them alone is there, that one. Of both, without the setting, the one written last, with a
    warning: the other is from before the setting was changed. Raises as `config_names`.
    """
    there = [name for name in CONSUMER_FILES if name in config_names(store)]
    if len(there) == 1 or not set(there).isdisjoint(names_in_databases(Path(store))):
        return there[0]  # a database has the offsets of both
    if not there or enable_lmq is not None:
        return CONSUMER_FILES[bool(enable_lmq)]
    config = Path(store, CONFIG_DIR)
    newest = max(there, key=lambda name: last_write_with_backup_ms(config / name) or 0)
    LOG.warning(
        "%s has both %s, and a broker reads one of them. %s was written last, and is read here: with "
        "enableLmq of its broker.conf that is no guess",
        *(config, " and ".join(there), newest),
    )
    return newest


def offset_tables(name: str, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, Any]:
    """The tables of a file of offsets, by `topic@group` -> queueId -> offset.

    lmqConsumerOffset.json has the groups of light queues in a table of their own, with an offset of queue 0
    alone (LmqConsumerOffsetManager#queryOffset).
    """
    light = [key for key in offsets if name == CONSUMER_FILES[1] and is_light_group(key)]
    plain = {key: queues for key, queues in offsets.items() if key not in light}
    tables: dict[str, Any] = {"offsetTable": plain}
    if name == CONSUMER_FILES[1]:
        tables["lmqOffsetTable"] = {key: offsets[key][0] for key in light if 0 in offsets[key]}
    return tables


def is_light_group(key: str) -> bool:
    """Whether `topic@group` is of a group of light queues (MixAll#isLmq)."""
    return key.partition("@")[2].startswith(LMQ_PREFIX)


def has_consumer_offsets(store: str | os.PathLike[str]) -> bool:
    """Whether there is a file of consumer offsets, a .bak of one or a database in its place."""
    return not {*CONSUMER_FILES}.isdisjoint(config_names(store))


def committed_offsets(
    store: str | os.PathLike[str], enable_lmq: bool | None = None
) -> Iterator[GroupOffset]:
    """Every offset that a group committed, in the `consumer_file`.

    Source: ConsumerOffsetManager. With enableLmq, LmqConsumerOffsetManager replaces its file and
    stores LMQ offsets in a separate table. Raises CorruptConfigError, also for JSON that is not a
    table of offsets, and AccessError.
    """
    offsets = _offsets_in(store, consumer_file(store, enable_lmq))
    return (offset for offset in offsets if offset.kind in (_COMMITTED, _LIGHT))


def committed_pulled_and_popped_offsets(store: str | os.PathLike[str]) -> Iterator[GroupOffset]:
    """The offsets of all CONSUMER_FILES, and of kind pop. Raises as `committed_offsets`."""
    for name in CONSUMER_FILES:
        yield from _offsets_in(store, name)
    yield from _popped_offsets(store)


def _popped_offsets(store: str | os.PathLike[str]) -> Iterator[GroupOffset]:
    for order in popped_in_order(store):
        if order.offsets:
            yield GroupOffset(POPPED, order.file, order.group, order.queue, max(order.offsets) + 1)


def pulled_and_popped_offsets(
    store: str | os.PathLike[str], enable_lmq: bool | None = None
) -> Iterator[GroupOffset]:
    """The offsets of kind pull and pop, after which no message was sent. Raises as `committed_offsets`.

    Source: pullOffsetTable of 5.5.0, which no broker reads back (ConsumerOffsetManager#decode), and
    OrderInfo#getQueueOffset of QueueLevelConsumerManager (before 5.5.0: ConsumerOrderInfoManager).
    """
    offsets = _offsets_in(store, consumer_file(store, enable_lmq))
    return chain((o for o in offsets if o.kind == PULLED), _popped_offsets(store))


def _offsets_in(store: str | os.PathLike[str], name: str) -> list[GroupOffset]:
    file = read_config(store, name, decode_consumer_offsets)
    return [] if file is None else file.value


def decode_consumer_offsets(path: Path, content: Mapping[str, Any]) -> list[GroupOffset]:
    """The offsets in the content of a consumer offset file. Raises CorruptConfigError."""
    refuse_names_of_older_fastjson(path, content, ("offsetTable", "lmqOffsetTable"))
    refuse_odd_version(path, content.get("dataVersion"), optional=True)
    topics = content.get("groupTopicMap", {})
    if not isinstance(topics, dict) or not all(
        isinstance(of, (list, NoneType)) for of in topics.values()
    ):
        raise _wrong(path, "groupTopicMap is not a table of lists")
    offsets = []
    for kind, name in ((_COMMITTED, "offsetTable"), (PULLED, "pullOffsetTable")):
        for key, queues in config_table(path, content, name).items():
            topic, _, group = key.partition("@")
            for queue, offset in offset_by_queue_id(path, queues).items():
                offsets.append(GroupOffset(kind, path.name, group, QueueId(topic, queue), offset))
    for key, offset in config_table(path, content, "lmqOffsetTable").items():
        topic, _, group = key.partition("@")
        number = _number(path, offset, 63)
        offsets.append(GroupOffset(_LIGHT, path.name, group, QueueId(topic, 0), number))
    return offsets


class PoppedInOrder(NamedTuple):
    """What a group was given last of a queue that it pops in order: ascending queue offsets, when (ms), for
    how long it is invisible, a bit for each that is acknowledged, how often some were given before, and until
    when (ms) those are invisible whose time was changed since (OrderInfo#needBlock)."""

    file: str  # the name of the file, or of its .bak, that was read in config/
    group: str
    queue: QueueId
    offsets: list[int]
    time: int
    invisible_ms: int
    acknowledged: int
    counts: dict[int, int]
    visible_at: dict[int, int]


def popped_in_order(store: str | os.PathLike[str]) -> list[PoppedInOrder]:
    """What groups were given of queues that they pop in order. Raises as `committed_offsets`."""
    file = read_config(store, ORDER_FILE, decode_order_info)
    return [] if file is None else file.value


def decode_order_info(path: Path, content: Mapping[str, Any]) -> list[PoppedInOrder]:
    """What each group was given of each queue that it pops in order, in the content of
    consumerOrderInfo.json. Raises CorruptConfigError."""
    orders = []
    refuse_names_of_older_fastjson(path, content, ("table",))
    for key, queues in config_table(path, content, "table").items():
        topic, _, group = key.partition("@")
        if not isinstance(queues, dict):
            raise _wrong(path, f"{str(queues)[:40]!r} is not a table of queues")
        for queue_id, order in queues.items():
            queue = QueueId(topic, _number(path, queue_id, 31, _KEY))
            orders.append(_in_order(path, group, queue, order))
    return orders


def _in_order(path: Path, group: str, queue: QueueId, order: Any) -> PoppedInOrder:
    """What was given out together. Of its offsets `o` has the first, and how far the others are from it."""
    if not isinstance(order, dict) or not isinstance(order.get("o") or [], list):
        raise _wrong(path, f"{str(order)[:40]!r} is not what was given of a queue")
    refuse_names_of_older_fastjson(path, order, _OF_AN_ORDER)
    for name in _OF_AN_ORDER[1:]:
        if order.get(name) is not None:
            _number(path, order[name], 63)
    for name in ("oc", "ot"):
        for key, value in config_table(path, order, name).items():
            _number(path, key, 63, _KEY)
            _number(path, value, 63)
    listed = [_number(path, distance, 63) for distance in order.get("o") or []]
    offsets = [*listed[:1], *(listed[0] + distance for distance in listed[1:])]
    time, invisible, bits = (int(order.get(name) or 0) for name in ("popTime", "i", "cm"))
    counts, visible_at = (
        {int(key): int(value) for key, value in config_table(path, order, name).items()}
        for name in ("oc", "ot")
    )
    return PoppedInOrder(
        path.name, group, queue, offsets, time, invisible, bits, counts, visible_at
    )


def read_consumer_offsets(
    store: str | os.PathLike[str], enable_lmq: bool | None = None
) -> ConsumerOffsets:
    """Committed offsets as group -> topic -> queueId -> next offset to consume; {} without a file.

    Raises as `committed_offsets`.
    """
    committed: ConsumerOffsets = {}
    for _, _, group, queue, offset in committed_offsets(store, enable_lmq):
        committed.setdefault(group, {}).setdefault(queue.topic, {})[queue.queue_id] = offset
    return committed


def read_delay_offsets(store: str | os.PathLike[str]) -> dict[int, int]:
    """How far the broker has delivered each delay level: queueId of SCHEDULE_TOPIC -> next offset.

    Raises as `committed_offsets`.
    """
    file = read_delay_file(store)
    return {} if file is None else file.value


def read_delay_file(store: str | os.PathLike[str]) -> ConfigFile[dict[int, int]] | None:
    """The file with `read_delay_offsets`: queueId -> next offset. Raises as `committed_offsets`."""
    return read_config(store, DELAY_FILE, decode_delay_offsets)


def decode_delay_offsets(path: Path, content: Mapping[str, Any]) -> dict[int, int]:
    """The offsets in the content of delayOffset.json, by queueId. Raises CorruptConfigError."""
    refuse_names_of_older_fastjson(path, content, ("offsetTable",))
    refuse_odd_version(path, content.get("dataVersion"), optional=True)
    levels = offset_by_queue_id(path, content.get("offsetTable", {}))  # null is refused
    return {level - 1: at for level, at in levels.items()}


def config_table(path: Path, value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of a config file; {} if it is missing or null. Raises CorruptConfigError."""
    table = value.get(name)
    if table is not None and not isinstance(table, dict):
        raise _wrong(path, f"{name} is not a table")
    return table or {}


def offset_by_queue_id(path: Path, table: Any) -> dict[int, int]:
    """A table of queue ids (32 bits) and offsets (64 bits). Raises CorruptConfigError."""
    if not isinstance(table, dict):
        raise _wrong(path, f"{str(table)[:40]!r} is not a table of queues and offsets")
    offsets = table.items()
    return {_number(path, key, 31, _KEY): _number(path, offset, 63) for key, offset in offsets}


def _number(path: Path, value: Any, bits: int, form: re.Pattern[str] = NUMBER) -> int:
    number = whole_number(value, bits, form)
    if number is None:
        raise _wrong(path, f"{str(value)[:40]!r} is not a whole number of {bits + 1} bits")
    return number


def _wrong(path: Path, reason: str) -> CorruptConfigError:
    return CorruptConfigError(
        path,
        reason=reason,
        expected='{"offsetTable": {"topic@group": {"0": 100, ...}, ...}}',
        advice=advice_on_broken(path),
    )
