"""Stores whose queues are in RocksDB, or in DLedger mode, in Spark: rows are those that a client pulled from
the broker."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import unix_millis

from rmq_store import QueueId
from rmq_store.errors import StoreError
from spark_source.source import RmqStoreSource
from tests.support.golden import GoldenStore, unpack_field, unpack_kind
from tests.support.rocksdb import write_queue_database
from tests.support.spark.loads import streamed
from tests.support.spark.reads import options_of_served, partitions_of, rows_of, served

CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_partitions_give_what_a_client_got(tmp_path: Path, name: str, source: str) -> None:
    golden = unpack_kind(name, tmp_path)
    before = golden.fingerprint()
    tables = partitions_of(options_of_served(golden, source=source, minPartitions="4"))
    assert len(tables) > 1
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert sorted(rows) == served(golden)
    assert golden.fingerprint() == before


def test_a_task_sees_the_plan_although_the_database_has_changed(tmp_path: Path) -> None:
    """A broker has added entries, and its compaction has replaced all files."""
    golden = unpack_kind(CLEAN, tmp_path)
    options, queue = (
        options_of_served(golden, minPartitions="3", topic="orders"),
        QueueId("orders", 1),
    )
    wanted = [row for row in served(golden) if row[0] == "orders"]
    source = RmqStoreSource(options)
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())
    folder = Path(golden.path, "consumequeue")
    shutil.rmtree(folder)
    entries: dict[QueueId, dict[int, tuple[int, int, int]]] = {}
    for _, number, offset, place, size, _ in wanted:
        entries.setdefault(QueueId("orders", number), {})[offset] = place, size, 0
    entries[queue] |= dict.fromkeys(range(112, 300), entries[queue][111])
    write_queue_database(folder, entries)
    sent = pickle.loads(pickle.dumps((reader, partitions)))
    found = [batch for partition in sent[1] for batch in sent[0].read(partition)]
    assert sorted(tuple(row.values()) for batch in found for row in batch.to_pylist()) == wanted
    shutil.rmtree(folder)
    with pytest.raises(StoreError):
        _ = [list(sent[0].read(partition)) for partition in sent[1]]


def test_an_end_that_only_the_log_has_comes_with_the_rest(tmp_path: Path) -> None:
    """The broker was killed after the database had been written: it lacks the last entries."""
    golden = unpack_kind(CRASHED, tmp_path)
    rows, entries = served(golden), dict[QueueId, dict[int, tuple[int, int, int]]]()
    middle = sorted(row[3] for row in rows)[len(rows) // 2]
    for topic, number, offset, place, size, _ in rows:
        if place <= middle:
            entries.setdefault(QueueId(topic, number), {})[offset] = place, size, 0
    shutil.rmtree(Path(golden.path, "consumequeue"))
    write_queue_database(Path(golden.path, "consumequeue"), entries)
    assert sorted(tuple(row.values()) for row in rows_of(options_of_served(golden))) == rows


@pytest.mark.campaign
def test_a_query_and_a_stream_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    golden = unpack_kind(CLEAN, tmp_path)
    before = golden.fingerprint()
    options = options_of_served(golden, minPartitions="3")
    frame = spark.read.format("rmqstore").options(**options).load()
    assert sorted(tuple(row) for row in frame.collect()) == served(golden)
    times = sorted(line["storeTs"] for line in golden.lines("served") if line["topic"] == "orders")
    orders = spark.read.format("rmqstore").options(path=golden.path, topic="orders").load()
    late = orders.where(unix_millis("storeTimestamp") >= times[200])
    assert late.count() == sum(time >= times[200] for time in times)
    options = options_of_served(golden)
    rows = streamed(spark, options, tmp_path / "checkpoint", "rocksdb_rows")
    assert sorted(tuple(row) for row in rows) == served(golden)
    assert golden.fingerprint() == before


def test_nothing_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    golden = unpack_kind(CLEAN, tmp_path)
    before = golden.fingerprint()
    frame = spark.createDataFrame([("orders", b"x")], "topic string, body binary")
    write = frame.write.format("rmqstore").mode("append").option("ifExists", "append")
    with pytest.raises(Exception, match="in a RocksDB database too"):
        write.save(golden.path)
    assert golden.fingerprint() == before


COLUMNS = "topic,queueId,queueOffset,commitLogOffset,storeSize,storeTimestamp,bodyCrc"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenStore:
    return unpack_kind("dledger-5.5.0", tmp_path_factory.mktemp("golden"))


def millis(row: dict[str, Any]) -> int:
    seconds: float = row["storeTimestamp"].timestamp()
    return round(seconds * 1000)


@pytest.mark.parametrize("source", ["queues", "commitlog"])
@pytest.mark.parametrize("size", ["20k", "1g"])
def test_rows_are_those_that_a_client_was_served(
    golden: GoldenStore, source: str, size: str
) -> None:
    options = {"path": golden.path, "brokerConf": golden.conf, "columns": COLUMNS}
    options |= {"maxbytesperpartition": size}
    options |= {} if source == "queues" else {"source": source}
    lines = golden.lines("served")
    rows = rows_of({**options, "topic": ",".join({line["topic"] for line in lines})})
    assert Counter(
        (r["topic"], r["queueId"], r["queueOffset"], r["commitLogOffset"], r["storeSize"])
        for r in rows
    ) == Counter((m["topic"], m["queue"], m["offset"], m["phy"], m["size"]) for m in lines)
    stored = {row["commitLogOffset"]: (millis(row), row["bodyCrc"]) for row in rows}
    assert stored == {line["phy"]: (line["storeTs"], line["bodyCrc"]) for line in lines}


def test_messages_of_a_time_of_a_store_with_two_logs(tmp_path: Path) -> None:
    root = unpack_field("mixed-dledger-old-log-there", tmp_path)
    options = {"path": str(root), "columns": COLUMNS, "maxbytesperpartition": "100k"}
    rows = rows_of(options)
    assert len(rows) == 3000
    times = sorted(millis(row) for row in rows)
    since = times[1500]
    wanted = Counter(row["commitLogOffset"] for row in rows if millis(row) >= since)
    for more in ({}, {"source": "commitlog"}):
        found = rows_of({**options, **more, "startingTimestamp": str(since)})
        assert Counter(row["commitLogOffset"] for row in found) == wanted
