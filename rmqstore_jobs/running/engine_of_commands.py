"""Spark as an engine of `rmqstore` commands; the entry point `rmqstore.engines` leads here."""

from __future__ import annotations

from rmq_store.cli.options import SPARK, EngineArgs, StoreArgs
from rmq_store.questions.answer_by_shares import Engine, StoreSource
from rmqstore_jobs.running.failures import spark_errors_said
from rmqstore_jobs.running.source_options import pinned_store
from rmqstore_jobs.running.spark_engine import SparkEngine, builder_for, runs_on_spark


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
