"""Options together: every pair that interacts, against rows worked out from the golden truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import DataLossError, InvalidArgumentError
from rmq_store.format.compression import SysFlag
from tests.support.damage import flip_in_log
from tests.support.expected import as_rows, expected
from tests.support.golden import Golden, GoldenStore, bodies_of, unpack
from tests.support.running.campaigns import few
from tests.support.spark.option_pairs import (
    EXPIRED,
    NAME,
    PAIRS,
    PLACE,
    UNQUEUED,
    Pair,
    a_key,
    a_tag,
    orders,
    read,
    rows,
    spark_options,
    time_of,
)
from tests.support.spark.reads import partitions_of

# Topics, queues, offsets, times, tags and keys.
SELECTING = PAIRS[:18]


@pytest.mark.parametrize("pair", few("pairs", PAIRS, *SELECTING), ids=lambda pair: pair.options)
def test_a_pair_selects_what_the_truth_says(golden: Golden, pair: Pair) -> None:
    store = golden(pair.store)
    given = pair.given(store)
    wanted = expected({"b": store}, given)
    assert rows(read(store, given)) == as_rows(wanted, PLACE), pair.why


@pytest.mark.parametrize(
    "pair",
    [p for p in PAIRS if not p.queues_only and "failOnDataLoss" not in p.options],
    ids=lambda pair: pair.options,
)
def test_the_same_from_the_log(golden: Golden, pair: Pair) -> None:
    """source=commitlog with every option that selects; what has expired the log does not know."""
    store = golden(pair.store)
    given = pair.given(store)
    wanted = expected({"b": store}, given)
    found = read(store, {**given, "source": "commitlog", "maxBytesPerPartition": "90k"})
    assert rows(found) == as_rows(wanted, PLACE), pair.why


@pytest.mark.parametrize("pair", UNQUEUED, ids=lambda pair: pair.options)
def test_records_that_no_queue_lists_are_selected_too(golden: Golden, pair: Pair) -> None:
    store = golden(pair.store)
    given = {**pair.given(store), "includeUnqueued": "true"}
    wanted = expected({"b": store}, given)
    assert any(one.offset is None for one in wanted)
    found = read(store, {**given, "source": "commitlog"})
    assert rows(found) == as_rows(wanted, PLACE), pair.why


def test_the_pairs_would_not_pass_on_nothing(golden: Golden) -> None:
    """Nearly all of them give some rows, and fewer than a read of everything."""
    sizes = [len(expected({"b": golden(p.store)}, p.given(golden(p.store)))) for p in PAIRS]
    assert sum(size > 0 for size in sizes) >= len(PAIRS) - 1
    every = len(expected({"b": golden(NAME)}, {}))
    assert sum(size < every for size in sizes) >= len(PAIRS) - 8


# --- projection -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("topic,queueOffset", "neither is shown, and the log has to be read for them all the same"),
        ("queueId,tags", "the other one is not shown"),
        ("commitLogOffset,storeSize", "columns of the queue, which need no log without the filter"),
    ],
)
@pytest.mark.parametrize("source", ["consumequeue", "commitlog"])
def test_columns_without_what_is_selected_by(
    clean: GoldenStore, columns: str, why: str, source: str
) -> None:
    """columns x tags, columns x keys."""
    keys = " || ".join(a_key(clean, "orders", n) for n in range(50))
    for given in ({"tags": a_tag(clean)}, {"keys": keys}, {"tags": a_tag(clean), "keys": keys}):
        selected = {**given, "subscribePattern": "(?!inner).*"}
        wanted = expected({"b": clean}, selected)
        assert wanted
        found = read(clean, {**selected, "source": source}, columns)
        assert rows(found) == as_rows(wanted, columns), why


def damaged_body(tmp_path: Path) -> tuple[GoldenStore, int]:
    """A store with one byte of one body changed, and the log offset of that record."""
    store = unpack(NAME, tmp_path)
    at = next(r["commitLogOffset"] for r in orders(store) if len(bodies_of(r)[1]) > 60)
    flip_in_log(store, at + 100)
    return store, at


def test_columns_decide_whether_damage_is_met_and_mode_what_becomes_of_it(tmp_path: Path) -> None:
    """columns x mode: a damaged body is damage where bodies are read, and a row else."""
    store, at = damaged_body(tmp_path)
    whole = expected({"b": store}, {"subscribe": "orders"})
    place = "topic,queueId,queueOffset,commitLogOffset"
    for mode in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
        found = read(store, {"subscribe": "orders", "mode": mode}, f"{place},tags")
        assert rows(found) == as_rows(whole, f"{place},tags")
    with pytest.raises(Exception, match="RMQSTORE_CORRUPT_RECORD"):
        read(store, {"subscribe": "orders"}, f"{place},body")
    sound = [one for one in whole if one.record["commitLogOffset"] != at]
    dropped = read(store, {"subscribe": "orders", "mode": "DROPMALFORMED"}, f"{place},body")
    assert rows([without(row, "body") for row in dropped]) == as_rows(sound, place)
    for columns in (f"{place},body", f"{place},body,corruptRecord", f"{place},corruptRecord"):
        kept = read(store, {"subscribe": "orders", "mode": "PERMISSIVE"}, columns)
        assert rows([without(row, "body", "corruptRecord") for row in kept]) == as_rows(
            whole, place
        )
        if "body" in columns:
            assert [r["commitLogOffset"] for r in kept if r["body"] is None] == [at]
        if columns.endswith("body,corruptRecord"):
            (reported,) = [row for row in kept if row["corruptRecord"] is not None]
            assert reported["commitLogOffset"] == at
            assert "RMQSTORE_CORRUPT_RECORD" in reported["corruptRecord"]


def without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def test_mode_and_tags_go_together(tmp_path: Path) -> None:
    """mode x tags, mode x keys: damage is met in what is selected, and not besides."""
    store, at = damaged_body(tmp_path)
    record = next(r for r in store.truth if r["commitLogOffset"] == at)
    columns = "commitLogOffset,body"
    other = next(t for t in ("paid", "shipped", "created") if t != record["tags"])
    for given, is_met in (
        ({"tags": other}, False),
        ({"startingOffsets": f'{{"orders": {{"{record["queueId"]}": -1}}}}'}, False),
        ({}, True),
    ):
        options = {"subscribe": "orders", **given}
        wanted = expected({"b": store}, options)
        kept = read(store, {**options, "mode": "DROPMALFORMED"}, columns)
        sound = Counter(one.record["commitLogOffset"] for one in wanted)
        if is_met:
            sound -= Counter([at])
        assert Counter(row["commitLogOffset"] for row in kept) == sound


@pytest.mark.parametrize("limit", [1, 1000, 10_000_000])
def test_raw_bodies_have_no_size_to_grow_to(clean: GoldenStore, limit: int) -> None:
    """rawBody x maxBodyBytes x mode: only a body that is decompressed can be too large."""
    given = {"subscribePattern": "(?!inner).*", "maxBodyBytes": str(limit)}
    wanted = expected({"b": clean}, given)
    large = {
        one.record["commitLogOffset"]
        for one in wanted
        if one.record["sysFlag"] & SysFlag.COMPRESSED and len(bodies_of(one.record)[0]) > limit
    }
    assert bool(large) == (limit < 10_000_000)
    raw = read(clean, given, "commitLogOffset,rawBody")
    assert {r["commitLogOffset"]: r["rawBody"] for r in raw} == {
        one.record["commitLogOffset"]: bodies_of(one.record)[1] for one in wanted
    }
    bodies = {
        one.record["commitLogOffset"]: bodies_of(one.record)[0]
        for one in wanted
        if one.record["commitLogOffset"] not in large
    }
    for columns in ("commitLogOffset,body", "commitLogOffset,body,rawBody"):
        if large:
            with pytest.raises(Exception, match="RMQSTORE_BODY"):
                read(clean, given, columns)
        dropped = read(clean, {**given, "mode": "DROPMALFORMED"}, columns)
        assert {r["commitLogOffset"]: r["body"] for r in dropped} == bodies
        kept = read(clean, {**given, "mode": "PERMISSIVE"}, f"{columns},corruptRecord")
        assert len(kept) == len(wanted)
        assert {r["commitLogOffset"] for r in kept if r["corruptRecord"]} == large


# --- splitting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", ["1", "6", "40"])
@pytest.mark.parametrize("most", ["30", "350"])
@pytest.mark.parametrize("split", ["log", "queue"])
def test_limits_of_partitions_hold_together(
    clean: GoldenStore, split: str, most: str, least: str
) -> None:
    """splitBy x maxRecordsPerPartition x minPartitions."""
    given = {
        "splitBy": split,
        "maxRecordsPerPartition": most,
        "minPartitions": least,
        "subscribe": "orders,payments",
    }
    columns = "topic,queueId,queueOffset"
    own = {"path": clean.path, "columns": columns}
    tables = partitions_of(spark_options({**own, **given}))
    wanted = expected({"b": clean}, given)
    found = [row for table in tables for row in table.to_pylist()]
    assert rows(found) == as_rows(wanted, columns)
    queues = {one.queue for one in wanted}
    if split == "log":
        assert max(table.num_rows for table in tables) <= int(most)
        assert len(tables) >= int(least)
        return
    assert len(tables) >= min(int(least), len(queues))
    homes = Counter[tuple[str, int]]()
    for table in tables:
        mine: dict[tuple[str, int], list[int]] = {}
        for row in table.to_pylist():
            mine.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
        homes.update(mine.keys())
        assert all(offsets == sorted(offsets) for offsets in mine.values())
        # A queue that is larger by itself is alone.
        assert table.num_rows <= int(most) or len(mine) == 1
    assert set(homes.values()) == {1}


# --- what is lost ---------------------------------------------------------------------------------


def test_an_offset_that_is_not_there_fails_as_what_it_is(golden: Golden) -> None:
    """failOnDataLoss x startingOffsets, x endingOffsets."""
    store = golden(EXPIRED)
    with store.open() as opened:
        queue = next(q for q in opened.queues("orders") if opened.min_offset(*q) > 0)
    number = str(queue.queue_id)
    first = min(one.offset or 0 for one in expected({"b": store}, {}) if one.queue == tuple(queue))
    assert first > 0
    early = json.dumps({"orders": {number: first - 1}})
    late, latest = (json.dumps({"orders": {number: offset}}) for offset in (10**9, -1))
    for given, kind in (
        ({"startingOffsets": early}, DataLossError),
        ({"endingOffsets": early}, DataLossError),
        ({"startingOffsets": late}, InvalidArgumentError),
        ({"startingOffsets": late, "endingOffsets": latest}, InvalidArgumentError),
        ({"endingOffsets": late}, InvalidArgumentError),
    ):
        asked = {"subscribe": "orders", **given}
        with pytest.raises(kind, match="is not in the queue"):
            read(store, asked)
        wanted = expected({"b": store}, asked)
        assert rows(read(store, {**asked, "failOnDataLoss": "false"})) == as_rows(wanted, PLACE)


def test_the_strategy_is_asked_for_queues_with_a_time_alone(clean: GoldenStore) -> None:
    """startingOffsetsByTimestamp x startingOffsetsByTimestampStrategy, x startingTimestamp."""
    late = 9999999999999
    one_queue = {
        "subscribe": "orders",
        "startingOffsetsByTimestamp": json.dumps({"orders": {"0": late}}),
    }
    with pytest.raises(InvalidArgumentError, match="queue 0 of topic 'orders' has no message"):
        read(clean, {**one_queue, "startingOffsetsByTimestampStrategy": "error"})
    # A time for all counts before, so the queue's own is not looked at.
    both = {**one_queue, "startingTimestamp": time_of(clean, 100)}
    found = read(clean, {**both, "startingOffsetsByTimestampStrategy": "error"})
    assert rows(found) == as_rows(expected({"b": clean}, both), PLACE)
    # The same end of the range, where there is no strategy: it is no error to stop at the end.
    ending = {"subscribe": "orders", "endingTimestamp": str(late)}
    found = read(clean, {**ending, "startingOffsetsByTimestampStrategy": "error"})
    assert rows(found) == as_rows(expected({"b": clean}, ending), PLACE)
