"""Measure a replay into a store, in this process and on Spark, against `append_batch` alone.

    python -m benchmarks.replay [--messages 500000] [--spark]

`append_batch` alone writes batches that are in memory. A replay also reads them from another store,
checks CRCs and adds the properties of the origin. Messages have one layout of properties, or 20 with
values of random lengths ("mixed"). Prints medians of wall clock and CPU seconds of this process for a
million messages.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.core import append_all
from benchmarks.traffic import Messages, mixed, one_layout
from rmq_store import MessageStore
from rmq_store.heap_settings import keep_freed_memory
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_spec import ReplaySpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3
BODY = 1024
COLUMNS = ("topic", "queueId", "rawBody", "properties", "flag", "sysFlag", "bornTimestamp")


def alone(batches: list[pa.RecordBatch], target: Path) -> None:
    """Append batches that are in memory."""
    with MessageStore.create(target) as store:
        for batch in batches:
            store.append_batch(batch)


def replayed(spark: SparkSession | None, source: Path, target: Path) -> None:
    """Replay a whole store."""
    report = run(spark, ReplaySpec(str(source), to_store=str(target)))
    assert report.ok, report.problems


def timed(work: Callable[[Path], object], folder: Path) -> tuple[float, float]:
    """Seconds of wall clock and of CPU."""
    target = folder / "target"
    shutil.rmtree(target, ignore_errors=True)
    for beside in folder.glob("target.*"):
        beside.unlink()
    began, cpu = time.perf_counter(), time.process_time()
    work(target)
    return time.perf_counter() - began, time.process_time() - cpu


def compare(kind: str, messages: Messages, count: int, spark: SparkSession | None) -> None:
    """Print a row for each way."""
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), Path(name, "source")
        append_all(source, messages(count, BODY))
        with MessageStore.open(source) as store:
            batches = [
                batch.rename_columns(["body" if n == "rawBody" else n for n in COLUMNS])
                for batch in store.read_batches(columns=COLUMNS)
            ]
        ways: dict[str, Callable[[Path], object]] = {
            "append_batch alone": lambda target: alone(batches, target),
            "replay, this process": lambda target: replayed(None, source, target),
        }
        if spark is not None:
            ways["replay, Spark"] = lambda target: replayed(spark, source, target)
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, work in ways.items():
                times[way].append(timed(work, folder))
    base = statistics.median(wall for wall, _ in times["append_batch alone"])
    print(f"{count:,} messages of 1 KiB, {kind:<12}    rate   CPU s/M   of append_batch")
    for way, measured in times.items():
        wall = statistics.median(w for w, _ in measured)
        cpu = statistics.median(c for _, c in measured)
        print(
            f"{way:<34} {count / wall / 1e3:>7.0f} k/s {cpu / count * 1e6:>7.2f} {base / wall:>9.2f} x"
        )


def main() -> None:
    """Print a table for each kind of messages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--spark", action="store_true", help="also the engine of Spark, local[2]")
    given = parser.parse_args()
    keep_freed_memory()
    spark = None
    if given.spark:
        from rmqstore_jobs.running.spark_engine import builder_for

        spark = builder_for("benchmark", "local[2]").getOrCreate()
    for kind, messages in (("one layout", one_layout), ("mixed", mixed)):
        compare(kind, messages, given.messages, spark)


if __name__ == "__main__":
    main()
