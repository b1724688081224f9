"""The table `scheduled`, held against the truth of golden stores and the broker's own counts."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptConfigError
from rmq_store.search.log_partitions import newest_time
from rmq_store.system_topics.delayed_messages import delayed_messages
from tests.support.counted_store import CountedStore
from tests.support.counted_tables import scheduled
from tests.support.damage import write_at
from tests.support.golden import Golden, GoldenStore, unpack, unpack_kind

LEVELS_S = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)  # messageDelayLevel
WITH_LEVELS = [
    "clean-4.3.2",
    "clean-4.9.7",
    "clean-5.1.1",
    "clean-5.3.3",
    "clean-5.4.0",
    "clean-5.5.0",
]
TIMERS = "compact-timer-5.5.0"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack_kind(TIMERS, tmp_path)


def counted_by_broker(store: GoldenStore, name: str, table: str) -> dict[str, int]:
    """How many messages wait by topic, according to the broker's own metrics."""
    metrics = json.loads(Path(store.path, "config", name).read_bytes())[table]
    return {topic: one["count"] for topic, one in metrics.items() if one["count"]}


def rows_of(store: GoldenStore) -> list[dict[str, Any]]:
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        return list(delayed_messages(opened))


@pytest.mark.parametrize("name", WITH_LEVELS)
def test_messages_of_delay_levels_wait_until_their_level_has_passed(
    name: str, golden: Golden
) -> None:
    store = golden(name)
    file = Path(store.path, "config", "delayOffset.json").read_text("utf-8")
    table = file.split("offsetTable")[1]  # its keys have no quotes
    offsets = {int(a): int(b) for a, b in re.findall(r"(\d+)\"?\s*:\s*(\d+)", table)}
    held = [r for r in store.truth if r["topic"] == "SCHEDULE_TOPIC_XXXX"]
    expected = {
        (r["commitLogOffset"], r["storeTimestamp"] + LEVELS_S[r["queueId"]] * 1000)
        for r in held
        if r["queueOffset"] >= offsets.get(r["queueId"] + 1, 0)
    }
    found = rows_of(store)
    assert {(row["commitLogOffset"], row["dueTimestamp"]) for row in found} == expected
    assert expected
    assert len(expected) < len(held)
    assert {row["state"] for row in found} == {"waiting"}
    assert {(row["kind"], row["delayLevel"]) for row in found} == {("level", 18)}


@pytest.mark.parametrize("name", ["clean-4.9.7", "clean-5.5.0"])
def test_what_a_stale_file_counts_as_waiting_is_found_delivered(name: str, tmp_path: Path) -> None:
    """As after a crash: the broker writes delayOffset.json every ten seconds."""
    store = unpack(name, tmp_path)
    for path in Path(store.path, "config").glob("delayOffset.json*"):
        path.unlink()
    copies = {
        (r["topic"], r["properties"].get("UNIQ_KEY"), r["reconsumeTimes"])
        for r in store.truth
        if r["topic"] != "SCHEDULE_TOPIC_XXXX"
    }
    held = [r for r in store.truth if r["topic"] == "SCHEDULE_TOPIC_XXXX"]
    delivered = {
        r["commitLogOffset"]
        for r in held
        if (r["properties"]["REAL_TOPIC"], r["properties"]["UNIQ_KEY"], r["reconsumeTimes"])
        in copies
    }
    found = rows_of(store)
    assert len(found) == len(held)
    states = {row["commitLogOffset"]: row["state"] for row in found}
    assert {at for at, state in states.items() if state == "delivered"} == delivered
    waiting = len(held) - len(delivered)
    assert Counter(states.values()) == {"delivered": len(delivered), "waiting": waiting}
    for row in found:
        if row["state"] == "delivered":
            assert row["deliveredTimestamp"] >= row["dueTimestamp"] - 1


def test_timers_and_levels_that_wait_are_those_that_the_broker_counts(store: GoldenStore) -> None:
    found = rows_of(store)
    timers = Counter(row["topic"] for row in found if row["kind"] == "timer")
    assert timers == counted_by_broker(store, "timermetrics", "timingCount") == {"payments": 7}
    for row in found:
        delay = 3_600_000 if row["kind"] == "timer" else 7_200_000
        assert abs(row["dueTimestamp"] - row["storeTimestamp"] - delay) < 1100
    assert sum(row["kind"] == "level" for row in found) == 8
    assert {row["state"] for row in found} == {"waiting"}


def test_what_only_the_log_has_is_no_later_than_its_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the configuration, the default levels make the times: later ones than those of this broker."""
    store = unpack_kind("rocksdb-crash-5.5.0", tmp_path)
    wanted = list(scheduled(CountedStore(store, tmp_path)))
    names = ("commitLogOffset", "state", "deliveredTimestamp", "deliveredQueueOffset", "overdueMs")
    for conf, exact in ((None, False), (store.conf, True)):
        caplog.clear()
        with MessageStore.open(store.path, broker_conf=conf) as opened:
            found = list(delayed_messages(opened))
        assert [[row.get(name) for name in names] for row in found] == [
            [row[name] for name in names] for row in wanted
        ]
        times = [row["dueTimestamp"] for row in found]
        assert (times == [row["dueTimestamp"] for row in wanted]) is exact
        assert ("the times of the default delay levels" in caplog.text) is not exact
    assert Counter(row["state"] for row in wanted) == {"delivered": 3, "waiting": 6}


def test_timers_of_the_proxy_are_those_that_the_broker_counts(golden: Golden) -> None:
    store = golden("proxy-5.5.0")
    found = Counter(row["topic"] for row in rows_of(store))
    assert found == counted_by_broker(store, "timermetrics", "timingCount")
    assert found.total() == 451


def test_a_timer_whose_unit_is_gone_is_lost(store: GoldenStore) -> None:
    path = next(Path(store.path, "timerlog").iterdir())
    write_at(path, 52 + 24, (1).to_bytes(8, "big"))  # the log offset in the second unit
    states = Counter(row["state"] for row in rows_of(store) if row["kind"] == "timer")
    assert states == {"waiting": 6, "lost": 1}


def test_the_tick_that_the_timer_reads_next_waits(store: GoldenStore) -> None:
    tick = next(row for row in rows_of(store) if row["kind"] == "timer")["dueTimestamp"]
    path = Path(store.path, "config", "timercheck")
    raw = path.read_bytes()
    for read_time, waiting in ((tick, 7), (tick + 1000, 0)):
        path.write_bytes(read_time.to_bytes(8, "big") + raw[8:])
        timers = [row["state"] for row in rows_of(store) if row["kind"] == "timer"]
        assert timers == ["waiting"] * waiting


def test_a_timer_without_a_unit_that_was_delivered_is_not_lost(store: GoldenStore) -> None:
    """What was due when the timer read it is delivered at once, without a unit."""
    path = Path(store.path, "config", "timercheck")
    raw = path.read_bytes()
    path.write_bytes((0).to_bytes(8, "big") + raw[8:])
    log = next(Path(store.path, "timerlog").iterdir())
    log.write_bytes(bytes(log.stat().st_size))
    found = Counter(row["state"] for row in rows_of(store) if row["kind"] == "timer")
    assert found == {"delivered": 8, "lost": 7}


def test_without_the_timer_log_the_time_of_each_message_decides(store: GoldenStore) -> None:
    for path in Path(store.path, "timerlog").iterdir():
        path.unlink()
    assert Counter(r["kind"] for r in rows_of(store)) == {"timer": 7, "level": 8}
    Path(store.path, "config", "timercheck").unlink()
    found = Counter((r["kind"], r["state"]) for r in rows_of(store))
    assert found == {("timer", "waiting"): 7, ("timer", "delivered"): 8, ("level", "waiting"): 8}


def test_a_waiting_order_to_delete_cancels_a_timer(store: GoldenStore) -> None:
    target = next(row for row in rows_of(store) if row["kind"] == "timer")
    with MessageStore.open(store.path) as opened:
        newest = newest_time([opened]) or 0
    late = target["dueTimestamp"] + 600_000
    orders = [(target["uniqKey"], late), (target["uniqKey"], target["dueTimestamp"])]
    for key, due in [*orders, (f"{target['topic']}+{target['uniqKey']}", target["dueTimestamp"])]:
        properties = {"REAL_TOPIC": target["topic"], "REAL_QID": "0"}
        properties |= {"TIMER_OUT_MS": str(due), "TIMER_DEL_UNIQKEY": key}
        row = {"topic": "rmq_sys_wheel_timer", "queueId": 0, "body": b"", "storeTimestamp": newest}
        with MessageStore.append_to(store.path) as writer:
            writer.append({**row, "properties": properties})
        found = {row["commitLogOffset"]: row["state"] for row in rows_of(store)}
        if due == late:  # the timer applies an order in its own tick only
            assert set(found.values()) == {"waiting"}
            continue
        assert found[target["commitLogOffset"]] == "cancelled"
        assert Counter(found.values()) == {"waiting": 14, "cancelled": 1}


def test_a_message_is_overdue_when_a_later_record_is_there(store: GoldenStore) -> None:
    late = max(row["dueTimestamp"] for row in rows_of(store) if row["kind"] == "timer")
    with MessageStore.append_to(store.path) as writer:
        row = {"topic": "orders", "queueId": 0, "body": b"", "storeTimestamp": late + 5000}
        writer.append(row)
    found = rows_of(store)
    states = Counter((r["kind"], r["state"]) for r in found)
    assert states == {("timer", "overdue"): 7, ("level", "waiting"): 8}
    assert min(row["overdueMs"] for row in found if row["state"] == "overdue") == 5000


def test_a_checkpoint_that_is_too_short_is_refused(store: GoldenStore) -> None:
    Path(store.path, "config", "timercheck").write_bytes(b"12345")
    with pytest.raises(CorruptConfigError, match="at least 24 bytes"):
        rows_of(store)
