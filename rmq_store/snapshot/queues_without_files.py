"""Queues of topics.json that have no files, although they had messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from rmq_store.config.topics_json import queue_count
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.lost_ends import LOOKED_AT, LostEnds
from rmq_store.snapshot.undispatched_records import record_start_near


def lost_queues(ends: LostEnds, declared: Mapping[str, Mapping[str, Any]]) -> dict[QueueId, str]:
    """Queues without files that had messages, of those in `declared` (topics.json), and the proof.

    Records in the first and last bytes of the log prove it. A consumer's offset may also be left
    from messages that expired.
    """
    states = ends.snapshot.queues
    # Not every declared queue is looked at: a file may declare 2^31 of a topic.
    counts_said = {topic: queue_count(settings) for topic, settings in declared.items()}
    there = Counter(q.topic for q in states if q.queue_id < counts_said.get(q.topic, 0))

    def is_candidate(queue: QueueId) -> bool:
        return queue not in states and 0 <= queue.queue_id < counts_said.get(queue.topic, 0)

    lost = {
        queue: f"a consumer is at queue offset {reached}"
        for queue, reached in ends.reached.items()
        if reached > 0 and is_candidate(queue)
    }
    if any(said > there[topic] for topic, said in counts_said.items()):
        lost |= {
            queue: f"the log has at least {count} records of it"
            for queue, count in _records_near_the_ends(ends).items()
            if is_candidate(queue)
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
