"""A task reads in one thread, because Spark has a task on every core."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_source.source import RmqStoreSource
from spark_source.spark_types import arrow_schema_for, batches_for_spark, spark_schema
from spark_source.streaming.stream_reader import RmqStoreStreamReader
from tests.support.stores import store_of

COUNT, BODY = 8, 1 << 20


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that start."""
    start, names = threading.Thread.start, list[str]()

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages with large bodies."""
    return store_of(tmp_path / "store", [bytes([number]) * BODY for number in range(COUNT)])


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"source": "consumequeue"}, COUNT),
        ({"source": "commitlog"}, COUNT),
        ({"table": "damage"}, 0),
    ],
)
def test_a_task_on_local_files_starts_no_thread(
    store: Path, started: list[str], options: dict[str, str], rows: int
) -> None:
    made = RmqStoreSource({"path": str(store), **options})
    reader = made.reader(made.schema())
    assert read_all(reader, reader.partitions(), started) == (rows, [])


def test_a_task_of_a_stream_starts_no_thread(store: Path, started: list[str]) -> None:
    made = RmqStoreSource({"path": str(store), "startingOffsets": "earliest"})
    reader = made.streamReader(made.schema())
    assert isinstance(reader, RmqStoreStreamReader)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert read_all(reader, reader.partitions(begin, end), started) == (COUNT, [])


def test_a_batch_of_an_object_store_is_made_while_spark_takes_the_one_before() -> None:
    schema = arrow_schema_for(spark_schema(["queueOffset"]))
    second = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([0], pa.int64())], schema=schema)
        second.set()
        yield pa.record_batch([pa.array([1], pa.int64())], schema=schema)

    taken = batches_for_spark(batches(), schema, ahead=True)
    next(taken)
    assert second.wait(60)  # it comes without being asked for
    assert len(list(taken)) == 1


def test_a_task_that_ends_early_ends_its_thread() -> None:
    schema = arrow_schema_for(spark_schema(["queueOffset"]))
    ended = []

    def batches() -> Generator[pa.RecordBatch, None, None]:
        try:
            while True:
                yield pa.record_batch([pa.array([0], pa.int64())], schema=schema)
        finally:
            ended.append(True)

    before = set(threading.enumerate())
    made = batches()
    taken = batches_for_spark(made, schema, ahead=True)
    next(taken)
    taken.close()
    assert not set(threading.enumerate()) - before
    made.close()  # refused while a thread runs it
    assert ended == [True]


def read_all(reader: Any, partitions: Iterable[Any], started: list[str]) -> tuple[int, list[str]]:
    """The rows of all partitions, and the threads that their reads started."""
    parts = list(partitions)
    started.clear()
    rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
    return rows, started
