"""A store that changes under a query, or is replaced by another: the query sees one state, or fails."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import (
    CorruptQueueError,
    DataLossError,
    MissingFileError,
    OtherStoreError,
    StoreError,
)
from spark_source.source import RmqStoreReader, RmqStoreSource
from tests.support.golden import Golden, GoldenStore

BEFORE = "clean-5.1.1"


@pytest.fixture
def path(golden: Golden, tmp_path: Path) -> Path:
    """A copy of the store that was there before."""
    return Path(shutil.copytree(golden(BEFORE).path, tmp_path / "store"))


def reader_of(path: Path, **options: str) -> RmqStoreReader:
    given = {"path": str(path), "maxbytesperpartition": "20k", "brokername": "b", **options}
    source = pickle.loads(pickle.dumps(RmqStoreSource(given)))
    reader = source.reader(source.schema())
    assert isinstance(reader, RmqStoreReader)
    return reader


def replace_store(path: Path, other: GoldenStore) -> None:
    shutil.rmtree(path)
    shutil.copytree(other.path, path)


@pytest.mark.parametrize("after", ["clean-5.5.0", "geometry-5.5.0", "expired-5.5.0"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": "topic,queueId,queueOffset"},
        {"source": "commitlog"},
        {"source": "commitlog", "failondataloss": "false"},
        {"topic": "orders", "mode": "DROPMALFORMED", "failondataloss": "false"},
        {"topic": "orders", "mode": "PERMISSIVE"},
    ],
)
def test_a_query_never_mixes_two_stores(
    golden: Golden, path: Path, after: str, options: dict[str, str]
) -> None:
    reader = reader_of(path, **options)
    partitions = list(reader.partitions())
    assert any(batch.num_rows for batch in reader.read(partitions[0]))
    replace_store(path, golden(after))
    for partition in partitions:
        with pytest.raises(OtherStoreError):
            list(reader.read(partition))
    with pytest.raises(OtherStoreError):
        [list(reader.read(partition)) for partition in reader.partitions()]  # the next action
    again = reader_of(path)
    assert any(batch.num_rows for batch in again.read(again.partitions()[0]))


def test_a_store_that_is_replaced_while_a_task_reads_is_noticed_at_its_end(
    golden: Golden, path: Path
) -> None:
    reader = reader_of(path, maxbytesperpartition="1g", mode="DROPMALFORMED")
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    replace_store(path, golden("clean-5.5.0"))
    with pytest.raises(OtherStoreError):
        list(batches)


def test_a_store_whose_log_begins_after_the_one_before_may_be_another(
    golden: Golden, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden("expired-5.5.0").path, path)
    reader = reader_of(path, source="commitlog")
    partitions = list(reader.partitions())
    for file in (path / "commitlog").iterdir():
        file.rename(file.with_name(f"{int(file.name) + (1 << 20):020}"))
    with pytest.raises(DataLossError, match=r"gone.*If another store is at the path now"):
        list(reader.read(partitions[0]))


def expire(path: Path) -> None:
    """Delete the oldest file of the log, as a broker does."""
    min((path / "commitlog").iterdir()).unlink()


def test_log_files_that_expire_before_a_task_reads_them_are_data_loss(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readers = [
        reader_of(path, source="commitlog", failondataloss=loss) for loss in ("true", "false")
    ]
    planned = [list(reader.partitions()) for reader in readers]
    expire(path)
    with pytest.raises(DataLossError, match="files of the log that the plan"):
        [list(readers[0].read(partition)) for partition in planned[0]]
    rest = sum(b.num_rows for one in planned[1] for b in readers[1].read(one))
    again = reader_of(path, source="commitlog")
    assert rest == sum(b.num_rows for one in again.partitions() for b in again.read(one)) > 0
    assert "RMQSTORE_DATA_LOSS" in caplog.text
    for file in (path / "commitlog").iterdir():
        file.unlink()
    with pytest.raises(StoreError):
        [list(readers[0].read(partition)) for partition in planned[0]]


def delete_orders(path: Path, *, declared: bool = False) -> None:
    """As a broker deletes a topic; or only its queues, as a disk loses them."""
    shutil.rmtree(path / "consumequeue" / "orders")
    if not declared:
        for name in ("topics.json", "topics.json.bak"):
            file = path / "config" / name
            if file.exists():
                file.write_text(file.read_text().replace('"orders"', '"orders-before"'))


@pytest.mark.parametrize("options", [{}, {"columns": "topic,queueId,queueOffset"}])
def test_a_topic_that_is_deleted_after_load_is_not_read_as_empty(
    golden: Golden, path: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(path, topic="orders", **options)
    goes_on = reader_of(path, topic="orders", failondataloss="false", **options)
    delete_orders(path)
    with pytest.raises(DataLossError, match="queue orders/0 was deleted"):
        [list(reader.read(partition)) for partition in reader.partitions()]
    caplog.clear()
    assert not any(list(goes_on.read(partition)) for partition in goes_on.partitions())
    truth = [r for r in golden(BEFORE).truth if r["topic"] == "orders"]
    assert f"(at least {len(truth)} messages)" in caplog.text


def test_queues_that_a_disk_lost_are_damage(path: Path) -> None:
    reader = reader_of(path, topic="orders", failondataloss="false")
    delete_orders(path, declared=True)
    with pytest.raises(CorruptQueueError, match="queue orders/0"):
        [list(reader.read(partition)) for partition in reader.partitions()]


def test_a_dataset_says_that_a_topic_was_deleted(path: Path) -> None:
    with MessageStore.open(path) as store:
        messages = store.messages("orders")
        delete_orders(path)
        with pytest.raises(MissingFileError, match="was deleted with its topic"):
            messages.to_table()
