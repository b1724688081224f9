"""table=stream: what the checkpoint folder of a query says about its stores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.errors import InvalidArgumentError
from tests.support.golden import Golden
from tests.support.spark.reads import rows_of

NAME = "clean-5.4.0"


def progress(store: Path, checkpoint: Path) -> list[dict[str, Any]]:
    given = {"path": str(store), "table": "stream", "checkpointLocation": str(checkpoint)}
    return rows_of(given)


def copy(spark: SparkSession, store: Path, checkpoint: Path, source: str = "rmqstore") -> None:
    """Read what is there now by a query that goes on from its checkpoint."""
    stream = spark.readStream.format(source)
    if source == "rmqstore":
        stream = stream.option("startingOffsets", "earliest")
    writer = stream.load(str(store)) if source == "rmqstore" else stream.load()
    query = writer.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.campaign
def test_the_table_says_how_far_behind_a_query_is(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    shutil.copytree(golden(NAME).path, store)
    copy(spark, store, checkpoint)
    with MessageStore.open(store) as opened:
        given = opened.log_range()[1]
    newest = max(golden(NAME).truth, key=lambda record: int(record["commitLogOffset"]))
    with MessageStore.append_to(store) as writer:
        for number in range(40):
            writer.append({"topic": "new", "queueId": 0, "body": b"%d" % number, "keys": "k"})
    with MessageStore.open(store) as opened:
        end = opened.log_range()[1]
    (row,) = progress(store, checkpoint)
    assert row["logOffset"] == given
    assert (row["logEnd"], row["bytesBehind"]) == (end, end - given)
    assert row["storeTimestamp"].timestamp() * 1000 == newest["storeTimestamp"]
    assert row["batchId"] == row["plannedBatchId"] == 0
    assert row["problem"] is None

    copy(spark, store, checkpoint)
    (row,) = progress(store, checkpoint)
    assert (row["batchId"], row["logOffset"], row["bytesBehind"]) == (1, end, 0)
    planned = checkpoint / "offsets" / "1"
    planned.write_text(planned.read_text() + "\n-")  # a second source, which gave nothing
    assert progress(store, checkpoint) == [row]
    (checkpoint / "commits" / "1").unlink()  # killed before it could commit
    (row,) = progress(store, checkpoint)
    assert (row["batchId"], row["plannedBatchId"], row["logOffset"]) == (0, 1, given)

    shutil.rmtree(store)
    shutil.copytree(golden("clean-5.3.3").path, store)
    (row,) = progress(store, checkpoint)
    assert "RMQSTORE_OTHER_STORE" in row["problem"]
    assert row["bytesBehind"] is None


def test_the_folder_of_another_query_is_refused(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = Path(golden(NAME).path)
    with pytest.raises(InvalidArgumentError, match="no folder 'offsets'"):
        progress(store, tmp_path)
    copy(spark, store, tmp_path / "rate", "rate")
    with pytest.raises(InvalidArgumentError, match="a stream of rmqstore"):
        progress(store, tmp_path / "rate")


@pytest.mark.parametrize(
    "options", [{"table": "stream"}, {"checkpointLocation": "c"}], ids=["table", "folder"]
)
def test_table_and_folder_need_each_other(golden: Golden, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="need each other"):
        rows_of({"path": golden(NAME).path, **options})
