"""A stream reader that reports what is wrong with a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from rmq_store.errors import StoreError
from spark_source.hidden_traceback import without_traceback


class FailingStream(DataSourceStreamReader):
    """Raises at its first call. If a constructor raised, Spark would hide the error."""

    def __init__(self, failure: StoreError) -> None:
        self.failure = failure

    def initialOffset(self) -> dict[str, Any]:
        """Always raises."""
        raise without_traceback(self.failure)

    def latestOffset(self, *args: Any, **named: Any) -> dict[str, Any]:
        """Always raises. The arguments differ between releases of Spark."""
        raise without_traceback(self.failure)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Always raises."""
        raise without_traceback(self.failure)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Always raises."""
        raise without_traceback(self.failure)
