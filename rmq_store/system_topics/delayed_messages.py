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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from rmq_store.commitlog.walk import end_now
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.consumer_offsets import read_delay_offsets
from rmq_store.consumequeue.bisection import bisect_first
from rmq_store.errors import StoreError
from rmq_store.escaping import LOG
from rmq_store.format.byte_layout import ROCKSDB_STORE_DIR
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.markers.timer_files import (
    DELETE,
    ROLL,
    TimerCheck,
    TimerUnits,
    read_timer_check,
    read_timer_units,
)
from rmq_store.reading.query import OnDamage
from rmq_store.recovery.report import GIVE_THE_FILE, line_of_default_delays
from rmq_store.store import MessageStore
from rmq_store.system_topics.copies_by_uniq_key import Copy, copies_with
from rmq_store.system_topics.system_topic_rows import (
    ORIGIN,
    PLACE,
    Row,
    all_of,
    is_whole,
    newest_time,
    rows_of,
)

LEVEL, TIMER = "level", "timer"
WAITING, OVERDUE, DELIVERED = "waiting", "overdue", "delivered"
CANCELLED, LOST, HIDDEN = "cancelled", "lost", "hidden"

DELETES, ROLL_TIMES = "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"
_TEXTS = {"topic": "REAL_TOPIC"}
_NUMBERS = {"dueTimestamp": "TIMER_OUT_MS"}
_SMALL = {"realQueueId": "REAL_QID", "rollTimes": ROLL_TIMES}
_ORDER = {"deletes": DELETES}
_BY_DEFAULT = "byDefault"  # of a row: its time is by the default delay levels
_NEVER = 1 << 62
_LOOKED_UP = 1 << 16  # messages whose later copies are looked for at a time


def delayed_messages(store: MessageStore, on_damage: OnDamage | None = None) -> Iterator[Row]:
    """Every message that the broker's files do not count as delivered: delay levels, then timers.

    And the hidden ones, which the files count, and which the log shows not to be delivered: they are
    due later than its newest record, or have no copy where a file counts more than its queue has.
    Columns as in the table `scheduled`, times in ms. A message is overdue when the newest record of
    the log is later. Warns in the log of times that the default delay levels make. Raises
    CorruptConfigError, and the errors of `read_slices` for damage.
    """
    newest = newest_time(store)
    last = _last_time(store, newest)
    levels = _levels(store, last, on_damage, warns=True)
    rows = iter(_with_states((*levels, *_timers(store, last, on_damage)), newest))
    while some := list(islice(rows, _LOOKED_UP)):
        yield from _with_copies(store, some, newest, on_damage)


def hidden_levels(store: MessageStore) -> set[int] | None:
    """The delay levels with messages that a file counts as delivered, and the log shows not to be.

    None if damage is in the way: then a copy that is not found proves nothing, nor does a level that
    is not among them. Raises CorruptConfigError for the file.
    """
    met: list[StoreError] = []
    newest = newest_time(store)
    parts = _levels(store, _last_time(store, newest), met.append)
    found = {row["delayLevel"] for row in _hidden(store, parts, newest, met.append)}
    return None if met else found


def hidden_timers(store: MessageStore) -> int:
    """How many timers config/timercheck counts as delivered that are due later than the log's newest record.

    Reads the timer topic only if the timer log has units for that time, or has none at all. Raises
    CorruptConfigError for the file.
    """
    newest = newest_time(store)
    last, check = _last_time(store, newest), read_timer_check(store.path)
    if check is None or check.read_time <= last:
        return 0
    units = read_timer_units(store.path)
    if units is not None and units.leads_nowhere(last, check.read_time):
        return 0
    met: list[StoreError] = []  # verify reports it
    rows = _hidden(store, _timers(store, last, met.append), newest, met.append)
    return sum(1 for _ in rows)


def _hidden(
    store: MessageStore, parts: Iterable[Iterator[Row]], newest: int, on_damage: OnDamage
) -> Iterator[Row]:
    """The rows that files count as delivered, and the log shows not to be."""
    hidden = (row for row in chain.from_iterable(parts) if row["state"] == HIDDEN)
    while some := list(islice(hidden, _LOOKED_UP)):
        yield from (
            row for row in _with_copies(store, some, newest, on_damage) if row["state"] == HIDDEN
        )


def _last_time(store: MessageStore, newest: int) -> int:
    """When the last record was stored (ms). A broker that writes on delivers what the log of this
    moment does not show: never, then."""
    end = store.log_range()[1]
    return _NEVER if end_now(store.log, end) > end else newest


def _with_states(parts: Iterable[Iterable[Row]], newest: int) -> Iterator[Row]:
    for row in (row for part in parts for row in part):
        due = row["dueTimestamp"]
        if row["state"] == WAITING and due is not None and due <= newest:
            row |= {"state": OVERDUE, "overdueMs": newest - due}
        yield row


def _is_proven(store: MessageStore, row: Row, newest: int) -> bool:
    """Whether the absence of a copy shows that a message was not delivered."""
    due = row["dueTimestamp"]
    if due is not None and due > newest and not row.get(_BY_DEFAULT):
        return True
    return row["uniqKey"] is not None and is_whole(store, row["topic"] or "", row["queueId"])


def _with_copies(
    store: MessageStore, rows: list[Row], newest: int, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The rows; one with a later copy under its own topic is delivered, whatever files and times say.

    The time in the entry of a delay level may be by other levels: a recovery without the broker's
    configuration writes that of the default ones.
    """
    late = [row for row in rows if row["uniqKey"]]
    topics, keys = {row["topic"] for row in late}, {row["uniqKey"] for row in late}
    copies: dict[tuple[str | None, str, int], list[Copy]] = {}
    for copy in copies_with(store, topics, keys, on_damage):
        copies.setdefault((copy.topic, copy.uniq_key, copy.reconsume_times), []).append(copy)
    for row in rows:
        left = copies.get((row["topic"], row["uniqKey"], row["reconsumeTimes"]), [])
        after = (copy for copy in left if copy.log_offset > row["commitLogOffset"])
        found = next(after, None)
        if row["state"] == HIDDEN and (found is not None or not _is_proven(store, row, newest)):
            continue
        if found is not None:
            left.remove(found)  # a producer that tried twice stored two messages with one key
            row |= {
                "state": DELIVERED,
                "overdueMs": None,
                "deliveredTimestamp": found.stored,
                "deliveredQueueOffset": found.queue_offset,
            }
        row.pop(_BY_DEFAULT, None)
        yield row


# --- delay levels ---------------------------------------------------------------------------------


def _levels(
    store: MessageStore, last: int, on_damage: OnDamage | None, *, warns: bool = False
) -> Iterator[Iterator[Row]]:
    """`last`: when the last record was stored (ms). `warns`: of times that are not known."""
    delivered = read_delay_offsets(store.path).get(SCHEDULE_TOPIC, {})
    by_default = 0
    for part in all_of(store, SCHEDULE_TOPIC):
        said = delivered.get(part.queue.queue_id, 0)
        start = min(max(part.start, said), part.stop)
        hidden = part.start if said > part.stop and last < _NEVER else _due_after(store, part, last)
        if hidden < start:
            yield _level(store, QueueSlice(part.queue, hidden, start), HIDDEN, on_damage)
        yield _level(store, QueueSlice(part.queue, start, part.stop), WAITING, on_damage)
        by_default += max(0, part.stop - max(start, _by_default_from(store, part.queue)))
    # A configuration without messageDelayLevel says that the broker has the default levels.
    if warns and by_default and store.config == StoreConfig():
        LOG.warning("%s", line_of_default_delays(by_default, again=GIVE_THE_FILE))


def _by_default_from(store: MessageStore, queue: QueueId) -> int:
    """The first queue offset that no file of the queue lists, if the configuration names no delay levels.

    The time of such a message is made of the broker's default levels.
    """
    tail = store.view.state(queue).tail
    if tail is None or store.config.messageDelayLevel is not None:
        return _NEVER
    return int(tail.offset[0])


def _due_after(store: MessageStore, part: QueueSlice, last: int) -> int:
    """The first queue offset of a delay level, in [start, stop], that is due after `last`.

    The messages of a level are due in their order.
    """

    def is_later(offset: int) -> bool:
        entries = store.entries(part.queue, offset, offset + 1)
        return bool(len(entries)) and int(entries.tags_code[0]) > last

    return bisect_first(part.start, part.stop, is_later)


def _level(
    store: MessageStore, part: QueueSlice, state: str, on_damage: OnDamage | None
) -> Iterator[Row]:
    level, by_default = part.queue.queue_id + 1, _by_default_from(store, part.queue)
    columns = (*PLACE, *ORIGIN, "tagsCode")
    for row in rows_of(store, part, _TEXTS, {}, _SMALL, columns, on_damage=on_damage):
        # The entry has the time in place of a hash (docs/format-consumequeue.md).
        due = row.pop("tagsCode")
        own: Row = {"dueTimestamp": due, "delayLevel": level, "state": state}
        own[_BY_DEFAULT] = row["queueOffset"] >= by_default
        yield _row(row, LEVEL, SCHEDULE_TOPIC) | own


# --- timers ---------------------------------------------------------------------------------------


def _timers(store: MessageStore, last: int, on_damage: OnDamage | None) -> Iterator[Iterator[Row]]:
    """`last`: when the last record was stored (ms)."""
    timer = TimerFiles(read_timer_check(store.path), read_timer_units(store.path))
    for part in all_of(store, TIMER_TOPIC):
        yield _timer_rows(store, part, timer, last, on_damage)


@dataclass(frozen=True, slots=True)
class TimerFiles:
    """What the files of the timer say of messages, given as rows of its topic."""

    check: TimerCheck | None
    units: TimerUnits | None

    def state_of(self, row: Row) -> str | None:
        """The state of a timer message; None if the timer is done with it."""
        check, due = self.check, row["dueTimestamp"]
        if check is None or row["queueOffset"] >= check.queue_offset:
            return WAITING  # the timer has not read it yet
        time = self._time_of(row)
        if time is not None:
            return WAITING if time >= check.read_time else None
        if due is not None and due < check.read_time:
            return None
        # What was due when the timer read it has no unit. Nothing else leads the timer to a message.
        return WAITING if self.units is None else LOST

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
    store: MessageStore, part: QueueSlice, timer: TimerFiles, last: int, on_damage: OnDamage | None
) -> Iterator[Row]:
    """The timer messages of a queue that the timer has neither delivered nor put off."""
    later = None
    if timer.may_have_later_ones(part):
        later = _later_records(store, part, timer, on_damage)
    for row in rows_of(store, part, _TEXTS | _ORDER, _NUMBERS, _SMALL, on_damage=on_damage):
        state = timer.state_of(row)
        if state is None and row["dueTimestamp"] is not None and row["dueTimestamp"] > last:
            state = HIDDEN
        if state in (LOST, HIDDEN) and later is None:  # or it was put off, and its unit has expired
            later = _later_records(store, part, timer, on_damage)
        replaced = later is not None and later.took_its_place(row)
        if state is None or replaced or row.pop("deletes") is not None:
            continue
        row = _row(row, TIMER, TIMER_TOPIC) | {"state": state}
        if later is not None and later.cancels(row, timer.tick_of(row)):
            row["state"] = CANCELLED
        yield row


def _later_records(
    store: MessageStore, part: QueueSlice, timer: TimerFiles, on_damage: OnDamage | None
) -> LaterTimerRecords:
    """The orders to delete that wait, and all messages that were put off. Reads the queue."""
    later = LaterTimerRecords(store)
    columns = (*PLACE, "uniqKey", "reconsumeTimes", "bornTimestamp")
    texts = _TEXTS | _ORDER
    for row in rows_of(store, part, texts, _NUMBERS, _SMALL, columns, on_damage=on_damage):
        if row["deletes"] is not None and timer.state_of(row) is not None:
            later.add_order(row["deletes"], timer.tick_of(row))
        if row["rollTimes"]:
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


class Sent(NamedTuple):
    """What a message keeps when it is put off, and how often it was."""

    topic: str | None
    uniq_key: str | None
    reconsume_times: int
    born: int
    roll_times: int

    @classmethod
    def of(cls, row: Row) -> Sent:
        """That of a row of the timer topic."""
        origin = (row["topic"], row["uniqKey"], row["reconsumeTimes"], row["bornTimestamp"])
        return cls(*origin, row["rollTimes"] or 0)


class LaterTimerRecords:
    """The orders to delete of a queue of the timer topic, and the messages that were put off."""

    def __init__(self, store: MessageStore) -> None:
        self._with_topic, self._alone = _forms(store)
        self._orders: set[tuple[str, int | None]] = set()
        self._put_off: dict[Sent, deque[int]] = {}

    def add_order(self, names: str, tick: int | None) -> None:
        """Add an order to delete what it `names`, and when the timer applies it (ms)."""
        self._orders.add((names, tick))

    def add_put_off(self, row: Row) -> None:
        """Add a message that was stored again. Rows come in the order of the queue."""
        self._put_off.setdefault(Sent.of(row), deque()).append(row["commitLogOffset"])

    def took_its_place(self, row: Row) -> bool:
        """Whether a later record is this message, put off. Each is the later one of one message."""
        sent = Sent.of(row)
        later = self._put_off.get(sent._replace(roll_times=sent.roll_times + 1), deque())
        while later and later[0] <= row["commitLogOffset"]:
            later.popleft()
        if not later:
            return False
        later.popleft()
        return True

    def cancels(self, row: Row, tick: int | None) -> bool:
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


def _forms(store: MessageStore) -> tuple[bool, bool]:
    """Whether an order names a message by topic and UNIQ_KEY, and whether by UNIQ_KEY alone.

    Since 5.4.0 appendTopicForTimerDeleteKey says so, by default false. A broker of such a release
    leaves `rocksdbstore/` in every store. Older ones have one form or the other.
    """
    with_topic = store.config.appendTopicForTimerDeleteKey
    if with_topic is None and not (store.path / ROCKSDB_STORE_DIR).is_dir():
        return True, True
    return bool(with_topic), not with_topic
