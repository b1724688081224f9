"""An index file that is cut while a chain of it is walked: an error, and not fewer messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import DataLossError
from rmq_store.format.hashes import index_key, index_key_hash
from rmq_store.index.index_file_reader import Hit
from tests.support.stores import SMALL


@pytest.mark.parametrize("cut", [0, 16, 20])
def test_a_cut_during_a_walk_is_an_error(cut: int, tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        for number in range(6):
            store.append({"topic": "orders", "queueId": 0, "body": b"%d" % number, "keys": "k"})
    with MessageStore.open(tmp_path / "s") as store:
        (file,) = store.key_index().files
        found: list[Hit] = []
        walk = file.walk(index_key_hash(index_key("orders", "k")), found)
        for _ in range(3):  # the slot, the newest item, and the next
            next(walk)
        assert len(found) == 1
        os.truncate(file.path, file.item_at(4) + cut)
        with pytest.raises(DataLossError):
            list(walk)
