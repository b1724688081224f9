"""The data source `rmqstore`: a broker's store as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

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
from spark_source.message_reader import RmqStoreReader
from spark_source.options.definitions import PERMISSIVE
from spark_source.options.parse import SourceOptions, parse_options
from spark_source.planning.query_plan import QueryPlan, pin_all
from spark_source.planning.query_plan import pin as pin
from spark_source.spark_types import spark_schema
from spark_source.table_reader import TableReader, table_schema


class UnsupportedOperationError(StoreError):
    """The source does not support an operation; the advice names an alternative."""

    code = "RMQSTORE_UNSUPPORTED_OPERATION"


_Error = TypeVar("_Error", bound=StoreError)


def _without_traceback(error: _Error) -> _Error:
    """The error, which Spark then shows without a traceback before it.

    PySpark's worker puts the traceback first, so the sentence that matters would be the last of
    many lines. It leaves the traceback out if it finds this variable. The worker is one that plans:
    it lives for this query alone, and Spark ends it after an error.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


class RmqStoreSource(DataSource):
    """The data source of `spark.read.format("rmqstore").load(path)`; `options.table` lists its
    options.

    The constructor reads the state of the store once. Spark pickles this object and creates a
    reader for each distinct filter, and two for a self-join. All readers see the state of this
    moment, even if a broker writes meanwhile.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: SourceOptions | None = None
        self._plan: QueryPlan | None = None
        self._failure: StoreError | None = None
        # Spark also creates the source for writes and for streams. Their error must say that they
        # are not supported, not what is wrong with an option, so the failure waits for a reader.
        try:
            self._asked = parse_options(options)
            self._plan = pin_all(self._asked)
        except StoreError as error:
            self._failure = error

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rmqstore"

    def schema(self) -> StructType:
        """The schema of the selected columns, or of the default ones."""
        self._raise_failure()
        assert self._asked is not None
        if self._asked.table is not None:
            return table_schema(self._asked.table)
        return spark_schema(self._asked.columns, permissive=self._asked.mode == PERMISSIVE)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the offsets pinned when the source was created."""
        self._raise_failure()
        assert self._asked is not None
        assert self._plan is not None
        if self._asked.table is not None:
            return TableReader(self._plan, self._asked.table, schema)
        return RmqStoreReader(self._plan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Always raises: the source does not write."""
        raise self._refusal("writing a DataFrame", "Replay into a store with jobs/replay.py")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader that raises when it is used."""
        return _RefusedStream(
            self._refusal("reading as a stream", "Read it as a batch with spark.read")
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Always raises: the source does not write streams."""
        raise self._refusal("writing a stream", "Replay into a store with jobs/replay.py")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise _without_traceback(self._failure)

    def _refusal(self, what: str, advice: str) -> UnsupportedOperationError:
        path = self.options.get("path")
        return _without_traceback(
            UnsupportedOperationError(
                path, reason=f"{what} is not supported by format 'rmqstore'", advice=advice
            )
        )


class _RefusedStream(DataSourceStreamReader):
    """A stream reader that raises at its first call. If the constructor raised, Spark would hide
    the error."""

    def __init__(self, refusal: UnsupportedOperationError) -> None:
        self.refusal = refusal

    def initialOffset(self) -> dict[str, str]:
        """Always raises."""
        raise _without_traceback(self.refusal)

    def latestOffset(self, *args: Any, **named: Any) -> dict[str, str]:
        """Always raises. The arguments differ between releases of Spark."""
        raise _without_traceback(self.refusal)

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Always raises."""
        raise _without_traceback(self.refusal)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Always raises."""
        raise _without_traceback(self.refusal)
