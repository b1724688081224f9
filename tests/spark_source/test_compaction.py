"""Compaction topics in Spark: rows are those that a client pulled from the broker."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import Filter
from pyspark.sql.functions import unix_millis

from rmq_store import MessageStore, QueueId, QueueSlice
from rmq_store.errors import DataLossError, MissingFileError
from rmq_store.scan.parse_options import ScanOptions, parse_options
from rmq_store.scan.scan import Scan
from rmq_store.scan.tasks import DamageHandler, reporting_shares
from spark_source.source import RmqStoreSource
from tests.support.golden import unpack_kind
from tests.support.spark.loads import streamed
from tests.support.spark.reads import SERVED, options_of_served, partitions_of, rows_of, served

NAME, OTHER = "compacted-5.5.0", "compact-timer-5.5.0"
TOPIC = "state"


def read(options: dict[str, str], *filters: Filter) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows_of(options, filters))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "how",
    [
        {"minPartitions": "5"},
        {"splitBy": "queue", "minPartitions": "3"},
        {"maxRecordsPerPartition": "7"},
        {"maxBytesPerPartition": "2k"},
        {"verifyQueue": "true", "minPartitions": "4"},
    ],
    ids=lambda how: "-".join(how),
)
@pytest.mark.parametrize("name", [NAME, OTHER])
def test_partitions_give_what_a_client_got(tmp_path: Path, name: str, how: dict[str, str]) -> None:
    golden = unpack_kind(name, tmp_path)
    before = golden.fingerprint()
    tables = partitions_of(options_of_served(golden, **how))
    assert len(tables) > 1
    rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    assert sorted(rows) == served(golden)
    assert read(options_of_served(golden, topic=TOPIC, **how)) == served(golden, TOPIC)
    assert golden.fingerprint() == before


@pytest.mark.parametrize("more", [{"source": "commitlog"}, {"compacted": "false"}])
def test_all_messages_are_there_if_asked(tmp_path: Path, more: dict[str, str]) -> None:
    golden = unpack_kind(NAME, tmp_path)
    whole = sum(one["max"] for one in golden.answers("minMax") if one["queueId"] in (0, 1, 3))
    rows = read(options_of_served(golden, topic=TOPIC, minPartitions="3", **more))
    assert len(rows) == whole
    assert {row[:3] for row in rows} >= {row[:3] for row in served(golden, TOPIC)}


@pytest.mark.parametrize("name", [NAME, OTHER])
@pytest.mark.parametrize("columns", [SERVED, "topic,queueOffset"])
def test_what_was_compacted_away_is_not_missing(tmp_path: Path, name: str, columns: str) -> None:
    golden = unpack_kind(name, tmp_path)
    for topic in ({}, {"topic": TOPIC}):
        options = {"path": golden.path, "columns": columns, **topic}
        for more in ({}, {"verifyQueue": "true"}):
            scan = Scan.of(parse_options({**options, **more}))
            assert [share for share in reporting_shares(scan.stores) if share.lost] == []


def test_a_task_notices_that_the_broker_has_compacted_since_the_plan(tmp_path: Path) -> None:
    golden = unpack_kind(NAME, tmp_path)
    source = RmqStoreSource(options_of_served(golden, topic=TOPIC, minPartitions="3"))
    reader = source.reader(source.schema())
    partitions = list(reader.partitions())
    sent = pickle.loads(pickle.dumps((reader, partitions)))
    rows = [batch for one in sent[1] for batch in sent[0].read(one)]
    assert sum(batch.num_rows for batch in rows) == len(served(golden, TOPIC))
    for kind in ("compactionCq", "compactionLog"):
        Path(golden.path, f"compaction/{kind}/{TOPIC}/1/{4140:020d}").unlink()
    with pytest.raises(DataLossError, match="compacted the queue since"):
        _ = [list(sent[0].read(one)) for one in sent[1]]


@pytest.mark.campaign
def test_a_query_and_a_stream_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """A stream has every message: the newer one of a key does not take back the one before."""
    golden = unpack_kind(NAME, tmp_path)
    before = golden.fingerprint()
    options = options_of_served(golden, minPartitions="3")
    frame = spark.read.format("rmqstore").options(**options).load()
    assert sorted(tuple(row) for row in frame.collect()) == served(golden)
    states = spark.read.format("rmqstore").options(path=golden.path, topic=TOPIC).load()
    lines = [x for x in golden.lines("served") if x["topic"] == TOPIC]
    assert states.count() == len(lines)
    times = sorted(line["storeTs"] for line in lines)
    late = states.where(unix_millis("storeTimestamp") >= times[20])
    assert late.count() == sum(time >= times[20] for time in times)
    options = options_of_served(golden, topic=TOPIC)
    rows = streamed(spark, options, tmp_path / "checkpoint", "compaction_rows")
    whole = sum(one["max"] for one in golden.answers("minMax") if one["queueId"] in (0, 1, 3))
    assert len(rows) == whole
    assert golden.fingerprint() == before


def test_damage_of_files_for_compaction_is_no_expired_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the queue itself begins later than what consumers are served."""
    golden = unpack_kind("compacted-5.5.0", tmp_path)
    Path(golden.path, f"compaction/compactionLog/state/1/{4140:020d}").unlink()
    asked = ScanOptions(paths=(str(golden.path),), fail_on_data_loss=False)
    with MessageStore.open(golden.path) as store:
        monkeypatch.setattr(store.view.files(QueueId("state", 1)), "first_unit", 50)
        handler = DamageHandler(store, asked)
        with pytest.raises(MissingFileError, match="compactionLog"):
            store.read_slices(
                [QueueSlice(QueueId("state", 1), 11, 42)], on_damage=handler
            ).read_all()
    assert not handler.counts
