"""The replay run again: never doubled, gone on with after a stop, a failure, a kill."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore, QueueId
from rmq_store.commitlog.log import LogAppender
from rmq_store.errors import (
    AccessError,
    ForeignLogError,
    MissingFileError,
    OtherStoreError,
    TargetExistsError,
)
from rmq_store.files.journal import JournalError
from rmq_store.format.byte_layout import Bytes
from rmqstore_jobs import replay
from rmqstore_jobs.replay import run
from rmqstore_jobs.replay_targets.local_targets import LocalReplay
from rmqstore_jobs.replaying import plan
from rmqstore_jobs.replaying.plan import ReplayJournal
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from rmqstore_jobs.running.job_command import EXIT_REFUSED
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.campaigns import some
from tests.support.running.child import killed
from tests.support.running.engines import ON_BOTH
from tests.support.spark.replays import (
    NAME,
    arrived,
    everything,
    expected_rows,
    read_back,
    spec,
    topics_of,
)


def test_a_target_that_is_there_is_not_touched(clean: GoldenStore, tmp_path: Path) -> None:
    one = spec(clean, to_store=str(tmp_path / "new"), topics=("retrying",))
    run(None, one)
    before = read_back(tmp_path / "new")
    with pytest.raises(JournalError, match="this replay is in the target"):
        run(None, one)
    other = spec(clean, to_store=str(tmp_path / "new"), topics=("documents",))
    with pytest.raises(TargetExistsError, match="--append"):
        run(None, other)
    (tmp_path / "a file").touch()
    with pytest.raises(TargetExistsError, match="the target is a file"):
        run(None, spec(clean, to_store=str(tmp_path / "a file")))
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "file").touch()
    with pytest.raises(TargetExistsError, match="does not add Parquet files"):
        run(None, spec(clean, to_parquet=str(tmp_path / "p")))
    assert read_back(tmp_path / "new") == before


def test_appending_adds_behind_what_is_there(clean: GoldenStore, tmp_path: Path) -> None:
    target = str(tmp_path / "new")
    run(None, spec(clean, to_store=target, topics=("retrying",)))
    before = read_back(target)
    report = run(None, spec(clean, to_store=target, topics=("documents",), append=True))
    after = read_back(target)
    assert after[: len(before)] == before
    assert {row["topic"] for row in after[len(before) :]} == {"documents"}
    assert [part.topic for part in report.target_queues] == ["documents"]
    with pytest.raises(JournalError, match="this replay"):
        run(None, spec(clean, to_store=target, topics=("documents",), append=True))


@ON_BOTH
def test_a_stopped_replay_goes_on_where_it_was(
    engine: SparkSession | None, clean: GoldenStore, tmp_path: Path
) -> None:
    asked = spec(clean, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    stops = iter([False, True, False, False, True])
    first = run(engine, asked, lambda: next(stops))
    assert first.stopped_by == "stopped on request"
    assert not first.ok
    part = arrived(tmp_path / "new")
    assert 0 < len(part) < len(expected_rows(clean, everything))
    second = run(engine, asked, lambda: next(stops))
    assert second.resumed
    assert second.stopped_by is not None
    last = run(engine, asked)
    assert arrived(tmp_path / "new") == expected_rows(clean, everything)
    assert last.ok, last.problems
    assert last.run_id == first.run_id
    assert last.read == last.matched == len(expected_rows(clean, everything))
    assert sum(
        q.stop_offset - q.start_offset for q in last.target_queues if q.topic == "orders"
    ) == (sum(record["topic"] == "orders" for record in clean.truth))


def test_a_replay_does_not_go_on_with_another_store_at_the_path(
    golden: Golden, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(golden("clean-5.3.3").path, source)
    conf = golden("clean-5.3.3").conf
    one = ReplaySpec(
        str(source), to_store=str(tmp_path / "new"), target_conf=conf, wave_bytes=50_000
    )
    assert run(None, one, lambda: True).stopped_by == "stopped on request"
    written = read_back(tmp_path / "new")
    shutil.rmtree(source)
    shutil.copytree(golden(NAME).path, source)
    with pytest.raises(OtherStoreError):
        run(None, one)
    assert read_back(tmp_path / "new") == written
    shutil.rmtree(source)
    shutil.copytree(golden("clean-5.3.3").path, source)
    assert run(None, one).ok


def test_a_replay_does_not_go_on_where_the_end_of_the_log_was_written_again(tmp_path: Path) -> None:
    """A crash lost the end, and the broker stored other messages in its place, each as long as before."""
    source, lost = tmp_path / "source", tmp_path / "lost"
    messages = [{"topic": "orders", "queueId": 0, "body": b"%05d" % n} for n in range(300)]

    def append(store: Path, some: list[dict[str, Any]]) -> None:
        with MessageStore.append_to(store) as writer:
            for message in some:
                writer.append(message)

    with MessageStore.create(source, {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        for message in messages[:200]:
            writer.append(message)
    shutil.copytree(source, lost)
    append(lost, messages[200:])
    one = ReplaySpec(str(lost), to_store=str(tmp_path / "new"), wave_bytes=10_000)
    assert run(None, one, lambda: True).stopped_by == "stopped on request"
    shutil.rmtree(lost)
    shutil.copytree(source, lost)
    append(lost, [{**message, "body": b"other"} for message in messages[200:]])
    with pytest.raises(OtherStoreError, match="other bytes"):
        run(None, one)


def test_a_replay_of_a_range_of_times_goes_on_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """A message that was stored before the others of the range is in it too."""
    start, source = 1_700_000_000_000, tmp_path / "source"
    times = [start + n * 1000 for n in range(600)]
    times[100] = times[400]
    with MessageStore.create(source, {"mappedFileSizeCommitLog": 1 << 20}) as writer:
        for number, time in enumerate(times):
            body = b"%05d" % number
            writer.append({"topic": "t", "queueId": 0, "body": body, "storeTimestamp": time})
    one = ReplaySpec(
        str(source), since=str(times[300]), to_store=str(tmp_path / "new"), wave_bytes=10_000
    )
    assert run(None, one, lambda: True).stopped_by == "stopped on request"
    last = run(None, one)
    assert (last.ok, last.resumed) == (True, True)
    with MessageStore.open(tmp_path / "new") as new:
        bodies = new.read_batches("t", columns=["body"]).read_all()["body"].to_pylist()
    assert bodies == [b"%05d" % number for number in (100, *range(300, 600))]


def test_an_unfinished_replay_is_not_mixed_with_another(clean: GoldenStore, tmp_path: Path) -> None:
    asked = spec(clean, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    run(None, asked, lambda: True)
    other = spec(clean, to_store=str(tmp_path / "new"), topics=("orders",))
    with pytest.raises(JournalError, match="other options") as refused:
        run(None, other)
    assert "topics=['orders']" in str(refused.value)
    # As the error says.
    target, journal = Path(str(other.to_store)), Path(f"{other.to_store}.replay.json")
    assert f"delete {target} and {journal}" in str(refused.value)
    shutil.rmtree(target)
    journal.unlink()
    report = run(None, other)
    assert report.ok
    assert {row["topic"] for row in read_back(tmp_path / "new")} == {"orders"}


@ON_BOTH
def test_a_source_that_breaks_in_the_middle_stops_it_cleanly(
    engine: SparkSession | None, copy: GoldenStore, tmp_path: Path
) -> None:
    """A file goes missing; once it is back, the same command goes on."""
    segments = sorted((Path(copy.path) / "commitlog").iterdir())
    aside = tmp_path / "aside"
    asked = spec(copy, to_store=str(tmp_path / "new"), wave_bytes=100_000)

    def remove_once() -> bool:
        if not aside.exists():
            segments[2].rename(aside)
        return False

    broken = run(engine, asked, remove_once)
    assert broken.stopped_by is not None
    assert "RMQSTORE_MISSING_FILE" in broken.stopped_by
    aside.rename(segments[2])
    assert run(engine, asked).ok
    assert arrived(tmp_path / "new") == expected_rows(copy, everything)


def test_a_replay_continues_after_its_target_could_not_be_written(
    clean: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spec(clean, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    real, calls = LogAppender.write, iter(range(100))

    def full_at_the_third(self: LogAppender, data: Bytes) -> None:
        if next(calls) == 2:
            real(self, data[: len(data) // 2])
            raise AccessError(tmp_path / "new", reason="writing: No space left on device")
        real(self, data)

    def full(*_: Any, **__: Any) -> None:
        raise AccessError(tmp_path / "new", reason="creating a file: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LogAppender, "write", full_at_the_third)
        patched.setattr(LocalReplay, "_undo_wave", lambda *_: None)
        report = run(None, asked)
        assert "No space left on device" in (report.stopped_by or "")
        patched.setattr("rmqstore_jobs.replay_targets.local_targets.finish_or_undo_append", full)
        with pytest.raises(AccessError, match="creating a file"):  # it is still full
            run(None, asked)
    assert run(None, asked).ok
    assert arrived(tmp_path / "new") == expected_rows(clean, everything)


# --- killed ---------------------------------------------------------------------------------------

KILLED_AT = """
import os, signal, sys
from rmqstore_jobs import replay
from rmqstore_jobs.replaying import plan
from rmqstore_jobs.replay_targets import local_targets as replay_local
from rmqstore_jobs.replay_targets import local_targets, replay_call

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

where, count = sys.argv[1], int(sys.argv[2])
owner, name = {"record": (plan.ReplayJournal, "record"), "append": (replay_local, "append_rows"),
               "arrived": (replay_local.LocalReplay, "_ranges"),
               "parquet": (replay_call, "ask"), "counting": (local_targets, "Counter"),
               "done": (replay_local.LocalReplay, "_report")}[where]
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
        ("--to", asked.to_store),
        ("--to-parquet", asked.to_parquet),
        ("--broker-conf", asked.broker_conf),
        ("--broker-name", asked.broker_name),
        ("--target-conf", asked.target_conf),
    ):
        words += [name, value] if value is not None else []
    return [*words, *(word for topic in asked.topics for word in ("--topic", topic))]


def go_on(engine: SparkSession | None, asked: ReplaySpec) -> str:
    """Run again; why it was refused, or nothing where all went well."""
    try:
        report = run(engine, asked)
    except JournalError as refused:
        return str(refused)
    return "" if report.ok else str(report.problems)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("where", "count"),
    some(
        "replays",
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
        4,
    ),
)
def test_killed_at_any_point_it_is_resumed_and_never_doubled(
    spark: SparkSession, clean: GoldenStore, tmp_path: Path, where: str, count: int
) -> None:
    target = str(tmp_path / "new")
    parquet = str(tmp_path / "p") if where in ("parquet", "counting") else None
    topics = () if parquet is None else topics_of(clean)
    asked = spec(clean, to_store=target, to_parquet=parquet, topics=topics, wave_bytes=100_000)
    wanted = expected_rows(clean, lambda record: not topics or record["topic"] in topics)
    killed(KILLED_AT, where, str(count), *command(asked), stdin=subprocess.DEVNULL)
    refusal = go_on(spark, asked)
    if where == "done":
        assert "this replay is in the target" in refusal
    else:
        assert refusal == ""
    if parquet is not None:
        assert spark.read.parquet(parquet).count() == len(wanted)
    assert arrived(target) == wanted
    with ReplayJournal(target) as journal:
        assert journal.begun is None


def test_a_source_that_fails_before_the_first_message_leaves_the_target_as_it_was(
    clean: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new"
    run(None, spec(clean, to_store=str(target), topics=("retrying",)))
    before = read_back(target)
    asked = spec(clean, to_store=str(target), topics=("documents",), append=True)

    def gone(*_: Any) -> Any:
        raise MissingFileError("consumequeue/documents/0", reason="deleted by the broker meanwhile")

    with monkeypatch.context() as broken:
        broken.setattr("rmqstore_jobs.replay_targets.local_targets.waves_of", gone)
        with pytest.raises(MissingFileError):
            run(None, asked)
    assert not (target / "abort").exists()
    assert read_back(target) == before
    assert run(None, asked).ok


def test_no_replay_writes_to_the_log_that_its_configuration_brings_along(
    clean: GoldenStore, tmp_path: Path
) -> None:
    """--target-conf is a live broker's broker.conf: its settings are wanted, its log is not."""
    live = unpack(NAME, tmp_path)
    conf = tmp_path / "broker.conf"
    conf.write_text(Path(clean.conf).read_text() + f"\nstorePathCommitLog={live.path}/commitlog\n")
    before = live.fingerprint()
    target = str(tmp_path / "new")
    asked = spec(clean, to_store=target, topics=("orders",), wave_bytes=50_000)
    asked = replace(asked, target_conf=str(conf))
    assert run(None, asked, lambda: True).stopped_by == "stopped on request"
    assert run(None, asked).ok
    again = arrived(target)
    assert again == expected_rows(clean, lambda record: record["topic"] == "orders")
    more = replace(asked, topics=("documents",), append=True)
    for dry in (True, False):
        with pytest.raises(ForeignLogError, match="storePathCommitLog"):
            run(None, replace(more, dry_run=dry))
    assert arrived(target) == again
    assert live.fingerprint() == before


def test_a_stopped_replay_goes_on_though_what_it_has_read_expired(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    first, second, *_ = sorted((Path(store.path) / "commitlog").iterdir())
    # Of one queue nothing is left to read when it goes on.
    chosen = {
        QueueId("orders", 0): range(20),
        **{QueueId("payments", n): range(999) for n in (0, 1)},
    }
    asked = spec(
        store,
        to_store=str(tmp_path / "new"),
        queues=(QueueId("payments", 0), QueueId("payments", 1)),
        offsets={QueueId("orders", 0): (0, 20)},
        wave_bytes=20_000,
    )
    wanted = expected_rows(
        store, lambda r: r["queueOffset"] in chosen.get(QueueId(r["topic"], r["queueId"]), range(0))
    )

    def first_file_is_done() -> bool:
        unfinished = ReplayJournal.read_only(asked.to_store or "").begun
        return unfinished is not None and (unfinished.next_log_offset or 0) > int(second.name)

    assert run(None, asked, first_file_is_done).stopped_by == "stopped on request"
    assert first_file_is_done()
    first.unlink()
    last = run(None, asked)
    assert last.ok, last.problems
    assert last.resumed
    assert arrived(tmp_path / "new") == wanted
    assert last.matched == len(wanted)


@pytest.mark.parametrize(
    ("bytes_a_queue", "expected"), [(1, 50_000), (10_000, 100_000), (1 << 20, 200_000)]
)
def test_waves_grow_with_the_queues_of_the_source_within_limits(
    bytes_a_queue: int, expected: int, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wave opens the source, and two are in memory."""
    monkeypatch.setattr(plan, "_SMALLEST_WAVE", 50_000)
    monkeypatch.setattr(plan, "_LARGEST_WAVE", 200_000)
    monkeypatch.setattr(plan, "_WAVE_BYTES_A_QUEUE", bytes_a_queue)
    store = golden("clean-5.5.0")
    selected = plan.scan_of_run(ReplaySpec(store.path, to_store="/target"), None)
    assert len(selected.store.snapshot.queues) == 10
    waves = plan.waves_of(selected, 0)
    assert len(waves) > 1
    assert waves == plan.waves_of(selected, 0, expected)


def test_a_finished_replay_whose_target_is_gone_says_so(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to", str(tmp_path / "r"), "--topic", "retrying"]
    assert replay.main(words) == 0
    shutil.rmtree(tmp_path / "r")
    assert replay.main(words) == EXIT_REFUSED
    said = " ".join(capsys.readouterr().err.split())
    assert "is gone" in said
    assert f"Delete {tmp_path}/r.replay.json to replay again" in said
