"""A store whose log is gone, or zeros, as `info` and `usage` describe it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.admin.info import store_info
from tests.support.golden import log_files, unpack
from tests.support.running.commands import call, objects, run


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


@pytest.mark.parametrize("checkpoint", [True, False])
def test_records_behind_damage_at_the_start_of_the_only_file_are_not_called_lost(
    tmp_path: Path, checkpoint: bool
) -> None:
    store = unpack("nommap-5.5.0", tmp_path)
    (file,) = (Path(store.path) / "commitlog").iterdir()
    raw = bytearray(file.read_bytes())
    raw[4] ^= 1  # the magic code of the first record
    file.write_bytes(raw)
    if not checkpoint:
        (Path(store.path) / "checkpoint").unlink()
    first = store.truth[0]
    text = run("info", store.path, expect=1)
    assert f"log offset 0 to {first['storeSize']} is not a record, and records follow" in text
    assert "the log is lost" not in text


@pytest.mark.parametrize("size", [4096, 262_144])
def test_a_log_that_begins_with_zeros_is_damaged(size: int, tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    with log_files(golden)[0].open("r+b") as file:
        file.write(bytes(size))
    (damage,) = store_info(golden.path).damage
    assert damage == "no record starts at log offset 0, where the log begins, and records follow"
    assert call("info", golden.path).returncode == 1
