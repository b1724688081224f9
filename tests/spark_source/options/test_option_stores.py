"""Options of several stores together, against rows worked out from the golden truth of both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In

from rmq_store.errors import InvalidArgumentError, NotAStoreError
from tests.support.expected import Expected, as_rows, expected
from tests.support.golden import Golden, GoldenStore
from tests.support.spark.option_pairs import NAME, a_key, a_tag, time_of
from tests.support.spark.reads import rows_of

PLACE = "brokerName,topic,queueId,queueOffset,commitLogOffset"
OLDER = "clean-5.4.0"


@pytest.fixture
def two(golden: Golden) -> dict[str, GoldenStore]:
    """Two brokers' stores."""
    return {"broker-a": golden(NAME), "broker-b": golden(OLDER)}


def read(
    stores: dict[str, GoldenStore],
    given: dict[str, str],
    filters: list[Filter] | None = None,
    **more: str,
) -> Counter[tuple[Any, ...]]:
    paths = {broker: store.path for broker, store in stores.items()}
    options = {"stores": json.dumps({**paths, **more}), "columns": PLACE, **given}
    found = rows_of({name.lower(): value for name, value in options.items()}, filters or [])
    return Counter(tuple(row.values()) for row in found)


BY_BROKER = json.dumps({"orders": {"broker-a": {"0": 7, "1": 30}, "broker-b": {"0": 3}}})
BY_QUEUE = json.dumps({"orders": {"0": 9, "2": 20}})


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("all of both", {}),
        ("offsets of one queue on both", {"subscribe": "orders", "startingOffsets": BY_QUEUE}),
        ("and of one broker's", {"subscribe": "orders", "startingOffsets": BY_BROKER}),
        (
            "one end by broker and the other by queue",
            {"subscribe": "orders", "startingOffsets": BY_BROKER, "endingOffsets": BY_QUEUE},
        ),
        (
            "queues of each broker, and offsets",
            {
                "assign": json.dumps({"orders": {"broker-a": [0, 1], "broker-b": [0]}}),
                "startingOffsets": BY_BROKER,
            },
        ),
        ("queues of one broker alone", {"assign": json.dumps({"orders": {"broker-b": [0, 2]}})}),
        ("splitBy and the least number", {"splitBy": "queue", "minPartitions": "30"}),
        ("from the log", {"source": "commitlog", "subscribe": "orders,payments"}),
        (
            "from the log, with offsets by broker",
            {"source": "commitlog", "subscribe": "orders", "startingOffsets": BY_BROKER},
        ),
    ],
)
def test_options_by_broker_select_what_the_truth_says(
    two: dict[str, GoldenStore], why: str, given: dict[str, str]
) -> None:
    wanted = expected(two, given)
    assert {one.broker for one in wanted} <= {"broker-a", "broker-b"}
    assert wanted
    assert read(two, given) == as_rows(wanted, PLACE), why


def test_words_and_times_select_in_both(two: dict[str, GoldenStore]) -> None:
    """stores x tags, keys, startingTimestamp, startingOffsetsByTimestamp by broker."""
    keys = [a_key(store, "orders", n) for store in two.values() for n in range(10)]
    late = {b: int(time_of(store, 150)) for b, store in two.items()}
    by_time = {"orders": {broker: {"0": time} for broker, time in late.items()}}
    for given in (
        {"tags": a_tag(two["broker-a"])},
        {"keys": " || ".join(keys)},
        {"startingTimestamp": str(max(late.values()))},
        {"subscribe": "orders", "startingOffsetsByTimestamp": json.dumps(by_time)},
        {
            "subscribe": "orders",
            "startingOffsetsByTimestamp": json.dumps(by_time),
            "startingOffsets": BY_BROKER,
        },
    ):
        wanted = expected(two, given)
        assert wanted
        assert read(two, given) == as_rows(wanted, PLACE), given


@pytest.mark.parametrize("unavailable", ["skip", "fail"])
def test_offsets_by_broker_filters_and_a_store_that_is_gone(
    two: dict[str, GoldenStore], tmp_path: Path, unavailable: str
) -> None:
    """stores x startingOffsets by broker x filter on brokerName x unavailableStores."""
    given = {"subscribe": "orders", "startingOffsets": BY_BROKER, "unavailableStores": unavailable}
    gone = {"broker-c": str(tmp_path / "gone")}
    if unavailable == "fail":
        with pytest.raises(NotAStoreError, match="gone"):
            read(two, given, None, **gone)
        gone = {}
    chosen: list[tuple[list[Filter], Callable[[Expected], bool]]] = [
        ([], lambda one: True),
        ([EqualTo(("brokerName",), "broker-b")], lambda one: one.broker == "broker-b"),
        ([In(("brokerName",), ("broker-a", "broker-c"))], lambda one: one.broker == "broker-a"),
        ([EqualTo(("brokerName",), "broker-c")], lambda one: False),
        (
            [EqualTo(("brokerName",), "broker-a"), GreaterThanOrEqual(("queueOffset",), 40)],
            lambda one: one.broker == "broker-a" and (one.offset or 0) >= 40,
        ),
    ]
    for filters, lets_through in chosen:
        wanted = [one for one in expected(two, given) if lets_through(one)]
        found = read(two, given, filters, **gone)
        assert as_rows(wanted, PLACE) <= found  # Spark applies the filter to them again
        assert {row[0] for row in found} == {one.broker for one in wanted}


def test_offsets_of_a_broker_that_is_left_out_are_refused(
    two: dict[str, GoldenStore], tmp_path: Path
) -> None:
    """unavailableStores=skip x startingOffsets: they would be heeded by nobody, silently."""
    given = {
        "subscribe": "orders",
        "unavailableStores": "skip",
        "startingOffsets": '{"orders": {"broker-c": {"0": 1}}}',
    }
    with pytest.raises(InvalidArgumentError, match="broker-c"):
        read(two, given, None, **{"broker-c": str(tmp_path / "gone")})
