"""One message's life by key or id: across topic, retry, dead letters, delay, timer, transaction.

What the index does not cover executors look for in the log.

    spark-submit jobs/trace.py STORE ORDER_4711
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.running.command import STORE_OPTIONS, Given, job, source_options, spec_from
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from jobs.running.result_tables import Answer
from jobs.running.spark_session import ship_jobs
from jobs.running.store_frames import messages, plan_of
from rmq_store.errors import CorruptRecordError, MissingFileError
from rmq_store.format.message import Message
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.query.trace import AS_FAR_AS_READ, lives_of, once, sent_to
from rmq_store.store import MessageStore
from spark_source.options.table import FAILFAST, PERMISSIVE
from spark_source.planning.query_plan import ReadPlan
from spark_source.spark_schema import CORRUPT


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
    """The lives of all messages with the key; none is not well, nor are damaged records.

    Raises StoreError, for damage where it is all that the key leads to.
    """
    ship_jobs()
    began = time.monotonic()
    plan = plan_of(spec.store, {**spec.options, "includeSystemTopics": "true"})
    with plan.store.open() as store:
        look = _Look(spark, plan, store)
        found = look.records(spec.key)
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
            "outcome": life.outcome + (AS_FAR_AS_READ if look.damage and not life.damage else ""),
            "transaction": life.transaction,
            "records": len(life.steps),
        }
        for life in lives
    ]
    hidden = once(*(error for life in lives for error in life.damage))
    damage = dict.fromkeys((*look.damage, *map(str, hidden)))
    problems = [f"left out: {told}" for told in damage]
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


class _Look:
    """The look for records; `damage` says what it led to and cannot be read."""

    def __init__(self, spark: SparkSession, plan: ReadPlan, store: MessageStore) -> None:
        self._spark = spark
        self._store = plan.store
        self._opened = store
        # A light queue lists records of other topics, which come with these.
        self._ranges = [p for p in plan.ranges if not p.queue.topic.startswith(LMQ_PREFIX)]
        self.damage: list[str] = []

    def records(self, key: str) -> Collection[Message]:
        """Every record of every message that the key names; the UNIQ_KEY leads to those of one
        message. Raises StoreError for damage where nothing is found."""
        named = self._with_key([key])
        try:
            by_id = self._opened.lookup.by_offset_id(key)
        except (CorruptRecordError, MissingFileError) as error:
            if not named:
                raise
            self.damage.append(str(error))
            by_id = None
        if by_id is not None:
            named[by_id.commit_log_offset] = by_id
        if self.damage and not named:
            self._with_key([key], mode=FAILFAST)  # raises
        unique = sorted({m.uniq_key for m in named.values() if m.uniq_key} - {key})
        again = self._with_key(unique) if unique else {}
        of_same = {at: m for at, m in again.items() if m.uniq_key in unique}
        return {**named, **of_same}.values()

    def _with_key(self, keys: Sequence[str], mode: str = PERMISSIVE) -> dict[int, Message]:
        columns = ("commitLogOffset", CORRUPT)
        words = " || ".join(keys)
        rows = messages(self._spark, self._store, self._ranges, columns, keys=words, mode=mode)
        places = set()
        for row in rows.mapInArrow(_few_damaged, rows.schema).distinct().collect():
            if row.corruptRecord is None:
                places.add(row.commitLogOffset)
            elif row.corruptRecord not in self.damage:
                self.damage.append(row.corruptRecord)
        found: dict[int, Message] = {}
        for at in sorted(places):
            try:
                found[at] = self._opened.message_at(at)
            except (CorruptRecordError, MissingFileError) as error:  # a body that was not asked for
                if mode == FAILFAST:
                    raise
                if str(error) not in self.damage:
                    self.damage.append(str(error))
        return found


def _few_damaged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All messages and the first damaged ones: where a file is gone these are a million."""
    left = _MOST_DAMAGED
    for batch in batches:
        damaged = batch.column(1).is_valid().to_numpy(zero_copy_only=False)
        kept = batch.filter(pa.array(~damaged | (np.cumsum(damaged) <= left)))
        left -= min(left, int(damaged.sum()))
        yield kept


_MOST_DAMAGED = 100  # of a partition


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
