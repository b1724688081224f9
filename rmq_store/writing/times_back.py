"""Counts messages that are stored at an earlier time than one before them in their queue.

A broker finds a time in a queue by binary search, which such messages mislead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_duration
from rmq_store.writing.encoded_records import Unplaced, rows_by_queue


class TimesBack:
    """Looks at the store times that a writer is given, in order of the log."""

    def __init__(self, last_of: Callable[[QueueId], int]) -> None:
        """`last_of`: the store time (ms) of the last message that a queue has so far; 0 if not known."""
        self._last_of = last_of
        self._newest: dict[QueueId, int] = {}
        self._queues: set[QueueId] = set()
        self._count = self._most = 0

    def take(self, records: Unplaced, stamps: Ints) -> None:
        """Count messages that are about to be appended with these times (ms)."""
        for queue, rows in rows_by_queue(records, np.arange(len(records))):
            times = stamps[rows]
            if queue not in self._newest:
                self._newest[queue] = self._last_of(queue)
            newest = np.maximum.accumulate(np.r_[self._newest[queue], times])
            self._newest[queue] = int(newest[-1])
            back = np.maximum(newest[:-1] - times, 0)
            if back.any():
                self._queues.add(queue)
                self._count += int(np.count_nonzero(back))
                self._most = max(self._most, int(back.max()))

    def __str__(self) -> str:
        """A sentence about them; empty for none."""
        if not self._count:
            return ""
        queue = min(self._queues)
        return (
            f"given store times go back within {counted(len(self._queues), 'queue')}, such as {queue.name}: "
            f"{counted(self._count, 'message')}, by up to {shown_duration(self._most)}. A broker, and "
            "readers by time, find a time in a queue by binary search and miss messages there: write rows in "
            "the order of their store time, or without their times"
        )
