"""getMessage for a queue of a compaction topic, from its compaction log (CompactionLog#getMessage)."""

from __future__ import annotations

from dataclasses import replace

from rmq_store.consumequeue.compacted_queue import ADVICE, CompactedQueue
from rmq_store.errors import CorruptQueueError, CorruptRecordError, MissingFileError
from rmq_store.format.message import Message
from rmq_store.format.queue_entries import Entries
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Record
from rmq_store.reading.get_message import (
    GetMessageResult,
    GetMessageStatus,
    Tags,
    broker_batch,
    off_range,
)
from rmq_store.reading.message_of_entry import EntryMessages
from rmq_store.reading.query import parse_tags, positive


class CompactedGetter:
    """Answers getMessage for one queue, as MessageGetter does for others.

    No offset is too small: before the first message, the answer begins with that. All messages are
    checked against their entries, because these files are all that says which messages there are.
    """

    def __init__(self, queue: QueueId, files: CompactedQueue, broker_name: str) -> None:
        self._queue, self._files = queue, files
        self._messages = EntryMessages(lambda: files.log, broker_name)

    def exact(self, offset: int, max_messages: int, tags: Tags) -> GetMessageResult:
        """Up to `max_messages` messages from `offset`, from all files. Tags are compared as text."""
        positive("max_messages", max_messages)
        wanted = parse_tags(tags)
        low, high = self._files.min_offset, self._files.max_offset
        answer = self._off_range(offset)
        if answer is not None:
            return answer
        found: list[Message] = []
        at = offset
        while at < high and len(found) < max_messages:
            entries = self._files.entries_from(at)
            for row in range(len(entries)):
                at = int(entries.offset[row] + entries.count[row])
                message = self._message(entries, row)
                if wanted is None or message.tags in wanted:
                    found.append(message)
                    if len(found) == max_messages:
                        break
        status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, at, low, high, found)

    def as_broker(self, offset: int, max_messages: int) -> GetMessageResult:
        """The broker's answer: entries of one file, whatever their tags.

        CompactionStore#getMessage gets no filter; the consumer compares the tags.
        """
        files = self._files
        answer = self._off_range(offset)
        if answer is not None:
            badly = answer.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY
            to_min = badly and files.min_offset == 0
            return replace(answer, next_begin_offset=0) if to_min else answer
        entries = files.entries_from(offset)
        status, rows, at = broker_batch(
            files.log, files.log_end, entries, offset, max_messages, None
        )
        messages = [self._message(entries, row) for row in rows]
        return GetMessageResult(status, at, files.min_offset, files.max_offset, messages)

    def _off_range(self, offset: int) -> GetMessageResult | None:
        low, high = self._files.min_offset, self._files.max_offset
        return off_range(max(offset, low), low, high)

    def _message(self, entries: Entries, row: int) -> Message:
        """The message of an entry. Raises CorruptRecordError, CorruptQueueError, MissingFileError, and
        DataLossError if a broker has replaced the files."""
        try:
            return self._checked(entries, row)
        except (CorruptRecordError, CorruptQueueError, MissingFileError) as error:
            raise self._files.lost() or error from error

    def _checked(self, entries: Entries, row: int) -> Message:
        offset, size = int(entries.offset[row]), int(entries.size[row])
        record = self._record_at(int(entries.log_offset[row]))
        listed = record.queue_offset, record.total_size
        if listed == (offset, size) and self._messages.belongs(record, self._queue):
            return self._messages.of_record(
                record, self._queue, offset, int(entries.tags_code[row])
            )
        path, place = self._files.place_of(offset)
        raise CorruptQueueError(
            path,
            offset=place,
            reason="the entry does not point to its record in the compaction log",
            expected=f"queueOffset {offset} and {size} bytes at {record.physical_offset}",
            actual=f"queueOffset {listed[0]} and {listed[1]} bytes",
            advice=ADVICE,
        )

    def _record_at(self, place: int) -> Record:
        try:
            return self._files.log.record_at(place)
        except CorruptRecordError as error:  # what it advises is about the CommitLog
            raise error.with_advice(ADVICE) from error


def no_files() -> GetMessageResult:
    """The answer of a broker that has just started for a queue without files for compaction."""
    return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
