"""Times, keys and relative times of stores whose files lie hours apart."""

from __future__ import annotations

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
    LessThan,
    LessThanOrEqual,
)

from tests.support.golden import Golden, keys_of, unpack, user_topic
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import PLACE, options_of, places, truth_where

NAMES = ["hours-clean-5.5.0", "hours-crash-5.5.0", "days-crash-5.5.0"]
HOUR = 3_600_000
TIME = ("storeTimestamp",)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kind", [EqualTo, In, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
)
def test_a_filter_of_times_lets_all_of_its_rows_through(
    golden: Golden, name: str, kind: type[Filter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.search.condition._LEAST_STEP_OF_TIMES", 32)
    store = golden(name)
    stamps = [r["storeTimestamp"] for r in store.truth if r["topic"] == "orders"]
    asked = [stamps[len(stamps) * part // 4] for part in (1, 3)]
    moments = tuple(datetime.fromtimestamp(time / 1000, timezone.utc) for time in asked)
    given = kind(TIME, moments if kind is In else moments[0])  # type: ignore[call-arg]
    matches: Callable[[int], bool] = {
        EqualTo: lambda time: time == asked[0],
        In: lambda time: time in asked,
        GreaterThan: lambda time: time > asked[0],
        GreaterThanOrEqual: lambda time: time >= asked[0],
        LessThan: lambda time: time < asked[0],
        LessThanOrEqual: lambda time: time <= asked[0],
    }[kind]
    rows = rows_of(options_of(store, columns="commitLogOffset, storeTimestamp"), [given])
    wanted = truth_where(store, lambda r: user_topic(r) and matches(r["storeTimestamp"]))
    assert wanted <= places(rows)
    if kind is not In:  # what is between its values is read too
        assert len(rows) < wanted.total() + 800  # of minutes, by which a clock may have gone back


def test_hits_of_a_key_come_in_parts_of_the_size_that_is_asked_for(golden: Golden) -> None:
    store = golden(NAMES[0])
    options = options_of(store, keys="GROUP_7", maxRecordsPerPartition="4", **PLACE)
    wanted = truth_where(store, lambda r: "GROUP_7" in keys_of(r))
    assert wanted.total() > 8
    assert places(rows_of(options)) == wanted


def test_an_hour_ago_is_an_hour_before_the_newest_message_of_all_stores(tmp_path: Path) -> None:
    stores = [unpack(name, tmp_path) for name in NAMES]
    newest = max(record["storeTimestamp"] for store in stores for record in store.truth)
    options = {"path": str(tmp_path / "*" / "store"), "startingTimestamp": "-1h", **PLACE}
    options["unwrapBatches"] = "false"
    found = places(rows_of({name.lower(): value for name, value in options.items()}))
    wanted = [
        record["commitLogOffset"]
        for store in stores
        for record in store.truth
        if user_topic(record) and record["storeTimestamp"] >= newest - HOUR
    ]
    assert 100 < len(wanted) < len(stores[0].truth)
    assert sorted(found.elements()) == sorted(wanted)
