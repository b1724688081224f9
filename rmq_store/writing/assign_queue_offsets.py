"""The queueOffset of each new message: counters per queue (ConsumeQueueStore#assignQueueOffset)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.layout import SysFlag
from rmq_store.format.queues import QueueId
from rmq_store.writing.encoded_records import Unplaced


class QueueCounters:
    """The next queueOffset of every queue. Not thread-safe: the writer holds a lock."""

    def __init__(self, ends: Mapping[QueueId, int]) -> None:
        """`ends`: the max offset of each existing queue."""
        self._next = dict(ends)

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._next)

    def next_of(self, queue: QueueId) -> int:
        """The queueOffset of the next message of a queue; 0 for a new queue."""
        return self._next.get(queue, 0)

    def raise_to(self, ends: Mapping[QueueId, int]) -> None:
        """Raise counters to at least these ends."""
        for queue, end in ends.items():
            self._next[queue] = max(self.next_of(queue), end)

    def update(self, ends: Mapping[QueueId, int]) -> None:
        """Set counters to these ends."""
        self._next.update(ends)

    def assign(self, prepared: Unplaced, counts: Ints) -> Ints:
        """queueOffset of each record: the queue's counter; 0 for records that enter no queue."""
        transaction = prepared.transaction
        listed = (transaction == 0) | (transaction == SysFlag.TRANSACTION_COMMIT)
        keys = prepared.topic_code << 32 | (prepared.queue_id.astype(np.int64) & 0xFFFFFFFF)
        offsets = np.zeros(len(prepared), dtype=np.int64)
        order = np.flatnonzero(listed)[np.argsort(keys[listed], kind="stable")]
        if not len(order):
            return offsets
        ordered = keys[order]
        first = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1]
        before = np.cumsum(counts[order]) - counts[order]
        sizes = np.diff(np.r_[first, len(order)])
        starts = np.empty(len(first), dtype=np.int64)
        for place, (at, size) in enumerate(zip(first.tolist(), sizes.tolist(), strict=True)):
            row = int(order[at])
            queue = QueueId(
                prepared.topics[int(prepared.topic_code[row])], int(prepared.queue_id[row])
            )
            starts[place] = self.next_of(queue)
            self._next[queue] = int(starts[place] + counts[order[at : at + size]].sum())
        offsets[order] = before + np.repeat(starts - before[first], sizes)
        return offsets
