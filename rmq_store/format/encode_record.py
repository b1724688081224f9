"""The bytes of one record."""

from __future__ import annotations

import numpy as np

from rmq_store.format.byte_layout import (
    BORN_HOST_AT,
    CRC_DIGITS,
    CRC_ITEM_SIZE,
    CRC_MASK,
    CRC_PROPERTY,
    HEAD_SIZE,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    RECORD_HEAD,
)
from rmq_store.format.crc import body_crc, crc32
from rmq_store.format.record import Record


def crc_item(value: int) -> bytes:
    """The record CRC as a property item: ten digits, least significant first."""
    digits = f"{value:0{CRC_DIGITS}d}"[::-1].encode()
    return (
        CRC_PROPERTY.encode() + bytes([NAME_VALUE_SEPARATOR]) + digits + bytes([PROPERTY_SEPARATOR])
    )


def encode_record(record: Record, *, with_record_crc: bool = False) -> bytes:
    """The bytes of a record; computes sizes and CRCs (MessageExtEncoder#encode).

    `with_record_crc`: overwrite the last 20 bytes of `record.properties` with the record CRC. The
    caller reserves those bytes.
    """
    topic_width = 2 if record.magic == MAGIC_V2 else 1
    head = np.zeros(1, dtype=RECORD_HEAD)
    head["total_size"] = record.total_size
    head["magic"] = record.magic
    head["body_crc"] = body_crc(record.body)
    head["queue_id"] = record.queue_id
    head["flag"] = record.flag
    head["queue_offset"] = record.queue_offset
    head["physical_offset"] = record.physical_offset
    head["sys_flag"] = record.sys_flag
    head["born_timestamp"] = record.born_timestamp
    raw = b"".join(
        (
            head.tobytes()[:BORN_HOST_AT],
            record.born_host,
            record.store_timestamp.to_bytes(8, "big", signed=True),
            record.store_host,
            record.reconsume_times.to_bytes(4, "big", signed=True),
            record.prepared_transaction_offset.to_bytes(8, "big", signed=True),
            len(record.body).to_bytes(4, "big"),
            record.body,
            len(record.topic).to_bytes(topic_width, "big", signed=topic_width == 2),
            record.topic,
            len(record.properties).to_bytes(2, "big", signed=True),
            record.properties,
        )
    )
    assert len(raw) == record.total_size >= HEAD_SIZE
    if with_record_crc:
        raw = raw[:-CRC_ITEM_SIZE] + crc_item(crc32(raw[:-CRC_ITEM_SIZE]) & CRC_MASK)
    return raw
