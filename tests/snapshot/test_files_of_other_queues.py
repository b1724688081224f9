"""Queues with a folder or a file that was copied, renamed or exchanged, where no record is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import CorruptQueueError, StoreError
from rmq_store.snapshot import files_of_other_queues, unlisted_records
from tests.support.golden import STORES, GoldenStore, unpack
from tests.support.running.commands import call
from tests.support.spark.reads import rows_of

NAME = "clean-5.5.0"
OF_QUEUES = ("topic", "queueOffset")


@pytest.fixture(params=["all entries", "two a file"])
def looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with few entries, and one with so many that two of each file are looked at."""
    if request.param == "two a file":
        monkeypatch.setattr(unlisted_records, "MOST_LISTED", 10)


def count(store: MessageStore, topic: str) -> int:
    """The messages of a topic, by its queues alone."""
    return sum(batch.num_rows for batch in store.read_batches(topic, columns=OF_QUEUES))


def copied(golden: GoldenStore) -> Path:
    """The store, with a copy of a topic's folder beside it."""
    queues = Path(golden.path, "consumequeue")
    shutil.copytree(queues / "payments", queues / "payments-old")
    return Path(golden.path)


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("name", STORES)
def test_no_queue_of_a_real_store_is_called_one(name: str, tmp_path: Path) -> None:
    with unpack(name, tmp_path).open() as store:
        assert store.view.health.of_other_queues.by_queue == {}


@pytest.mark.usefixtures("looked_at")
def test_a_copied_folder_counts_as_damage(tmp_path: Path) -> None:
    with MessageStore.open(copied(unpack(NAME, tmp_path))) as store:
        assert count(store, "payments") == 418
        with pytest.raises(CorruptQueueError, match="payments-old/0 lists 216 records of other"):
            count(store, "payments-old")


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("files", ["0000", "2000"])
def test_exchanged_files_count_as_damage(files: str, tmp_path: Path) -> None:
    path = Path(unpack(NAME, tmp_path).path, "consumequeue/orders")
    one, other = (next((path / number).glob(f"*{files}")) for number in "01")
    aside = one.rename(path / "aside")
    other.rename(one)
    aside.rename(other)
    with MessageStore.open(path.parent.parent) as store:
        by_queue = store.view.health.of_other_queues.by_queue
        found = {q.queue_id: [one.stop - one.start for one in its] for q, its in by_queue.items()}
        assert found == {0: [100], 1: [100]}
        with pytest.raises(CorruptQueueError, match=r"queue orders/[01]"):
            count(store, "orders")
        assert count(store, "payments") == 418


@pytest.mark.parametrize("command", ["topics", "queues", "lag"])
def test_a_command_names_a_copied_folder(command: str, tmp_path: Path) -> None:
    said = call(command, str(copied(unpack(NAME, tmp_path))))
    assert said.returncode == 1
    assert "queue payments-old/1 lists 202 records of other queues, at queue offsets" in said.stderr
    assert "Move it away if it is a copy, or rebuild" in said.stderr


def test_a_copy_beside_many_files_may_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that it takes is limited, whatever the store has."""
    monkeypatch.setattr(unlisted_records, "MOST_LISTED", 10)
    monkeypatch.setattr(files_of_other_queues, "MOST_FILES", 1)
    with MessageStore.open(copied(unpack(NAME, tmp_path))) as store:
        assert store.view.health.of_other_queues.by_queue == {}
        assert store.log.chain.counts.bytes < 10_000


@pytest.mark.usefixtures("looked_at")
def test_its_rows_are_left_out_where_damage_is(tmp_path: Path) -> None:
    path, columns = copied(unpack(NAME, tmp_path)), ",".join(OF_QUEUES)
    said: list[StoreError] = []
    with MessageStore.open(path) as store:
        batches = store.read_batches("payments-old", columns=OF_QUEUES, on_damage=said.append)
        assert [batch.num_rows for batch in batches if batch.num_rows] == []
        assert [error.entry.messages for error in said if error.entry] == [216, 202]
    options = {"path": str(path), "topic": "payments, payments-old", "columns": columns}
    assert len(rows_of({**options, "mode": "DROPMALFORMED"})) == 418


def test_a_damaged_entry_of_a_queue_with_one_is_no_copied_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlisted_records, "MOST_LISTED", 10)
    path = Path(unpack(NAME, tmp_path).path)
    alone = path / "consumequeue/alone/0"
    alone.mkdir(parents=True)
    held = (path / "consumequeue/orders/0/00000000000000000000").read_bytes()
    (alone / "00000000000000000000").write_bytes(held[:20] + bytes(len(held) - 20))
    with MessageStore.open(path) as store:
        assert store.max_offset("alone", 0) == 1
        assert store.view.health.of_other_queues.by_queue == {}
