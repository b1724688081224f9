"""Timers that an order to delete names, and timers that were put off: one row each, in its true state."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.open_state import PUT_OFF, OpenState
from tests.support.golden import unpack_field

CANCELLED, ROLLED = "timer-cancelled-but-delivered", "timer-rolled-shown-twice"
TIMER = "rmq_sys_wheel_timer"
NOW = 1_700_000_000_000
WITH_TOPIC = {"appendTopicForTimerDeleteKey": "true"}


def states(root: Path, config: dict[str, str] | None = None) -> dict[int, str]:
    """The state of each row by its log offset."""
    with MessageStore.open(root, config=config) as store:
        rows = list(delayed_messages(store))
    assert len({row["commitLogOffset"] for row in rows}) == len(rows)
    return {row["commitLogOffset"]: row["state"] for row in rows}


def cut_log(root: Path, stop: int) -> None:
    """Zeros from a log offset on, and queues without the entries of those records."""
    (log,) = (root / "commitlog").iterdir()
    raw = log.read_bytes()
    log.write_bytes(raw[:stop].ljust(len(raw), b"\0"))
    for queue in (root / "consumequeue").glob("*/0/*"):
        raw = queue.read_bytes()
        units = (raw[at : at + 20] for at in range(0, len(raw) - 19, 20))
        kept = b"".join(unit for unit in units if int.from_bytes(unit[:8], "big") < stop)
        queue.write_bytes(kept.ljust(len(raw), b"\0"))


# The records of both stores, as their bytes have them:
# CANCELLED: 0 and 1339 timers; 2678 an order that names 0 by topic and key, 4101 one with another
#            topic; copies of 1339 at 5534 and of 0 at 6948.
# ROLLED:    0 a timer; 1332 the same, put off; 2745 its copy.


@pytest.mark.parametrize("config", [None, WITH_TOPIC])
def test_a_copy_in_the_log_proves_the_delivery_whatever_an_order_says(
    tmp_path: Path, config: dict[str, str] | None
) -> None:
    root = unpack_field(CANCELLED, tmp_path)
    assert states(root, config) == {0: "delivered", 1339: "delivered"}


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (None, "overdue"),
        ({"appendTopicForTimerDeleteKey": "false"}, "overdue"),
        (WITH_TOPIC, "cancelled"),
    ],
)
def test_an_order_with_a_topic_counts_as_the_setting_says(
    tmp_path: Path, config: dict[str, str] | None, first: str
) -> None:
    root = unpack_field(CANCELLED, tmp_path)
    cut_log(root, 6948)
    assert states(root, config) == {0: first, 1339: "delivered"}


def test_a_release_before_the_setting_knows_the_topic_in_an_order(tmp_path: Path) -> None:
    """From 5.4.0 on every store has rocksdbstore/."""
    root = unpack_field(CANCELLED, tmp_path)
    cut_log(root, 6948)
    (root / "rocksdbstore").rename(tmp_path / "aside")
    assert states(root) == {0: "cancelled", 1339: "delivered"}


@pytest.mark.parametrize("timer_log", [True, False])
def test_a_timer_that_was_put_off_is_one_row(tmp_path: Path, timer_log: bool) -> None:
    root = unpack_field(ROLLED, tmp_path)
    if not timer_log:
        (root / "timerlog").rename(tmp_path / "aside")
    assert states(root) == {1332: "delivered"}


@pytest.mark.parametrize("timer_log", [True, False])
def test_a_timer_that_was_put_off_and_not_delivered_is_one_row(
    tmp_path: Path, timer_log: bool
) -> None:
    root = unpack_field(ROLLED, tmp_path)
    if not timer_log:
        (root / "timerlog").rename(tmp_path / "aside")
    cut_log(root, 2745)
    assert states(root) == {1332: "overdue"}
    with MessageStore.open(root) as store:
        assert OpenState.of(store).closed == {0: PUT_OFF}
    cut_log(root, 1332)  # before it was put off; the log ends before it is due
    assert states(root) == {0: "waiting"}


# --- stores made record by record -----------------------------------------------------------------


def timer(key: str | None, due: int, **properties: Any) -> dict[str, Any]:
    """A record of the timer topic for `orders`; `due` and times are ms after NOW."""
    stored = properties.pop("at", 0)
    own = {} if key is None else {"UNIQ_KEY": key}
    own |= {"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": str(NOW + due)}
    return record(TIMER, stored, own | {name: str(value) for name, value in properties.items()})


def copy_of(key: str, stored: int) -> dict[str, Any]:
    return record("orders", stored, {"UNIQ_KEY": key})


def record(topic: str, stored: int, properties: dict[str, str]) -> dict[str, Any]:
    return {
        "topic": topic,
        "queueId": 0,
        "body": b"",
        "bornTimestamp": NOW,
        "storeTimestamp": NOW + stored,
        "properties": properties,
    }


ONCE = [timer("A", 900), timer("A", 900, at=300, TIMER_ROLL_TIMES=1)]
TWICE = [*ONCE, timer("A", 900, at=600, TIMER_ROLL_TIMES=2)]
CASES: dict[str, tuple[list[dict[str, Any]], dict[int, str]]] = {
    # Each expects states by the number of the record.
    "put off twice, waits": (TWICE, {2: "waiting"}),
    "put off twice, delivered": ([*TWICE, copy_of("A", 901)], {2: "delivered"}),
    "put off twice, overdue": ([*TWICE, copy_of("B", 950)], {2: "overdue"}),
    "one key sent twice, one of them put off": (
        [timer("A", 900), *ONCE],
        {1: "waiting", 2: "waiting"},
    ),
    "put off twice from one record, as after a crash": (
        [*ONCE, timer("A", 900, at=310, TIMER_ROLL_TIMES=1)],
        {1: "waiting", 2: "waiting"},
    ),
    "put off without a key": (
        [timer(None, 900), timer(None, 900, at=300, TIMER_ROLL_TIMES=1)],
        {1: "waiting"},
    ),
    "the first record has expired": ([timer("A", 900, at=300, TIMER_ROLL_TIMES=1)], {0: "waiting"}),
    "cancelled before it is due": (
        [timer("A", 900), timer("X", 900, TIMER_DEL_UNIQKEY="A")],
        {0: "cancelled"},
    ),
    "cancelled, and its time has passed": (
        [timer("A", 900), timer("X", 900, TIMER_DEL_UNIQKEY="A"), copy_of("B", 950)],
        {0: "cancelled"},
    ),
    "cancelled too late": (
        [timer("A", 900), copy_of("A", 901), timer("X", 900, at=950, TIMER_DEL_UNIQKEY="A")],
        {0: "delivered"},
    ),
    "cancelled after it was put off": (
        [*ONCE, timer("X", 900, at=400, TIMER_DEL_UNIQKEY="A")],
        {1: "cancelled"},
    ),
    "an order for another time": (
        [timer("A", 900), timer("X", 5000, TIMER_DEL_UNIQKEY="A")],
        {0: "waiting"},
    ),
    "an order with a topic": (
        [timer("A", 900), timer("X", 900, TIMER_DEL_UNIQKEY="orders+A")],
        {0: "waiting"},
    ),
}


def written(root: Path, records: list[dict[str, Any]]) -> list[int]:
    """A new store with the records; the place of each."""
    with MessageStore.create(root, {"mappedFileSizeCommitLog": 1 << 20}, release="5.5.0") as writer:
        for row in records:
            writer.append(row)
    with MessageStore.open(root, queues=False) as store:
        return [extent.start for extent in store.scan() if extent.record is not None]


@pytest.mark.parametrize("case", CASES)
def test_each_message_has_one_row_in_its_true_state(tmp_path: Path, case: str) -> None:
    records, expected = CASES[case]
    root = tmp_path / "store"
    places = written(root, records)
    (root / "rocksdbstore").mkdir()
    assert states(root) == {places[number]: state for number, state in expected.items()}


@pytest.mark.parametrize("unit_of_first", [True, False])
def test_a_timer_that_was_put_off_is_not_lost_when_its_unit_has_expired(
    tmp_path: Path, unit_of_first: bool
) -> None:
    """The timer log goes with the log: its first files expire, and the queue may still list more."""
    root = tmp_path / "store"
    places = written(root, ONCE)
    unit = struct.Struct(">iqiqiqiiq")
    units = [unit.pack(52, -1, 1, NOW + 300, 600, places[1], 1, 0, 0)]
    if unit_of_first:
        units.insert(0, unit.pack(52, -1, 3, NOW, 300, places[0], 1, 0, 0))
    (root / "timerlog").mkdir()
    (root / "timerlog" / ("0" * 20)).write_bytes(b"".join(units).ljust(520, b"\0"))
    (root / "config" / "timercheck").write_bytes(struct.pack(">qqq", NOW + 400, 0, 2))
    assert states(root) == {places[1]: "waiting"}


def test_of_two_timers_with_one_key_the_one_put_off_has_one_copy(tmp_path: Path) -> None:
    """The timer's file is older than the log: it counts the first as delivered, which was put off before."""
    root = tmp_path / "store"
    copies = [copy_of("A", 901), copy_of("A", 951), copy_of("B", 990)]
    places = written(root, [*ONCE, timer("A", 950, at=310), *copies])
    (root / "config" / "timercheck").write_bytes(struct.pack(">qqq", NOW + 940, 0, 3))
    assert states(root) == {places[2]: "delivered"}
