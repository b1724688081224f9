"""Loads of golden stores through Spark itself."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.support.golden import GoldenStore


def load(spark: SparkSession, store: GoldenStore | str, **options: str) -> DataFrame:
    path = store if isinstance(store, str) else store.path
    return spark.read.format("rmqstore").options(**options).load(path)
