"""Which records of a queue are of its last life: a topic that is deleted and created again begins at queue
offset 0 again, and no broker lists the earlier records any more.

A broker that dispatches such a log again lists the earlier ones, the first of the last life behind them, and
skips the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rmq_store.arrow.column_values import numbered_topics
from rmq_store.commitlog.headers import Headers
from rmq_store.consumequeue.entry_of_record import DispatchRequests, numbered_queues
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.enters_queue import enters_queue
from rmq_store.format.queues import QueueId


def last_life(offset: Ints, count: Ints) -> int:
    """The row at which the last life of a queue begins, by the queue offsets of its records in log order and
    their numbers of messages.

    A record with queue offset 0 begins one unless the record behind it goes on from those before: no CRC
    covers a queue offset, and a wrong 0 makes no new life.
    """
    for row in np.flatnonzero(offset[1:] == 0)[::-1] + 1:
        if row + 1 == len(offset):
            return int(row)
        behind, end = int(offset[row + 1]), int(offset[:row].max()) + 1
        if behind == int(count[row]) or behind < end:
            return int(row)
    return 0


class QueuesBegun:
    """Finds the queues that begin in a part of the log, by headers in its order: those with a record of
    queue offset 0."""

    def __init__(self) -> None:
        self.begun: set[QueueId] = set()
        self.again: set[QueueId] = set()
        """Those of them with an earlier record, whose topic may have been deleted and created again."""
        self._seen: set[QueueId] = set()

    def look_at(self, headers: Headers) -> None:
        """Look at the next records of the log."""
        headers = headers.take(enters_queue(headers.sys_flag))
        names, codes = numbered_topics(headers)
        queues, number = numbered_queues(names, codes, headers.queue_id.astype(np.int64))
        first = np.full(len(queues), len(headers), dtype=np.int64)
        np.minimum.at(first, number, np.arange(len(headers)))
        for row in np.flatnonzero(headers.queue_offset == 0).tolist():
            queue = queues[number[row]]
            self.begun.add(queue)
            if queue in self._seen or first[number[row]] < row:
                self.again.add(queue)
        self._seen.update(queues)


class LastLives:
    """Where in a part of the log the last life of each queue begins, of those with an earlier one.

    `begin`: log offsets. `earlier`: the number of messages of earlier lives in the part.
    """

    def __init__(
        self,
        queues: QueuesBegun,
        before: Mapping[QueueId, int],
        dispatched: Iterable[DispatchRequests],
    ) -> None:
        """`before`: the ends of queues that have entries before the part. `dispatched`: the entries of its
        records, in the log's order."""
        self.begin: dict[QueueId, int] = {}
        self.earlier: dict[QueueId, int] = {}
        wanted, parts = queues.again | (queues.begun & before.keys()), []
        for requests in dispatched if wanted else ():
            mine = np.array([queue in wanted for queue in requests.queues], dtype=bool)
            parts.append(requests.take(np.flatnonzero(mine[requests.queue])))
        if not parts:
            return
        found = DispatchRequests.concat(parts)
        for queue, rows in found.by_queue():
            last = np.array([before[queue] - 1] if queue in before else [], dtype=np.int64)
            row = last_life(np.append(last, found.offset[rows]), np.append(last, found.count[rows]))
            if row:
                row -= len(last)
                self.begin[queue] = int(found.log_offset[rows[row]])
                self.earlier[queue] = int(found.count[rows[:row]].sum())

    def without_earlier(self, requests: DispatchRequests) -> DispatchRequests:
        """The entries that are not of an earlier life."""
        if not self.begin:
            return requests
        begin = np.array([self.begin.get(one, 0) for one in requests.queues], dtype=np.int64)
        kept: Mask = requests.log_offset >= begin[requests.queue]
        return requests.take(np.flatnonzero(kept))
