"""Offsets of consumer groups in queues whose messages get other queue offsets in a new store."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId


class MovedOffsets:
    """The new offset for each offset of a queue: the place there of the message that it leads to, or of the
    first one after it.

    The messages come in the order of their log. Where queue offsets begin again, the queue was deleted and
    created again: offsets are those of its last life.
    """

    def __init__(self, offsets: Iterable[tuple[QueueId, int]]) -> None:
        wanted: dict[QueueId, set[int]] = {}
        for queue, offset in offsets:
            wanted.setdefault(queue, set()).add(offset)
        self._queues = {queue: _Queue(sorted(some)) for queue, some in wanted.items()}

    def note(self, queue: QueueId, old: Ints, new: Ints) -> None:
        """Note the next messages of a queue, at least one: their old and their new offsets."""
        if queue in self._queues:
            self._queues[queue].note(old, new)

    def new_of(self, queue: QueueId, offset: int, end: int) -> int:
        """The new offset for one that was given. `end`: the max offset of the new queue."""
        return self._queues[queue].new_of(offset, end)


class _Queue:
    """The offsets that are looked for in a queue, sorted, and what they become; -1: not met yet."""

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = np.array(offsets, dtype=np.int64)
        self._become = np.full(len(offsets), -1, dtype=np.int64)
        self._last: tuple[int, int] | None = None  # old and new offset of the last message

    def note(self, old: Ints, new: Ints) -> None:
        if self._last is not None:
            old, new = (
                np.append(last, part) for last, part in zip(self._last, (old, new), strict=True)
            )
        back = np.flatnonzero(np.diff(old) <= 0)
        if len(back):  # an earlier life ends
            self._become[:] = -1
            old, new = old[back[-1] + 1 :], new[back[-1] + 1 :]
        self._last = int(old[-1]), int(new[-1])
        met = np.flatnonzero((self._become < 0) & (self._offsets < old[-1]))
        at = np.searchsorted(old, self._offsets[met], side="right") - 1
        # Within a batch of messages the distance from its first one stays; a lost message leaves no gap.
        inside = np.minimum(new[at] + self._offsets[met] - old[at], new[at + 1])
        self._become[met] = np.where(at < 0, new[0], inside)

    def new_of(self, offset: int, end: int) -> int:
        become = int(self._become[np.searchsorted(self._offsets, offset)])
        if become >= 0:
            return become
        return end if self._last is None else min(self._last[1] + offset - self._last[0], end)
