"""Tables `groups` and `offsets`: committed consumer offsets, and how far consumers are behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmq_store.config.consumer_offsets import claimed_offsets, committed_offsets, read_delay_file
from rmq_store.format.queues import QueueSlice
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.store import MessageStore
from rmq_store.tables.compute_lag import group_rows, source_of
from rmq_store.tables.table import INT, LONG, TEXT, TIMESTAMP, Row, Table, columns


def _groups(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    return group_rows(store, committed_offsets(store.path))


GROUPS = Table(
    "groups",
    "how far each consumer group is in each queue, according to the broker's file",
    columns(
        ("consumerGroup", TEXT, "the group"),
        ("topic", TEXT, "topic of the queue"),
        ("queueId", INT, "number of the queue"),
        ("consumerOffset", LONG, "the next queue offset that the group will consume"),
        ("minOffset", LONG, "the first queue offset that has a message"),
        ("maxOffset", LONG, "the queue offset after the last message"),
        ("lag", LONG, "messages not consumed yet"),
        ("lagBytes", LONG, "bytes of their records; estimated above a million messages"),
        ("lagMs", LONG, "store time of the newest message minus that of the first unconsumed one"),
        ("firstUnconsumedTimestamp", TIMESTAMP, "when the first unconsumed message was stored"),
        (
            "status",
            TEXT,
            "OK, BELOW_MIN (unconsumed messages expired), ABOVE_MAX "
            "(the offset is after the last message), NOT_READ (messages wait in a queue whose number "
            "is readQueueNums of the topic or more, or whose topic has a perm without 4 or is not in "
            "topics.json, so that no consumer gets them), LOST_ENTRIES (the entries of waiting messages are "
            "in no file), LOST_RECORDS (waiting messages are in no file of the log), NOT_KNOWN (the queue "
            "has no files, and topics.json, which may declare it, cannot be read) or NO_SUCH_QUEUE",
        ),
        ("configFile", TEXT, "the file that says so"),
        ("configModified", TIMESTAMP, "when that was written"),
        ("configAgeMs", LONG, "age of the file, which misses what was consumed since"),
    ),
    _groups,
)


def _offsets(store: MessageStore, ranges: Sequence[QueueSlice] | None) -> Iterator[Row]:
    for kind, name, group, queue, offset in claimed_offsets(store.path):
        yield {
            "kind": kind,
            "file": source_of(store, name)[0],
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "offset": offset,
        }
    delay = read_delay_file(store.path)
    if delay is None:
        return
    for queue_id, offset in delay.value.items():
        yield {
            "kind": "delay",
            "file": str(delay.path),
            "topic": SCHEDULE_TOPIC,
            "queueId": queue_id,
            "offset": offset,
        }


OFFSETS = Table(
    "offsets",
    "every offset in the broker's files, unchanged",
    columns(
        (
            "kind",
            TEXT,
            "consumer, lmq (light queue), pull (what the group was sent), pop (what it was given in order) "
            "or delay (delay level)",
        ),
        ("file", TEXT, "the file that says so"),
        ("consumerGroup", TEXT, "the group; null for a delay level"),
        ("topic", TEXT, "topic of the queue"),
        ("queueId", INT, "number of the queue; for a delay level, the level minus one"),
        ("offset", LONG, "the next queue offset to consume, to send or to deliver"),
    ),
    _offsets,
)
