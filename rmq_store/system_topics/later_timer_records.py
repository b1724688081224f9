"""What later records of the timer topic say of a timer message: it was put off, or is to be deleted.

A message for a time beyond the wheel is put off: stored again as a new timer message, whose
TIMER_ROLL_TIMES is one more. An order to delete is a timer message too; the timer applies it only to
messages of the same tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.format.layout import ROCKSDB_STORE_DIR
from rmq_store.store import MessageStore
from rmq_store.system_topics.system_topic_rows import Row

DELETES, ROLL_TIMES = "TIMER_DEL_UNIQKEY", "TIMER_ROLL_TIMES"


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
        self._with_topic, self._alone = _forms(store.config, store)
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


def _forms(config: StoreConfig, store: MessageStore) -> tuple[bool, bool]:
    """Whether an order names a message by topic and UNIQ_KEY, and whether by UNIQ_KEY alone.

    Since 5.4.0 appendTopicForTimerDeleteKey says so, by default false. A broker of such a release
    leaves `rocksdbstore/` in every store. Older ones have one form or the other.
    """
    with_topic = config.appendTopicForTimerDeleteKey
    if with_topic is None and not (store.path / ROCKSDB_STORE_DIR).is_dir():
        return True, True
    return bool(with_topic), not with_topic
