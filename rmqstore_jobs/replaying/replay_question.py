"""How a replay reads: the rows of a part of the log, changed by the rules of the replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore
from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.format.queues import QueueSlice
from rmq_store.index.index_writer import rows_with_key
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.questions.dead_letters import origin_topics
from rmq_store.scan.options import DEFAULT_PARTITION_BYTES
from rmq_store.scan.read_task import DamageHandler, read_share
from rmq_store.scan.tasks import Share, StoreScan, cut_into_slices, reporting_shares
from rmq_store.search.selection import stored_in_time
from rmq_store.system_topics.open_state import kind_of
from rmqstore_jobs.replaying.origin_properties import PROPERTY_FORMS, with_origin
from rmqstore_jobs.replaying.replay_spec import QueueMap, ReplaySpec, times_of
from rmqstore_jobs.running.store_selection import options_of_queues, range_options

READ = "read"
OTHER_TIME = "stored at another time"
OTHER_KEY = "other keys"

# Properties from earlier retries. A message that is sent again must not have them.
_OF_RETRIES = (
    *("RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID"),
    *("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "DELAY"),
    *("REAL_TOPIC", "REAL_QID"),
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
        known = (
            pc.map_lookup(batch["properties"], name, "first")
            for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
        )
        return origin_topics(topics, pc.coalesce(*known, topics))
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
    of_users = np.array([kind_of(name) is None for name in topics.dictionary.to_pylist()])
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

_Part = TypeVar("_Part")
Batches = Iterator[pa.RecordBatch]
Handle = Callable[[MessageStore, int, Batches], _Part]
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


def why_left_unread(spec: ReplaySpec) -> str | None:
    """The reason why the source may leave out selected messages: other tags or other keys."""
    if spec.by_index:
        return OTHER_TAG_OR_KEY if spec.tags else OTHER_KEY
    return OTHER_TAG if spec.tags else None


@dataclass(frozen=True, slots=True)
class Handled(Generic[_Part]):
    """What `handle` made of the rows of some shares, in their order, and the counts of the rules."""

    parts: Sequence[_Part]
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class ReplayRows(Generic[_Part]):
    """The question of a replay: read ranges of a store, and hand the changed rows to `handle`.

    Shares are slices of the log of about `share_bytes`, or whole queues if `tasks` is given; then
    each queue is in one share, in order. `read` has the ranges and the options.
    `selected_bytes` is an estimate of the bytes of all records, if there is one.
    """

    spec: ReplaySpec
    read: StoreScan
    columns: tuple[str, ...]
    handle: Handle[_Part]
    share_bytes: int = DEFAULT_PARTITION_BYTES
    tasks: int | None = None
    selected_bytes: int | None = None

    @classmethod
    def of(
        cls,
        spec: ReplaySpec,
        scan: StoreScan,
        ranges: Sequence[QueueSlice],
        handle: Handle[_Part],
        *,
        columns: tuple[str, ...],
        **how: Any,
    ) -> ReplayRows[_Part]:
        """The question about `ranges` of a scan.

        A broker gets each member of an inner batch; other targets get records as stored.
        """
        keys, unwrap = spec.keys if spec.by_index else None, spec.to_broker is not None
        asked = replace(scan.options, keys=keys, unwrap_batches=unwrap)
        read = replace(scan, ranges=tuple(ranges), options=asked, is_wave=True)
        return cls(spec, read, columns, handle, **how)

    def plan(self, store: MessageStore) -> list[tuple[int, Share]]:
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
        self, store: MessageStore, share: tuple[int, Share], progress: OnProgress
    ) -> Handled[_Part]:
        """Hand the rows of a share to `handle`. Raises StoreError for damage and expired files."""
        number, part = share
        counts: Counter[str] = Counter()
        damage = DamageHandler(store, self.read.options)
        read = read_share(self.read, part, store, self.columns, damage)
        taken = (_taken(self.spec, batch, counts) for batch in read)
        changed = (_changed(self.spec, batch) for batch in taken if batch.num_rows)
        handled = self.handle(store, number, changed)
        progress(self.weight(share))
        return Handled([handled], counts)

    def weight(self, share: tuple[int, Share]) -> int:
        """The selected bytes of a slice of the log."""
        part = share[1]
        return 0 if part.slice is None or part.reports else part.slice.selected_bytes

    def merge(self, store: MessageStore, parts: Iterable[Handled[_Part]]) -> Handled[_Part]:
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
