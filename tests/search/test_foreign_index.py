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


@pytest.mark.parametrize("name", STORES)
def test_no_index_of_a_real_broker_counts_as_foreign(name: str, tmp_path: Path) -> None:
    with unpack(name, tmp_path).open() as store:
        assert not store.key_index().unreadable
