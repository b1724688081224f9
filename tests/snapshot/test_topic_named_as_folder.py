"""A broker names a topic after itself. The name of the store's folder proves no broker of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.info import store_info
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import Scan
from tests.support.golden import GoldenStore


@pytest.fixture
def golden(copy: GoldenStore, tmp_path: Path) -> GoldenStore:
    """A real broker's store, in a folder with the name of one of its topics."""
    Path(copy.path).rename(tmp_path / "orders")
    return copy


def test_a_topic_with_the_name_of_the_folder_is_a_users(
    golden: GoldenStore, tmp_path: Path
) -> None:
    path = tmp_path / "orders"
    sent = sum(record["topic"] == "orders" for record in golden.truth)
    with MessageStore.open(path) as store:
        assert "orders" in store.topics(include_system=False)
        batches = store.read_batches(columns=["topic"])
        rows = sum(batch["topic"].to_pylist().count("orders") for batch in batches)
    assert rows == sent
    for options in ({"path": str(path)}, {"path": str(tmp_path / "ord*")}):
        (plan,) = Scan.of(parse_options(options)).stores
        assert sum(len(part) for part in plan.ranges if part.queue.topic == "orders") == sent
    assert store_info(str(path)).topics == store_info(str(path), broker_name="x").topics


def test_a_name_that_is_given_is_that_of_the_broker(golden: GoldenStore, tmp_path: Path) -> None:
    path = (tmp_path / "orders").rename(tmp_path / "store")
    with MessageStore.open(path, broker_name="orders") as store:
        assert "orders" not in store.topics(include_system=False)
        assert "orders" in store.topics()
