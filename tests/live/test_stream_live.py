"""readStream beside a broker that takes messages: killed drivers and killed brokers lose nothing.

The broker deletes old files meanwhile, and its log consists of many small ones.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.testing.live_broker.broker_files import Conf
from rmq_store.testing.live_broker.harness import Broker
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.live_brokers import Acknowledged, Sending
from tests.support.running.campaigns import seed_of

RATE = 1000  # messages a second
TOPICS = ("a", "b", "c", "d")
SEED = "20261122"
TIMEOUT_S = 300
# Seconds after which the broker may delete a file. A driver takes up to a minute to start on a busy
# machine, and must have read by then what was written meanwhile.
KEPT_S = 150.0
CONF: Conf = {
    # Small files, so that the log rolls every second.
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    # The broker deletes at any hour what is older than an hour; see `aged`.
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "fileReservedTime": 1,
    "cleanResourceInterval": 2000,
    "deleteCommitLogFilesInterval": 10,
    "deleteConsumeQueueFilesInterval": 10,
}
QUERY = textwrap.dedent(
    """
    import sys
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    store, topics, folder, how = sys.argv[1:]
    query = (
        spark.readStream.format("rmqstore")
        .option("topic", topics)
        .option("startingOffsets", "earliest")
        .option("columns", "topic, queueId, queueOffset, commitLogOffset, keys, body")
        .load(store)
        .writeStream.format("parquet")
        .option("checkpointLocation", folder + "/checkpoint")
    )
    if how == "rest":
        query = query.trigger(availableNow=True)
    else:
        query = query.trigger(processingTime="0 seconds")
    query.start(folder + "/out").awaitTermination()
    """
)

pytestmark = pytest.mark.live
long = pytest.mark.long


class Query:
    """A streaming query in a driver process of its own, which can be killed."""

    def __init__(self, store: Path, folder: Path) -> None:
        self._arguments = [str(store), ",".join(TOPICS), str(folder)]
        self._log = folder / "query.log"
        self._commits = folder / "checkpoint" / "commits"
        self._process = self._started("follow")
        self._before = 0  # batches that were committed when it was started last

    def _started(self, how: str) -> subprocess.Popen[bytes]:
        own = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", QUERY, *self._arguments, how],
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def commits(self) -> int:
        """The number of micro-batches that were committed."""
        numbers = [int(path.name) for path in self._commits.glob("*") if path.name.isdigit()]
        return max(numbers, default=-1) + 1

    def check(self) -> None:
        """Fail if the query ended by itself."""
        assert self._process.poll() is None, self._log.read_text()[-5000:]

    def kill(self) -> None:
        """Kill the driver with its JVM and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def start_again(self) -> None:
        """Start the query from its checkpoint."""
        self._before = self.commits()
        self._process = self._started("follow")

    def wait_for_batches(self) -> None:
        """Wait until it has repeated its last micro-batch and committed a new one since its start."""
        pause, until = threading.Event(), time.monotonic() + TIMEOUT_S
        while self.commits() < self._before + 2:
            self.check()
            assert time.monotonic() < until, self._log.read_text()[-5000:]
            pause.wait(0.1)

    def finish(self) -> None:
        """Copy what is left, and end."""
        self.kill()
        self._process = self._started("rest")
        assert self._process.wait(TIMEOUT_S) == 0, self._log.read_text()[-5000:]


@contextmanager
def aged(store: Path) -> Iterator[list[str]]:
    """Make files that were written `KEPT_S` seconds ago seem old, as nobody waits an hour for the
    broker to delete them. Gives the names of all files of the log."""
    names: list[str] = []
    stopped = threading.Event()

    def age() -> None:
        while not stopped.wait(1):
            long_ago = time.time() - 7200
            for file in (store / "commitlog").glob("*"):
                if file.name not in names:
                    names.append(file.name)
                try:
                    if time.time() - 7000 < file.stat().st_mtime < time.time() - KEPT_S:
                        os.utime(file, (long_ago, long_ago))
                except FileNotFoundError:
                    pass  # deleted a moment ago

    thread = threading.Thread(target=age)
    thread.start()
    try:
        yield names
    finally:
        stopped.set()
        thread.join()


def kills(
    chance: random.Random, seconds: int, drivers: int, brokers: int
) -> list[tuple[float, str]]:
    """When to kill what, in seconds, one at a time and each in a stretch of its own."""
    what = ["driver"] * drivers + ["broker"] * brokers
    chance.shuffle(what)
    stretch = seconds / (len(what) + 1)
    return [((n + chance.random()) * stretch, name) for n, name in enumerate(what, 1)]


@pytest.mark.parametrize(
    ("release", "seconds", "drivers", "brokers"),
    [
        ("5.5.0", 60, 2, 1),
        pytest.param("5.5.0", 300, 5, 3, marks=long),
        pytest.param("4.9.7", 300, 5, 3, marks=long),
    ],
)
def test_a_stream_has_each_message_once_over_killed_drivers_and_brokers(
    spark: SparkSession, tmp_path: Path, release: str, seconds: int, drivers: int, brokers: int
) -> None:
    need_jars(release)
    seed = seed_of(f"streams {release} {seconds}", SEED)
    plan = kills(random.Random(seed), seconds, drivers, brokers)
    print(f"seed {seed!r}:", *(f"{name} killed after {at:.0f} s" for at, name in plan))
    topics = {topic: {"writeQueueNums": 4} for topic in TOPICS}
    with (
        Broker(release, tmp_path / "run", topics=topics, conf=CONF) as broker,
        aged(broker.store) as files,
    ):
        query = Query(broker.store, tmp_path)
        try:
            sending = Sending(broker, RATE, TOPICS, tmp_path / "acknowledged")
            began, pause = time.monotonic(), threading.Event()
            for at, name in [*plan, (float(seconds), "")]:
                query.wait_for_batches()  # a driver that did nothing yet has nothing to lose
                pause.wait(max(0.0, began + at - time.monotonic()))
                query.check()
                if name == "driver":
                    query.kill()
                    query.start_again()
                elif name == "broker":
                    broker.kill()
                    broker.start_again()
            acknowledged = sending.finish()
            broker.stop()
            query.finish()
        except BaseException:
            query.kill()
            raise
        deleted = len(files) - len(list((broker.store / "commitlog").glob("*")))
        stored = stored_places(broker.store)
    rows = copied(spark, tmp_path / "out")
    print(
        f"{len(acknowledged)} messages acknowledged, {len(rows)} rows, {query.commits()} batches;"
    )
    print(f"{len(files)} files of the log, {deleted} deleted by the broker")
    check(rows, acknowledged)
    assert stored <= {row[:4] for row in rows}
    assert len(files) > seconds // 3
    assert deleted > 0 or seconds < 2 * KEPT_S


Place = tuple[str, int, int, int]  # topic, queueId, queueOffset, commitLogOffset


def copied(spark: SparkSession, folder: Path) -> list[tuple[str, int, int, int, str, bytes]]:
    """The rows of the sink: of the files that its own list has, since a killed driver leaves others."""
    files = spark.read.parquet(str(folder)).inputFiles()
    table = pq.read_table([file.removeprefix("file://") for file in files])
    columns = ("topic", "queueId", "queueOffset", "commitLogOffset", "keys", "body")
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def stored_places(store: Path) -> set[Place]:
    """What the store still has at the end, in its queues."""
    columns = ("topic", "queueId", "queueOffset", "commitLogOffset")
    with MessageStore.open(store) as opened:
        return {
            place
            for batch in opened.read_batches(TOPICS, columns=columns)
            for place in zip(*(column.to_pylist() for column in batch), strict=True)
        }


def check(
    rows: list[tuple[str, int, int, int, str, bytes]], acknowledged: list[Acknowledged]
) -> None:
    """Each acknowledged message once, none twice, and each queue whole and in order."""
    by_queue: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    found: dict[tuple[str, int, int], str] = {}
    for topic, queue_id, queue_offset, log_offset, key, body in rows:
        assert (topic, queue_id, queue_offset) not in found, "a row that is there twice"
        found[topic, queue_id, queue_offset] = key
        by_queue[topic, queue_id].append((log_offset, queue_offset))
        assert body == b"%06d " % int(key.rpartition("-")[2]) * 100
    assert len(acknowledged) == len(set(acknowledged)) > 0
    lost = [one for one in acknowledged if found.get(one[:3]) != one.key]
    assert not lost, f"{len(lost)} acknowledged messages are not there, such as {lost[:3]}"
    for places in by_queue.values():
        in_log_order = [offset for _, offset in sorted(places)]
        assert in_log_order == list(range(len(in_log_order)))
