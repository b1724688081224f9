"""Filters together with options, pushed down or not: the same rows, as the golden truth has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, IsNotNull, LessThan, Not

from spark_source.source import RmqStoreReader, RmqStoreSource
from spark_source.table_reader import plan_rows
from tests.support.expected import Expected, expected
from tests.support.golden import Golden, GoldenStore
from tests.support.running.campaigns import some
from tests.support.spark.option_pairs import PAIRS, Pair, a_key, a_tag, orders, time_of
from tests.support.spark.reads import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "brokerName,topic,queueId,queueOffset,commitLogOffset,tags,keys,uniqKey,msgId,storeTimestamp"
)
PLACE = ("brokerName", "topic", "queueId", "queueOffset", "commitLogOffset")
AT_AN_END = 32  # entries that are read beside those of a range of queue offsets


class Case(NamedTuple):
    """Filters that hold together, and what they mean of a row."""

    name: str
    filters: list[Filter]
    lets_through: Callable[[Mapping[str, Any]], bool]


def cases(store: GoldenStore) -> list[Case]:
    """Filters of every kind that spares reading, alone and together."""
    mine = [r for r in orders(store) if r["uniqKey"]]
    one = mine[len(mine) // 2]
    moment = datetime.fromtimestamp(one["storeTimestamp"] / 1000, timezone.utc)
    since = GreaterThanOrEqual(("storeTimestamp",), moment)
    key, tag = one["keys"], one["tags"] or a_tag(store)
    uniq, message_id = one["uniqKey"], one["offsetMsgId"]
    return [
        Case("topic", [EqualTo(("topic",), "orders")], lambda r: r["topic"] == "orders"),
        Case("broker", [EqualTo(("brokerName",), "x")], lambda r: r["brokerName"] == "x"),
        Case(
            "queue and offset",
            [In(("queueId",), (0, 1)), GreaterThanOrEqual(("queueOffset",), 4)],
            lambda r: r["queueId"] in (0, 1) and (r["queueOffset"] or 0) >= 4,
        ),
        Case(
            "offset range",
            [GreaterThanOrEqual(("queueOffset",), 2), LessThan(("queueOffset",), 9)],
            lambda r: 2 <= (r["queueOffset"] or 0) < 9,
        ),
        Case("tags", [In(("tags",), (tag, "none"))], lambda r: r["tags"] in (tag, "none")),
        Case("no tag", [Not(IsNotNull(("tags",)))], lambda r: r["tags"] is None),
        Case("keys", [EqualTo(("keys",), key)], lambda r: key is not None and r["keys"] == key),
        Case("uniqKey", [EqualTo(("uniqKey",), uniq)], lambda r: r["uniqKey"] == uniq),
        Case("msgId", [EqualTo(("msgId",), message_id)], lambda r: r["msgId"] == message_id),
        Case("time", [since], lambda r: r["storeTimestamp"] >= moment),
        Case(
            "topic, tag and time",
            [
                EqualTo(("topic",), "orders"),
                EqualTo(("tags",), tag),
                LessThan(("storeTimestamp",), moment),
            ],
            lambda r: r["topic"] == "orders" and r["tags"] == tag and r["storeTimestamp"] < moment,
        ),
    ]


def as_row(one: Expected) -> dict[str, Any]:
    row = {name: one.column(name) for name in PLACE}
    time = datetime.fromtimestamp(one.record["storeTimestamp"] / 1000, timezone.utc)
    words = {"tags": one.tags, "keys": one.keys, "uniqKey": one.uniq_key}
    return {**row, **words, "msgId": one.record["offsetMsgId"], "storeTimestamp": time}


def of_place(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in PLACE) for row in rows)


def check(store: GoldenStore, given: Mapping[str, str], why: str) -> None:
    """What comes with each filter, and what Spark then leaves of it, is what the truth says."""
    own = {"path": store.path, "brokerName": "b", "columns": COLUMNS}
    options = {name.lower(): value for name, value in {**own, **given}.items()}
    wanted = [as_row(one) for one in expected({"b": store}, given)]
    # Switched off: Spark filters what the options alone give.
    without = rows_of(options)
    for case in cases(store):
        left = [row for row in wanted if case.lets_through(row)]
        pushed = rows_of(options, case.filters)
        assert of_place([r for r in pushed if case.lets_through(r)]) == of_place(left), (case, why)
        assert of_place([r for r in without if case.lets_through(r)]) == of_place(left), (case, why)
        assert of_place(pushed) <= of_place(without), (case, why)


OFTEN = (*PAIRS[:3], *PAIRS[16:18])
SELDOM = [pair for pair in PAIRS if pair not in OFTEN]


@pytest.mark.campaign
@pytest.mark.parametrize("pair", [*OFTEN, *some("filters", SELDOM)], ids=lambda pair: pair.options)
def test_filters_and_options_narrow_together(golden: Golden, pair: Pair) -> None:
    store = golden(pair.store)
    check(store, pair.given(store), pair.why)


@pytest.mark.parametrize("unwrap", ["true", "false"])
@pytest.mark.parametrize("first", [0, 4, 9, 10, 15])
def test_an_offset_filter_may_cut_a_batch(clean: GoldenStore, unwrap: str, first: int) -> None:
    """unwrapBatches x filter on queueOffset."""
    given = {"subscribe": "inner", "unwrapBatches": unwrap}
    filters: list[Filter] = [
        GreaterThanOrEqual(("queueOffset",), first),
        LessThan(("queueOffset",), first + 3),
    ]
    options = {"path": clean.path, "brokername": "b", "columns": COLUMNS}
    options |= {name.lower(): value for name, value in given.items()}
    found = [row for row in rows_of(options, filters) if first <= row["queueOffset"] < first + 3]
    wanted = [as_row(one) for one in expected({"b": clean}, given)]
    wanted = [row for row in wanted if first <= row["queueOffset"] < first + 3]
    assert of_place(found) == of_place(wanted)


def test_the_plan_shows_what_filters_leave(clean: GoldenStore) -> None:
    """table=plan x filters: the entries that are listed are those of the truth, and few others."""
    given = {"subscribePattern": "(?!inner).*", "maxBytesPerPartition": "60k"}
    options = {name.lower(): value for name, value in {**given, "path": clean.path}.items()}
    chosen: list[tuple[list[Filter], Callable[[dict[str, Any]], bool]]] = [
        ([], lambda r: True),
        ([EqualTo(("topic",), "orders")], lambda r: r["topic"] == "orders"),
        (
            [In(("queueId",), (1, 2)), LessThan(("queueOffset",), 30)],
            lambda r: r["queueId"] in (1, 2) and r["queueOffset"] < 30,
        ),
        (
            [EqualTo(("topic",), "payments"), GreaterThanOrEqual(("queueOffset",), 11)],
            lambda r: r["topic"] == "payments" and r["queueOffset"] >= 11,
        ),
        ([EqualTo(("topic",), "nothing")], lambda r: False),
    ]
    for filters, lets_through in chosen:
        source = RmqStoreSource(options)
        reader = source.reader(source.schema())
        assert isinstance(reader, RmqStoreReader)
        if filters:
            list(reader.pushFilters(filters))
        listed = Counter(
            (topic, int(queue), offset)
            for row in plan_rows(reader.scan)
            for topic, queues in json.loads(row["ranges"] or "{}").items()
            for queue, ranges in queues.items()
            for start, stop in ranges
            for offset in range(start, stop)
        )
        wanted = [as_row(one) for one in expected({"store": clean}, given)]
        chosen_by_filters = Counter(
            (r["topic"], r["queueId"], r["queueOffset"]) for r in wanted if lets_through(r)
        )
        assert chosen_by_filters <= listed
        assert listed.total() <= chosen_by_filters.total() + AT_AN_END * len(
            {(topic, queue) for topic, queue, _ in chosen_by_filters}
        )


@pytest.mark.campaign
@pytest.mark.parametrize("switch", ["true", "false"])
def test_spark_gives_the_same_with_the_switch_on_and_off(
    clean: GoldenStore, spark: SparkSession, switch: str
) -> None:
    tag = a_tag(clean)
    moment = time_of(clean, 400)
    chosen: list[tuple[dict[str, str], str, Callable[[Mapping[str, Any]], bool]]] = [
        (
            {"subscribe": "orders", "startingTimestamp": moment},
            f"tags = '{tag}' AND queueOffset >= 7",
            lambda r: r["tags"] == tag and r["queueOffset"] >= 7,
        ),
        (
            {"tags": f"{tag} || paid", "keys": a_key(clean, "orders", 3)},
            "topic IN ('orders', 'payments') AND brokerName = 'b'",
            lambda r: r["topic"] in ("orders", "payments"),
        ),
        (
            {"subscribePattern": "(inner|orders)", "maxRecordsPerPartition": "100"},
            "topic = 'inner' AND queueOffset BETWEEN 3 AND 12",
            lambda r: r["topic"] == "inner" and 3 <= r["queueOffset"] <= 12,
        ),
        (
            {"source": "commitlog", "subscribe": "orders"},
            f"queueId = 1 AND tags <> '{tag}'",
            lambda r: r["queueId"] == 1 and r["tags"] not in (None, tag),
        ),
    ]
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", switch)
    try:
        for given, where, lets_through in chosen:
            options = {"brokerName": "b", "columns": COLUMNS, **given}
            frame = spark.read.format("rmqstore").options(**options).load(clean.path)
            found = [row.asDict() for row in frame.where(where).collect()]
            wanted = [as_row(one) for one in expected({"b": clean}, given)]
            assert of_place(found) == of_place([r for r in wanted if lets_through(r)]), where
            assert found
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(before))
