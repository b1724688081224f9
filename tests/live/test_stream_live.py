"""readStream beside a broker that takes messages: killed queries and a killed broker lose nothing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_store import MessageStore
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.report import Report
from rmqstore_jobs.replaying.spec import ReplaySpec
from tests.live.support.harness import Broker
from tests.live.support.needs import need_jars

RELEASE = "5.5.0"
RATE = 1000  # messages a second
SECONDS = 60
TOPICS = ("a", "b", "c", "d")
STOPS = 4  # of the query
SEED = 20261122
# Small files, so that the log rolls every second.
CONF = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "20000"}

pytestmark = pytest.mark.live


def make_source(path: Path) -> None:
    count = RATE * SECONDS
    with MessageStore.create(path) as store:
        store.append_batch(
            pa.record_batch(
                {
                    "topic": pa.array([TOPICS[number % 4] for number in range(count)]),
                    "queueId": pa.array([number // 4 % 4 for number in range(count)], pa.int32()),
                    "keys": pa.array([f"k{number}" for number in range(count)]),
                    "body": pa.array([b"%06d " % number * 100 for number in range(count)]),
                }
            )
        )


def followed(spark: SparkSession, store: Path, folder: Path) -> StreamingQuery:
    stream = (
        spark.readStream.format("rmqstore")
        .option("topic", ",".join(TOPICS))
        .option("startingOffsets", "earliest")
        .option("columns", "topic, queueId, queueOffset, commitLogOffset, keys, body")
        .load(str(store))
    )
    writer = stream.writeStream.format("parquet").trigger(processingTime="0 seconds")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start(
        str(folder / "out")
    )


def copied_rows(query: StreamingQuery) -> int:
    error = query.exception()
    assert error is None, error
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def wait_for_rows(query: StreamingQuery, least: int, sending: Future[Report]) -> None:
    """Wait until a query has copied some rows, or all is sent."""
    pause = threading.Event()
    while copied_rows(query) < least and not sending.done():
        pause.wait(0.2)


def test_a_stream_has_each_message_once_over_stops_and_a_killed_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    need_jars(RELEASE, proxy=True)
    make_source(tmp_path / "source")
    topics = {topic: {"attributes": {"message.type": "NORMAL"}} for topic in TOPICS}
    chance = random.Random(SEED)
    with (
        Broker(RELEASE, tmp_path / "run", topics=topics, conf=CONF, proxy=True) as broker,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = ReplaySpec(
            str(tmp_path / "source"),
            to_broker=broker.grpc,
            failed=str(tmp_path / "failed"),
            rate=RATE,
        )
        sending = pool.submit(run, None, asked)
        for _ in range(STOPS):
            query = followed(spark, broker.store, tmp_path)
            wait_for_rows(query, chance.randrange(1000, 8000), sending)
            query.stop()  # in the midst of a micro-batch
        broker.kill()
        broker.start_again()
        query = followed(spark, broker.store, tmp_path)
        report = sending.result()
        assert report.ok, report.problems
        broker.stop()
        query.processAllAvailable()
        assert copied_rows(query) > 0
        query.stop()
        found = rows_of(spark.read.parquet(str(tmp_path / "out")))
        batch = spark.read.format("rmqstore").option("topic", ",".join(TOPICS))
        stored = rows_of(batch.load(str(broker.store)))
    assert len(set(stored)) >= RATE * SECONDS
    assert found == stored
    assert {key for *_, key, _ in found} == {f"k{number}" for number in range(RATE * SECONDS)}


def rows_of(frame: Any) -> list[Any]:
    chosen = frame.select("topic", "queueId", "queueOffset", "commitLogOffset", "keys", "body")
    return sorted(tuple(row) for row in chosen.collect())
