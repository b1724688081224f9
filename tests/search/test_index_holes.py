"""Keys of records that a broker did not index, because it ran for a while with messageIndexEnable=false."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.index import index_file_reader as index_file
from rmq_store.search.find_messages import find
from rmq_store.search.queue_selection import Search
from tests.support.golden import GoldenStore, unpack
from tests.support.spark.reads import rows_of
from tests.support.stores import SMALL, append_many


def store_with_a_hole(folder: Path) -> tuple[Path, range]:
    """A store whose second hundred messages of three are not indexed, all in one index file."""
    path, sizes = folder / "store", {**SMALL, "maxIndexNum": 5000}
    with MessageStore.create(path, sizes) as store:
        append_many(store, 100)
    with MessageStore.append_to(path, {**sizes, "messageIndexEnable": False}) as store:
        append_many(store, 100, 100)
    with MessageStore.append_to(path, sizes) as store:
        append_many(store, 100, 200)
    assert len(list((path / "index").iterdir())) == 1
    return path, range(100, 200)


@pytest.mark.parametrize("sampled", [False, True])
def test_keys_in_a_hole_of_an_index_file_are_found(
    sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:  # as in a file of millions of items
        monkeypatch.setattr(index_file, "_ALL_ITEMS", 10)
    path, hole = store_with_a_hole(tmp_path)
    with MessageStore.open(path) as store:
        names = ["topic", "keys", "queueOffset", "queueId"]
        rows = [row for batch in store.read_batches(columns=names) for row in batch.to_pylist()]
        assert len(rows) == 300
        for row in [rows[number] for number in (50, *hole[::9], 250)]:
            topic, key = row["topic"], row["keys"].split(" ")[0]
            wanted = [r for r in rows if r["topic"] == topic and key in r["keys"].split(" ")]
            asked = store.query_message(topic, key, 1000)
            assert len(asked) == len(wanted)
            search = Search([topic], keys=[key])
            found = [row for batch in find(store, search, names) for row in batch.to_pylist()]
            assert sorted(map(str, found)) == sorted(map(str, wanted))
    options: dict[str, Any] = {"path": str(path), "topic": topic, "keys": key}
    assert len(rows_of(options)) == len(wanted)


def test_an_index_of_a_broker_without_holes_adds_no_reads(tmp_path: Path) -> None:
    golden: GoldenStore = unpack("clean-5.5.0", tmp_path)
    with golden.open() as store:
        index = store.key_index()
        gaps = list(index.gaps())
        assert sum(map(len, index._inside.values())) == 0
        assert len(gaps) <= len(index.files)
