"""Whether a job works in this process or on Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rmq_store.errors import StoreError
from rmq_store.text.sizes import size
from rmqstore_jobs.running.spark_engine import submitted
from rmqstore_jobs.running.store_selection import log_of_store

AUTO, LOCAL, SPARK = ENGINES = ("auto", "local", "spark")
MOST_LOCAL_BYTES = 4 << 30
"""The largest log, in bytes, for which `--engine auto` starts no Spark."""


class SparkUnavailableError(StoreError):
    """The job needs Spark, but pyspark is not installed."""

    code = "RMQSTORE_SPARK_UNAVAILABLE"


def runs_on_spark(name: str, given: Mapping[str, Any], *, needed: bool) -> bool:
    """Whether the job `name` with these options runs on Spark.

    `auto` goes by the size of the log, and reports its choice on stderr; without pyspark it works in
    this process. `needed`: the job cannot do without Spark. Raises StoreError for a store that cannot
    be opened, SparkUnavailableError where Spark is asked for and pyspark is missing.
    """
    asked = given["master"] is not None or submitted() or needed
    if given["engine"] == LOCAL:
        return False
    if given["engine"] == SPARK or asked:
        if not _has_spark():
            raise SparkUnavailableError(
                None,
                reason="this asks for Spark, but pyspark is not installed",
                # Of our jobs only an export to Delta cannot do without.
                advice="pip install 'rmqstore[delta]'"
                if needed
                else "pip install 'rmqstore[spark]', or leave out --engine spark and --master",
            )
        return True
    conf = given.get("brokerConf") or given.get("broker_conf")  # as the job calls it
    options = {} if conf is None else {"brokerConf": conf}
    snapshot = log_of_store(given["store"], options).snapshot
    log_bytes = snapshot.log_end - snapshot.log_start
    on_spark = log_bytes > MOST_LOCAL_BYTES and _has_spark()
    print(f"{name}: runs {_why(log_bytes)}", file=sys.stderr)
    return on_spark


def _why(log_bytes: int) -> str:
    """Where a job runs that may choose, and how to have it otherwise."""
    large, has_spark = log_bytes > MOST_LOCAL_BYTES, _has_spark()
    if large and has_spark:
        return f"on Spark, because the log has {size(log_bytes)} (--engine {LOCAL}: otherwise)"
    if large:
        return f"in this process, because pyspark is not installed; the log has {size(log_bytes)}"
    return "in this process, without Spark" + f" (--engine {SPARK}: otherwise)" * has_spark


def _has_spark() -> bool:
    return find_spec("pyspark") is not None
