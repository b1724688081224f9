"""The data source `rmqstore`: a broker's store as a DataFrame, and the reader of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmq_store import StoreError
from rmq_store.errors import LOG, DataLossError
from rmq_store.reading.query import PERMISSIVE
from rmq_store.scan.parse_options import ScanOptions, parse_options
from rmq_store.scan.scan import Scan, TopicWithoutQueueError
from spark_source.spark_types import (
    arrow_schema_for,
    batches_for_spark,
    checked_columns,
    partitions_of,
    plain_errors,
    settle_reading_worker,
    spark_schema,
    without_traceback,
)
from spark_source.streaming.micro_batch_ends import options_as_of_batch, parse_stream_options
from spark_source.table_reader import TableReader, table_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_WARNED: deque[str] = deque(maxlen=1000)  # the last loads that were warned of
_KEPT_BY_SPARK = (
    "filters were pushed down (%s). Spark uses what they left for every later query of the same DataFrame "
    "or view, even without them, so that rows are missing there: call load() for each query, or "
    "set options such as 'topic' instead of spark.sql.python.filterPushdown.enabled"
)

_FILTER_TEXT = 300  # characters: a filter may list thousands of values


class RmqStoreReader(DataSourceReader):
    """Plans a scan on the driver, and reads a task of it, the partition's value, in each partition."""

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
        return partitions_of(self.scan.plan(self.columns))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a task. A query has no order of its own."""
        settle_reading_worker()
        with plain_errors():
            batches = self.scan.read(partition.value, self.columns, log_order=False)
            schema = arrow_schema_for(self.spark_schema)
            yield from batches_for_spark(batches, schema, ahead=self.scan.is_far(partition.value))


class UnsupportedOperationError(StoreError):
    """The source does not support an operation."""

    code = "RMQSTORE_UNSUPPORTED_OPERATION"


class FailingStream(DataSourceStreamReader):
    """Raises at its first call. If a constructor raised, Spark would hide the error."""

    def __init__(self, failure: StoreError) -> None:
        self.failure = failure

    def _fail(self, *args: Any, **named: Any) -> Any:
        """Always raises. The arguments differ between releases of Spark."""
        raise without_traceback(self.failure)

    initialOffset = latestOffset = partitions = read = _fail


class RmqStoreSource(DataSource):
    """The data source of `spark.read.format("rmqstore").load(path)`; its options are in `scan.options`.

    The state of the stores is read once, at the latest when Spark pickles this object. From the
    pickle Spark creates a reader for each distinct filter, and two for a self-join. All readers see
    the state of this moment, even if a broker writes meanwhile.
    """

    @cached_property
    def _pinned(self) -> tuple[ScanOptions | None, Scan | StoreError]:
        """The options, and the state of the stores, which is read once; or what is wrong with them.

        Spark creates the source before it says what for: a batch, a stream, or a write. A write
        never comes here, since its target may not exist, and what is wrong for a batch waits for
        its reader.
        """
        parsed = None
        try:
            parsed = parse_options(options_as_of_batch(self.options))
            return parsed, Scan.of(parsed)
        except StoreError as error:
            return parsed, error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pinned": self._pinned}

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rmqstore"

    def schema(self) -> StructType:
        """The schema of the selected columns, or of the default ones."""
        parsed, scan = self._pinned
        # Spark asks for it before it says whether it reads a batch or a stream. A stream may wait for
        # the first message of a topic, and its start may have expired since it began there.
        may_begin = isinstance(scan, TopicWithoutQueueError | DataLossError)
        if isinstance(scan, StoreError) and not may_begin:
            raise without_traceback(scan)
        assert parsed is not None
        if parsed.table is not None:
            return table_schema(parsed.table)
        return spark_schema(parsed.columns, permissive=parsed.mode == PERMISSIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the offsets pinned when the source was created."""
        parsed, scan = self._pinned
        if isinstance(scan, StoreError):
            raise without_traceback(scan)
        with plain_errors():
            parse_options(self.options)  # refuses what only a stream has
        assert parsed is not None
        if parsed.table is not None:
            return TableReader(scan, parsed.table, schema)
        return RmqStoreReader(scan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of rows into the store of `path`. Raises StoreError for what is wrong."""
        # Every Python process of Spark imports this module, and few of them write.
        from spark_source.writing.writers import RmqStoreWriter

        with plain_errors():
            return RmqStoreWriter(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader that follows the logs of the stores. Needs PySpark 4.2 or later."""
        try:
            from spark_source.streaming.stream_reader import RmqStoreStreamReader
        except ImportError:
            return FailingStream(self._needs_newer("reading as a stream", "4.2"))
        try:
            return RmqStoreStreamReader(*parse_stream_options(self.options), schema)
        except StoreError as error:
            return FailingStream(error)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of the micro-batches of a query, each of them once. Needs PySpark 4.1 or later."""
        try:
            from spark_source.writing.writers import RmqStoreStreamWriter
        except ImportError:
            raise without_traceback(self._needs_newer("writing as a stream", "4.1")) from None

        with plain_errors():
            return RmqStoreStreamWriter(self.options, schema, overwrite)

    def _needs_newer(self, what: str, version: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            self.options.get("path"),
            reason=f"{what} with this PySpark is not supported by format 'rmqstore'",
            advice=f"Install PySpark {version} or later",
        )
