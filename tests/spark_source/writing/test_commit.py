"""The commit of a write: modes, order, what is refused, streams, and staged rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    InvalidMessageError,
    MissingFileError,
    NotAStoreError,
    TargetExistsError,
    UncleanStoreError,
    UnsafeNameError,
)
from rmq_store.files.journal import JournalError
from spark_source.writing import writers
from spark_source.writing.staging import StagedPart, Staging, StagingError, folder_beside
from spark_source.writing.target import StreamBatch
from spark_source.writing.writers import StoreWrite, commit, is_write_needed
from tests.support.golden import CLEAN, Golden
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

# The broker left bytes of no record at the end of its log. `append_to` refuses such a store.
BYTES_AFTER_THE_LOG = ("nommap-5.5.0",)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_rows_come_in_order_of_partition_and_row_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write, parts = prepared(target, 0, 60)
    commit(write, parts[::-1])  # Spark may give them in another order
    write_rows(target, 60, 30)
    assert numbers_in(target) == list(range(90))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def write_times(target: Path, times: list[int], queue: list[int] | None = None) -> None:
    """Write messages with store times (ms), in queue 0 or in these queues."""
    batch = rows(0, len(times))
    given = {name: batch.column(name) for name in batch.schema.names if name != "storeTimestamp"}
    given["topic"] = pa.repeat("orders", len(times))
    given["queueId"] = pa.array(queue or [0] * len(times), pa.int32())
    batch = pa.RecordBatch.from_pydict({**given, "storeTimestamp": pa.array(times)})
    write = StoreWrite(f"w{times}", options(target, keep_timestamps=True))
    commit(write, staged(write, [batch]))


def test_store_times_that_go_back_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker finds a time in a queue by binary search."""
    target, at = tmp_path / "store", 1_750_000_000_000
    write_times(target, [at, at + 5, at + 5, at + 9])
    write_times(target, [at + 20, at + 10, at + 30, at + 20], queue=[0, 1, 0, 1])
    write_times(target, [at + 40], queue=[2])
    write_times(target, [at + 31, at + 21], queue=[0, 1])  # after those of their queues
    assert caplog.text == ""
    write_times(tmp_path / "other", [at, at + 59_901, at + 1, at + 2])
    assert f"{tmp_path / 'other'}: given store times go back within 1 queue" in caplog.text
    assert "orders/0: 2 messages, by up to 59.9 s" in caplog.text
    caplog.clear()
    write_times(target, [at + 7])  # before what the store has
    assert "orders/0: 1 message, by up to" in caplog.text


def test_an_empty_folder_becomes_a_store_and_no_rows_a_store_without_messages(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    for target in (tmp_path / "store", tmp_path / "new/folders/store"):
        write_rows(target, 0, 5)
        assert numbers_in(target) == list(range(5))
    empty = StoreWrite("none", options(tmp_path / "empty"))
    commit(empty, [StagedPart(0), StagedPart(1)])
    assert numbers_in(tmp_path / "empty") == []
    before = (tmp_path / "store" / "checkpoint").stat().st_mtime_ns
    commit(StoreWrite("none", options(tmp_path / "store")), [StagedPart(0)])
    assert (tmp_path / "store" / "checkpoint").stat().st_mtime_ns == before


def test_both_folders_of_a_move_are_flushed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a loss of power may move the new store back to where it was built, and delete it there."""
    target, sync, flushed = tmp_path / "store", os.fsync, set()

    def noted(fd: int) -> None:
        sync(fd)
        if target.exists():
            flushed.add(Path(os.readlink(f"/proc/self/fd/{fd}")))

    monkeypatch.setattr(os, "fsync", noted)
    write_rows(target, 0, 5)
    assert tmp_path in flushed
    assert [folder for folder in flushed if not folder.is_relative_to(target)] != [tmp_path]


@pytest.mark.parametrize("exchanges", [True, False])
def test_overwrite_replaces_the_store(
    exchanges: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:  # as on NFS
        monkeypatch.setattr(writers, "_exchanged", lambda new, target: False)
    write_rows(target, 0, 40)
    write_rows(target, 100, 20, overwrite=True)
    assert numbers_in(target) == list(range(100, 120))
    assert left_beside(target) == []


@pytest.mark.parametrize("how", ["a broker's file", "a file of others", "no store"])
def test_overwrite_deletes_nothing_that_is_not_of_a_store(how: str, target: Path) -> None:
    if how == "no store":
        target.mkdir()
    else:
        write_rows(target, 0, 10)
    name = "timerwheel" if how == "a broker's file" else "notes.txt"
    (target / name).write_text("mine")
    write, parts = prepared(target, 50, 10, overwrite=True)
    if how == "a broker's file":
        commit(write, parts)
        assert numbers_in(target) == list(range(50, 60))
        return
    with pytest.raises(NotAStoreError):
        is_write_needed(write)
    with pytest.raises(NotAStoreError):
        commit(write, parts)
    assert (target / name).read_text() == "mine"


def test_overwrite_leaves_the_old_store_until_the_new_one_is_whole(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(target, 0, 40)
    seen: list[list[int]] = []

    def failing(*args: Any) -> None:
        seen.append(numbers_in(target))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writers, "_append_all", failing)
    write, parts = prepared(target, 50, 10, overwrite=True)
    with pytest.raises(OSError, match="No space"):
        commit(write, parts)
    monkeypatch.undo()
    assert seen == [list(range(40))]
    assert numbers_in(target) == list(range(40))


@pytest.mark.parametrize("kind", ["ignore", "error"])
def test_a_store_that_the_option_guards_is_not_replaced(kind: str, target: Path) -> None:
    write_rows(target, 0, 10)
    write = StoreWrite("w", options(target, if_exists=kind), overwrite=True)
    with pytest.raises(InvalidArgumentError, match="ifExists is for mode"):
        is_write_needed(write)
    assert numbers_in(target) == list(range(10))


@pytest.mark.parametrize("kind", ["ignore", "error", "append"])
def test_a_store_that_exists_follows_the_option(kind: str, target: Path) -> None:
    assert is_write_needed(StoreWrite("w", options(target, if_exists=kind)))
    write_rows(target, 0, 10)
    write = StoreWrite("w", options(target, if_exists=kind))
    if kind == "error":
        with pytest.raises(TargetExistsError, match="ifExists"):
            is_write_needed(write)
    else:
        assert is_write_needed(write) is (kind == "append")
        commit(write, staged(write, [rows(10, 5)]))
        assert len(numbers_in(target)) == (15 if kind == "append" else 10)


def test_a_row_that_the_store_refuses_leaves_it_as_it_was(target: Path) -> None:
    write_rows(target, 0, 40)
    write = StoreWrite("w" * 8, options(target, config=StoreConfig()))
    # The tasks do not see the size of a log file where the target alone shows it.
    large = pa.RecordBatch.from_pydict(
        {"topic": ["t"], "queueId": pa.array([0], pa.int32()), "body": [b"." * 9000]}
    )
    parts = staged(write, [rows(40, 30), large])
    with pytest.raises(InvalidMessageError, match="too large"):
        commit(write, parts)
    assert numbers_in(target) == list(range(40))
    with MessageStore.append_to(target, SMALL, recovery="refuse"):
        pass  # it is as after a clean stop
    write_rows(target, 40, 10)
    assert numbers_in(target) == list(range(50))


@pytest.mark.parametrize("name", CLEAN)
def test_every_clean_store_of_a_broker_is_appended_to(
    golden: Golden, name: str, target: Path
) -> None:
    shutil.copytree(golden(name).path, target)
    config = StoreConfig(storePathCommitLog=golden(name).log_folders.get("storePathCommitLog"))
    with MessageStore.open(target, config=config) as store:
        before = sum(store.max_offset(*queue) for queue in store.queues())
    write = StoreWrite("abcd1234", options(target, config=config, topic="sink-test"))
    batch = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(50)]})
    parts = staged(write, [batch])
    if name in BYTES_AFTER_THE_LOG:
        with pytest.raises(UncleanStoreError):
            commit(write, parts)
        return
    commit(write, parts)
    with MessageStore.open(target, config=config) as store:
        assert sum(store.max_offset(*queue) for queue in store.queues()) == before + 50
    assert not (target / "abort").exists()


def while_it_builds(monkeypatch: pytest.MonkeyPatch, other: Callable[[], None]) -> None:
    """Have `other` happen when a write has appended its rows."""
    append_all = writers._append_all

    def with_other(*args: Any) -> None:
        append_all(*args)
        other()

    monkeypatch.setattr(writers, "_append_all", with_other)


@pytest.mark.parametrize("what", ["a store", "a folder", "a file"])
def test_what_appears_at_the_target_while_a_write_builds_is_not_deleted(
    what: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appear() -> None:
        if what == "a store":
            with MessageStore.create(target, SMALL) as store:
                store.append({"topic": "orders", "queueId": 0, "body": b"of another"})
        elif what == "a folder":
            target.mkdir()
            (target / "notes.txt").write_text("mine")
        else:
            target.write_text("mine")

    def seen() -> dict[str, bytes]:
        files = [target] if target.is_file() else sorted(target.rglob("*"))
        return {str(file): file.read_bytes() for file in files if file.is_file()}

    before: dict[str, bytes] = {}

    def other() -> None:
        appear()
        before.update(seen())

    while_it_builds(monkeypatch, other)
    with pytest.raises(TargetExistsError, match="appeared meanwhile"):
        write_rows(target, 0, 20)
    assert before
    assert seen() == before
    assert left_beside(target) == []


def test_overwrite_leaves_files_that_appear_in_the_target_while_it_builds(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(target, 0, 20)
    while_it_builds(monkeypatch, lambda: (target / "notes.txt").touch())
    with pytest.raises(NotAStoreError, match=r"notes\.txt"):
        write_rows(target, 100, 20, overwrite=True)
    assert (target / "notes.txt").exists()
    assert numbers_in(target) == list(range(20))
    assert left_beside(target) == []


# --- streams --------------------------------------------------------------------------------------


def test_a_batch_that_was_done_is_not_done_again(target: Path) -> None:
    for batch in (0, 1, 1, 0, 2):
        write_rows(target, 10 * batch, 10, stream=StreamBatch("query-a", batch))
    assert not write_rows(target, 20, 10, stream=StreamBatch("query-a", 2))
    assert write_rows(target, 30, 10, stream=StreamBatch("query-b", 0))
    assert numbers_in(target) == list(range(40))
    assert left_beside(target) == ["journal.json"]


def test_a_store_that_lost_what_a_query_wrote_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write_rows(target, 0, 10, stream=StreamBatch("q", 0))
    kept = tmp_path / "kept"
    shutil.copytree(target, kept)
    write_rows(target, 10, 10, stream=StreamBatch("q", 1))
    shutil.rmtree(target)
    with pytest.raises(JournalError, match="lost messages"):
        write_rows(target, 20, 10, stream=StreamBatch("q", 2))
    kept.rename(target)
    with pytest.raises(JournalError, match="lost messages"):
        write_rows(target, 20, 10, stream=StreamBatch("q", 2))
    assert numbers_in(target) == list(range(10))


def test_a_batch_write_between_two_batches_of_a_stream_stays(target: Path) -> None:
    write_rows(target, 0, 10, stream=StreamBatch("q", 0))
    write_rows(target, 10, 10)
    write_rows(target, 20, 10, stream=StreamBatch("q", 1))
    assert numbers_in(target) == list(range(30))
    write_rows(target, 50, 10, overwrite=True)
    assert not write_rows(target, 20, 10, stream=StreamBatch("q", 1))
    write_rows(target, 60, 10, stream=StreamBatch("q", 2))
    assert numbers_in(target) == list(range(50, 70))


# --- staging --------------------------------------------------------------------------------------


def test_prepared_rows_that_are_missing_or_cut_are_noticed(target: Path) -> None:
    write_rows(target, 0, 40)
    harms = {"remove": MissingFileError, "cut": StagingError, "swap": StagingError}
    for harm, error in harms.items():
        write, parts = prepared(target, 40, 40)
        file = write.staging.path / str(parts[1].name)
        if harm == "remove":
            file.unlink()
        elif harm == "cut":
            os.truncate(file, file.stat().st_size // 2)
        else:
            other = write.staging.write(9, iter([rows(0, 1)]))
            shutil.copy(write.staging.path / str(other.name), file)
        with pytest.raises(error):
            commit(write, parts)
        assert numbers_in(target) == list(range(40)), harm
        write.staging.remove()


def test_links_in_the_place_of_staged_files_are_not_followed(tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder_beside(str(target)).symlink_to(elsewhere)
    write = StoreWrite("w", options(target))
    with pytest.raises(UnsafeNameError):
        write.staging.begin()
    assert list(elsewhere.iterdir()) == []
    folder_beside(str(target)).unlink()
    parts = staged(write, [rows(0, 3)])
    file = write.staging.path / str(parts[0].name)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    with pytest.raises(StagingError):
        commit(write, parts)
    with pytest.raises(UnsafeNameError):
        list(write.staging.take([StagedPart(0, "../store", 1)]))
    with pytest.raises(UnsafeNameError):
        Staging(str(target), "../../other")


def test_the_next_write_removes_what_killed_writes_left_and_no_more(
    target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write, staged_parts = prepared(target, 0, 10)

    def killed() -> None:
        pytest.MonkeyPatch().setattr(writers, "_replace", die)
        commit(write, staged_parts)

    kill_in(killed)
    running, parts = prepared(target, 20, 10)
    of_a_stream = Staging(str(target), "query-1")
    of_a_stream.write(0, iter([rows(0, 1)]), begin=True)
    assert len(left_beside(target)) == 4  # and the lock
    with caplog.at_level("WARNING"):
        write_rows(target, 0, 10)
    assert left_beside(target) == sorted([running.write_id, "query-1"])
    assert f"{running.staging.path} has the rows of another write" in caplog.text
    long_ago = 1_000_000_000
    for path in (*of_a_stream.path.iterdir(), of_a_stream.path):
        os.utime(path, (long_ago, long_ago))
    commit(running, parts)
    assert left_beside(target) == []
    assert numbers_in(target) == [*range(10), *range(20, 30)]


@pytest.mark.parametrize("what", ["refused", "gone", "half removed"])
def test_leftovers_that_cannot_be_removed_fail_no_write(
    what: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(target, 0, 10, query="q")
    (left,) = folder_beside(str(target)).iterdir()
    remove = shutil.rmtree

    def removing(path: Path, *args: Any, **named: Any) -> None:
        if what == "gone":
            remove(path)
        raise FileNotFoundError(path) if what == "gone" else PermissionError(13, "denied", path)

    if what == "half removed":
        (left.with_name(f"removed-{left.name}") / "part").mkdir(parents=True)
    else:
        monkeypatch.setattr(shutil, "rmtree", removing)
    assert write_rows(target, 0, 10, stream=StreamBatch("q", 0))
    monkeypatch.undo()
    assert numbers_in(target) == list(range(10))
    write_rows(target, 10, 10)
    assert left_beside(target) == ["journal.json"]


def test_a_task_that_ends_after_the_abort_leaves_nothing(tmp_path: Path) -> None:
    write = StoreWrite("w", options(tmp_path / "store"))
    write.staging.begin()
    write.staging.remove()
    with pytest.raises(AccessError):
        write.staging.write(0, iter([rows(0, 1)]))
    assert list(tmp_path.iterdir()) == []


def test_a_stream_removes_what_its_killed_drivers_left(target: Path) -> None:
    prepared(target, 0, 10, query="q")
    prepared(target, 0, 10, query="other")
    write_rows(target, 0, 10, stream=StreamBatch("q", 0))
    (left,) = (name for name in left_beside(target) if name != "journal.json")
    assert left.startswith("other-")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 2, "journal": "a write", "begun": null, "done": []}',
        '{"format": 1, "begun": null, "queries": {}}',
        '{"format": 1, "journal": "a replay", "begun": null, "done": []}',
        '{"format": 1, "journal": "a write", "begun": {"a": 1}, "done": []}',
        '{"format": 1, "journal": "a write", "begun": {"write_id": 1, "kind": "x"}, "done": []}',
        '{"format": 1, "journal": "a write", "begun": null, "done": [{"query": "q", "batch": "0"}]}',
    ],
)
def test_a_journal_that_no_write_wrote_is_an_error_with_what_to_do(text: str, target: Path) -> None:
    write_rows(target, 0, 10, stream=StreamBatch("q", 0))
    journal = folder_beside(str(target)) / "journal.json"
    journal.write_text(text)
    with pytest.raises(JournalError, match="then delete the file"):
        write_rows(target, 10, 10, stream=StreamBatch("q", 1))
    assert journal.read_text() == text
    assert numbers_in(target) == list(range(10))
