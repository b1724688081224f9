"""How jobs read: a store pinned, and frames over exactly what was pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from jobs.replaying.rows import range_options
from rmq_store.query.log_slices import QueueSlice
from spark_source.options.parse import parse_options
from spark_source.planning.query_plan import PinnedStore, ReadPlan
from spark_source.source import pin
from spark_source.spark_schema import spark_schema


def plan_of(store: str, options: Mapping[str, str]) -> ReadPlan:
    """What options of the source select of a store, as it is now. Raises StoreError."""
    return pin(parse_options({"path": store, **options}))


def pinned_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store with all its queues, the system's too, as it is now. Raises StoreError."""
    # A table is about the whole store; messages would pin what was selected alone.
    return plan_of(store, {**options, "table": "queues"}).store


def log_of_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store with its log alone: nothing is asked of its queues. Raises StoreError."""
    return plan_of(store, {**options, "source": "commitlog"}).store


def messages(
    spark: SparkSession,
    pinned: PinnedStore,
    ranges: Sequence[QueueSlice],
    columns: Sequence[str],
    **options: str,
) -> DataFrame:
    """The messages of `ranges`, which name each queue once; none of none."""
    if not ranges:
        return spark.createDataFrame([], spark_schema(columns))
    given = {
        **range_options(ranges),
        "columns": ",".join(columns),
        "brokerName": pinned.broker_name,
        **options,
    }
    if pinned.broker_conf is not None:
        given["brokerConf"] = pinned.broker_conf
    return spark.read.format("rmqstore").options(**given).load(pinned.path)
