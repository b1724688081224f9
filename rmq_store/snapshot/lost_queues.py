"""Queues that had messages and have none now: they have no files, or files without an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.covered_range import light_queues
from rmq_store.snapshot.undispatched_records import guess_record
from rmq_store.text.sizes import counted

if TYPE_CHECKING:
    from rmq_store.snapshot.health import Health

LOOKED_AT = 4 << 20
"""Bytes at the start and at the end of the log that every read compares with the queues."""


@dataclass(frozen=True, slots=True)
class LostQueue:
    """Why a queue must have had messages. `records`: at least as many of them are in the log.

    They were stored from `first_ms` to `last_ms`. 0 without records in the log, whose messages may have
    expired, and if the records may be of an earlier topic of that name.
    """

    has_files: bool
    proof: str
    records: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def may_be_in(self, begin: int | None, end: int | None) -> bool:
        """Whether the known records may be in [begin, end) (ms)."""
        late = begin is not None and self.last_ms < begin
        return not late and (end is None or self.first_ms < end)

    def __str__(self) -> str:
        return f"has {'no entry' if self.has_files else 'no files'}, although {self.proof}"


def lost_queues(health: Health) -> dict[QueueId, LostQueue]:
    """Queues without messages that had some: those in topics.json, those with files, and those whose topic
    has others, if topics.json does not say how many.

    Records of the log prove it that no queue lists, or where not all of them are known, those in its first
    and last bytes, which are 8 MiB at most. A consumer's offset proves it for a queue without files; it may
    also be left from messages that expired.
    """
    states = health.snapshot.queues
    # Not every declared queue is looked at: a file may declare 2^31 of a topic.
    topics = {*health.view.topics.queue_counts, *(queue.topic for queue in states)}
    most = {topic: health.view.topics.most_queues(topic) for topic in topics}
    there = Counter(q.topic for q in states if q.queue_id < most[q.topic])
    # Where nobody closed the store, its last records are in no queue yet, and count as entries.
    empty = {queue for queue, state in states.items() if state.min_offset >= state.max_offset}

    def has_no_files(queue: QueueId) -> bool:
        return queue not in states and 0 <= queue.queue_id < most.get(queue.topic, 0)

    lost = {
        queue: LostQueue(False, f"a consumer is at queue offset {reached}")
        for queue, reached in health.ends.reached.items()
        if reached > 0 and has_no_files(queue)
    }
    is_short = empty or any(count > there[topic] for topic, count in most.items())
    found = list(_queueless(health, lambda q: q in empty or has_no_files(q))) if is_short else []
    if found:
        near = DispatchRequests.concat(found)
        known = {q: rows for q, rows in near.by_queue() if q in empty or has_no_files(q)}
        begin = _where_topics_begin(health, {queue.topic for queue in known})
        for queue, rows in known.items():
            proof = f"the log has at least {counted(len(rows), 'record')} of it"
            if begin.get(queue.topic, -1) > int(near.log_offset[rows].max()):
                proof = f"{proof}, perhaps of an earlier topic of this name"
                lost[queue] = LostQueue(queue in states, proof)
                continue
            stamps = near.store_timestamp[rows]
            times = int(stamps.min()), int(stamps.max())
            lost[queue] = LostQueue(queue in states, proof, len(rows), *times)
    return dict(sorted(lost.items()))


def _where_topics_begin(health: Health, topics: set[str]) -> dict[str, int]:
    """Of topics whose queues with messages all begin at 0: the log offset of the first message.

    Older records of such a topic are of one that was deleted.
    """
    firsts: dict[str, int] = {}
    for queue, state in health.snapshot.queues.items():
        if queue.topic in topics and state.min_offset < state.max_offset:
            entries = health.view.entries(queue, state.min_offset, state.min_offset + 1)
            first = int(entries.log_offset[0]) if len(entries) and not state.min_offset else -1
            firsts[queue.topic] = min(first, firsts.get(queue.topic, first))
    return firsts


def _queueless(
    health: Health, may_be_lost: Callable[[QueueId], bool]
) -> Iterator[DispatchRequests]:
    """Records of queues that may be lost, among others."""
    snapshot, records = health.snapshot, health.records
    light = light_queues(snapshot.queues)
    # A light queue lists the records of others, and only their properties name it.
    whole = None if light else health.whole_log
    if whole is not None:
        yield from whole.queueless
        return
    near = min(snapshot.log_start + LOOKED_AT, snapshot.log_end)
    late = guess_record(health.log, max(near, snapshot.log_end - LOOKED_AT), snapshot.log_end)
    ranges = ((snapshot.log_start, near), (late, snapshot.log_end))
    named = (records.queues_named(*one) for one in ranges)
    if light or any(map(may_be_lost, chain.from_iterable(named))):
        for one in ranges:
            yield from records.requests(*one)
