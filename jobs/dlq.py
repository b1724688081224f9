"""Dead letters: what died, why, of which group; and sent again to the topic they came from.

spark-submit jobs/dlq.py STORE --group billing
spark-submit jobs/dlq.py STORE --group billing --resend NEWSTORE
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs import replay
from jobs.replaying.rows import origin_topic_of_dead
from jobs.replaying.spec import DEFAULT_WAVE_BYTES, LIVE_WAVE_BYTES, ReplaySpec
from jobs.running.command import STORE_OPTIONS, Given, job, source_options, spec_from, top_option
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from jobs.running.result_tables import Answer
from jobs.running.spark_session import ship_jobs
from jobs.running.store_frames import messages, plan_of
from rmq_store.errors import InvalidArgumentError, nearest
from rmq_store.format.topics import DLQ_PREFIX
from spark_source.planning.query_plan import ReadPlan

DEFAULT_TOP = 100
_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "storeTimestamp",
    "bornTimestamp",
    "reconsumeTimes",
    "tags",
    "keys",
    "uniqKey",
    "storeSize",
    "properties",
)
# MessageConst: where a message that was sent back stood first.
_ORIGIN_ID = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")


@dataclass(frozen=True, slots=True)
class DlqSpec:
    """Which dead letters: of `groups`, of `origin_topics`, all by default; times as the source has.

    `resend`: the folder of a new store where they stand in their origin topics again. `to_broker`: a
    running broker's proxy to which they are sent, with `failed` for what it refuses.
    """

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    origin_topics: tuple[str, ...] = ()
    top: int = DEFAULT_TOP
    resend: str | None = None
    release: str | None = None
    to_broker: str | None = None
    failed: str | None = None
    checksums: bool = False

    @property
    def resent_to(self) -> str | None:
        """Where they are sent again, if they are."""
        return self.resend or self.to_broker


def run(
    spark: SparkSession, spec: DlqSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Tell, and send again if asked. Raises StoreError; for a group without dead letters too."""
    ship_jobs()
    began = time.monotonic()
    plan = _plan(spec)
    rows = _rows(spark, plan, spec).cache()
    try:
        groups = [row.asDict() for row in _by_group(rows).collect()]
        newest = rows.orderBy(F.desc("died"), "topic", "queueOffset").limit(spec.top)
        dead = [row.asDict() for row in newest.drop("topic").collect()]
    finally:
        rows.unpersist()
    resent = None if spec.resent_to is None else replay.run(spark, resend_spec(spec), should_stop)
    numbers: dict[str, Any] = {
        "dead letters": sum(row["messages"] for row in groups),
        "bytes": sum(row["bytes"] for row in groups),
    }
    if resent is not None:
        numbers |= {"sent again": sum(resent.written.values()), "to": spec.resent_to}
    sums = sums_of(spark, files_of_store(plan.store)) if spec.checksums else ()
    asked = {"groups": spec.groups, "origin_topics": spec.origin_topics, "resend": spec.resent_to}
    return Answer(
        job="dlq",
        ok=resent is None or resent.ok,
        tables={"of whom": groups, "the newest": dead},
        numbers=numbers,
        source=provenance_of(plan.store, plan.ranges, {**spec.options, **asked}, sums),
        seconds=round(time.monotonic() - began, 3),
        problems=() if resent is None else resent.problems,
        resumed=resent is not None and resent.resumed,
        stopped_by=None if resent is None else resent.stopped_by,
    )


def _plan(spec: DlqSpec) -> ReadPlan:
    """The queues of the dead-letter topics; a store without any has none."""
    every = plan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    topics = {part.queue.topic for part in every.ranges}
    groups = {t.removeprefix(DLQ_PREFIX) for t in topics if t.startswith(DLQ_PREFIX)}
    for group in spec.groups:
        if group not in groups:
            raise InvalidArgumentError(
                spec.store,
                reason=f"group {group!r} has no dead letters here",
                advice=nearest(group, groups),
            )
    wanted = {DLQ_PREFIX + group for group in spec.groups or groups}
    ranges = tuple(part for part in every.ranges if part.queue.topic in wanted)
    return ReadPlan(every.store, ranges, every.asked)


def _rows(spark: SparkSession, plan: ReadPlan, spec: DlqSpec) -> DataFrame:
    """A row for each dead letter. Why it died no broker writes down: how often it was tried it does."""
    properties = F.col("properties")
    rows = messages(spark, plan.store, plan.ranges, _COLUMNS).select(
        F.expr(f"substring(topic, {len(DLQ_PREFIX) + 1})").alias("consumerGroup"),
        origin_topic_of_dead().alias("originTopic"),
        F.coalesce(*(properties[name] for name in _ORIGIN_ID)).alias("originMsgId"),
        "uniqKey",
        "keys",
        "tags",
        "reconsumeTimes",
        _why(properties).alias("why"),
        F.col("bornTimestamp").alias("born"),
        F.col("storeTimestamp").alias("died"),
        "storeSize",
        "topic",
        "queueId",
        "queueOffset",
    )
    if spec.origin_topics:
        rows = rows.where(F.col("originTopic").isin(*spec.origin_topics))
    return rows


def _why(properties: Column) -> Column:
    times = F.col("reconsumeTimes")
    most = properties["MAX_RECONSUME_TIMES"]
    told = F.concat(F.lit("its consumer failed "), times.cast("string"), F.lit(" times"))
    with_limit = F.concat(told, F.lit(", of "), most, F.lit(" allowed"))
    by_hand = F.lit("sent there at the first attempt")
    return F.when(times <= 0, by_hand).when(most.isNotNull(), with_limit).otherwise(told)


def _by_group(rows: DataFrame) -> DataFrame:
    count = F.count(F.lit(1)).alias("messages")
    return (
        rows.groupBy("consumerGroup", "originTopic")
        .agg(
            count,
            F.sum("storeSize").alias("bytes"),
            F.min("died").alias("first"),
            F.max("died").alias("last"),
            F.max("reconsumeTimes").alias("most attempts"),
        )
        .orderBy(F.desc("messages"), "consumerGroup", "originTopic")
    )


def resend_spec(spec: DlqSpec) -> ReplaySpec:
    """The replay that puts these dead letters into their origin topics."""
    if spec.origin_topics:
        raise InvalidArgumentError(
            None,
            reason="dead letters are sent again by group, and not by origin topic",
            advice="Leave --origin-topic out",
        )
    with plan_of(spec.store, {**spec.options, "includeSystemTopics": "true"}).store.open() as store:
        groups = {t for t in store.topics() if t.startswith(DLQ_PREFIX)}
    return ReplaySpec(
        source=spec.store,
        to_store=spec.resend,
        topics=tuple(sorted(DLQ_PREFIX + g for g in spec.groups) or sorted(groups)),
        since=spec.options.get("startingTimestamp"),
        until=spec.options.get("endingTimestamp"),
        broker_name=spec.options.get("brokerName"),
        broker_conf=spec.options.get("brokerConf"),
        release=spec.release,
        to_broker=spec.to_broker,
        failed=spec.failed,
        wave_bytes=DEFAULT_WAVE_BYTES if spec.to_broker is None else LIVE_WAVE_BYTES,
        dead_to_origin=True,
    )


# --- the command ----------------------------------------------------------------------------------

_OPTIONS = (*STORE_OPTIONS, "startingTimestamp", "endingTimestamp")


@job("dlq", run)
@click.option("--group", "groups", multiple=True, help="Of this consumer group; repeatable.")
@click.option("--origin-topic", "origin_topics", multiple=True, help="That came from this topic.")
@top_option(DEFAULT_TOP, "So many of the newest dead letters.")
@click.option("--resend", metavar="DIR", help="A new store, with them in their origin topics.")
@click.option("--release", help="Write that as this release of the broker does (default: newest).")
@click.option("--to-broker", metavar="HOST:PORT", help="Or to the proxy of a running broker.")
@click.option("--failed", metavar="DIR", help="What that refuses, with the reason.")
@source_options(_OPTIONS)
def main(given: Given) -> DlqSpec:
    """Dead letters: what died, why, of which group, from which topic; and sent again."""
    return spec_from(DlqSpec, given, _OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
