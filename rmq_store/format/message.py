"""A message as a consumer sees it, built from a record."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_store.format.byte_layout import Property
from rmq_store.format.properties import decode_properties, decode_utf8, format_host
from rmq_store.format.record import Record


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer sees it; its fields are the columns of `rmq_store.arrow.column_definitions`.

    Timestamps are milliseconds since the epoch, UTC. `queue_offset` is the position in the queue.
    `body` is decompressed; `raw_body`, `raw_properties`, `body_crc` and `store_size` describe the
    stored bytes.
    """

    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int | None
    commit_log_offset: int
    store_size: int
    tags: str | None
    keys: str | None
    uniq_key: str | None
    msg_id: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body: bytes = field(repr=False)
    properties: dict[str, str] = field(default_factory=dict)
    raw_body: bytes = field(default=b"", repr=False)
    raw_properties: bytes = field(default=b"", repr=False)
    tags_code: int | None = None
    record_queue_offset: int | None = None
    corrupt_record: str | None = None


def to_message(
    record: Record,
    *,
    broker_name: str,
    body: bytes,
    topic: str | None = None,
    queue_id: int | None = None,
    queue_offset: int | None = None,
    tags_code: int | None = None,
) -> Message:
    """The message in a record. topic, queueId and queueOffset default to the record's own values."""
    properties = decode_properties(record.properties)
    assert record.body_crc is not None
    return Message(
        broker_name=broker_name,
        topic=decode_utf8(record.topic) if topic is None else topic,
        queue_id=record.queue_id if queue_id is None else queue_id,
        queue_offset=queue_offset,
        commit_log_offset=record.physical_offset,
        store_size=record.total_size,
        tags=properties.get(Property.TAGS),
        keys=properties.get(Property.KEYS),
        uniq_key=properties.get(Property.UNIQ_KEY),
        msg_id=record.offset_msg_id(),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=format_host(record.born_host),
        store_timestamp=record.store_timestamp,
        store_host=format_host(record.store_host),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        body=body,
        properties=properties,
        raw_body=record.body,
        raw_properties=record.properties,
        tags_code=tags_code,
        record_queue_offset=None if record.queue_offset == queue_offset else record.queue_offset,
    )
