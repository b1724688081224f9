"""What Spark calls to read a stream: offsets, partitions of a micro-batch, and their rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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

from rmq_store import StoreSnapshot
from rmq_store.reading.growing_log import LogPlace, expired
from rmq_store.search.log_partitions import even_slices
from spark_source.hidden_traceback import plain_errors
from spark_source.options.definitions import PERMISSIVE
from spark_source.options.parse import SourceOptions
from spark_source.partition_reader import read_share
from spark_source.planning.partitions import Share
from spark_source.planning.pinned_plan import PinnedStore, ReadPlan
from spark_source.planning.stores import Target
from spark_source.spark_types import all_to_spark, arrow_schema_for, checked_columns
from spark_source.spark_words import settle_reading_worker
from spark_source.streaming.micro_batch_ends import Follower
from spark_source.streaming.offsets import StorePlace, StreamOffset, from_dict, to_dict
from spark_source.streaming.stream_options import StreamOptions
from spark_source.streaming.stream_selection import StreamSelection, check_selection
from spark_source.task_damage import DamageHandler


class StreamPartition(InputPartition):
    """A slice of the log of one store."""

    def __init__(self, plan: ReadPlan, share: Share) -> None:
        super().__init__((plan, share))
        self.plan, self.share = plan, share


class RmqStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of stores. Offsets are places in the logs, so they decide the rows alone."""

    def __init__(self, asked: SourceOptions, stream: StreamOptions, schema: StructType) -> None:
        self.asked, self.stream, self.spark_schema = asked, stream, schema
        self.columns = checked_columns(schema, all_nullable=asked.mode == PERMISSIVE)
        self.follower = Follower(asked, stream)
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
        end = self.follower.latest(
            places,
            most_rows=self.stream.max_rows if limited else None,
            most_bytes=self.stream.max_bytes if limited else None,
            target=self._target,
        )
        if self._target is None and self._waits(places, end):
            return start
        return self._to_dict(end)

    def _to_dict(self, offset: StreamOffset) -> dict[str, Any]:
        return {**to_dict(offset), "selection": StreamSelection.of(self.asked).to_dict()}

    def _to_go_on(self, offset: dict[str, Any]) -> dict[str, StorePlace]:
        """The places of an offset, from which the options as they are now may go on."""
        places, selected = from_dict(offset), offset.get("selection")
        if selected != self._checked:
            check_selection(offset, self.asked, self.follower.with_queues(places))
            self._checked = selected
        return places

    def _waits(self, start: StreamOffset, end: StreamOffset) -> bool:
        """Whether minOffsetsPerTrigger asks to wait for more messages."""
        least, now = self.stream.min_rows, time.monotonic()
        if least is None or end == start:
            return False
        if self.follower.rows_between(start, end, least) >= least:
            self._waiting_since = None
            return False
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        if now - self._waiting_since < self.stream.max_delay_s:
            return True
        self._waiting_since = None
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end now, for the progress of the query."""
        return to_dict(self.follower.ends) if self.follower.ends else None

    # --- rows ------------------------------------------------------------------------------------

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Slices of the logs between two offsets."""
        places, last_places = from_dict(start), self._to_go_on(end)
        found = list[InputPartition]()
        for name, last in last_places.items():
            # A store that appeared in this micro-batch has no place in `start`.
            first = places.get(name) or StorePlace(LogPlace(last.since or 0))
            if first.place.offset < last.place.offset:
                found += self._slices(name, self.follower.require(name), first, last)
        return found

    def _slices(
        self, name: str, target: Target, first: StorePlace, last: StorePlace
    ) -> Iterator[StreamPartition]:
        start, stop, mark = first.place.offset, last.place.offset, last.place.first
        with self.follower.open(name, target) as store:
            if start < store.log.start:
                self.asked.lose(expired(str(store.path), start, store.log.start))
                start = store.log.start
            limits = self.follower.limits(store, first)
            pinned = PinnedStore(
                target.path,
                target.broker_conf,
                StoreSnapshot(store.log.start, stop, marks=() if mark is None else (mark,)),
                name,
                self.asked.storage_options,
                store.listing(),
            )
        plan = ReadPlan(pinned, (), self.asked, limits)
        pieces = even_slices(
            start, stop, self.asked.max_bytes_per_partition, self.asked.min_partitions
        )
        for piece in pieces:
            yield StreamPartition(plan, Share(0, piece))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one slice, in log order. Runs on an executor."""
        assert isinstance(partition, StreamPartition)
        settle_reading_worker()
        schema, plan = arrow_schema_for(self.spark_schema), partition.plan
        with plain_errors(), plan.store.open() as store:
            damage = DamageHandler(store, plan.asked)
            share, names = partition.share, self.columns
            batches = read_share(plan, share, store, names, damage)
            yield from all_to_spark(batches, schema, ahead=store.log.chain.cost.looks_at_once > 1)
            damage.log()
