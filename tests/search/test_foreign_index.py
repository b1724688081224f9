"""An index that was copied from another store hides no message of a key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.golden import STORES, unpack
from tests.support.running.commands import objects, run

NAME = "clean-5.5.0"


@pytest.mark.parametrize(
    ("other", "key"), [("clean-5.3.3", "CUSTOMER_11"), ("crash-5.5.0", "CUSTOMER_14")]
)
def test_an_index_of_another_store_is_not_believed(other: str, key: str, tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path / "own")
    found = objects("find", golden.path, "--key", key)
    traced = run("trace", golden.path, key)
    index = Path(golden.path, "index")
    shutil.rmtree(index)
    shutil.copytree(Path(unpack(other, tmp_path / "other").path, "index"), index)
    assert sorted(map(str, objects("find", golden.path, "--key", key))) == sorted(map(str, found))
    assert run("trace", golden.path, key) == traced


def test_an_index_of_another_store_is_not_believed_where_queues_are_lost(tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path / "own")
    index = Path(golden.path, "index")
    shutil.rmtree(index)
    shutil.copytree(Path(unpack("clean-5.3.3", tmp_path / "other").path, "index"), index)
    with golden.open() as store:
        distrusted = len(store.key_index().unreadable)
    shutil.rmtree(Path(golden.path, "consumequeue", "orders"))
    with golden.open() as store:
        assert len(store.key_index().unreadable) == distrusted > 0


def test_a_single_file_of_another_store_is_not_believed(tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path / "own")
    found = objects("find", golden.path, "--key", "CUSTOMER_11")
    own, others = (
        sorted(Path(path, "index").iterdir())
        for path in (golden.path, unpack("clean-5.3.3", tmp_path / "other").path)
    )
    shutil.copy(others[6], own[6])
    assert sorted(map(str, objects("find", golden.path, "--key", "CUSTOMER_11"))) == sorted(
        map(str, found)
    )
    rows = objects("table", "index", golden.path)
    (distrusted,) = (row for row in rows if row["path"] == str(own[6]))
    assert "the log has other records" in distrusted["problem"]
    assert distrusted["beginLogOffset"] is None


def test_a_file_of_another_store_from_before_the_log_to_after_it_is_not_believed(
    tmp_path: Path,
) -> None:
    golden, other = unpack("expired-5.5.0", tmp_path / "own"), unpack(NAME, tmp_path / "other")
    key = next(
        row["keys"] for row in objects("cat", golden.path, "--topic", "orders") if row["keys"]
    )
    found = objects("find", golden.path, "--key", key)
    conf = tmp_path / "broker.conf"
    conf.write_text("maxHashSlotNum=1000\nmaxIndexNum=20000\n")
    rebuilt = tmp_path / "rebuilt"
    run("rebuild", other.path, "--to", str(rebuilt), "--broker-conf", str(conf))
    index = Path(golden.path, "index")
    shutil.rmtree(index)
    shutil.copytree(rebuilt / "index", index)
    assert objects("find", golden.path, "--key", key) == found
    assert "the log has other records" in objects("table", "index", golden.path)[0]["problem"]


def test_a_log_file_of_another_store_is_no_reason_to_distrust_the_index(tmp_path: Path) -> None:
    golden, other = unpack(NAME, tmp_path / "own"), unpack("clean-5.3.3", tmp_path / "other")
    name = "commitlog/00000000000000262144"
    transactions = objects("transactions", golden.path)
    shutil.copy(Path(other.path, name), Path(golden.path, name))
    with golden.open() as store:
        assert not store.key_index().unreadable
    assert objects("transactions", golden.path) == transactions


@pytest.mark.parametrize("name", STORES)
def test_no_index_of_a_real_broker_counts_as_foreign(name: str, tmp_path: Path) -> None:
    with unpack(name, tmp_path).open() as store:
        assert not store.key_index().unreadable
