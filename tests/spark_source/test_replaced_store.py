"""A store that another one replaces at its path: a query sees one of them, or fails."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.errors import OtherStoreError
from spark_source.source import RmqStoreSource
from spark_source.spark_reader import RmqStoreReader
from tests.support.golden import GoldenStore

Golden = Callable[[str], GoldenStore]
BEFORE = "clean-5.1.1"


def reader_of(path: Path, **options: str) -> RmqStoreReader:
    given = {"path": str(path), "maxbytesperpartition": "20k", "brokername": "b", **options}
    source = pickle.loads(pickle.dumps(RmqStoreSource(given)))
    reader = source.reader(source.schema())
    assert isinstance(reader, RmqStoreReader)
    return reader


def replace_store(path: Path, other: GoldenStore) -> None:
    shutil.rmtree(path)
    shutil.copytree(other.path, path)


@pytest.mark.parametrize("after", ["clean-5.5.0", "geometry-5.5.0"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": "topic,queueId,queueOffset"},
        {"source": "commitlog"},
        {"topic": "orders", "mode": "DROPMALFORMED", "failondataloss": "false"},
        {"topic": "orders", "mode": "PERMISSIVE"},
    ],
)
def test_a_query_never_mixes_two_stores(
    golden: Golden, tmp_path: Path, after: str, options: dict[str, str]
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden(BEFORE).path, path)
    reader = reader_of(path, **options)
    partitions = list(reader.partitions())
    assert any(batch.num_rows for batch in reader.read(partitions[0]))
    replace_store(path, golden(after))
    for partition in partitions:
        with pytest.raises(OtherStoreError, match="another store is at this path"):
            list(reader.read(partition))
    with pytest.raises(OtherStoreError, match="another store is at this path"):
        [list(reader.read(partition)) for partition in reader.partitions()]  # the next action
    again = reader_of(path)
    assert any(batch.num_rows for batch in again.read(again.partitions()[0]))


def test_a_store_that_is_replaced_while_a_task_reads_is_noticed_at_its_end(
    golden: Golden, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    shutil.copytree(golden(BEFORE).path, path)
    reader = reader_of(path, maxbytesperpartition="1g", mode="DROPMALFORMED")
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    replace_store(path, golden("clean-5.5.0"))
    with pytest.raises(OtherStoreError):
        list(batches)
