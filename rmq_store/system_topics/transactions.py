"""Transactions: what became of each half message.

A half message waits under a topic of the broker (TransactionalMessageBridge). When its producer ends the
transaction, an op message names the half message's queue offset, and a committed message is stored once
more under its own topic (EndTransactionProcessor). While it is open, the broker asks the producer, and
stores the half message again before it does (TransactionalMessageServiceImpl).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import Ints
from rmq_store.format.topics import (
    GIVEN_UP_TOPIC,
    HALF_PLACE,
    OP_TOPICS,
    ROCKSDB_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import newest_time
from rmq_store.system_topics.state_database import TransactionsInDatabase, transactions_in_database
from rmq_store.system_topics.system_topic_rows import (
    MessageCopy,
    Row,
    copies_with,
    has_every_file,
    property_of,
    rows_with_properties,
    whole_numbers,
    whole_queues_of,
)

OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolledBack", "givenUp"
ENDED, UNKNOWN = "ended", "unknown"

_TEXTS = {"topic": "REAL_TOPIC", "producerGroup": "PGROUP", "transactionId": "__transactionId__"}
_NUMBERS = {"original": "TRAN_PREPARED_QUEUE_OFFSET"}
_SMALL = {"realQueueId": "REAL_QID", "checks": "TRANSACTION_CHECK_TIMES"}
_LOOKED_UP = 1 << 17  # transactions whose messages are looked for at a time
_NONE: Ints = np.zeros(0, dtype=np.int64)


def transactions(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """Every transaction of which a half message is left, in the order of the half messages.

    Columns as in the table `transactions`, times in ms. Takes memory for those that were stored again.
    Raises the errors of `read_slices` for damage.
    """
    newest = newest_time([store]) or 0
    for half, op in OP_TOPICS.items():
        database = None
        if half == ROCKSDB_HALF_TOPIC and store.queues(half):
            database = transactions_in_database(store.path, on_damage)
        rows = iter(_with_later_halves(store, half, _Ended.of(store, op, on_damage), on_damage))
        while some := list(islice(rows, _LOOKED_UP)):
            fates = _with_fates(store, some, newest, on_damage)
            yield from fates if database is None else map(partial(_asked_by, database), fates)


def ended_half_messages(store: StoreReader, topic: str, on_damage: OnDamage | None = None) -> Ints:
    """The queue offsets of the half messages that the messages of an op topic name, sorted."""
    return _Ended.of(store, topic, on_damage).queue_offsets


@dataclass(frozen=True, slots=True)
class _Ended:
    """The half messages that op messages name: by queue offset, and by log offset (RocksDB); sorted.

    Takes 8 bytes of memory a transaction. `is_whole`: no op message is lost or could not be read.
    """

    queue_offsets: Ints
    log_offsets: Ints
    is_whole: bool

    @classmethod
    def of(cls, store: StoreReader, topic: str, on_damage: OnDamage | None) -> _Ended:
        """Those of an op topic."""
        columns = ("tags", "body", "properties")
        offsets, places = [_NONE], [_NONE]
        whole = True

        def note(error: StoreError) -> None:
            nonlocal whole
            whole = False
            assert on_damage is not None
            on_damage(error)

        taker = None if on_damage is None else note
        for part in whole_queues_of(store, topic):
            for batch in store.read_slices([part], columns=columns, on_damage=taker):
                batch = batch.filter(pc.equal(batch["tags"], "d"))
                numbers = whole_numbers(property_of(batch, HALF_PLACE))
                places.append(numbers.drop_null().to_numpy())
                bodies = batch["body"].filter(pc.is_null(numbers)).to_pylist()  # "12,13,"
                words = [
                    word for body in bodies for word in body.decode("ascii", "replace").split(",")
                ]
                offsets.append(whole_numbers(pa.array(words, pa.string())).drop_null().to_numpy())
        found = np.unique(np.concatenate(offsets)), np.unique(np.concatenate(places))
        return cls(*found, is_whole=whole)

    def has_one_of(self, rows: list[Row]) -> bool | None:
        """Whether one names a half message of these; None if a lost one may."""
        named = any(
            _holds(self.queue_offsets, row["halfQueueOffset"])
            or _holds(self.log_offsets, row["halfCommitLogOffset"])
            for row in rows
        )
        return named or (False if self.is_whole else None)


def _holds(numbers: Ints, wanted: int) -> bool:
    at = int(np.searchsorted(numbers, wanted))
    return at < len(numbers) and int(numbers[at]) == wanted


def _with_later_halves(
    store: StoreReader, topic: str, ended: _Ended, on_damage: OnDamage | None
) -> Iterator[Row]:
    """A row for each first half message that is left, with what its later ones add."""
    later: dict[str, list[Row]] = {}
    for row in _halves(store, topic, on_damage):
        if _is_again(row):
            later.setdefault(_id_of(row), []).append(row)
    for row in _halves(store, topic, on_damage):
        if not _is_again(row):
            yield _joined([row, *later.pop(_id_of(row), ())], ended)
    for rows in later.values():  # the first half message has expired
        yield _joined(rows, ended)


def _halves(store: StoreReader, topic: str, on_damage: OnDamage | None) -> Iterator[Row]:
    for part in whole_queues_of(store, topic):
        for row in rows_with_properties(store, part, _TEXTS, _NUMBERS, _SMALL, on_damage=on_damage):
            yield row | {
                "halfQueueOffset": row["queueOffset"],
                "halfCommitLogOffset": row["commitLogOffset"],
            }


def _is_again(row: Row) -> bool:
    return bool(row["checks"]) or row["original"] is not None


def _id_of(row: Row) -> str:
    return str(row["transactionId"] or row["uniqKey"] or row["commitLogOffset"])


def _joined(rows: list[Row], ended: _Ended) -> Row:
    """One row for all half messages of a transaction; the place is that of the last one."""
    first, last = rows[0], rows[-1]
    return {
        **last,
        "transactionId": last["transactionId"] or last["uniqKey"],
        "queueId": last["realQueueId"],
        "sinceTimestamp": first["storeTimestamp"],
        "bornTimestamp": first["bornTimestamp"],
        "halfMessages": len(rows),
        "checks": max(row["checks"] or 0 for row in rows),
        "lastCheckTimestamp": last["storeTimestamp"] if last["checks"] else None,
        "ended": ended.has_one_of(rows),
        "places": [row["halfCommitLogOffset"] for row in rows],
    }


def _asked_by(database: TransactionsInDatabase, row: Row) -> Row:
    """A row with transRocksDBEnable: the database says what the broker still asks for, and how often."""
    place = row["halfCommitLogOffset"]
    if row["state"] != OPEN:
        return row
    if database.has_given_up(place):
        return row | {"state": GIVEN_UP, "openMs": None}
    return row | {"checks": database.checks.get(place, row["checks"])}


def _with_fates(
    store: StoreReader, rows: list[Row], newest: int, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The rows with their state. A committed message may be there without an op message."""
    keys = {row["uniqKey"] for row in rows if row["uniqKey"]}
    topics = {row["topic"] for row in rows if row["topic"]}
    committed: dict[int | str, MessageCopy] = {}
    given_up: set[str] = set()
    start = store.log_range()[0]
    # A committed message with a delay waits once more under a topic of the broker.
    searched = {*topics, GIVEN_UP_TOPIC, TIMER_TOPIC, SCHEDULE_TOPIC}
    for copy in copies_with(store, searched, keys, on_damage):
        if copy.topic == GIVEN_UP_TOPIC:
            given_up.add(copy.uniq_key)
        elif copy.half_offset >= start:
            committed.setdefault(copy.half_offset, copy)
        elif copy.half_offset:  # the half message that it names has expired, a later one is left
            committed.setdefault(copy.uniq_key, copy)
    places = {(row["topic"], row["queueId"]) for row in rows}
    whole = {
        (topic, number)
        for topic, number in places
        if topic and has_every_file(store, topic, number)
    }
    for row in rows:
        names = (*row.pop("places"), row["uniqKey"])
        copy_ = next((committed[name] for name in names if name in committed), None)
        is_ended = row.pop("ended")
        if copy_ is not None:
            row |= {"state": COMMITTED, "committedTimestamp": copy_.stored}
            if copy_.topic == row["topic"]:
                row["committedQueueId"] = copy_.queue_id
                row["committedQueueOffset"] = copy_.queue_offset
        elif row["uniqKey"] in given_up:
            row["state"] = GIVEN_UP
        elif is_ended:
            # Without all messages of its queue, or its key, nobody can know how it ended.
            known = (row["topic"], row["queueId"]) in whole and row["uniqKey"] is not None
            row["state"] = ROLLED_BACK if known else ENDED
        elif is_ended is None:
            row["state"] = UNKNOWN
        else:
            row |= {"state": OPEN, "openMs": max(0, newest - row["sinceTimestamp"])}
        yield row
