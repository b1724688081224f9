"""Reads one partition: a slice of the log, and the part of each selected queue that lies in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_store import MessageStore, StoreSnapshot
from rmq_store.consumequeue import QueueId
from rmq_store.planning import Entry, LogSlice, QueueSlice, pieces_of, plan_partitions
from spark_source.schema import arrow_schema_for, checked_columns, to_spark

FIRST_BATCH_ROWS = 256
"""`show()` wants twenty rows; what it does not want it should not wait for."""


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """A store and the offsets it had when the source was made; small, and pickles."""

    path: str
    broker_conf: str | None
    snapshot: StoreSnapshot
    broker_name: str

    def open(self) -> MessageStore:
        """The store, with the offsets it had then."""
        return MessageStore.open(
            self.path,
            broker_name=self.broker_name,
            broker_conf=self.broker_conf,
            snapshot=self.snapshot,
        )


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Everything a read needs, resolved: no option is looked at behind this point."""

    store: PinnedStore
    ranges: tuple[QueueSlice, ...]
    tags: tuple[str, ...] | None
    partition_bytes: int


def cut_into_slices(
    store: MessageStore, ranges: Sequence[QueueSlice], target_bytes: int
) -> list[LogSlice]:
    """Neighbouring slices of the log that hold `ranges`, each of about `target_bytes` of them."""

    def entry_at(queue: QueueId, offset: int) -> Entry | None:
        found = store.entries(queue, offset, offset + 1)
        if not len(found) or not found.points_to_record[0]:
            return None
        return Entry(int(found.log_offset[0]), int(found.size[0]) / max(1, int(found.count[0])))

    return plan_partitions(ranges, entry_at, target_bytes)


class LogPartition(InputPartition):
    """A slice of the log as a partition of Spark's."""

    def __init__(self, value: LogSlice) -> None:
        super().__init__(value)
        self.slice = value


class RmqStoreReader(DataSourceReader):
    """Plans the slices on the driver and reads one of them in each task."""

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self.plan = plan
        self.columns = checked_columns(schema)
        self.spark_schema = schema

    def partitions(self) -> list[InputPartition]:
        """Neighbouring slices of the log of about equal selected bytes."""
        with self.plan.store.open() as store:
            slices = cut_into_slices(store, self.plan.ranges, self.plan.partition_bytes)
        return [LogPartition(piece) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one slice; rows come in the order of the log."""
        # Without a partition Spark plans one of its own, with nothing in it.
        if not isinstance(partition, LogPartition):
            return
        schema = arrow_schema_for(self.spark_schema)
        with self.plan.store.open() as store:
            pieces = pieces_of(self.plan.ranges, partition.slice, store.offset_at_log)
            batches = store.read_slices(
                pieces,
                columns=self.columns,
                tags=self.plan.tags,
                first_batch_rows=FIRST_BATCH_ROWS,
            )
            for batch in batches:
                yield to_spark(batch, schema)
