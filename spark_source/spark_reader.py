"""Plans the shares of a query on the driver, and reads some of them in each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_store.errors import LOG
from spark_source.options.definitions import PERMISSIVE
from spark_source.planning.partitions import Share, in_tasks, reporting_shares, shares_of
from spark_source.planning.pinned_plan import QueryPlan
from spark_source.spark_types import all_to_spark, arrow_schema_for, checked_columns
from spark_source.spark_words import plain_errors, settle_reading_worker

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


from rmq_store import MessageStore
from rmq_store.commitlog.other_store_at_path import IF_OTHER_STORE
from rmq_store.errors import DataLossError, LogOffset, MissingFileError, StoreError
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.query import DamageTaker, OnDamage, ReadHow
from rmq_store.search.log_partitions import offset_at_log
from rmq_store.snapshot.ranges import pieces_of
from spark_source.options.definitions import FAILFAST
from spark_source.options.parse import SourceOptions
from spark_source.planning.partitions import reported_errors
from spark_source.planning.pinned_plan import ReadPlan


class DamageHandler(DamageTaker):
    """Handles the errors of one task. `mode` decides about damage, `failOnDataLoss` about expired
    messages."""

    def __init__(self, store: MessageStore, options: SourceOptions) -> None:
        super().__init__(options.mode)
        self._store = store
        self._options = options
        self.damaged = 0  # errors that are not about expired messages

    def __call__(self, error: StoreError) -> None:
        if self._is_expired(error):
            if self._options.fail_on_data_loss:
                raise _data_loss(error) from error
            self.count(DataLossError.code, error)
        else:
            self.take_damage(error)

    def take_damage(self, error: StoreError) -> None:
        """Take an error that is not about expired messages."""
        if self._options.mode == FAILFAST:
            raise error
        self.damaged += 1
        super().__call__(error)

    def _is_expired(self, error: StoreError) -> bool:
        """Whether a missing file is before all files that exist: the broker deletes from the front, or all
        of a topic."""
        entry = error.entry
        if entry is not None and entry.size <= 0:  # no queue file has the entry
            queue = QueueId(entry.topic, entry.queue_id)
            if self._options.sees_compacted and self._store.served.compacted(queue) is not None:
                return False  # its own files keep messages that have expired from the queue
            if isinstance(error, MissingFileError):
                return True  # the topic was deleted
            files = self._store.view.files(queue)
            return not files.batch and entry.queue_offset < files.first_unit
        if not isinstance(error, MissingFileError):
            return False
        return error.offset is not None and error.offset < self._store.log.starts_now()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `waiting_rows`."""
        return self.waiting_rows(self._store.broker_name, columns)

    def log(self) -> None:
        """Log one line about what the task left out or found damaged, if anything."""
        self.log_counts(f"{self._store.broker_name} ({self._store.path})")


def _data_loss(error: StoreError) -> DataLossError:
    return DataLossError(
        error.path,
        offset=error.offset,
        reason=f"messages expired or were deleted during the read: {error.reason}",
        advice=f"Read the remaining messages again, or set failOnDataLoss=false. {IF_OTHER_STORE}",
    )


_FIRST_BATCH_ROWS = 256
"""Of a query: `show()` needs only twenty rows and should not wait for more. A wave is read whole."""

_BODIES = frozenset(("body", "rawBody"))


def read_share(
    plan: ReadPlan,
    share: Share,
    store: MessageStore,
    columns: Sequence[str],
    damage: DamageHandler,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of `columns` of one share, in log order or queue after queue; none is empty.

    `log_order`: see ReadManner; a query has no order of its own.
    Rows about damage follow the batch they belong to; in them every column can be null. `store` is
    the plan's store, opened. Raises what `damage` raises, and OtherStoreError
    if another store took the place of the plan's meanwhile.
    """
    with store.refusing_replacement():
        if share.reports:
            for error in reported_errors(plan, share, store):
                damage.take_damage(error)
            yield from damage.rows(columns)
            return
        batches = read_messages(plan, share, store, columns, damage, log_order=log_order)
        for batch in batches:
            if batch.num_rows:
                yield batch
            yield from damage.rows(columns)
        yield from damage.rows(columns)


def read_messages(
    plan: ReadPlan,
    share: Share,
    store: MessageStore,
    columns: Sequence[str],
    damage: OnDamage,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The messages of one share; batches may be empty. `damage` takes the errors of the others."""
    options = plan.options
    checks_bodies = bool(_BODIES.intersection(columns))
    first_rows = None if plan.is_wave else _FIRST_BATCH_ROWS
    how: ReadHow = {
        "columns": columns,
        "tags": options.tags,
        "keys": options.keys,
        "first_batch_rows": first_rows,
        "check_crc": checks_bodies,
        "max_body_bytes": options.max_body_bytes,
        "unwrap_batches": options.unwrap_batches,
        "on_damage": damage,
    }
    if plan.limits is not None:
        assert share.slice is not None
        unqueued, part = options.include_unqueued, share.slice
        # A reader notices itself that no file is left.
        if part.start is not None and store.log.chain.segments and part.start < store.log.start:
            damage(_expired_files(store, part.start))
        yield from store.read_log(
            part.start, part.stop, limits=plan.limits, include_unqueued=unqueued, **how
        )
        return
    how |= {
        "check_ends": False,
        "log_order": log_order,
        "compacted": options.sees_compacted,
    }  # a share of its own reports what is missing there
    for slices in pieces_of_share(plan, share, store):
        yield from store.read_slices(slices, verify_queue=options.verify_queue, **how)


def _expired_files(store: MessageStore, start: int) -> MissingFileError:
    """The error for files that were there when the read was planned."""
    return MissingFileError(
        str(store.path),
        offset=LogOffset(start),
        reason="files of the log that the plan of this read has are gone",
        expected=f"the log from {start} on",
        actual=f"from {store.log.start} on",
    )


def pieces_of_share(
    plan: ReadPlan, share: Share, store: MessageStore
) -> Iterator[Sequence[QueueSlice]]:
    """The ranges of a share, as lists. Each list is read in log order."""
    if share.ranges is None:
        assert share.slice is not None
        edges = (share.slice.start, share.slice.stop)
        view = store.ranges_for(plan.options.sees_compacted)
        yield pieces_of(plan.ranges, share.slice, offset_at_log(store, plan.ranges, edges, view))
    elif share.in_turn:
        for part in share.ranges:
            yield [part]
    else:
        yield share.ranges


_WARNED: deque[str] = deque(maxlen=1000)  # the last loads that were warned of
_KEPT_BY_SPARK = (
    "filters were pushed down (%s). Spark uses what they left for every later query of the same DataFrame "
    "or view, even without them, so that rows are missing there: call load() for each query, or "
    "set options such as 'topic' instead of spark.sql.python.filterPushdown.enabled"
)

_FILTER_TEXT = 300  # characters: a filter may list thousands of values


class LogPartition(InputPartition):
    """Shares of a query as a Spark partition."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        super().__init__(shares)
        self.shares = shares


class PushFilters:
    """The method `pushFilters` of a reader. It works whether filter pushdown is on or off.

    If pushdown is off, Spark rejects a reader that overrides the method. It compares
    `reader.pushFilters.__func__` with the method of the base class, so the bound method pretends to
    be that one.
    """

    def __init__(self, push: Callable[[Any, list[Filter]], Iterable[Filter]]) -> None:
        self._push = push

    def __get__(self, reader: Any, kind: type[Any]) -> Any:
        if reader is None:
            return self._push
        return _Bound(self._push, reader)


class _Bound:
    """Calls our method, and pretends to be that of the base class."""

    def __init__(self, push: Callable[[Any, list[Filter]], Iterable[Filter]], reader: Any) -> None:
        self._push, self._reader = push, reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(self._reader, filters)


class RmqStoreReader(DataSourceReader):
    """Plans the shares on the driver and reads some of them in each task."""

    def __init__(self, plan: QueryPlan, schema: StructType) -> None:
        permissive = any(store.options.mode == PERMISSIVE for store in plan.stores)
        self.plan, self.spark_schema = plan, schema
        self.columns = checked_columns(schema, all_nullable=permissive)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the plan by the filters. Returns those that Spark must apply as well."""
        # PySpark 4.0 has no classes of filters to import, and calls none of this.
        from spark_source.planning.pushed_filters import narrowed

        before = self.plan
        self.plan, left = narrowed(before, filters)
        if self.plan != before and self.plan.load not in _WARNED:
            _WARNED.append(self.plan.load)
            LOG.warning(_KEPT_BY_SPARK, ", ".join(map(str, filters))[:_FILTER_TEXT])
        return left

    pushFilters = PushFilters(_push)

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Partitions with about equal numbers of selected bytes."""
        shares = [*shares_of(self.plan, self.columns), *reporting_shares(self.plan)]
        return [LogPartition(task) for task in in_tasks(self.plan, shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one share after the other, in log order or queue after queue."""
        # If the plan has no partition, Spark creates an empty one.
        if not isinstance(partition, LogPartition):
            return
        settle_reading_worker()
        for share in partition.shares:
            yield from self._read(share)

    def _read(self, share: Share) -> Iterator[pa.RecordBatch]:
        plan, schema = self.plan.stores[share.store], arrow_schema_for(self.spark_schema)
        with plain_errors(), plan.store.open() as store:
            damage = DamageHandler(store, plan.options)
            batches = read_share(plan, share, store, self.columns, damage, log_order=False)
            yield from all_to_spark(batches, schema, ahead=store.log.chain.cost.looks_at_once > 1)
            damage.log()
            LOG.debug("%s: %s", plan.store.broker_name, store.reads())
