"""`spark.read.format("rmqstore")` on stores that real brokers wrote."""

from __future__ import annotations

import base64
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from rmq_store.arrow.column_definitions import COLUMNS, DEFAULT_NAMES
from rmq_store.format.compression import SysFlag
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import Scan
from rmq_store.scan.tasks import Share
from rmq_store.snapshot.ranges import LogSlice
from spark_source.source import RmqStoreReader, RmqStoreSource
from spark_source.spark_types import spark_schema
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, in_a_queue, messages_in, user_topic
from tests.support.running.campaigns import few
from tests.support.spark.loads import load

CLEAN = [f"clean-{release}" for release in ("4.3.2", "4.9.0", "4.9.7", "5.1.1", "5.2.0")]
CLEAN += [f"clean-{release}" for release in ("5.3.3", "5.4.0", "5.5.0")]
CLEAN += [
    f"{kind}-5.5.0" for kind in ("crc", "direct", "ext", "geometry", "multipath", "proxy", "tsp")
]


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows as plain values; timestamps in milliseconds."""
    times = {name: F.unix_millis(name) for name in frame.columns if name.endswith("Timestamp")}
    return [row.asDict() for row in frame.withColumns(times).collect()]


def conf_with_log_paths(store: GoldenStore, folder: Path) -> str:
    """The store's broker.conf, and where its CommitLog is if that is not in one folder."""
    if not store.log_folders:
        return store.conf
    conf = folder / "broker.conf"
    (line,) = ("=".join(setting) for setting in store.log_folders.items())
    conf.write_text(Path(store.conf).read_text() + f"\n{line}\n")
    return str(conf)


def expected_row(record: dict[str, Any], broker_name: str) -> dict[str, Any]:
    """What the source has to say of a record of the truth."""
    stored = record["body"] if record["body"] is not None else ""
    body = record["bodyDecompressed"] if record["sysFlag"] & SysFlag.COMPRESSED else stored
    same = set(DEFAULT_NAMES) & set(record)
    return {
        **{name: record[name] for name in same},
        "brokerName": broker_name,
        "msgId": record["offsetMsgId"],
        "body": bytearray(base64.b64decode(body)),
        "rawBody": bytearray(base64.b64decode(stored)),
    }


@pytest.mark.parametrize("name", few("in Spark", CLEAN, "clean-4.3.2", "direct-5.5.0"))
def test_every_record_of_a_clean_store_comes_field_by_field(
    spark: SparkSession, golden: Golden, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    columns = [*DEFAULT_NAMES, "rawBody"]
    frame = load(
        spark,
        store,
        includeSystemTopics="true",
        brokerConf=conf_with_log_paths(store, tmp_path),
        brokerName="broker-a",
        unwrapBatches="false",
        columns=",".join(columns),
        maxBytesPerPartition="100k",
    )
    assert frame.columns == columns
    found = sorted(rows_of(frame), key=lambda row: row["commitLogOffset"])
    expected = [expected_row(record, "broker-a") for record in store.truth if in_a_queue(record)]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


@pytest.mark.parametrize("name", ["crash-5.5.0", "hot-5.5.0"])
def test_all_records_of_a_store_that_was_cut_off_come(
    spark: SparkSession, golden: Golden, name: str
) -> None:
    store = golden(name)
    frame = load(spark, store, includeSystemTopics="true", columns="commitLogOffset,topic,queueId")
    found = Counter(row["commitLogOffset"] for row in rows_of(frame))
    truth = {record["commitLogOffset"] for record in store.truth if in_a_queue(record)}
    assert set(found) >= truth
    assert set(found.values()) == {1}
    assert min(set(found) - truth, default=2**62) > max(truth)


def test_a_record_of_several_queues_comes_with_each(spark: SparkSession, golden: Golden) -> None:
    store = golden("lmq-5.3.3")
    light = load(spark, store, includeSystemTopics="true").where("topic like '%LMQ%'")
    expected = Counter(
        (queue, record["commitLogOffset"])
        for record in store.truth
        for queue in (record["properties"].get("INNER_MULTI_DISPATCH") or "").split(",")
        if queue.startswith("%LMQ%")
    )
    found = Counter((row["topic"], row["commitLogOffset"]) for row in rows_of(light))
    assert found == expected
    assert load(spark, store).count() == len([r for r in store.truth if user_topic(r)])


def test_partitions_are_neighbouring_slices_in_the_order_of_the_log(
    spark: SparkSession, clean: GoldenStore
) -> None:
    frame = load(spark, clean, maxBytesPerPartition="64k").select(
        "commitLogOffset", F.spark_partition_id().alias("part")
    )
    rows = frame.collect()
    assert [row.commitLogOffset for row in rows] == sorted(row.commitLogOffset for row in rows)
    assert len({row.part for row in rows}) >= 8


def test_columns_of_the_queue_are_split_by_entries_and_others_by_records(
    spark: SparkSession, clean: GoldenStore
) -> None:
    per_partition = 256 * 160  # bytes: as many as 256 entries count
    count = sum(messages_in(r) for r in clean.truth if in_a_queue(r) and user_topic(r))
    shares = -(-count // 256)
    assert shares > 1
    fields = [StructField("topic", StringType(), False), StructField("queueOffset", LongType())]
    reader = spark.read.format("rmqstore").option("maxBytesPerPartition", per_partition)
    few = reader.schema(StructType(fields)).load(clean.path)
    assert few.rdd.getNumPartitions() == shares
    assert few.count() == count
    # A check of the records, and a column of theirs, read the log.
    largest = max(record["storeSize"] for record in clean.truth)
    assert largest > 160
    for options in ({"columns": "topic", "verifyQueue": "true"}, {"columns": "topic,tags"}):
        frame = load(spark, clean, maxBytesPerPartition=str(per_partition), **options)
        assert frame.rdd.getNumPartitions() > shares
        assert frame.count() == count


def test_a_users_schema_chooses_the_columns(spark: SparkSession, clean: GoldenStore) -> None:
    schema = StructType([StructField("tags", StringType()), StructField("queueOffset", LongType())])
    frame = spark.read.format("rmqstore").schema(schema).option("topic", "orders").load(clean.path)
    found = Counter((row.tags, row.queueOffset) for row in frame.collect())
    orders = [record for record in clean.truth if record["topic"] == "orders"]
    assert found == Counter((record["tags"], record["queueOffset"]) for record in orders)


def test_an_empty_store_is_an_empty_frame_with_the_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    frame = load(spark, str(tmp_path / "store"))
    assert frame.columns == list(DEFAULT_NAMES)
    assert frame.collect() == []
    assert list((tmp_path / "store").rglob("*")) == [tmp_path / "store" / "commitlog"]


def test_a_view_and_sql_see_it_too(spark: SparkSession, golden: Golden) -> None:
    path = golden("clean-5.5.0").path
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages "
        f"USING rmqstore OPTIONS (path '{path}', topic 'orders')"
    )
    (row,) = spark.sql("SELECT count(*) AS n, min(queueId) AS q FROM messages").collect()
    truth = [record for record in golden("clean-5.5.0").truth if record["topic"] == "orders"]
    assert (row.n, row.q) == (len(truth), 0)


# --- what crosses a process -----------------------------------------------------------------------


def test_source_reader_and_partitions_pickle_small(clean: GoldenStore) -> None:
    source = RmqStoreSource({"path": clean.path, "maxbytesperpartition": "64k"})
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    assert len(partitions) > 8
    for one in (source, reader, *partitions):
        copy = pickle.loads(pickle.dumps(one))
        assert type(copy) is type(one)
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 300
    whole = [
        batch for part in partitions for batch in pickle.loads(pickle.dumps(reader)).read(part)
    ]
    truth = filter(user_topic, clean.truth)
    assert sum(batch.num_rows for batch in whole) == sum(map(messages_in, truth))


def test_the_first_batch_of_a_partition_is_small(golden: Golden) -> None:
    reader = RmqStoreReader(
        Scan.of(parse_options({"path": golden("clean-5.5.0").path})), spark_schema()
    )
    first = next(iter(reader.read(InputPartition((Share(0, LogSlice(None, None, 0)),)))))
    assert 0 < first.num_rows <= 256


def test_a_pinned_source_does_not_see_what_comes_later(copy: GoldenStore) -> None:
    """One snapshot serves every reader that Spark makes of the source."""
    source = RmqStoreSource({"path": copy.path, "topic": "payments"})
    before = count(source)
    queue = Path(copy.path) / "consumequeue" / "payments" / "1"
    last = sorted(queue.iterdir())[-1]
    content = last.read_bytes()
    used = len(content.rstrip(b"\0")) // 20 + 1
    write_at(last, used * 20, content[:20])  # an entry more, that leads to a record of this queue
    assert count(source) == before


def count(source: RmqStoreSource) -> int:
    reader = pickle.loads(pickle.dumps(source)).reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_every_column_can_be_asked_for(spark: SparkSession, golden: Golden) -> None:
    names = [column.name for column in COLUMNS]
    frame = load(spark, golden("direct-5.5.0"), columns=",".join(names))
    assert frame.columns == names
    assert frame.count() > 0
