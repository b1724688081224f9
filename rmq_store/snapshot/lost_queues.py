"""Queues that had messages and have none now: they have no files, or files without an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from rmq_store.config.topics_json import queue_count
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.lost_ends import LOOKED_AT, LostEnds
from rmq_store.snapshot.undispatched_records import record_start_near


@dataclass(frozen=True, slots=True)
class LostQueue:
    """Why a queue must have had messages. `records`: at least as many of them are in the log.

    Without records in the log, its messages may have expired.
    """

    has_files: bool
    proof: str
    records: int = 0

    def __str__(self) -> str:
        return f"has {'no entry' if self.has_files else 'no files'}, although {self.proof}"


def lost_queues(
    ends: LostEnds, declared: Mapping[str, Mapping[str, Any]]
) -> dict[QueueId, LostQueue]:
    """Queues without messages that had some: those in `declared` (topics.json), and those with files.

    Records in the first and last bytes of the log prove it, which are 8 MiB at most. A consumer's
    offset proves it for a queue without files; it may also be left from messages that expired.
    """
    states = ends.snapshot.queues
    # Not every declared queue is looked at: a file may declare 2^31 of a topic.
    counts_said = {topic: queue_count(settings) for topic, settings in declared.items()}
    there = Counter(q.topic for q in states if q.queue_id < counts_said.get(q.topic, 0))
    # Where nobody closed the store, its last records are in no queue yet, and count as entries.
    empty = {queue for queue, state in states.items() if state.min_offset >= state.max_offset}

    def has_no_files(queue: QueueId) -> bool:
        return queue not in states and 0 <= queue.queue_id < counts_said.get(queue.topic, 0)

    lost = {
        queue: LostQueue(False, f"a consumer is at queue offset {reached}")
        for queue, reached in ends.reached.items()
        if reached > 0 and has_no_files(queue)
    }
    if empty or any(said > there[topic] for topic, said in counts_said.items()):
        lost |= {
            queue: LostQueue(queue in states, f"the log has at least {count} records of it", count)
            for queue, count in _records_near_the_ends(ends).items()
            if queue in empty or has_no_files(queue)
        }
    return dict(sorted(lost.items()))


def _records_near_the_ends(ends: LostEnds) -> Counter[QueueId]:
    start, end = ends.snapshot.log_start, ends.snapshot.log_end
    near = min(start + LOOKED_AT, end)
    late = record_start_near(ends.log, max(near, end - LOOKED_AT), end)
    counts: Counter[QueueId] = Counter()
    for requests in chain(ends.records.requests(start, near), ends.records.requests(late, end)):
        for number, count in enumerate(np.bincount(requests.queue).tolist()):
            counts[requests.queues[number]] += count
    return counts
