"""What a replay had appended of a wave is undone, after a kill or a failure; others' messages stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.errors import AccessError
from rmq_store.files.journal import JournalError
from rmqstore_jobs.replay import run
from rmqstore_jobs.replay_targets import local_targets
from rmqstore_jobs.replay_targets.local_targets import append_rows, settle_target
from rmqstore_jobs.replaying.plan import ReplayJournal, ReplayRun
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from spark_source.writing.target import WriteOptions
from tests.support.golden import Golden, GoldenStore
from tests.support.spark.replays import NAME, arrived, everything, expected_rows, read_back, spec


class Killed(BaseException):
    """What no code of a replay handles, as nothing handles a kill."""


def appending_until(error: type[BaseException]) -> Callable[[Any, Any], Any]:
    """`append_rows`, which raises `error` behind the third batch."""
    calls = iter(range(100))

    def append(target: Any, rows: Any) -> Any:
        refused = list(append_rows(target, rows))
        if next(calls) == 2:
            raise error
        return iter(refused)

    return append


def killed_in_the_third_wave(
    engine: SparkSession | None, asked: ReplaySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a replay that leaves its target as a process leaves it that is killed."""
    with monkeypatch.context() as patched:
        patched.setattr(local_targets, "append_rows", appending_until(Killed))
        patched.setattr(local_targets.LocalReplay, "_undo_wave", lambda *_: None)
        with pytest.raises(Killed):
            run(engine, asked)
    assert Path(str(asked.to_store), "abort").exists()


@pytest.fixture
def added_to(clean: GoldenStore, tmp_path: Path) -> ReplaySpec:
    """A replay into a store that has messages."""
    target = str(tmp_path / "new")
    run(None, spec(clean, to_store=target, topics=("retrying",)))
    return spec(clean, to_store=target, topics=("documents",), wave_bytes=20_000, append=True)


def test_a_killed_replay_into_a_store_with_messages_goes_on(
    golden: Golden, added_to: ReplaySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(added_to.to_store)
    before = read_back(target)
    for _ in range(2):
        killed_in_the_third_wave(None, added_to, monkeypatch)
    report = run(None, added_to)
    assert report.ok, report.problems
    after = read_back(target)
    assert after[: len(before)] == before
    wanted = [record for record in golden(NAME).truth if record["topic"] == "documents"]
    assert report.written == {target: len(wanted)}
    assert len(after) - len(before) == len(wanted)
    assert not Path(target, "abort").exists()


def test_a_killed_replay_stays_apart_from_what_others_wrote_since(
    added_to: ReplaySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(added_to.to_store)
    killed_in_the_third_wave(None, added_to, monkeypatch)
    with MessageStore.append_to(target) as other:
        other.append({"topic": "documents", "queueId": 0, "body": b"of another"})
    there = read_back(target)
    with pytest.raises(JournalError, match="another process has opened"):
        run(None, added_to)
    assert read_back(target) == there


def test_a_stopped_replay_is_not_continued_behind_what_others_wrote(
    golden: Golden, tmp_path: Path
) -> None:
    asked = spec(golden(NAME), to_store=str(tmp_path / "new"), wave_bytes=100_000)
    assert run(None, asked, lambda: True).stopped_by == "stopped on request"
    with MessageStore.append_to(asked.to_store or "") as other:
        other.append({"topic": "documents", "queueId": 0, "body": b"of another"})
    there = read_back(asked.to_store or "")
    how = f"has another end.*delete {asked.to_store} and {asked.to_store}.replay.json"
    with pytest.raises(JournalError, match=how):
        run(None, asked)
    assert read_back(asked.to_store or "") == there
    shutil.rmtree(asked.to_store or "")
    Path(f"{asked.to_store}.replay.json").unlink()
    assert run(None, asked).ok
    assert arrived(asked.to_store or "") == expected_rows(golden(NAME), everything)


def test_a_failed_replay_leaves_a_closed_store_with_whole_waves(
    added_to: ReplaySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(added_to.to_store)
    with monkeypatch.context() as patched:
        patched.setattr(local_targets, "append_rows", appending_until(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(None, added_to)
    with ReplayJournal(target) as journal:
        assert journal.begun is not None
        end = journal.begun.target_end
    with MessageStore.open(target) as store:
        assert store.log_range()[1] == end
    assert not Path(target, "abort").exists()
    assert run(None, added_to).ok


def test_a_journal_that_was_replaced_although_that_failed_is_believed(
    clean: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spec(clean, to_store=str(tmp_path / "new"), wave_bytes=100_000)
    real, calls = ReplayJournal.save, iter(range(100))

    def save(self: ReplayJournal, begun: ReplayRun | None, *done: ReplayRun) -> None:
        real(self, begun, *done)
        if next(calls) == 4:  # begun, signed, and the third wave
            raise AccessError(self.path, reason="flushing the folder: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(ReplayJournal, "save", save)
        report = run(None, asked)
    assert "Input/output error" in (report.stopped_by or "")
    assert report.written == {asked.to_store: len(read_back(str(asked.to_store)))}
    assert run(None, asked).ok
    assert arrived(tmp_path / "new") == expected_rows(clean, everything)


def test_a_wave_that_is_undone_leaves_batch_queues_as_they_are_declared(tmp_path: Path) -> None:
    path = tmp_path / "new"
    asked = WriteOptions(str(path))
    message = {"topic": "Batches", "queueId": 0, "body": b"x"}
    run_ = ReplayRun({}, (), (0, 0), created=True, signed=True)
    with MessageStore.create(path) as target:
        target.sign(run_.append.mark)
        target.declare_topic("Batches", attributes={"queue.type": "BatchCQ"})
        target.append(message)
        whole = replace(run_, target_end=target.log_range()[1])
        target.append(message)
        target.abandon()
    with ReplayJournal(path) as journal:
        settle_target(whole, journal, asked)
    assert (path / "batchconsumequeue" / "Batches" / "0").is_dir()
    assert not (path / "consumequeue" / "Batches").exists()
    with MessageStore.open(path) as store:
        assert store.max_offset("Batches", 0) == 1
