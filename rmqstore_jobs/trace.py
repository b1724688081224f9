"""Report a message's history by key or id: topic, retry, dead letters, delay, timer, transaction.

Executors search the parts of the log that the index does not cover.

    spark-submit jobs/trace.py STORE ORDER_4711
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from rmq_store.questions.trace import trace as lives_with
from rmq_store.search.message_history import once
from rmq_store.search.queue_selection import require_topic
from rmq_store.text.progress import Progress
from rmq_store.text.times import as_datetime
from rmqstore_jobs.running.job_command import STORE_OPTIONS, Given, job, spec_from
from rmqstore_jobs.running.provenance import provenance_of
from rmqstore_jobs.running.result_tables import Answer
from rmqstore_jobs.running.source_options import source_options
from rmqstore_jobs.running.spark_engine import engine_of
from rmqstore_jobs.running.store_selection import pinned_store, plan_of
from spark_source.options.secret import HidesSecrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TraceSpec(HidesSecrets):
    """`key`: a word of KEYS, a UNIQ_KEY or an offsetMsgId. `topic`: only messages sent to it."""

    store: str
    key: str
    options: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    checksums: bool = False


def run(
    spark: SparkSession | None, spec: TraceSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Report the histories of all messages with the key. No message, or damaged records, is a
    problem.

    Raises StoreError, also if the key leads only to damage.
    """
    began = time.monotonic()
    plan = plan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    with plan.store.open() as store, Progress("trace") as progress:
        lives = lives_with(
            store,
            spec.key,
            spec.topic,
            source=plan.store,
            engine=engine_of(spark),
            progress=progress,
        )
    table = [
        {
            "message": life.uniqKey or life.steps[0].msgId,
            "stored": as_datetime(step.storeTimestamp),
            **{k: v for k, v in asdict(step).items() if k not in ("uniqKey", "storeTimestamp")},
        }
        for life in lives
        for step in life.steps
    ]
    outcomes = [
        {
            "message": life.uniqKey or life.steps[0].msgId,
            "outcome": life.outcome,
            "transaction": life.transaction,
            "records": len(life.steps),
        }
        for life in lives
    ]
    hidden = once(*(error for life in lives for error in life.damage))
    problems = [f"left out: {error}" for error in hidden]
    if not lives:
        problems.append(f"no message has the key {spec.key!r}")
    options = {**spec.options, "key": spec.key, "topic": spec.topic}
    return Answer(
        job="trace",
        ok=not problems,
        tables={"what became of it": outcomes, "step by step": table},
        numbers={"messages": len(lives), "records": len(table)},
        source=provenance_of(spark, plan.store, (), options, checksums=spec.checksums),
        seconds=round(time.monotonic() - began, 3),
        problems=tuple(problems),
    )


def look(spec: TraceSpec) -> None:
    """Raise StoreError for a store or topic that is not there."""
    with pinned_store(spec.store, spec.options).open() as store:
        if spec.topic is not None:
            require_topic(store, spec.topic)


# --- the command ----------------------------------------------------------------------------------


@job("trace", run, look=look, stoppable=False)
@click.argument("key")
@click.option("--topic", help="Only messages that were sent to this topic.")
@source_options(STORE_OPTIONS)
def main(given: Given) -> TraceSpec:
    """Report the history of the messages with a KEY: a word of KEYS, a UNIQ_KEY or an
    offsetMsgId."""
    return spec_from(TraceSpec, given, STORE_OPTIONS)
