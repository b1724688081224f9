"""df.write and df.writeStream as Spark runs them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rmq_store import MessageStore
from rmq_store.format.compression import SysFlag
from tests.support.expected import members
from tests.support.golden import Golden, bodies_of, user_topic
from tests.support.spark.loads import refusal
from tests.support.writing.writes import left_beside

NAME = "clean-5.4.0"
# What does not depend on where in the log of a store a message lies.
SAME = (
    *("topic", "queueId", "queueOffset", "tags", "keys", "uniqKey", "flag", "bornTimestamp"),
    *("bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset"),
    *("body", "properties"),
)


def messages(spark: SparkSession, path: str | Path, **options: str) -> DataFrame:
    return spark.read.format("rmqstore").options(**options).load(str(path))


def rows_of(frame: DataFrame) -> list[Any]:
    def plain(value: Any) -> Any:
        return tuple(sorted(value.items())) if isinstance(value, dict) else value

    rows = frame.select(*SAME).collect()
    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


def save(frame: DataFrame, target: Path, mode: str = "append", **options: str) -> None:
    frame.write.format("rmqstore").mode(mode).options(**options).save(str(target))


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A broker.conf for targets that a test opens again and again, or reads byte by byte."""
    conf = tmp_path_factory.mktemp("conf") / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=1048576\n")
    return str(conf)


def test_a_store_of_a_broker_is_read_written_and_read_again(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store, target = golden(NAME), tmp_path / "copy"
    source = messages(spark, store.path)
    save(source, target, keepTimestamps="true")
    assert rows_of(messages(spark, target)) == rows_of(source)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    # And against what the broker's own classes read in the first store.
    expected = []
    for record in store.truth:
        if not user_topic(record):
            continue
        if record["sysFlag"] & SysFlag.INNER_BATCH:
            bodies = [body for _, body, _ in members(record)]
        else:
            bodies = [bodies_of(record)[0]]
        expected += [(record["topic"], record["queueId"], body) for body in bodies]
    with MessageStore.open(target) as written:
        found = [
            (message.topic, message.queue_id, message.body)
            for queue in written.queues()
            for message in written.get_message(*queue, 0, max_messages=10**6).messages
        ]
        key = next(record for record in store.truth if user_topic(record) and record["keys"])
        word = key["keys"].split()[0]
        assert written.query_message(key["topic"], word)
    assert sorted(found) == sorted(expected)


def test_compressed_bodies_are_kept_with_raw_body(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    columns = "topic,queueId,sysFlag,rawBody,properties"
    source = messages(spark, golden(NAME).path, columns=columns)
    assert source.where("sysFlag & 1 = 1").count()
    save(source, tmp_path / "copy")
    both = [
        sorted(map(tuple, frame.where("sysFlag & 128 = 0").select("rawBody", "sysFlag").collect()))
        for frame in (source, messages(spark, tmp_path / "copy", columns=columns))
    ]
    assert [row for row in both[0] if row[1] & 1] == [row for row in both[1] if row[1] & 1]


def test_a_table_without_queues_becomes_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    target, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=65536\n")
    frame = spark.range(0, 600, 1, 3).selectExpr(
        "concat('order ', id) AS body",
        "if(id % 3 = 0, NULL, concat('k', id)) AS keys",
        "'A' AS tags",
    )
    options = {"topic": "orders", "queues": "5", "release": "4.9.7", "brokerConf": str(conf)}
    save(frame, target, **options)
    found = messages(spark, target)
    assert found.where("storeTimestamp > current_timestamp() - INTERVAL 10 MINUTES").count() == 600
    assert {row.tags for row in found.collect()} == {"A"}
    in_turn = found.where("keys IS NULL").groupBy("queueId").count().collect()
    assert {row["queueId"]: row["count"] for row in in_turn} == dict.fromkeys(range(5), 40)
    with MessageStore.open(target) as store:
        assert (store.log_range()[1] // 65536) >= 1
        assert store.geometry().mappedFileSizeCommitLog == 65536
        assert store.read_batches().read_all()["body"].to_pylist() == [
            b"order %d" % number for number in range(600)
        ]
    assert not (target / "abort.bak").exists()  # 4.9.7 does not leave it
    save(frame.limit(1), target, **options, ifExists="ignore")
    save(frame.limit(1), target, **options, flush="false")
    assert messages(spark, target).count() == 601


def count_of(target: Path) -> int:
    """How many messages a store has, asked without Spark."""
    with MessageStore.open(target) as store:
        return sum(map(len, store.view.ranges_of(store.topics())))


@pytest.mark.campaign
def test_modes(spark: SparkSession, tmp_path: Path, small_files: str) -> None:
    target = tmp_path / "store"
    frame = spark.range(10).selectExpr("'t' AS topic", "cast(id AS string) AS body")
    for mode, count in (("overwrite", 10), ("append", 20), ("overwrite", 10)):
        save(frame, target, mode, brokerConf=small_files)
        assert count_of(target) == count
    assert "cannot be written in the" in refusal(partial(save, frame, target, "ignore"))
    assert "ifExists" in refusal(lambda: save(frame, target, ifExists="error"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    reported = refusal(partial(save, frame, tmp_path / "other", "overwrite"))
    assert "RMQSTORE_NOT_A_STORE" in reported.splitlines()[0]
    assert count_of(target) == 10
    assert left_beside(target) == left_beside(tmp_path / "other") == []


def test_what_is_wrong_is_said_before_a_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "store"
    frame = spark.range(3).selectExpr("'t' AS topic", "'b' AS body", "'A' AS tag")
    assert "Did you mean 'tags'" in refusal(lambda: save(frame, target)).splitlines()[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.campaign
def test_a_failing_task_leaves_the_target_as_it_was(
    spark: SparkSession, tmp_path: Path, small_files: str
) -> None:
    target = tmp_path / "store"
    good = spark.range(0, 100, 1, 2).selectExpr("'t' AS topic", "cast(id AS string) AS body")
    bad = spark.range(0, 100, 1, 2).selectExpr(
        "if(id = 77, 'not a topic!', 't') AS topic", "cast(id AS string) AS body"
    )
    found = refusal(lambda: save(bad, target))
    assert "forbidden character" in found
    assert "row 27 of partition 1, counted from 0 (topic 'not a topic!')" in found
    assert "Traceback" not in found
    # Its time zone is not known: Spark takes such a time in that of the session.
    local = good.selectExpr("*", "timestamp_ntz'2026-01-02 00:00:00' AS bornTimestamp")
    assert "without a time zone" in refusal(lambda: save(local, target))
    assert list(tmp_path.iterdir()) == []
    save(good, target, brokerConf=small_files)
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    for mode in ("append", "overwrite"):
        assert "forbidden character" in refusal(partial(save, bad, target, mode))
    after = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert after == before
    assert left_beside(target) == []


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_a_stream_that_counts_replaces_its_store(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    counts = (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "100k")
        .load(golden(NAME).path)
        .groupBy("topic")
        .count()
        .selectExpr("'by-topic' AS topic", "topic AS keys", "cast(count AS string) AS body")
    )
    query = (
        counts.writeStream.format("rmqstore")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "counts"))
    )
    query.awaitTermination()
    assert len(query.recentProgress) >= 2
    written = messages(spark, tmp_path / "counts").select("keys", "body").collect()
    found = {row["keys"]: int(row["body"]) for row in written}
    counted = messages(spark, golden(NAME).path).groupBy("topic").count().collect()
    assert found == {row["topic"]: row["count"] for row in counted}
    assert len(written) == len(found)


@pytest.mark.campaign
def test_a_stream_says_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()

    def started(frame: DataFrame, **options: str) -> None:
        writer = frame.writeStream.format("rmqstore").options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "store"))
        query.awaitTermination()

    assert "'timestamp' is not a column of a store" in refusal(lambda: started(rate))
    good = rate.selectExpr("'t' AS topic", "cast(value AS string) AS body")
    assert "no meaning in a stream" in refusal(lambda: started(good, ifExists="error"))
