"""Ten questions of operators: in SQL here, in local Spark, and in DuckDB over Parquet of the same rows.

    python -m benchmarks.sql                      # a million messages of 1 KiB
    python -m benchmarks.sql --messages 100000    # a quick look

Page cache warm, medians, alternating; all answers are compared. Here and in Spark the store is opened
for each question. Spark is `local[2]` and names the columns of each question, as its pages advise. The
Parquet file has what an export has: it is made beforehand, and the time for that stands below. The
processor time is that of all threads, and depends less on what else runs on the machine. The warnings
of Spark's planner, that it keeps a filter, are right and harmless: each question loads again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.traffic import one_layout
from rmq_store import MessageStore
from rmq_store.sql.database import StoreDatabase

DAY_MS, MIDNIGHT_MS = 86_400_000, 1_777_593_600_000
RETRIES, LARGE = 50, 1000  # one message in so many
GROUP = "g-orders"
_NOON = "TIMESTAMP '2026-05-01 12:00:00+00:00'"
_ONE = "TIMESTAMP '2026-05-01 13:00:00+00:00'"


class Question(NamedTuple):
    """A question, the same in both dialects of SQL, and the columns of `messages` that it names."""

    about: str
    sql: str
    columns: str


def questions(count: int) -> list[Question]:
    """Those of a store of so many messages."""
    one = count // 3
    return [
        Question(
            "messages by topic", "SELECT topic, count(*) n FROM messages GROUP BY topic", "topic"
        ),
        Question(
            "bytes by topic and hour",
            "SELECT topic, date_trunc('hour', storeTimestamp) h, CAST(sum(storeSize) AS BIGINT) b "
            "FROM messages GROUP BY topic, date_trunc('hour', storeTimestamp)",
            "topic, storeTimestamp, storeSize",
        ),
        Question(
            "one key",
            f"SELECT topic, queueId, queueOffset, body FROM messages WHERE keys = 'ORDER_{one}'",
            "topic, queueId, queueOffset, keys, body",
        ),
        Question(
            "one id",
            f"SELECT topic, queueId, queueOffset FROM messages WHERE uniqKey = '7F000001{one:024d}'",
            "topic, queueId, queueOffset, uniqKey",
        ),
        Question(
            "an hour of a topic, by tag",
            "SELECT tags, count(*) n FROM messages WHERE topic = 'order-topic-1' AND "
            f"storeTimestamp >= {_NOON} AND storeTimestamp < {_ONE} GROUP BY tags",
            "topic, tags, storeTimestamp",
        ),
        Question(
            "a range of a queue",
            "SELECT queueOffset, keys FROM messages WHERE topic = 'order-topic-2' AND queueId = 1 "
            f"AND queueOffset BETWEEN {count // 40} AND {count // 40 + 99}",
            "topic, queueId, queueOffset, keys",
        ),
        Question(
            "largest bodies",
            "SELECT keys, octet_length(body) n FROM messages ORDER BY n DESC, keys LIMIT 10",
            "keys, body",
        ),
        Question(
            "slowest keys: from producer to store",
            "SELECT keys FROM messages ORDER BY storeTimestamp - bornTimestamp DESC, keys LIMIT 10",
            "keys, bornTimestamp, storeTimestamp",
        ),
        Question(
            "retries by topic",
            "SELECT topic, reconsumeTimes, count(*) n FROM messages WHERE reconsumeTimes > 0 "
            "GROUP BY topic, reconsumeTimes",
            "topic, reconsumeTimes",
        ),
        Question(
            "what a consumer has not read, by tag",
            "SELECT m.topic, m.tags, count(*) n FROM messages m JOIN groups o ON m.topic = o.topic AND "
            f"m.queueId = o.queueId WHERE o.consumerGroup = '{GROUP}' AND "
            "m.queueOffset >= o.consumerOffset GROUP BY m.topic, m.tags",
            "topic, queueId, queueOffset, tags",
        ),
    ]


def traffic(count: int, body_bytes: int) -> Iterator[pa.RecordBatch]:
    """A day of messages: some sent again, some large, each with a delay before it is stored."""
    chance, done = np.random.default_rng(7), 0
    large = pa.array([chance.bytes(20 * body_bytes)], pa.binary())
    for batch in one_layout(count, body_bytes):
        number = np.arange(done, done + batch.num_rows)
        done += batch.num_rows
        stored = MIDNIGHT_MS + number * DAY_MS // count
        delays = (chance.exponential(5, len(number)) * 1000).astype(np.int64)
        times = np.where(number % RETRIES == 0, number // RETRIES % 3 + 1, 0)
        bodies = pc.if_else(pa.array(number % LARGE == 7), large[0], batch.column("body"))
        batch = batch.set_column(batch.schema.get_field_index("body"), "body", bodies)
        at = batch.schema.get_field_index("bornTimestamp")
        batch = batch.set_column(at, "bornTimestamp", pa.array(stored - delays))
        batch = batch.append_column("storeTimestamp", pa.array(stored))
        yield batch.append_column("reconsumeTimes", pa.array(times, pa.int32()))


def make_store(path: Path, count: int, body_bytes: int) -> None:
    """The store, with a consumer that has read nine messages of ten."""
    with MessageStore.create(path) as writer:
        for batch in traffic(count, body_bytes):
            writer.append_batch(batch)
    with MessageStore.open(path) as store:
        table: dict[str, dict[str, int]] = {}
        for topic, queue_id in store.queues():
            table.setdefault(f"{topic}@{GROUP}", {})[str(queue_id)] = (
                store.max_offset(topic, queue_id) * 9 // 10
            )
    config = path / "config"
    config.mkdir(exist_ok=True)
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def make_parquet(path: Path, folder: Path) -> tuple[float, float]:
    """Messages and consumer groups of a store as Parquet. Returns seconds, and bytes."""
    start = time.perf_counter()
    with MessageStore.open(path) as store:
        rows = store.read_batches()
        with pq.ParquetWriter(folder / "messages.parquet", rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        pq.write_table(store.table("groups"), folder / "groups.parquet")
    taken = time.perf_counter() - start
    return taken, sum(one.stat().st_size for one in folder.glob("*.parquet"))


IN_THIS_PROCESS = ("here", "parquet")  # whose processor time this one can tell
Side = Callable[[Question], pa.Table]


def here(path: Path) -> Side:
    def ask(question: Question) -> pa.Table:
        with MessageStore.open(path) as store, StoreDatabase(store.messages(), [store]) as database:
            (answer,) = database.answers(question.sql)
            assert answer.rows is not None
            return answer.rows.read_all()

    return ask


def over_parquet(folder: Path) -> Side:
    def ask(question: Question) -> pa.Table:
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            for name in ("messages", "groups"):
                database.execute(f"CREATE VIEW {name} AS FROM '{folder / name}.parquet'")
            return database.sql(question.sql).to_arrow_table()

    return ask


def in_spark(path: Path, spark: SparkSession) -> Side:
    def ask(question: Question) -> pa.Table:
        read = spark.read.format("rmqstore").option("columns", question.columns)
        read.load(str(path)).createOrReplaceTempView("messages")
        if "JOIN groups" in question.sql:
            spark.read.format("rmqstore").option("table", "groups").load(
                str(path)
            ).createOrReplaceTempView("groups")
        return spark.sql(question.sql).toArrow()

    return ask


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr([_plain(value) for value in row.values()]) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    return value.isoformat()[:19] if hasattr(value, "isoformat") else value


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Make the store and its Parquet, ask each question of each side, print medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the store and the Parquet")
    parser.add_argument("--without-spark", action="store_true", help="only here and in Parquet")
    chosen = parser.parse_args()
    spark = None if chosen.without_spark else session()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as work:
        path, folder = Path(work) / "store", Path(work) / "parquet"
        folder.mkdir()
        make_store(path, chosen.messages, chosen.body_bytes)
        seconds, size = make_parquet(path, folder)
        sides = {"here": here(path)}
        if spark is not None:
            sides["spark"] = in_spark(path, spark)
        sides["parquet"] = over_parquet(folder)
        print(
            f"{chosen.messages:,} messages of {chosen.body_bytes} B: seconds, and of the processor"
        )
        heads = [*sides, *(f"{name} CPU" for name in IN_THIS_PROCESS)]
        print(f"{'':<40}" + "".join(f"{name:>13}" for name in heads))
        for question in questions(chosen.messages):
            taken: dict[str, list[float]] = {name: [] for name in heads}
            answers = {}
            for number in range(chosen.rounds + 1):
                for name, ask in sides.items():
                    start, busy = time.perf_counter(), time.process_time()
                    answers[name] = rows_of(ask(question))
                    if number:  # the first warms the page cache
                        taken[name].append(time.perf_counter() - start)
                        if name in IN_THIS_PROCESS:
                            taken[f"{name} CPU"].append(time.process_time() - busy)
            if any(rows != answers["parquet"] or not rows for rows in answers.values()):
                raise SystemExit(f"{question.about}: the answers differ, or are empty: {answers}")
            figures = "".join(f"{statistics.median(one):>13.3f}" for one in taken.values())
            print(f"{question.about:<40}{figures}", flush=True)
        print(f"Parquet made in {seconds:.1f} s, {size / 1e6:,.0f} MB")
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    main()
