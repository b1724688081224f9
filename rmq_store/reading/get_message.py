"""getMessage: messages of one queue from an offset on, as the broker answers or without its limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from rmq_store.commitlog.log import CommitLog
from rmq_store.consumequeue.entries import Entries
from rmq_store.format.hashing import tags_code
from rmq_store.format.layout import FILLER_SIZE, TAG_SEPARATOR
from rmq_store.format.message import Message

ALL_TAGS = "*"

# Defaults of MessageStoreConfig.
_MAX_FILTER_BYTES = 16_000
_BYTES_IN_MEMORY, _COUNT_IN_MEMORY = 256 << 10, 32
_BYTES_ON_DISK, _COUNT_ON_DISK = 64 << 10, 8
_IN_MEMORY_RATIO = 0.40
_MASK32 = 0xFFFFFFFF
_CHUNK = 256


class GetMessageStatus(Enum):
    """What came of a getMessage; the names are the broker's."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


_BADLY = GetMessageStatus.OFFSET_OVERFLOW_BADLY


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """Status, where to go on, the queue's range, and the messages found."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message] = field(default_factory=list)


def parse_tags(tags: str | Sequence[str] | None) -> frozenset[str] | None:
    """The tags of an expression such as "a || b", or of a list; None: all."""
    if tags is None:
        return None
    words = tags.split(TAG_SEPARATOR) if isinstance(tags, str) else tags
    wanted = frozenset(word.strip() for word in words if word.strip())
    return None if not wanted or ALL_TAGS in wanted else wanted


def off_range(offset: int, low: int, high: int) -> GetMessageResult | None:
    """The answer where `offset` is not in [low, high); None where it is."""
    if high == 0:
        return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return None


EntriesOf = Callable[[int, int], Entries]
MessageAt = Callable[[Entries, int], Message | None]


def get_exact(
    offset: int,
    low: int,
    high: int,
    max_messages: int,
    tags: frozenset[str] | None,
    entries_of: EntriesOf,
    message_at: MessageAt,
) -> GetMessageResult:
    """On from `offset` to `max_messages`, over all files; tags compared as text.

    `message_at` gives None for an entry that does not lead to its record: those are no messages.
    """
    answer = off_range(offset, low, high)
    if answer is not None:
        return answer
    found: list[Message] = []
    at, step = offset, _CHUNK
    while at < high and len(found) < max_messages:
        upto = min(high, at + max(step, max_messages - len(found)))
        entries = entries_of(at, upto)
        # Offsets may be far apart in a queue of batches, and files may be missing in any.
        step = _CHUNK if len(entries) > 1 else 2 * step
        for row in range(len(entries)):
            message = message_at(entries, row)
            at = max(at, int(entries.offset[row] + max(1, entries.count[row])))
            if message is not None and (tags is None or message.tags in tags):
                found.append(message)
                if len(found) == max_messages:
                    break
        else:
            at = max(at, upto)
    status = GetMessageStatus.FOUND if found else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(status, min(at, high), low, high, found)


@dataclass(slots=True)
class BrokerLimits:
    """The batch that a broker puts together: how much is in it, and when it is full."""

    max_messages: int
    log_end: int
    bytes: int = 0
    count: int = 0

    def is_full(self, log_offset: int, size: int, messages: int) -> bool:
        """DefaultMessageStore#isTheBatchFull: the first message always goes in."""
        if not self.bytes or not self.count:
            return False
        if self.count + messages > self.max_messages:
            return True
        in_memory = self.log_end - log_offset <= _IN_MEMORY_RATIO * _physical_memory()
        most_bytes = _BYTES_IN_MEMORY if in_memory else _BYTES_ON_DISK
        most = _COUNT_IN_MEMORY if in_memory else _COUNT_ON_DISK
        return self.bytes + size > most_bytes or self.count > most - 1


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def get_as_broker(
    offset: int,
    low: int,
    high: int,
    max_messages: int,
    tags: frozenset[str] | None,
    entries_of: EntriesOf,
    unit_size: int,
    log: CommitLog,
    log_end: int,
    message_at: MessageAt,
    *,
    overflow_to_min: bool = False,
) -> GetMessageResult:
    """As DefaultMessageStore#getMessage answers: entries of one queue file, by tag hash alone.

    `entries_of` gives the entries from an offset to the end of its queue file.
    """
    answer = off_range(offset, low, high)
    if answer is not None:
        if overflow_to_min and low == 0 and answer.status is _BADLY:
            return replace(answer, next_begin_offset=low)
        return answer
    wanted = None if tags is None else {tags_code(tag) & _MASK32 for tag in tags}
    status, at = GetMessageStatus.NO_MATCHED_MESSAGE, offset
    limits = BrokerLimits(max_messages, log_end)
    found: list[Message] = []
    skip_to: int | None = None  # after a record that is gone: on with the next file of the log
    entries = entries_of(offset, high)
    for row in range(len(entries)):
        where, size, count = (
            int(x[row]) for x in (entries.log_offset, entries.size, entries.count)
        )
        if (int(entries.offset[row]) - offset) * unit_size >= max(
            _MAX_FILTER_BYTES, max_messages * unit_size
        ) or limits.is_full(where, size, count):
            break
        at = int(entries.offset[row]) + count
        if skip_to is not None and where < skip_to:
            continue
        if wanted is not None and int(entries.tags_code[row]) & _MASK32 not in wanted:
            continue
        if not _is_there(log, where, size, log_end):
            if not limits.bytes:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
            skip_to = where + log.chain.file_size - where % log.chain.file_size
            continue
        message = message_at(entries, row)
        if message is not None:
            found.append(message)
        limits.bytes, limits.count = limits.bytes + size, limits.count + count
        status, skip_to = GetMessageStatus.FOUND, None
    return GetMessageResult(status, at, low, high, found)


def broker_position(log: CommitLog, where: int) -> int:
    """Where the broker looks for a log offset: it takes 0 for the first file that is still there.

    MappedFileQueue#findMappedFileByOffset with returnFirstOnNotFound for offset 0: an expired first
    entry of a queue is answered with whatever record now stands first.
    """
    return log.start if where == 0 else where


def _is_there(log: CommitLog, where: int, size: int, log_end: int) -> bool:
    """Whether the broker would find `size` bytes for an entry, whatever they are."""
    where = broker_position(log, where)
    segment = log.chain.segment_at(where)
    if segment is None or size <= 0 or size == FILLER_SIZE:
        return False
    return where + size <= min(log_end, log.chain.segment_end(segment))
