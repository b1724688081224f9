"""A stream reader that reports what is wrong with a stream."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from rmq_store.errors import StoreError
from spark_source.hidden_traceback import without_traceback


class FailingStream(DataSourceStreamReader):
    """Raises at its first call. If a constructor raised, Spark would hide the error."""

    def __init__(self, failure: StoreError) -> None:
        self.failure = failure

    def _fail(self, *args: Any, **named: Any) -> Any:
        """Always raises. The arguments differ between releases of Spark."""
        raise without_traceback(self.failure)

    initialOffset = latestOffset = partitions = read = _fail
