"""Measure df.write against `append_batch` alone, in one run.

    python -m benchmarks.sink [--messages 500000] [--cores 2] [--folder /where/the/disk/is]

Messages have a body of 1 KiB that differs from row to row, keys and tags. `append_batch` alone
writes batches that are in memory. `commit` appends rows that tasks have staged before. `df.write`
gets the rows from Spark, stages them in its tasks, and commits. `rows to Python` is what Spark needs
to hand the same rows to a Python function that only counts them: no Python sink is faster. Everything
is on the disk at the end of each write. Prints medians of wall clock, with the times of all rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_store import MessageStore
from rmq_store.heap_settings import keep_freed_memory
from rmqstore_jobs.running.spark_engine import builder_for
from spark_source.writing.rows_to_append import staged_batches
from spark_source.writing.staging import StagedPart, folder_beside
from spark_source.writing.target import WriteOptions
from spark_source.writing.writers import StoreWrite, commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 3
BODY = 1024
BATCH = 10_000  # as many rows as Spark gives in a batch
PARTS = 8


def messages(count: int) -> list[pa.RecordBatch]:
    """Batches of messages, about as compressible as text in base 64."""
    chance = np.random.default_rng(7)
    found = []
    for first in range(0, count, BATCH):
        rows = min(BATCH, count - first)
        data = chance.integers(48, 112, rows * BODY, np.uint8)
        ends = np.arange(0, (rows + 1) * BODY, BODY, dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        columns = {
            "topic": ["orders"] * rows,
            "queueId": pa.array(np.arange(first, first + rows) % 8, pa.int32()),
            "body": pa.Array.from_buffers(pa.binary(), rows, buffers),
            "keys": [f"{number:09d}" for number in range(first, first + rows)],
            "tags": ["a"] * rows,
        }
        found.append(pa.RecordBatch.from_pydict(columns))
    return found


def alone(batches: list[pa.RecordBatch], target: Path) -> None:
    """Append batches that are in memory."""
    with MessageStore.create(target) as store:
        for batch in batches:
            store.append_batch(batch)


def staged(batches: list[pa.RecordBatch], target: Path) -> tuple[StoreWrite, list[StagedPart]]:
    """A write whose rows are staged."""
    write = StoreWrite("measured", WriteOptions(str(target)))
    write.staging.begin()
    each = -(-len(batches) // PARTS)
    parts = []
    for number in range(PARTS):
        own = batches[number * each : (number + 1) * each]
        rows = (ready for batch in own for ready in staged_batches(batch, write.options))
        parts.append(write.staging.write(number, rows))
    return write, parts


def handed_over(frame: DataFrame) -> None:
    """Count the rows of each batch in Python."""
    counted = frame.mapInArrow(_sizes, "rows long")
    counted.write.format("noop").mode("overwrite").save()


def _sizes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})


def written(frame: DataFrame, target: Path) -> None:
    """Write a DataFrame."""
    frame.write.format("rmqstore").mode("append").save(str(target))


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder")
    given = parser.parse_args()
    keep_freed_memory()
    spark = builder_for("benchmark", f"local[{given.cores}]").getOrCreate()
    ways = ("append_batch alone", "commit", "rows to Python", "df.write")
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder, target = Path(name), Path(name, "target")
        source = folder / "source"
        source.mkdir()
        batches = messages(given.messages)
        each = -(-len(batches) // PARTS)
        for number in range(0, len(batches), each):
            table = pa.Table.from_batches(batches[number : number + each])
            pq.write_table(table, source / f"{number:06}.parquet")
        frame = spark.read.parquet(str(source))
        for number in range(ROUNDS + 1):
            for way in ways:
                shutil.rmtree(target, ignore_errors=True)
                shutil.rmtree(folder_beside(str(target)), ignore_errors=True)
                os.sync()  # no way pays for what the one before has left to write
                if way == "append_batch alone":
                    seconds = timed(lambda: alone(batches, target))
                elif way == "commit":
                    write, parts = staged(batches, target)
                    os.sync()
                    seconds = timed(partial(commit, write, parts))
                elif way == "rows to Python":
                    seconds = timed(lambda: handed_over(frame))
                else:
                    seconds = timed(lambda: written(frame, target))
                if number:  # the first round starts Spark's workers
                    times[way].append(seconds)
    base = statistics.median(times["append_batch alone"])
    print(f"{given.messages:,} messages of 1 KiB, local[{given.cores}]")
    for way, measured in times.items():
        middle = statistics.median(measured)
        rate = given.messages / middle / 1e3
        rounds = " ".join(f"{one:.2f}" for one in measured)
        print(f"{way:<20} {rate:>6.0f} k/s {base / middle:>6.2f} x of append_batch   s: {rounds}")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
