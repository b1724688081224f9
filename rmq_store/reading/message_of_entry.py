"""The messages that entries of a queue point to, one at a time, whichever log has the records."""

from __future__ import annotations

from collections.abc import Callable

from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import CorruptRecordError, MissingFileError
from rmq_store.format.byte_layout import MULTI_DISPATCH_SEPARATOR, Property
from rmq_store.format.compression import decompress
from rmq_store.format.message import Message, to_message
from rmq_store.format.properties import decode_properties, decode_utf8
from rmq_store.format.queue_entries import Entries
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Record


class EntryMessages:
    """Reads the messages of entries in one log."""

    def __init__(self, log: Callable[[], CommitLog], broker_name: str) -> None:
        self._log, self._broker_name = log, broker_name

    def any_message_at(self, queue: QueueId, entries: Entries, row: int) -> Message | None:
        """What the broker would return for an entry, if it is a record."""
        where = broker_position(self._log(), int(entries.log_offset[row]))
        try:
            record = self._log().record_at(where)
        except (CorruptRecordError, MissingFileError):
            return None
        return self.of_record(record, queue, int(entries.offset[row]), int(entries.tags_code[row]))

    @staticmethod
    def belongs(record: Record, queue: QueueId) -> bool:
        """Whether a record is one of a queue, or names it as a light queue."""
        if decode_utf8(record.topic) == queue.topic and record.queue_id == queue.queue_id:
            return True
        found = decode_properties(record.properties).get(Property.INNER_MULTI_DISPATCH, "")
        return queue.topic in found.split(MULTI_DISPATCH_SEPARATOR)

    def of_record(
        self,
        record: Record,
        queue: QueueId | None = None,
        queue_offset: int | None = None,
        code: int | None = None,
    ) -> Message:
        """The message of a record; of its entry, with the queue, queue offset and tagsCode of that.

        Raises BodyError for a body that cannot be decompressed.
        """
        body = decompress(
            record.body,
            record.sys_flag,
            path=self._log().path_at(record.physical_offset),
            log_offset=record.physical_offset,
        )
        return to_message(
            record,
            broker_name=self._broker_name,
            body=body,
            topic=None if queue is None else queue.topic,
            queue_id=None if queue is None else queue.queue_id,
            queue_offset=queue_offset,
            tags_code=code,
        )


def broker_position(log: CommitLog, where: int) -> int:
    """The position where the broker reads a log offset. For 0 it is the first existing file.

    See MappedFileQueue#findMappedFileByOffset with returnFirstOnNotFound for offset 0: for an
    expired first entry of a queue, the broker returns the record that is now first.
    """
    return log.start if where == 0 else where
