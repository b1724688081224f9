"""Plans the shares of a query on the driver, and reads some of them in each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_store.errors import LOG
from rmq_store.scan.options import PERMISSIVE
from rmq_store.scan.read_task import DamageHandler, read_share
from rmq_store.scan.scan import Scan
from rmq_store.scan.tasks import Share, in_tasks, reporting_shares, shares_of
from spark_source.spark_types import all_to_spark, arrow_schema_for, checked_columns
from spark_source.spark_words import plain_errors, settle_reading_worker

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

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

    def __init__(self, plan: Scan, schema: StructType) -> None:
        permissive = any(store.options.mode == PERMISSIVE for store in plan.stores)
        self.plan, self.spark_schema = plan, schema
        self.columns = checked_columns(schema, all_nullable=permissive)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the plan by the filters. Returns all of them: Spark applies each as well."""
        # PySpark 4.0 has no classes of filters to import, and calls none of this.
        from spark_source.pushed_filters import narrowed

        before = self.plan
        self.plan = narrowed(before, filters)
        if self.plan != before and self.plan.load not in _WARNED:
            _WARNED.append(self.plan.load)
            LOG.warning(_KEPT_BY_SPARK, ", ".join(map(str, filters))[:_FILTER_TEXT])
        return filters

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
