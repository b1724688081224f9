"""Real brokers boot on what df.write and df.writeStream wrote, and hand out each message."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store.testing.live_broker.harness import boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.live_brokers import read_by_key
from tests.support.running.campaigns import some

MESSAGES = 20_000
KEYS_ASKED = 1_000
QUEUES = 4
TOPICS = ("orders", "payments")
SEED = 20261122
CONF = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 5_003,
    "maxIndexNum": 9_000,
}

pytestmark = pytest.mark.live


@pytest.mark.parametrize("release", some("by Spark", ["5.5.0", "4.9.7"], 2))
def test_a_broker_serves_what_spark_wrote(
    spark: SparkSession, release: str, tmp_path: Path
) -> None:
    need_jars(release)
    print(f"seed {SEED}")
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in CONF.items()))
    options = {"brokerConf": str(conf), "release": release, "queues": str(QUEUES)}
    frame = spark.range(0, MESSAGES, 1, 5).selectExpr(
        "if(id % 2 = 0, 'orders', 'payments') AS topic",
        "concat('message ', id, repeat('.', id % 300)) AS body",
        "if(id % 10 = 0, NULL, concat('KEY_', id)) AS keys",
        "concat('Tag', id % 3) AS tags",
        "timestamp_millis(1700000000000 + id) AS bornTimestamp",
    )
    written, mirror = tmp_path / "written", tmp_path / "mirror"
    for topic in TOPICS:  # the second one appends
        rows = frame.where(f"topic = '{topic}'")
        rows.write.format("rmqstore").mode("append").options(**options).save(str(written))
    query = (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "7000")
        .load(str(written))
        .writeStream.format("rmqstore")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(mirror))
    )
    query.awaitTermination()
    assert len(query.recentProgress) >= 3
    for store in (written, mirror):
        declared = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
        assert {declared[topic]["readQueueNums"] for topic in TOPICS} == {QUEUES}
        with boot_copy(store, tmp_path / f"run-{store.name}", release, CONF) as broker:
            check_by_offset(read_all(broker, TOPICS))
            chance = random.Random(SEED)
            asked = chance.sample([n for n in range(0, MESSAGES, 2) if n % 10], KEYS_ASKED)
            found = read_by_key(broker, "orders", [f"KEY_{number}" for number in asked])
            assert {row["foundBy"]: number_in(row) for row in found} == {
                f"KEY_{number}": number for number in asked
            }


def number_in(row: Any) -> int:
    return int(base64.b64decode(row["body"]).split()[1].rstrip(b"."))


def check_by_offset(rows: list[Any]) -> None:
    assert sorted(map(number_in, rows)) == list(range(MESSAGES))
    expected: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        number = number_in(row)
        place = (row["topic"], row["queueId"])
        assert row["topic"] == TOPICS[number % 2]
        assert row["properties"]["TAGS"] == f"Tag{number % 3}"
        assert row["properties"].get("KEYS") == (f"KEY_{number}" if number % 10 else None)
        assert row["bornTimestamp"] == 1_700_000_000_000 + number
        assert row["queueOffset"] == len(expected.setdefault(place, []))
        expected[place].append(number)
    # In each queue in the order of partition and row.
    assert all(numbers == sorted(numbers) for numbers in expected.values())
    assert {place[1] for place in expected} == set(range(QUEUES))
