"""Loads of golden stores through Spark itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.support.golden import GoldenStore


def load(spark: SparkSession, store: GoldenStore | str, **options: str) -> DataFrame:
    path = store if isinstance(store, str) else store.path
    return spark.read.format("rmqstore").options(**options).load(path)


def streamed(
    spark: SparkSession, options: Mapping[str, str], checkpoint: Path, name: str
) -> list[Row]:
    """What a stream from the start on gives now, in a table of that name."""
    stream = spark.readStream.format("rmqstore").options(**options, startingOffsets="earliest")
    writer = stream.load().writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    return spark.table(name).collect()


def refusal(action: Callable[[], object]) -> str:
    """What Spark says of an error of ours."""
    with pytest.raises(PySparkException) as refused:
        action()
    return str(refused.value)
