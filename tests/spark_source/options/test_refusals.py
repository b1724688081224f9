"""What cannot be read is refused by the source with what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_store import StoreError
from tests.support.damage import flip, write_at
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.spark.loads import load, refusal
from tests.support.spark.reads import rows_of


@pytest.mark.parametrize("more", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_a_table_of_the_catalog_is_refused_with_what_to_use(
    spark: SparkSession, golden: Golden, more: str
) -> None:
    path = golden("clean-5.5.0").path
    reported = refusal(lambda: spark.sql(f"CREATE TABLE kept USING rmqstore {more.format(path)}"))
    assert "CREATE TABLE is not supported" in reported
    assert "CREATE TEMPORARY VIEW" in reported
    assert not spark.catalog.tableExists("kept")


@pytest.mark.campaign
def test_an_end_of_a_stream_is_refused_with_a_sentence(spark: SparkSession, golden: Golden) -> None:
    path = golden("clean-5.5.0").path

    def stream() -> None:
        streamed = spark.readStream.format("rmqstore").option("endingOffsets", "latest").load(path)
        query = streamed.writeStream.format("memory").queryName("refused").start()
        query.processAllAvailable()

    message = refusal(stream)
    assert "'endingOffsets' has no meaning in a stream" in message.splitlines()[0]
    assert "availableNow" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "orders"}, "Did you mean 'topic'"),
        ({"topic": "orders", "startingOffsets": '{"orders": {"0": 999999}}'}, "offset 999999"),
        ({"path": "{}/commitlog"}, "Did you mean {}"),
    ],
)
def test_a_refusal_is_the_first_line_of_what_spark_shows(
    spark: SparkSession, golden: Golden, options: dict[str, str], message: str
) -> None:
    path = golden("clean-5.5.0").path
    asked = {name: value.replace("{}", path) for name, value in options.items()}
    reader = spark.read.format("rmqstore").options(**{"path": path, **asked})
    said = refusal(reader.load)
    first_line = said.splitlines()[0]  # what a notebook shows, and all that many people read
    assert message.replace("{}", path) in first_line
    assert "RMQSTORE_" in first_line
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "order"}, "Did you mean 'orders'"),
        ({"assign": '{"orders": [9]}'}, "has no queue 9"),
        ({"columns": "bodi"}, "Did you mean 'body'"),
        ({"brokerConf": "nowhere.conf"}, "nowhere.conf"),
        ({"path": "nowhere"}, "there is no such folder"),
    ],
)
def test_a_wrong_option_is_refused_with_the_nearest_one(
    golden: Golden, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        rows_of({"path": golden("clean-5.5.0").path, **options})


def test_a_damaged_record_fails_the_query_with_file_and_offset(
    spark: SparkSession, copy: GoldenStore
) -> None:
    record = next(r for r in copy.truth if r["topic"] == "orders" and r["commitLogOffset"] > 9_000)
    log = sorted((Path(copy.path) / "commitlog").iterdir())[0]
    flip(log, record["commitLogOffset"] + 95)  # inside the body
    frame = load(spark, copy)
    message = refusal(lambda: frame.collect())
    assert "RMQSTORE_CORRUPT_RECORD" in message
    assert str(log) in message
    assert str(record["commitLogOffset"]) in message


def test_an_error_of_a_task_advises_options_of_the_source(
    spark: SparkSession, copy: GoldenStore
) -> None:
    write_at(min(Path(copy.path, "consumequeue/orders/1").iterdir()), 40 * 20, b"\xff" * 20)
    message = refusal(lambda: load(spark, copy, topic="orders").collect())
    assert "mode=DROPMALFORMED leaves it out" in message
    assert "Read with on_damage" not in message


def test_a_file_that_is_gone_fails_the_query_by_name(spark: SparkSession, tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    frame = load(spark, store)
    log = sorted((Path(store.path) / "commitlog").iterdir())[1]
    log.unlink()
    message = refusal(lambda: frame.collect())
    assert "RMQSTORE_MISSING_FILE" in message
