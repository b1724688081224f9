"""Replays into a running broker, through its proxy with the official client, read back by another."""

from __future__ import annotations

import base64
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.files.journal import JournalError
from rmq_store.testing.live_broker.harness import Broker, Row, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmqstore_jobs import dlq
from rmqstore_jobs.replay import main, run
from rmqstore_jobs.replaying.replay_question import ORIGIN, ORIGIN_PREFIX
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.job_command import EXIT_NOT_ALL, EXIT_STOPPED
from tests.support.golden import unpack
from tests.support.running.child import killed

RELEASE = "5.5.0"
MESSAGES = 20_000
QUEUES = 4
SEED = 20261121
TOPICS = ("plain-a", "plain-b", "fifo-a", "fifo-b")
FIFO = ("fifo-a", "fifo-b")
WAVE_BYTES = 1 << 20

pytestmark = pytest.mark.live

Place = tuple[str, int, int]


@dataclass
class Source:
    """A store with messages of four topics, and what is in it by topic, queue and offset."""

    path: Path
    rows: dict[Place, dict[str, Any]]


def make_source(path: Path) -> Source:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    offsets: Counter[tuple[str, int]] = Counter()
    rows: dict[Place, dict[str, Any]] = {}
    batch = []
    for number in range(MESSAGES):
        topic, queue_id = TOPICS[number % 4], chance.randrange(QUEUES)
        properties = {"TAGS": f"t{number % 7}", "KEYS": f"k{number} g{number % 50}"}
        properties |= {"number": str(number), "größe": "µ" * (number % 5 + 1)}
        row = {"topic": topic, "queueId": queue_id, "properties": properties}
        row["body"] = b"%06d " % number + chance.randbytes(chance.randrange(400))
        rows[topic, queue_id, offsets[topic, queue_id]] = row
        offsets[topic, queue_id] += 1
        batch.append({**row, "properties": list(properties.items())})
    schema = pa.schema(
        {
            "topic": pa.string(),
            "queueId": pa.int32(),
            "body": pa.binary(),
            "properties": pa.map_(pa.string(), pa.string()),
        }
    )
    with MessageStore.create(path, {"mappedFileSizeCommitLog": 2 << 20}) as store:
        for start in range(0, MESSAGES, 4000):
            some = batch[start : start + 4000]
            store.append_batch(pa.RecordBatch.from_pylist(some, schema=schema))
    return Source(path, rows)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return make_source(tmp_path_factory.mktemp("source") / "store")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    need_jars(RELEASE, proxy=True)
    kinds = {name: "FIFO" if "fifo" in name else "NORMAL" for name in TOPICS}
    kinds |= {f"again-{name}": kind for name, kind in kinds.items()}
    kinds |= {"odd": "NORMAL", "retrying": "NORMAL"}
    topics = {name: {"attributes": {"message.type": kind}} for name, kind in kinds.items()}
    work = tmp_path_factory.mktemp("broker")
    with Broker(RELEASE, work, topics=topics, proxy=True) as running:
        yield running


def spec(source: Path, broker: Broker, failed: Path, **more: Any) -> ReplaySpec:
    known: dict[str, Any] = {"broker_name": "old", "wave_bytes": WAVE_BYTES, **more}
    return ReplaySpec(str(source), to_broker=broker.grpc, failed=str(failed), **known)


def place_of(row: Row) -> Place:
    """Where a message that arrived stood in the source."""
    named = row["properties"]
    return (
        named[ORIGIN_PREFIX + "TOPIC"],
        int(named[ORIGIN_PREFIX + "QUEUE_ID"]),
        int(named[ORIGIN_PREFIX + "QUEUE_OFFSET"]),
    )


def assert_equal(row: Row, sent: dict[str, Any]) -> None:
    assert base64.b64decode(row["body"]) == sent["body"]
    arrived, wanted = row["properties"], sent["properties"]
    assert arrived["TAGS"] == wanted["TAGS"]
    assert sorted(arrived["KEYS"].split(" ")) == sorted(wanted["KEYS"].split(" "))
    assert {name: arrived[name] for name in ("number", "größe")} == {
        name: wanted[name] for name in ("number", "größe")
    }
    assert set(ORIGIN) <= set(arrived)
    assert arrived[ORIGIN_PREFIX + "BROKER"] == "old"


def assert_in_order(rows: list[Row], topics: set[str]) -> None:
    """Of each source queue of FIFO topics: in one queue, and each first arrival behind the last."""
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    queues: dict[tuple[str, int], set[int]] = defaultdict(set)
    for row in sorted(rows, key=lambda one: one["commitLogOffset"]):
        topic, queue_id, offset = place_of(row)
        if row["topic"] in topics:
            queues[topic, queue_id].add(row["queueId"])
            if offset not in set(seen[topic, queue_id][-4000:]):
                seen[topic, queue_id].append(offset)
    assert len(seen) == len(topics) * QUEUES
    assert all(len(one) == 1 for one in queues.values())
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())


def test_every_message_arrives_once_as_it_was_and_in_order(
    spark: SparkSession, source: Source, broker: Broker, tmp_path: Path
) -> None:
    asked = spec(source.path, broker, tmp_path / "failed", fifo_topics=FIFO)
    report = run(spark, asked)
    assert report.ok, report
    assert report.written == {broker.grpc: MESSAGES}
    rows = read_all(broker, TOPICS)
    assert len(rows) == MESSAGES
    assert Counter(map(place_of, rows)) == Counter(source.rows.keys())
    for row in rows:
        assert row["topic"] == place_of(row)[0]
        assert_equal(row, source.rows[place_of(row)])
    assert_in_order(rows, set(FIFO))
    assert not (tmp_path / "failed").exists()
    with pytest.raises(JournalError, match="was sent"):
        run(spark, asked)


KILLER = """
import os, signal, sys
from rmqstore_jobs import replay
from rmqstore_jobs.replay_targets import to_broker as live
real, left = live.LiveReplay._keep, [2]
def killing(self, *args):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return real(self, *args)
live.LiveReplay._keep = killing
sys.exit(replay.main(sys.argv[1:]))
"""


def test_a_killed_job_and_a_killed_broker_lose_nothing(
    spark: SparkSession, source: Source, broker: Broker, tmp_path: Path
) -> None:
    """The job dies when a wave was sent and is not in the journal; later the broker, while sending."""
    failed = tmp_path / "failed"
    names = {name: f"again-{name}" for name in TOPICS}
    fifo = tuple(names[name] for name in FIFO)
    words = [str(source.path), "--to-broker", broker.grpc, "--failed", str(failed)]
    words += ["--broker-name", "old", "--wave-bytes", str(WAVE_BYTES), "--master", "local[2]"]
    words += [word for old, new in names.items() for word in ("--map-topic", f"{old}={new}")]
    words += [word for name in fifo for word in ("--fifo", name)]
    killed(KILLER, *words, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    journal = json.loads((tmp_path / "failed.replay.json").read_text("utf-8"))
    recorded = journal["begun"]["counts"]["sent"]
    assert 0 < recorded < MESSAGES

    end = _end_of(broker)
    crash = threading.Thread(target=_kill_and_start, args=(broker, end + (2 << 20)))
    crash.start()
    asked = spec(source.path, broker, failed, fifo_topics=fifo, topic_map=names)
    report = run(spark, asked)
    crash.join()
    assert report.ok, report
    assert report.resumed
    assert report.written == {broker.grpc: MESSAGES}
    rows = read_all(broker, names.values())
    arrived = Counter(map(place_of, rows))
    assert arrived.keys() == source.rows.keys()
    for row in rows:
        assert row["topic"] == names[place_of(row)[0]]
        assert_equal(row, source.rows[place_of(row)])
    assert_in_order(rows, set(fifo))
    journal = json.loads((tmp_path / "failed.replay.json").read_text("utf-8"))
    assert journal["done"][-1]["counts"]["tried again"] > 0  # while the broker was away
    twice = arrived.total() - MESSAGES
    print(f"{twice} came twice; the journal had {recorded} when the job was killed")
    assert 0 < twice < MESSAGES / 2


def _end_of(broker: Broker) -> int:
    with MessageStore.open(broker.store) as store:
        return store.log_range()[1]


def _kill_and_start(broker: Broker, at: int) -> None:
    """Crash the broker when its log has come that far, and start it where clients look for it."""
    while _end_of(broker) < at:
        time.sleep(0.05)
    broker.kill()
    broker.start_again()


ODD: list[tuple[dict[str, Any], str | None]] = [
    ({"body": b"fine"}, None),
    ({"body": b""}, "body should not be blank"),
    ({"body": b"x", "properties": {"blank": " "}}, "value should not be blank"),
    ({"body": b"x", "properties": {"TAGS": "a|b"}}, "tag should not contain"),
    ({"body": b"x", "properties": {"BUYER_ID": "7"}}, "BUYER_ID"),
    ({"body": b"y" * (5 << 20)}, "body"),
    ({"body": b"fine too", "properties": {"UNIQ_KEY": "old", "WAIT": "true"}}, None),
]


def test_what_is_refused_goes_aside_with_the_reason(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    path, failed = tmp_path / "store", tmp_path / "failed"
    with MessageStore.create(path, {"maxMessageSize": 8 << 20}) as store:
        for fields, _ in ODD:
            store.append({"topic": "odd", "queueId": 0, "properties": {}, **fields})
        store.append({"topic": "wrong", "queueId": 0, "body": b"of another type"})
    asked = spec(path, broker, failed, topic_map={"wrong": "fifo-a"})

    dry = run(spark, replace(asked, dry_run=True))
    assert (dry.written, dry.would_write) == ({}, {broker.grpc: 5})
    assert list(dry.skipped.values()) == [3]
    assert sum(queue.refused for queue in dry.planned) == 3
    assert not failed.exists()
    assert read_all(broker, ["odd"]) == []

    report = run(spark, asked)
    assert not report.ok
    assert report.written == {broker.grpc: 2}
    assert list(report.skipped.values()) == [6]
    kept = pq.read_table(failed).to_pylist()
    by_offset = {row["queueOffset"]: row for row in kept if row["topic"] == "odd"}
    for offset, (fields, reason) in enumerate(ODD):
        if reason is None:
            assert offset not in by_offset
        else:
            assert reason in by_offset[offset]["reason"]
            assert by_offset[offset]["body"] == fields["body"]
    (wrong,) = (row for row in kept if row["topic"] == "fifo-a")
    assert "message type" in wrong["reason"]
    assert [
        base64.b64decode(row["body"])
        for row in sorted(read_all(broker, ["odd"]), key=lambda row: place_of(row))
    ] == [b"fine", b"fine too"]


def test_dead_letters_are_sent_to_the_topic_they_came_from(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    store = unpack("clean-4.9.7", tmp_path)
    failed = str(tmp_path / "failed")
    answer = dlq.run(spark, dlq.DlqSpec(store.path, to_broker=broker.grpc, failed=failed))
    dead = [record for record in store.truth if record["topic"].startswith("%DLQ%")]
    assert answer.ok, answer.problems
    assert answer.numbers["sent again"] == len(dead) > 0
    rows = read_all(broker, ["retrying"])
    assert sorted(row["body"] for row in rows) == sorted(record["body"] for record in dead)
    for row in rows:
        assert row["reconsumeTimes"] == 0
        assert place_of(row)[0] == dead[0]["topic"]
        assert "RETRY_TOPIC" not in row["properties"]


def test_a_broker_that_is_not_there_stops_the_job(
    spark: SparkSession, source: Source, broker: Broker, tmp_path: Path
) -> None:
    words = [str(source.path), "--to-broker", "127.0.0.1:1", "--failed", str(tmp_path / "failed")]
    words += ["--patience", "1", "--topic", "plain-a"]
    assert main(words) == EXIT_STOPPED
    assert EXIT_STOPPED != EXIT_NOT_ALL
