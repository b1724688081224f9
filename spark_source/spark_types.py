"""Convert what the core gives to what Spark takes: schema, batches, and errors in Spark's words.

Spark's timestamps are in microseconds. Spark compares the schema of the first batch with that of
the DataFrame, field by field, including nullability.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_store.arrow.column_definitions import BY_NAME, PROPERTIES, TIMESTAMP, column_names
from rmq_store.errors import InvalidArgumentError, StoreError, speak_as
from rmq_store.files.parallel import made_ahead
from rmq_store.heap_settings import settle_worker
from rmq_store.reading.query import CORRUPT
from rmq_store.scan.tasks import TO_PASS_DAMAGE, Task

SPARK_TIMESTAMP = pa.timestamp("us", tz="UTC")
MAX_MILLIS = (2**63 - 1) // 1000
"""The last millisecond that Spark's microseconds can hold, in the year 294247."""

_SENT_WHOLE = 512 << 10  # bytes: a batch that stays in the cache of a core
_SLICE_BYTES = 2 << 20
_LEAST_ROWS, _MOST_ROWS = 128, 4096  # of a slice: each has a fixed cost

SPARK_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.bool_(): BooleanType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.binary(): BinaryType(),
    TIMESTAMP: TimestampType(),
    pa.list_(pa.string()): ArrayType(StringType(), containsNull=True),
    PROPERTIES: MapType(StringType(), StringType(), valueContainsNull=True),
}
"""Those of the columns of messages and tables."""


def partitions_of(tasks: Sequence[Task]) -> Sequence[InputPartition]:
    """A partition for each task; without tasks, one that reads nothing. If a source plans no partition,
    PySpark before 4.2 calls `read` with None."""
    return [InputPartition(task) for task in tasks or [()]]


def struct_field(field: pa.Field, meaning: str, *, nullable: bool = False) -> StructField:
    """The field of a Spark schema for a column of the core. Its comment is the column's meaning.

    `nullable`: the field can be null even if every message has a value.
    """
    kind = SPARK_TYPES[field.type]
    return StructField(field.name, kind, field.nullable or nullable, {"comment": meaning})


def spark_schema(columns: Sequence[str] | None = None, *, permissive: bool = False) -> StructType:
    """The Spark schema of `columns`, or of the default ones.

    `permissive`: the rows include rows about damage. Every column can be null, and `corruptRecord`
    is a default column.
    """
    names = column_names(columns)
    if permissive and columns is None:
        names = (*names, CORRUPT)
    columns_of_core = (BY_NAME[name] for name in names)
    return StructType(
        [
            struct_field(column.field, column.meaning, nullable=permissive)
            for column in columns_of_core
        ]
    )


def checked_columns(schema: StructType, *, all_nullable: bool = False) -> tuple[str, ...]:
    """The column names of a schema that a user gave with `.schema(...)`, in its order.

    `all_nullable`: the rows include rows about damage, so any column can be null.

    Raises InvalidArgumentError for an unknown name, a wrong type, and a field declared as not null
    for a column that can be null.
    """
    names = column_names(schema.fieldNames())
    for field in schema.fields:
        column = BY_NAME[field.name]
        own = SPARK_TYPES[column.type]
        if field.dataType.simpleString() != own.simpleString():
            raise InvalidArgumentError(
                reason=f"column {field.name!r} has another type",
                expected=own.simpleString(),
                actual=field.dataType.simpleString(),
                advice="Read it with its own type and cast it in the query",
            )
        if (column.nullable or all_nullable) and not field.nullable:
            raise InvalidArgumentError(
                reason=f"column {field.name!r} can be null, but the schema says it cannot",
                advice=f"Declare {field.name!r} as nullable",
            )
    return names


def arrow_schema_for(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark derives from `schema`. Its columns must be checked before."""
    return pa.schema([pa.field(f.name, _arrow_type(f), f.nullable) for f in schema.fields])


def _arrow_type(field: StructField) -> pa.DataType:
    own, type_in_spark = BY_NAME[field.name].type, field.dataType
    if own == TIMESTAMP:
        return SPARK_TIMESTAMP
    if isinstance(type_in_spark, MapType):
        return pa.map_(pa.string(), pa.field("value", pa.string(), type_in_spark.valueContainsNull))
    return own


def batch_for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the core in the form of `arrow_schema_for`. Bodies are not copied."""
    arrays = [
        microseconds(array) if array.type == TIMESTAMP else array.cast(field.type)
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def batches_for_spark(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, ahead: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Batches of the core in the form of `arrow_schema_for`.

    `ahead`: each look at the store is a request, so a thread waits for the next one while Spark takes
    one. With local files a second thread gains no time and takes processor time.
    """
    converted = (batch_for_spark(batch, schema) for batch in batches)
    with closing(made_ahead(converted) if ahead else converted) as ready:
        for batch in ready:
            yield from _slices(batch)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch as it is, or in slices of which Spark converts most while a core's cache has them.

    A large batch costs less to read than many small ones, and more to take: between its last byte
    and its first use it has left the cache. Here a slice copies no bytes.
    """
    if batch.nbytes <= _SENT_WHOLE:
        yield batch
        return
    of_size = _SLICE_BYTES * batch.num_rows // batch.nbytes
    rows = max(_LEAST_ROWS, min(of_size, _MOST_ROWS))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def microseconds(millis: pa.Array) -> pa.Array:
    """Milliseconds as microseconds. A time out of their range becomes the last one in it.

    A producer's clock can have any value, and one such message must not make a store unreadable.
    """
    try:
        return millis.cast(SPARK_TIMESTAMP)
    except pa.ArrowInvalid:
        number = millis.cast(pa.int64())
        low, high = pa.scalar(-MAX_MILLIS, pa.int64()), pa.scalar(MAX_MILLIS, pa.int64())
        held = pc.min_element_wise(pc.max_element_wise(number, low), high)
        return held.cast(TIMESTAMP).cast(SPARK_TIMESTAMP)


def without_traceback(error: StoreError) -> StoreError:
    """The error, which Spark then shows without a traceback before it.

    PySpark's worker puts the traceback first, so the sentence that matters would be the last of
    many lines. It leaves the traceback out if it finds this variable. A worker ends after an error,
    so no other code is meant by it.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return error.with_traceback(None)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise our errors `without_traceback`."""
    try:
        yield
    except StoreError as error:
        raise without_traceback(error) from None


def in_spark_words(text: str) -> str:
    """An advice, with options of the source in place of arguments of the library."""
    return text.replace("Read with on_damage to skip it", TO_PASS_DAMAGE)


def settle_reading_worker() -> None:
    """Settle a worker of Spark that only reads: its memory, and the words of its errors."""
    settle_worker()
    if TaskContext.get() is not None:  # not a program that reads in its own process
        speak_as(in_spark_words)
