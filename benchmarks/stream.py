"""Measure readStream: micro-batches against batch reads, the way from append to sink, 10,000 queues.

    python -m benchmarks.stream            # three to five minutes, 1 GB of disk
    python -m benchmarks.stream --small    # about two minutes

(a) Micro-batches of 100,000 messages of 1 KiB, all columns to nowhere, against batch reads of the
same ranges: the whole trigger with the offsets and the log of the checkpoint, and the whole action.
(b) From the append of a message to the sink at ProcessingTime 0, and beside it what Spark's own rate
source takes, which makes the rows of a second at its end. (c) The driver's calls in an idle and in a
growing store with 10 and with 10,000 queues, and the size of the offset. Both sides of a comparison
run in turn, in one run; medians. CPU seconds are those of Spark's JVM and of all Python processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.cpu_time import cpu_time
from benchmarks.sink import messages
from rmq_store import MessageStore
from rmqstore_jobs.running.spark_engine import builder_for
from spark_source.source import RmqStoreSource
from spark_source.streaming.stream_reader import RmqStoreStreamReader

MICRO_BATCH = 100_000
QUEUES = 8  # of `messages`, which gives them the rows in turn
MANY_QUEUES = 10_000
PER_SECOND = 50  # messages of the writer in (b)


# --- (a) micro-batches and batch reads ------------------------------------------------------------


PIECES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def micro_batches(spark: SparkSession, store: Path, folder: Path) -> list[dict[str, float]]:
    """Seconds of each micro-batch of a new query, from trigger to commit, and of its pieces."""
    stream = (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(MICRO_BATCH))
        .load(str(store))
    )
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]]
    assert all(one["numInputRows"] == MICRO_BATCH for one in done), "micro-batches of another size"
    return [{name: ms / 1000 for name, ms in one["durationMs"].items()} for one in done]


def batches(spark: SparkSession, store: Path, count: int) -> Iterator[float]:
    """Seconds of batch reads of the same ranges."""
    each = MICRO_BATCH // QUEUES
    for number in range(count):
        began = time.perf_counter()
        frame = spark.read.format("rmqstore")
        for option, at in (("startingOffsets", number), ("endingOffsets", number + 1)):
            of_queues = {str(queue): at * each for queue in range(QUEUES)}
            frame = frame.option(option, json.dumps({"orders": of_queues}))
        frame.load(str(store)).write.format("noop").mode("overwrite").save()
        yield time.perf_counter() - began


def compare(spark: SparkSession, work: Path, count: int, rounds: int) -> None:
    """(a), printed."""
    store = work / "log"
    with MessageStore.create(store) as writer:
        for batch in messages(count * MICRO_BATCH):
            writer.append_batch(batch)
    taken: dict[str, list[float]] = {"micro-batch": [], "batch": []}
    pieces: list[dict[str, float]] = []
    cpu = dict.fromkeys(taken, 0.0)
    for number in range(rounds + 1):
        for side in taken:
            before = cpu_time().total
            if side == "batch":
                found = list(batches(spark, store, count))
            else:
                parts = micro_batches(spark, store, work / f"checkpoint-{number}")
                found = [part["triggerExecution"] for part in parts]
                pieces += parts[1:] if number else []
            if number:  # the first round starts Spark's workers
                cpu[side] += cpu_time().total - before
                # A new query plans for the first time in its first micro-batch.
                taken[side] += found[1:]
    print(f"(a) {MICRO_BATCH:,} messages of 1 KiB, medians of {len(taken['batch'])}")
    middle = {side: statistics.median(seconds) for side, seconds in taken.items()}
    for side, seconds in middle.items():
        cpu_each = cpu[side] / rounds / count
        print(f"    {side:<12} {seconds:>6.2f} s   CPU {cpu_each:>5.2f} s   {spread(taken[side])}")
    print(f"    ratio {middle['micro-batch'] / middle['batch']:.2f} (at most 1.3)")
    medians = {name: statistics.median(part[name] for part in pieces) for name in PIECES}
    print("    of a micro-batch:", ", ".join(f"{n} {s:.2f} s" for n, s in medians.items()))


def spread(seconds: list[float]) -> str:
    """All measured values, smallest first."""
    return " ".join(f"{one:.2f}" for one in sorted(seconds))


# --- (b) from append to sink ----------------------------------------------------------------------


def latencies(
    stream: DataFrame, stamp: str, folder: Path, before_stop: Callable[[StreamingQuery], object]
) -> tuple[list[float], list[float]]:
    """Milliseconds from the time `stamp` of each row to the sink, and of each trigger, sorted."""
    found: list[float] = []

    def arrived(frame: DataFrame, number: int) -> None:
        stamps = frame.selectExpr(f"unix_micros({stamp})").toArrow().column(0)
        now = time.time() * 1e6
        if number:  # the first micro-batch starts Spark's workers
            found.extend((now - one) / 1000 for one in stamps.to_pylist())

    writer = stream.writeStream.foreachBatch(arrived).option("checkpointLocation", str(folder))
    query: StreamingQuery = writer.trigger(processingTime="0 seconds").start()
    before_stop(query)
    triggers = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["batchId"]]
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    return sorted(found), sorted(triggers)


def append_to(path: Path, stopped: threading.Event) -> None:
    """Append messages, one at a time, until the event is set."""
    with MessageStore.append_to(path) as writer:
        number = 0
        while not stopped.wait(1 / PER_SECOND):
            message = {"topic": "orders", "queueId": number % QUEUES, "body": b"x" * 1024}
            writer.append({**message, "keys": str(number)})
            number += 1


def from_append_to_sink(spark: SparkSession, work: Path, seconds: float) -> None:
    """(b), printed."""
    store = work / "live"
    with MessageStore.create(store) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b"first", "keys": "k"})
    stopped = threading.Event()
    writer_thread = threading.Thread(target=append_to, args=(store, stopped))

    def append_for_a_while(query: StreamingQuery) -> None:
        writer_thread.start()
        time.sleep(seconds)
        stopped.set()
        writer_thread.join()
        query.processAllAvailable()

    ours = spark.readStream.format("rmqstore").option("columns", "storeTimestamp,body")
    rate = spark.readStream.format("rate").option("rowsPerSecond", PER_SECOND)
    print(f"(b) from append to sink, {PER_SECOND} messages/s, ProcessingTime 0")
    for name, stream, stamp, before_stop in (
        ("rmqstore", ours.load(str(store)), "storeTimestamp", append_for_a_while),
        ("rate", rate.load(), "timestamp", lambda query: time.sleep(seconds)),
    ):
        rows, triggers = latencies(stream, stamp, work / f"checkpoint-{name}", before_stop)
        print(
            f"    {name:<9} p50 {at(rows, 0.5):>5.0f} ms  p99 {at(rows, 0.99):>5.0f} ms  of "
            f"{len(rows)} rows; trigger p50 {at(triggers, 0.5):>4.0f} ms  "
            f"p99 {at(triggers, 0.99):>4.0f} ms"
        )


def at(values: list[float], share: float) -> float:
    """A quantile of sorted values; nan without any."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


# --- (c) many queues ------------------------------------------------------------------------------


def many_queues(work: Path, rounds: int) -> None:
    """(c), printed."""
    print("(c) the driver's calls, medians in ms (CPU ms), and the size of the offset")
    sizes = (10, MANY_QUEUES)
    calls: dict[int, dict[str, list[tuple[float, float]]]] = {count: {} for count in sizes}
    readers, writers, offsets = {}, {}, {}
    for count in sizes:
        path = work / f"queues-{count}"
        writers[count] = MessageStore.create(path)
        writers[count].append_batch(_one_each(count))
        source = RmqStoreSource({"path": str(path), "startingOffsets": "earliest"})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RmqStoreStreamReader)
        readers[count] = reader
        began = time.perf_counter()
        start = reader.initialOffset()
        print(f"    {count:>6} queues: a new query starts in {time.perf_counter() - began:.2f} s")
        offsets[count] = reader.latestOffset(start, reader.getDefaultReadLimit())
    for _ in range(rounds):
        for count in sizes:
            reader, before = readers[count], offsets[count]
            look = partial(reader.latestOffset, before, reader.getDefaultReadLimit())
            _timed(calls[count], "latestOffset, idle", look)
            writers[count].append_batch(_one_each(10))
            after = _timed(calls[count], "latestOffset, 10 new messages", look)
            _timed(calls[count], "partitions", partial(reader.partitions, before, after))
            offsets[count] = after
    for count in sizes:
        writers[count].close()
        size = len(json.dumps(offsets[count]))
        print(f"    {count:>6} queues: offset {size} bytes")
        for name, taken in calls[count].items():
            wall, cpu = (statistics.median(one[n] for one in taken) * 1000 for n in (0, 1))
            print(f"           {name:<30} {wall:>6.2f} ({cpu:.2f})")


def _one_each(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": [f"topic-{number % 100}" for number in range(count)],
            "queueId": pa.array([number // 100 for number in range(count)], pa.int32()),
            "body": pa.array([b"body"] * count),
            "keys": [f"k{number}" for number in range(count)],
        }
    )


def _timed(calls: dict[str, list[tuple[float, float]]], name: str, call: Callable[[], Any]) -> Any:
    began, cpu = time.perf_counter(), time.process_time()
    found = call()
    took = time.perf_counter() - began, time.process_time() - cpu
    calls.setdefault(name, []).append(took)
    return found


def main() -> None:
    """Print the three measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer rounds")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder")
    given = parser.parse_args()
    count, rounds, seconds = (4, 2, 15.0) if given.small else (6, 4, 45.0)
    load = os.getloadavg()[0]
    print(f"local[{given.cores}], {os.cpu_count()} cores, load before the start {load:.1f}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        many_queues(Path(name), 5 * rounds)
        spark = builder_for("benchmark", f"local[{given.cores}]").getOrCreate()
        compare(spark, Path(name), count, rounds)
        from_append_to_sink(spark, Path(name), seconds)
        spark.stop()


if __name__ == "__main__":
    main()
