"""A store whose log is gone, or zeros, as `info` and `usage` describe it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.golden import unpack
from tests.support.running.commands import objects, run


def remove(file: Path) -> None:
    file.unlink()


def clear(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("lose", [remove, clear])
def test_a_log_without_a_record_is_lost_if_the_checkpoint_knows_of_one(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    for file in (Path(store.path) / "commitlog").iterdir():
        lose(file)
    assert "the log is lost" in run("info", store.path, expect=1)


def test_usage_of_a_log_that_is_gone_has_no_shares(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    for file in (Path(store.path) / "commitlog").iterdir():
        file.unlink()
    lines = run("usage", store.path, expect=1).splitlines()[1:]  # no message can be read
    assert lines
    assert all(line.endswith("\t") for line in lines)
    assert {row["share"] for row in objects("usage", store.path, expect=1)} == {None}
