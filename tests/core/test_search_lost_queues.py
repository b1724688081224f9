"""A key is found by the index where its queue has lost its files: `find` of the truth's messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.errors import UnknownQueueError
from rmq_store.search import Search, find
from tests.support.golden import GoldenStore, Truth, in_a_queue, keys_of, unpack, user_topic


def places(store: MessageStore, search: Search) -> list[int]:
    columns = ["commitLogOffset", "queueOffset"]
    return [row["commitLogOffset"] for b in find(store, search, columns) for row in b.to_pylist()]


def with_key(golden: GoldenStore, key: str, topic: str | None = None) -> list[int]:
    return [
        r["commitLogOffset"]
        for r in golden.truth
        if user_topic(r) and in_a_queue(r) and topic in (None, r["topic"]) and key in keys_of(r)
    ]


@pytest.mark.parametrize("gone", ["orders/0", "orders", ""], ids=["queue", "topic", "all"])
def test_a_key_is_found_though_its_queue_is_gone(tmp_path: Path, gone: str) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    shutil.rmtree(Path(golden.path, "consumequeue", gone))
    sample: list[Truth] = [r for r in golden.truth if r["topic"] == "orders" and r["keys"]][::40]
    assert any(record["queueId"] == 0 for record in sample)
    with golden.open() as store:
        for record in sample:
            key = record["keys"].split(" ")[0]
            assert sorted(places(store, Search(key=key))) == with_key(golden, key)
            of_topic = places(store, Search(["orders"], key=key))
            assert sorted(of_topic) == with_key(golden, key, "orders")
            other = Search(["orders"], [(record["queueId"] + 1) % 4], key=key)
            assert record["commitLogOffset"] not in places(store, other)
            at = record["storeTimestamp"]
            assert record["commitLogOffset"] in places(store, Search(key=key, begin=at, end=at + 1))
            assert record["commitLogOffset"] not in places(store, Search(key=key, begin=at + 1))
        with pytest.raises(UnknownQueueError):
            places(store, Search(["no-such-topic"], key="k"))
