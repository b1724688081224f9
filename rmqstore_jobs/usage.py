"""Report what fills the disk: bytes and messages by topic, queue and day, the largest messages, the
growth.

spark-submit jobs/usage.py STORE --top 20
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rmq_store.questions.answer_by_shares import ask
from rmq_store.questions.usage import UsageAnswer, UsageQuestion
from rmq_store.text.progress import Progress
from rmqstore_jobs.running.job_command import RANGES, Given, job, spec_from, top_option
from rmqstore_jobs.running.provenance import provenance_of
from rmqstore_jobs.running.result_tables import Answer, Row
from rmqstore_jobs.running.source_options import source_options
from rmqstore_jobs.running.spark_engine import engine_of
from rmqstore_jobs.running.store_selection import plan_of
from spark_source.options.secret import HidesSecrets
from spark_source.planning.query_plan import PinnedStore, ReadPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_TOP = 20
_GROWTH_DAYS = 7
_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class UsageSpec(HidesSecrets):
    """Which messages to count. `top`: how many queues and single messages to list."""

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    top: int = DEFAULT_TOP
    checksums: bool = False


def run(
    spark: SparkSession | None, spec: UsageSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Add up messages and bytes. Raises StoreError if the store or the selection cannot be read."""
    began = time.monotonic()
    plan = look(spec)
    question = UsageQuestion(plan.ranges, spec.top, finds_damage=True)
    with Progress("usage", unit="messages") as progress:
        usage = ask(question, plan.store, engine_of(spark), progress=progress)
    days = sorted(usage.by("day"), key=lambda row: (row["day"] is not None, row["day"]))
    return Answer(
        job="usage",
        ok=not usage.damage.places,
        tables={
            "by topic": usage.by("topic"),
            "by queue": usage.by("topic", "queueId")[: spec.top],
            "by day": with_change(days),
            "largest messages": usage.largest,
        },
        numbers={
            "messages": usage.messages,
            "bytes of messages": usage.listed_bytes,
            "bytes of the log": usage.log_bytes,
            **_shared(usage),
            "bytes on the disk": _on_disk(plan.store),
            **_growth(days),
        },
        source=provenance_of(
            spark, plan.store, plan.ranges, dict(spec.options), checksums=spec.checksums
        ),
        seconds=round(time.monotonic() - began, 3),
        problems=tuple(_problems(usage)),
    )


def look(spec: UsageSpec) -> ReadPlan:
    """The plan. Raises StoreError for a store or a selection that cannot be read."""
    return plan_of(spec.store, {"includeSystemTopics": "true", **spec.options})


def _shared(usage: UsageAnswer) -> dict[str, Any]:
    """The messages of light queues, which the other numbers leave out."""
    count = usage.shared_messages
    return {"messages in light queues too (shared)": count} if count else {}


def _problems(usage: UsageAnswer) -> Iterator[str]:
    """The damaged places, and a sentence on what the numbers lack."""
    damage = usage.damage
    yield from (str(error) for error in damage.errors[:_MOST_LISTED])
    if damage.places:
        yield str(damage)


def with_change(days: Sequence[Row]) -> list[dict[str, Any]]:
    """Days in order, each with the change in bytes from the day before."""
    before: int | None = None
    found = []
    for day in days:
        found.append({**day, "change": None if before is None else day["bytes"] - before})
        before = day["bytes"]
    return found


def _growth(days: Sequence[Row]) -> dict[str, Any]:
    """The mean bytes of the last complete days. The last day is not complete."""
    whole = [day["bytes"] for day in days if day["day"] is not None][:-1][-_GROWTH_DAYS:]
    if not whole:
        return {}
    return {f"bytes a day, mean of {len(whole)}": sum(whole) // len(whole)}


def _on_disk(pinned: PinnedStore) -> int:
    from rmq_store.tables import TABLES

    with pinned.open() as store:
        return int(sum(TABLES["files"].of(store)["allocated"].to_pylist()))


# --- the command ----------------------------------------------------------------------------------


@job("usage", run, look=look, stoppable=False)
@top_option(DEFAULT_TOP, "List the N largest queues and the N largest messages.")
@source_options(RANGES)
def main(given: Given) -> UsageSpec:
    """Report what fills the disk: topics, queues, days, the largest messages, and the growth."""
    return spec_from(UsageSpec, given, RANGES)
