"""Rebuild queues and index from the log into a new store.

One process dispatches the log in order, like a broker. With --verify, executors then check the new
store. If interrupted, run the same command to continue.

    spark-submit jobs/rebuild.py STORE --to NEW --release 5.3.3 --verify
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from rmq_store.admin.rebuild import LOG_MODES, rebuild, work_of
from rmq_store.cli import option_names
from rmq_store.config.locate import require_apart
from rmq_store.format.releases import dialect
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmqstore_jobs.running.job_command import STORE_OPTIONS, Given, job, spec_from
from rmqstore_jobs.running.provenance import provenance_of
from rmqstore_jobs.running.result_tables import Answer
from rmqstore_jobs.running.source_options import source_options
from rmqstore_jobs.running.store_selection import log_of_store, pinned_store
from rmqstore_jobs.verify import examine
from spark_source.options.secret import HidesSecrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NUMBERS = ("records", "entriesRebuilt", "indexItemsRebuilt", "logStart", "logEnd", "log")


@dataclass(frozen=True, slots=True)
class RebuildSpec(HidesSecrets):
    """What to rebuild, and the target. `log`: copy the log files, or link the full ones.

    `release`: the broker release that will start on it. `verify`: check the new store afterwards.
    """

    store: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    log: str = "copy"
    release: str | None = None
    verify: bool = False
    checksums: bool = False


def run(
    spark: SparkSession | None, spec: RebuildSpec, should_stop: Callable[[], bool] = lambda: False
) -> Answer:
    """Rebuild the store. Damage in the log or findings in the new store are problems. Raises
    StoreError.

    `should_stop` is never called: after an interruption at any point, the same spec continues.
    """
    began = time.monotonic()
    # The job rebuilds the queues, so it does not read the existing ones.
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
    fields = as_json_object(report.to_dict())
    problems = [f"damage in the log: offsets {start} to {stop}" for start, stop in fields["damage"]]
    problems += report.recovery.lines_of_left_out()
    tables: dict[str, list[dict[str, Any]]] = {
        "queues": [
            {"topic": queue.topic, "queueId": queue.queue_id, "minOffset": low, "maxOffset": high}
            for queue, (low, high) in sorted(report.recovery.queues.items())
        ]
    }
    if spec.verify:
        found = examine(spark, pinned_store(spec.target, _of_target(spec)))
        tables["findings"] = [as_json_object(finding) for finding in found.findings]
        if not found.nothing_wrong:
            problems.append("the new store has problems: see the findings")
    asked = {"target": spec.target, "log": spec.log, "release": spec.release}
    return Answer(
        job="rebuild",
        ok=not problems,
        tables=tables,
        numbers={**{name: fields[name] for name in _NUMBERS}, "target": spec.target},
        source=provenance_of(
            spark, pinned, (), {**spec.options, **asked}, checksums=spec.checksums
        ),
        seconds=round(time.monotonic() - began, 3),
        problems=tuple(problems),
        resumed=report.resumed,
    )


def _of_target(spec: RebuildSpec) -> dict[str, str]:
    # broker.conf may name the log folders of the source. The target has its own.
    return {k: v for k, v in spec.options.items() if k == "brokerName"}


def look(spec: RebuildSpec) -> None:
    """Raise StoreError for a store, a target or a release that cannot be."""
    dialect(spec.release)
    with log_of_store(spec.store, spec.options).open() as store:
        require_apart([store.path, *store.log.chain.folders], spec.target)


# --- the command ----------------------------------------------------------------------------------


# Signals keep their usual meaning: after any interruption, the same command continues.
@job("rebuild", run, look=look, stoppable=False)
@click.option("--to", "target", required=True, metavar="DIR", help="The new store.")
@click.option(
    "--log",
    type=click.Choice(LOG_MODES),
    default="copy",
    show_default=True,
    help=option_names.LOG,
)
@click.option("--release", help=option_names.RELEASE)
@click.option("--verify", is_flag=True, help="Verify the new store afterwards.")
@source_options(STORE_OPTIONS)
def main(given: Given) -> RebuildSpec:
    """Rebuild queues and index from the log into a new store that a broker can start on."""
    return spec_from(RebuildSpec, given, STORE_OPTIONS)
