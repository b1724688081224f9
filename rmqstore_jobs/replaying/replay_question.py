"""How a replay reads: the rows of a part of the log, changed by the rules of the replay.

Each message gets properties that say where it came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import BY_NAME, PROPERTIES
from rmq_store.arrow.encoding.properties import (
    property_strings_of_maps,
    rows_with_property,
    with_properties_appended,
)
from rmq_store.arrow.property_columns import decode_property_columns
from rmq_store.errors import InvalidMessageError
from rmq_store.format.byte_layout import CRC_PROPERTY, Property
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.index.index_writer import rows_with_key
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.questions.dead_letters import origin_topics
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.options import DEFAULT_PARTITION_BYTES
from rmq_store.scan.tasks import (
    DamageHandler,
    Share,
    StoreScan,
    cut_into_slices,
    read_share,
    reporting_shares,
)
from rmq_store.search.selection import stored_in_time
from rmq_store.system_topics.open_state import kind_of_broker_record
from rmqstore_jobs.replaying.replay_spec import QueueMap, ReplaySpec, times_of
from rmqstore_jobs.running.source_options import options_of_queues, range_options

ORIGIN_PREFIX = "REPLAY_ORIGIN_"
ORIGIN: Mapping[str, str] = {  # property -> column of the source
    ORIGIN_PREFIX + "BROKER": "brokerName",
    ORIGIN_PREFIX + "TOPIC": "topic",
    ORIGIN_PREFIX + "QUEUE_ID": "queueId",
    ORIGIN_PREFIX + "QUEUE_OFFSET": "queueOffset",
    ORIGIN_PREFIX + "LOG_OFFSET": "commitLogOffset",
    ORIGIN_PREFIX + "STORE_TIMESTAMP": "storeTimestamp",  # milliseconds
}
PROPERTY_FORMS = ("properties", "rawProperties")  # a batch of a replay has one of them

_LIGHT_QUEUES = (Property.INNER_MULTI_DISPATCH, Property.INNER_MULTI_QUEUE_OFFSET)
_TEXTS = (ORIGIN_PREFIX + "BROKER", ORIGIN_PREFIX + "TOPIC")  # the others are numbers

Mask = npt.NDArray[np.bool_]


def with_origin(batch: pa.RecordBatch, without: tuple[str, ...]) -> tuple[str, pa.Array]:
    """The properties plus the message's origin, which replaces an older origin: column and values.

    Without the CRC of the record, because the target's writer computes its own. Messages read from
    a light queue lose the names of light queues, because they would arrive twice. Each string of
    `rawProperties` from which nothing must go gets the origin at its end, and stays what it is; the
    others are decoded and encoded again.
    """
    if without or "rawProperties" not in batch.schema.names:
        return "properties", _in_the_map(batch, without)
    # Rows whose stored string may have a property that `_in_the_map` drops.
    changed = rows_with_property(batch["rawProperties"], (*ORIGIN, CRC_PROPERTY)) | _is_light(batch)
    if not changed.any():
        return "rawProperties", _at_the_end(batch)
    kept, other = np.flatnonzero(~changed), np.flatnonzero(changed)
    strings = [
        _at_the_end(batch.take(pa.array(kept))),
        property_strings_of_maps(_in_the_map(batch.take(pa.array(other)), without)),
    ]
    order = np.argsort(np.concatenate([kept, other]))
    return "rawProperties", pa.concat_arrays(strings).take(pa.array(order))


def property_map(batch: pa.RecordBatch) -> pa.MapArray:
    """The properties of a batch with the column `properties` or `rawProperties`."""
    if "properties" in batch.schema.names:
        return batch["properties"]
    return decode_property_columns(batch["rawProperties"], with_map=True).properties


def _is_light(batch: pa.RecordBatch) -> Mask:
    return np.asarray(pc.starts_with(batch["topic"], LMQ_PREFIX))


def _at_the_end(batch: pa.RecordBatch) -> pa.Array:
    columns = {name: batch[column] for name, column in ORIGIN.items()}
    if any(column.null_count for column in (batch["rawProperties"], *columns.values())):
        raise InvalidMessageError(
            reason="a message to replay has no queueOffset or another null in its origin"
        )
    return with_properties_appended(
        batch["rawProperties"],
        {name: columns.pop(name).cast(pa.string()) for name in _TEXTS},
        {name: column.cast(pa.int64()).to_numpy() for name, column in columns.items()},
    )


def _in_the_map(batch: pa.RecordBatch, without: tuple[str, ...]) -> pa.MapArray:
    properties, rows = property_map(batch), batch.num_rows
    ends = properties.offsets.to_numpy()
    row = np.repeat(np.arange(rows), np.diff(ends))
    names = properties.keys.slice(ends[0], ends[-1] - ends[0])
    values = properties.items.slice(ends[0], ends[-1] - ends[0])
    dropped = _is_one_of(names, (*ORIGIN, CRC_PROPERTY, *without))
    light = _is_light(batch)
    if light.any():
        dropped |= light[row] & _is_one_of(names, _LIGHT_QUEUES)
    kept, count = np.flatnonzero(~dropped), len(ORIGIN)
    ends = np.cumsum(np.bincount(row[kept], minlength=rows))  # of the pairs that a row keeps
    at, origin = np.repeat(ends, count), np.arange(count * rows).reshape(count, rows).T.ravel()
    name_of = np.insert(
        kept, at, len(names) + origin // rows
    )  # indexes among the old, then the new
    value_of = np.insert(kept, at, len(values) + origin)
    offsets = np.append(0, ends + count * np.arange(1, rows + 1))
    return pa.MapArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.concat_arrays([names, pa.array(list(ORIGIN))]).take(pa.array(name_of)),
        pa.concat_arrays([values, *(_as_text(batch[c]) for c in ORIGIN.values())]).take(
            pa.array(value_of)
        ),
        type=PROPERTIES,
    )


def _is_one_of(names: pa.Array, wanted: tuple[str, ...]) -> Mask:
    return np.asarray(pc.is_in(names, pa.array(wanted)))


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.cast(pa.string())


READ = "read"
OTHER_TIME = "stored at another time"
OTHER_KEY = "other keys"

# Properties from earlier retries. A message that is sent again must not have them.
_OF_RETRIES = (
    *("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID"),
    *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "DELAY"),
    *("REAL_TOPIC", "REAL_QID", "ORIGIN_GROUP", "1ST_POP_TIME"),
)


def _taken(spec: ReplaySpec, batch: pa.RecordBatch, counts: Counter[str]) -> pa.RecordBatch:
    """The rows to replay. Counts the rows, and those left out by the reason."""
    in_time = stored_in_time(batch, *times_of(spec))
    has_key = np.ones(batch.num_rows, np.bool_)
    if spec.keys:
        has_key = rows_with_key(batch["keys"], batch["uniqKey"], spec.keys)
    counts[READ] += batch.num_rows
    counts[OTHER_TIME] += int((~in_time).sum())
    counts[OTHER_KEY] += int((in_time & ~has_key).sum())
    taken = in_time & has_key
    return batch if taken.all() else batch.filter(pa.array(taken))


def _changed(spec: ReplaySpec, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as they arrive: with their origin, in their new topics and queues."""
    name, properties = with_origin(batch, _OF_RETRIES if spec.dead_to_origin else ())
    columns = {
        name: properties,
        "topic": _new_topics(spec, batch),
        "queueId": _new_queues(spec.queue_map, batch),
    }
    if spec.dead_to_origin:
        columns["reconsumeTimes"] = pa.array(np.zeros(batch.num_rows, np.int32))
    fields = [BY_NAME[name].field if f.name in PROPERTY_FORMS else f for f in batch.schema]
    arrays = [columns[f.name] if f.name in columns else batch[f.name] for f in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _new_topics(spec: ReplaySpec, batch: pa.RecordBatch) -> pa.Array:
    topics = batch["topic"]
    if spec.dead_to_origin:
        # AbstractSendMessageProcessor#consumerSendMsgBack writes RETRY_TOPIC; 5.x brokers also
        # write DLQ_ORIGIN_TOPIC.
        origins = (
            pc.map_lookup(batch["properties"], name, "first")
            for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
        )
        return origin_topics(topics, pc.coalesce(*origins, topics))
    if not spec.topic_map:
        return topics
    old, new = map(pa.array, (list(spec.topic_map), list(spec.topic_map.values())))
    return pc.coalesce(new.take(pc.index_in(topics, old)), topics)


def _new_queues(queue_map: QueueMap, batch: pa.RecordBatch) -> pa.Array:
    if not queue_map:
        return batch["queueId"]
    old = batch["queueId"].to_numpy()
    changed, topics = old.copy(), batch["topic"].dictionary_encode()
    # The broker looks for its own records in certain queues.
    of_users = np.array(
        [kind_of_broker_record(name) is None for name in topics.dictionary.to_pylist()]
    )
    # A rule for one topic takes precedence over a rule for all topics, so it comes last.
    rules = sorted(queue_map.items(), key=lambda rule: rule[0][0] is not None)
    for (topic, queue_id), new in rules:
        if topic is None:
            rows = of_users[topics.indices.to_numpy()]
        else:
            rows = pc.equal(batch["topic"], topic).to_numpy(zero_copy_only=False)
        changed[rows & (old == queue_id)] = new
    return pa.array(changed)


REFUSED_BY_STORE = "refused by the target"
ENDED = "state of the broker that has ended"
REFUSED_BY_BROKER = "refused by the broker or its client"
OTHER_TAG = "other tags"
OTHER_TAG_OR_KEY = "other tags or keys"
_READ = (
    *("brokerName", "topic", "queueId", "queueOffset"),
    *("commitLogOffset", "storeTimestamp", "reconsumeTimes"),
)
_OF_KEYS = ("keys", "uniqKey")
_AS_STORED = (
    *("flag", "sysFlag", "bornTimestamp", "bornHost", "rawBody", "preparedTransactionOffset"),
)
READ_TO_SEND = (*_READ, *_OF_KEYS, "properties", "body")

Part = TypeVar("Part")
Batches = Iterator[pa.RecordBatch]
Handle = Callable[[StoreReader, int, Batches], Part]
"""What becomes of the rows of a share: (source, number of the share, batches with rows) -> part."""


def source_options(spec: ReplaySpec, ranges: Sequence[QueueSlice] = ()) -> dict[str, str]:
    """The options of the Spark source that select what the spec selects.

    With `ranges`, exactly these: the ranges that the spec was resolved to before.
    """
    options: dict[str, str | None] = {
        "path": spec.source,
        "compacted": "false",  # a replay copies queues as they are
        "tags": " || ".join(spec.tags),
        "brokerName": spec.broker_name,
        "brokerConf": spec.broker_conf,
    }
    if ranges:
        options |= range_options(ranges)
    else:
        options |= options_of_queues(spec.queues, spec.offsets)
        options |= {
            "topic": ",".join(spec.topics),
            "startingTimestamp": spec.since,
            "endingTimestamp": spec.until,
            "includeSystemTopics": "true" if spec.include_system_topics else None,
        }
    return {name: value for name, value in options.items() if value}


def columns_for_store(spec: ReplaySpec) -> tuple[str, ...]:
    """The columns that a replay into a store reads. Only dead letters need the map of properties."""
    properties = "properties" if spec.dead_to_origin else "rawProperties"
    return (*_READ, *(_OF_KEYS if spec.keys else ()), properties, *_AS_STORED)


def why_filtered_out(spec: ReplaySpec) -> str | None:
    """The reason why the source may leave out selected messages: other tags or other keys."""
    if spec.by_index:
        return OTHER_TAG_OR_KEY if spec.tags else OTHER_KEY
    return OTHER_TAG if spec.tags else None


@dataclass(frozen=True, slots=True)
class Handled(Generic[Part]):
    """What `handle` made of the rows of some shares, in their order, and the counts of the rules."""

    parts: Sequence[Part]
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class ReplayQuestion(Generic[Part]):
    """The question of a replay: read ranges of a store, and hand the changed rows to `handle`.

    Shares are slices of the log of about `share_bytes`, or whole queues if `tasks` is given; then
    each queue is in one share, in order. `read` has the ranges and the options.
    `selected_bytes` is an estimate of the bytes of all records, if there is one.
    """

    spec: ReplaySpec
    read: StoreScan
    columns: tuple[str, ...]
    handle: Handle[Part]
    share_bytes: int = DEFAULT_PARTITION_BYTES
    tasks: int | None = None
    selected_bytes: int | None = None

    def plan(self, store: StoreReader) -> list[tuple[int, Share]]:
        """The shares with their numbers: slices in the order of the log, or queues.

        The last ones report what is missing.
        """
        ranges = self.read.ranges
        if not ranges:
            return []
        if self.tasks is not None:
            shares = _by_queue(ranges, self.tasks)
        else:
            total = self.selected_bytes
            slices = cut_into_slices(store, ranges, self.share_bytes, selected_bytes=total)
            shares = [Share(0, piece) for piece in slices]
        return list(enumerate((*shares, *reporting_shares((self.read,)))))

    def work(
        self, store: StoreReader, share: tuple[int, Share], progress: OnProgress
    ) -> Handled[Part]:
        """Hand the rows of a share to `handle`. Raises StoreError for damage and expired files."""
        number, unnumbered = share
        counts: Counter[str] = Counter()
        damage = DamageHandler(store, self.read.options)
        read = read_share(self.read, unnumbered, store, self.columns, damage)
        taken = (_taken(self.spec, batch, counts) for batch in read)
        changed = (_changed(self.spec, batch) for batch in taken if batch.num_rows)
        handled = self.handle(store, number, changed)
        progress(self.weight(share))
        return Handled([handled], counts)

    def weight(self, share: tuple[int, Share]) -> int:
        """The selected bytes of a slice of the log."""
        part = share[1]
        return 0 if part.slice is None or part.reports else part.slice.selected_bytes

    def merge(self, store: StoreReader, parts: Iterable[Handled[Part]]) -> Handled[Part]:
        """The parts of all shares, and the sums of their counts."""
        of_shares = list(parts)
        counts: Counter[str] = sum((part.counts for part in of_shares), Counter())
        return Handled([one for part in of_shares for one in part.parts], counts)


def _by_queue(ranges: Sequence[QueueSlice], tasks: int) -> list[Share]:
    """Shares of whole queues with about equal numbers of messages."""
    queues = [list(parts) for _, parts in groupby(sorted(ranges), attrgetter("queue"))]
    bins: list[list[QueueSlice]] = [[] for _ in range(min(tasks, len(queues)))]
    sizes = [0] * len(bins)
    for parts in sorted(queues, key=lambda parts: -sum(map(len, parts))):
        smallest = sizes.index(min(sizes))
        bins[smallest] += parts
        sizes[smallest] += sum(map(len, parts))
    return [Share(0, ranges=tuple(parts)) for parts in bins]
