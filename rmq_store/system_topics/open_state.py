"""What of the broker's own records in a log is still open: delayed messages, transactions, pop.

These records name queue offsets, or files of the broker name theirs. A new store gives messages other
offsets, so it needs the records that are open, and none that a broker would work off again. `OpenState.of`
reads the intact records of the log once. Its memory grows with what is open. docs/new-stores.md lists what
each command takes over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import numbered_topics, stored_bodies, stored_properties
from rmq_store.arrow.property_columns import decode_property_columns, property_columns_at
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.walk import SoundRun, walk
from rmq_store.config.consumer_offsets import DELAY_FILE, consumer_file, read_delay_offsets
from rmq_store.errors import CorruptConfigError, StoreError, UnsupportedStoreError
from rmq_store.format.byte_layout import TIMER_CHECK
from rmq_store.format.compression import enters_queue
from rmq_store.format.hashes import java_string_hash
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import (
    HALF_PLACE,
    HALF_TOPIC,
    OP_TOPIC,
    OP_TOPICS,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    ROCKSDB_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
)
from rmq_store.markers import DELETE, TimerCheck, read_timer_check, read_timer_units
from rmq_store.reading.store_reader import StoreReader
from rmq_store.system_topics.delayed_messages import (
    CANCELLED,
    DELETES,
    DELIVERED,
    LEVEL,
    ROLL_LABEL,
    ROLL_TIMES,
    TIMER,
    UNDELIVERED,
    LaterTimerRecords,
    PostponedTimer,
    TimerFiles,
    delayed_messages,
    is_before_time,
    name_in_database,
)
from rmq_store.system_topics.pop import PopLog, not_acknowledged_before, popped_in_database
from rmq_store.system_topics.state_database import (
    TimersInDatabase,
    TransactionsInDatabase,
    is_in_use,
    timers_in_database,
    transactions_in_database,
)
from rmq_store.system_topics.system_topic_rows import Row, ignore_error, property_of, whole_numbers
from rmq_store.system_topics.transactions import OPEN, ended_half_messages, transactions
from rmq_store.text.sizes import counted

PUT_OFF = "putOff"
STORED_AGAIN, POP_STATE = "storedAgain", "popState"

HALF, OP, REVIVE = "half", "op", "revive"
_KINDS = {
    SCHEDULE_TOPIC: LEVEL,
    TIMER_TOPIC: TIMER,
    **dict.fromkeys(OP_TOPICS, HALF),
    **dict.fromkeys(OP_TOPICS.values(), OP),
}
HALF_OF_OP = {op: half for half, op in OP_TOPICS.items()}

_TEXTS = {
    "topic": "REAL_TOPIC",
    "deletes": DELETES,
    "rollLabel": ROLL_LABEL,
    "transaction": "__transactionId__",
    "tags": "TAGS",
}
ORIGINAL = "TRAN_PREPARED_QUEUE_OFFSET"
_NUMBERS = {"dueTimestamp": "TIMER_OUT_MS", "original": ORIGINAL, "halfPlace": HALF_PLACE}
_SMALL = {"rollTimes": ROLL_TIMES, "checks": "TRANSACTION_CHECK_TIMES"}
_OF_POP = f"REAL_TOPIC\x01{REVIVE_PREFIX}".encode()
TIMERS, TRANSACTIONS, POP = "timers", "open transactions", "popped and not acknowledged"


def kind_of_broker_record(topic: str) -> str | None:
    """Which of the broker's own records a topic has; None for messages."""
    return REVIVE if topic.startswith(REVIVE_PREFIX) else _KINDS.get(topic)


HalfName = tuple[str, int, int]
"""What op messages call a half message: its topic, queueId and queueOffset."""


class UnacknowledgedMessages(NamedTuple):
    """Messages of a queue that a group popped and did not acknowledge: the first one, and how many."""

    first: int  # queue offset
    messages: int


@dataclass(slots=True)
class OpenState:
    """What is open in a log. Records are named by their log offsets.

    `waiting`: the records of delay levels and timers that are to be delivered. `closed`: why others are
    not, but for those that were delivered. `stored_again`: half messages that a later one replaces;
    `also_called`: what op messages may call that one, besides its own name. `delivered_without_copy`:
    messages that the broker's files count as delivered and whose copy is not in the log. `given`: what
    each group popped of a queue and did not acknowledge. `in_no_queue`: records whose flags keep them out
    of the queues, so that no broker meets them. `unread`: why files of the broker could not be asked;
    then only copies say what was delivered.
    """

    waiting: set[int] = field(default_factory=set)
    closed: dict[int, str] = field(default_factory=dict)
    stored_again: set[int] = field(default_factory=set)
    also_called: dict[int, list[HalfName]] = field(default_factory=dict)
    delivered_without_copy: int = 0
    given: dict[tuple[str, QueueId], UnacknowledgedMessages] = field(default_factory=dict)
    open_transactions: int = 0
    open_in_database: int = 0  # those of a broker with transRocksDBEnable
    in_no_queue: set[int] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, store: StoreReader, progress: Callable[[int], None] | None = None) -> OpenState:
        """That of the log of a store. `progress` is given the bytes read."""
        state = cls()
        timers = _or_nothing(lambda: timers_in_database(store.path), state) or None
        database = _or_nothing(lambda: transactions_in_database(store.path), state) or None
        delayed = _Delayed(store, state, timers)
        transactions = _Transactions(state)
        offsets = _or_nothing(store.consumer_offsets, state)
        # What the revive group has read was given again, as a retry.
        pop = PopLog(offsets.get(REVIVE_GROUP, {}))
        newest = 0
        for piece in walk(store.log):
            if isinstance(piece, SoundRun):
                newest = max(newest, int(piece.headers.store_timestamp.max()))
                for row in _own_rows(piece.headers, state.in_no_queue):
                    delayed.take(row)
                    transactions.take(row)
                    if row["kind"] in (TIMER, REVIVE):
                        deque(pop.ended_by(row), maxlen=0)
                delayed.find_copies(piece.headers)
            if progress is not None:
                progress(piece.stop - piece.start)
        delayed.finish(newest)
        for key, offset, message in _or_nothing(lambda: [*popped_in_database(store)], state):
            pop.open.setdefault(key, {})[offset] = message
        state.open_in_database, given_up = transactions.in_database(database)
        state.open_transactions = len(transactions.open) - given_up
        state.given = {
            key: UnacknowledgedMessages(min(given), len(given)) for key, given in pop.open.items()
        }
        return state

    def why_not_open(self, kind: str, place: int, stored: bytes) -> str | None:
        """Why a record of a kind, at a log offset, with its stored properties, is not open; None if it is."""
        if place in self.in_no_queue:
            return None
        if kind == REVIVE or (kind == TIMER and _OF_POP in stored):
            return POP_STATE
        if kind in (LEVEL, TIMER):
            return None if place in self.waiting else self.closed.get(place, DELIVERED)
        return STORED_AGAIN if place in self.stored_again else None

    def rows_ended(self, batch: pa.RecordBatch) -> Iterator[int]:
        """The rows of a batch with `topic`, `commitLogOffset` and `rawProperties` that are not open."""
        topics = batch["topic"].dictionary_encode()
        kinds = [kind_of_broker_record(name) for name in topics.dictionary.to_pylist()]
        codes = topics.indices.to_numpy()
        of_broker = np.array([kind is not None for kind in kinds], dtype=np.bool_)
        for row in np.flatnonzero(of_broker[codes]).tolist():
            kind, stored = kinds[codes[row]], batch["rawProperties"][row].as_py()
            place = batch["commitLogOffset"][row].as_py()
            if kind is not None and self.why_not_open(kind, place, stored) is not None:
                yield row


def _own_rows(headers: Headers, in_no_queue: set[int]) -> Iterator[Row]:
    """The broker's own records among some, in their order. Adds the places of those without a queue to
    `in_no_queue`."""
    names, codes = numbered_topics(headers)
    kinds = [kind_of_broker_record(name) for name in names]
    of_broker = np.array([kind is not None for kind in kinds])
    own, listed = of_broker[codes], enters_queue(headers.sys_flag)
    in_no_queue.update((headers.at[own & ~listed] + headers.base).tolist())
    rows = np.flatnonzero(own & listed)
    if not len(rows):
        return
    headers = headers.take(rows)
    columns = decode_property_columns(stored_properties(headers), with_map=True)
    batch = {"properties": columns.properties}
    table = {
        "kind": pa.array([kinds[code] for code in codes[rows].tolist()]),
        "heldIn": pa.array([names[code] for code in codes[rows].tolist()]),
        "queueId": pa.array(headers.queue_id),
        "queueOffset": pa.array(headers.queue_offset),
        "commitLogOffset": pa.array(headers.at + headers.base),
        "bornTimestamp": pa.array(headers.born_timestamp),
        "reconsumeTimes": pa.array(headers.reconsume_times),
        "uniqKey": columns.uniq_key,
        "body": stored_bodies(headers),
        **{name: property_of(batch, of) for name, of in _TEXTS.items()},
        **{name: whole_numbers(property_of(batch, of)) for name, of in _NUMBERS.items()},
        **{name: whole_numbers(property_of(batch, of), 9) for name, of in _SMALL.items()},
    }
    yield from pa.table(table).to_pylist()


class _Held(NamedTuple):
    """A message that waits under a topic of the broker. `done`: a file counts it as delivered or put off."""

    row: Row
    done: bool
    tick: int | None  # when the timer turns to it (ms)


class _Delayed:
    """The messages whose copy under their own topic has not been met yet."""

    def __init__(
        self, store: StoreReader, state: OpenState, timers: TimersInDatabase | None
    ) -> None:
        self._state = state
        self._levels = _or_nothing(lambda: read_delay_offsets(store.path), state)
        check = _or_nothing(lambda: read_timer_check(store.path), state)
        self._timer = TimerFiles(check or None, read_timer_units(store.path), timers)
        self._orders = LaterTimerRecords(store)
        self._held: dict[int, _Held] = {}  # by log offset
        # By UNIQ_KEY, and whether a file counts them as delivered.
        self._by_key: dict[tuple[str, bool], deque[int]] = {}
        self._by_sender: dict[PostponedTimer, deque[int]] = {}

    def take(self, row: Row) -> None:
        if row["kind"] == LEVEL:
            done = row["queueOffset"] < self._levels.get(row["queueId"], 0)
            self._hold(row, _Held(row, done, None))
        elif row["kind"] == TIMER and not (row["topic"] or "").startswith(REVIVE_PREFIX):
            self._take_timer(row)

    def _take_timer(self, row: Row) -> None:
        done, tick = self._timer.state_of(row) is None, self._timer.tick_of(row)
        if row["deletes"] is not None:
            # The database has applied orders to what it had, which may be due after the newest record.
            if not done or self._timer.database is not None:
                self._orders.add_delete_order(row["deletes"], tick)
            self._state.closed[row["commitLogOffset"]] = CANCELLED
            return
        if row["rollLabel"] and not row["rollTimes"]:
            self._close_rolled(row)
        sent = PostponedTimer.of(row)
        earlier = self._by_sender.get(sent._replace(roll_times=sent.roll_times - 1))
        if earlier:
            self._close(earlier.popleft(), PUT_OFF)
        self._by_sender.setdefault(sent, deque()).append(row["commitLogOffset"])
        self._hold(row, _Held(row, done, tick))

    def _close_rolled(self, row: Row) -> None:
        """Forget the record of a message before this one, with timerRocksDBEnable."""
        places = [*self._by_key.get((row["uniqKey"], True), ())]
        places += self._by_key.get((row["uniqKey"], False), ())
        for place in places:
            if name_in_database(self._held[place].row) == name_in_database(row):
                self._close(place, PUT_OFF)

    def _hold(self, row: Row, held: _Held) -> None:
        self._held[row["commitLogOffset"]] = held
        if row["uniqKey"] is not None:
            of_key = self._by_key.setdefault((row["uniqKey"], held.done), deque())
            of_key.append(row["commitLogOffset"])

    def _close(self, place: int, why: str) -> None:
        """Forget a message, which the timer or a copy has taken over."""
        row, done, _ = self._held.pop(place)
        if why != DELIVERED:
            self._state.closed[place] = why
        _remove(self._by_key, (row["uniqKey"], done), place)
        _remove(self._by_sender, PostponedTimer.of(row), place)

    def find_copies(self, headers: Headers) -> None:
        """Let go of the messages whose copy is among these records."""
        if not self._by_key:
            return
        names, codes = numbered_topics(headers)
        rows = np.flatnonzero(
            np.array([kind_of_broker_record(name) is None for name in names])[codes]
        )
        at, length = headers.properties_at[rows], headers.properties_length[rows]
        keys = property_columns_at(headers.window, at, length, with_map=False).uniq_key
        for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True):
            place = int(headers.at[row]) + headers.base
            same = (names[codes[row]], int(headers.reconsume_times[row]))
            stored = int(headers.store_timestamp[row])
            # One that a file counts as delivered, if several have the key.
            every = chain(*(self._by_key.get((key, done), ()) for done in (True, False)))
            delivered = (
                held
                for held in every
                if held < place and self._may_be_delivered(held, *same, stored)
            )
            if (first := next(delivered, None)) is not None:
                self._close(first, DELIVERED)

    def _may_be_delivered(self, place: int, topic: str, times: int, stored: int) -> bool:
        row = self._held[place].row
        is_same = (row["topic"], row["reconsumeTimes"]) == (topic, times)
        return is_same and not is_before_time(row, stored)

    def finish(self, newest: int) -> None:
        """Note what is left: it waits, unless an order cancels it or a file counts it as delivered.

        What is due later than the newest record (ms) was not delivered, whatever a file says.
        """
        for place, held in self._held.items():
            due = held.row["dueTimestamp"]
            if held.tick is not None and self._orders.was_cancelled(held.row, held.tick):
                self._state.closed[place] = CANCELLED
            elif held.done and not (due is not None and due > newest):
                self._state.delivered_without_copy += held.row["uniqKey"] is not None
            else:
                self._state.waiting.add(place)


def _remove(places: dict[Any, deque[int]], key: Any, place: int) -> None:
    """Remove a place from those of a key, if it is there."""
    left = places.get(key)
    if left is not None and place in left:
        left.remove(place)
    if not left:
        places.pop(key, None)


def _or_nothing(read: Callable[[], Any], state: OpenState) -> Any:
    """What a file of the broker says; {} if it cannot be read."""
    try:
        return read()
    except (CorruptConfigError, UnsupportedStoreError) as error:
        state.unread.append(str(error))
        return {}


class _Half(NamedTuple):
    """A half message that is open, and what op messages may call it."""

    transaction: str | None
    names: list[HalfName]


class _Transactions:
    """The half messages that no op message has named yet, by their log offset."""

    def __init__(self, state: OpenState) -> None:
        self._state = state
        self.open: dict[int, _Half] = {}
        self._by_name: dict[HalfName, int] = {}
        self._by_transaction: dict[str, int] = {}

    def in_database(self, database: TransactionsInDatabase | None) -> tuple[int, int]:
        """How many of a broker with transRocksDBEnable are open, and how many it has given up."""
        halves = self.open.items()
        own = [place for place, half in halves if half.names[0][0] == ROCKSDB_HALF_TOPIC]
        given_up = 0 if database is None else sum(map(database.has_given_up, own))
        return len(own) - given_up, given_up

    def take(self, row: Row) -> None:
        if row["kind"] == HALF:
            self._take_half(row)
        elif row["kind"] == OP and row["tags"] == "d":
            for number in offsets_in_op_body(row["body"]):
                self._end(self._by_name.get((HALF_OF_OP[row["heldIn"]], row["queueId"], number)))
            self._end(row["halfPlace"])

    def _take_half(self, row: Row) -> None:
        """A broker that asks the producer stores the half message again, and goes on with that one."""
        place, transaction = row["commitLogOffset"], row["transaction"] or row["uniqKey"]
        names: list[HalfName] = [(row["heldIn"], row["queueId"], row["queueOffset"])]
        if row["checks"] or row["original"] is not None:
            before = self._by_transaction.get(transaction)
            if before is not None:
                self._state.stored_again.add(before)
                self._state.also_called.pop(before, None)
                names += self.open.pop(before).names
            elif row["original"] is not None:
                names.append((row["heldIn"], row["queueId"], row["original"]))
            if len(names) > 1:
                self._state.also_called[place] = names[1:]
        self.open[place] = _Half(transaction, names)
        for name in names:
            self._by_name[name] = place
        if transaction is not None:
            self._by_transaction[transaction] = place

    def _end(self, place: int | None) -> None:
        if place is None or place not in self.open:
            return
        half = self.open.pop(place)
        for name in half.names:
            self._by_name.pop(name, None)
        if half.transaction is not None:
            self._by_transaction.pop(half.transaction, None)


def offsets_in_op_body(body: bytes) -> Sequence[int]:
    """The queue offsets of half messages that the body of an op message names."""
    return [int(word) for word in body.split(b",") if word.isdigit() and len(word) <= 18]


class UnfinishedRecord(NamedTuple):
    """Messages in the broker's own topics that `reader`, one of its services, is not done with."""

    reader: str
    messages: int


class ExpiredUnfinished(NamedTuple):
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


def level_reader_name(level: int) -> str:
    """What reads the messages of a delay level."""
    return f"delay level {level}"


def expired_unfinished(store: StoreReader) -> Iterator[ExpiredUnfinished]:
    """What expired of each delay level, of the timers and of open transactions. Raises CorruptConfigError."""
    states = store.snapshot().queues
    for queue_id, offset in sorted(read_delay_offsets(store.path).items()):
        state = states.get(QueueId(SCHEDULE_TOPIC, queue_id))
        if state is not None and offset < state.min_offset:
            proof = (
                f"the level is delivered to offset {offset} of {SCHEDULE_TOPIC}/{queue_id}, which begins at "
                f"{state.min_offset}"
            )
            reader = level_reader_name(queue_id + 1)
            yield ExpiredUnfinished(
                "delay-behind", reader, state.min_offset - offset, DELAY_FILE, proof
            )
    yield from _timers(store)
    yield from _transactions(store)


def _timers(store: StoreReader) -> Iterator[ExpiredUnfinished]:
    check, units = read_timer_check(store.path), read_timer_units(store.path)
    state = store.snapshot().queues.get(QueueId(TIMER_TOPIC, 0))
    if check is None:
        return
    unread = 0 if state is None else max(0, state.min_offset - check.queue_offset)
    if unread and _is_read_by_database(store, check):
        unread = 0
    proof = f"the timer has read {TIMER_TOPIC} to offset {check.queue_offset}, before its first one"
    if units is not None:
        of_pop = [java_string_hash(t) for t in store.topics() if t.startswith(REVIVE_PREFIX)]
        lost = (units.time >= check.read_time) & (units.log_offset < store.log_range()[0])
        lost &= (units.magic & DELETE == 0) & ~np.isin(units.topic_hash, of_pop)
        if lost.any():
            unread += int(lost.sum())
            proof = f"the timer log leads to them, before log offset {store.log_range()[0]}"
    if unread:
        yield ExpiredUnfinished("timer-behind", TIMERS, unread, TIMER_CHECK, proof)


def _is_read_by_database(store: StoreReader, check: TimerCheck) -> bool:
    """Whether it is not the wheel that reads the timer topic, as with timerRocksDBEnable."""
    errors: list[StoreError] = []  # that verify reports
    has_timers = timers_in_database(store.path, errors.append) is not None
    return has_timers or bool(errors) or (check.queue_offset == 0 and is_in_use(store.path))


def _transactions(store: StoreReader) -> Iterator[ExpiredUnfinished]:
    """Half messages that the broker had not passed, and that no op message which is left names."""
    checked = store.consumer_offsets().get(TRANSACTION_GROUP, {})
    for queue in store.queues(HALF_TOPIC):
        offset, first = checked.get(HALF_TOPIC, {}).get(queue.queue_id), store.min_offset(*queue)
        if offset is not None and offset < first:
            ended = ended_half_messages(store, OP_TOPIC, ignore_error)
            missing = first - offset - int(((ended >= offset) & (ended < first)).sum())
            if missing:
                file = consumer_file(store.path, store.config.enableLmq)
                proof = (
                    f"it has checked {queue.name} to offset {offset}, which begins at {first}. Op messages "
                    "that expired too may have ended some"
                )
                yield ExpiredUnfinished("transactions-behind", TRANSACTIONS, missing, file, proof)


def unfinished_before(store: StoreReader, log_offset: int) -> list[UnfinishedRecord]:
    """What is not done with of the records before a log offset. Passes over damage, which verify reports."""
    counts: Counter[str] = Counter()
    for row in delayed_messages(store, ignore_error):
        of_pop = (row["topic"] or "").startswith(REVIVE_PREFIX)  # counted by what was popped
        if row["state"] in UNDELIVERED and row["commitLogOffset"] < log_offset and not of_pop:
            counts[level_reader_name(row["delayLevel"]) if row["kind"] == LEVEL else TIMERS] += 1
    for row in transactions(store, ignore_error):
        if row["state"] == OPEN and row["halfCommitLogOffset"] < log_offset:
            counts[TRANSACTIONS] += 1
    counts[POP] = not_acknowledged_before(store, log_offset)
    return [UnfinishedRecord(reader, messages) for reader, messages in sorted((+counts).items())]
