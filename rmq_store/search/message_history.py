"""A message's history: all its records in the store, and the state of its transaction.

A message keeps its UNIQ_KEY when the broker writes it again: delayed, retried, dead, prepared and
committed. So this key finds its records in every topic, including system topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.errors import StoreError
from rmq_store.format.compression import SysFlag
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import Message
from rmq_store.format.topics import (
    DLQ_ORIGIN_TOPIC,
    DLQ_PREFIX,
    FIRST_POP,
    GIVEN_UP_TOPIC,
    HALF_PLACE,
    OP_TOPICS,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dead_letter_origin,
    retry_origin,
    times_given,
)
from rmq_store.reading.store_reader import StoreReader
from rmq_store.text.json_keys import camel_case
from rmq_store.text.times import shown_time

UNREADABLE = "ended, and a record that may be its commit cannot be read"


@dataclass(frozen=True, slots=True)
class Step:
    """One record of a message. Times are in ms. `about` has further details."""

    uniqKey: str | None
    step: str
    topic: str
    queueId: int
    queueOffset: int | None
    commitLogOffset: int
    storeTimestamp: int
    msgId: str
    reconsumeTimes: int
    about: str


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What became of a message at a consumer group, by its last record that the group gets.

    `state`: consumed (the group's offset is behind it, or it acknowledged a pop), waiting, popped (and not
    acknowledged), dead, or unknown (no offsets can be read, or its offset is after the end of the queue).
    `retries`: how often the group sent it back.
    `offset`: the group's in that queue, by a file that was `written` then. Of a popped message
    `invisibleUntil`. Times are in ms.
    """

    consumerGroup: str
    state: str
    retries: int
    topic: str
    queueId: int
    offset: int | None
    written: int | None
    invisibleUntil: int | None = None


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """All records of one message, oldest first. `transaction`: None if it was in no transaction.

    `damage`: unreadable places where the message may have further records. `consumers`: groups that read it.
    `reports`: what clients reported of it, as rows of the table `traces`.
    """

    uniqKey: str | None
    steps: tuple[Step, ...]
    transaction: str | None
    damage: tuple[StoreError, ...] = ()
    consumers: tuple[GroupOutcome, ...] = ()
    reports: tuple[Mapping[str, Any], ...] = ()

    @property
    def outcome(self) -> str:
        """The state of the message by its last record, in a few words."""
        last = self.steps[-1].step
        state = self.transaction if self.transaction and last in _IN_TRANSACTION else last
        # The text for a hidden commit already says what cannot be read.
        if self.damage and state != UNREADABLE:
            return f"{state}, as far as its records can be read"
        return state


_IN_TRANSACTION = ("prepared", "committed")
_UNKNOWN = "an unknown topic"


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The fields of a record that a history needs. `queue_offset`: None if no queue lists it. Times in ms."""

    topic: str
    queue_id: int
    queue_offset: int | None
    commit_log_offset: int
    store_timestamp: int
    msg_id: str
    reconsume_times: int
    sys_flag: int
    uniq_key: str | None
    properties: Mapping[str, str]

    @classmethod
    def rows_of(cls, batch: pa.RecordBatch) -> Iterator[HistoryRecord]:
        """The records of a batch with the columns TRACED, in order."""
        stored = batch.column("storeTimestamp").cast(pa.int64())
        columns = [stored if n == "storeTimestamp" else batch.column(n) for n in TRACED]
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            row: list[Any] = [*values[:-1], dict(values[-1])]
            yield cls(*row)

    @classmethod
    def of(cls, message: Message) -> HistoryRecord:
        """The record of a message."""
        return cls(*(getattr(message, name) for name in cls.__slots__))


TRACED = tuple(map(camel_case, HistoryRecord.__slots__))
"""The columns of these fields."""


def one_error_a_place(*damage: StoreError) -> tuple[StoreError, ...]:
    """The errors without repeats: one for each place."""
    first: dict[tuple[str | None, int | None], StoreError] = {}
    for error in damage:
        first.setdefault((error.path, error.offset), error)
    return tuple(first.values())


def histories_of(store: StoreReader, records: Iterable[HistoryRecord]) -> list[MessageHistory]:
    """The histories of these records, which must include all records of each message."""
    lives: dict[str, list[HistoryRecord]] = {}
    for message in sorted(records, key=lambda record: record.commit_log_offset):
        lives.setdefault(message.uniq_key or message.msg_id, []).append(message)
    return [_life(store, of_one) for of_one in lives.values()]


def was_sent_to(store: StoreReader, message: HistoryRecord, topic: str | None) -> bool:
    """Whether a record belongs to a message that was sent to `topic`, in whatever topic it is now."""
    properties = message.properties
    named = (properties.get(name) for name in (REAL_TOPIC, RETRY_TOPIC, DLQ_ORIGIN_TOPIC))
    if topic is None or topic == message.topic or topic in named:
        return True
    if not message.topic.startswith(RETRY_PREFIX):
        return False
    return retry_origin(message.topic, properties, store.view.topics.known_names).topic == topic


def _life(store: StoreReader, messages: list[HistoryRecord]) -> MessageHistory:
    steps = tuple(_step(store, message) for message in messages)
    transaction, damage = _transaction(store, messages, {step.step for step in steps})
    return MessageHistory(messages[0].uniq_key, steps, transaction, damage)


def _step(store: StoreReader, message: HistoryRecord) -> Step:
    step, about = _meaning(store, message)
    return Step(
        message.uniq_key,
        step,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.commit_log_offset,
        message.store_timestamp,
        message.msg_id,
        message.reconsume_times,
        about,
    )


def _meaning(store: StoreReader, message: HistoryRecord) -> tuple[str, str]:
    """The kind of a record, and its details."""
    properties = message.properties
    real = properties.get("REAL_TOPIC")
    if message.topic in OP_TOPICS:
        checks = properties.get("TRANSACTION_CHECK_TIMES")
        return "prepared", f"for {real}" + (f", checked {checks} times" if checks else "")
    if message.topic == SCHEDULE_TOPIC:
        return "delayed", f"level {properties.get('DELAY')}, for {real}"
    if message.topic == TIMER_TOPIC:
        until = properties.get("TIMER_OUT_MS", "")
        is_ms = until.isascii() and until.isdigit() and len(until) < 20
        return "timed", f"until {shown_time(int(until)) if is_ms else until}, for {real}"
    if message.topic == GIVEN_UP_TOPIC:
        return "given up", "the producer did not answer the broker's checks"
    times = message.reconsume_times
    if message.topic.startswith(RETRY_PREFIX):
        group, origin = retry_origin(message.topic, properties, store.view.topics.known_names)
        if origin is None and "_" in group:
            return "retry", f"attempt {times} of {group}, which is a group or group_topic"
        return "retry", f"attempt {times} of group {group}, from {origin or _UNKNOWN}"
    if message.topic.startswith(DLQ_PREFIX):
        group, origin = dead_letter_origin(message.topic, properties)
        given = times_given(times, FIRST_POP in properties)
        return "dead", f"of group {group}, from {origin or _UNKNOWN}, after {given} attempts"
    if message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
        return "committed", ""
    if message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return "rolled back", ""
    return "stored", ""


def _transaction(
    store: StoreReader, messages: list[HistoryRecord], kinds: Collection[str]
) -> tuple[str | None, tuple[StoreError, ...]]:
    """committed, rolled back, given up, undecided or UNREADABLE, with the errors of unreadable
    places; None if there is no transaction. `kinds`: those of the records."""
    halves = [message for message in messages if message.topic in OP_TOPICS]
    if "committed" in kinds:
        return "committed", ()
    if not halves:
        return None, ()
    if "given up" in kinds:
        return "given up", ()
    # The broker writes a half message again when it checks it, so the last one counts.
    ended = _ended_at(store, halves[-1])
    if ended is None:
        return "undecided", ()
    hidden = _damage_until(store, halves[-1], ended)
    return (UNREADABLE, hidden) if hidden else ("rolled back", ())


def _ended_at(store: StoreReader, half: HistoryRecord) -> int | None:
    """The log offset of the op message that names the half message, by queue offset or log offset; None
    without one. With it the producer, or a check that found it too old, ended the transaction."""
    ops = [
        QueueSlice(
            queue, store.view.offset_at_log(queue, half.commit_log_offset), store.max_offset(*queue)
        )
        for queue in store.queues(OP_TOPICS[half.topic])
    ]
    named = rf"(^|,){half.queue_offset}(,|$)"
    columns = ("queueId", "commitLogOffset", "body", "properties")
    for batch in store.read_slices(ops, columns=columns, check_ends=False):
        places = pc.map_lookup(batch["properties"], pa.scalar(HALF_PLACE), "last")
        by_place = pc.equal(places, str(half.commit_log_offset)).fill_null(False)
        is_same_queue = pc.equal(batch["queueId"], half.queue_id)
        by_offset = pc.and_(is_same_queue, pc.match_substring_regex(batch["body"], named))
        hits = batch.filter(pc.or_(by_place, by_offset))
        if hits.num_rows:
            return int(hits["commitLogOffset"][0].as_py())
    return None


def _damage_until(store: StoreReader, half: HistoryRecord, ended: int) -> tuple[StoreError, ...]:
    """The errors of entries from the half message to that log offset, in the message's queue, that point to
    no intact record."""
    real = half.properties.get("REAL_TOPIC", "")
    number = half.properties.get("REAL_QID", "")
    queue = QueueId(real, int(number) if number.isdigit() else half.queue_id)
    state = store.snapshot().queues.get(queue)
    if state is None:
        return ()
    first, behind = (
        store.view.offset_at_log(queue, place) for place in (half.commit_log_offset, ended)
    )
    part = [QueueSlice(queue, max(state.min_offset, first - 1), min(state.max_offset, behind + 1))]
    errors: list[StoreError] = []
    for _ in store.read_slices(part, columns=("flag",), check_ends=False, on_damage=errors.append):
        pass
    return tuple(errors)
