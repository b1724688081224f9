"""verify on the store of a broker that takes messages: no false error, and real damage is found."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.testing.live_broker.harness import Broker
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import Severity, VerifyReport
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.support.golden import verified

RELEASE = "5.5.0"
RATE = 200  # messages a second
SECONDS = 90
QUEUES = 4
# Small files, so that the log, the queues and the index roll while they are examined.
CONF = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}

pytestmark = pytest.mark.live


def make_source(path: Path) -> None:
    count = RATE * SECONDS
    with MessageStore.create(path) as store:
        store.append_batch(
            pa.record_batch(
                {
                    "topic": pa.array(["busy"] * count),
                    "queueId": pa.array([number % QUEUES for number in range(count)], pa.int32()),
                    "keys": pa.array([f"k{number} g{number % 50}" for number in range(count)]),
                    "tags": pa.array([f"t{number % 7}" for number in range(count)]),
                    "body": pa.array([b"%06d " % number * 40 for number in range(count)]),
                }
            )
        )


def examined(broker: Broker, conf: Path) -> VerifyReport:
    return verified(broker.store, broker_conf=conf)


def test_a_store_under_load_is_never_accused(spark: SparkSession, tmp_path: Path) -> None:
    need_jars(RELEASE, proxy=True)
    make_source(tmp_path / "source")
    conf = tmp_path / "geometry.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in CONF.items()))
    topics = {"busy": {"attributes": {"message.type": "NORMAL"}}}
    seen: Counter[str] = Counter()
    with Broker(RELEASE, tmp_path / "run", topics=topics, conf=CONF, proxy=True) as broker:
        asked = ReplaySpec(
            str(tmp_path / "source"),
            to_broker=broker.grpc,
            failed=str(tmp_path / "failed"),
            rate=RATE,
        )
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(run, spark, asked)
            while not sending.done():
                report = examined(broker, conf)
                seen["runs"] += 1
                seen.update({finding.code for finding in report.findings})
                wrong = [one for one in report.findings if one.severity is not Severity.NOTE]
                assert not wrong, [str(finding) for finding in wrong]
            assert sending.result().ok
        broker.stop()
    print(dict(seen))
    assert seen["log-grew"]  # some of it arrived in the midst of an examination
    whole = examined(broker, conf)
    assert whole.nothing_wrong
    assert whole.records >= RATE * SECONDS

    copy = tmp_path / "copy"
    shutil.copytree(broker.store, copy)
    closed = min((copy / "commitlog").iterdir())
    raw = bytearray(closed.read_bytes())
    body = re.search(rb"(\d{6} ){20}", raw[len(raw) // 2 :])  # only bodies have a CRC
    assert body is not None
    raw[len(raw) // 2 + body.start()] ^= 1
    closed.write_bytes(raw)
    damaged = verified(copy, broker_conf=conf)
    assert "log-damaged" in {finding.code for finding in damaged.findings}
