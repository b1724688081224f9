"""Records and property strings, written item by item in Python: what the loops are compared with."""

from __future__ import annotations

import numpy as np

from rmq_store import Record
from rmq_store.format.byte_layout import (
    BORN_HOST_AT,
    CRC_ITEM_SIZE,
    CRC_MASK,
    HEAD_SIZE,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    RECORD_HEAD,
)
from rmq_store.format.hashes import body_crc, crc32
from rmq_store.format.record import crc_item, encode_utf8


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


def encode_properties(properties: dict[str, str], *, last_separator: bool = True) -> bytes:
    """Properties as the broker writes them (MessageDecoder#messageProperties2String).

    `last_separator`: whether 0x02 follows the last item too; this depends on the release (see
    `releases`).
    """
    text = "".join(
        f"{name}{chr(NAME_VALUE_SEPARATOR)}{value}{chr(PROPERTY_SEPARATOR)}"
        for name, value in properties.items()
    )
    return encode_utf8(text if last_separator else text[:-1])
