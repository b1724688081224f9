"""A task reads in one thread, because Spark has a task on every core."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from spark_source.source import RmqStoreSource

COUNT, BODY = 8, 1 << 20  # bodies that the library alone copies in a thread


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that start."""
    start, names = threading.Thread.start, list[str]()

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_a_task_on_local_files_starts_no_thread(
    tmp_path: Path, started: list[str], source: str
) -> None:
    batch = pa.record_batch(
        {
            "topic": ["orders"] * COUNT,
            "queueId": pa.array([0] * COUNT, pa.int32()),
            "body": pa.array([bytes([number]) * BODY for number in range(COUNT)], pa.binary()),
        }
    )
    with MessageStore.create(tmp_path / "store") as writer:
        writer.append_batch(batch)
    made = RmqStoreSource({"path": str(tmp_path / "store"), "source": source})
    reader = made.reader(made.schema())
    partitions = list(reader.partitions())
    started.clear()
    read: list[Any] = [batch for partition in partitions for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in read) == COUNT
    assert started == []
    with MessageStore.open(tmp_path / "store") as store:
        list(store.read_batches())
    assert started == ["rmqstore-bodies"]
