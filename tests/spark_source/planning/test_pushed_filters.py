"""What a filter spares, and that it lets the right rows through."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from rmq_store import QueueId
from rmq_store.errors import CorruptQueueError
from rmq_store.search.selection import CLOCK_SLACK_MS
from spark_source.source import RmqStoreReader, RmqStoreSource
from tests.support.golden import Golden, GoldenStore, Truth, messages_in, unpack, user_topic
from tests.support.spark.reads import left_over, rows_of
from tests.support.spark.selections import NAME, PLACE, options_of, places, truth_where


def filter_cases(store: GoldenStore) -> list[tuple[Filter, Callable[[Truth], bool], bool]]:
    """Each with what it lets through, and whether nothing else is read."""
    orders = [r for r in store.truth if r["topic"] == "orders"]
    one = next(r for r in orders[50:] if r["keys"] and r["tags"] and r["uniqKey"])
    moment = datetime.fromtimestamp(one["storeTimestamp"] / 1000, timezone.utc)
    queue_offset = one["queueOffset"]
    return [
        (EqualTo(("topic",), "orders"), lambda r: r["topic"] == "orders", True),
        (
            In(("topic",), ("orders", "payments")),
            lambda r: r["topic"] in ("orders", "payments"),
            True,
        ),
        (EqualTo(("topic",), "nothing"), lambda r: False, True),
        (EqualTo(("brokerName",), "store"), lambda r: True, True),
        (EqualTo(("brokerName",), "other"), lambda r: False, True),
        (EqualTo(("queueId",), 1), lambda r: r["queueId"] == 1, True),
        (GreaterThan(("queueId",), 1), lambda r: r["queueId"] > 1, True),
        (In(("queueId",), (0, 2)), lambda r: r["queueId"] in (0, 2), True),
        (LessThanOrEqual(("queueId",), 0), lambda r: r["queueId"] <= 0, True),
        (
            GreaterThanOrEqual(("queueOffset",), queue_offset),
            lambda r: r["queueOffset"] >= queue_offset,
            False,
        ),
        (LessThan(("queueOffset",), 5), lambda r: r["queueOffset"] < 5, False),
        (EqualTo(("queueOffset",), 5), lambda r: r["queueOffset"] == 5, False),
        (In(("queueOffset",), (3, 7)), lambda r: r["queueOffset"] in (3, 7), False),
        (EqualTo(("tags",), one["tags"]), lambda r: r["tags"] == one["tags"], True),
        (In(("tags",), (one["tags"], "none such")), lambda r: r["tags"] == one["tags"], True),
        # The option `tags` means something else by these.
        (EqualTo(("tags",), "*"), lambda r: r["tags"] == "*", False),
        (EqualTo(("tags",), ""), lambda r: r["tags"] == "", False),
        (EqualTo(("tags",), one["tags"] + " "), lambda r: False, False),
        (In(("tags",), ("*", one["tags"])), lambda r: r["tags"] == one["tags"], False),
        (EqualTo(("keys",), one["keys"]), lambda r: r["keys"] == one["keys"], False),
        (EqualTo(("uniqKey",), one["uniqKey"]), lambda r: r["uniqKey"] == one["uniqKey"], False),
        (
            EqualTo(("msgId",), one["offsetMsgId"]),
            lambda r: r["offsetMsgId"] == one["offsetMsgId"],
            False,
        ),
        (EqualTo(("msgId",), "rubbish"), lambda r: False, False),
        (
            GreaterThan(("storeTimestamp",), moment),
            lambda r: r["storeTimestamp"] > one["storeTimestamp"],
            False,
        ),
        (
            EqualTo(("storeTimestamp",), moment),
            lambda r: r["storeTimestamp"] == one["storeTimestamp"],
            False,
        ),
        (Not(EqualTo(("topic",), "orders")), lambda r: r["topic"] != "orders", False),
        (IsNotNull(("tags",)), lambda r: r["tags"] is not None, False),
        (EqualTo(("flag",), 0), lambda r: r["flag"] == 0, False),
        (EqualTo(("topic",), None), lambda r: False, False),
    ]


def test_a_filter_reads_what_it_lets_through_and_spark_applies_it_again(golden: Golden) -> None:
    store = golden(NAME)
    options = options_of(store, unwrapBatches="true", subscribePattern="(?!batch).*", **PLACE)
    there = {r["commitLogOffset"] for r in store.truth if user_topic(r)} & set(
        places(rows_of(options))
    )
    plain = [r for r in store.truth if r["commitLogOffset"] in there and messages_in(r) == 1]
    chosen = {r["commitLogOffset"] for r in plain}
    for one, wanted, exact in filter_cases(store):
        found = set(places(rows_of(options, [one]))) & chosen
        expected = {r["commitLogOffset"] for r in plain if wanted(r)}
        assert left_over(options, [one]) == [one]
        assert found == expected if exact else found >= expected, one


def test_a_filter_may_list_very_many_values(clean: GoldenStore) -> None:
    options = options_of(clean, topic="orders", **PLACE)
    every = rows_of(options)
    assert rows_of(options, [In(("queueOffset",), tuple(range(200_000)))]) == every
    keys = tuple(f"none-{number}" for number in range(900))
    assert len(rows_of(options, [In(("keys",), keys)])) < len(every) / 4  # what has no index yet


def test_a_load_warns_once_of_its_narrowed_plans(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    source = RmqStoreSource(options_of(golden(NAME), **PLACE))
    loaded = pickle.loads(pickle.dumps(source))
    for topic in ("orders", "orders", "payments"):
        list(loaded.reader(loaded.schema()).pushFilters([EqualTo(("topic",), topic)]))
    (said,) = (line for line in caplog.messages if "pushed down" in line)
    assert "orders" in said


def test_the_warning_about_a_narrowed_plan_names_the_filters(
    golden: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(golden(NAME), **PLACE)
    for topic in ("orders", "payments"):
        left_over(options, [EqualTo(("topic",), topic)])
    left_over(options, [EqualTo(("flag",), 0)])
    said = [line for line in caplog.messages if "pushed down" in line]
    assert [("orders" in line, "payments" in line) for line in said] == [
        *((True, False), (False, True))
    ]
    # Spark gives a narrowed plan to later queries of the same DataFrame.
    assert all("call load() for each query" in line for line in said)


def test_key_and_time_filters_spare_reading(clean: GoldenStore) -> None:
    one = [r for r in clean.truth if r["topic"] == "orders" and r["uniqKey"]][80]
    options = options_of(clean, **PLACE)
    every = len(rows_of(options))
    for name, value in (
        ("uniqKey", one["uniqKey"]),
        ("msgId", one["offsetMsgId"]),
        ("keys", one["keys"]),
    ):
        if value:
            assert 1 <= len(rows_of(options, [EqualTo((name,), value)])) < every / 4, name
    first = min(r["storeTimestamp"] for r in clean.truth)
    before = datetime.fromtimestamp((first - CLOCK_SLACK_MS) / 1000 - 1, timezone.utc)
    options["topic"] = "orders"
    assert rows_of(options, [LessThan(("storeTimestamp",), before)]) == []


def test_several_filters_are_all_heeded(clean: GoldenStore) -> None:
    one = next(r for r in clean.truth if r["topic"] == "orders" and r["tags"])
    filters: list[Filter] = [
        EqualTo(("topic",), "orders"),
        EqualTo(("tags",), one["tags"]),
        GreaterThanOrEqual(("queueOffset",), 4),
        LessThan(("queueOffset",), 40),
    ]
    options = options_of(clean, unwrapBatches="true", **PLACE)
    wanted = truth_where(
        clean,
        lambda r: (
            r["topic"] == "orders" and r["tags"] == one["tags"] and 4 <= r["queueOffset"] < 40
        ),
    )
    found = places(rows_of(options, filters))
    assert wanted <= found
    assert found.total() <= wanted.total() + 4 * 2 * 32  # of both ends of each queue


ORDERS = Path("consumequeue/orders/0")
FIRST, MIDDLE, LAST = (f"{base:020}" for base in (0, 2000, 4000))


@pytest.mark.parametrize(
    ("gone", "lost", "column"), [(MIDDLE, 120, "queueOffset"), (MIDDLE, 120, "msgId")]
)
def test_a_filter_for_a_message_that_its_queue_lost_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, lost: int, column: str
) -> None:
    """It is so without pushed filters, which read the whole queue; with them no entry matches."""
    monkeypatch.setattr("rmq_store.search.condition.CLOCK_SLACK_MS", 0)
    store = unpack(NAME, tmp_path)
    Path(store.path, ORDERS, gone).unlink()
    record = store.by_queue[QueueId("orders", 0)][lost]
    values = {"queueOffset": lost, "msgId": record["offsetMsgId"]}
    options = options_of(store, assign='{"orders": [0]}')
    with pytest.raises(CorruptQueueError, match="queue orders/0"):
        rows_of(options, [EqualTo((column,), values[column])])


def test_a_place_where_no_record_starts_makes_a_plan_no_larger(copy: GoldenStore) -> None:
    """Of several stores, one has the message, and others have something else at the log offset."""
    inside = copy.by_queue[QueueId("orders", 1)][50]["offsetMsgId"]
    for named, ranges in ((inside, 1), (f"{int(inside, 16) + 1:032X}", 0)):
        source = RmqStoreSource(options_of(copy, topic="orders"))
        reader = source.reader(source.schema())
        assert isinstance(reader, RmqStoreReader)
        list(reader.pushFilters([EqualTo(("msgId",), named)]))
        (plan,) = reader.scan.stores
        assert len(plan.ranges) == ranges


def test_a_filter_for_a_message_reads_past_the_losses_of_other_queues(copy: GoldenStore) -> None:
    Path(copy.path, ORDERS, LAST).unlink()
    record = copy.by_queue[QueueId("orders", 1)][50]
    found = rows_of(options_of(copy, topic="orders"), [EqualTo(("msgId",), record["offsetMsgId"])])
    assert record["commitLogOffset"] in {row["commitLogOffset"] for row in found}
