"""How far consumer groups are behind, and whether any has lost messages or falls too far back.

spark-submit jobs/lag.py STORE --max-lag 100000
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.running.command import STORE_OPTIONS, Given, job, source_options, spec_from
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from jobs.running.result_tables import Answer, Row
from jobs.running.store_frames import pinned_store
from rmq_store.errors import InvalidArgumentError, nearest

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
LOST = "BELOW_MIN"


@dataclass(frozen=True, slots=True)
class LagSpec:
    """Which groups, of all if none is named. `max_lag`: messages; a group behind more is told."""

    store: str
    options: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    max_lag: int | None = None
    checksums: bool = False


def run(
    spark: SparkSession, spec: LagSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """By the broker's own file of offsets. Raises StoreError, also for a group it does not know.

    Not well: a group whose next message expired before it was consumed, or that is behind more than
    `max_lag`.
    """
    began = time.monotonic()
    pinned = pinned_store(spec.store, spec.options)
    frame = spark.read.format("rmqstore").options(**spec.options).option("table", "groups")
    every = [row.asDict() for row in frame.load(spec.store).collect()]
    _check_known(spec.groups, {row["consumerGroup"] for row in every}, "consumer group", spec)
    _check_known(spec.topics, {row["topic"] for row in every}, "topic with a group", spec)
    rows = [
        row
        for row in every
        if row["consumerGroup"] in (spec.groups or (row["consumerGroup"],))
        and row["topic"] in (spec.topics or (row["topic"],))
    ]
    groups = by_group(rows)
    problems = tuple(_problems(groups, spec.max_lag))
    shown = [{name: row[name] for name in _SHOWN} for row in rows]
    shown.sort(key=lambda row: (-(row["lag"] or 0), row["consumerGroup"], row["topic"]))
    sums = sums_of(spark, files_of_store(pinned)) if spec.checksums else ()
    ages = {row["configFile"]: row["configAgeMs"] for row in rows}
    return Answer(
        job="lag",
        ok=not problems,
        tables={"by group": groups, "by queue": shown},
        numbers={
            "groups": len({row["consumerGroup"] for row in rows}),
            "messages behind": sum(row["lag"] or 0 for row in rows),
            **{f"seconds since {Path(file).name}": ms // 1000 for file, ms in ages.items() if ms},
        },
        source=provenance_of(
            pinned,
            (),
            {**spec.options, "groups": spec.groups, "topics": spec.topics, "max_lag": spec.max_lag},
            sums,
        ),
        seconds=round(time.monotonic() - began, 3),
        problems=problems,
    )


def _check_known(asked: Sequence[str], known: set[str], what: str, spec: LagSpec) -> None:
    for name in asked:
        if name not in known:
            raise InvalidArgumentError(
                spec.store, reason=f"there is no {what} {name!r}", advice=nearest(name, known)
            )


def by_group(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Groups and topics, those furthest behind first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["consumerGroup"], row["topic"]
        one = found.setdefault(
            key,
            {
                "consumerGroup": key[0],
                "topic": key[1],
                "queues": 0,
                "lag": 0,
                "lagBytes": 0,
                "lagMs": 0,
                "queues that lost messages": 0,
            },
        )
        one["queues"] += 1
        one["lag"] += row["lag"] or 0
        one["lagBytes"] += row["lagBytes"] or 0
        one["lagMs"] = max(one["lagMs"], row["lagMs"] or 0)
        one["queues that lost messages"] += row["status"] == LOST
    return sorted(found.values(), key=lambda one: (-one["lag"], one["consumerGroup"], one["topic"]))


def _problems(groups: Sequence[Row], max_lag: int | None) -> list[str]:
    told = []
    for one in groups:
        name = f"group {one['consumerGroup']} of topic {one['topic']}"
        if one["queues that lost messages"]:
            told.append(
                f"{name}: what it was to consume next has expired in "
                f"{one['queues that lost messages']} queues"
            )
        if max_lag is not None and one["lag"] > max_lag:
            told.append(f"{name} is {one['lag']:,} messages behind, and {max_lag:,} were allowed")
    return told


# --- the command ----------------------------------------------------------------------------------


@job("lag", run, stoppable=False)
@click.option("--group", "groups", multiple=True, help="Of this consumer group; repeatable.")
@click.option("--topic", "topics", multiple=True, help="Of this topic; repeatable.")
@click.option("--max-lag", type=click.IntRange(min=0), help="Exit code 1 where a group has more.")
@source_options(STORE_OPTIONS)
def main(given: Given) -> LagSpec:
    """How far consumer groups are behind, by the offsets that the broker wrote down last."""
    return spec_from(LagSpec, given, STORE_OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
