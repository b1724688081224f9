"""Retention of what the broker itself has still to read: delay levels, timers, transactions.

The numbers are of the broker's own counts (config/timermetrics, transactionMetrics) or of KEYS of messages.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.retention import RetentionPlan, apply_retention, plan_retention
from rmq_store.errors import InvalidArgumentError
from rmq_store.system_topics.delayed_messages import delayed_messages
from rmq_store.system_topics.open_state import unfinished_before
from rmq_store.verify import verify
from tests.support.golden import (
    Golden,
    GoldenStore,
    unpack_field,
    unpack_kind,
    unpack_state,
    verified,
)
from tests.support.running.commands import call, objects, run

LATER = 1_900_000_000_000
WAITING = {"delay level 18": 8, "open transactions": 12, "timers": 7}  # of compact-timer-5.5.0


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    """A store whose first file of the log has all that waits, with a second one behind it."""
    store = unpack_kind("compact-timer-5.5.0", tmp_path)
    with MessageStore.append_to(store.path, store.conf) as writer:
        while writer.log_range()[1] < 1 << 20:
            writer.append({"topic": "orders", "queueId": 0, "body": b"x" * 60_000})
        writer.append({"topic": "orders", "queueId": 0, "body": b"last"})
    for path in Path(store.path, "config").glob("consumerOffset.json*"):
        path.unlink()  # what groups lose is tested elsewhere
    return store


def planned(store: GoldenStore) -> RetentionPlan:
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        return plan_retention(opened, keep_from=LATER)


def test_the_plan_counts_what_the_broker_has_not_read(store: GoldenStore) -> None:
    plan = planned(store)
    assert {loss.reader: loss.messages for loss in plan.unfinished} == WAITING
    assert plan.unread == sum(WAITING.values())


def test_what_was_popped_and_not_acknowledged_has_not_been_read(tmp_path: Path) -> None:
    """Its group has passed it. It comes again by its check point, if both are still there."""
    path = unpack_field("pop-stages-5.5.0", tmp_path, "state") / "s3-second"
    with MessageStore.open(path) as store:
        offsets = store.consumer_offsets()
        places = [
            store.log_offset_of(QueueId(row["topic"], row["queueId"]), row["queueOffset"])
            for row in store.table("pop").to_pylist()
            if row["state"] == "invisible"
            and row["queueOffset"] < offsets[row["consumerGroup"]][row["topic"]][row["queueId"]]
        ]
        assert places
        for before in (max(places) + 1, store.log_range()[1]):
            unread = {loss.reader: loss.messages for loss in unfinished_before(store, before)}
            assert unread["popped and not acknowledged"] == len(places)
        assert not unfinished_before(store, min(places))


def test_what_a_group_popped_that_has_no_offset_yet_has_not_been_read(tmp_path: Path) -> None:
    path = unpack_field("pop-stages-5.5.0", tmp_path, "state") / "s1-8acked-2changed"
    with MessageStore.open(path) as store:
        assert not store.consumer_offsets()
        left = sum(row["state"] in ("invisible", "due") for row in store.table("pop").to_pylist())
        unread = {
            loss.reader: loss.messages for loss in unfinished_before(store, store.log_range()[1])
        }
    assert unread["popped and not acknowledged"] == left > 0


def test_what_somebody_has_not_read_goes_only_if_asked_for(store: GoldenStore) -> None:
    before = store.fingerprint()
    with pytest.raises(InvalidArgumentError) as refused:
        apply_retention(planned(store))
    assert f"{sum(WAITING.values())} messages" in refused.value.reason
    assert store.fingerprint().keys() == before.keys()
    words = ("retention", store.path, "--keep-from", str(LATER))
    assert call(*words, "--apply").returncode == 2
    *lines, summary = objects(*words, "--apply", "--lose-unread")
    assert summary["unread"] == sum(WAITING.values())
    assert summary["freed"] == summary["bytes"] > 0
    assert {line["reader"]: line["messages"] for line in lines if "reader" in line} == WAITING


@pytest.mark.parametrize("name", ["scheduled", "verify"])
def test_what_expired_undelivered_is_found_afterwards(store: GoldenStore, name: str) -> None:
    apply_retention(planned(store), lose_unread=True)
    done = call(name, store.path)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "delay level 18: 8 messages expired" in said
    assert "timers: 7 messages expired" in said
    with MessageStore.open(store.path) as opened:
        codes = {finding.code: finding.count for finding in verify(opened).findings}
        assert list(delayed_messages(opened)) == []
    assert (codes["delay-behind"], codes["timer-behind"]) == (8, 7)


def test_the_report_says_so_too(store: GoldenStore, tmp_path: Path) -> None:
    apply_retention(planned(store), lose_unread=True)
    page = tmp_path / "page.html"
    run("report", store.path, "-o", str(page))
    assert "delay level 18: 8 messages expired" in page.read_text("utf-8")


def test_a_half_message_that_expired_open_is_found(tmp_path: Path) -> None:
    """tx-40-U is the only one that was open of those before the log."""
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    (found,) = (f for f in verified(store.path).findings if f.code == "transactions-behind")
    assert found.count == 1
    assert "open transactions: 1 message expired" in call("transactions", store.path).stderr


def test_stores_that_lost_nothing_say_nothing(golden: Golden) -> None:
    for name in ("clean-5.5.0", "proxy-5.5.0", "clean-4.9.7"):
        assert not [f for f in golden(name).verified().findings if f.code.endswith("-behind")]


def test_a_recovery_by_other_delays_does_not_hide_a_delivery(tmp_path: Path) -> None:
    """Its entries say that delivered messages are due later than the newest record."""
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    new = tmp_path / "new"
    conf = tmp_path / "slow.conf"
    conf.write_text(Path(store.conf).read_text("utf-8") + "messageDelayLevel=" + "2h " * 18 + "\n")
    run("rebuild", store.path, "--to", str(new), "--broker-conf", str(conf))
    for path in Path(new, "config").glob("delayOffset.json*"):
        path.unlink()
    rows = objects("scheduled", str(new), "--broker-conf", str(conf))
    delivered = {row["keys"] for row in rows if row["state"] == "delivered"}
    assert len(delivered) == 20
    assert json.dumps(sorted(delivered)).count("del-") == 20
