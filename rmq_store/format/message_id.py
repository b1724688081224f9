"""An offsetMsgId: the storeHost and the log offset of a message in hex."""

from __future__ import annotations

from rmq_store.format.byte_layout import HOST_V4_SIZE, HOST_V6_SIZE


def message_id(store_host: bytes, log_offset: int) -> str:
    """offsetMsgId of a record: 32 hex digits with an IPv4 storeHost, 56 with IPv6."""
    return (store_host + log_offset.to_bytes(8, "big", signed=True)).hex().upper()


def log_offset_of_id(message_id: str) -> int | None:
    """The log offset in an offsetMsgId of 32 or 56 hex digits; None for another form."""
    if len(message_id) not in (2 * HOST_V4_SIZE + 16, 2 * HOST_V6_SIZE + 16):
        return None
    try:
        return int.from_bytes(bytes.fromhex(message_id)[-8:], "big", signed=True)
    except ValueError:
        return None
