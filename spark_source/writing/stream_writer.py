"""`df.writeStream.format("rmqstore")`, as Spark calls it, from PySpark 4.1 on.

Spark creates a writer for the tasks of each micro-batch, and another one for its commit. What they share
comes with the messages of the tasks: the id of the write, and that of the query.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_store.errors import StoreError
from rmq_store.heap_settings import settle_worker
from spark_source.spark_words import plain_errors
from spark_source.writing.commit import StoreWrite, check_target, commit
from spark_source.writing.rows_to_append import check_columns, check_types
from spark_source.writing.target import StreamBatch, parse_write_options
from spark_source.writing.writers import PreparedPart, partition_id, prepared_rows

_QUERY = "sql.streaming.queryId"  # StreamExecution.QUERY_ID_KEY; the id that the checkpoint keeps


class UnknownQueryError(StoreError):
    """Spark does not say which query a task of a stream belongs to."""

    code = "RMQSTORE_UNKNOWN_QUERY"


class RmqStoreStreamWriter(DataSourceStreamArrowWriter):
    """Prepares the rows of a micro-batch in the tasks, and commits each batch once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises StoreError for what can be known before a task runs. `overwrite`: output mode
        complete, where each batch replaces the store."""
        self.options = parse_write_options(options, stream=True)
        self.overwrite = overwrite
        check_columns(schema.fieldNames(), self.options)
        check_types(schema)
        self.token = uuid.uuid4().hex
        check_target(self._job(self.token))

    def _job(self, write_id: str) -> StoreWrite:
        return StoreWrite(write_id, self.options, self.overwrite)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare the rows of one task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        if query is None:
            raise UnknownQueryError(
                reason=f"the task has no property {_QUERY}",
                advice="Write with foreachBatch and df.write instead",
            )
        job = self._job(f"{query}-{self.token}")
        rows = prepared_rows(iterator, self.options)
        part = job.staging.write(partition_id(), rows, begin=True)
        return PreparedPart(part, job.write_id, query)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write what all tasks have prepared, unless the journal lists the batch."""
        prepared = [message for message in messages if isinstance(message, PreparedPart)]
        if prepared:
            settle_worker()
            query = prepared[0].query
            assert query is not None
            parts = [message.part for message in prepared]
            commit(self._job(prepared[0].write_id), parts, StreamBatch(query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks have prepared; what failed tasks leave, the next commit removes."""
        for write_id in {m.write_id for m in messages if isinstance(m, PreparedPart)}:
            self._job(write_id).staging.remove()
