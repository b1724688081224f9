"""Plans the shares of a query on the driver, and reads one of them in each task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rmq_store import MessageStore
from rmq_store.format.queues import QueueSlice
from rmq_store.malloc import keep_freed_memory
from rmq_store.search.log_slices import LogSlice, pieces_of
from rmq_store.search.prefetch import offset_at_log
from spark_source.damage import DamageHandler
from spark_source.options.definitions import PERMISSIVE
from spark_source.planning.filters import PushFilters, narrowed
from spark_source.planning.partitions import Share, end_errors, end_shares, shares_of
from spark_source.planning.partitions import cut_into_slices as cut_into_slices
from spark_source.planning.query_plan import PinnedStore as PinnedStore
from spark_source.planning.query_plan import QueryPlan
from spark_source.planning.query_plan import ReadPlan as ReadPlan
from spark_source.spark_types import arrow_schema_for, checked_columns, to_spark

FIRST_BATCH_ROWS = 256
"""The first batch is small, because `show()` needs only twenty rows and should not wait for
more."""

LOG = logging.getLogger("rmqstore")
_BODIES = frozenset(("body", "rawBody"))


class LogPartition(InputPartition):
    """A share of a query as a Spark partition."""

    def __init__(self, value: Share | LogSlice) -> None:
        super().__init__(value)
        self.share = Share(0, value) if isinstance(value, LogSlice) else value


class RmqStoreReader(DataSourceReader):
    """Plans the shares on the driver and reads one of them in each task."""

    def __init__(self, plan: QueryPlan | ReadPlan, schema: StructType) -> None:
        self.plan = QueryPlan((plan,)) if isinstance(plan, ReadPlan) else plan
        self.permissive = any(store.asked.mode == PERMISSIVE for store in self.plan.stores)
        self.columns = checked_columns(schema, all_nullable=self.permissive)
        self.spark_schema = schema

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the plan by the filters. Returns those that Spark must apply as well."""
        self.plan, left = narrowed(self.plan, filters)
        return left

    pushFilters = PushFilters(_push)

    def partitions(self) -> Sequence[InputPartition]:
        """Partitions with about equal numbers of selected bytes."""
        shares = [*shares_of(self.plan, self.columns), *end_shares(self.plan)]
        return [LogPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one share, in log order or queue after queue."""
        # If the plan has no partition, Spark creates an empty one.
        if not isinstance(partition, LogPartition):
            return
        keep_freed_memory()  # this process is a Spark worker that only reads
        share, schema = partition.share, arrow_schema_for(self.spark_schema)
        plan = self.plan.stores[share.store]
        with plan.store.open() as store:
            damage = DamageHandler(store, plan.asked)
            yield from _one_ahead(self._in_spark(plan, share, store, damage, schema))
            damage.log()
            LOG.debug("%s: %s", plan.store.broker_name, store.reads())

    def _in_spark(
        self,
        plan: ReadPlan,
        share: Share,
        store: MessageStore,
        damage: DamageHandler,
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """The batches in the form that Spark takes. Rows about damage follow the batch they belong
        to."""
        for batch in self._batches(plan, share, store, damage):
            if batch.num_rows:
                yield to_spark(batch, schema)
            for about_damage in damage.rows(self.columns):
                yield to_spark(about_damage, schema)
        for about_damage in damage.rows(self.columns):
            yield to_spark(about_damage, schema)

    def _batches(
        self, plan: ReadPlan, share: Share, store: MessageStore, damage: DamageHandler
    ) -> Iterator[pa.RecordBatch]:
        asked = plan.asked
        if share.checks_ends:
            for error in end_errors(plan, share, store):
                damage(error)
            return
        checks_bodies = bool(_BODIES.intersection(self.columns))
        if plan.limits is not None:
            assert share.slice is not None
            yield from store.read_log(
                share.slice.start,
                share.slice.stop,
                limits=plan.limits,
                columns=self.columns,
                tags=asked.tags,
                keys=asked.keys,
                include_unqueued=asked.include_unqueued,
                first_batch_rows=FIRST_BATCH_ROWS,
                check_crc=checks_bodies,
                max_body_bytes=asked.max_body_bytes,
                unwrap_batches=asked.unwrap_batches,
                on_damage=damage,
            )
            return
        for slices in pieces_of_share(plan, share, store):
            yield from store.read_slices(
                slices,
                columns=self.columns,
                tags=asked.tags,
                keys=asked.keys,
                first_batch_rows=FIRST_BATCH_ROWS,
                check_crc=checks_bodies,
                max_body_bytes=asked.max_body_bytes,
                unwrap_batches=asked.unwrap_batches,
                verify_queue=asked.verify_queue,
                check_ends=False,  # shares of their own do it
                on_damage=damage,
            )


def _one_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each read while Spark takes the one before.

    A worker spends most of its time waiting while it passes a batch to the JVM. Only one thread
    uses the store. An error is raised in place of its batch.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            yield batch


def pieces_of_share(
    plan: ReadPlan, share: Share, store: MessageStore
) -> Iterator[Sequence[QueueSlice]]:
    """The ranges of a share, as lists. Each list is read in log order."""
    if share.ranges is None:
        assert share.slice is not None
        edges = (share.slice.start, share.slice.stop)
        yield pieces_of(plan.ranges, share.slice, offset_at_log(store, plan.ranges, edges))
    elif share.in_turn:
        for part in share.ranges:
            yield [part]
    else:
        yield share.ranges
