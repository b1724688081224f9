"""Small stores of our own with many files, and what is in them as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store import MessageStore, QueueId
from rmq_store.writing.store_writer import StoreWriter

SMALL = {
    "mappedFileSizeCommitLog": 8192,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 11,
    "maxIndexNum": 64,
    "maxMessageSize": 4000,
}
TOPICS = ("orders", "payments")
QUEUES = 3


def one_message(number: int) -> dict[str, Any]:
    """Message `number` of a series: topic, queue, body, keys and tags follow from it."""
    return {
        "topic": TOPICS[number % 7 == 3],
        "queueId": number % QUEUES,
        "body": b"%06d" % number + b"." * (number * 31 % 60),
        "keys": f"k{number}",
        "tags": f"t{number % 3}",
    }


def append_many(store: StoreWriter, count: int, first: int = 0) -> None:
    """Append messages `first`, `first + 1`, ... one by one."""
    for number in range(first, first + count):
        store.append(one_message(number))


def make_store(folder: Path, count: int, release: str | None = None) -> None:
    """A store of `count` messages in small files, closed cleanly."""
    with MessageStore.create(folder, SMALL, release=release) as store:
        append_many(store, count)


def contents(store: MessageStore) -> dict[QueueId, list[tuple[int, int, int, bytes]]]:
    """Queue offset, log offset, size and body of every message, by queue."""
    return {
        queue: [
            (m.queue_offset or 0, m.commit_log_offset, m.store_size, m.body)
            for m in store.get_message(
                *queue, store.min_offset(*queue), max_messages=10**6
            ).messages
        ]
        for queue in store.queues()
    }


def index_answers(store: MessageStore) -> set[tuple[str, int]]:
    """What the index files themselves list: key hash and log offset."""
    from rmq_store.index.index_file_reader import IndexFile, list_index_files

    return {
        (str(item["key_hash"]), int(item["log_offset"]))
        for segment in list_index_files(store.path / "index")
        for _, piece in IndexFile(segment).pieces()
        for item in piece
    }


_KINDS = {
    "queueId": pa.int32(),
    "sysFlag": pa.int32(),
    "body": pa.binary(),
    "rawProperties": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
}


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Messages as columns, each with the type that it has in a store."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name, 0 if name == "sysFlag" else None) for row in rows]
        if name == "properties":
            values = [None if value is None else list(value.items()) for value in values]
        columns[name] = pa.array(values, _KINDS.get(name, pa.string()))
    return pa.RecordBatch.from_pydict(columns)


def store_of(folder: Path, bodies: list[bytes]) -> Path:
    """A new store of messages of one queue with these bodies."""
    rows = [{"topic": "orders", "queueId": 0, "body": body} for body in bodies]
    with MessageStore.create(folder, {"mappedFileSizeCommitLog": 1 << 24}) as writer:
        writer.append_batch(batch_of(rows))
    return folder
