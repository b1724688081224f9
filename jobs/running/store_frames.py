"""How jobs read: a store pinned, and frames over exactly what was pinned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from rmq_store.format.queues import QueueId, QueueSlice
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


def range_options(ranges: Sequence[QueueSlice]) -> dict[str, str]:
    """The options that select `ranges`, of which there is at least one and one a queue."""
    return {
        "assign": assign_json(part.queue for part in ranges),
        "startingOffsets": offsets_json({part.queue: part.start for part in ranges}),
        "endingOffsets": offsets_json({part.queue: part.stop for part in ranges}),
    }


def assign_json(queues: Iterable[QueueId]) -> str:
    by_topic: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        by_topic.setdefault(topic, []).append(queue_id)
    return json.dumps(by_topic)


def offsets_json(offsets: Mapping[QueueId, int]) -> str:
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in offsets.items():
        by_topic.setdefault(topic, {})[str(queue_id)] = offset
    return json.dumps(by_topic)
