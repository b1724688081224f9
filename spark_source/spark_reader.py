"""A scan as a reader of Spark: planned on the driver, a task of it read in each partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_store.errors import LOG
from rmq_store.reading.query import PERMISSIVE
from rmq_store.scan.scan import Scan
from rmq_store.scan.tasks import Task
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
    """A task of a scan as a Spark partition."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class RmqStoreReader(DataSourceReader):
    """Plans a scan on the driver, and reads a task of it in each partition."""

    def __init__(self, scan: Scan, schema: StructType) -> None:
        permissive = any(store.options.mode == PERMISSIVE for store in scan.stores)
        self.scan, self.spark_schema = scan, schema
        self.columns = checked_columns(schema, all_nullable=permissive)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the scan by the filters. Returns all of them: Spark applies each as well."""
        # PySpark 4.0 has no classes of filters to import, and calls none of this.
        from spark_source.pushed_filters import condition_of

        condition = condition_of(filters)
        if condition is None:
            return filters
        before, self.scan = self.scan, self.scan.narrowed(condition)
        if self.scan != before and self.scan.load not in _WARNED:
            _WARNED.append(self.scan.load)
            LOG.warning(_KEPT_BY_SPARK, ", ".join(map(str, filters))[:_FILTER_TEXT])
        return filters

    @property
    def pushFilters(self) -> Any:
        """The method that takes filters. It works whether filter pushdown is on or off.

        If pushdown is off, Spark rejects a reader that overrides the method. It compares
        `reader.pushFilters.__func__` with the method of the base class, so this one pretends to be it.
        """
        push: Any = partial(self._push)
        push.__func__ = DataSourceReader.pushFilters
        return push

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Partitions with about equal numbers of selected bytes."""
        return [LogPartition(task) for task in self.scan.plan(self.columns)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a task. A query has no order of its own."""
        # If the scan has no task, Spark creates an empty partition.
        if not isinstance(partition, LogPartition):
            return
        settle_reading_worker()
        with plain_errors():
            batches = self.scan.read(partition.task, self.columns, log_order=False)
            schema = arrow_schema_for(self.spark_schema)
            yield from all_to_spark(batches, schema, ahead=self.scan.is_far(partition.task))
