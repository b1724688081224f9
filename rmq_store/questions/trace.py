"""The history of the messages with a key: all their records, in every topic."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from rmq_store.errors import CorruptRecordError, MissingFileError, StoreError
from rmq_store.questions.answer_by_shares import Engine, OnProgress, OpenedStore, StoreSource, ask
from rmq_store.reading.message_lookup import behind_index
from rmq_store.search.find_messages import FindShare, find_in, find_shares
from rmq_store.search.log_partitions import offset_steps
from rmq_store.search.message_history import TRACED, Life, TracedRecord, lives_of, once, sent_to
from rmq_store.search.queue_selection import Search
from rmq_store.store import MessageStore
from rmq_store.text.sizes import counted

_ENTRIES_A_SHARE = 1_000_000
_MOST_DAMAGE = 100  # errors of one share; without a limit, a missing file would cause a million


@dataclass(frozen=True, slots=True)
class RecordsPart:
    """Records with a key, and the errors of places that could not be read."""

    records: tuple[TracedRecord, ...] = ()
    damage: tuple[StoreError, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordsQuestion:
    """All records, in all topics, that have one of `keys` as a word of KEYS or as UNIQ_KEY."""

    keys: tuple[str, ...]

    @property
    def search(self) -> Search:
        """The search for these records. Light message queues are left out, because they list
        records of other topics."""
        return Search(
            keys=self.keys, include_system_topics=True, include_lmq=False, unwrap_batches=True
        )

    def plan(self, store: MessageStore) -> list[FindShare | RecordsPart]:
        """The places to search. Damage found during planning becomes a finished share."""
        damage: list[StoreError] = []
        shares: list[FindShare | RecordsPart] = []
        size = _mean_size(store)
        for share in find_shares(store, self.search, damage.append):
            shares += (replace(part, about=_entries(part) * size) for part in _cut(store, share))
        return [*shares, RecordsPart(damage=tuple(damage))] if damage else shares

    def work(
        self, store: MessageStore, share: FindShare | RecordsPart, progress: OnProgress
    ) -> RecordsPart:
        """The records in one place."""
        if isinstance(share, RecordsPart):
            return share
        damage: list[StoreError] = []

        def note(error: StoreError) -> None:
            if len(damage) < _MOST_DAMAGE:
                damage.append(error)

        records: list[TracedRecord] = []
        for batch in find_in(store, self.search, share, TRACED, note):
            records += TracedRecord.rows_of(batch)
        progress(self.weight(share))
        return RecordsPart(tuple(records), tuple(damage))

    def weight(self, share: FindShare | RecordsPart) -> int:
        """About how many bytes of the log the share reads."""
        return 0 if isinstance(share, RecordsPart) else share.weight

    def merge(self, store: MessageStore, parts: Sequence[RecordsPart]) -> RecordsPart:
        """All records without repeats, and one error for each place."""
        records = {_identity(record): record for part in parts for record in part.records}
        damage = once(*chain.from_iterable(part.damage for part in parts))
        return RecordsPart(tuple(records.values()), damage)


def trace(
    store: MessageStore,
    key: str,
    topic: str | None = None,
    *,
    source: StoreSource | None = None,
    engine: Engine | None = None,
    progress: OnProgress | None = None,
) -> list[Life]:
    """The histories of all messages that have `key` as a word of KEYS, as UNIQ_KEY or as
    offsetMsgId.

    They are in the order in which the messages were first stored. `topic`: only messages that were
    sent to it. `engine` runs the search on `source`, which must be the same store. Unreadable
    records are left out; a history that may include them has them as `damage`. Raises
    the error of such a place if no record was found.
    """
    asked = source or OpenedStore(store)
    named = ask(RecordsQuestion((key,)), asked, engine, progress=progress)
    damage = [error for error in named.damage if _may_hide(store, error, topic)]
    records = [record for record in named.records if sent_to(store, record, topic)]
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
    again = RecordsPart()
    if others:
        again = ask(RecordsQuestion(others), asked, engine, progress=progress)
    every = {
        _identity(record): record
        for record in (*named.records, *again.records, *records)
        if record.uniq_key in unique or record in records
    }
    again_damage = [error for error in again.damage if _may_hide(store, error, topic)]
    of_message = _damage_of(store, others, again_damage)
    return [
        replace(life, damage=once(*life.damage, *damage, *of_message.get(life.uniqKey or "", ())))
        for life in lives_of(store, every.values())
    ]


def _may_hide(store: MessageStore, error: StoreError, topic: str | None) -> bool:
    """Whether what an error is about may be a record of a message that was sent to `topic`: such records
    are in that topic and in those of the broker."""
    if topic is None or error.entry is None:
        return True
    return error.entry.topic == topic or store.is_system_topic(error.entry.topic)


def _entries(share: FindShare) -> int:
    return sum(map(len, share.slices))


def _mean_size(store: MessageStore) -> int:
    """The bytes of the log for one queue entry, rounded up."""
    start, end = store.log_range()
    entries = sum(store.max_offset(*q) - store.min_offset(*q) for q in store.queues())
    return -(-(end - start) // max(1, entries))


def _cut(store: MessageStore, share: FindShare) -> list[FindShare]:
    """A share with many entries, cut into several shares."""
    if _entries(share) <= _ENTRIES_A_SHARE:
        return [share]
    return [
        FindShare((part.cut(start, start + steps.step),))
        for part in share.slices
        for steps in (offset_steps(store, part.start, part.stop, _ENTRIES_A_SHARE),)
        for start in steps
    ]


def _identity(record: TracedRecord) -> tuple[int, str | None]:
    """The position of a record, and the message's key if it is in an inner batch."""
    return record.commit_log_offset, record.uniq_key


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
