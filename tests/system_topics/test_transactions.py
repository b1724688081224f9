"""The table `transactions`, held against the truth of golden stores and the broker's own counts."""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.system_topics.transactions import transactions
from tests.support.damage import exchange
from tests.support.golden import Golden, GoldenStore, unpack, unpack_kind
from tests.system_topics.test_delayed_messages import TIMERS, WITH_LEVELS, counted_by_broker


def rows_of(store: GoldenStore) -> list[dict[str, Any]]:
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        return list(transactions(opened))


def expected_of(store: GoldenStore) -> dict[str, str]:
    """Transaction id -> its state, from the records as the broker's classes read them."""
    ended = {
        int(number)
        for r in store.truth
        if r["topic"] == "RMQ_SYS_TRANS_OP_HALF_TOPIC"
        for number in base64.b64decode(r["body"]).decode("ascii").split(",")
        if number
    }
    committed = {r["preparedTransactionOffset"] for r in store.truth if r["sysFlag"] & 0xC == 0x8}
    states: dict[str, str] = {}
    for r in store.truth:
        if r["topic"] != "RMQ_SYS_TRANS_HALF_TOPIC":
            continue
        key = r["properties"]["UNIQ_KEY"]
        if r["commitLogOffset"] in committed:
            states[key] = "committed"
        elif states.get(key) != "committed":
            before = states.get(key)
            states[key] = "rolledBack" if r["queueOffset"] in ended else before or "open"
    return states


@pytest.mark.parametrize("name", [*WITH_LEVELS, "proxy-5.5.0"])
def test_each_transaction_has_the_fate_that_its_records_show(name: str, golden: Golden) -> None:
    store = golden(name)
    found = rows_of(store)
    assert {row["uniqKey"]: row["state"] for row in found} == expected_of(store)
    assert len({row["transactionId"] for row in found}) == len(found)
    assert {row["state"] for row in found} >= {"committed", "rolledBack"}


@pytest.mark.parametrize("name", [*WITH_LEVELS, "proxy-5.5.0"])
def test_each_row_leads_to_its_committed_message_or_says_how_long_it_is_open(
    name: str, golden: Golden
) -> None:
    store = golden(name)
    newest = max(r["storeTimestamp"] for r in store.truth)
    messages = {
        r["properties"]["UNIQ_KEY"]: r
        for r in store.truth
        if r["sysFlag"] & 0xC == 0x8 and not r["topic"].startswith(("SCHEDULE_", "rmq_sys_"))
    }
    places = 0
    for row in rows_of(store):
        if row["state"] == "open":
            assert row["openMs"] == newest - row["sinceTimestamp"]
        if row["state"] == "committed" and row["uniqKey"] in messages:
            message = messages[row["uniqKey"]]
            place = (row["topic"], row["committedQueueId"], row["committedQueueOffset"])
            assert place == (message["topic"], message["queueId"], message["queueOffset"])
            assert row["committedTimestamp"] == message["storeTimestamp"]
            places += 1
    assert places


@pytest.mark.parametrize("name", ["clean-5.3.3", "clean-5.5.0", "proxy-5.5.0"])
def test_those_that_are_open_are_those_that_the_broker_counts(name: str, golden: Golden) -> None:
    store = golden(name)
    found = Counter(row["topic"] for row in rows_of(store) if row["state"] == "open")
    assert found == counted_by_broker(store, "transactionMetrics", "transactionCount")


def test_open_ones_of_another_broker(tmp_path: Path) -> None:
    store = unpack_kind(TIMERS, tmp_path)
    found = rows_of(store)
    assert Counter(row["state"] for row in found) == {"open": 12, "committed": 13, "rolledBack": 12}
    assert counted_by_broker(store, "transactionMetrics", "transactionCount") == {"payments": 12}
    assert all(row["openMs"] >= 0 for row in found if row["state"] == "open")


def test_a_transaction_that_was_checked_is_one_row(golden: Golden) -> None:
    store = golden("proxy-5.5.0")
    (checked,) = [row for row in rows_of(store) if row["checks"]]
    halves = [
        r
        for r in store.truth
        if r["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
        and r["properties"]["UNIQ_KEY"] == checked["uniqKey"]
    ]
    assert (checked["halfMessages"], checked["checks"]) == (len(halves), 1) == (2, 1)
    assert checked["sinceTimestamp"] == halves[0]["storeTimestamp"]
    assert checked["lastCheckTimestamp"] == halves[-1]["storeTimestamp"]
    assert checked["halfQueueOffset"] == halves[-1]["queueOffset"]


def test_committed_messages_prove_it_without_op_messages(tmp_path: Path) -> None:
    """As after a crash: a broker of 5.x writes op messages some seconds late. Here their queue is lost, and
    a broker asks for the others again."""
    store = unpack("clean-4.9.7", tmp_path)
    expected = expected_of(store)
    shutil.rmtree(Path(store.path, "consumequeue", "RMQ_SYS_TRANS_OP_HALF_TOPIC"))
    with store.open() as opened:
        found = {row["uniqKey"]: row["state"] for row in transactions(opened)}
    assert found == {key: s if s == "committed" else "open" for key, s in expected.items()}


def test_without_the_queues_of_the_topic_nobody_knows_how_it_ended(copy: GoldenStore) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", "payments"))
    found = Counter(row["state"] for row in rows_of(copy))
    assert found == {"open": 10, "ended": 20}


@pytest.mark.parametrize("index", ["there", "gone"])
@pytest.mark.parametrize("hurt", ["cut", "exchanged"])
def test_a_committed_message_that_its_queue_lost_was_not_rolled_back(
    copy: GoldenStore, hurt: str, index: str
) -> None:
    expected = expected_of(copy)
    *_, last = sorted(Path(copy.path, "consumequeue/payments/1").iterdir())
    if hurt == "cut":
        last.write_bytes(last.read_bytes()[:20])
    else:
        *_, other = sorted(Path(copy.path, "consumequeue/orders/1").iterdir())
        exchange(last, other)
    if index == "gone":
        shutil.rmtree(Path(copy.path, "index"))
    with copy.open() as opened:
        rows = list(transactions(opened, lambda error: None))
    found = {row["uniqKey"]: row["state"] for row in rows}
    in_queue = {row["uniqKey"] for row in rows if row["queueId"] == 1}
    for key, state in expected.items():
        could = {state}
        if key in in_queue and state == "committed" and index == "gone":
            could |= {"rolledBack"}  # nothing leads to a message that the queue has lost
        assert found[key] in could
    assert Counter(found.values())["committed"] > 5


def test_a_number_of_an_op_message_may_be_anything(tmp_path: Path) -> None:
    """No offset is as long as the first; what stands beside it counts."""
    store = unpack("clean-4.9.7", tmp_path)
    left = [row["uniqKey"] for row in rows_of(store) if row["state"] == "open"]
    (at,) = (
        record["queueOffset"]
        for record in store.truth
        if record["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC" and record["uniqKey"] == left[0]
    )
    op = {"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "queueId": 0, "tags": "d"}
    with MessageStore.append_to(store.path) as writer:
        writer.append(op | {"body": f"9999999999999999999,{at}".encode()})
    assert [row["uniqKey"] for row in rows_of(store) if row["state"] == "open"] == left[1:]


def test_without_an_index_the_queues_are_read(tmp_path: Path) -> None:
    store = unpack("clean-4.9.7", tmp_path)
    expected = expected_of(store)
    shutil.rmtree(Path(store.path, "index"))
    assert {row["uniqKey"]: row["state"] for row in rows_of(store)} == expected
