"""A stream beside a writer that is killed again and again: no row is lost, and none comes twice."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from spark_source.source import RmqStoreSource
from spark_source.streaming.stream_reader import RmqStoreStreamReader
from tests.support.running.campaigns import count, seed_of
from tests.support.running.killing import Victim
from tests.support.stores import SMALL

SEED = "20261122"
KILLS = 500
MESSAGES = 40  # of a writer that is not killed
TOPICS = ("orders", "payments", "returns")
COLUMNS = ("topic", "queueId", "queueOffset", "commitLogOffset", "body")
Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def without_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process wrote is in the page cache, so no test here waits for a disk."""
    monkeypatch.setattr(os, "fsync", os.fstat)


def message(number: int) -> dict[str, Any]:
    """A message whose body begins with its number. Every fourth record ends in zeros."""
    body = b"%08d" % number + bytes(number * 37 % 300)
    found = {"topic": TOPICS[number % 3], "queueId": number % 4, "body": body}
    return found if number % 4 == 0 else {**found, "keys": f"k{number}", "tags": "t"}


def appending(
    path: Path, first: int, acknowledged: int, go: int, *, recovering: bool
) -> Callable[[], Any]:
    """The work of a writer, which waits until `go` can be read. It recovers the store first; that is
    a piece of the work only if `recovering`."""
    opened = None if recovering else MessageStore.append_to(path, SMALL)

    def work() -> None:
        with opened or MessageStore.append_to(path, SMALL) as writer:
            for number in range(first, first + MESSAGES, 4):
                four = [message(n) for n in range(number, number + 4)]
                if number % 8:
                    writer.append_batch(pa.RecordBatch.from_pylist(four))
                    os.write(acknowledged, b"".join(b"%d\n" % n for n in range(number, number + 4)))
                    continue
                for n, one in enumerate(four, number):
                    writer.append(one)
                    os.write(acknowledged, b"%d\n" % n)

    os.read(go, 1)
    return work


class Writer:
    """A writer in a process of its own, killed at a call."""

    def __init__(
        self, path: Path, first: int, kill_at: int | None, *, recovering: bool = False
    ) -> None:
        readable, writable = os.pipe()
        go, self._go = os.pipe()
        self._victim = Victim(
            lambda: appending(path, first, writable, go, recovering=recovering), kill_at
        )
        os.close(writable)
        os.close(go)
        self._acknowledged = os.fdopen(readable)

    def begin(self) -> None:
        """Let it write."""
        os.write(self._go, b".")
        os.close(self._go)

    def runs(self) -> bool:
        """Whether it still writes."""
        return self._victim.runs()

    def end(self) -> tuple[int | None, list[int]]:
        """Wait for its end: the number of its calls if it was not killed, and what it acknowledged."""
        calls = self._victim.calls()
        with self._acknowledged:
            return calls, [int(line) for line in self._acknowledged]


class Follower:
    """Follows a store as Spark does, and notes the offsets and rows of all micro-batches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[list[Row]] = []
        self.start_again()
        self.offsets = [self._reader.initialOffset()]

    def start_again(self) -> None:
        """Forget all but the offsets."""
        options = {
            "path": str(self._path),
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": "3k",
            "columns": ", ".join(COLUMNS),
        }
        source = RmqStoreSource(options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RmqStoreStreamReader)
        self._reader = reader

    def look(self) -> bool:
        """One micro-batch; False if there is nothing new."""
        start = self.offsets[-1]
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end == start:
            return False
        self.rows.append(self.rows_between(start, end))
        self.offsets.append(end)
        return True

    def rows_between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        """The rows of a micro-batch."""
        return [
            tuple(row.values())
            for part in self._reader.partitions(start, end)
            for batch in self._reader.read(part)
            for row in batch.to_pylist()
        ]


def copied_by_spark(spark: SparkSession, store: Path, folder: Path, writer: Writer | None) -> None:
    """Copy what is there by a query that goes on from its checkpoint, while a writer writes."""
    stream = (
        spark.readStream.format("rmqstore")
        .option("startingOffsets", "earliest")
        .option("columns", ", ".join(COLUMNS))
        .load(str(store))
    )
    sink = stream.writeStream.format("parquet").trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out"))
    if writer is not None:
        writer.begin()
    query.awaitTermination()


@pytest.mark.campaign
def test_a_stream_beside_a_writer_that_is_killed_has_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    kills, seed = count(KILLS), seed_of("killed writers", SEED)
    print(f"seed {seed!r}")
    chance, path = random.Random(seed), tmp_path / "store"
    with MessageStore.create(path, SMALL) as store:
        store.append(message(0))
    follower, acknowledged = Follower(path), [0]
    total: int | None = None  # the fewest calls of a writer that was not killed
    first = killed = number = 0
    # A writer that makes fewer calls than the one before it ends before the call that would kill it.
    while killed < kills:
        assert number <= 2 * kills
        kill_at = None if total is None else chance.randrange(total)
        writer = Writer(path, first, kill_at, recovering=total is not None and number % 4 == 0)
        first += MESSAGES
        if number % 10 == 0:
            follower.start_again()
            copied_by_spark(spark, path, tmp_path, writer)
        else:
            writer.begin()
        while writer.runs():
            follower.look()
        calls, written = writer.end()
        acknowledged += written
        killed += calls is None
        if calls is not None:
            total = calls if total is None else min(total, calls)
        number += 1
    with MessageStore.append_to(path, SMALL):
        pass  # recovers what the last one left
    follower.start_again()
    while follower.look():
        pass
    copied_by_spark(spark, path, tmp_path, None)

    with MessageStore.open(path) as store:
        stored = [
            tuple(row.values())
            for batch in store.read_batches(columns=COLUMNS)
            for row in batch.to_pylist()
        ]
    followed = [row for rows in follower.rows for row in rows]
    print(f"{killed} killed, {len(follower.rows)} micro-batches, {len(stored)} messages")
    assert len(stored) > 10 * kills
    assert {int(row[-1][:8]) for row in followed} >= set(acknowledged)
    assert len(set(stored)) == len(stored)
    assert sorted(followed) == sorted(stored)
    table = spark.read.parquet(str(tmp_path / "out")).select(*COLUMNS).toArrow()
    assert sorted(tuple(row.values()) for row in table.to_pylist()) == sorted(stored)
    follower.start_again()
    again = [follower.rows_between(start, end) for start, end in pairwise(follower.offsets)]
    assert again == follower.rows
