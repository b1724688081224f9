"""One message's life by key or id: across topic, retry, dead letters, delay, timer, transaction.

What the index does not cover executors look for in the log.

    spark-submit jobs/trace.py STORE ORDER_4711
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click
from pyspark.sql import SparkSession

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.answer import Answer
from jobs.command import STORE_OPTIONS, Given, job, ship_jobs, source_options, spec_from
from jobs.provenance import files_of_store, provenance_of, sums_of
from jobs.reading import messages, plan_of
from rmq_store.message import Message
from rmq_store.store import MessageStore
from rmq_store.topics import LMQ_PREFIX
from rmq_store.trace import lives_of, once, sent_to
from spark_source.plan import ReadPlan


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """`key`: a word of KEYS, a UNIQ_KEY or an offsetMsgId. `topic`: that a message was sent to."""

    store: str
    key: str
    options: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    checksums: bool = False


def run(
    spark: SparkSession, spec: TraceSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """The lives of all messages with the key; none is not well, nor are damaged records. Raises
    StoreError, also for damage that executors meet on their way."""
    ship_jobs()
    began = time.monotonic()
    plan = plan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    with plan.store.open() as store:
        found = _records(spark, plan, store, spec.key)
        asked = {m.uniq_key or m.msg_id for m in found if sent_to(m, spec.topic)}
        lives = lives_of(store, (m for m in found if (m.uniq_key or m.msg_id) in asked))
    table = [
        {
            "message": life.uniqKey or life.steps[0].msgId,
            "stored": datetime.fromtimestamp(step.storeTimestamp / 1000, timezone.utc),
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
    damage = once(*(error for life in lives for error in life.damage))
    problems = [f"left out: {error}" for error in damage]
    if not lives:
        problems.append(f"no message has the key {spec.key!r}")
    sums = sums_of(spark, files_of_store(plan.store)) if spec.checksums else ()
    options = {**spec.options, "key": spec.key, "topic": spec.topic}
    return Answer(
        job="trace",
        ok=not problems,
        tables={"what became of it": outcomes, "step by step": table},
        numbers={"messages": len(lives), "records": len(table)},
        source=provenance_of(plan.store, (), options, sums),
        seconds=round(time.monotonic() - began, 3),
        problems=tuple(problems),
    )


def _records(
    spark: SparkSession, plan: ReadPlan, store: MessageStore, key: str
) -> Iterable[Message]:
    """Every record of every message that the key names; the UNIQ_KEY leads to those of one message."""
    named = _with_key(spark, plan, store, [key])
    by_id = store.message_by_offset_id(key)
    if by_id is not None:
        named[by_id.commit_log_offset] = by_id
    unique = sorted({m.uniq_key for m in named.values() if m.uniq_key} - {key})
    again = _with_key(spark, plan, store, unique) if unique else {}
    of_same = {at: m for at, m in again.items() if m.uniq_key in unique}
    return {**named, **of_same}.values()


def _with_key(
    spark: SparkSession, plan: ReadPlan, store: MessageStore, keys: Sequence[str]
) -> dict[int, Message]:
    # A light queue lists records of other topics, which come with these.
    ranges = [part for part in plan.ranges if not part.queue.topic.startswith(LMQ_PREFIX)]
    words = " || ".join(keys)
    rows = messages(spark, plan.store, ranges, ("commitLogOffset",), keys=words)
    places = {row.commitLogOffset for row in rows.distinct().collect()}
    return {at: store.message_at(at) for at in sorted(places)}


# --- the command ----------------------------------------------------------------------------------


@job("trace", run, stoppable=False)
@click.argument("key")
@click.option("--topic", help="Only messages that were sent to this topic.")
@source_options(STORE_OPTIONS)
def main(given: Given) -> TraceSpec:
    """The life of the messages with a KEY: a word of KEYS, a UNIQ_KEY or an offsetMsgId."""
    return spec_from(TraceSpec, given, STORE_OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
