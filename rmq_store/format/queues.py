"""Plain values for a queue, a range of a queue, and an entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class QueueId(NamedTuple):
    """A queue: its topic and its number in the topic."""

    topic: str
    queue_id: int

    @property
    def name(self) -> str:
        """The queue in messages."""
        return f"{self.topic}/{self.queue_id}"


@dataclass(frozen=True, slots=True, order=True)
class QueueSlice:
    """A range of queue offsets of one queue."""

    queue: QueueId
    start: int  # queue offset, included
    stop: int  # queue offset, excluded

    def __len__(self) -> int:
        return min(max(0, self.stop - self.start), sys.maxsize)  # all that len can say

    def cut(self, start: int, stop: int) -> QueueSlice:
        """What of it lies in [start, stop); maybe empty."""
        return QueueSlice(self.queue, max(self.start, start), min(self.stop, stop))


class Entry(NamedTuple):
    """The place of the message at a queue offset, and its size."""

    log_offset: int  # CommitLog offset of its record, bytes
    size: float  # bytes; in an inner batch, this message's share of the record


EntryAt = Callable[[QueueId, int], Entry | None]
"""The entry at a queue offset; None if it does not point to a record."""
