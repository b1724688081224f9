"""Compare the Spark source with the limit of its API and with Parquet: all in one run, alternating.

    python -m benchmarks.spark                         # everything; needs about 20 GB of disk
    python -m benchmarks.spark --messages 2e5 --day-messages 5e5   # a quick look

`local[2]`, page cache warm, medians. `floor` is a source that returns one prebuilt batch again and
again: the time that Spark itself needs for as many rows. (a) whole store, all columns, with one
layout of properties and with 20 of random lengths ("mixed"), (b) columns of the queue, (c) one key
among many, (d) an hour of one topic out of a day, (e) messages counted by queue. CPU is seconds of
processor time for a million rows, of the JVM and of all Python processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.cpu_time import CpuTime, cpu_time
from benchmarks.traffic import mixed
from rmq_store import MessageStore
from spark_source.spark_types import arrow_schema_for, batch_for_spark, spark_schema

TOPICS, QUEUES = 4, 4
BATCH = 8192
DAY_MS = 86_400_000
MIDNIGHT_MS = 1_777_593_600_000
OF_THE_QUEUE = ("topic", "queueId", "queueOffset", "commitLogOffset")
HOUR = 12


class FloorSource(DataSource):
    """Returns the batch in the file `path` repeatedly, `rows` rows in total in `partitions`
    partitions."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> StructType:
        return spark_schema(self.options["names"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = dict(self.options)
        return FloorReader(
            options["path"], int(options["rows"]), int(options["partitions"]), schema
        )


class FloorReader(DataSourceReader):
    """Reads only that batch."""

    def __init__(self, path: str, rows: int, partitions: int, schema: StructType) -> None:
        self.path, self.rows, self.count, self.wanted = path, rows, partitions, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self.path) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        share = self.rows * (partition.value + 1) // self.count
        left = share - self.rows * partition.value // self.count
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def batches_of(
    count: int, body_bytes: int, *, hours: Sequence[int] = range(24), topics: int = TOPICS
) -> Iterator[pa.RecordBatch]:
    """Messages with random bodies and keys, their store times spread evenly over `hours` of a day."""
    random = np.random.default_rng(7)
    span = len(hours) * DAY_MS // 24
    for start in range(0, count, BATCH):
        number = np.arange(start, min(start + BATCH, count))
        rows = len(number)
        body = random.bytes(rows * body_bytes)
        ends = np.arange(0, rows * body_bytes + 1, body_bytes, dtype=np.int32)
        bodies = pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(body)]
        )
        words = pc.cast(pa.array(number * 2_654_435_761 % 2**40), pa.string())
        stored = MIDNIGHT_MS + hours[0] * DAY_MS // 24 + number * span // count
        yield pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([f"order-topic-{i}" for i in range(topics)]).take(
                    pa.array(number % topics)
                ),
                "queueId": pa.array((number // topics % QUEUES).astype(np.int32)),
                "body": bodies,
                "tags": pa.array([f"Tag{i}" for i in range(5)]).take(pa.array(number % 5)),
                "keys": pc.binary_join_element_wise("K", words, ""),
                "uniqKey": pc.binary_join_element_wise(
                    "7F000001", pc.utf8_lpad(pc.cast(pa.array(number), pa.string()), 24, "0"), ""
                ),
                "bornTimestamp": pa.array(stored),
                "storeTimestamp": pa.array(stored),
            }
        )


def mixed_batches_of(count: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """Messages with random bodies and mixed properties."""
    pairs = zip(mixed(count, body_bytes), batches_of(count, body_bytes), strict=True)
    for batch, other in pairs:
        yield batch.set_column(batch.schema.get_field_index("body"), "body", other["body"])


def make_store(path: Path, batches: Iterator[pa.RecordBatch]) -> Path:
    """A new store of these messages."""
    with MessageStore.create(path) as writer:
        for batch in batches:
            writer.append_batch(batch)
    return path


def key_of(number: int) -> str:
    """The key of a message by its number."""
    return f"K{number * 2_654_435_761 % 2**40}"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one side takes, in the middle of all rounds."""

    seconds: float
    cpu: CpuTime

    def line(self, name: str, rows: int) -> str:
        """As one line, with processor time for a million rows."""
        jvm, python = (1e6 * part / rows for part in (self.cpu.jvm, self.cpu.python))
        return f"   {name:<8} {self.seconds:>6.2f} s   CPU: JVM {jvm:.2f} s, Python {python:.2f} s"


class Bench:
    """The sides of a comparison, run in turn."""

    def __init__(self, spark: SparkSession, rounds: int) -> None:
        self.spark, self.rounds = spark, rounds

    def load(self, store: Path, **options: str) -> DataFrame:
        return self.spark.read.format("rmqstore").options(**options).load(str(store))

    def floor(self, work: Path, store: Path, names: Sequence[str], rows: int) -> DataFrame:
        """The floor for these columns: a batch of the store's rows, with the same number of
        partitions."""
        path = work / f"floor-{len(names)}.arrow"
        if not path.exists():
            schema = arrow_schema_for(spark_schema(names))
            with MessageStore.open(store) as opened:
                batch = batch_for_spark(next(opened.read_batches(columns=names)), schema)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as out:
                out.write_batch(batch)
        partitions = self.load(store, columns=",".join(names)).rdd.getNumPartitions()
        given = {"names": ",".join(names), "rows": str(rows), "partitions": str(partitions)}
        return self.spark.read.format("floor").options(**given).load(str(path))

    def compare(self, **sides: Callable[[], Any]) -> dict[str, Taken]:
        """The medians of each side. Every round runs all sides, after a warm-up round."""
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        cpu: dict[str, list[CpuTime]] = {name: [] for name in sides}
        for number in range(self.rounds + 1):
            for name, work in sides.items():
                begun, before = time.perf_counter(), cpu_time()
                work()
                if number:
                    seconds[name].append(time.perf_counter() - begun)
                    cpu[name].append(cpu_time() - before)
        return {name: Taken(statistics.median(seconds[name]), middle(cpu[name])) for name in sides}


def middle(times: Sequence[CpuTime]) -> CpuTime:
    """The medians of processor times."""
    return CpuTime(
        statistics.median(one.jvm for one in times), statistics.median(one.python for one in times)
    )


def sink(frame: DataFrame) -> Callable[[], None]:
    """All rows to nowhere."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def show(
    title: str, rows: int, taken: dict[str, Taken], aim: str, *, inverse: bool = False
) -> None:
    """One comparison: each side, and the first divided by the others (`inverse`: the reverse)."""
    print(f"\n{title}")
    for name, one in taken.items():
        print(one.line(name, rows))
    first, *others = taken
    for name in others:
        ratio = taken[first].seconds / taken[name].seconds
        pair = f"{name}/{first} {1 / ratio:.2f}" if inverse else f"{first}/{name} {ratio:.2f}"
        print(f"   {pair}", end="")
    print(f"   ({aim})", flush=True)


Making = Callable[[int, int], Iterator[pa.RecordBatch]]


def whole(bench: Bench, work: Path, count: int, body_bytes: int, kind: str, making: Making) -> None:
    """(a) on a new store, which stays, with the same rows as Parquet."""
    store = make_store(store_of(work, body_bytes, kind), making(count, body_bytes))
    names = spark_schema().fieldNames()
    parquet = str(store.with_suffix(".parquet"))
    ours = bench.load(store)
    ours.write.parquet(parquet)
    taken = bench.compare(
        ours=sink(ours),
        floor=sink(bench.floor(work, store, names, count)),
        parquet=sink(bench.spark.read.parquet(parquet)),
    )
    (work / f"floor-{len(names)}.arrow").unlink()
    rate = f"{count / taken['ours'].seconds / 1e3:.0f} k messages/s"
    show(
        f"(a) {count} x {body_bytes} B, {kind}, all columns, {rate}",
        count,
        taken,
        "floor: aim 1.15, must 1.3; parquet: aim 1.2, must 1.5",
    )


def store_of(work: Path, body_bytes: int, kind: str) -> Path:
    """Where the store of these messages is."""
    return work / f"{kind.replace(' ', '-')}-{body_bytes}"


def narrow(bench: Bench, work: Path, count: int, body_bytes: int) -> None:
    """(b) and (e) on the store of one layout."""
    store = store_of(work, body_bytes, "one layout")
    few = bench.load(store, columns=",".join(OF_THE_QUEUE))
    taken = bench.compare(ours=sink(few), floor=sink(bench.floor(work, store, OF_THE_QUEUE, count)))
    (work / f"floor-{len(OF_THE_QUEUE)}.arrow").unlink()
    title = f"(b) {count} x {body_bytes} B, columns of the queue"
    show(title, count, taken, "floor: aim 1.1, must 1.2")

    # A new frame each time, because a collected frame keeps its shuffle data.
    def counted(frame: DataFrame) -> None:
        assert len(frame.groupBy("topic", "queueId").count().collect()) == TOPICS * QUEUES

    parquet = str(store.with_suffix(".parquet"))
    taken = bench.compare(
        ours=lambda: counted(bench.load(store, columns="topic,queueId")),
        parquet=lambda: counted(bench.spark.read.parquet(parquet)),
    )
    title = f"(e) {count} x {body_bytes} B, counted by queue, the log not opened, load included"
    show(title, count, taken, "no aim")


def one_key(bench: Bench, work: Path, store: Path, count: int) -> None:
    """(c) select * where one key."""
    parquet = str(work / "keys-parquet")
    bench.load(store).write.parquet(parquet)
    key = key_of(count * 2 // 3)
    scan = bench.spark.read.parquet(parquet).where(f"keys = '{key}'")

    def ours() -> None:
        assert len(bench.load(store, keys=key).collect()) == 1

    def theirs() -> None:
        assert len(scan.collect()) == 1

    taken = bench.compare(ours=ours, parquet=theirs)
    title = f"(c) one key of {count} messages of 1 KiB, load included"
    show(title, count, taken, "aim 60, must 40", inverse=True)


def one_hour(bench: Bench, work: Path, day: Path, count: int) -> None:
    """(d) an hour of one topic out of a day, against a store that holds nothing else."""
    begin = MIDNIGHT_MS + HOUR * DAY_MS // 24
    times = {"startingTimestamp": str(begin), "endingTimestamp": str(begin + DAY_MS // 24)}
    picked = bench.load(day, topic="order-topic-1", **times)
    rows = picked.count()
    alone = make_store(work / "hour", batches_of(rows, 1024, hours=[HOUR], topics=1))
    taken = bench.compare(ours=sink(picked), alone=sink(bench.load(alone)))
    show(f"(d) {rows} of {count} messages: an hour of one topic", rows, taken, "must 1.2")
    begun = time.perf_counter()
    bench.load(day, topic="order-topic-1", **times)
    print(
        f"   planning apart: {time.perf_counter() - begun:.2f} s, a Python process to start included"
    )


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--messages", type=float, default=1e6, help="of each store of (a), (b), (e)"
    )
    parser.add_argument("--day-messages", type=float, default=5e6, help="of that of (c) and (d)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="abcde", help="which of the comparisons, by letter")
    parser.add_argument("--folder", type=Path, help="where stores and Parquet are made")
    chosen = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.dataSource.register(FloorSource)
    bench = Bench(spark, chosen.rounds)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        work = Path(folder)
        if set("abe") & set(chosen.only):
            count = int(chosen.messages)
            for body_bytes in (1024, 100):
                whole(bench, work, count, body_bytes, "one layout", batches_of)
                narrow(bench, work, count, body_bytes)
                whole(bench, work, count, body_bytes, "mixed", mixed_batches_of)
        if set("cd") & set(chosen.only):
            count = int(chosen.day_messages)
            day = make_store(work / "day", batches_of(count, 1024))
            if "d" in chosen.only:
                one_hour(bench, work, day, count)
            if "c" in chosen.only:
                one_key(bench, work, day, count)
    spark.stop()


if __name__ == "__main__":
    main()
