"""Verify a store with Spark: executors check parts of the log, and the driver merges the findings.

The findings are the same as those of `rmqstore verify`, which uses one process.

    spark-submit jobs/verify.py STORE --json report.json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_store.markers.lock_file import lock_state
from rmq_store.questions.answer_by_shares import Stopped, ask
from rmq_store.questions.verify import VerifyQuestion
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.verify.verify_store import VerifyReport, severities, verdict
from rmqstore_jobs.running.job_command import STORE_OPTIONS, Given, job, spec_from
from rmqstore_jobs.running.provenance import provenance_of
from rmqstore_jobs.running.result_tables import Answer
from rmqstore_jobs.running.source_options import source_options
from rmqstore_jobs.running.spark_engine import engine_of
from rmqstore_jobs.running.store_selection import pinned_store
from spark_source.options.secret import HidesSecrets
from spark_source.planning.query_plan import PinnedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class VerifySpec(HidesSecrets):
    """The store to check. `options`: brokerName and brokerConf."""

    store: str
    options: Mapping[str, str]
    checksums: bool = False


def run(
    spark: SparkSession | None, spec: VerifySpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Check the store. Damage becomes findings; raises StoreError only if the store cannot be
    checked."""
    began = time.monotonic()
    pinned = pinned_store(spec.store, spec.options)
    with pinned.open() as store:
        lock = lock_state(store.path)
    try:
        report = examine(spark, pinned, should_stop)
    except Stopped:
        seconds = round(time.monotonic() - began, 3)
        source = provenance_of(spark, pinned, (), dict(spec.options))
        return Answer("verify", False, {}, source, seconds, {}, stopped_by=_STOPPED)
    fields = as_json_object(report.to_dict())
    found = map(as_json_object, report.findings)
    findings = [{name: finding[name] for name in _SHOWN} for finding in found]
    return Answer(
        job="verify",
        ok=report.nothing_wrong,
        tables={"findings": findings, "index": [as_json_object(one) for one in report.index]},
        numbers={
            **{name: fields[name] for name in ("records", "recordBytes", "queues", "lag")},
            **{f"{name}s": count for name, count in severities(report.findings).items()},
            "lock": str(lock),
        },
        source=provenance_of(spark, pinned, (), dict(spec.options), checksums=spec.checksums),
        seconds=round(time.monotonic() - began, 3),
        verdict=verdict(report),
    )


_STOPPED = "stopped on request; a part of the log is not enough for a result"
_SHOWN = ("severity", "code", "path", "start", "stop", "count", "meaning", "advice")


def examine(
    spark: SparkSession | None, pinned: PinnedStore, should_stop: Callable[[], bool] = lambda: False
) -> VerifyReport:
    """The report of a pinned store. Raises Stopped if stopped before the whole log is checked."""
    with Progress("verify") as progress:
        return ask(
            VerifyQuestion(),
            pinned,
            engine_of(spark),
            progress=progress,
            should_stop=should_stop,
        )


def look(spec: VerifySpec) -> None:
    """Raise StoreError for a store that cannot be opened."""
    pinned_store(spec.store, spec.options)


# --- the command ----------------------------------------------------------------------------------


@job("verify", run, look=look)
@source_options(STORE_OPTIONS)
def main(given: Given) -> VerifySpec:
    """Check that log, queues, index, checkpoint and configuration agree. Changes nothing."""
    return spec_from(VerifySpec, given, STORE_OPTIONS)
