"""The replay of stores that real brokers wrote: what arrives in a store and in Parquet."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore, QueueId
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import InvalidArgumentError
from rmq_store.verify import verify
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_question import ORIGIN_PREFIX
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.log_records import rename
from tests.support.running.engines import ON_BOTH
from tests.support.spark.replays import (
    NAME,
    arrived,
    everything,
    expected_rows,
    origin_of,
    read_back,
    spec,
)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "name", ["clean-5.5.0", "clean-5.3.3", "clean-4.9.7", "direct-5.5.0", "crc-5.5.0", "lmq-5.3.3"]
)
@ON_BOTH
def test_every_message_arrives_as_it_was_with_its_origin(
    engine: SparkSession | None, golden: Golden, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    report = run(engine, spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000))
    expected = expected_rows(store, everything)
    assert arrived(tmp_path / "new") == expected
    assert report.ok, report.problems
    assert report.selected == report.read == report.matched == len(expected)
    assert report.written == {str(tmp_path / "new"): len(expected)}
    assert report.skipped == {}


@pytest.mark.parametrize("name", ["pay.ment", "a+b:c  d", "%RETRY%g"])
def test_names_that_no_new_message_may_have_arrive(tmp_path: Path, name: str) -> None:
    store = unpack(NAME, tmp_path)
    count = rename(store, b"payments", name.encode())
    queues = Path(store.path) / "consumequeue"
    (queues / "payments").rename(queues / name)
    asked = spec(store, topics=(name,), to_store=str(tmp_path / "new"), dry_run=True)
    assert run(None, asked).ok
    report = run(None, replace(asked, dry_run=False))
    assert report.ok, report.problems
    written = read_back(tmp_path / "new", system=True)
    assert Counter(row["topic"] for row in written) == {name: count}
    with pytest.raises(InvalidArgumentError, match="forbidden character"):
        run(None, replace(asked, to_store=str(tmp_path / "b"), topic_map={name: "new.name"}))


def test_the_default_of_the_size_limit_is_for_new_messages(tmp_path: Path) -> None:
    body = bytes(5 << 20)  # a broker with maxMessageSize=8388608 took it; the default is 4 MiB
    config = {"maxMessageSize": 8 << 20, "mappedFileSizeCommitLog": 16 << 20}
    with MessageStore.create(tmp_path / "old", config) as writer:
        writer.append({"topic": "large", "queueId": 0, "body": body})
    report = run(None, ReplaySpec(str(tmp_path / "old"), to_store=str(tmp_path / "new")))
    assert report.ok, report.problems
    assert [row["body"] == body for row in read_back(tmp_path / "new")] == [True]


def test_store_timestamps_are_new_or_kept(clean: GoldenStore, tmp_path: Path) -> None:
    old = [r["storeTimestamp"] for r in clean.truth if r["topic"] == "payments"]
    for keep in (False, True):
        target = str(tmp_path / f"keep-{keep}")
        run(None, spec(clean, to_store=target, topics=("payments",), keep_timestamps=keep))
        found = [row["storeTimestamp"] for row in read_back(target)]
        assert (found == old) is keep
        assert keep or min(found) > max(old)


def test_kept_store_timestamps_that_go_back_are_said(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = spec(golden(NAME), topics=("payments",), keep_timestamps=True)
    asked = replace(asked, to_store=str(tmp_path / "new"))
    run(None, asked)
    assert "store time" not in caplog.text
    run(None, replace(asked, append=True, since="2020-01-01"))
    assert "store times go back within" in caplog.text


def test_topic_and_queue_are_remapped(clean: GoldenStore, tmp_path: Path) -> None:
    run(
        None,
        spec(
            clean,
            to_store=str(tmp_path / "new"),
            topics=("orders", "payments"),
            topic_map={"orders": "orders-copy"},
            queue_map={("orders", 3): 0, (None, 1): 7, (None, 3): 8},
        ),
    )
    truth = Counter((r["topic"], r["queueId"]) for r in clean.truth)
    found = Counter((row["topic"], row["queueId"]) for row in read_back(tmp_path / "new"))
    assert found == {
        ("orders-copy", 0): truth["orders", 0] + truth["orders", 3],
        ("orders-copy", 2): truth["orders", 2],
        ("orders-copy", 7): truth["orders", 1],
        ("payments", 0): truth["payments", 0],
        ("payments", 7): truth["payments", 1],
    }


def test_a_replay_of_a_replay_names_the_store_it_read(clean: GoldenStore, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    run(None, spec(clean, to_store=first, topics=("retrying",)))
    run(None, ReplaySpec(source=first, to_store=second, target_conf=clean.conf))
    middle = read_back(first)
    for row, before in zip(read_back(second), middle, strict=True):
        assert origin_of(row)["BROKER"] == "first"
        assert origin_of(row)["LOG_OFFSET"] == str(before["commitLogOffset"])
        assert row["body"] == before["body"]


SELECTIONS: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    ({"topics": ("orders", "documents")}, lambda r: r["topic"] in ("orders", "documents")),
    ({"queues": (QueueId("orders", 2),)}, lambda r: (r["topic"], r["queueId"]) == ("orders", 2)),
    (
        {"offsets": {QueueId("orders", 2): (5, 50)}},
        lambda r: (r["topic"], r["queueId"]) == ("orders", 2) and 5 <= r["queueOffset"] < 50,
    ),
    (
        {"topics": ("orders",), "tags": ("FB", "shipped")},
        lambda r: r["topic"] == "orders" and r["tags"] in ("FB", "shipped"),
    ),
    (
        {"topics": ("orders", "payments"), "keys": ("CUSTOMER_8", "ORDER_33")},
        lambda r: (
            r["topic"] in ("orders", "payments")
            and not {"CUSTOMER_8", "ORDER_33"}.isdisjoint((r["keys"] or "").split(" "))
        ),
    ),
]


@pytest.mark.parametrize(("selection", "wanted"), SELECTIONS)
def test_a_selection_is_what_the_truth_says(
    clean: GoldenStore,
    tmp_path: Path,
    selection: dict[str, Any],
    wanted: Callable[[dict[str, Any]], bool],
) -> None:
    report = run(None, spec(clean, to_store=str(tmp_path / "new"), **selection))
    expected = expected_rows(clean, wanted)
    assert expected
    assert arrived(tmp_path / "new") == expected
    assert report.ok
    assert report.matched == len(expected)
    assert report.selected - sum(report.skipped.values()) == report.matched


def test_a_time_range_and_a_unique_key(clean: GoldenStore, tmp_path: Path) -> None:
    orders = [record for record in clean.truth if record["topic"] == "orders"]
    since, until = orders[200]["storeTimestamp"], orders[700]["storeTimestamp"]
    chosen = spec(
        clean, to_store=str(tmp_path / "a"), topics=("orders",), since=str(since), until=str(until)
    )
    run(None, chosen)
    in_time = [r for r in orders if since <= r["storeTimestamp"] < until]
    assert [row["uniqKey"] for row in read_back(tmp_path / "a")] == [r["uniqKey"] for r in in_time]
    key = orders[300]["uniqKey"]
    report = run(None, spec(clean, to_store=str(tmp_path / "b"), topics=("orders",), keys=(key,)))
    expected = [r["body"] for r in orders if key in (r["uniqKey"], *(r["keys"] or "").split())]
    assert [row["rawBody"] for row in read_back(tmp_path / "b")] == list(
        map(base64.b64decode, expected)
    )
    assert report.skipped == {"other keys": len(orders) - len(expected)}


def test_nothing_selected_makes_an_empty_store(golden: Golden, tmp_path: Path) -> None:
    chosen = spec(golden(NAME), topics=("orders",), since="9999999999999")
    report = run(None, replace(chosen, to_store=str(tmp_path / "new")))
    assert report.ok
    assert (report.selected, report.matched) == (0, 0)
    assert read_back(tmp_path / "new") == []


def test_what_the_target_refuses_is_counted_and_the_rest_arrives(
    clean: GoldenStore, tmp_path: Path
) -> None:
    """A target for smaller bodies than the source's."""
    conf = tmp_path / "small.conf"
    limit = 600
    conf.write_text(f"maxMessageSize={limit}\nmappedFileSizeCommitLog=262144\n")
    report = run(
        None, spec(clean, to_store=str(tmp_path / "new"), topics=("orders",), target_conf=str(conf))
    )
    expected = expected_rows(
        clean, lambda r: r["topic"] == "orders" and len(base64.b64decode(r["body"])) <= limit
    )
    assert arrived(tmp_path / "new") == expected
    refused = report.matched - len(expected)
    assert refused > 0
    assert report.skipped == {"refused by the target": refused}
    assert not report.ok
    assert "RMQSTORE_INVALID_MESSAGE" in report.problems[0]


def test_light_queues_are_filled_as_before(golden: Golden, tmp_path: Path) -> None:
    store = golden("lmq-5.3.3")
    both = spec(store, to_store=str(tmp_path / "new"), include_system_topics=True)
    assert run(None, both).ok
    run(None, replace(both, topics=("parent",), include_system_topics=False, append=True))

    def light(path: str) -> list[tuple[str, int, str]]:
        rows = [row for row in read_back(path, system=True) if row["topic"].startswith("%LMQ%")]
        return [(row["topic"], row["queueOffset"], row["uniqKey"]) for row in rows]

    before = light(store.path)
    ends = Counter(topic for topic, _, _ in before)
    again = [(topic, ends[topic] + offset, key) for topic, offset, key in before]
    assert before
    assert light(str(tmp_path / "new")) == before + again


@pytest.mark.parametrize(
    "named",
    [
        {"topics": ("%LMQ%all",)},
        {"queues": (QueueId("%LMQ%all", 0),)},
        {"offsets": {QueueId("%LMQ%all", 0): (0, 5)}},
    ],
)
def test_a_light_queue_that_is_named_is_replayed(
    golden: Golden, tmp_path: Path, named: dict[str, Any]
) -> None:
    store = golden("lmq-5.3.3")
    report = run(None, spec(store, to_parquet=str(tmp_path / "new"), **named))
    with store.open() as opened:
        listed = opened.max_offset("%LMQ%all", 0)
    assert listed > 5
    assert report.matched == (5 if "offsets" in named else listed)


def test_an_inner_batch_says_where_it_is_now(clean: GoldenStore, tmp_path: Path) -> None:
    half = {QueueId("inner", 0): (60, 165)}
    run(None, spec(clean, to_store=str(tmp_path / "new"), offsets=half))
    base = 0
    rows = read_back(tmp_path / "new")
    for row in rows:
        properties = row["properties"]
        assert row["queueOffset"] == base
        assert int(properties.get("INNER_BASE", base)) == base
        assert int(properties[ORIGIN_PREFIX + "QUEUE_OFFSET"]) == base + 60
        base += int(properties.get("INNER_NUM", 1))
    assert base == 105
    topics = read_topic_configs(tmp_path / "new")
    assert topics["inner"]["attributes"]["queue.type"] == "BatchCQ"


@pytest.mark.parametrize("into", ["to_store", "to_parquet"])
@pytest.mark.parametrize(
    "chosen",
    [
        {"tags": ("Ea",)},
        {"keys": ("ORDER_1404",)},
        {"keys": ("ORDER_1404",), "by_index": True},
        {"offsets": {QueueId("inner", 0): (3, 10)}},
    ],
    ids=["tags", "keys", "index", "offsets"],
)
@pytest.mark.parametrize("name", ["clean-5.3.3", "clean-5.5.0"])
def test_messages_are_chosen_inside_of_inner_batches(
    golden: Golden, tmp_path: Path, name: str, chosen: dict[str, Any], into: str
) -> None:
    store, target = golden(name), tmp_path / "new"
    how = {} if "offsets" in chosen else {"topics": ("inner", "orders")}
    report = run(None, spec(store, **{into: str(target)}, **how, **chosen))
    start, stop = chosen.get("offsets", {}).get(QueueId("inner", 0), (None, None))
    columns = ("queueId", "queueOffset", "tags", "keys", "body")
    with store.open() as source:
        rows = source.read_batches(
            ["inner"] if "offsets" in chosen else ["inner", "orders"],
            start=start,
            stop=stop,
            tags=chosen.get("tags"),
            keys=chosen.get("keys"),
            columns=["topic", *columns],
            unwrap_batches=True,
        ).read_all()
    wanted = sorted(
        tuple(row.values())
        for row in rows.to_pylist()
        if "offsets" not in chosen or not row["queueId"]
    )
    assert report.ok, report.problems
    assert report.written == {str(target): len(wanted)}
    if into == "to_parquet":
        new = pq.read_table(target).to_pylist()
        assert sorted((row["topic"], *(row[c] for c in columns)) for row in new) == wanted
        return
    new = read_back(target)
    places = (
        (
            p["properties"][ORIGIN_PREFIX + "QUEUE_ID"],
            p["properties"][ORIGIN_PREFIX + "QUEUE_OFFSET"],
        )
        for p in new
    )
    assert (
        sorted(
            (row["topic"], int(q), int(at), row["tags"], row["keys"], row["body"])
            for row, (q, at) in zip(new, places, strict=True)
        )
        == wanted
    )
    with MessageStore.open(target) as written:
        assert verify(written).nothing_wrong


def test_whole_topics_keep_their_inner_batches(clean: GoldenStore, tmp_path: Path) -> None:
    records = [record for record in clean.truth if record["topic"] == "inner"]
    report = run(None, spec(clean, to_store=str(tmp_path / "new"), topics=("inner",)))
    assert report.written == {str(tmp_path / "new"): len(records)}
    assert any("INNER_NUM" in row["properties"] for row in read_back(tmp_path / "new"))


# --- into Parquet ---------------------------------------------------------------------------------


def test_parquet_has_the_rows_the_new_names_and_the_origin(
    spark: SparkSession, clean: GoldenStore, tmp_path: Path
) -> None:
    target = str(tmp_path / "orders.parquet")
    report = run(
        spark,
        spec(
            clean,
            to_parquet=target,
            topics=("orders", "documents"),
            topic_map={"orders": "copy"},
            tags=("FB", "cancelled"),
        ),
    )
    frame = spark.read.parquet(target)
    found = {row.commitLogOffset: row for row in frame.collect()}
    expected = [
        record
        for record in clean.truth
        if record["topic"] in ("orders", "documents") and record["tags"] in ("FB", "cancelled")
    ]
    assert sorted(found) == [record["commitLogOffset"] for record in expected]
    for record in expected:
        row = found[record["commitLogOffset"]]
        assert row.topic == {"orders": "copy"}.get(record["topic"], record["topic"])
        body = record["bodyDecompressed"] if record["sysFlag"] & 1 else record["body"]
        assert row.body == base64.b64decode(body)
        assert row.properties[ORIGIN_PREFIX + "TOPIC"] == record["topic"]
        assert record["properties"].items() <= row.properties.items()
    assert report.ok
    assert report.written == {target: len(expected)}
    selected = sum(record["topic"] in ("orders", "documents") for record in clean.truth)
    assert (report.selected, report.matched) == (selected, len(expected))
    assert report.skipped == {"other tags": selected - len(expected)}


def test_both_targets_at_once_hold_the_same(
    spark: SparkSession, clean: GoldenStore, tmp_path: Path
) -> None:
    both = spec(clean, to_store=str(tmp_path / "new"), to_parquet=str(tmp_path / "p"))
    report = run(spark, both)
    assert report.ok, report.problems
    assert set(report.written.values()) == {report.matched}
    rows = spark.read.parquet(str(tmp_path / "p")).select("properties").collect()
    in_parquet = {row.properties[ORIGIN_PREFIX + "LOG_OFFSET"] for row in rows}
    assert in_parquet == {origin_of(row)["LOG_OFFSET"] for row in read_back(tmp_path / "new")}
