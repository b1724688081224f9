"""Stores of real brokers with queues in a RocksDB database, against what a client pulled from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId, QueueSlice
from rmq_store.admin.info import store_info, summary_of
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import CorruptQueueError, UnsupportedStoreError
from rmq_store.verify import verify
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, unpack_kind, verified
from tests.support.rocksdb import places_in, write_queue_database

CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"
COLUMNS = {
    "topic": "topic",
    "queueId": "queue",
    "queueOffset": "offset",
    "commitLogOffset": "phy",
    "storeSize": "size",
    "uniqKey": "msgId",
    "bodyCrc": "bodyCrc",
    "storeTimestamp": "storeTs",
}


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind(CLEAN, tmp_path)


def served(golden: GoldenStore) -> list[tuple[Any, ...]]:
    """What the client pulled, in the order of the log."""
    lines = sorted(golden.lines("served"), key=lambda line: line["phy"])
    return [tuple(line[name] for name in COLUMNS.values()) for line in lines]


def read(store: MessageStore, topics: set[str]) -> list[tuple[Any, ...]]:
    """The rows of these topics, times in ms, in the order of the log."""
    table = store.read_batches(sorted(topics), columns=list(COLUMNS)).read_all()
    stored = table.column("storeTimestamp").cast("int64").to_pylist()
    rows = table.drop_columns("storeTimestamp").to_pylist()
    return [(*row.values(), time) for row, time in zip(rows, stored, strict=True)]


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_rows_are_those_that_a_client_got(tmp_path: Path, name: str) -> None:
    golden = unpack_kind(name, tmp_path)
    wanted, before = served(golden), golden.fingerprint()
    with MessageStore.open(golden.path) as store:
        topics = {row[0] for row in wanted}
        assert set(store.topics(include_system=False)) >= topics
        assert read(store, topics) == wanted
        assert [*store.opening.losses(), *store.opening.notes()] == []
        for queue in {QueueId(row[0], row[1]) for row in wanted}:
            count = sum(row[:2] == queue for row in wanted)
            assert (store.min_offset(*queue), store.max_offset(*queue)) == (0, count)
    assert golden.fingerprint() == before


def test_a_database_in_its_own_folder_is_found(golden: GoldenStore) -> None:
    """useSeparateStorePathForRocksdbCQ."""
    root = Path(golden.path)
    (root / "consumequeue").rename(root / "consumequeue_rocksdb")
    wanted = served(golden)
    with MessageStore.open(golden.path) as store:
        assert read(store, {row[0] for row in wanted}) == wanted


def test_an_offset_and_a_time_are_found_as_in_files(golden: GoldenStore) -> None:
    wanted = [row for row in served(golden) if row[:2] == ("orders", 2)]
    with MessageStore.open(golden.path) as store:
        queue = QueueId("orders", 2)
        for row in wanted:
            assert store.view.offset_at_log(queue, row[3]) == row[2]
            assert store.view.offset_at_log(queue, row[3] - 1) == row[2]
            assert store.log_offset_of(queue, row[2]) == row[3]
            earlier = [one[2] for one in wanted if one[7] < row[7]]
            assert store.first_since(queue, row[7]) == len(earlier)
        found = store.get_message("orders", 2, 40, 10)
        assert [one.commit_log_offset for one in found.messages] == [r[3] for r in wanted[40:50]]


def test_a_store_that_is_open_keeps_what_a_broker_deletes(golden: GoldenStore) -> None:
    """As a compaction does with the files that it has merged."""
    wanted = served(golden)
    with MessageStore.open(golden.path) as store:
        shutil.rmtree(Path(golden.path, "consumequeue"))
        assert read(store, {row[0] for row in wanted}) == wanted


def test_a_snapshot_shows_the_same_rows_to_another_process(golden: GoldenStore) -> None:
    wanted = served(golden)
    with MessageStore.open(golden.path) as store, store.reopen() as other:
        assert other.snapshot().queues == store.snapshot().queues
        assert read(other, {row[0] for row in wanted}) == wanted


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """rocksdict is not installed."""
    monkeypatch.setattr("rmq_store.files.rocksdb.find_spec", lambda name: None)


@pytest.mark.usefixtures("without_library")
@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_without_the_library_the_log_is_read_and_the_error_says_what_to_install(
    tmp_path: Path, name: str
) -> None:
    golden = unpack_kind(name, tmp_path)
    with pytest.raises(UnsupportedStoreError, match=r"pip install 'rmqstore\[rocksdb\]'") as caught:
        MessageStore.open(golden.path)
    assert caught.value.path == str(Path(golden.path, "consumequeue"))
    wanted = {row[3] for row in served(golden)}
    with MessageStore.open(golden.path, queues=False) as store:
        log = store.read_log(columns=["commitLogOffset"]).read_all()
        assert wanted <= set(log.column(0).to_pylist())


def test_info_counts_the_queues_of_the_database(golden: GoldenStore, tmp_path: Path) -> None:
    info, folder = store_info(golden.path), str(Path(golden.path, "consumequeue"))
    users = {row[:2] for row in served(golden)}
    assert info.topics == len({topic for topic, _ in users})
    assert (info.queues or 0) > len(users)
    assert (info.rocksdbQueues, info.queuesUnread) == (folder, None)
    assert store_info(unpack_kind(CRASHED, tmp_path).path).queues == 12


@pytest.mark.usefixtures("without_library")
def test_info_says_what_to_install(golden: GoldenStore) -> None:
    info = store_info(golden.path)
    end = MessageStore.open(golden.path, queues=False).log_range()[1]
    assert (info.topics, info.queues, info.logEnd) == (None, None, end)
    facts = dict(summary_of(info))
    assert "pip install 'rmqstore[rocksdb]'" in facts["queues"]
    assert (facts["queues"].startswith("not known: "), "topics" in facts) == (True, False)


def test_verify_compares_the_database_with_the_log(golden: GoldenStore) -> None:
    report = verified(golden.path)
    assert list(report.findings) == []
    wanted = [row for row in served(golden) if row[:2] == ("orders", 0)]
    queue, folder = QueueId("orders", 0), Path(golden.path, "consumequeue")
    entries = {row[2]: (row[3], row[4], 0) for row in wanted}
    del entries[7]
    entries[9] = (entries[9][0] + 1, *entries[9][1:])
    shutil.rmtree(folder)
    write_queue_database(folder, {queue: entries})
    found = {one.code: one for one in verified(golden.path).findings if "orders/0" in one.meaning}
    assert found["queue-misses-record"].count == 2
    assert "queue offsets 7, 9" in found["queue-misses-record"].meaning
    assert found["queue-dangling-entry"].path == str(folder)


def test_entries_that_are_gone_are_reported_and_no_row(tmp_path: Path) -> None:
    """The last offset counts, and keys beyond it do not; a message that has no key is lost."""
    golden, queue, gone = unpack_kind(CLEAN, tmp_path), QueueId("orders", 1), (0, 1, 50, 51)
    wanted = [row for row in served(golden) if row[:2] == queue]
    entries = {row[2]: (row[3], row[4], 0) for row in wanted}
    beyond = {112: entries[111], 113: entries[110]}
    kept = {offset: place for offset, place in entries.items() if offset not in gone}
    folder = Path(golden.path, "consumequeue")
    shutil.rmtree(folder)
    write_queue_database(folder, {queue: kept | beyond}, last={queue: 111})
    damage: list[Exception] = []
    with MessageStore.open(golden.path) as store:
        assert (store.min_offset(*queue), store.max_offset(*queue)) == (2, 112)
        with pytest.raises(CorruptQueueError, match="orders/1, which has later messages"):
            store.read_batches("orders", [1], columns=["body"]).read_all()
        how: dict[str, Any] = {"columns": ["queueOffset", "body"], "on_damage": damage.append}
        rows = store.read_batches("orders", [1], **how).read_all()
        assert rows.column(0).to_pylist() == list(kept)
    lists_none = [error for error in damage if "lists none" in str(error)]
    assert len(lists_none) == 2


@pytest.mark.parametrize("kept", [3, 2, 0])
def test_expired_entries_are_no_damage(tmp_path: Path, kept: int) -> None:
    """The compaction filter removes the entries of expired messages one by one, and knows no order."""
    golden = unpack_kind(CRASHED, tmp_path)
    root = Path(golden.path)
    first, second = sorted((root / "commitlog").iterdir())
    rows = [row for row in served(golden) if row[:2] == ("orders", 0)]
    base = int(second.name)
    lines = [(row[2], (row[3], row[4], 0)) for row in rows]
    assert all(place[0] < base for _, place in lines), "all are in the first file"
    (root / "abort").unlink()
    shutil.rmtree(root / "consumequeue")
    queue = QueueId("orders", 0)
    some = {offset: place for offset, place in lines if kept and offset % kept}
    write_queue_database(root / "consumequeue", {queue: some}, last={queue: 129})
    first.unlink()
    with MessageStore.open(golden.path) as store:
        assert store.min_offset(*queue) == store.max_offset(*queue) == 130
        assert store.read_batches("orders").read_all().num_rows == 0


def test_a_long_queue_is_read_over_its_parts(golden: GoldenStore) -> None:
    """A part has 300,000 queue offsets. The entries lead to records of another queue, and are not read."""
    root = Path(golden.path)
    shutil.rmtree(root / "consumequeue")
    queue, count = QueueId("orders", 0), 700_000
    entries = {number: (number, 1, number) for number in range(299_990, count)}
    write_queue_database(root / "consumequeue", {queue: entries})
    files = QueueFolders(root, StoreConfig.of(None)).files(queue)
    assert (files.first_unit, files.find_end_unit(), files.has_holes) == (299_990, count, False)
    found = files.entries(299_990, count)
    assert found.log_offset.tolist() == found.tags_code.tolist() == list(entries)
    for place in (299_990, 299_999, 300_000, 450_001, 599_999, 600_000, 699_999):
        assert files.first_pointing_at_or_after(place, 299_990, count) == place
        assert files.unit(place) == (place, 1)


BATCHES = QueueId("batches", 0)
KEYS = [name for n in range(4) for name in (*(f"k{n}-{i}" for i in range(3)), f"s{n}")]


def test_an_inner_batch_has_one_entry_and_all_its_messages(tmp_path: Path) -> None:
    """The broker lists it at its first offset, and fails when a consumer comes to the next one."""
    golden = unpack_kind("rocksdb-batch-5.5.0", tmp_path)
    before = golden.fingerprint()
    how: dict[str, Any] = {"columns": ["queueOffset", "keys"]}
    with MessageStore.open(golden.path) as store:
        found = store.read_batches("batches", unwrap_batches=True, **how).read_all()
        assert found.column("keys").to_pylist() == KEYS
        assert found.column("queueOffset").to_pylist() == list(range(16))
        records = store.read_batches("batches", **how).read_all()
        heads = [n for n in range(16) if n % 4 in (0, 3)]
        assert records.column("queueOffset").to_pylist() == heads
        for start in range(16):
            part = [QueueSlice(BATCHES, start, start + 1)]
            one = store.read_slices(part, unwrap_batches=True, **how).read_all()
            assert one.column("keys").to_pylist() == [KEYS[start]]
            offset = store.read_slices(part, unwrap_batches=True, columns=["queueOffset"])
            assert offset.read_all() == one.select(["queueOffset"])
        log = store.read_log(unwrap_batches=True, **how).read_all()
        assert log.column("keys").to_pylist() == KEYS
        assert store.read_batches("batches", columns=["queueOffset"]).read_all().num_rows == 8
        assert [one.code for one in verify(store).findings] == ["inner-batches-in-rocksdb"]
    assert golden.fingerprint() == before


def test_the_last_messages_of_an_inner_batch_are_there(tmp_path: Path) -> None:
    """The last offset in the database is that of the batch: the broker forgets those behind it."""
    golden = unpack_kind("rocksdb-batch-5.5.0", tmp_path)
    with MessageStore.open(golden.path) as store:
        places = places_in(store, BATCHES)
        end = store.log_range()[1]
    last = places.pop(15)
    write_in_log(golden, last[0], bytes(end - last[0]))
    Path(golden.path, "checkpoint").unlink()
    shutil.rmtree(Path(golden.path, "consumequeue"))
    write_queue_database(Path(golden.path, "consumequeue"), {BATCHES: places})
    with MessageStore.open(golden.path) as store:
        assert store.max_offset(*BATCHES) == 15
        found = store.read_batches("batches", columns=["keys"], unwrap_batches=True).read_all()
        assert found.column("keys").to_pylist() == KEYS[:15]


def test_an_entry_of_a_batch_topic_that_is_gone_is_counted(tmp_path: Path) -> None:
    """No batch stands before it."""
    golden = unpack_kind("rocksdb-batch-5.5.0", tmp_path)
    with MessageStore.open(golden.path) as store:
        places = places_in(store, BATCHES)
    del places[7]
    shutil.rmtree(Path(golden.path, "consumequeue"))
    write_queue_database(Path(golden.path, "consumequeue"), {BATCHES: places})
    with MessageStore.open(golden.path) as store:
        found = store.read_batches("batches", columns=["keys"], unwrap_batches=True).read_all()
        lost = [one.count for one in verify(store).findings if one.code == "queue-misses-record"]
    assert found.column("keys").to_pylist() == [key for key in KEYS if key != "s1"]
    assert lost == [1]
