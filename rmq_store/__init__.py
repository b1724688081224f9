"""The storage core: reads and writes the files of an Apache RocketMQ broker, without the broker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_store.errors import StoreError
    from rmq_store.format.queues import QueueId, QueueSlice
    from rmq_store.format.record import Gap, Message, Record
    from rmq_store.format.topics import is_system_topic
    from rmq_store.reading.get_message import GetMessageResult, GetMessageStatus
    from rmq_store.snapshot.snapshot import StoreSnapshot
    from rmq_store.store import MessageStore

__version__ = "0.1.0"

__all__ = [
    "Gap",
    "GetMessageResult",
    "GetMessageStatus",
    "Message",
    "MessageStore",
    "QueueId",
    "QueueSlice",
    "Record",
    "StoreError",
    "StoreSnapshot",
    "is_system_topic",
]

# Imported when asked for: a command that looks at a few files does not wait for Arrow.
_HOME = {
    "Gap": "format.record",
    "GetMessageResult": "reading.get_message",
    "GetMessageStatus": "reading.get_message",
    "Message": "format.record",
    "MessageStore": "store",
    "QueueId": "format.queues",
    "QueueSlice": "format.queues",
    "Record": "format.record",
    "StoreError": "errors",
    "StoreSnapshot": "snapshot.snapshot",
    "is_system_topic": "format.topics",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
