"""The storage core: reads and writes the files of an Apache RocketMQ broker, without the broker."""

from rmq_store.consumequeue import QueueId
from rmq_store.errors import StoreError
from rmq_store.getmessage import GetMessageResult, GetMessageStatus
from rmq_store.message import Gap, Message, Record
from rmq_store.planning import QueueSlice
from rmq_store.snapshot import StoreSnapshot
from rmq_store.store import MessageStore
from rmq_store.topics import is_system_topic

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
