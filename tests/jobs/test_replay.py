"""The replay, from stores that real brokers wrote into stores and Parquet."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs.command import EXIT_OK, EXIT_REFUSED
from jobs.ledger import Ledger, LedgerError
from jobs.replay import main, run
from jobs.replay_rows import ORIGIN, ORIGIN_PREFIX
from jobs.replay_spec import ReplaySpec
from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.config import read_topic_configs
from rmq_store.errors import AccessError, InvalidArgumentError, UnknownQueueError
from rmq_store.layout import CRC_PROPERTY, SysFlag
from rmq_store.schema import arrow_schema
from rmq_store.writer import StoreWriter
from tests.conftest import GoldenStore, unpack, user_topic

Golden = Callable[[str], GoldenStore]
CHECKOUT = Path(__file__).parents[2]
NAME = "clean-5.5.0"


def spec(store: GoldenStore, **more: Any) -> ReplaySpec:
    conf = None if more.get("to_store") is None else store.conf
    known: dict[str, Any] = {"source": store.path, "broker_conf": store.conf, "target_conf": conf}
    known["broker_name"] = "broker-a"  # not every broker.conf has it
    return ReplaySpec(**{**known, **more})


def read_back(path: Path | str, *, system: bool = False) -> list[dict[str, Any]]:
    """The messages of the user topics of a store in the order of its log."""
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "tags", "keys", "uniqKey"]
    columns += ["flag", "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp", "reconsumeTimes"]
    columns += ["rawBody", "body", "properties"]
    with MessageStore.open(path) as store:
        batches = store.read_batches(columns=columns, include_system_topics=system)
        table = pa.Table.from_batches(batches, schema=arrow_schema(columns))
    for name in ("bornTimestamp", "storeTimestamp"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{**row, "properties": dict(row["properties"])} for row in rows]


def without(properties: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def origin_of(row: dict[str, Any]) -> dict[str, str]:
    return {
        name.removeprefix(ORIGIN_PREFIX): value
        for name, value in row["properties"].items()
        if name.startswith(ORIGIN_PREFIX)
    }


def expected_rows(store: GoldenStore, wanted: Callable[[dict[str, Any]], bool]) -> list[Any]:
    """What the truth says must arrive, in the order of the log."""
    rows = []
    for record in store.truth:
        if not user_topic(record) or not wanted(record):
            continue
        origin = {
            "BROKER": "broker-a",
            "TOPIC": record["topic"],
            "QUEUE_ID": str(record["queueId"]),
            "QUEUE_OFFSET": str(record["queueOffset"]),
            "LOG_OFFSET": str(record["commitLogOffset"]),
            "STORE_TIMESTAMP": str(record["storeTimestamp"]),
        }
        same = ("topic", "queueId", "tags", "keys", "uniqKey", "flag", "sysFlag", "bornTimestamp")
        rows.append(
            {name: record[name] for name in same}
            | {name: record[name] for name in ("bornHost", "reconsumeTimes")}
            | {"rawBody": base64.b64decode(record["body"] or "")}
            | {"properties": without(record["properties"], CRC_PROPERTY), "origin": origin}
        )
        rows[-1]["sysFlag"] &= ~SysFlag.STORE_HOST_V6  # the target's own host is IPv4
    return rows


def arrived(path: Path | str) -> list[Any]:
    """The same of a store that was replayed into."""
    rows = []
    for row in read_back(path):
        kept = without(row["properties"], *ORIGIN, CRC_PROPERTY)
        names = ("topic", "queueId", "tags", "keys", "uniqKey", "flag", "sysFlag", "bornTimestamp")
        rows.append(
            {name: row[name] for name in (*names, "bornHost", "reconsumeTimes", "rawBody")}
            | {"properties": kept, "origin": origin_of(row)}
        )
    return rows


def everything(record: dict[str, Any]) -> bool:
    return True


# --- into a store ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["clean-5.5.0", "clean-5.3.3", "clean-4.9.7", "direct-5.5.0", "crc-5.5.0", "lmq-5.3.3"],
)
def test_every_message_arrives_as_it_was_with_its_origin(
    spark: SparkSession, golden: Golden, tmp_path: Path, name: str
) -> None:
    store = golden(name)
    report = run(spark, spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000))
    expected = expected_rows(store, everything)
    assert arrived(tmp_path / "new") == expected
    assert report.ok, report.problems
    assert report.selected == report.read == report.matched == len(expected)
    assert report.written == {str(tmp_path / "new"): len(expected)}
    assert report.skipped == {}


def test_store_timestamps_are_new_or_kept(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    old = [r["storeTimestamp"] for r in store.truth if r["topic"] == "payments"]
    for keep in (False, True):
        target = str(tmp_path / f"keep-{keep}")
        run(spark, spec(store, to_store=target, topics=("payments",), keep_timestamps=keep))
        found = [row["storeTimestamp"] for row in read_back(target)]
        assert (found == old) is keep
        assert keep or min(found) > max(old)


def test_topic_and_queue_are_remapped(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    store = golden(NAME)
    run(
        spark,
        spec(
            store,
            to_store=str(tmp_path / "new"),
            topics=("orders", "payments"),
            topic_map={"orders": "orders-copy"},
            queue_map={("orders", 3): 0, (None, 1): 7},
        ),
    )
    truth = Counter((r["topic"], r["queueId"]) for r in store.truth)
    found = Counter((row["topic"], row["queueId"]) for row in read_back(tmp_path / "new"))
    assert found == {
        ("orders-copy", 0): truth["orders", 0] + truth["orders", 3],
        ("orders-copy", 2): truth["orders", 2],
        ("orders-copy", 7): truth["orders", 1],
        ("payments", 0): truth["payments", 0],
        ("payments", 7): truth["payments", 1],
    }


def test_a_replay_of_a_replay_names_the_store_it_read(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    run(spark, spec(store, to_store=first, topics=("retrying",)))
    run(spark, ReplaySpec(source=first, to_store=second, target_conf=store.conf))
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
    spark: SparkSession,
    golden: Golden,
    tmp_path: Path,
    selection: dict[str, Any],
    wanted: Callable[[dict[str, Any]], bool],
) -> None:
    store = golden(NAME)
    report = run(spark, spec(store, to_store=str(tmp_path / "new"), **selection))
    expected = expected_rows(store, wanted)
    assert expected
    assert arrived(tmp_path / "new") == expected
    assert report.ok
    assert report.matched == len(expected)
    assert report.selected - sum(report.skipped.values()) == report.matched


def test_a_time_range_and_a_unique_key(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    store = golden(NAME)
    orders = [record for record in store.truth if record["topic"] == "orders"]
    since, until = orders[200]["storeTimestamp"], orders[700]["storeTimestamp"]
    chosen = spec(
        store, to_store=str(tmp_path / "a"), topics=("orders",), since=str(since), until=str(until)
    )
    run(spark, chosen)
    in_time = [r for r in orders if since <= r["storeTimestamp"] < until]
    assert [row["uniqKey"] for row in read_back(tmp_path / "a")] == [r["uniqKey"] for r in in_time]
    key = orders[300]["uniqKey"]
    report = run(spark, spec(store, to_store=str(tmp_path / "b"), topics=("orders",), keys=(key,)))
    expected = [r["body"] for r in orders if key in (r["uniqKey"], *(r["keys"] or "").split())]
    assert [row["rawBody"] for row in read_back(tmp_path / "b")] == list(
        map(base64.b64decode, expected)
    )
    assert report.skipped == {"other keys": len(orders) - len(expected)}


def test_nothing_selected_makes_an_empty_store(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    chosen = spec(golden(NAME), topics=("orders",), since="9999999999999")
    report = run(spark, replace(chosen, to_store=str(tmp_path / "new")))
    assert report.ok
    assert (report.selected, report.matched) == (0, 0)
    assert read_back(tmp_path / "new") == []


def test_what_the_target_refuses_is_counted_and_the_rest_arrives(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    """A target for smaller bodies than the source's."""
    store = golden(NAME)
    conf = tmp_path / "small.conf"
    limit = 600
    conf.write_text(f"maxMessageSize={limit}\nmappedFileSizeCommitLog=262144\n")
    report = run(
        spark,
        spec(store, to_store=str(tmp_path / "new"), topics=("orders",), target_conf=str(conf)),
    )
    expected = expected_rows(
        store, lambda r: r["topic"] == "orders" and len(base64.b64decode(r["body"])) <= limit
    )
    assert arrived(tmp_path / "new") == expected
    refused = report.matched - len(expected)
    assert refused > 0
    assert report.skipped == {"refused by the target": refused}
    assert not report.ok
    assert "RMQSTORE_INVALID_MESSAGE" in report.problems[0]


def test_light_queues_are_filled_as_before(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden("lmq-5.3.3")
    both = spec(store, to_store=str(tmp_path / "new"), include_system_topics=True)
    assert run(spark, both).ok
    run(spark, replace(both, topics=("parent",), include_system_topics=False, append=True))

    def light(path: str) -> list[tuple[str, int, str]]:
        rows = [row for row in read_back(path, system=True) if row["topic"].startswith("%LMQ%")]
        return [(row["topic"], row["queueOffset"], row["uniqKey"]) for row in rows]

    before = light(store.path)
    ends = Counter(topic for topic, _, _ in before)
    again = [(topic, ends[topic] + offset, key) for topic, offset, key in before]
    assert before
    assert light(str(tmp_path / "new")) == before + again


def test_an_inner_batch_says_where_it_is_now(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    half = {QueueId("inner", 0): (60, 165)}
    run(spark, spec(store, to_store=str(tmp_path / "new"), offsets=half))
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


# --- into Parquet ---------------------------------------------------------------------------------


def test_parquet_has_the_rows_the_new_names_and_the_origin(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    target = str(tmp_path / "orders.parquet")
    report = run(
        spark,
        spec(
            store,
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
        for record in store.truth
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
    selected = sum(record["topic"] in ("orders", "documents") for record in store.truth)
    assert (report.selected, report.matched) == (selected, len(expected))
    assert report.skipped == {"other tags": selected - len(expected)}


def test_both_targets_at_once_hold_the_same(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    both = spec(store, to_store=str(tmp_path / "new"), to_parquet=str(tmp_path / "p"))
    report = run(spark, both)
    assert report.ok, report.problems
    assert set(report.written.values()) == {report.matched}
    rows = spark.read.parquet(str(tmp_path / "p")).select("properties").collect()
    in_parquet = {row.properties[ORIGIN_PREFIX + "LOG_OFFSET"] for row in rows}
    assert in_parquet == {origin_of(row)["LOG_OFFSET"] for row in read_back(tmp_path / "new")}


# --- never doubled --------------------------------------------------------------------------------


def test_a_target_that_is_there_is_not_touched(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    one = spec(store, to_store=str(tmp_path / "new"), topics=("retrying",))
    run(spark, one)
    before = read_back(tmp_path / "new")
    with pytest.raises(LedgerError, match="this very replay is in the target"):
        run(spark, one)
    other = spec(store, to_store=str(tmp_path / "new"), topics=("documents",))
    with pytest.raises(LedgerError, match="--append"):
        run(spark, other)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "file").touch()
    with pytest.raises(LedgerError, match="Parquet target is there already"):
        run(spark, spec(store, to_parquet=str(tmp_path / "p")))
    assert read_back(tmp_path / "new") == before


def test_appending_adds_behind_what_is_there(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    target = str(tmp_path / "new")
    run(spark, spec(store, to_store=target, topics=("retrying",)))
    before = read_back(target)
    report = run(spark, spec(store, to_store=target, topics=("documents",), append=True))
    after = read_back(target)
    assert after[: len(before)] == before
    assert {row["topic"] for row in after[len(before) :]} == {"documents"}
    assert [part.topic for part in report.target_queues] == ["documents"]
    with pytest.raises(LedgerError, match="this very replay"):
        run(spark, spec(store, to_store=target, topics=("documents",), append=True))


def test_a_stopped_replay_goes_on_where_it_was(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    asked = spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    stops = iter([False, True, False, False, True])
    first = run(spark, asked, lambda: next(stops))
    assert first.stopped_by == "it was asked to stop"
    assert not first.ok
    part = arrived(tmp_path / "new")
    assert 0 < len(part) < len(expected_rows(store, everything))
    second = run(spark, asked, lambda: next(stops))
    assert second.resumed
    assert second.stopped_by is not None
    last = run(spark, asked)
    assert arrived(tmp_path / "new") == expected_rows(store, everything)
    assert last.ok, last.problems
    assert last.run_id == first.run_id
    assert last.read == last.matched == len(expected_rows(store, everything))
    assert sum(part.stop - part.start for part in last.target_queues if part.topic == "orders") == (
        sum(record["topic"] == "orders" for record in store.truth)
    )


def test_an_unfinished_replay_is_not_mixed_with_another(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    store = golden(NAME)
    asked = spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    run(spark, asked, lambda: True)
    other = spec(store, to_store=str(tmp_path / "new"), topics=("orders",))
    with pytest.raises(LedgerError, match="asked for something else") as refused:
        run(spark, other)
    assert "topics=['orders']" in str(refused.value)
    report = run(spark, replace(other, restart=True))
    assert report.ok
    assert {row["topic"] for row in read_back(tmp_path / "new")} == {"orders"}


def test_a_source_that_breaks_in_the_middle_stops_it_cleanly(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A file goes missing; once it is back, the same command goes on."""
    store = unpack(NAME, tmp_path)
    segments = sorted((Path(store.path) / "commitlog").iterdir())
    aside = tmp_path / "aside"
    asked = spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000)

    def remove_once() -> bool:
        if not aside.exists():
            segments[2].rename(aside)
        return False

    broken = run(spark, asked, remove_once)
    assert broken.stopped_by is not None
    assert "RMQSTORE_MISSING_FILE" in broken.stopped_by
    aside.rename(segments[2])
    assert run(spark, asked).ok
    assert arrived(tmp_path / "new") == expected_rows(store, everything)


def test_a_target_that_could_not_be_written_is_gone_on_with_later(
    spark: SparkSession, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden(NAME)
    asked = spec(store, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    real, calls = StoreWriter._write_records, iter(range(100))

    def full_at_the_third(self: StoreWriter, *arguments: Any) -> Any:
        if next(calls) == 2:
            raise AccessError(tmp_path / "new", reason="writing: No space left on device")
        return real(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(StoreWriter, "_write_records", full_at_the_third)
        report = run(spark, asked)
    assert "No space left on device" in (report.stopped_by or "")
    assert run(spark, asked).ok
    assert arrived(tmp_path / "new") == expected_rows(store, everything)


# --- killed ---------------------------------------------------------------------------------------

KILLED_AT = """
import os, signal, sys
from jobs import ledger, replay
from pyspark.sql import DataFrameReader, DataFrameWriter

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

where, count = sys.argv[1], int(sys.argv[2])
owner, name = {"record": (ledger.Ledger, "record"), "append": (replay, "append_rows"),
               "arrived": (replay._Replay, "_arrived"),
               "parquet": (DataFrameWriter, "parquet"), "counting": (DataFrameReader, "parquet"),
               "done": (replay._Replay, "_report")}[where]
real = getattr(owner, name)
calls = [0]

def counted(*arguments, **named):
    calls[0] += 1
    if calls[0] > count:
        die()
    return real(*arguments, **named)

setattr(owner, name, counted)
sys.exit(replay.main(sys.argv[3:]))
"""


def command(asked: ReplaySpec) -> list[str]:
    words = [asked.source, "--wave-bytes", str(asked.wave_bytes), "--master", "local[2]"]
    for name, value in (
        ("--to-store", asked.to_store),
        ("--to-parquet", asked.to_parquet),
        ("--broker-conf", asked.broker_conf),
        ("--broker-name", asked.broker_name),
        ("--target-conf", asked.target_conf),
    ):
        words += [name, value] if value is not None else []
    return words


def go_on(spark: SparkSession, asked: ReplaySpec) -> str:
    """Run again; why it was refused, or nothing where all went well."""
    try:
        report = run(spark, asked)
    except LedgerError as refused:
        return str(refused)
    return "" if report.ok else str(report.problems)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("record", 0),
        ("append", 0),
        ("append", 2),
        ("record", 3),
        ("arrived", 0),
        ("parquet", 0),
        ("counting", 0),
        ("done", 0),
    ],
)
def test_killed_at_any_point_it_is_resumed_and_never_doubled(
    spark: SparkSession, golden: Golden, tmp_path: Path, where: str, count: int
) -> None:
    store = golden(NAME)
    target = str(tmp_path / "new")
    parquet = str(tmp_path / "p") if where in ("parquet", "counting") else None
    asked = spec(store, to_store=target, to_parquet=parquet, wave_bytes=100_000)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT, where, str(count), *command(asked)],
        cwd=CHECKOUT,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    refusal = go_on(spark, asked)
    if where == "done":
        assert "this very replay is in the target" in refusal
    else:
        assert refusal == ""
    if parquet is not None:
        assert spark.read.parquet(parquet).count() == len(expected_rows(store, everything))
    assert arrived(target) == expected_rows(store, everything)
    with Ledger(target) as ledger:
        assert ledger.unfinished is None


# --- the command ----------------------------------------------------------------------------------


def test_the_command_reports_and_says_how_it_went(
    spark: SparkSession, golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden(NAME)
    target, report = str(tmp_path / "new"), tmp_path / "report.json"
    words = [store.path, "--to-parquet", target, "--topic", "orders", "--broker-name", "broker-a"]
    assert main([*words, "--json", str(report)]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "all went well" in shown
    orders = sum(record["topic"] == "orders" for record in store.truth)
    saved = json.loads(report.read_text())
    assert (saved["ok"], saved["matched"], saved["written"]) == (True, orders, {target: orders})
    assert saved["source"]["store"] == store.path
    assert saved["source"]["log_range"][0] == 0
    assert set(saved["source"]["queues"]) == {"orders"}
    assert saved["source"]["options"]["topics"] == ["orders"]
    assert main(words) == EXIT_REFUSED
    assert "this very replay" in capsys.readouterr().err


def test_the_report_on_stdout_is_json_alone(
    spark: SparkSession, golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to-parquet", str(tmp_path / "p"), "--topic", "retrying"]
    assert main([*words, "--json", "-"]) == EXIT_OK
    printed = capsys.readouterr()
    assert json.loads(printed.out)["job"] == "replay"
    assert "all went well" in printed.err


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"topics": ("order",)}, UnknownQueueError, "Did you mean 'orders'"),
        ({"queues": (QueueId("orders", 9),)}, UnknownQueueError, "no queue 9"),
        (
            {"offsets": {QueueId("orders", 0): (0, 10**9)}},
            InvalidArgumentError,
            "offset 1000000000",
        ),
        ({"source": "/nowhere/at/all"}, StoreError, "/nowhere/at/all"),
    ],
)
def test_a_wrong_selection_is_refused_and_leaves_nothing(
    spark: SparkSession,
    golden: Golden,
    tmp_path: Path,
    more: dict[str, Any],
    kind: type[StoreError],
    message: str,
) -> None:
    with pytest.raises(kind, match=message):
        run(spark, spec(golden(NAME), to_store=str(tmp_path / "new"), **more))
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_is_none_is_refused_and_leaves_nothing(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="release"):
        run(spark, spec(golden(NAME), to_store=str(tmp_path / "new"), release="3.2.1"))
    assert list(tmp_path.iterdir()) == []


def test_it_runs_as_a_script_from_anywhere(golden: Golden, tmp_path: Path) -> None:
    script = str(CHECKOUT / "jobs" / "replay.py")
    words = [golden(NAME).path, "--to-parquet", "out", "--topic", "retrying"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, script, *words, "--master", "local[1]"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert "written to out" in done.stdout
