"""Verify a store with Spark: parts of the log go to executors, and what they found is joined.

The same findings as `rmqstore verify`, which does it in one process.

    spark-submit jobs/verify.py STORE --json report.json
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

if __package__ in (None, ""):
    # spark-submit puts this file's folder on the path and not the one it belongs to.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from jobs.running.command import STORE_OPTIONS, Given, job, source_options, spec_from
from jobs.running.provenance import files_of_store, provenance_of, sums_of
from jobs.running.result_tables import Answer
from jobs.running.spark_session import ship_jobs
from jobs.running.store_frames import pinned_store
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.verify.verify_store import (
    LogPart,
    VerifyReport,
    check_log,
    conclude,
    log_parts,
    severities,
)
from spark_source.planning.query_plan import PinnedStore

_TASKS_A_CORE = 8
"""So many parts for each core go out together; their tallies are what this process holds."""


@dataclass(frozen=True, slots=True)
class VerifySpec:
    """Which store. `options`: brokerName and brokerConf."""

    store: str
    options: Mapping[str, str]
    checksums: bool = False


def run(
    spark: SparkSession, spec: VerifySpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Examine the store. Raises StoreError only where it cannot be looked at; damage is findings."""
    ship_jobs()
    began = time.monotonic()
    pinned = pinned_store(spec.store, spec.options)
    report = examine(spark, pinned, should_stop)
    sums = sums_of(spark, files_of_store(pinned)) if spec.checksums and report else ()
    source = provenance_of(pinned, (), dict(spec.options), sums)
    seconds = round(time.monotonic() - began, 3)
    if report is None:
        why = "it was asked to stop; what was looked at alone says nothing of the store"
        return Answer("verify", False, {}, source, seconds, {}, stopped_by=why)
    told = as_json_object(report.to_dict())
    found = map(as_json_object, report.findings)
    findings = [{name: finding[name] for name in _SHOWN} for finding in found]
    return Answer(
        job="verify",
        ok=report.nothing_wrong,
        tables={"findings": findings, "index": [as_json_object(one) for one in report.index]},
        numbers={
            **{name: told[name] for name in ("records", "recordBytes", "queues", "lag")},
            **{f"{name}s": count for name, count in severities(report.findings).items()},
        },
        source=source,
        seconds=seconds,
    )


_SHOWN = ("severity", "code", "path", "start", "stop", "count", "meaning", "advice")


def examine(
    spark: SparkSession, pinned: PinnedStore, should_stop: Callable[[], bool] = lambda: False
) -> VerifyReport | None:
    """The report of a pinned store; None where it was stopped before all of the log was checked."""
    whole, stopped = LogPart(), False
    with pinned.open() as store:
        parts = log_parts(store)
        together = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
        total = store.log.chain.stop - store.log.chain.start
        with Progress("verify", total) as progress:
            for first in range(0, len(parts), together):
                if should_stop():
                    stopped = True
                    break
                some = parts[first : first + together]
                for part in checked(spark, pinned, some):
                    whole.add(part)
                progress(some[-1][1] - some[0][0])
        if stopped:
            return None
        return conclude(store, whole)


def checked(
    spark: SparkSession, pinned: PinnedStore, parts: Sequence[tuple[int, int]]
) -> list[LogPart]:
    """Parts of the log, each checked by a task, in their order."""

    def check(part: tuple[int, int]) -> LogPart:
        with pinned.open() as store:
            return check_log(store, *part)

    found: list[LogPart] = spark.sparkContext.parallelize(parts, len(parts)).map(check).collect()
    return found


# --- the command ----------------------------------------------------------------------------------


@job("verify", run)
@source_options(STORE_OPTIONS)
def main(given: Given) -> VerifySpec:
    """Whether log, queues, index, checkpoint and configuration agree. Changes nothing."""
    return spec_from(VerifySpec, given, STORE_OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
