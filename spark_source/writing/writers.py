"""`df.write` and `df.writeStream` of the format, as Spark calls them; streams from PySpark 4.1 on.

Spark creates a writer for the tasks of each micro-batch, and another one for its commit. What they share
comes with the messages of the tasks: the id of the write, and that of the query.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rmq_store.errors import InvalidMessageError, StoreError
from rmq_store.heap_settings import settle_worker
from spark_source.spark_types import plain_errors
from spark_source.writing.commit import StoreWrite, commit, is_write_needed
from spark_source.writing.rows_to_append import check_columns, staged_batches
from spark_source.writing.staging import Part
from spark_source.writing.target import StreamBatch, WriteOptions, parse_write_options

_NAMING = ("topic", "queueId", "keys", "uniqKey")
"""Columns that name a row in an error."""


@dataclass
class PreparedPart(WriterCommitMessage):
    """What a task has prepared; of a stream, the ids of write and query as the task knows them."""

    part: Part
    write_id: str = ""
    query: str = ""


class RmqStoreWriter(DataSourceArrowWriter):
    """Checks the target on the driver, prepares rows in the tasks, and commits on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises StoreError for what can be known before a task runs."""
        parsed = parse_write_options(options, stream=False)
        check_columns(schema, parsed)
        self.job = StoreWrite(uuid.uuid4().hex, parsed, overwrite)
        self.wanted = is_write_needed(self.job)
        if self.wanted:
            self.job.staging.begin()

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare the rows of one task."""
        if not self.wanted:
            return PreparedPart(Part(partition_id()))
        rows = prepared_rows(iterator, self.job.options)
        return PreparedPart(self.job.staging.write(partition_id(), rows))

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks have prepared."""
        if self.wanted:
            settle_worker()
            prepared = [message for message in messages if isinstance(message, PreparedPart)]
            commit(self.job, [message.part for message in prepared])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have prepared."""
        self.job.staging.remove()


def partition_id() -> int:
    """The number of the task's partition."""
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def prepared_rows(
    batches: Iterator[pa.RecordBatch], options: WriteOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, checked and in the form in which they are staged."""
    settle_worker()  # this process is a Spark worker that only writes
    before = 0
    for batch in batches:
        if batch.num_rows:
            try:
                yield from staged_batches(batch, options)
            except InvalidMessageError as error:
                raise _of_partition(error, batch, before, options) from None
        before += batch.num_rows


def _of_partition(
    error: InvalidMessageError, batch: pa.RecordBatch, before: int, options: WriteOptions
) -> InvalidMessageError:
    """The error with what its row can be found by in the DataFrame: batches are Spark's own."""
    if error.row is None:
        return error
    row = batch.slice(error.row, 1)
    values = {"topic": options.topic}
    values |= {name: row[name][0].as_py() for name in _NAMING if name in batch.schema.names}
    named = ", ".join(f"{name} {value!r}" for name, value in values.items() if value is not None)
    return InvalidMessageError(
        reason=f"row {before + error.row} of partition {partition_id()}, counted from 0"
        + (f" ({named})" if named else "")
        + f": {error.fault}",
        expected=error.expected,
        actual=error.actual,
        advice=(error.advice or "").replace("Nothing of the batch", "Nothing"),
    )


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
        check_columns(schema, self.options)
        self.token = uuid.uuid4().hex
        is_write_needed(self._job(self.token))

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
            write, batch = self._job(prepared[0].write_id), StreamBatch(prepared[0].query, batchId)
            commit(write, [message.part for message in prepared], batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks have prepared; what failed tasks leave, the next commit removes."""
        for write_id in {m.write_id for m in messages if isinstance(m, PreparedPart)}:
            self._job(write_id).staging.remove()
