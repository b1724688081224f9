"""`df.write.format("rmqstore")`, as Spark calls it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_store.errors import InvalidMessageError
from rmq_store.heap_settings import settle_worker
from spark_source.spark_words import plain_errors
from spark_source.writing.commit import StoreWrite, check_target, commit
from spark_source.writing.rows_to_append import check_columns, check_types, staged_batches
from spark_source.writing.staging import Part
from spark_source.writing.target import WriteOptions, parse_write_options

_NAMING = ("topic", "queueId", "keys", "uniqKey")
"""Columns that name a row in an error."""


@dataclass
class PreparedPart(WriterCommitMessage):
    """What a task has prepared. `write_id`, and of a stream the query, as the tasks know them."""

    part: Part
    write_id: str
    query: str | None = None


class RmqStoreWriter(DataSourceArrowWriter):
    """Checks the target on the driver, prepares rows in the tasks, and commits on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises StoreError for what can be known before a task runs."""
        parsed = parse_write_options(options, stream=False)
        check_columns(schema.fieldNames(), parsed)
        check_types(schema)
        self.job = StoreWrite(uuid.uuid4().hex, parsed, overwrite)
        self.wanted = check_target(self.job)
        if self.wanted:
            self.job.staging.begin()

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Prepare the rows of one task."""
        partition = partition_id()
        if not self.wanted:
            return PreparedPart(Part(partition), self.job.write_id)
        rows = prepared_rows(iterator, self.job.options)
        return PreparedPart(self.job.staging.write(partition, rows), self.job.write_id)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write what all tasks have prepared."""
        if self.wanted:
            settle_worker()
            commit(
                self.job,
                [message.part for message in messages if isinstance(message, PreparedPart)],
            )

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
