"""Messages that consumers sent back: under `%RETRY%group` to be consumed again, under `%DLQ%group` given up.

Both carry RETRY_TOPIC, and the id of the message that was sent back first
(AbstractSendMessageProcessor#consumerSendMsgBack).
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.format.queues import QueueId
from rmq_store.format.record import decode_properties, decode_utf8, log_offset_of_id
from rmq_store.format.topics import (
    DLQ_PREFIX,
    PROPERTIES,
    RETRY_PREFIX,
    dead_letter_origin,
    retry_origin,
)
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.system_topics.system_topic_rows import Row, rows_with_properties, whole_queues_of

_TEXTS = {
    **{name: name for name in PROPERTIES},
    "originMsgId": "ORIGIN_MESSAGE_ID",
    "deadOriginMsgId": "DLQ_ORIGIN_MESSAGE_ID",
}
_SMALL = {"maxAttempts": "MAX_RECONSUME_TIMES"}


def dead_letters(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """Every dead letter, by group in the order of its queue. Columns as in the table `deadLetters`.

    Raises the errors of `read_slices` for damage.
    """
    for row in _sent_back(store, DLQ_PREFIX, on_damage):
        yield row | _origin(store, row) | {"firstTimestamp": row["bornTimestamp"]}


def retries(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """A row for each message that a group sent back, in the order of its first retry.

    Columns as in the table `retries`. Takes about a kilobyte of memory for each such message. Raises the
    errors of `read_slices` for damage.
    """
    dead = {
        (row["consumerGroup"], _id_of(row)): row["storeTimestamp"]
        for row in _sent_back(store, DLQ_PREFIX, on_damage)
    }
    rows: dict[tuple[str, str], Row] = {}
    for row in _sent_back(store, RETRY_PREFIX, on_damage):
        key = row["consumerGroup"], _id_of(row)
        first = rows.get(key)
        if first is None:
            rows[key] = row | {"retries": 1, "firstTimestamp": row["storeTimestamp"]}
            continue
        kept = {name: first[name] for name in ("firstTimestamp", "retries")}
        rows[key] = row | kept | {"retries": first["retries"] + 1}
    for key, row in rows.items():
        yield row | _origin(store, row) | {"deadLetterTimestamp": dead.get(key)}


def _sent_back(store: StoreReader, prefix: str, on_damage: OnDamage | None) -> Iterator[Row]:
    for topic in store.topics():
        if not topic.startswith(prefix):
            continue
        for part in whole_queues_of(store, topic):
            for row in rows_with_properties(store, part, _TEXTS, {}, _SMALL, on_damage=on_damage):
                named = {name: row.pop(name) for name in PROPERTIES}
                properties = {name: value for name, value in named.items() if value is not None}
                if prefix == RETRY_PREFIX:
                    back = retry_origin(topic, properties, store.view.topics.known_names)
                else:
                    back = dead_letter_origin(topic, properties)
                yield row | {
                    "consumerGroup": back.group,
                    "originTopic": back.topic,
                    "originMsgId": row["originMsgId"] or row["deadOriginMsgId"],
                    "lastTimestamp": row["storeTimestamp"],
                }


def _id_of(row: Row) -> str:
    return str(row["originMsgId"] or row["uniqKey"] or row["msgId"])


def _origin(store: StoreReader, row: Row) -> Row:
    """The queue and queue offset of the message that was sent back, if its record is in this log."""
    place = log_offset_of_id(row["originMsgId"] or "")
    start, end = store.log_range()
    record = (
        None if place is None or not start <= place < end else store.log.intact_record_at(place)
    )
    if record is None:
        return {}
    uniq_key = decode_properties(record.properties).get("UNIQ_KEY")
    if row["uniqKey"] is not None and uniq_key != row["uniqKey"]:
        return {}  # of another broker
    queue = QueueId(decode_utf8(record.topic), record.queue_id)
    if row["originTopic"] is not None and queue.topic != row["originTopic"]:
        return {}
    return {
        "originTopic": queue.topic,
        "originQueueId": queue.queue_id,
        "originQueueOffset": record.queue_offset,
        "originCommitLogOffset": place,
    }
