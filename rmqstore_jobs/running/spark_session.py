"""The Spark session of a job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import SparkSession

import rmqstore_jobs
from rmqstore_jobs.running.spark_engine import submitted


def builder_for(name: str, master: str | None) -> SparkSession.Builder:
    """A builder for a Spark session with this Python; local if no master is given."""
    # By default Spark takes the first python3 on PATH, which may not have our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    ship_jobs()
    builder = SparkSession.builder.appName(f"rmqstore {name}")
    if master is not None:
        builder = builder.master(master)
    elif not submitted():
        builder = builder.master("local[*]")
    if not submitted():
        logging = (Path(__file__).parents[1] / "log4j2.properties").resolve().as_uri()
        # Not extraJavaOptions, because users set them. These options come before them.
        builder = builder.config(
            "spark.driver.defaultJavaOptions", f"-Dlog4j2.configurationFile={logging}"
        )
    quiet: dict[str, bool | float | int | str | None] = {
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return builder.config(map=quiet)


def ship_jobs() -> None:
    """Make Spark send the functions of this package by value: executors may have another version
    of it, or none."""
    cloudpickle.register_pickle_by_value(rmqstore_jobs)  # type: ignore[no-untyped-call]
