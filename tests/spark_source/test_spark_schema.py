"""The core's columns as Spark sees them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType, TimestampType

from rmq_store.arrow.column_definitions import COLUMNS, TIMESTAMP, arrow_schema
from rmq_store.errors import InvalidArgumentError
from spark_source.spark_types import (
    MAX_MILLIS,
    SPARK_TIMESTAMP,
    arrow_schema_for,
    batch_for_spark,
    checked_columns,
    spark_schema,
)


def test_every_column_has_its_place_type_and_nullability() -> None:
    names = [column.name for column in COLUMNS]
    schema = spark_schema(names)
    assert schema.fieldNames() == names
    assert [field.nullable for field in schema] == [column.nullable for column in COLUMNS]
    assert checked_columns(schema) == tuple(names)


def test_the_default_columns_leave_out_those_on_request() -> None:
    assert spark_schema().fieldNames() == [c.name for c in COLUMNS if not c.on_request]


def test_the_arrow_schema_differs_from_the_cores_in_timestamps_only() -> None:
    ours = arrow_schema_for(spark_schema())
    for mine, core in zip(ours, arrow_schema(), strict=True):
        wanted = SPARK_TIMESTAMP if core.type == TIMESTAMP else core.type
        assert mine == pa.field(core.name, wanted, core.nullable)


def test_a_users_schema_may_reorder_and_leave_out() -> None:
    schema = StructType(
        [StructField("body", spark_schema()["body"].dataType), spark_schema()["topic"]]
    )
    assert checked_columns(schema) == ("body", "topic")
    assert arrow_schema_for(schema).field("body").nullable


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("topik", StringType()), "Did you mean 'topic'"),
        (StructField("topic", LongType()), "expected string, found bigint"),
        (StructField("bornTimestamp", LongType()), "expected timestamp, found bigint"),
        (
            StructField("properties", MapType(StringType(), LongType())),
            "expected map<string,string>",
        ),
        (StructField("tags", StringType(), nullable=False), "can be null"),
    ],
)
def test_a_users_schema_that_cannot_be_is_refused(field: StructField, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        checked_columns(StructType([field]))
    assert message in str(refused.value)


def test_milliseconds_become_microseconds_and_the_absurd_ones_the_last_that_can_be() -> None:
    columns = ["bornTimestamp"]
    schema = arrow_schema_for(StructType([StructField("bornTimestamp", TimestampType(), False)]))
    for given, expected in [
        ([1, -1], [1000, -1000]),
        ([2**63 - 1, -(2**63), 7], [MAX_MILLIS * 1000, -MAX_MILLIS * 1000, 7000]),
    ]:
        batch = pa.RecordBatch.from_arrays(
            [pa.array(given, pa.int64()).cast(TIMESTAMP)], schema=arrow_schema(columns)
        )
        found = batch_for_spark(batch, schema)
        assert found.schema.equals(schema)
        assert found.column(0).cast(pa.int64()).to_pylist() == expected
