"""Streams as Spark runs them: micro-batches, checkpoints, restarts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rmq_store import MessageStore
from tests.conftest import GoldenStore

Golden = Callable[[str], GoldenStore]


def run(spark: SparkSession, store: Path, folder: Path, **options: str) -> StreamingQuery:
    """Copy what is there now into Parquet, by a query that goes on from its checkpoint."""
    stream = spark.readStream.format("rmqstore").options(**options).load(str(store))
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return query


def copied(spark: SparkSession, folder: Path) -> list[Any]:
    return sorted(
        tuple(row)
        for row in spark.read.parquet(str(folder / "out"))
        .select("topic", "queueId", "queueOffset", "body")
        .collect()
    )


def in_store(spark: SparkSession, store: Path) -> list[Any]:
    frame = spark.read.format("rmqstore").load(str(store))
    return sorted(
        tuple(row) for row in frame.select("topic", "queueId", "queueOffset", "body").collect()
    )


@pytest.mark.campaign
def test_a_query_that_starts_again_copies_what_is_new_once(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("clean-5.5.0").path, store)
    query = run(spark, store, tmp_path, startingOffsets="earliest", maxBytesPerTrigger="400k")
    assert len(query.recentProgress) >= 2
    assert copied(spark, tmp_path) == in_store(spark, store)
    with MessageStore.append_to(store) as writer:
        for number in range(40):
            writer.append({"topic": f"new-{number % 3}", "queueId": 1, "body": b"%d" % number})
    # The checkpoint decides where to go on, not the option.
    query = run(spark, store, tmp_path, startingOffsets="latest")
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 40
    assert copied(spark, tmp_path) == in_store(spark, store)
    (source,) = query.recentProgress[-1]["sources"]
    with MessageStore.open(store) as opened:
        end = opened.log_range()[1]
    for name in ("endOffset", "latestOffset"):
        (place,) = json.loads(source[name])["stores"].values()
        assert place["log"] == end
