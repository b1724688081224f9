"""Commits that are interrupted: by a kill, by another process, or by an error after the rows are in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import AccessError, StoreLockedError, UncleanStoreError
from rmq_store.files.journal import JournalError
from rmq_store.markers import StoreLock
from rmq_store.writing.store_writer import StoreWriter
from spark_source.writing import target as undoing
from spark_source.writing import writers
from spark_source.writing.staging import folder_beside
from spark_source.writing.target import BegunWrite, StreamBatch, WriteJournal
from spark_source.writing.writers import StoreWrite, commit, is_write_needed
from tests.support.running.child import in_a_child
from tests.support.stores import SMALL
from tests.support.writing.writes import (
    die,
    kill_in,
    left_beside,
    numbers_in,
    options,
    prepared,
    rows,
    staged,
    write_rows,
)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store"


def killed_while_appending(target: Path) -> None:
    """A write whose driver dies after it has appended, with its rows in no journal."""
    write, parts = prepared(target, 40, 20)

    def work() -> None:
        WriteJournal.finish = die  # type: ignore[method-assign]
        commit(write, parts)

    kill_in(work)
    assert len(numbers_in(target)) == 60  # a crashed store, for a reader


def test_messages_that_a_broker_appended_after_a_killed_write_are_not_cut_off(target: Path) -> None:
    write_rows(target, 0, 40)
    killed_while_appending(target)

    def broker() -> None:  # recovers the store, appends, and is killed
        store = MessageStore.append_to(target, SMALL)
        store.append({"topic": "orders", "queueId": 0, "body": b"of the broker"})
        os._exit(0)

    assert in_a_child(broker) == 0
    for _ in range(2):
        with pytest.raises(JournalError, match="has opened the store"):
            write_rows(target, 100, 10)
    with MessageStore.open(target) as store:
        assert sum(store.max_offset(*queue) for queue in store.queues()) == 61
    (folder_beside(str(target)) / "journal.json").unlink()
    with pytest.raises(UncleanStoreError):
        write_rows(target, 100, 10)


def test_a_killed_write_is_undone_by_the_next_one(target: Path) -> None:
    write_rows(target, 0, 40)
    killed_while_appending(target)
    # What only looks at the store does not count as a process that opened it.
    is_write_needed(StoreWrite("w", options(target)))
    write_rows(target, 200, 10)
    assert numbers_in(target) == [*range(40), *range(200, 210)]


def test_a_store_that_was_deleted_after_a_killed_write_is_created_again(target: Path) -> None:
    write_rows(target, 0, 40)
    killed_while_appending(target)
    shutil.rmtree(target)
    write_rows(target, 0, 10)
    assert numbers_in(target) == list(range(10))


def test_a_store_that_crashed_before_is_refused_and_not_recovered(target: Path) -> None:
    write_rows(target, 0, 40)
    (target / "abort").touch()
    with pytest.raises(UncleanStoreError):
        write_rows(target, 40, 10)
    assert (target / "abort").exists()
    assert numbers_in(target) == list(range(40))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_a_broker_runs_on_is_refused(overwrite: bool, target: Path) -> None:
    write_rows(target, 0, 40)
    write, parts = prepared(target, 40, 10, overwrite=overwrite)
    lock = StoreLock(target)
    try:
        with pytest.raises(StoreLockedError):
            is_write_needed(write)
        with pytest.raises(StoreLockedError):
            commit(write, parts)
    finally:
        lock.release()
    commit(write, parts)
    assert len(numbers_in(target)) == (10 if overwrite else 50)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_a_killed_replacement_is_recognised_on_another_disk(
    placed: bool, opened: bool, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    write, parts = prepared(first / "store", 0, 20, query="q")

    def killed() -> None:
        if placed:
            WriteJournal.finish = die  # type: ignore[method-assign]
        else:
            pytest.MonkeyPatch().setattr(writers, "put_in_place", die)
        commit(write, parts, StreamBatch("q", 0))

    kill_in(killed)
    target = tmp_path / "moved" / "store"
    shutil.copytree(first, target.parent)  # other inodes
    if placed and opened:
        MessageStore.append_to(target, SMALL).close()
    assert write_rows(target, 0, 20, stream=StreamBatch("q", 0)) is not placed
    assert numbers_in(target) == list(range(20))
    assert left_beside(target) == ["journal.json"]


def test_the_old_store_is_not_lost_between_the_two_steps_without_an_exchange(target: Path) -> None:
    write_rows(target, 0, 20)
    write, parts = prepared(target, 100, 20, overwrite=True)

    def killed() -> None:
        def between(new: Path, target: Path, aside: Path) -> None:
            target.rename(aside)
            os._exit(9)

        pytest.MonkeyPatch().setattr(writers, "exchange_folders", between)
        commit(write, parts)

    kill_in(killed)
    with MessageStore.create(target, SMALL) as store:
        store.append({"topic": "orders", "queueId": 0, "body": b"of another"})
    with pytest.raises(JournalError, match="another folder has appeared"):
        write_rows(target, 40, 10)
    shutil.rmtree(target)
    write_rows(target, 20, 10)
    assert numbers_in(target) == list(range(30))


def test_a_store_that_another_process_wrote_into_meanwhile_stays_clean(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(target, 0, 20)
    begin = WriteJournal.begin

    def with_other(journal: WriteJournal, begun: BegunWrite) -> BegunWrite:
        with MessageStore.append_to(target, SMALL) as store:
            store.append_batch(rows(20, 10))
        return begin(journal, begun)

    with monkeypatch.context() as patch:
        patch.setattr(WriteJournal, "begin", with_other)
        with pytest.raises(JournalError, match="another process wrote"):
            write_rows(target, 100, 10)
    assert not (target / "abort").exists()
    write_rows(target, 30, 10)
    assert numbers_in(target) == list(range(40))


@pytest.mark.parametrize("settles", [True, False])
def test_a_write_that_is_done_does_not_fail_when_the_store_cannot_be_closed(
    settles: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(target, 0, 20)

    def failing(*args: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "_finish", failing)
        if not settles:
            patch.setattr(undoing, "recover_under_lock", failing)
        write_rows(target, 20, 10, stream=StreamBatch("q", 0))
    assert (target / "abort").exists() is not settles
    assert numbers_in(target) == list(range(30))
    assert not write_rows(target, 20, 10, stream=StreamBatch("q", 0))
    assert not (target / "abort").exists()
    write_rows(target, 30, 10)
    assert numbers_in(target) == list(range(40))


def test_a_write_that_is_finished_later_declares_its_topics(target: Path) -> None:
    write_rows(target, 0, 20)
    write = StoreWrite("w" * 8, options(target, topic="late"))
    batch = pa.RecordBatch.from_pydict({"body": [b"a"], "queueId": pa.array([2], pa.int32())})
    parts = staged(write, [batch])

    def killed() -> None:
        pytest.MonkeyPatch().setattr(StoreWriter, "_finish", die)
        commit(write, parts, StreamBatch("q", 0))

    kill_in(killed)
    assert "late" not in read_topic_configs(target)
    assert not write_rows(target, 0, 1, stream=StreamBatch("q", 0))
    assert read_topic_configs(target)["late"]["readQueueNums"] == 3


def test_a_replacement_that_is_done_does_not_fail_afterwards(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(folder: Path) -> None:
        raise AccessError(folder, reason="flushing: Input/output error")

    with monkeypatch.context() as patch:  # settling flushes the folder again
        patch.setattr(writers, "sync_path", failing)
        write_rows(target, 0, 20)
    assert numbers_in(target) == list(range(20))
    assert left_beside(target) == []
