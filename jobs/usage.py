"""Who fills the disk: bytes and messages by topic, queue and day, the largest messages, the growth.

spark-submit jobs/usage.py STORE --top 20
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.running.command import RANGES, Given, job, source_options, spec_from, top_option
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from jobs.running.result_tables import Answer, Row
from jobs.running.spark_session import ship_jobs
from jobs.running.store_frames import messages, plan_of
from spark_source.planning.query_plan import PinnedStore, ReadPlan

DEFAULT_TOP = 20
_GROWTH_DAYS = 7
_LARGEST = ("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize")


@dataclass(frozen=True, slots=True)
class UsageSpec:
    """Which messages; `top`: how many queues and single messages are told."""

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    top: int = DEFAULT_TOP
    checksums: bool = False


def run(
    spark: SparkSession, spec: UsageSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Add up. Raises StoreError where the store or what is selected cannot be read."""
    ship_jobs()
    began = time.monotonic()
    options = {"includeSystemTopics": "true", **spec.options}
    plan = plan_of(spec.store, options)
    rows = _usage(spark, spec.store, options).cache()
    try:
        tables = {
            "by topic": _by(rows, "topic").collect(),
            "by queue": _by(rows, "topic", "queueId").limit(spec.top).collect(),
            "by day": _by(rows, "day").orderBy("day").collect(),
        }
    finally:
        rows.unpersist()
    snapshot = plan.store.snapshot
    log = snapshot.log_end - snapshot.log_start
    told = {title: [_with_share(row.asDict(), log) for row in its] for title, its in tables.items()}
    told["by day"] = with_change(told["by day"])
    told["largest messages"] = _largest(spark, plan, spec.top)
    listed = sum(row["bytes"] for row in told["by topic"])
    sums = sums_of(spark, files_of_store(plan.store)) if spec.checksums else ()
    return Answer(
        job="usage",
        ok=True,
        tables=told,
        numbers={
            "messages": sum(row["messages"] for row in told["by topic"]),
            "bytes of messages": listed,
            "bytes of the log": log,
            "bytes on the disk": _on_disk(plan.store),
            **_growth(told["by day"]),
        },
        source=provenance_of(plan.store, plan.ranges, dict(spec.options), sums),
        seconds=round(time.monotonic() - began, 3),
    )


def _usage(spark: SparkSession, store: str, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("rmqstore").options(**options).option("table", "usage").load(store)


def _by(rows: DataFrame, *names: str) -> DataFrame:
    total = F.sum("bytes").alias("bytes")
    count = F.sum("messages").alias("messages")
    return rows.groupBy(*names).agg(count, total).orderBy(F.desc("bytes"), *names)


def _with_share(row: Mapping[str, Any], log: int) -> dict[str, Any]:
    return {**row, "share of the log": round(row["bytes"] / log, 4) if log else 0.0}


def with_change(days: Sequence[Row]) -> list[dict[str, Any]]:
    """Days in order, each with how many bytes more (or fewer) it has than the one before."""
    before: int | None = None
    found = []
    for day in days:
        found.append({**day, "change": None if before is None else day["bytes"] - before})
        before = day["bytes"]
    return found


def _growth(days: Sequence[Row]) -> dict[str, Any]:
    """The mean of the last whole days; the last one is still going on."""
    whole = [day["bytes"] for day in days if day["day"] is not None][:-1][-_GROWTH_DAYS:]
    if not whole:
        return {}
    return {f"bytes a day, mean of {len(whole)}": sum(whole) // len(whole)}


def _largest(spark: SparkSession, plan: ReadPlan, top: int) -> list[dict[str, Any]]:
    """By the queues alone: the log is not opened."""
    rows = messages(spark, plan.store, plan.ranges, _LARGEST, unwrapBatches="false")
    order = (F.desc("storeSize"), "commitLogOffset", "topic")
    return [row.asDict() for row in rows.orderBy(*order).limit(top).collect()]


def _on_disk(pinned: PinnedStore) -> int:
    from rmq_store.tables import TABLES

    with pinned.open() as store:
        return int(sum(TABLES["files"].of(store)["allocated"].to_pylist()))


# --- the command ----------------------------------------------------------------------------------


@job("usage", run, stoppable=False)
@top_option(DEFAULT_TOP, "So many queues, and so many of the largest messages.")
@source_options(RANGES)
def main(given: Given) -> UsageSpec:
    """Who fills the disk: topics, queues, days, the largest messages, and how it grows."""
    return spec_from(UsageSpec, given, RANGES)


if __name__ == "__main__":
    sys.exit(main())
