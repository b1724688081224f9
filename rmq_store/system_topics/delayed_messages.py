"""Messages that the broker is to deliver later: delay levels, and timers.

Both are stored under a topic of the broker, and once more under their own topic when they are due
(ScheduleMessageService, TimerMessageStore). How far the broker is stands in config/delayOffset.json, and
in config/timercheck and the timer log. A broker writes these files some seconds late, so after a crash
it delivers again what it has delivered: a later copy shows that.

A timer message for a time beyond the wheel is put off: stored again as a new timer message, whose
TIMER_ROLL_TIMES is one more. An order to delete is a timer message too; the timer applies it only to
messages of the same tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

from rmq_store.commitlog.walk import current_end
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.consumer_offsets import read_delay_offsets
from rmq_store.errors import LOG
from rmq_store.format.byte_layout import ROCKSDB_STORE_DIR
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.markers import (
    DELETE,
    ROLL,
    TimerCheck,
    TimerUnits,
    read_timer_check,
    read_timer_units,
)
from rmq_store.reading.query import OnDamage
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.report import GIVE_THE_FILE, sentence_of_default_delays
from rmq_store.search.log_partitions import joined_ranges, newest_time
from rmq_store.system_topics.state_database import TimersInDatabase, timers_in_database
from rmq_store.system_topics.system_topic_rows import (
    ORIGIN,
    PLACE,
    MessageCopy,
    Row,
    copies_with,
    ignore_error,
    rows_with_properties,
    whole_queues_of,
)

LEVEL, TIMER = "level", "timer"
WAITING, OVERDUE, DELIVERED = "waiting", "overdue", "delivered"
CANCELLED, LOST = "cancelled", "lost"
UNDELIVERED = (WAITING, OVERDUE, LOST)

DELETES, ROLL_TIMES, ROLL_LABEL = "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES", "TIMER_ROLL_LABEL"
_TEXTS = {"topic": "REAL_TOPIC"}
_NUMBERS = {"dueTimestamp": "TIMER_OUT_MS"}
_SMALL = {"realQueueId": "REAL_QID", "rollTimes": ROLL_TIMES}
_ORDER = {"deletes": DELETES, "rollLabel": ROLL_LABEL}
_LOOKED_UP = 1 << 16  # messages whose later copies are looked for at a time
_EARLY_MS = 1000  # a timer turns to a message up to one timerPrecisionMs before its time


def delayed_messages(store: StoreReader, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """Every message that the broker's files do not count as delivered: delay levels, then timers.

    Columns as in the table `scheduled`, times in ms. A message is overdue when the newest record of
    the log is later. Warns in the log of times that the default delay levels make. Raises
    CorruptConfigError, and the errors of `read_slices` for damage.
    """
    newest = newest_time([store]) or 0
    parts = [*whole_queues_of(store, TIMER_TOPIC)]
    timer = TimerFiles(
        read_timer_check(store.path),
        read_timer_units(store.path),
        timers_in_database(store.path, on_damage) if parts else None,
    )
    timers = (_timer_rows(store, part, timer, on_damage) for part in parts)
    rows = iter(_with_states((*_levels(store, on_damage), *timers), newest))
    while some := list(islice(rows, _LOOKED_UP)):
        yield from _with_copies(store, some, timer, on_damage)


_Copies = dict[tuple[str | None, str, int], list[MessageCopy]]
"""By topic, UNIQ_KEY and how often it was consumed again; in the order of the log."""


def is_due_after_log(store: StoreReader, queue: QueueId, offset: int) -> bool:
    """Whether a message of a delay level is due later than the newest record of a log that nobody writes.

    The time in its entry may be wrong (a rebuild without the broker's delays writes the default ones): a
    copy shows that it was delivered.
    """
    entries, newest = store.entries(queue, offset, offset + 1), newest_time([store]) or 0
    if not len(entries) or int(entries.tags_code[0]) <= newest or _is_written(store):
        return False
    part = QueueSlice(queue, offset, offset + 1)
    for row in rows_with_properties(
        store, part, _TEXTS, {}, {}, ("uniqKey",), on_damage=ignore_error
    ):
        key = row["uniqKey"]
        if key and any(copies_with(store, {row["topic"]}, {key}, ignore_error)):
            return False
    return True


def timers_due_after_log(store: StoreReader) -> int:
    """How many timers config/timercheck counts as delivered that are due later than the log's newest record.

    Reads the timer topic only if the timer log has units for that time, or has none at all. Raises
    CorruptConfigError for the file.
    """
    check, newest = read_timer_check(store.path), newest_time([store]) or 0
    if check is None or check.read_time <= newest or _is_written(store):
        return 0
    units = read_timer_units(store.path)
    if units is not None and units.leads_nowhere(newest, check.read_time):
        return 0
    # As the timer saw them when the newest record was stored.
    timer = TimerFiles(replace(check, read_time=newest + 1), units)
    return sum(
        row["state"] == WAITING and row["dueTimestamp"] < check.read_time
        for part in whole_queues_of(store, TIMER_TOPIC)
        for row in _timer_rows(store, part, timer, ignore_error)
        if row["heldQueueOffset"] < check.queue_offset and row["dueTimestamp"] is not None
    )


def _is_written(store: StoreReader) -> bool:
    """Whether a broker writes on: it delivers what the log of this moment does not show."""
    end = store.log_range()[1]
    return current_end(store.log, end) > end


def _with_states(parts: Iterable[Iterable[Row]], newest: int) -> Iterator[Row]:
    for row in (row for part in parts for row in part):
        due = row["dueTimestamp"]
        if row["state"] == WAITING and due is not None and due <= newest:
            row |= {"state": OVERDUE, "overdueMs": newest - due}
        yield row


def _with_copies(
    store: StoreReader, rows: list[Row], timer: TimerFiles, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The rows; one with a later copy under its own topic is delivered, whatever files and times say.

    The time in the entry of a delay level may be by other levels: a recovery without the broker's
    configuration writes that of the default ones. The time of a timer is its own.
    """
    late = [row for row in rows if row["uniqKey"]]
    topics, keys = {row["topic"] for row in late}, {row["uniqKey"] for row in late}
    copies: _Copies = {}
    for copy in copies_with(store, topics, keys, on_damage):
        copies.setdefault((copy.topic, copy.uniq_key, copy.reconsume_times), []).append(copy)
    if copies:
        _leave_out_copies_of_delivered(store, copies, timer, on_damage)
    for row in rows:
        delivery = _take_copy(copies, row)
        if delivery is not None:
            row |= {
                "state": DELIVERED,
                "overdueMs": None,
                "deliveredTimestamp": delivery.stored,
                "deliveredQueueOffset": delivery.queue_offset,
            }
        yield row


def _leave_out_copies_of_delivered(
    store: StoreReader, copies: _Copies, timer: TimerFiles, on_damage: OnDamage | None
) -> None:
    """Take away those of messages that a file counts as delivered: a client that sends one message object
    twice stores two with one key, and the other may still wait."""
    delivered, keys = read_delay_offsets(store.path), {key for _, key, _ in copies}
    has_timers = timer.check is not None or timer.database is not None
    topics = ([SCHEDULE_TOPIC] if delivered else []) + ([TIMER_TOPIC] if has_timers else [])
    places = [
        QueueSlice(QueueId(held.topic, held.queue_id), held.queue_offset, held.queue_offset + 1)
        for held in copies_with(store, topics, keys, on_damage)
        if held.topic == TIMER_TOPIC or held.queue_offset < delivered.get(held.queue_id, 0)
    ]
    slices = joined_ranges(places)
    timed = [slice_ for slice_ in slices if slice_.queue.topic == TIMER_TOPIC]
    levels = (_level(store, slice_, on_damage) for slice_ in slices if slice_ not in timed)
    for row in chain(_delivered_timers(store, timed, timer, on_damage), *levels):
        _take_copy(copies, row)


def _delivered_timers(
    store: StoreReader, slices: Sequence[QueueSlice], timer: TimerFiles, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The timer messages that the files count as delivered, of a few with all that was put off of them."""
    rows = [row for slice_ in slices for row in _timer_records(store, slice_, on_damage)]
    later = LaterTimerRecords(store)
    for row in rows:
        later.add_put_off(row)
    for row in rows:
        if not later.was_postponed(row) and timer.has_delivered(row):
            yield row


def _take_copy(copies: _Copies, row: Row) -> MessageCopy | None:
    """The first copy that may be the delivery of a message, which no other has then; None without one."""
    left = copies.get((row["topic"], row["uniqKey"], row["reconsumeTimes"]), [])
    for copy in left:
        if copy.log_offset > row["commitLogOffset"] and not is_before_time(row, copy.stored):
            left.remove(copy)
            return copy
    return None


def is_before_time(row: Row, stored: int) -> bool:
    """Whether a copy that was `stored` then (ms) is too early for the delivery of a timer message."""
    due = row["dueTimestamp"]
    return row.get("kind") == TIMER and due is not None and stored < due - _EARLY_MS


def _levels(store: StoreReader, on_damage: OnDamage | None) -> Iterator[Iterator[Row]]:
    delivered = read_delay_offsets(store.path)
    by_default = 0
    for slice_ in whole_queues_of(store, SCHEDULE_TOPIC):
        start = min(max(slice_.start, delivered.get(slice_.queue.queue_id, 0)), slice_.stop)
        yield _level(store, QueueSlice(slice_.queue, start, slice_.stop), on_damage)
        # The times of those that no file of the queue lists are made of the broker's default levels.
        tail = store.view.state(slice_.queue).tail
        if tail is not None and store.config.messageDelayLevel is None:
            by_default += max(0, slice_.stop - max(start, int(tail.offset[0])))
    # A configuration without messageDelayLevel says that the broker has the default levels.
    if by_default and store.config == StoreConfig():
        LOG.warning("%s", sentence_of_default_delays(by_default, again=GIVE_THE_FILE))


def _level(store: StoreReader, slice_: QueueSlice, on_damage: OnDamage | None) -> Iterator[Row]:
    columns = (*PLACE, *ORIGIN, "tagsCode")
    for row in rows_with_properties(
        store, slice_, _TEXTS, {}, _SMALL, columns, on_damage=on_damage
    ):
        # The entry has the time in place of a hash (docs/format-consumequeue.md).
        due = row.pop("tagsCode")
        yield _row(row, LEVEL, SCHEDULE_TOPIC) | {
            "dueTimestamp": due,
            "delayLevel": slice_.queue.queue_id + 1,
        }


@dataclass(frozen=True, slots=True)
class TimerFiles:
    """What the files of the timer say of messages, given as rows of its topic. `database`: what is there of
    them with timerRocksDBEnable; the wheel does not read its topic then."""

    check: TimerCheck | None
    units: TimerUnits | None
    database: TimersInDatabase | None = None

    def state_of(self, row: Row) -> str | None:
        """The state of a timer message; None if the timer is done with it."""
        check, due = self.check, row["dueTimestamp"]
        if self.database is not None and row["queueOffset"] < self.database.queue_offset:
            waits = self.database.waits(row["commitLogOffset"]) or self._wheel_has(row)
            return WAITING if waits else None
        if check is None or row["queueOffset"] >= check.queue_offset:
            return WAITING  # the timer has not read it yet
        if self._time_of(row) is not None:
            return WAITING if self._wheel_has(row) else None
        if due is not None and due < check.read_time:
            return None
        # What was due when the timer read it has no unit. Nothing else leads the timer to a message.
        return WAITING if self.units is None else LOST

    def _wheel_has(self, row: Row) -> bool:
        time = self._time_of(row)
        return self.check is not None and time is not None and time >= self.check.read_time

    def has_delivered(self, row: Row) -> bool:
        """Whether the files count a message as delivered, if it was not put off."""
        read_time = self.check.read_time if self.check is not None else 0
        if self.database is not None:
            read_time = max(read_time, self.database.read_time)
        is_over = (row["dueTimestamp"] or 0) < read_time
        return is_over and row["deletes"] is None and self.state_of(row) is None

    def tick_of(self, row: Row) -> int | None:
        """When the timer turns to a message (ms)."""
        time, due = self._time_of(row), row["dueTimestamp"]
        return due if time is None else time

    def _time_of(self, row: Row) -> int | None:
        return None if self.units is None else self.units.time_of(row["commitLogOffset"])

    def may_have_later_ones(self, part: QueueSlice) -> bool:
        """Whether orders to delete wait, or messages were put off, as far as the timer log shows."""
        if self.check is None or self.units is None or self.check.queue_offset < part.stop:
            return True
        return bool((self.units.magic & (DELETE | ROLL)).any())


def _timer_rows(
    store: StoreReader, slice_: QueueSlice, timer: TimerFiles, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The timer messages of a queue that the timer has neither delivered nor put off."""
    later = None
    if timer.may_have_later_ones(slice_):
        later = _later_records(store, slice_, timer, on_damage)
    for row in _timer_records(store, slice_, on_damage):
        state = timer.state_of(row)
        if state == LOST and later is None:  # or it was put off, and its unit has expired
            later = _later_records(store, slice_, timer, on_damage)
        replaced = later is not None and later.was_postponed(row)
        if state is None or replaced or row.pop("deletes") is not None:
            continue
        row = _row(row, TIMER, TIMER_TOPIC) | {"state": state}
        if later is not None and later.was_cancelled(row, timer.tick_of(row)):
            row["state"] = CANCELLED
        yield row


def _timer_records(
    store: StoreReader, slice_: QueueSlice, on_damage: OnDamage | None
) -> Iterator[Row]:
    texts = _TEXTS | _ORDER
    return rows_with_properties(store, slice_, texts, _NUMBERS, _SMALL, on_damage=on_damage)


def _later_records(
    store: StoreReader, slice_: QueueSlice, timer: TimerFiles, on_damage: OnDamage | None
) -> LaterTimerRecords:
    """The orders to delete that wait, and all messages that were put off. Reads the queue."""
    later = LaterTimerRecords(store)
    columns = (*PLACE, "uniqKey", "reconsumeTimes", "bornTimestamp")
    texts = _TEXTS | _ORDER
    for row in rows_with_properties(
        store, slice_, texts, _NUMBERS, _SMALL, columns, on_damage=on_damage
    ):
        if row["deletes"] is not None and timer.state_of(row) is not None:
            later.add_delete_order(row["deletes"], timer.tick_of(row))
        later.add_put_off(row)
    return later


def _row(row: Row, kind: str, held_in: str) -> Row:
    """A row of the table, but for what only its kind knows."""
    return {
        **row,
        "kind": kind,
        "state": WAITING,
        "heldIn": held_in,
        "heldQueueId": row["queueId"],
        "heldQueueOffset": row["queueOffset"],
        "queueId": row["realQueueId"],
    }


class PostponedTimer(NamedTuple):
    """What a message keeps when it is put off, and how often it was."""

    topic: str | None
    uniq_key: str | None
    reconsume_times: int
    born: int
    roll_times: int

    @classmethod
    def of(cls, row: Row) -> PostponedTimer:
        """That of a row of the timer topic."""
        origin = (row["topic"], row["uniqKey"], row["reconsumeTimes"], row["bornTimestamp"])
        return cls(*origin, row["rollTimes"] or 0)


def name_in_database(row: Row) -> tuple[str | None, str, int | None]:
    """What names a timer message with timerRocksDBEnable: topic, UNIQ_KEY, and when it is due."""
    return row["topic"], row["uniqKey"], row["dueTimestamp"]


class LaterTimerRecords:
    """The orders to delete of a queue of the timer topic, and the messages that were put off."""

    def __init__(self, store: StoreReader) -> None:
        # An order names a message by topic and UNIQ_KEY, or by UNIQ_KEY alone. Since 5.4.0
        # appendTopicForTimerDeleteKey says so, by default false. A broker of such a release leaves
        # `rocksdbstore/` in every store. Older ones have one form or the other.
        with_topic = store.config.appendTopicForTimerDeleteKey
        either = with_topic is None and not (store.path / ROCKSDB_STORE_DIR).is_dir()
        self._with_topic, self._alone = either or bool(with_topic), either or not with_topic
        self._orders: set[tuple[str, int | None]] = set()
        self._put_off: dict[PostponedTimer, deque[int]] = {}
        self._rolled: dict[tuple[str | None, str, int | None], int] = {}

    def add_delete_order(self, names: str, tick: int | None) -> None:
        """Add an order to delete what it `names`, and when the timer applies it (ms)."""
        self._orders.add((names, tick))

    def add_put_off(self, row: Row) -> None:
        """Add a message, if it was stored again. Rows come in the order of the queue."""
        if row["rollTimes"]:
            self._put_off.setdefault(PostponedTimer.of(row), deque()).append(row["commitLogOffset"])
        elif row["rollLabel"] and row["uniqKey"]:  # with timerRocksDBEnable
            self._rolled[name_in_database(row)] = row["commitLogOffset"]

    def was_postponed(self, row: Row) -> bool:
        """Whether a later record is this message, put off. Each is the later one of one message."""
        if self._rolled and self._rolled.get(name_in_database(row), -1) > row["commitLogOffset"]:
            return True
        sent = PostponedTimer.of(row)
        later = self._put_off.get(sent._replace(roll_times=sent.roll_times + 1), deque())
        while later and later[0] <= row["commitLogOffset"]:
            later.popleft()
        if not later:
            return False
        later.popleft()
        return True

    def was_cancelled(self, row: Row, tick: int | None) -> bool:
        """Whether an order names this message, in its tick."""
        return any((name, tick) in self._orders for name in self._names_of(row))

    def _names_of(self, row: Row) -> Iterable[str]:
        key = row["uniqKey"]
        if key is None:
            return
        if self._alone:
            yield key
        if self._with_topic:
            yield f"{row['topic']}+{key}"
