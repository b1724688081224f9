"""Transactions: what became of each half message.

A half message waits under a topic of the broker (TransactionalMessageBridge). When its producer ends the
transaction, an op message names the half message's queue offset, and a committed message is stored once
more under its own topic (EndTransactionProcessor). While it is open, the broker asks the producer, and
stores the half message again before it does (TransactionalMessageServiceImpl).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.format.topics import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
)
from rmq_store.store import MessageStore
from rmq_store.system_topics.later_copies import Copy, copies_with
from rmq_store.system_topics.rows import (
    Row,
    all_of,
    newest_time,
    property_of,
    rows_of,
    whole_numbers,
)

OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolledBack", "givenUp"
ENDED = "ended"

_TEXTS = {"topic": "REAL_TOPIC", "producerGroup": "PGROUP", "transactionId": "__transactionId__"}
_NUMBERS = {"original": "TRAN_PREPARED_QUEUE_OFFSET"}
_SMALL = {"realQueueId": "REAL_QID", "checks": "TRANSACTION_CHECK_TIMES"}
_LOOKED_UP = 1 << 16  # transactions whose messages are looked for at a time


def transactions(store: MessageStore) -> Iterator[Row]:
    """Every transaction of which a half message is left, in the order of the half messages.

    Columns as in the table `transactions`, times in ms. Takes memory for those that were stored again.
    Raises the errors of `read_slices` for damage.
    """
    newest = newest_time(store)
    for half, op in ((HALF_TOPIC, OP_TOPIC), (ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC)):
        ended = _Ended.of(store, op)
        rows = iter(_with_later_halves(store, half, ended))
        while some := list(islice(rows, _LOOKED_UP)):
            yield from _with_fates(store, some, newest)


@dataclass(slots=True)
class _Ended:
    """The half messages that op messages name: by queue offset, and by log offset (RocksDB)."""

    queue_offsets: set[int] = field(default_factory=set)
    log_offsets: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, store: MessageStore, topic: str) -> _Ended:
        found = cls()
        for part in all_of(store, topic):
            for batch in store.read_slices([part], columns=("tags", "body", "properties")):
                batch = batch.filter(pc.equal(batch["tags"], "d"))
                numbers = whole_numbers(property_of(batch, "TRANS_OFFSET"))
                found.log_offsets.update(numbers.drop_null().to_pylist())
                bodies = batch["body"].filter(pc.is_null(numbers))
                found.queue_offsets.update(_numbers_in(bodies))
        return found

    def has(self, row: Row) -> bool:
        return (
            row["halfQueueOffset"] in self.queue_offsets
            or row["halfCommitLogOffset"] in self.log_offsets
        )


def _numbers_in(bodies: pa.Array) -> list[int]:
    """The numbers of texts that separate them by commas."""
    texts = [body.decode("ascii", "replace") for body in bodies.to_pylist()]
    words = pa.array([word for text in texts for word in text.split(",")], pa.string())
    numbers: list[int] = whole_numbers(words).drop_null().to_pylist()
    return numbers


def _with_later_halves(store: MessageStore, topic: str, ended: _Ended) -> Iterator[Row]:
    """A row for each first half message that is left, with what its later ones add."""
    later: dict[str, list[Row]] = {}
    for row in _halves(store, topic):
        if _is_again(row):
            later.setdefault(_id_of(row), []).append(row)
    for row in _halves(store, topic):
        if not _is_again(row):
            yield _joined([row, *later.pop(_id_of(row), ())], ended)
    for rows in later.values():  # the first half message has expired
        yield _joined(rows, ended)


def _halves(store: MessageStore, topic: str) -> Iterator[Row]:
    for part in all_of(store, topic):
        for row in rows_of(store, part, _TEXTS, _NUMBERS, _SMALL):
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
        "ended": any(ended.has(row) for row in rows),
        "places": [row["halfCommitLogOffset"] for row in rows],
    }


def _with_fates(store: MessageStore, rows: list[Row], newest: int) -> Iterator[Row]:
    """The rows with their state. A committed message may be there without an op message."""
    keys = {row["uniqKey"] for row in rows if row["uniqKey"]}
    topics = {row["topic"] for row in rows if row["topic"]}
    committed: dict[int, Copy] = {}
    given_up: set[str] = set()
    for copy in copies_with(store, {*topics, GIVEN_UP_TOPIC}, keys):
        if copy.topic == GIVEN_UP_TOPIC:
            given_up.add(copy.uniq_key)
        elif copy.half_offset:
            committed[copy.half_offset] = copy
    there = {topic for topic in topics if store.view.queues_of(topic)}
    for row in rows:
        copy_ = next((committed[at] for at in row.pop("places") if at in committed), None)
        is_ended = row.pop("ended")
        if copy_ is not None:
            row |= {
                "state": COMMITTED,
                "committedTimestamp": copy_.stored,
                "committedQueueId": copy_.queue_id,
                "committedQueueOffset": copy_.queue_offset,
            }
        elif row["uniqKey"] in given_up:
            row["state"] = GIVEN_UP
        elif is_ended:
            # Without the queues of its topic, or its key, nobody can know how it ended.
            known = row["topic"] in there and row["uniqKey"] is not None
            row["state"] = ROLLED_BACK if known else ENDED
        else:
            row |= {"state": OPEN, "openMs": max(0, newest - row["sinceTimestamp"])}
        yield row
