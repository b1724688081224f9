"""The history of the messages with a key: all their records, in every topic."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from rmq_store.errors import CorruptRecordError, MissingFileError, StoreError
from rmq_store.reading.message_lookup import behind_index
from rmq_store.search.find_messages import find
from rmq_store.search.message_history import TRACED, Life, TracedRecord, lives_of, once, sent_to
from rmq_store.search.queue_selection import Search
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted

_MOST_DAMAGE = 10_000  # errors; without a limit, a missing file would cause a million


def trace(
    store: MessageStore, key: str, topic: str | None = None, progress: Progress | None = None
) -> list[Life]:
    """The histories of all messages that have `key` as a word of KEYS, as UNIQ_KEY or as
    offsetMsgId.

    They are in the order in which the messages were first stored. `topic`: only messages that were
    sent to it. Unreadable records are left out; a history that may include them has them as `damage`.
    Raises the error of such a place if no record was found.
    """
    named, damage = _records(store, (key,), topic, progress)
    records = [record for record in named if sent_to(store, record, topic)]
    try:
        by_id = store.lookup.by_offset_id(key)
        if by_id is not None and sent_to(store, TracedRecord.of(by_id), topic):
            records.append(TracedRecord.of(by_id))
    except (CorruptRecordError, MissingFileError) as error:
        damage.append(error)
    if damage and not records:
        raise _unreadable(store, key, damage)
    # Each record of a message has its UNIQ_KEY, even in system topics.
    unique = {record.uniq_key for record in records if record.uniq_key}
    others = tuple(sorted(unique - {key}))
    again: list[TracedRecord] = []
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
    return [
        replace(life, damage=once(*life.damage, *damage, *of_message.get(life.uniqKey or "", ())))
        for life in lives_of(store, every.values())
    ]


def _records(
    store: MessageStore, keys: Sequence[str], topic: str | None, progress: Progress | None
) -> tuple[list[TracedRecord], list[StoreError]]:
    """All records that have one of `keys` as a word of KEYS or as UNIQ_KEY, and the damage that may be one
    of them: one error for each place."""
    damage: list[StoreError] = []

    def note(error: StoreError) -> None:
        if len(damage) < _MOST_DAMAGE and _may_hide(store, error, topic):
            damage.append(error)

    # Light message queues list records of other topics.
    search = Search(keys=keys, include_system_topics=True, include_lmq=False, unwrap_batches=True)
    batches = find(store, search, TRACED, note, progress)
    records = [record for batch in batches for record in TracedRecord.rows_of(batch)]
    return records, list(once(*damage))


def _may_hide(store: MessageStore, error: StoreError, topic: str | None) -> bool:
    """Whether what an error is about may be a record of a message that was sent to `topic`: such records
    are in that topic and in those of the broker."""
    if topic is None or error.entry is None:
        return True
    return error.entry.topic == topic or store.is_system_topic(error.entry.topic)


def _damage_of(
    store: MessageStore, keys: Collection[str], damage: Sequence[StoreError]
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


def _hits(store: MessageStore, key: str) -> set[int]:
    """Log offsets that the index lists for a key in any topic."""
    wanted = [(topic, key) for topic in store.view.topics.every]
    return set().union(*store.key_index().indexed(wanted).values())


def _unreadable(store: MessageStore, key: str, damage: Sequence[StoreError]) -> StoreError:
    """The error where no message of a key was found: of the damage to which the index leads, or of all."""
    hits, (_, end) = _hits(store, key), store.log_range()
    for error in damage:
        if error.log_offset in hits:
            at = error.entry
            return error if at is None else behind_index(error, at.topic, key, at.log_offset)
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
