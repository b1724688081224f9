"""getMessage: messages of one queue from an offset, exact or with the broker's limits."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rmq_store.commitlog.log import CommitLog
from rmq_store.consumequeue.compacted_queue import ADVICE, CompactedQueue
from rmq_store.errors import CorruptQueueError, CorruptRecordError, MissingFileError
from rmq_store.format.hashes import tags_code
from rmq_store.format.queues import FILLER_SIZE, Entries, QueueId, QueueSlice
from rmq_store.format.record import Message
from rmq_store.reading.message_lookup import EntryMessages, MessageLookup, broker_position
from rmq_store.reading.query import Query, parse_tags, positive_number
from rmq_store.reading.slice_reader import SliceReader, ranges_of_slices
from rmq_store.snapshot.opening import Opening
from rmq_store.snapshot.queue_view import QueueView

# Defaults of MessageStoreConfig.
_MAX_FILTER_BYTES = 16_000
_IN_MEMORY, _ON_DISK = (256 << 10, 32), (64 << 10, 8)  # bytes and messages
_IN_MEMORY_RATIO = 0.40
_MASK32 = 0xFFFFFFFF
_CHUNK = 256


Tags = str | Sequence[str] | None


class GetMessageStatus(Enum):
    """The status of a getMessage, with the broker's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """Status, next offset, the queue's range, and the messages."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message] = field(default_factory=list)


def answer_outside_range(
    offset: int, low: int, high: int, *, overflow_to_min: bool = False
) -> GetMessageResult | None:
    """The answer if `offset` is not in [low, high); else None.

    `overflow_to_min`: a queue that begins at 0 is read from there next if `offset` is far behind its end.
    """
    if high == 0:
        return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        at = 0 if overflow_to_min and low == 0 else high
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, at, low, high)
    return None


@dataclass(slots=True)
class BrokerLimits:
    """The size of the batch that a broker collects, and when it is full."""

    max_messages: int
    log_end: int
    bytes: int = 0
    count: int = 0

    def is_full(self, log_offset: int, size: int, messages: int) -> bool:
        """Whether the batch is full, like DefaultMessageStore#isTheBatchFull. The first message
        always fits."""
        if not self.bytes or not self.count:
            return False
        if self.count + messages > self.max_messages:
            return True
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        in_memory = self.log_end - log_offset <= _IN_MEMORY_RATIO * memory
        most_bytes, most = _IN_MEMORY if in_memory else _ON_DISK
        return self.bytes + size > most_bytes or self.count > most - 1


class MessageGetter:
    """Answers getMessage for the queues of one view."""

    def __init__(self, view: QueueView, opening: Opening, lookup: MessageLookup) -> None:
        self._view, self._opening, self._lookup = view, opening, lookup
        self._queues = view.snapshot.queues

    def exact(self, queue: QueueId, offset: int, max_messages: int, tags: Tags) -> GetMessageResult:
        """Up to `max_messages` messages from `offset`, from all files. Tags are compared as text.

        Raises what a read of the queue raises: for an entry that does not lead to its record, if no message
        is before it, and where none is before the queue's end, for a log that lost its own end.
        """
        positive_number("max_messages", max_messages)
        state = self._queues.get(queue)
        if state is None:
            return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = state.min_offset, state.max_offset
        answer = answer_outside_range(offset, low, high)
        if answer is None:
            messages, at = self._found(queue, range(offset, high), max_messages, parse_tags(tags))
            status = GetMessageStatus.FOUND if messages else GetMessageStatus.NO_MATCHED_MESSAGE
            answer = GetMessageResult(status, at, low, high, messages)
        if not answer.messages and answer.next_begin_offset >= high:
            for error in self._opening.errors({queue}):
                raise error
        return answer

    def _found(
        self, queue: QueueId, offsets: range, max_messages: int, tags: Collection[str] | None
    ) -> tuple[list[Message], int]:
        """The first messages in a range of queue offsets, and the one to go on at."""
        messages: list[Message] = []
        at, high, step = offsets.start, offsets.stop, _CHUNK
        while at < high and len(messages) < max_messages:
            upto = min(high, at + max(step, max_messages - len(messages)))
            entries = self._view.entries(queue, at, upto)
            # Offsets may be far apart in a batch queue, and files may be missing in any queue.
            step = _CHUNK if len(entries) > 1 else 2 * step
            for row in range(len(entries)):
                message, before = self._lookup.message_of(queue, entries, row), at
                at = max(at, int(entries.offset[row] + max(1, entries.count[row])))
                if message is None and messages:
                    return messages, before
                if message is None:
                    self._refuse_dead_end(queue, int(entries.offset[row]), at)
                elif tags is None or message.tags in tags:
                    messages.append(message)
                    if len(messages) == max_messages:
                        break
            else:
                at = max(at, upto)
        return messages, min(at, high)

    def _refuse_dead_end(self, queue: QueueId, start: int, stop: int) -> None:
        """Raise the error of a range of entries that do not lead to records of their queue."""
        query, parts = Query.of(verify_queue=True), [QueueSlice(queue, start, stop)]
        for _ in SliceReader(self._view, "", query, ranges_of_slices(parts)).read(parts):
            pass

    def as_broker(
        self, queue: QueueId, offset: int, max_messages: int, tags: Tags, overflow_to_min: bool
    ) -> GetMessageResult:
        """The answer of DefaultMessageStore#getMessage: entries of one queue file, tags compared
        only by hash."""
        state = self._queues.get(queue)
        if state is None:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = self._view.broker_min_offset(queue, state), state.max_offset
        answer = answer_outside_range(offset, low, high, overflow_to_min=overflow_to_min)
        if answer is not None:
            return answer
        entries = self._view.with_ext_tags(
            queue, self._view.entries_to_file_end(queue, state, offset, high)
        )
        unit_size = self._view.files(queue).dtype.itemsize
        most_bytes = max(_MAX_FILTER_BYTES, max_messages * unit_size)
        near = entries.take((entries.offset - offset) * unit_size < most_bytes)
        wanted = parse_tags(tags)
        hashes = None if wanted is None else {tags_code(tag) & _MASK32 for tag in wanted}
        log, log_end = self._view.log, self._view.log_end
        status, rows, at = entries_broker_sends(log, log_end, near, offset, max_messages, hashes)
        found = [self._lookup.any_message_at(queue, near, row) for row in rows]
        messages = [message for message in found if message is not None]
        return GetMessageResult(status, at, low, high, messages)


def entries_broker_sends(
    log: CommitLog,
    log_end: int,
    entries: Entries,
    offset: int,
    max_messages: int,
    hashes: set[int] | None,
) -> tuple[GetMessageStatus, list[int], int]:
    """The status, the rows of the entries that the broker sends, and its next offset."""
    status, at = GetMessageStatus.NO_MATCHED_MESSAGE, offset
    limits = BrokerLimits(max_messages, log_end)
    rows: list[int] = []
    skip_to: int | None = None  # after a missing record, continue at the next log file
    for row in range(len(entries)):
        where, size, count = (
            int(column[row]) for column in (entries.log_offset, entries.size, entries.count)
        )
        if limits.is_full(where, size, count):
            break
        at = int(entries.offset[row]) + count
        if skip_to is not None and where < skip_to:
            continue
        if hashes is not None and int(entries.tags_code[row]) & _MASK32 not in hashes:
            continue
        if not _is_there(log, where, size, log_end):
            if not limits.bytes:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
            file_size = log.chain.file_size or 1  # 0: the log has no files
            skip_to = where + file_size - where % file_size
            continue
        rows.append(row)
        limits.bytes, limits.count = limits.bytes + size, limits.count + count
        status, skip_to = GetMessageStatus.FOUND, None
    return status, rows, at


def _is_there(log: CommitLog, where: int, size: int, log_end: int) -> bool:
    """Whether the broker would find `size` bytes for an entry, with any content."""
    where = broker_position(log, where)
    segment = log.chain.segment_at(where)
    if segment is None or size <= 0 or size == FILLER_SIZE:
        return False
    return where + size <= min(log_end, log.chain.segment_end(segment))


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
        positive_number("max_messages", max_messages)
        wanted = parse_tags(tags)
        low, high = self._files.min_offset, self._files.max_offset
        answer = answer_outside_range(max(offset, low), low, high)
        if answer is not None:
            return answer
        messages: list[Message] = []
        at = offset
        while at < high and len(messages) < max_messages:
            entries = self._files.entries_from(at)
            for row in range(len(entries)):
                at = int(entries.offset[row] + entries.count[row])
                message = self._message(entries, row)
                if wanted is None or message.tags in wanted:
                    messages.append(message)
                    if len(messages) == max_messages:
                        break
        status = GetMessageStatus.FOUND if messages else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, at, low, high, messages)

    def as_broker(self, offset: int, max_messages: int) -> GetMessageResult:
        """The broker's answer: entries of one file, whatever their tags.

        CompactionStore#getMessage gets no filter; the consumer compares the tags.
        """
        files = self._files
        low, high = files.min_offset, files.max_offset
        answer = answer_outside_range(max(offset, low), low, high, overflow_to_min=True)
        if answer is not None:
            return answer
        entries = files.entries_from(offset)
        status, rows, at = entries_broker_sends(
            files.log, files.log_end, entries, offset, max_messages, None
        )
        return GetMessageResult(status, at, low, high, [self._message(entries, n) for n in rows])

    def _message(self, entries: Entries, row: int) -> Message:
        """The message of an entry. Raises CorruptRecordError, CorruptQueueError, MissingFileError, and
        DataLossError if a broker has replaced the files."""
        try:
            return self._checked(entries, row)
        except (CorruptRecordError, CorruptQueueError, MissingFileError) as error:
            raise self._files.replaced() or error from error

    def _checked(self, entries: Entries, row: int) -> Message:
        offset, size = int(entries.offset[row]), int(entries.size[row])
        try:
            record = self._files.log.record_at(int(entries.log_offset[row]))
        except CorruptRecordError as error:  # what it advises is about the CommitLog
            raise error.with_advice(ADVICE) from error
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
