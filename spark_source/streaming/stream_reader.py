"""What Spark calls to read a stream: offsets, partitions of a micro-batch, and their rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq_store.errors import InvalidArgumentError
from rmq_store.format.queues import QueueId
from rmq_store.reading.log_reader import LogPlace, error_of_expired_files
from rmq_store.reading.query import PERMISSIVE
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.scan import Scan, StoreToOpen
from rmq_store.scan.tasks import Share, StoreScan
from rmq_store.search.log_partitions import even_slices
from rmq_store.search.selection import Selection, WantedQueues
from rmq_store.snapshot.snapshot import StoreSnapshot
from spark_source.spark_types import (
    arrow_schema_for,
    batches_for_spark,
    checked_columns,
    plain_errors,
    settle_reading_worker,
)
from spark_source.streaming.micro_batch_ends import (
    Follower,
    StorePlace,
    StreamOffset,
    StreamOptions,
    offset_to_dict,
    places_from_dict,
)


class RmqStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of stores. Offsets are places in the logs, so they decide the rows alone."""

    def __init__(self, options: ScanOptions, stream: StreamOptions, schema: StructType) -> None:
        self.options, self.stream, self.spark_schema = options, stream, schema
        self.columns = checked_columns(schema, all_nullable=options.mode == PERMISSIVE)
        self.follower = Follower(options, stream)
        self._target: dict[str, StorePlace] | None = None  # of Trigger.AvailableNow
        self._checked: dict[str, Any] | None = None  # the last selection of an offset
        self._waiting_since: float | None = None  # for minOffsetsPerTrigger

    # --- offsets, on the driver ------------------------------------------------------------------

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts."""
        return self._to_dict(self.follower.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a micro-batch by the options."""
        if self.stream.max_rows is not None:
            return ReadMaxRows(self.stream.max_rows)
        if self.stream.max_bytes is not None:
            return ReadMaxBytes(self.stream.max_bytes)
        return ReadAllAvailable()

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the logs end now; no micro-batch goes further."""
        self.follower.latest({})
        self._target = dict(self.follower.ends)

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` if there is nothing to read yet."""
        places = self._to_go_on(start)
        limited = not isinstance(limit, ReadAllAvailable)
        end = self.follower.latest(places, limited=limited, target=self._target)
        if self._target is None and self._waits(places, end):
            return start
        return self._to_dict(end)

    def _to_dict(self, offset: StreamOffset) -> dict[str, Any]:
        return {**offset_to_dict(offset), "selection": selection_in_offset(self.options)}

    def _to_go_on(self, offset: dict[str, Any]) -> dict[str, StorePlace]:
        """The places of an offset, from which the options as they are now may go on."""
        places, selected = places_from_dict(offset), offset.get("selection")
        if selected != self._checked:
            stores = ((name, self.follower.require(name)) for name in places)
            check_selection(offset, self.options, self.follower.with_queues(stores))
            self._checked = selected
        return places

    def _waits(self, start: StreamOffset, end: StreamOffset) -> bool:
        """Whether minOffsetsPerTrigger asks to wait for more messages."""
        least, now = self.stream.min_rows, time.monotonic()
        if least is None or end == start:
            return False
        if self.follower.rows_between(start, end, least) < least:
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
            if now - self._waiting_since < self.stream.max_delay_s:
                return True
        self._waiting_since = None
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end now, for the progress of the query."""
        return offset_to_dict(self.follower.ends) if self.follower.ends else None

    # --- rows ------------------------------------------------------------------------------------

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the logs between two offsets."""
        places, last_places = places_from_dict(start), self._to_go_on(end)
        partitions = list[InputPartition]()
        for name, last in last_places.items():
            # A store that appeared in this micro-batch has no place in `start`.
            first = places.get(name) or StorePlace(LogPlace(last.since or 0))
            if first.place.offset < last.place.offset:
                partitions += self._slices(name, self.follower.require(name), first, last)
        return partitions

    def _slices(
        self, name: str, target: StoreToOpen, first: StorePlace, last: StorePlace
    ) -> Iterator[InputPartition]:
        """Partitions of one store: each has a scan and its task, a slice of the log."""
        start, stop, mark = first.place.offset, last.place.offset, last.place.first
        with self.follower.open(name, target) as store:
            if start < store.log.start:
                self.options.lose(error_of_expired_files(str(store.path), start, store.log.start))
                start = store.log.start
            limits = self.follower.limits(store, first)
            snapshot = StoreSnapshot(store.log.start, stop, marks=() if mark is None else (mark,))
            pinned = store.pinned(snapshot)
        scan = Scan((StoreScan(pinned, (), self.options, limits),))
        pieces = even_slices(
            start, stop, self.options.max_bytes_per_partition, self.options.min_partitions
        )
        for piece in pieces:
            yield InputPartition((scan, (Share(0, piece),)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one slice, in log order. Runs on an executor."""
        settle_reading_worker()
        scan, task = partition.value
        schema = arrow_schema_for(self.spark_schema)
        with plain_errors():
            batches = scan.read(task, self.columns)
            yield from batches_for_spark(batches, schema, ahead=scan.is_far(task))


# What a stream selects, as its checkpoint keeps it: a query that goes on must not select more.
#
# A place in the log counts for all topics. So a topic, tag, key or queue that is added later would lack
# its messages before the place.


Selected = Mapping[str, Any]
"""Which messages a stream wants; what it does not name is all. `queues`: [broker, topic, id], "" is any."""


def selection_in_offset(options: ScanOptions) -> dict[str, Any]:
    """The selection by the options, as a checkpoint keeps it: the same text for the same selection."""
    assign, queues = options.assign, None
    if assign is not None:
        queues = [(broker or "", *queue) for broker, queue in assign]
    selected = {
        "topics": options.topics,
        "pattern": options.topic_pattern,
        "queues": queues,
        "system": options.include_system_topics or None,
        "tags": options.tags,
        "keys": options.keys,
    }
    return {
        name: value if isinstance(value, str | bool) else sorted(set(value))
        for name, value in selected.items()
        if value is not None
    }


def _words_added(name: str, now: Selected, before: Selected) -> str | None:
    """The first tag or key that `now` has and `before` lacks."""
    if name not in before:
        return None
    if name not in now:
        return f"messages with any {name[:-1]}"
    added = set(now[name]).difference(before[name])
    return f"{name[:-1]} {min(added)!r}" if added else None


def _queue_added(now: Selected, before: Selected, store: StoreReader) -> str | None:
    """The first queue of a store that `before` lacks, or its topic if `before` has none of it."""
    wanted, had, queues = _wanted(now, store), _wanted(before, store), store.queues()
    added = [queue for queue in queues if wanted(queue) and not had(queue)]
    if not added:
        return None
    topic, number = min(added)
    partly = any(one.topic == topic and had(one) for one in queues)
    return f"queue {number} of topic {topic!r}" if partly else f"topic {topic!r}"


def _wanted(selected: Selected, store: StoreReader) -> WantedQueues:
    assign = None
    if "queues" in selected:
        queues = selected["queues"]
        assign = tuple((broker or None, QueueId(*queue)) for broker, *queue in queues)
    selection = Selection(
        selected.get("topics"),
        topic_pattern=selected.get("pattern"),
        assign=assign,
        include_system_topics=selected.get("system", False),
    )
    return WantedQueues.of(store, selection)


def check_selection(
    stored: Mapping[str, Any], options: ScanOptions, stores: Iterable[StoreReader]
) -> None:
    """Raise InvalidArgumentError, or warn with failOnDataLoss=false, if a query that goes on from the
    offset `stored` selects more than before of its stores, which are opened only if needed.

    A topic that a store does not have yet has no earlier message.
    """
    now = selection_in_offset(options)
    before = stored.get("selection", now)  # an early release did not keep it
    if before == now:
        return
    added = (
        _words_added("tags", now, before)
        or _words_added("keys", now, before)
        or next(filter(None, (_queue_added(now, before, store) for store in stores)), None)
    )
    if added is None:
        return
    options.lose(
        InvalidArgumentError(
            options.path,
            reason=f"the options select {added}, which the query may not have selected up to the place in "
            "its checkpoint, so that earlier messages may be missing",
            advice="Start a query with another checkpoint for what was added; with failOnDataLoss=false "
            "this one goes on without these messages",
        )
    )
