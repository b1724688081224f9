"""Spark as an engine: when a job takes it, its session, and the shares of a store that executors work on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

import rmqstore_jobs
from rmq_store.cli.options import LOCAL, SPARK, EngineArgs, StoreArgs
from rmq_store.errors import StoreError
from rmq_store.questions import answer_by_shares
from rmq_store.questions.answer_by_shares import Answer, Engine, Part, Question, Share, StoreSource
from rmq_store.text.sizes import size
from rmqstore_jobs.running.failures import spark_errors_said
from rmqstore_jobs.running.source_options import log_of_store, pinned_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ShouldStop = Callable[[], bool]
Session: TypeAlias = "SparkSession | None"  # None for work in this process
MOST_LOCAL_BYTES = 4 << 30  # the largest log for which `--engine auto` starts no Spark
_TASKS_A_CORE = 8


def engine_of(spark: Session, tasks_a_core: int = _TASKS_A_CORE) -> Engine:
    """The engine for a session of Spark; without one, this process."""
    return answer_by_shares.InProcess() if spark is None else SparkEngine(spark, tasks_a_core)


def parallel_shares(spark: Session) -> int:
    """The number of shares that the engine works on at the same time."""
    return 1 if spark is None else spark.sparkContext.defaultParallelism


def started_by_spark_submit() -> bool:
    """Whether spark-submit started this process, and so its JVM with master and jars."""
    return "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


class SparkEngine:
    """Sends shares to executors, `tasks_a_core` per core at a time, and returns their parts.

    So this process holds only the parts in progress, and a job can stop between them.
    """

    def __init__(self, spark: SparkSession, tasks_a_core: int = _TASKS_A_CORE) -> None:
        self._context = spark.sparkContext
        self._together = tasks_a_core * self._context.defaultParallelism

    def run(
        self,
        source: StoreSource,
        question: Question[Share, Part, Answer],
        shares: Sequence[Share],
        progress: answer_by_shares.OnProgress,
    ) -> Iterator[Part]:
        """The part of each share, in order. Raises EngineFailedError for the errors of the work."""
        ship_jobs()
        for first in range(0, len(shares), self._together):
            sent = shares[first : first + self._together]
            with spark_errors_said():
                tasks = self._context.parallelize(sent, len(sent))
                parts = tasks.map(_task(source, question)).collect()
            for share, part in zip(sent, parts, strict=True):
                progress(question.weight(share))
                yield part


def _task(source: StoreSource, question: Question[Share, Part, Answer]) -> Callable[[Share], Part]:
    def work(share: Share) -> Part:
        with source.open() as store:
            return question.work(store, share, answer_by_shares.ignore)

    return work


def builder_for(name: str, master: str | None) -> SparkSession.Builder:
    """A builder for a Spark session with this Python; local if no master is given."""
    from pyspark.sql import SparkSession

    # By default Spark takes the first python3 on PATH, which may not have our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ship_jobs()
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if not started_by_spark_submit():
        master = "local[*]" if master is None else master
        logging = (Path(__file__).parents[1] / "log4j2.properties").resolve().as_uri()
        # Not extraJavaOptions, because users set them. These options come before them.
        settings["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={logging}"
    builder = SparkSession.builder.appName(f"rmqstore {name}").config(map=settings)
    return builder if master is None else builder.master(master)


def ship_jobs() -> None:
    """Make Spark send our functions by value: executors may have another version of them, or none."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(rmqstore_jobs)  # type: ignore[no-untyped-call]


class SparkUnavailableError(StoreError):
    """The job needs pyspark."""

    code = "RMQSTORE_SPARK_UNAVAILABLE"


def runs_on_spark(name: str, arguments: Mapping[str, Any], *, needed: bool) -> bool:
    """Whether the job `name` with these options runs on Spark.

    `auto` goes by the size of the log, and reports its choice on stderr; without pyspark it works in
    this process. `needed`: the job cannot do without Spark. Raises StoreError for a store that cannot
    be opened, SparkUnavailableError where Spark is asked for and pyspark is missing.
    """
    if arguments["engine"] == LOCAL:
        return False
    if (
        arguments["engine"] == SPARK
        or arguments["master"] is not None
        or started_by_spark_submit()
        or needed
    ):
        if not _has_spark():
            raise SparkUnavailableError(
                reason="this asks for Spark, but pyspark is not installed",
                # Of our jobs only an export to Delta cannot do without.
                advice="pip install 'rmqstore[delta]'"
                if needed
                else "pip install 'rmqstore[spark]', or leave out --engine spark and --master",
            )
        return True
    conf = arguments.get("brokerConf") or arguments.get("broker_conf")  # as the job calls it
    options = {} if conf is None else {"brokerConf": conf}
    snapshot = log_of_store(arguments["store"], options).snapshot
    log_bytes = snapshot.log_end - snapshot.log_start
    large, has_spark, place = log_bytes > MOST_LOCAL_BYTES, _has_spark(), "in this process"
    if large and has_spark:
        place = (
            f"on Spark, because the log has {size(log_bytes)}; use --engine {LOCAL} for one process"
        )
    elif large:
        place += f", because pyspark is not installed; the log has {size(log_bytes)}"
    elif has_spark:
        place += f"; use --engine {SPARK} for a cluster"
    click.echo(f"{name}: running {place}", err=True)
    return large and has_spark


def _has_spark() -> bool:
    return find_spec("pyspark") is not None


def spark(command: str, at: StoreArgs, on: EngineArgs) -> tuple[StoreSource, Engine] | None:
    """The pinned store and Spark; None if `auto` chooses this process. Raises StoreError for a store that
    cannot be opened, SparkUnavailableError without pyspark."""
    given = {"engine": on.engine or SPARK, "master": on.master}
    given |= {"store": at.store, "broker_conf": at.broker_conf}
    if not runs_on_spark(command, given, needed=False):
        return None
    named = {"brokerName": at.broker_name, "brokerConf": at.broker_conf}
    options = {name: value for name, value in named.items() if value is not None}
    pinned = pinned_store(at.store, options)  # first, because a session takes some ten seconds
    with spark_errors_said("Spark does not start: "):
        session = builder_for(command, on.master).getOrCreate()
    return pinned, SparkEngine(session)
