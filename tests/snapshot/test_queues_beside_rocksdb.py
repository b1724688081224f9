"""Queue files beside a RocksDB database: each queue is read from where it is complete. Without the database,
the files are read, and opening says so."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.info import store_info
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.retention import apply_retention, plan_retention
from rmq_store.errors import UnsupportedStoreError
from rmq_store.recovery import plan_recovery, recover
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, offsets, unpack, unpack_field, wanted
from tests.support.rocksdb import places_in, write_queue_database

DOUBLE = "rocksdb-double-write"
ENTRY = struct.Struct(">qiq")
FILLER = ENTRY.pack(0, 0x7FFFFFFF, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack_field(DOUBLE, tmp_path)


def entries_in(queue_file: Path) -> list[tuple[int, int, int]]:
    return [entry for entry in ENTRY.iter_unpack(queue_file.read_bytes()) if entry[1] > 0]


def the_queue(root: Path) -> Path:
    (file,) = (root / "consumequeue").glob("*/0/" + "0" * 20)
    return file


def read(store: MessageStore) -> list[int]:
    return [
        place
        for batch in store.read_batches(columns=["commitLogOffset", "body"])
        for place in batch.column(0).to_pylist()
    ]


def add_database(golden: GoldenStore, folder: str) -> Path:
    database = Path(golden.path, folder)
    database.mkdir(exist_ok=True)
    (database / "CURRENT").write_text("MANIFEST-000004\n")
    return database


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """rocksdict is not installed."""
    monkeypatch.setattr("rmq_store.files.rocksdb.find_spec", lambda name: None)


def test_complete_files_are_read(root: Path) -> None:
    listed = [where for where, _, _ in entries_in(the_queue(root))]
    with MessageStore.open(root) as store:
        (queue,) = store.queues()
        assert read(store) == listed
        assert store.view.folder(queue) == str(the_queue(root).parent)
        assert [*store.opening.losses(), *store.opening.notes()] == []
        assert [one.code for one in verify(store).findings] == ["index-absent"]


@pytest.mark.usefixtures("without_library")
def test_complete_files_are_read_and_the_database_is_named(root: Path) -> None:
    listed = [where for where, _, _ in entries_in(the_queue(root))]
    assert len(listed) == 100
    with MessageStore.open(root) as store:
        assert read(store) == listed
        (note,) = (*store.opening.losses(), *store.opening.notes())
        assert str(root / "consumequeue") in note
        (finding,) = (one for one in verify(store).findings if one.code != "index-absent")
    assert (finding.code, finding.path) == ("queues-in-rocksdb", str(root / "consumequeue"))
    assert "rmqstore[rocksdb]" in finding.meaning
    assert store_info(root).rocksdbQueues == str(root / "consumequeue")


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_rocksdb"])
def test_a_database_in_either_place_hides_no_message(copy: GoldenStore, folder: str) -> None:
    database = add_database(copy, folder)
    with copy.open() as store:
        assert sorted(offsets(store)) == sorted(wanted(copy))
        paths = {one.code: one.path for one in verify(store).findings}
        assert paths["queues-in-rocksdb"] == str(database)


def cut_after_60(root: Path) -> list[int]:
    """As if double write was switched off after 60 records. The log offsets of all 100."""
    file = the_queue(root)
    raw = file.read_bytes()
    file.write_bytes(raw[: 60 * ENTRY.size].ljust(2000, b"\0"))
    return [where for where, _, _ in ENTRY.iter_unpack(raw)]


def begin_after_30(root: Path, head: bytes) -> list[int]:
    """As if double write was switched on after 30 records. The log offsets of all 100."""
    file = the_queue(root)
    raw = file.read_bytes()
    file.write_bytes(head * 30 + raw[30 * ENTRY.size :])
    return [where for where, _, _ in ENTRY.iter_unpack(raw)]


def give_database(root: Path, start: int, stop: int) -> None:
    """A database with the entries [start, stop) of the queue in place of the store's own, which has two."""
    (topic,) = (folder.name for folder in (root / "consumequeue").iterdir() if folder.is_dir())
    entries = list(ENTRY.iter_unpack(the_queue(root).read_bytes()))
    for path in (root / "consumequeue").iterdir():
        if path.is_file():
            path.unlink()
    rows = {QueueId(topic, 0): dict(list(enumerate(entries))[start:stop])}
    write_queue_database(root / "consumequeue_rocksdb", rows)


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (40, 100), (60, 100)])
def test_files_that_end_early_are_continued_from_the_database(
    root: Path, start: int, stop: int
) -> None:
    give_database(root, start, stop)
    listed = cut_after_60(root)
    with MessageStore.open(root) as store:
        (queue,) = store.queues()
        assert store.view.state(queue).tail is None
        assert read(store) == listed
        assert [*store.opening.losses(), *store.opening.notes()] == []
        assert [one.code for one in verify(store).findings] == ["index-absent"]


@pytest.mark.parametrize("head", [FILLER, bytes(ENTRY.size)])
@pytest.mark.parametrize(("start", "stop"), [(0, 100), (0, 50), (0, 30)])
def test_what_files_that_begin_late_lack_is_read_from_the_database(
    root: Path, head: bytes, start: int, stop: int
) -> None:
    give_database(root, start, stop)
    listed = begin_after_30(root, head)
    with MessageStore.open(root) as store:
        assert read(store) == listed
        assert [one.code for one in verify(store).findings] == ["index-absent"]


@pytest.mark.usefixtures("without_library")
def test_files_that_end_early_are_continued_from_the_log_and_that_is_said(root: Path) -> None:
    listed = cut_after_60(root)
    with MessageStore.open(root) as store:
        assert read(store) == listed
        (note,) = store.opening.notes()
        assert (store.opening.behind or "").startswith("40 messages at the end of the log")
    assert note.startswith("a RocksDB database has queues too and was not read")
    assert str(root / "consumequeue") in note


def test_what_is_in_neither_is_continued_from_the_log(root: Path) -> None:
    """The store's own database has the last two entries alone."""
    listed = cut_after_60(root)
    with MessageStore.open(root) as store:
        assert read(store) == listed


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("head", [FILLER, bytes(ENTRY.size)])
def test_verify_names_the_records_that_files_which_begin_late_do_not_list(
    tmp_path: Path, head: bytes, library: bool, request: pytest.FixtureRequest
) -> None:
    if not library:
        request.getfixturevalue("without_library")
    root = unpack_field(DOUBLE, tmp_path)
    begin_after_30(root, head)
    with MessageStore.open(root) as store:
        assert any("RocksDB database" in note for note in store.opening.notes()) is not library
        missed = (one.count for one in verify(store).findings if one.code == "queue-misses-record")
        assert sum(missed) == 30
        assert sum(map(len, store.read_log(columns=["topic"]))) == 100


WRITERS: dict[str, Callable[[Path], Any]] = {
    "recover": recover,
    "plan_recovery": plan_recovery,
    "append_to": MessageStore.append_to,
}


@pytest.mark.parametrize("use", WRITERS)
def test_nothing_is_repaired_or_written_beside_a_database(root: Path, use: str) -> None:
    with pytest.raises(UnsupportedStoreError, match="RocksDB database too") as caught:
        WRITERS[use](root)
    assert "rmqstore rebuild" in str(caught.value)


def test_retention_deletes_nothing_beside_a_database(copy: GoldenStore) -> None:
    add_database(copy, "consumequeue_rocksdb")
    with copy.open() as store:
        plan = plan_retention(store, keep_from=10**14)
    assert plan.unread  # what is not changed at all is said before the advice to lose it
    with pytest.raises(UnsupportedStoreError, match="RocksDB database too"):
        apply_retention(plan)


def test_rebuild_leaves_the_database_behind(root: Path, tmp_path: Path) -> None:
    before = entries_in(the_queue(root))
    rebuild(root, tmp_path / "new")
    assert not (tmp_path / "new" / "consumequeue" / "CURRENT").exists()
    assert entries_in(the_queue(tmp_path / "new")) == before


def test_light_queues_are_in_the_database_alone(tmp_path: Path) -> None:
    """combineCQUseRocksdbForLmq: all other queues are in files."""
    golden = unpack("lmq-5.3.3", tmp_path)
    root = Path(golden.path)
    with golden.open() as store:
        before = sorted(offsets(store))
        light = [queue for queue in store.queues() if queue.topic.startswith("%LMQ%")]
        rows = {queue: places_in(store, queue) for queue in light}
    assert light
    for queue in light:
        shutil.rmtree(root / "consumequeue" / queue.topic, ignore_errors=True)
    write_queue_database(root / "consumequeue_rocksdb", rows)
    with golden.open() as store:
        assert [queue for queue in store.queues() if queue.topic.startswith("%LMQ%")] == light
        assert all(store.view.state(queue).tail is None for queue in light)
        assert sorted(offsets(store)) == before == sorted(wanted(golden) + light_rows(golden))
        assert verify(store).nothing_wrong


def light_rows(golden: GoldenStore) -> list[int]:
    """The log offsets of the records that light queues list besides."""
    return [
        record["commitLogOffset"]
        for queue, records in golden.by_queue.items()
        if queue.topic.startswith("%LMQ%")
        for record in records
    ]
