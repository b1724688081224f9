"""What of the broker's own records expired with the log before it was done with them, and what is about to.

The evidence stays behind: an offset in config/delayOffset.json, or of the group that checks transactions,
before the first one of the queue; a unit of the timer log for a time to come that leads before the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    DELAY_FILE,
    read_consumer_offsets,
    read_delay_offsets,
)
from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import TIMER_CHECK
from rmq_store.format.hashes import java_string_hash
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import (
    HALF_TOPIC,
    OP_TOPIC,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
)
from rmq_store.markers.timer_files import DELETE, read_timer_check, read_timer_units
from rmq_store.store import MessageStore
from rmq_store.system_topics.delayed_messages import LEVEL, LOST, OVERDUE, WAITING, delayed_messages
from rmq_store.system_topics.transactions import OPEN, ended_half_messages, transactions
from rmq_store.text.sizes import counted

_UNDELIVERED = (WAITING, OVERDUE, LOST)
TIMERS, TRANSACTIONS, POP = "timers", "open transactions", "check points of pop"


class Unfinished(NamedTuple):
    """Messages in the broker's own topics that `reader`, one of its services, is not done with."""

    reader: str
    messages: int


class Expired(NamedTuple):
    """Messages that expired before `reader` was done with them, as a file of `config/` proves."""

    code: str  # of a finding
    reader: str
    messages: int
    file: str
    proof: str

    def __str__(self) -> str:
        return (
            f"{self.reader}: {counted(self.messages, 'message')} expired before the broker was done with "
            f"them; {self.proof}"
        )


def level_name(level: int) -> str:
    """What reads the messages of a delay level."""
    return f"delay level {level}"


def expired_before_delivery(store: MessageStore) -> Iterator[Expired]:
    """What expired of each delay level, of the timers and of open transactions. Raises CorruptConfigError."""
    states = store.snapshot().queues
    for queue_id, offset in sorted(read_delay_offsets(store.path)[SCHEDULE_TOPIC].items()):
        state = states.get(QueueId(SCHEDULE_TOPIC, queue_id))
        if state is not None and offset < state.min_offset:
            proof = (
                f"the level is delivered to offset {offset} of {SCHEDULE_TOPIC}/{queue_id}, which begins at "
                f"{state.min_offset}"
            )
            reader = level_name(queue_id + 1)
            yield Expired("delay-behind", reader, state.min_offset - offset, DELAY_FILE, proof)
    yield from _timers(store)
    yield from _transactions(store)


def _timers(store: MessageStore) -> Iterator[Expired]:
    check, units = read_timer_check(store.path), read_timer_units(store.path)
    state = store.snapshot().queues.get(QueueId(TIMER_TOPIC, 0))
    if check is None:
        return
    unread = 0 if state is None else max(0, state.min_offset - check.queue_offset)
    proof = f"the timer has read {TIMER_TOPIC} to offset {check.queue_offset}, before its first one"
    if units is not None:
        of_pop = [java_string_hash(t) for t in store.topics() if t.startswith(REVIVE_PREFIX)]
        lost = (units.time >= check.read_time) & (units.log_offset < store.log_range()[0])
        lost &= (units.magic & DELETE == 0) & ~np.isin(units.topic_hash, of_pop)
        if lost.any():
            unread += int(lost.sum())
            proof = f"the timer log leads to them, before log offset {store.log_range()[0]}"
    if unread:
        yield Expired("timer-behind", TIMERS, unread, TIMER_CHECK, proof)


def _transactions(store: MessageStore) -> Iterator[Expired]:
    """Half messages that the broker had not passed, and that no op message which is left names."""
    checked = read_consumer_offsets(store.path).get(TRANSACTION_GROUP, {})
    for queue in store.queues(HALF_TOPIC):
        offset, first = checked.get(HALF_TOPIC, {}).get(queue.queue_id), store.min_offset(*queue)
        if offset is not None and offset < first:
            met: list[StoreError] = []  # verify reports it
            ended = ended_half_messages(store, OP_TOPIC, met.append)
            missing = first - offset - int(((ended >= offset) & (ended < first)).sum())
            if missing:
                proof = (
                    f"it has checked {queue.name} to offset {offset}, which begins at {first}. Op messages "
                    "that expired too may have ended some"
                )
                yield Expired(
                    "transactions-behind", TRANSACTIONS, missing, CONSUMER_FILES[0], proof
                )


def unfinished_before(store: MessageStore, log_offset: int) -> list[Unfinished]:
    """What is not done with of the records before a log offset. Passes over damage, which verify reports."""
    counts: Counter[str] = Counter()
    met: list[StoreError] = []
    for row in delayed_messages(store, met.append):
        if row["state"] in _UNDELIVERED and row["commitLogOffset"] < log_offset:
            of_pop = (row["topic"] or "").startswith(REVIVE_PREFIX)
            level = level_name(row["delayLevel"]) if row["kind"] == LEVEL else TIMERS
            counts[POP if of_pop else level] += 1
    for row in transactions(store, met.append):
        if row["state"] == OPEN and row["halfCommitLogOffset"] < log_offset:
            counts[TRANSACTIONS] += 1
    return [Unfinished(reader, messages) for reader, messages in sorted(counts.items())]
