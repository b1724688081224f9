"""The history of the messages with a key: all their records, in every topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from rmq_store.config.consumer_offsets import (
    ConsumerOffsets,
    committed_offsets,
    has_consumer_offsets,
)
from rmq_store.errors import LOG, CorruptRecordError, MissingFileError, StoreError
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import (
    DLQ_PREFIX,
    REAL_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dead_letter_origin,
    is_group_of_broker,
    retry_origin,
)
from rmq_store.reading.message_lookup import error_of_indexed_record
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.find_messages import find
from rmq_store.search.message_history import (
    TRACED,
    GroupOutcome,
    HistoryRecord,
    MessageHistory,
    histories_of,
    one_error_a_place,
    was_sent_to,
)
from rmq_store.search.selection import Search
from rmq_store.system_topics.pop import (
    ACKNOWLEDGED,
    DUE,
    INVISIBLE,
    newest_popped,
    place_of_pop_row,
)
from rmq_store.system_topics.system_topic_rows import Row
from rmq_store.system_topics.traces import reports_in_bodies
from rmq_store.tables.groups import path_and_write_time
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

_MOST_DAMAGE = 10_000  # errors; without a limit, a missing file would cause a million


def trace(
    store: StoreReader, key: str, topic: str | None = None, progress: Progress | None = None
) -> list[MessageHistory]:
    """The histories of all messages that have `key` as a word of KEYS, as UNIQ_KEY or as
    offsetMsgId.

    They are in the order in which the messages were first stored. `topic`: only messages that were
    sent to it. Unreadable records are left out; a history that may include them has them as `damage`.
    Raises the error of such a place if no record was found.
    """
    named, damage = _records(store, (key,), topic, progress)
    records = [record for record in named if was_sent_to(store, record, topic)]
    try:
        by_id = store.lookup.by_offset_id(key)
        if by_id is not None and was_sent_to(store, HistoryRecord.of(by_id), topic):
            records.append(HistoryRecord.of(by_id))
    except (CorruptRecordError, MissingFileError) as error:
        damage.append(error)
    if damage and not records:
        raise _unreadable(store, key, damage)
    # Each record of a message has its UNIQ_KEY, even in system topics.
    unique = {record.uniq_key for record in records if record.uniq_key}
    others = tuple(sorted(unique - {key}))
    again: list[HistoryRecord] = []
    of_message: dict[str, list[StoreError]] = {}
    if others:
        again, damage_again = _records(store, others, topic, progress)
        of_message = _damage_of(store, others, damage_again)
    every = {
        # A record, or the message of an inner batch.
        (record.commit_log_offset, record.uniq_key): record
        for record in (*named, *again, *records)
        if record.uniq_key in unique or record in records
    }
    lives = [
        replace(
            life,
            damage=one_error_a_place(
                *life.damage, *damage, *of_message.get(life.uniqKey or "", ())
            ),
        )
        for life in histories_of(store, every.values())
    ]
    # What clients reported is shown with the message that they reported of.
    lives = [life for life in lives if {s.topic for s in life.steps} != {TRACE_TOPIC}] or lives
    listed = [record for record in every.values() if record.queue_offset is not None]
    groups = Consumers.of(store, listed) if listed else None
    reports = reports_about(store, {life.uniqKey for life in lives if life.uniqKey is not None})
    return [
        replace(
            life,
            consumers=tuple(groups.outcomes_of(_listed_of(life, every))) if groups else (),
            reports=tuple(reports.get(life.uniqKey or "", ())),
        )
        for life in lives
    ]


def _listed_of(
    life: MessageHistory, every: Mapping[tuple[int, str | None], HistoryRecord]
) -> list[HistoryRecord]:
    """The records of a history that a queue lists, oldest first."""
    records = (every[step.commitLogOffset, step.uniqKey] for step in life.steps)
    return [record for record in records if record.queue_offset is not None]


# --- the groups that read a message, and what clients reported of it -------------------------------


class Consumers(NamedTuple):
    """How far all groups are: their offsets (None: not known), when the file was written (ms), and the rows
    of the table `pop` about some records, by group, queue and queue offset."""

    store: StoreReader
    offsets: ConsumerOffsets | None
    written: int | None
    popped: Mapping[tuple[str, QueueId, int], Row]

    @classmethod
    def of(cls, store: StoreReader, records: Collection[HistoryRecord]) -> Consumers:
        """That of a store, about some records. Warns if a file that says it cannot be read."""
        places = set(map(_place, records))
        popped: dict[tuple[str, QueueId, int], Row] = {}
        offsets: ConsumerOffsets | None = None
        written: int | None = None
        try:
            offsets = store.consumer_offsets() if has_consumer_offsets(store.path) else None
            for offset in islice(committed_offsets(store.path, store.config.enableLmq), 1):
                written = path_and_write_time(store, offset.file)[1]
            for row in newest_popped(store, lambda row: place_of_pop_row(row) in places):
                place = row["consumerGroup"], *place_of_pop_row(row)
                popped[place] = row
        except StoreError as error:
            LOG.warning("not all groups that consumed the message are known: %s", error)
        return cls(store, offsets, written, popped)

    def outcomes_of(self, records: Sequence[HistoryRecord]) -> Iterator[GroupOutcome]:
        """What became of a message at each group that reads one of its `records`, oldest first."""
        senders = {group for record in records if (group := self._sent_back_by(record)) is not None}
        groups = {*(self.offsets or ()), *senders, *(group for group, _, _ in self.popped)}
        for group in sorted(group for group in groups if not is_group_of_broker(group)):
            read = [record for record in records if self._reads(group, record)]
            if read:
                yield self._consumption(group, read[-1], _times_sent_back(read))

    def _reads(self, group: str, record: HistoryRecord) -> bool:
        topics = (self.offsets or {}).get(group, {})
        if record.topic in topics or self._sent_back_by(record) == group:
            return True
        return (group, *_place(record)) in self.popped

    def _sent_back_by(self, record: HistoryRecord) -> str | None:
        topic = _retry_topic(record)
        if topic is not None:
            names = self.store.view.topics.known_names
            return retry_origin(topic, record.properties, names).group
        if record.topic.startswith(DLQ_PREFIX):
            return dead_letter_origin(record.topic, record.properties).group
        return None

    def _consumption(self, group: str, last: HistoryRecord, retries: int) -> GroupOutcome:
        queue, queue_offset = _place(last)
        waits = _is_delayed(last)  # the group gets it again when its delay is over
        if waits:
            queue = QueueId(_retry_topic(last) or queue.topic, 0)
        offset = (self.offsets or {}).get(group, {}).get(queue.topic, {}).get(queue.queue_id)
        popped = self.popped.get((group, queue, queue_offset), {})
        state = "unknown" if self.offsets is None else "waiting"
        if last.topic.startswith(DLQ_PREFIX) and self._sent_back_by(last) == group:
            state = "dead"
        elif popped.get("state") in (INVISIBLE, DUE):
            state = "popped"
        elif popped.get("state") == ACKNOWLEDGED:
            state = "consumed"
        elif offset is not None and offset > queue_offset and not waits:
            # An offset after the end is that of an earlier topic of this name, or of messages that are lost.
            state = "unknown" if self._is_after_end(queue, offset) else "consumed"
        until = popped.get("invisibleUntil") if state == "popped" else None
        return GroupOutcome(group, state, retries, *queue, offset, self.written, until)

    def _is_after_end(self, queue: QueueId, offset: int) -> bool:
        """Whether an offset is after the end of a queue as it is now, when the file of offsets is read."""
        queues, pinned = self.store.snapshot().queues, self.store.pinned()
        if queue not in queues or offset <= queues[queue].max_offset:
            return False
        with StoreReader.open(
            pinned.path, config=pinned.config, storage_options=pinned.storage_options
        ) as now:
            return queue in now.snapshot().queues and offset > now.max_offset(*queue)


def _is_delayed(record: HistoryRecord) -> bool:
    return record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC)


def _retry_topic(record: HistoryRecord) -> str | None:
    """The retry topic of a message that a group sent back, also while it is delayed; None of others."""
    topic = record.properties.get(REAL_TOPIC, "") if _is_delayed(record) else record.topic
    return topic if topic.startswith(RETRY_PREFIX) else None


def _times_sent_back(records: Sequence[HistoryRecord]) -> int:
    """How often a group sent a message back: it is stored with its delay, then in the retry topic."""
    delayed = Counter(_is_delayed(record) for record in records if _retry_topic(record) is not None)
    return max(delayed.values(), default=0)


def _place(record: HistoryRecord) -> tuple[QueueId, int]:
    """The queue and queue offset of a record that a queue lists."""
    assert record.queue_offset is not None
    return QueueId(record.topic, record.queue_id), record.queue_offset


def reports_about(store: StoreReader, uniq_keys: Collection[str]) -> dict[str, list[Row]]:
    """What clients reported of the messages with some UNIQ_KEYs, which trace messages have as keys."""
    reports: dict[str, list[Row]] = {key: [] for key in uniq_keys}
    if not uniq_keys or not store.queues(TRACE_TOPIC):
        return reports
    search = Search(topics=[TRACE_TOPIC], keys=[*uniq_keys], include_system_topics=True)
    # The table traces reports damage of that topic.
    batches = find(store, search, ("body",), lambda error: None)
    for report in reports_in_bodies(body.as_py() for batch in batches for body in batch["body"]):
        reports.get(report.get("msgId") or "", []).append(report)
    return reports


def _records(
    store: StoreReader, keys: Sequence[str], topic: str | None, progress: Progress | None
) -> tuple[list[HistoryRecord], list[StoreError]]:
    """All records that have one of `keys` as a word of KEYS or as UNIQ_KEY, and the damage that may be one
    of them: one error for each place."""
    damage: list[StoreError] = []

    def note(error: StoreError) -> None:
        if len(damage) < _MOST_DAMAGE and _may_hide(store, error, topic):
            damage.append(error)

    # Light message queues list records of other topics.
    search = Search(keys=keys, include_system_topics=True, include_lmq=False, unwrap_batches=True)
    batches = find(store, search, TRACED, note, progress)
    records = [record for batch in batches for record in HistoryRecord.rows_of(batch)]
    return records, list(one_error_a_place(*damage))


def _may_hide(store: StoreReader, error: StoreError, topic: str | None) -> bool:
    """Whether what an error is about may be a record of a message that was sent to `topic`: such records
    are in that topic and in those of the broker."""
    if topic is None or error.entry is None:
        return True
    return error.entry.topic == topic or store.is_system_topic(error.entry.topic)


def _damage_of(
    store: StoreReader, keys: Collection[str], damage: Sequence[StoreError]
) -> dict[str, list[StoreError]]:
    """For each UNIQ_KEY, the damage that may hide one of its records.

    That is damage that the index lists for the key, and damage that it lists for no key.
    """
    if not damage:
        return {}
    hits = {key: _hits(store, key) for key in keys}
    anyones = set().union(*hits.values())
    return {
        key: [e for e in damage if e.log_offset in hits[key] or e.log_offset not in anyones]
        for key in keys
    }


def _hits(store: StoreReader, key: str) -> set[int]:
    """Log offsets that the index lists for a key in any topic."""
    wanted = [(topic, key) for topic in store.view.topics.every]
    return set().union(*store.key_index().indexed(wanted).values())


def _unreadable(store: StoreReader, key: str, damage: Sequence[StoreError]) -> StoreError:
    """The error where no message of a key was found: of the damage to which the index leads, or of all."""
    hits, (_, end) = _hits(store, key), store.log_range()
    for error in damage:
        if error.log_offset in hits:
            at = error.entry
            return (
                error
                if at is None
                else error_of_indexed_record(error, at.topic, key, at.log_offset)
            )
    first, lost = damage[0], min((hit for hit in hits if hit >= end), default=None)
    listed = "" if lost is None else f", and the index lists it at {lost}, after the log's end"
    return type(first)(
        first.path,
        offset=first.offset,
        reason=f"no message with the key {key!r} is in what can be read{listed}. "
        f"{counted(len(damage), 'place')} cannot be read, the first: {first.reason}",
        expected=first.expected,
        actual=first.actual,
        advice=first.advice,
    )
