"""A queue and ranges of it, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class QueueId(NamedTuple):
    """A queue: its topic and its number in it."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, order=True)
class QueueSlice:
    """Neighbouring entries of one queue."""

    queue: QueueId
    start: int  # queue offset, included
    stop: int  # queue offset, excluded

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def cut(self, start: int, stop: int) -> QueueSlice:
        """What of it lies in [start, stop); maybe empty."""
        return QueueSlice(self.queue, max(self.start, start), min(self.stop, stop))


class Entry(NamedTuple):
    """Where the message at a queue offset lies, and how much it takes."""

    log_offset: int  # CommitLog offset of its record, bytes
    size: float  # bytes; its share of the record where that holds several messages


EntryAt = Callable[[QueueId, int], Entry | None]
"""The entry at a queue offset; None where it leads to no record."""
