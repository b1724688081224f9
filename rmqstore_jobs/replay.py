"""Replay selected messages of a store into another store, into Parquet, or to a running broker.

python jobs/replay.py STORE --to NEW --topic orders --since 2026-05-01T10:00:00Z
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rmq_store.errors import CorruptQueueError, DataLossError
from rmq_store.format.releases import dialect
from rmqstore_jobs.replay_targets.dry_run import DryRun
from rmqstore_jobs.replay_targets.grpc_client import require_client
from rmqstore_jobs.replay_targets.local_targets import LocalReplay
from rmqstore_jobs.replay_targets.waves_to_broker import LiveReplay
from rmqstore_jobs.replaying.options import OPTIONS, spec_of
from rmqstore_jobs.replaying.replay_journal import ReplayJournal
from rmqstore_jobs.replaying.replay_question import source_options
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, check, with_fixed_times
from rmqstore_jobs.replaying.report import ReplayReport
from rmqstore_jobs.running.job_command import Job
from spark_source.options.parse import parse_options
from spark_source.planning.pinned_plan import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    spark: SparkSession | None, spec: ReplaySpec, should_stop: Callable[[], bool] = lambda: False
) -> ReplayReport:
    """Replay the selected messages. Returns the report.

    `should_stop` is called between waves. If it returns true, or if reading fails, the target is
    closed cleanly, the report has the reason, and a later run of the same spec continues. If
    writing fails, the report says so, and the next run is refused. Raises StoreError if the replay
    is refused; then nothing was written.
    """
    check(spec)
    spec = with_fixed_times(spec)
    if spec.to_broker is not None:
        require_client()
    if spec.dry_run:
        return DryRun(spark, spec).report()
    kind = LocalReplay if spec.to_broker is None else LiveReplay
    with ReplayJournal(spec.journal_target) as journal:
        return kind(spark, spec, journal).run(should_stop)


def look(spec: ReplaySpec) -> None:
    """Raise StoreError for a store or a selection that cannot be read.

    Offsets may have expired, or be lost: an interrupted replay then reads only what it has not replayed.
    """
    if spec.release is not None:
        dialect(spec.release)
    with suppress(DataLossError, CorruptQueueError):
        pin(parse_options(source_options(with_fixed_times(spec))))


# --- the command ----------------------------------------------------------------------------------


main = Job(
    "replay",
    "Replay selected messages of a store into another store, into Parquet, or to a broker.",
    run,
    spec_of,
    OPTIONS,
    look=look,
)
