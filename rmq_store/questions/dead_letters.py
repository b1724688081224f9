"""Dead letters: messages that a consumer group gave up, their origin topics, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import arrow_schema
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import DLQ_PREFIX, FIRST_POP, RETRY_PREFIX, origin_topic, times_given
from rmq_store.questions.answer_by_shares import OnProgress, ignore
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.selection import require_group, require_topic
from rmq_store.tables.table import all_ranges

_COLUMNS = (
    *("topic", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "reconsumeTimes"),
    *("tags", "keys", "uniqKey", "storeSize", "properties"),
)
# AbstractSendMessageProcessor#consumerSendMsgBack writes RETRY_TOPIC; 5.x brokers also write
# DLQ_ORIGIN_TOPIC.
_ORIGIN_TOPIC = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
# MessageConst: the id of the message that was sent back.
_ORIGIN_ID = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")
_GROUP = ("consumerGroup", "originTopic")
_NEWEST_FIRST = [("died", "descending"), ("topic", "ascending"), ("queueOffset", "ascending")]
_SHOWN = (
    *("consumerGroup", "originTopic", "originMsgId", "uniqKey", "keys", "tags", "reconsumeTimes"),
    *("why", "born", "died", "storeSize", "queueId", "queueOffset"),
)


@dataclass(frozen=True, slots=True)
class DeadLettersAnswer:
    """Sums by group and origin topic, largest first, and dead letters, newest first."""

    groups: Sequence[dict[str, Any]]
    newest: Sequence[dict[str, Any]]


def dead_letters(
    store: StoreReader,
    ranges: Sequence[QueueSlice],
    origin_topics: Collection[str] = (),
    top: int = 100,
    progress: OnProgress = ignore,
    *,
    keys: Sequence[str] = (),
) -> DeadLettersAnswer:
    """Dead letters in ranges of dead-letter topics, of `origin_topics` and with `keys` (default: all), with
    the `top` newest.

    `progress` counts dead letters. Raises UnknownQueueError for an origin topic that the store does not know
    and no dead letter names, and the errors of `read_slices` for damage.
    """
    newest = _table([])
    groups = [_sums(_counted(newest))]
    for batch in store.read_slices(ranges, columns=_COLUMNS, keys=keys or None):
        rows = _table([batch])
        if origin_topics:
            wanted = pa.array(sorted(origin_topics), pa.string())
            rows = rows.filter(pc.is_in(rows["originTopic"], wanted))
        groups.append(_sums(_counted(rows)))
        newest = pa.concat_tables([newest, rows]).sort_by(_NEWEST_FIRST).slice(0, top)
        progress(batch.num_rows)
    sums = _sums(pa.concat_tables(groups))
    for topic in set(origin_topics).difference(sums["originTopic"].to_pylist()):
        require_topic(store, topic)
    order = [("messages", "descending"), *((name, "ascending") for name in _GROUP)]
    shown = [_with_reason(row) for row in newest.to_pylist()]
    return DeadLettersAnswer(sums.sort_by(order).to_pylist(), shown)


def dead_ranges(
    store: StoreReader, groups: Collection[str] = (), ranges: Sequence[QueueSlice] | None = None
) -> list[QueueSlice]:
    """Of `ranges` (default: all), those of the dead-letter topics of `groups` (default: all).

    Raises InvalidArgumentError for an unknown group.
    """
    every = all_ranges(store) if ranges is None else ranges
    dead = [slice_ for slice_ in every if slice_.queue.topic.startswith(DLQ_PREFIX)]
    with_dead_letters = {slice_.queue.topic.removeprefix(DLQ_PREFIX) for slice_ in dead}
    for group in set(groups).difference(with_dead_letters):
        require_group(store, group)
    topics = {DLQ_PREFIX + group for group in groups or with_dead_letters}
    return [slice_ for slice_ in dead if slice_.queue.topic in topics]


_SUMS = {"messages": "sum", "bytes": "sum", "first": "min", "last": "max", "most attempts": "max"}


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Messages of dead-letter topics as rows with their group and origin."""
    rows = pa.Table.from_batches(batches, arrow_schema(_COLUMNS)).combine_chunks()
    return pa.table(
        {
            "consumerGroup": pc.utf8_slice_codeunits(rows["topic"], len(DLQ_PREFIX)),
            "originTopic": origin_topics(rows["topic"], _property(rows, _ORIGIN_TOPIC)),
            "originMsgId": _property(rows, _ORIGIN_ID),
            "uniqKey": rows["uniqKey"],
            "keys": rows["keys"],
            "tags": rows["tags"],
            "reconsumeTimes": rows["reconsumeTimes"],
            "mostAttempts": _property(rows, ("MAX_RECONSUME_TIMES",)),
            "popped": pc.is_valid(_property(rows, (FIRST_POP,))),
            "born": rows["bornTimestamp"],
            "died": rows["storeTimestamp"],
            "storeSize": rows["storeSize"].cast(pa.int64()),
            "topic": rows["topic"],
            "queueId": rows["queueId"],
            "queueOffset": rows["queueOffset"],
        }
    )


def _property(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """For each row, the first of some properties that it has."""
    values = [pc.map_lookup(rows["properties"], pa.scalar(name), "last") for name in names]
    return pc.coalesce(*values)


def origin_topics(topics: Any, named: Any) -> Any:
    """The topics that messages of dead-letter topics came from; one that was popped names its retry topic.

    Arrays of n strings, plain or chunked.
    """
    if not pc.any(pc.starts_with(named, RETRY_PREFIX)).as_py():
        return named
    pairs = zip(topics.to_pylist(), named.to_pylist(), strict=True)
    groups = ((topic.removeprefix(DLQ_PREFIX), name) for topic, name in pairs)
    origins = [None if name is None else origin_topic(group, name) for group, name in groups]
    return pa.array(origins, pa.string())


def _counted(rows: pa.Table) -> pa.Table:
    """Dead letters as groups of one each, to be summed."""
    attempts = rows["reconsumeTimes"].to_pylist(), rows["popped"].to_pylist()
    return pa.table(
        {
            **{name: rows[name] for name in _GROUP},
            "messages": pa.array([1] * rows.num_rows, pa.int64()),
            "bytes": rows["storeSize"],
            "first": rows["died"],
            "last": rows["died"],
            "most attempts": pa.array(map(times_given, *attempts), pa.int32()),
        }
    )


def _sums(groups: pa.Table) -> pa.Table:
    sums = groups.group_by(list(_GROUP)).aggregate(list(_SUMS.items()))
    columns = {name: sums[name] for name in _GROUP}
    return pa.table(columns | {name: sums[f"{name}_{how}"] for name, how in _SUMS.items()})


def _with_reason(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with the reason, as far as its record has it. No broker stores the error."""
    attempts, most = times_given(row["reconsumeTimes"], row["popped"]), row["mostAttempts"]
    why = f"its consumer failed {attempts} times"
    if most is not None:
        why += f", of {most} allowed"
    if attempts <= 0:
        why = "sent there at the first attempt"
    return {name: why if name == "why" else row[name] for name in _SHOWN}
