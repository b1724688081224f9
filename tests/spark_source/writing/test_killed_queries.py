"""A query that mirrors a store, killed again and again with its driver: the mirror ends equal."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import MessageStore
from spark_source.writing.staging import folder_beside
from tests.support.golden import Golden
from tests.support.running.campaigns import chance, count
from tests.support.writing.writes import left_beside

pytestmark = pytest.mark.campaign

KILLS = 5  # each starts another Spark
TIMEOUT_S = 180
MIRROR = textwrap.dedent(
    """
    import sys
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    source, target, checkpoint = sys.argv[1:]
    stream = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
    query = (
        stream.option("maxBytesPerTrigger", "100k")
        .load(source)
        .writeStream.format("rmqstore")
        .option("keepTimestamps", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    """
)


def begun(folder: Path) -> subprocess.Popen[bytes]:
    """The query in a process group of its own."""
    arguments = [str(folder / name) for name in ("source", "mirror", "checkpoint")]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", MIRROR, *arguments],
            env={
                **os.environ,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def moments(folder: Path) -> dict[str, Callable[[], object]]:
    """Events in a micro-batch at which a query may be killed, by what they leave on the disk."""
    beside, checkpoint = folder_beside(str(folder / "mirror")), folder / "checkpoint"
    journal = beside / "journal.json"

    def in_journal(word: str) -> bool:
        try:
            return word in journal.read_text()
        except FileNotFoundError:
            return False

    offsets = _last(checkpoint / "offsets")
    return {
        "a batch is planned": lambda: _last(checkpoint / "offsets") > offsets + 1,
        "rows are staged": lambda: list(beside.glob("*/part-*.arrow")),
        "it appends": lambda: in_journal('"signed": true'),
        "a batch is done": lambda: in_journal(f'"batch": {offsets + 2}'),
    }


def _last(folder: Path) -> int:
    names = [path.name for path in folder.glob("*") if path.name.isdigit()]
    return max(map(int, names), default=-1)


def test_a_mirror_whose_driver_is_killed_ends_equal(golden: Golden, tmp_path: Path) -> None:
    shutil.copytree(golden("clean-5.5.0").path, tmp_path / "source")
    dice = chance("mirrors") if os.environ.get("RMQSTORE_SEED") else random.Random("20261122")
    killed: list[str] = []
    pause = threading.Event()
    kills, missed = count(KILLS, 3), False
    for _ in range(3 * kills):
        events = moments(tmp_path)
        # Most moments pass, so that a busy machine may not see them; offsets stay.
        name = "a batch is planned" if missed else dice.choice(sorted(events))
        query = begun(tmp_path)
        while not events[name]() and query.poll() is None:
            pause.wait(0.001)
        missed = query.poll() is not None
        if missed and killed:
            break  # everything is mirrored
        if missed:
            start_over(tmp_path)
            continue
        killed.append(name)
        print("killed when", name)
        # The JVM and the workers with the driver, or the workers end by themselves.
        os.killpg(query.pid, signal.SIGKILL)
        query.wait()
        if len(killed) == kills:
            break
    assert killed
    assert begun(tmp_path).wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()[-3000:]
    with MessageStore.open(tmp_path / "source") as source:
        expected = rows_of(source)
    with MessageStore.open(tmp_path / "mirror") as mirror:
        assert rows_of(mirror) == expected
    assert left_beside(tmp_path / "mirror") == ["journal.json"]


def start_over(folder: Path) -> None:
    mirror = folder / "mirror"
    for made in (mirror, folder / "checkpoint", folder_beside(str(mirror))):
        shutil.rmtree(made, ignore_errors=True)


def rows_of(store: MessageStore) -> dict[object, list[tuple[object, ...]]]:
    """Of each user queue: what does not depend on the place in the log."""
    columns = ("queueOffset", "body", "properties", "storeTimestamp", "bornHost", "flag")
    return {
        queue: [
            tuple(row.values())
            for batch in store.read_batches(
                queue.topic, [queue.queue_id], columns=columns, unwrap_batches=True
            )
            for row in batch.to_pylist()
        ]
        for queue in store.queues()
        if not store.is_system_topic(queue.topic)
    }
