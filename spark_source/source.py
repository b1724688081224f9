"""The data source `rmqstore`: a broker's store as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyarrow import RecordBatch
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
from spark_source.options.parse import SourceOptions, parse_options
from spark_source.options.table import PERMISSIVE
from spark_source.planning.query_plan import QueryPlan, pin_all
from spark_source.planning.query_plan import pin as pin
from spark_source.reader import RmqStoreReader
from spark_source.spark_schema import spark_schema
from spark_source.table_reader import TableReader, table_schema


class UnsupportedOperationError(StoreError):
    """What the source does not do; the advice says what does."""

    code = "RMQSTORE_UNSUPPORTED_OPERATION"


class RmqStoreSource(DataSource):
    """`spark.read.format("rmqstore").load(path)`; `spark_source.options.parse` has the options.

    The store is looked at once, here. Spark makes readers of this object anew for each distinct
    filter and twice for a self-join, and pickles it to all of them: what is resolved now is what
    every one of them sees, also while a broker goes on writing.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: SourceOptions | None = None
        self._plan: QueryPlan | None = None
        self._failure: StoreError | None = None
        # Spark makes the source for writing and for streams as well. There the sentence that says
        # so matters more than what is wrong with an option, so the failure waits for a reader.
        try:
            self._asked = parse_options(options)
            self._plan = pin_all(self._asked)
        except StoreError as error:
            self._failure = error

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return "rmqstore"

    def schema(self) -> StructType:
        """The columns asked for, or the default ones."""
        self._raise_failure()
        assert self._asked is not None
        if self._asked.table is not None:
            return table_schema(self._asked.table)
        return spark_schema(self._asked.columns, permissive=self._asked.mode == PERMISSIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what was pinned when the source was made."""
        self._raise_failure()
        assert self._asked is not None
        assert self._plan is not None
        if self._asked.table is not None:
            return TableReader(self._plan, self._asked.table, schema)
        return RmqStoreReader(self._plan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refused."""
        raise self._refusal("writing a DataFrame", "Replay into a store with jobs/replay.py")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader that refuses."""
        return _RefusedStream(
            self._refusal("reading as a stream", "Read it as a batch with spark.read")
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refused."""
        raise self._refusal("writing a stream", "Replay into a store with jobs/replay.py")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _refusal(self, what: str, advice: str) -> UnsupportedOperationError:
        path = self.options.get("path")
        return UnsupportedOperationError(
            path, reason=f"{what} is not supported by format 'rmqstore'", advice=advice
        )


class _RefusedStream(DataSourceStreamReader):
    """Refuses at the first question: an error while Spark makes the reader is hidden by another."""

    def __init__(self, refusal: UnsupportedOperationError) -> None:
        self.refusal = refusal

    def initialOffset(self) -> dict[str, str]:
        """Refused."""
        raise self.refusal

    def latestOffset(self, *args: Any, **named: Any) -> dict[str, str]:
        """Refused; releases of Spark differ in what they ask with."""
        raise self.refusal

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Refused."""
        raise self.refusal

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Refused."""
        raise self.refusal
