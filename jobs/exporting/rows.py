"""The rows of a wave of an export, in the order and with the columns of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.running.job_command import RANGES
from jobs.running.store_frames import range_options
from rmq_store.arrow.message_columns import DEFAULT_NAMES
from rmq_store.format.queues import QueueSlice
from spark_source.options.definitions import PERMISSIVE
from spark_source.planning.query_plan import ReadPlan
from spark_source.spark_types import CORRUPT

TOPIC, DAY = "topic", "day"
_NEEDED = ("topic", "storeTimestamp", "commitLogOffset")
_DAY_MS = 86_400_000


def rows_of(
    spark: SparkSession, plan: ReadPlan, options: Mapping[str, str], pieces: Sequence[QueueSlice]
) -> DataFrame:
    """The messages of `pieces`, in log order within topic and day. The day is in UTC.

    In mode PERMISSIVE there are rows about damage too, described by `corruptRecord`.
    """
    names = _names(plan, *((CORRUPT,) if plan.asked.mode == PERMISSIVE else ()))
    rows = _read(spark, plan, options, pieces, names)
    day = F.floor(F.unix_millis("storeTimestamp") / F.lit(_DAY_MS)).cast("int")
    rows = rows.withColumn(DAY, F.date_from_unix_date(day))
    return rows.sortWithinPartitions(TOPIC, DAY, "commitLogOffset", *_queue_order(names))


def damage_in(
    spark: SparkSession, plan: ReadPlan, options: Mapping[str, str], pieces: Sequence[QueueSlice]
) -> int:
    """The number of damaged messages in `pieces`, by a read that returns a row for each."""
    permissive = {**options, "mode": PERMISSIVE}
    rows = _read(spark, plan, permissive, pieces, _names(plan, CORRUPT))
    return rows.where(F.col(CORRUPT).isNotNull()).count()


def _names(plan: ReadPlan, *more: str) -> tuple[str, ...]:
    names = plan.asked.columns or DEFAULT_NAMES
    return (*names, *(name for name in (*_NEEDED, *more) if name not in names))


def _read(
    spark: SparkSession,
    plan: ReadPlan,
    options: Mapping[str, str],
    pieces: Sequence[QueueSlice],
    names: Sequence[str],
) -> DataFrame:
    kept = {name: value for name, value in options.items() if name not in RANGES}
    given = {**kept, "columns": ",".join(names), "brokerName": plan.store.broker_name}
    if plan.store.broker_conf is not None:
        given["brokerConf"] = plan.store.broker_conf
    read = spark.read.format("rmqstore").options(**given)
    parts = [read.options(**range_options(one)).load(plan.store.path) for one in once(pieces)]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionAll(part)
    return rows


def once(pieces: Sequence[QueueSlice]) -> list[list[QueueSlice]]:
    """The ranges split into lists that have each queue once, because the source's options allow
    only one range per queue."""
    lists: list[list[QueueSlice]] = []
    turn: dict[Any, int] = {}
    for piece in pieces:
        number = turn.get(piece.queue, 0)
        turn[piece.queue] = number + 1
        if number == len(lists):
            lists.append([])
        lists[number].append(piece)
    return lists


def _queue_order(names: Sequence[str]) -> list[str]:
    """The column that orders the members of one record, if it is selected."""
    return [name for name in ("queueId", "queueOffset") if name in names]
