"""Messages and rows of golden stores, beside what their truth says they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from rmq_store import Message, MessageStore
from rmq_store.arrow.column_definitions import BY_NAME
from rmq_store.format.record import decode_properties
from tests.support.golden import GoldenStore, Truth, bodies_of

EVERY_COLUMN = tuple(BY_NAME)
Expected = dict[str, Any]


def expected_message(record: Truth) -> Expected:
    """The fields of a message in the words of `Message`, apart from the queue's."""
    body, stored = bodies_of(record)
    return {
        "commit_log_offset": record["commitLogOffset"],
        "store_size": record["storeSize"],
        "tags": record["tags"],
        "keys": record["keys"],
        "uniq_key": record["uniqKey"],
        "msg_id": record["offsetMsgId"],
        "flag": record["flag"],
        "sys_flag": record["sysFlag"],
        "born_timestamp": record["bornTimestamp"],
        "born_host": record["bornHost"],
        "store_timestamp": record["storeTimestamp"],
        "store_host": record["storeHost"],
        "reconsume_times": record["reconsumeTimes"],
        "prepared_transaction_offset": record["preparedTransactionOffset"],
        "body_crc": record["bodyCrc"],
        "body": body,
        "raw_body": stored,
        "properties": record["properties"],
    }


def fields_of(message: Message, like: Expected) -> Expected:
    return {name: getattr(message, name) for name in like}


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Expected]:
    """The rows of batches, each batch sound by Arrow's own account; timestamps in ms."""
    for batch in batches:
        batch.validate(full=True)
        times = {}
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in batch.schema.names:
                assert batch.schema.field(name).type == pa.timestamp("ms", tz="UTC")
                times[name] = batch.column(name).view(pa.int64()).to_pylist()
        others = [name for name in batch.schema.names if name not in times]
        for at, row in enumerate(batch.select(others).to_pylist()):
            row.update({name: values[at] for name, values in times.items()})
            if "properties" in row:
                assert len(dict(row["properties"])) == len(row["properties"])
                row["properties"] = dict(row["properties"])
            if "rawProperties" in row:
                assert decode_properties(row["rawProperties"]) == row["properties"]
            yield row


def all_rows(store: MessageStore, **how: Any) -> list[Expected]:
    return list(
        rows_of(store.read_batches(columns=EVERY_COLUMN, include_system_topics=True, **how))
    )


def log_end_of(store: GoldenStore) -> int:
    """maxPhyOffset by the broker's account."""
    return int(store.answers("log")[0]["maxPhyOffset"])


def as_served(message: Any) -> dict[str, Any]:
    """A message with the fields of `served.jsonl`."""
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "phy": message.commit_log_offset,
        "size": message.store_size,
        "offsetMsgId": message.msg_id,
        "sysFlag": message.sys_flag & ~1,  # the client has decompressed the body
        "flag": message.flag,
        "bornTs": message.born_timestamp,
        "storeTs": message.store_timestamp,
        "bodyCrc": message.body_crc,
        "reconsume": message.reconsume_times,
        "prepared": message.prepared_transaction_offset,
        "body": message.body,
    }


def assert_answered(store: MessageStore, topic: str, answer: dict[str, Any]) -> list[Message]:
    """Hold get_message against a broker's answer to it; gives the messages."""
    asked = (answer["queueId"], answer["offset"], answer["maxMsgNums"], answer["tags"])
    result = store.get_message(topic, *asked, as_broker=True)
    assert (result.status.name, result.next_begin_offset, result.min_offset, result.max_offset) == (
        *(answer["status"], answer["nextBeginOffset"], answer["minOffset"], answer["maxOffset"]),
    ), answer
    places = [message.commit_log_offset for message in result.messages]
    assert places == answer["commitLogOffsets"], answer
    return result.messages
