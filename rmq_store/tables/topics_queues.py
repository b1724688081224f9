"""Tables `topics` and `queues`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.store import MessageStore
from rmq_store.tables.table import FLAG, INT, LONG, TEXT, TIMESTAMP, Row, Table, columns


def _topics(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    declared, problem = store.view.topics.declared, store.view.topics.problem
    for topic in sorted({*store.topics(), *declared}):
        queues = store.queues(topic)
        said = declared.get(topic, {})
        yield {
            "topic": topic,
            "system": store.is_system_topic(topic),
            "queues": len(queues),
            "batch": any(store.view.is_batch(queue) for queue in queues),
            "messages": sum(store.max_offset(*q) - store.min_offset(*q) for q in queues),
            "declared": None if problem else topic in declared,
            "readQueueNums": said.get("readQueueNums"),
            "writeQueueNums": said.get("writeQueueNums"),
            "perm": said.get("perm"),
            "problem": None if problem is None else str(problem),
        }


TOPICS = Table(
    "topics",
    "the topics that have a queue or are in topics.json",
    columns(
        ("topic", TEXT, "name of the topic"),
        ("system", FLAG, "whether it is a system topic"),
        ("queues", INT, "how many queues have files or messages"),
        ("batch", FLAG, "whether its queues hold inner batches (BatchConsumeQueue)"),
        ("messages", LONG, "messages in all its queues"),
        ("declared", FLAG, "whether it is in topics.json; null if that cannot be read"),
        ("readQueueNums", INT, "the value in topics.json"),
        ("writeQueueNums", INT, "the value in topics.json"),
        ("perm", INT, "the value in topics.json: 4 read, 2 write"),
        ("problem", TEXT, "why topics.json cannot be read, so that its values are null"),
    ),
    _topics,
)


def _queues(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for queue in store.queues():
        low, high = store.min_offset(*queue), store.max_offset(*queue)
        state = store.snapshot().queues[queue]
        tail = state.tail
        yield {
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "batch": state.batch,
            "minOffset": low,
            "maxOffset": high,
            "messages": high - low,
            "dispatchLag": 0 if tail is None else int(tail.count.sum()),
            "dispatchLagBytes": 0 if tail is None else int(tail.size.sum()),
            **_ends(store, queue, low, high),
        }


def _ends(store: MessageStore, queue: QueueId, low: int, high: int) -> Row:
    if low >= high:
        return {}
    return {
        "firstCommitLogOffset": store.log_offset_of(queue, low),
        "lastCommitLogOffset": store.log_offset_of(queue, high - 1),
        "firstStoreTimestamp": store.view.store_time(queue, low),
        "lastStoreTimestamp": store.view.store_time(queue, high - 1),
    }


QUEUES = Table(
    "queues",
    "the queues: start and end of each, and its messages that only the log has so far",
    columns(
        ("topic", TEXT, "topic of the queue"),
        ("queueId", INT, "number of the queue in its topic"),
        ("batch", FLAG, "whether it is a BatchConsumeQueue"),
        ("minOffset", LONG, "the first queue offset that has a message"),
        ("maxOffset", LONG, "the queue offset after the last message"),
        ("messages", LONG, "messages between minOffset and maxOffset"),
        ("dispatchLag", LONG, "messages of these that the queue's files do not list yet"),
        ("dispatchLagBytes", LONG, "bytes of their records"),
        ("firstCommitLogOffset", LONG, "where the first message starts in the log"),
        ("lastCommitLogOffset", LONG, "where the last message starts in the log"),
        ("firstStoreTimestamp", TIMESTAMP, "when the first message was stored"),
        ("lastStoreTimestamp", TIMESTAMP, "when the last message was stored"),
    ),
    _queues,
)
