"""What only Spark itself can show: filters handed down or not, one snapshot, views, tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rmq_store import MessageStore
from tests.support.damage import flip_in_log
from tests.support.golden import Golden, unpack
from tests.support.spark.loads import load

NAME = "clean-5.4.0"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """The switch, on and off."""
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, "false")


def test_a_filter_has_the_same_rows_with_the_switch_on_and_off(
    spark: SparkSession, golden: Golden, pushdown: str
) -> None:
    store = golden(NAME)
    wanted = [
        r
        for r in store.truth
        if (r["topic"], r["queueId"]) == ("orders", 1) and r["queueOffset"] < 9
    ]
    chosen = load(spark, store).where("topic = 'orders' AND queueId = 1 AND queueOffset < 9")
    assert {row["commitLogOffset"] for row in chosen.collect()} == {
        r["commitLogOffset"] for r in wanted
    }


def test_one_snapshot_a_load_while_the_store_grows(spark: SparkSession, tmp_path: Path) -> None:
    """A self-join, a repeated count and a filter see the same offsets; a new load sees more."""
    store = unpack(NAME, tmp_path)
    frame = load(spark, store, topic="orders", columns="queueId,queueOffset,commitLogOffset")
    before = frame.count()
    with MessageStore.append_to(store.path) as writer:
        for number in range(50):
            writer.append({"topic": "orders", "queueId": 0, "body": b"%d" % number})
    joined = frame.alias("a").join(frame.alias("b"), "commitLogOffset")
    assert (joined.count(), frame.count(), frame.where("queueId >= 0").count()) == (before,) * 3
    assert load(spark, store, topic="orders").count() == before + 50
    assert load(spark, store, topic="orders", keys="none-such").count() == 0


def test_modes_and_tables_work_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    record = next(r for r in store.truth if r["topic"] == "orders" and len(r["body"]) > 40)
    flip_in_log(store, record["commitLogOffset"] + 95)
    reported = load(spark, store, topic="orders", mode="PERMISSIVE")
    (row,) = reported.where("corruptRecord IS NOT NULL").collect()
    assert row["commitLogOffset"] == record["commitLogOffset"]
    total = len([r for r in store.truth if r["topic"] == "orders"])
    assert reported.count() == total
    assert load(spark, store, topic="orders", mode="DROPMALFORMED").count() == total - 1
    (damage,) = load(spark, store, topic="orders", table="damage").collect()
    assert damage["commitLogOffset"] == record["commitLogOffset"]
    queues = load(spark, store, table="queues").where("topic = 'orders'")
    assert queues.agg(F.sum("messages")).first()[0] == total  # type: ignore[index]
    plan = load(spark, store, topic="orders", columns="topic", table="plan").collect()
    assert [row["readsLog"] for row in plan] == [False]


def test_several_stores_load_as_a_list(spark: SparkSession, tmp_path: Path) -> None:
    paths = []
    for broker, name in (("broker-a", NAME), ("broker-b", "clean-5.2.0")):
        Path(unpack(name, tmp_path).path).rename(tmp_path / broker)
        paths.append(str(tmp_path / broker))
    frame = spark.read.format("rmqstore").option("columns", "brokerName").load(paths)
    found = {row["brokerName"] for row in frame.distinct().collect()}
    assert found == {"broker-a", "broker-b"}
