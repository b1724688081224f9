"""Whether a job works in this process or on Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rmq_store.text.sizes import size
from rmqstore_jobs.running.spark_engine import submitted
from rmqstore_jobs.running.store_selection import log_of_store

AUTO, LOCAL, SPARK = ENGINES = ("auto", "local", "spark")
MOST_LOCAL_BYTES = 4 << 30
"""The largest log, in bytes, for which `--engine auto` starts no Spark."""


def runs_on_spark(name: str, given: Mapping[str, Any], *, needed: bool) -> bool:
    """Whether the job `name` with these options runs on Spark.

    `auto` goes by the size of the log, and reports its choice on stderr. `needed`: the job cannot do
    without Spark. Raises StoreError for a store that cannot be opened.
    """
    if given["engine"] != AUTO:
        return bool(given["engine"] == SPARK)
    if given["master"] is not None or submitted() or needed:
        return True
    conf = given.get("brokerConf") or given.get("broker_conf")  # as the job calls it
    options = {} if conf is None else {"brokerConf": conf}
    snapshot = log_of_store(given["store"], options).snapshot
    log_bytes = snapshot.log_end - snapshot.log_start
    if log_bytes > MOST_LOCAL_BYTES:
        where, other = f"on Spark, because the log has {size(log_bytes)}", LOCAL
    else:
        where, other = "in this process, without Spark", SPARK
    print(f"{name}: runs {where} (--engine {other}: otherwise)", file=sys.stderr)
    return log_bytes > MOST_LOCAL_BYTES
