"""The export of stores that real brokers wrote, against their truth."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore, QueueId, QueueSlice, StoreError
from rmq_store.errors import InvalidArgumentError, TargetExistsError
from rmq_store.files.journal import JournalError
from rmqstore_jobs import replay
from rmqstore_jobs.export import ExportSpec, main, run
from rmqstore_jobs.exporting.delta import DeltaUnavailableError
from rmqstore_jobs.exporting.export_files import folder_of
from rmqstore_jobs.exporting.manifest import CSV, JSONL, PARQUET, Manifest, ranges_without
from rmqstore_jobs.running.job_command import EXIT_NOT_ALL, EXIT_OK, EXIT_REFUSED
from tests.support.damage import flip_in_log, log_file_at
from tests.support.exported import files_in, rows_in, rows_of
from tests.support.golden import (
    Golden,
    GoldenStore,
    Truth,
    bodies_of,
    messages_in,
    unpack,
    user_topic,
)
from tests.support.running.campaigns import some
from tests.support.running.child import killed

STORED_AT = 56  # storeTimestamp in a record with an IPv4 born host
IN_FILES = pytest.mark.parametrize("table", [PARQUET, CSV, JSONL])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def spec(store: GoldenStore, target: Path, table: str = PARQUET, **options: str) -> ExportSpec:
    options = {"brokerConf": store.conf, "brokerName": "broker-a", **options}
    return ExportSpec(
        store=store.path, target=str(target), options=options, format=table, wave_bytes=400_000
    )


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def expected_of(store: GoldenStore, wanted: Callable[[Truth], bool]) -> Counter[Any]:
    """Place, body and day (UTC) of the messages; of an inner batch the record's body is not looked at."""
    found: Counter[Any] = Counter()
    for record in store.truth:
        if user_topic(record) and wanted(record):
            at = datetime.fromtimestamp(record["storeTimestamp"] / 1000, timezone.utc)
            members = messages_in(record)
            for i in range(members):
                body = None if members > 1 else bodies_of(record)[0]
                where = (record["topic"], record["queueId"], record["queueOffset"] + i)
                found[where, body, f"{at:%Y-%m-%d}"] += 1
    return found


def found_in(target: Path, inner: set[str] = frozenset({"inner"})) -> Counter[Any]:  # type: ignore[assignment]
    return Counter(
        (place(row), None if row["topic"] in inner else row["body"], row["day"])
        for row in rows_in(target)
    )


def orders(record: Truth) -> bool:
    return bool(record["topic"] == "orders")


# --- what arrives ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "table"),
    [("local", PARQUET), ("local", CSV), ("local", JSONL), ("spark", PARQUET)],
    indirect=["engine"],
)
def test_every_message_arrives_once_and_the_manifest_says_so(
    engine: SparkSession | None, clean: GoldenStore, target: Path, table: str
) -> None:
    before = clean.fingerprint()
    answer = run(engine, spec(clean, target, table))
    found = Counter(place(row) for row in rows_in(target))
    expected = Counter(one[0] for one in expected_of(clean, lambda record: True).elements())
    assert found == expected
    assert answer.ok, answer.problems
    assert answer.numbers["messages added"] == expected.total()
    assert sum(row["messages"] for row in answer.tables["added"]) == expected.total()
    assert clean.fingerprint() == before
    ends = {
        queue: max(place[2] for place in expected if place[:2] == queue) + 1
        for queue in {p[:2] for p in expected}
    }
    assert {
        (topic, queue): span[1]
        for topic, queues in answer.source.queues.items()
        for queue, span in queues.items()
    } == ends
    assert all(s[0] == 0 for queues in answer.source.queues.values() for s in queues.values())
    with Manifest(target) as manifest:
        waves = list(manifest.waves())
        assert len(waves) == manifest.exported.number > 1
        assert manifest.exported.rows == sum(wave.rows for wave in waves) == expected.total()
        for file in (file for wave in waves for file in wave.files):
            raw = (target / file.path).read_bytes()
            assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file.size, file.sha256)
            assert len(rows_of(target / file.path)) == file.rows
            assert file.path.endswith(f".{table}")


@pytest.mark.parametrize(
    "name", ["direct-5.5.0", pytest.param("clean-4.9.7", marks=pytest.mark.campaign)]
)
def test_bodies_and_days_are_those_of_the_truth(
    spark: SparkSession, golden: Golden, target: Path, name: str
) -> None:
    store = golden(name)
    run(spark, spec(store, target, columns="topic,queueId,queueOffset,body"))
    by_spark = spark.read.parquet(str(target))
    assert by_spark.count() == len(rows_in(target))
    expected = expected_of(store, lambda record: True)
    # Spark writes some characters of a topic's name as % and two digits of hex.
    assert by_spark.select("topic").distinct().count() == len({p[0][0] for p in expected})
    assert Counter((b, d) for _, b, d in found_in(target).elements()) == Counter(
        (b, d) for _, b, d in expected.elements()
    )


@IN_FILES
@pytest.mark.parametrize("stored", [2**58, 253_402_300_800_000, -(2**62)])
def test_a_message_with_a_time_of_no_date_has_no_day(
    copy: GoldenStore, target: Path, table: str, stored: int
) -> None:
    wanted = [record for record in copy.truth if orders(record)]
    at = wanted[5]["commitLogOffset"]
    file = log_file_at(copy, at)
    raw = bytearray(file.read_bytes())
    struct.pack_into(">q", raw, at - int(file.name) + STORED_AT, stored)
    file.write_bytes(raw)
    answer = run(None, spec(copy, target, table, topic="orders"))
    assert answer.ok, answer.problems
    assert answer.numbers["messages added"] == len(wanted)
    with Manifest(target) as manifest:
        files = [file for wave in manifest.waves() for file in wave.files]
    (undated,) = (file for file in files if folder_of(("orders", None)) in file.path)
    assert undated.rows == 1
    if table != PARQUET:
        assert f"{stored} ms" in (target / undated.path).read_text("utf-8")


@IN_FILES
def test_twice_adds_nothing_and_what_is_new_is_added_alone(
    clean: GoldenStore, target: Path, table: str
) -> None:
    half = '{"orders": {"0": 100, "1": 7}}'
    first = run(None, spec(clean, target, table, topic="orders", endingOffsets=half))
    files = {path: path.stat().st_mtime_ns for path in files_in(target)}
    (target / "_manifest" / "journal.json").unlink()  # a process killed before it was written
    second = run(None, spec(clean, target, table, topic="orders"))
    third = run(None, spec(clean, target, table, topic="orders"))
    expected = expected_of(clean, orders)
    assert found_in(target) == expected
    assert first.numbers["messages added"] > 0
    assert second.numbers["messages added"] == expected.total() - first.numbers["messages added"]
    assert third.numbers["messages added"] == 0
    assert third.ok
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_what_a_broker_added_meanwhile_is_added(copy: GoldenStore, target: Path) -> None:
    run(None, spec(copy, target, topic="payments"))
    before = len(rows_in(target))
    with MessageStore.append_to(copy.path, copy.conf) as writer:
        for i in range(5):
            writer.append({"topic": "payments", "queueId": 1, "body": b"later %d" % i})
    answer = run(None, spec(copy, target, topic="payments"))
    assert answer.numbers["messages added"] == 5
    rows = rows_in(target)
    assert len(rows) == before + 5
    assert len({place(row) for row in rows}) == len(rows)
    assert {row["body"] for row in rows} >= {b"later %d" % i for i in range(5)}


def test_checksums_of_the_source_and_the_report_as_json(clean: GoldenStore, tmp_path: Path) -> None:
    words = [clean.path, "--to", str(tmp_path / "out"), "--topic", "payments"]
    words += ["--broker-conf", clean.conf, "--checksums", "--report", str(tmp_path / "report.json")]
    assert main([*words, "--since", "09:23"]) == EXIT_OK
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    source = report["source"]
    assert source["options"]["topic"] == "payments"
    assert source["options"]["startingTimestamp"] == "2026-11-21T09:23:00.000Z"
    assert source["queues"]["payments"]["0"][0] == 0
    files = {one["path"]: one["sha256"] for one in source["files"]}
    on_disk = [path for path in Path(clean.path).rglob("*") if path.is_file()]
    assert files == {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in on_disk}


# --- damage ---------------------------------------------------------------------------------------


@IN_FILES
@pytest.mark.parametrize(
    ("options", "arrived", "reported"),
    [
        (("--mode", "DROPMALFORMED"), 417, "418 messages were selected, and 417 arrived"),
        (
            ("--mode", "DROPMALFORMED", "--no-unwrap-batches"),
            417,
            "places that were left out because of damage: 1",
        ),
        (
            ("--mode", "PERMISSIVE", "--columns", "body"),
            418,
            "rows about damage (see their corruptRecord): 1",
        ),
    ],
)
def test_damage_that_is_left_out_is_a_problem(
    damaged: GoldenStore,
    target: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    arrived: int,
    reported: str,
    table: str,
) -> None:
    words = [damaged.path, "--to", str(target), "--topic", "payments"]
    words += ["--broker-conf", damaged.conf]
    words += [*options, "--format", table, "--report", str(tmp_path / "report.json")]
    assert main(words) == EXIT_NOT_ALL
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert any(reported in problem for problem in report["problems"]), report["problems"]
    rows = rows_in(target)
    assert len(rows) == report["numbers"]["messagesAdded"] == arrived
    about = [row for row in rows if row.get("corruptRecord")]
    assert len(about) == (1 if "PERMISSIVE" in options else 0)
    assert all("RMQSTORE_" in row["corruptRecord"] for row in about)


@pytest.mark.parametrize(
    ("lost", "places"), [("payments", 2 * 4), ("orders/0/00000000000000000000", 2)]
)
def test_verify_queue_tells_once_what_the_files_of_a_queue_have_lost(
    copy: GoldenStore, tmp_path: Path, lost: str, places: int
) -> None:
    """For each queue and file of the log, however many waves there are. Nothing of it has expired: the log
    has the messages."""
    path = Path(copy.path, "consumequeue", lost)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    problems = []
    for number, wave in enumerate(("8g", "100k")):
        words = [copy.path, "--to", str(tmp_path / f"out-{number}"), "--broker-conf", copy.conf]
        words += ["--verify-queue", "--mode", "DROPMALFORMED", "--wave-bytes", wave]
        report = tmp_path / f"{number}.json"
        assert main([*words, "--report", str(report)]) == EXIT_NOT_ALL
        problems.append(json.loads(report.read_text("utf-8"))["problems"])
    of_one_wave, of_many_waves = problems
    assert of_many_waves == of_one_wave
    (problem,) = of_one_wave
    assert problem.startswith(f"places that were left out because of damage: {places},")


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
@pytest.mark.parametrize("lost", ["consumequeue/orders/0/00000000000000002000", None])
def test_later_runs_say_what_an_earlier_one_left_out(
    damaged: GoldenStore, clean: GoldenStore, target: Path, mode: str, lost: str | None
) -> None:
    """The store may have been repaired since: its messages do not come into the target."""
    if lost is not None:
        shutil.rmtree(damaged.path)
        shutil.copytree(clean.path, damaged.path)
        (Path(damaged.path) / lost).unlink()
    asked = spec(damaged, target, mode=mode)
    assert not run(None, asked).ok
    count, queue = (1, "payments/") if lost is None else (100, "orders/0")
    for path in (damaged.path, clean.path):
        again = run(None, replace(asked, store=path))
        assert not again.ok
        assert again.numbers["messages added"] == 0
        (problem,) = again.problems
        assert f"because of damage: {count} of {queue}" in problem
        assert "in wave " in problem
        assert "export into a new one" in problem


def test_a_manifest_without_what_was_left_out(damaged: GoldenStore, target: Path) -> None:
    """An earlier release did not note it, but its ranges and rows say it."""
    asked = spec(damaged, target, mode="DROPMALFORMED")
    run(None, asked)
    for file in (target / "_manifest").iterdir():
        content = json.loads(file.read_text("utf-8"))
        for part in (content, *(content.get("done") or ())):
            part.pop("left_out", None)
        file.write_text(json.dumps(content), "utf-8")
    (problem,) = run(None, asked).problems
    assert "because of damage: 1, of queues that the manifest does not name" in problem


def test_messages_that_expired_before_they_were_exported_are_a_problem(tmp_path: Path) -> None:
    """Also where nothing is left in their queue; and only what the options asked for."""
    store = unpack("clean-5.2.0", tmp_path)
    orders = [r for r in store.truth if r["topic"] == "orders" and r["queueId"] == 0]
    part = {"topic": "orders", "endingOffsets": '{"orders": {"0": 50}}'}
    until = {"topic": "orders", "endingTimestamp": str(orders[50]["storeTimestamp"])}
    assert run(None, spec(store, tmp_path / "part", **part)).ok
    assert run(None, spec(store, tmp_path / "until", **until)).ok
    min((Path(store.path) / "commitlog").iterdir()).unlink()  # as retention does
    with store.open() as left:
        assert left.min_offset("orders", 0) == left.max_offset("orders", 0) == len(orders)
    later = run(None, spec(store, tmp_path / "part", topic="orders"))
    expired = f"queue 0 of orders: offsets 50 to {len(orders)} expired before they were exported"
    assert later.problems == (expired,)
    assert not later.ok
    assert run(None, spec(store, tmp_path / "until", **until)).ok


def test_damage_that_stops_an_export_or_a_replay_is_not_to_be_tried_again(
    damaged: GoldenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [damaged.path, "--topic", "payments"]
    assert main([*words, "--to", str(tmp_path / "out")]) == EXIT_REFUSED
    reported = " ".join(capsys.readouterr().err.split())
    assert "--mode DROPMALFORMED" in reported
    assert "to continue" not in reported
    for target in ("--to", "--to-parquet"):
        assert replay.main([*words, target, str(tmp_path / target)]) == EXIT_REFUSED
        stopped = " ".join(capsys.readouterr().err.split())
        assert "rmqstore salvage" in stopped
        assert re.search(r"The target has (\d+ messages|a part) from before the damage; ", stopped)
        assert f"to start again, delete {tmp_path / target} and " in stopped
        other = [damaged.path, "--topic", "orders", target, str(tmp_path / target)]
        assert replay.main(other) == EXIT_REFUSED
        refused = " ".join(capsys.readouterr().err.split())
        assert "unless damage of its source stopped it, or, to start again, delete" in refused


def test_damage_of_queues_is_to_be_rebuilt(
    copy: GoldenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is whole, so that nothing is lost, and a rebuilt store keeps groups and offsets."""
    (Path(copy.path) / "consumequeue/orders/0/00000000000000002000").unlink()
    for target, job in (("a", main), ("b", replay.main)):
        assert job([copy.path, "--to", str(tmp_path / target)]) == EXIT_REFUSED
        stopped = " ".join(capsys.readouterr().err.split())
        assert "from a rebuilt store (`rmqstore rebuild STORE --to NEW`" in stopped
        assert "salvage" not in stopped


# --- what is refused ------------------------------------------------------------------------------


def test_a_wrong_option_is_refused_with_the_nearest(
    clean: GoldenStore, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [clean.path, "--to", str(target), "--sinc", "1"]
    assert main(words) == EXIT_REFUSED
    assert "--since" in capsys.readouterr().err
    assert not (target).exists()


@pytest.mark.parametrize(
    ("wrong", "right"), [("cvs", "csv"), ("json", "jsonl"), ("Delta", "delta")]
)
def test_a_wrong_format_is_refused_with_the_nearest(
    clean: GoldenStore, target: Path, capsys: pytest.CaptureFixture[str], wrong: str, right: str
) -> None:
    words = [clean.path, "--to", str(target), "--format", wrong]
    assert main(words) == EXIT_REFUSED
    assert "is not one of 'parquet', 'csv', 'jsonl', 'delta'" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match=f"Did you mean {right!r}"):
        run(None, spec(clean, target, wrong))
    assert not (target).exists()


@IN_FILES
def test_another_format_than_that_of_the_target_is_refused(
    clean: GoldenStore, target: Path, table: str
) -> None:
    run(None, spec(clean, target, table, topic="payments"))
    held = sorted(target.rglob("*"))
    for other in {PARQUET, CSV, JSONL} - {table}:
        with pytest.raises(match=f"Give --format {table}"):
            run(None, spec(clean, target, other, topic="payments"))
    assert sorted(target.rglob("*")) == held


def test_other_columns_other_stores_and_folders_of_others_are_refused(
    spark: SparkSession, golden: Golden, clean: GoldenStore, target: Path, tmp_path: Path
) -> None:
    run(None, spec(clean, target, topic="orders"))
    held = sorted(target.rglob("*"))
    with pytest.raises(match="other options"):
        run(None, spec(clean, target, topic="orders", tags="FB"))
    with pytest.raises(match="other messages than those exported"):
        run(None, spec(golden("clean-4.9.7"), target, topic="orders"))
    with pytest.raises(TargetExistsError, match="No export wrote it"):
        run(None, spec(clean, tmp_path, topic="orders"))
    with pytest.raises(InvalidArgumentError, match="must be separate folders"):
        run(None, spec(clean, Path(clean.path) / "out"))
    with pytest.raises(StoreError, match="payments"):
        run(None, spec(clean, target, topic="paymnts"))
    with pytest.raises(DeltaUnavailableError, match="DeltaSparkSessionExtension"):
        run(spark, ExportSpec(clean.path, str(tmp_path / "delta"), format="delta"))
    with pytest.raises(InvalidArgumentError, match="--engine spark"):
        run(None, ExportSpec(clean.path, str(tmp_path / "delta"), format="delta"))
    assert sorted(target.rglob("*")) == held
    assert not (tmp_path / "delta").exists()


def test_other_messages_at_the_places_of_those_exported_are_refused(tmp_path: Path) -> None:
    """A copy of a running broker had messages that a crash lost; the next ones are as long as they were."""
    copy, crashed, target = tmp_path / "copy", tmp_path / "crashed", tmp_path / "target"
    message = {"topic": "orders", "queueId": 0}
    with MessageStore.create(copy, {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        writer.append({**message, "body": b"kept-1"})
    shutil.copytree(copy, crashed)
    for store, bodies in ((copy, [b"lost-2"]), (crashed, [b"kept-2", b"kept-3"])):
        with MessageStore.append_to(store) as writer:
            for body in bodies:
                writer.append({**message, "body": body})
    named = {"brokerName": "broker-a"}
    run(None, ExportSpec(str(copy), str(target), options=named))
    with pytest.raises(JournalError, match=r"a record with digest \w+ at log"):
        run(None, ExportSpec(str(crashed), str(target), options=named))
    assert len(rows_in(target)) == 2
    run(None, ExportSpec(str(crashed), str(target), options={"brokerName": "broker-b"}))
    assert len(rows_in(target)) == 5


def test_folders_of_any_topic_are_those_that_spark_writes_and_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An odd topic neither leaves the target nor comes back under another name."""
    topics = ["%RETRY%billing", "a=b", "..", ".", "a/b", "x:y?", "[z]", "tab\t", "ü {w}^"]
    days = spark.createDataFrame(
        [(t, "2026-11-21", 1) for t in topics], "topic string, day string, n int"
    )
    days.write.partitionBy("topic", "day").parquet(str(tmp_path / "theirs"))
    theirs = {str(p.parent.relative_to(tmp_path / "theirs")) for p in tmp_path.rglob("*.parquet")}
    assert theirs == {folder_of((topic, date(2026, 11, 21))) for topic in topics}


def test_delta_with_verify_queue_is_refused(
    clean: GoldenStore, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [clean.path, "--to", str(target), "--format", "delta", "--verify-queue"]
    assert main(words) == EXIT_REFUSED
    assert "--verify verifies the store first" in capsys.readouterr().err
    assert not target.exists()


def test_a_uri_is_refused_and_does_not_become_a_folder(
    clean: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([clean.path, "--to", "s3://bucket/orders"]) == EXIT_REFUSED
    assert list(tmp_path.iterdir()) == []


def test_delta_without_its_package_is_refused_before_spark_starts(
    clean: GoldenStore, target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "delta", None)
    words = [clean.path, "--to", str(target), "--format", "delta"]
    assert main(words) == EXIT_REFUSED
    assert "pip install 'rmqstore[delta]'" in capsys.readouterr().err
    assert not (target).exists()


# --- cut short, and run again ---------------------------------------------------------------------

KILLER = """
import os, signal, sys
from rmqstore_jobs import export
from rmqstore_jobs.exporting import manifest
from rmqstore_jobs.exporting import export_files
where, count, *words = sys.argv[1:]
owner, name = {{"write": (export_files.WaveFiles, "merge"), "commit": (manifest.Manifest, "commit"),
               "move": (manifest.Manifest, "_move"), "rename": (manifest.Path, "rename")}}[where]
real, left = getattr(owner, name), [int(count)]
def killing(*args, **named):
    if where != "rename" or "_staging" in str(args[0]) and "_staging" not in str(args[1]):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
    return real(*args, **named)
setattr(owner, name, killing)
sys.exit(export.main(words))
"""


@pytest.mark.campaign
@IN_FILES
@pytest.mark.parametrize(
    ("where", "count"),
    some("exports", [("write", 0), ("commit", 1), ("move", 1), ("rename", 3)], 4),
)
def test_killed_and_run_again_nothing_is_lost_or_doubled(
    clean: GoldenStore, target: Path, where: str, count: int, table: str
) -> None:
    words = [clean.path, "--to", str(target), "--wave-bytes", "200k", "--format", table]
    words += ["--master", "local[2]"] if table == PARQUET else ["--engine", "local"]
    words += ["--broker-conf", clean.conf, "--broker-name", "broker-a"]
    words += ["--topic", "orders,payments"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    killed(KILLER.format(), where, str(count), *words, env=environment)
    answer = run(None, spec(clean, target, table, topic="orders,payments"))
    assert answer.ok
    assert found_in(target) == expected_of(
        clean, lambda record: record["topic"] in ("orders", "payments")
    )
    left = {path.name for path in target.iterdir() if path.name.startswith("_")}
    assert left == {"_manifest"}


@IN_FILES
def test_asked_to_stop_it_goes_on_later(clean: GoldenStore, target: Path, table: str) -> None:
    stopped = run(None, spec(clean, target, table, topic="orders"), should_stop=lambda: True)
    assert stopped.stopped_by is not None
    assert not stopped.ok
    rest = run(None, spec(clean, target, table, topic="orders"))
    assert rest.resumed
    assert found_in(target) == expected_of(clean, orders)


def test_a_missing_file_of_the_last_wave_is_reported(clean: GoldenStore, target: Path) -> None:
    run(None, spec(clean, target, topic="payments"))
    shutil.rmtree(target / "topic=payments")
    with pytest.raises(match="the file is missing"):
        run(None, spec(clean, target, topic="payments"))


# --- arithmetic -----------------------------------------------------------------------------------


def test_ranges_without_ranges() -> None:
    queue, other = QueueId("a", 0), QueueId("a", 1)
    done = [QueueSlice(queue, 5, 10), QueueSlice(queue, 20, 30), QueueSlice(other, 0, 3)]
    wanted = [QueueSlice(queue, 0, 25), QueueSlice(other, 0, 3), QueueSlice(QueueId("b", 0), 1, 2)]
    left = list(ranges_without(wanted, done))
    assert left == [
        QueueSlice(queue, 0, 5),
        QueueSlice(queue, 10, 20),
        QueueSlice(QueueId("b", 0), 1, 2),
    ]
    assert not list(ranges_without([QueueSlice(queue, 6, 9)], done))


def test_a_later_half_and_then_the_first_are_one_range_of_the_manifest(
    golden: Golden, target: Path
) -> None:
    store = golden("clean-4.9.7")
    for first in (50, 0):
        offsets = f'{{"payments": {{"0": {first}}}}}'
        assert run(None, spec(store, target, topic="payments", startingOffsets=offsets)).ok
    with Manifest(target) as manifest:
        (ranges,) = manifest.exported.ranges.values()
    listed = [queue for queue in store.by_queue if queue.topic == "payments"]
    assert [(part.queue_id, part.start) for part in ranges] == [
        (queue.queue_id, 0) for queue in sorted(listed)
    ]


def test_a_damaged_inner_batch_is_left_out_with_all_of_its_messages(
    tmp_path: Path, target: Path
) -> None:
    store = unpack("batches-5.5.0", tmp_path)
    record = next(r for r in store.truth if r["topic"] == "inner" and messages_in(r) == 4)
    flip_in_log(store, record["commitLogOffset"] + 100)  # in its body
    asked = spec(store, target, mode="DROPMALFORMED", topic="inner")
    assert not run(None, asked).ok
    (problem,) = run(None, asked).problems
    assert "because of damage: 4 of inner/0" in problem


def test_a_renamed_broker_s_messages_are_not_exported_twice(
    copy: GoldenStore, target: Path
) -> None:
    options = {"brokerConf": copy.conf, "subscribe": "payments"}
    first = run(None, ExportSpec(copy.path, str(target), options))
    conf = Path(copy.conf)
    assert "brokerName=broker-a\n" in conf.read_text()
    conf.write_text(conf.read_text().replace("brokerName=broker-a\n", "brokerName=renamed\n"))
    with pytest.raises(JournalError, match="of broker 'broker-a'") as refused:
        run(None, ExportSpec(copy.path, str(target), options))
    assert "--broker-name broker-a" in (refused.value.advice or "")
    again = run(None, ExportSpec(copy.path, str(target), {**options, "brokerName": "broker-a"}))
    assert (first.numbers["messages added"], again.numbers["messages added"]) == (418, 0)


def test_another_broker_s_messages_are_added(tmp_path: Path, target: Path) -> None:
    for name, count in (("clean-5.5.0", 971), ("clean-5.4.0", None)):
        store = unpack(name, tmp_path / name)
        options = {"brokerConf": store.conf, "brokerName": name, "subscribe": "orders"}
        added = run(None, ExportSpec(store.path, str(target), options)).numbers["messages added"]
        queues = {(r["queueId"], r["queueOffset"]) for r in store.truth if r["topic"] == "orders"}
        assert added == len(queues) == (count or len(queues))
