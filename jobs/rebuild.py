"""Make queues and index anew from the log, in a new store, and say what was made.

The log is dispatched in its order by one process, as a broker does it; with --verify executors then
hold the new store against itself. Killed half-way the same command goes on.

    spark-submit jobs/rebuild.py STORE --to NEW --release 5.3.3 --verify
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
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
from jobs.running.result_tables import Answer
from jobs.running.spark_session import ship_jobs
from jobs.running.store_frames import log_of_store, pinned_store
from jobs.verify import examine
from rmq_store.admin.rebuild import LOG_MODES, rebuild, work_of
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress

_TOLD = ("records", "entriesRebuilt", "indexItemsRebuilt", "logStart", "logEnd", "log")


@dataclass(frozen=True, slots=True)
class RebuildSpec:
    """What to rebuild, and where. `log`: copy the files of the log, or link those that are full.

    `release`: of the broker that is to start on it. `verify`: look at the new store afterwards.
    """

    store: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    log: str = "copy"
    release: str | None = None
    verify: bool = False
    checksums: bool = False


def run(
    spark: SparkSession, spec: RebuildSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Rebuild. Not well: the log has damage, or the new store is not sound. Raises StoreError.

    `should_stop` is not asked: killed at any point, the same spec goes on.
    """
    ship_jobs()
    began = time.monotonic()
    # The queues are what is to be made: nothing is asked of those that are there.
    pinned = log_of_store(spec.store, spec.options)
    conf = spec.options.get("brokerConf")
    with pinned.open() as store:
        total = work_of(store)
    with Progress("rebuild", total) as progress:
        report = rebuild(
            spec.store,
            spec.target,
            log=spec.log,
            release=spec.release,
            config=conf,
            progress=progress,
        )
    told = as_json_object(report.to_dict())
    problems = [f"damage in the log at {start} to {stop}" for start, stop in told["damage"]]
    tables: dict[str, list[dict[str, Any]]] = {
        "queues": [
            {"topic": queue.topic, "queueId": queue.queue_id, "minOffset": low, "maxOffset": high}
            for queue, (low, high) in sorted(report.recovery.queues.items())
        ]
    }
    if spec.verify:
        found = examine(spark, pinned_store(spec.target, _of_target(spec)))
        assert found is not None  # nobody asks it to stop
        tables["findings"] = [as_json_object(finding) for finding in found.findings]
        if not found.nothing_wrong:
            problems.append("the new store is not sound: see the findings")
    sums = sums_of(spark, files_of_store(pinned)) if spec.checksums else ()
    asked = {"target": spec.target, "log": spec.log, "release": spec.release}
    return Answer(
        job="rebuild",
        ok=not problems,
        tables=tables,
        numbers={**{name: told[name] for name in _TOLD}, "target": spec.target},
        source=provenance_of(pinned, (), {**spec.options, **asked}, sums),
        seconds=round(time.monotonic() - began, 3),
        problems=tuple(problems),
        resumed=report.resumed,
    )


def _of_target(spec: RebuildSpec) -> dict[str, str]:
    # broker.conf may name the folders of the source's log; the target has its own.
    return {k: v for k, v in spec.options.items() if k == "brokerName"}


# --- the command ----------------------------------------------------------------------------------


# Signals have their usual meaning here: whatever ends it, the same command goes on.
@job("rebuild", run, stoppable=False)
@click.option("--to", "target", required=True, metavar="DIR", help="The new store.")
@click.option(
    "--log",
    type=click.Choice(LOG_MODES),
    default="copy",
    show_default=True,
    help="Copy the log, or link its full files.",
)
@click.option("--release", help="As this release of the broker does (default: newest).")
@click.option("--verify", is_flag=True, help="Verify the new store afterwards.")
@source_options(STORE_OPTIONS)
def main(given: Given) -> RebuildSpec:
    """Queues and index made anew from the log, in a new store that a broker can start on."""
    return spec_from(RebuildSpec, given, STORE_OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
