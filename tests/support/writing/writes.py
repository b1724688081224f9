"""Writes into a store without Spark: rows staged as tasks stage them, and committed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from spark_source.writing.rows_to_append import staged_batches
from spark_source.writing.staging import StagedPart, folder_beside
from spark_source.writing.target import StreamBatch, WriteOptions
from spark_source.writing.writers import StoreWrite, commit
from tests.support.running.child import in_a_child
from tests.support.stores import SMALL, contents, one_message


def options(target: Path, **changes: Any) -> WriteOptions:
    """The options of a write into small files."""
    return WriteOptions(**{"path": str(target), "config": StoreConfig.of(SMALL), **changes})


def rows(first: int, count: int) -> pa.RecordBatch:
    """Messages `first`, `first + 1`, ... of the series of `one_message`."""
    return pa.RecordBatch.from_pylist(
        [one_message(number) for number in range(first, first + count)]
    )


def staged(write: StoreWrite, tasks: Sequence[pa.RecordBatch]) -> list[StagedPart]:
    """The rows of each task, staged in batches of 7."""
    return [
        write.staging.write(
            number,
            (
                ready
                for at in range(0, task.num_rows, 7)
                for ready in staged_batches(task.slice(at, 7), write.options)
            ),
            begin=True,
        )
        for number, task in enumerate(tasks)
    ]


def prepared(
    target: Path, first: int, count: int, *, overwrite: bool = False, query: str | None = None
) -> tuple[StoreWrite, list[StagedPart]]:
    """A write of messages, its rows staged by two tasks."""
    token = uuid.uuid4().hex
    write = StoreWrite(token if query is None else f"{query}-{token}", options(target), overwrite)
    if query is None:
        write.staging.begin()
    half = count // 2
    return write, staged(write, [rows(first, half), rows(first + half, count - half)])


def write_rows(
    target: Path,
    first: int,
    count: int,
    *,
    overwrite: bool = False,
    stream: StreamBatch | None = None,
) -> bool:
    """Write messages; False if the batch of the stream was done before."""
    query = None if stream is None else stream.query
    write, parts = prepared(target, first, count, overwrite=overwrite, query=query)
    return commit(write, parts, stream)


def numbers_in(target: Path) -> list[int]:
    """The numbers of all messages in a store in the order of its log.

    Checks that each message is what its number says, and that queue offsets have no gaps.
    """
    with MessageStore.open(target) as store:
        found = contents(store)
    by_place: dict[int, int] = {}
    for queue, messages in found.items():
        assert [message[0] for message in messages] == list(range(len(messages))), queue
        for _, at, _, body in messages:
            number = int(body[:6])
            expected = one_message(number)
            assert body == expected["body"]
            assert queue == (expected["topic"], expected["queueId"])
            by_place[at] = number
    return [number for _, number in sorted(by_place.items())]


def left_beside(target: Path) -> list[str]:
    """What writes have left beside a store."""
    folder = folder_beside(str(target))
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def die(*args: Any, **named: Any) -> None:
    """In the place of a function at which a driver is killed."""
    os._exit(9)


def kill_in(work: Callable[[], None]) -> None:
    """Let a process of its own die in some work."""
    assert os.waitstatus_to_exitcode(in_a_child(work)) == 9
