"""Report how far consumer groups are behind, and which lost messages or are too far behind.

spark-submit jobs/lag.py STORE --max-lag 100000
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli import option_names
from rmq_store.questions.answer_by_shares import ask
from rmq_store.questions.lag import LagQuestion
from rmq_store.text.progress import Progress
from rmqstore_jobs.running.job_command import STORE_OPTIONS, Given, job, spec_from
from rmqstore_jobs.running.provenance import provenance_of
from rmqstore_jobs.running.result_tables import Answer
from rmqstore_jobs.running.source_options import source_options
from rmqstore_jobs.running.spark_engine import engine_of
from rmqstore_jobs.running.store_selection import pinned_store
from spark_source.options.secret import HidesSecrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = (
    "consumerGroup",
    "topic",
    "queueId",
    "consumerOffset",
    "minOffset",
    "maxOffset",
    "lag",
    "lagBytes",
    "lagMs",
    "status",
)


@dataclass(frozen=True, slots=True)
class LagSpec(HidesSecrets):
    """Which groups (default: all). `max_lag`: a group that is more messages behind is a problem."""

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    max_lag: int | None = None
    checksums: bool = False


def run(
    spark: SparkSession | None, spec: LagSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Report the lag from the broker's offset file. Raises StoreError, also for an unknown group.

    It is a problem if a group's next message expired before the group consumed it, or if a group is
    more than `max_lag` messages behind.
    """
    began = time.monotonic()
    pinned = pinned_store(spec.store, spec.options)
    question = LagQuestion(spec.groups, spec.topics)
    with Progress("lag", unit="offsets") as progress:
        answer = ask(question, pinned, engine_of(spark), progress=progress)
    problems = tuple(answer.problems(spec.max_lag))
    shown = [{name: row.get(name) for name in _SHOWN} for row in answer.furthest_behind()]
    ages = {row["configFile"]: row["configAgeMs"] for row in answer.rows}
    return Answer(
        job="lag",
        ok=not problems,
        tables={"by group": answer.by_group(), "by queue": shown},
        numbers={
            "groups": len({row["consumerGroup"] for row in answer.rows}),
            "messages behind": sum(row.get("lag") or 0 for row in answer.rows),
            **{f"seconds since {Path(file).name}": ms // 1000 for file, ms in ages.items() if ms},
        },
        source=provenance_of(
            spark,
            pinned,
            (),
            {**spec.options, "groups": spec.groups, "topics": spec.topics, "max_lag": spec.max_lag},
            checksums=spec.checksums,
        ),
        seconds=round(time.monotonic() - began, 3),
        problems=problems,
    )


def look(spec: LagSpec) -> None:
    """Raise StoreError for a store, group or topic that is not there."""
    with pinned_store(spec.store, spec.options).open() as store:
        LagQuestion(spec.groups, spec.topics).plan(store)


# --- the command ----------------------------------------------------------------------------------


@job("lag", run, look=look, stoppable=False)
@click.option("--group", "groups", multiple=True, help=option_names.GROUPS)
@click.option("--topic", "topics", multiple=True, help=option_names.TOPICS)
@click.option(
    "--max-lag", type=click.IntRange(min=0), help="Exit code 1 if a group is more messages behind."
)
@source_options(STORE_OPTIONS)
def main(given: Given) -> LagSpec:
    """Report how far consumer groups are behind, by the offsets that the broker wrote last."""
    return spec_from(LagSpec, given, STORE_OPTIONS)
