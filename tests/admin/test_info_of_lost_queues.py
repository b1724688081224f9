"""`info` says what opening the store sees of its queues, and compares none with the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.admin.info import store_info
from tests.support.golden import KINDS, STORES, in_a_queue, unpack, unpack_kind
from tests.support.running.campaigns import few
from tests.support.running.commands import call, objects, run

NAME = "clean-5.5.0"
NAMES = [name for name in (*STORES, *KINDS) if name != "multipath-5.5.0"]


def no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue")


def no_middle_file(root: Path) -> None:
    (root / "consumequeue/orders/0/00000000000000002000").unlink()


def empty_middle_file(root: Path) -> None:
    os.truncate(root / "consumequeue/orders/0/00000000000000002000", 0)


def cut_middle_file(root: Path) -> None:
    os.truncate(root / "consumequeue/orders/0/00000000000000002000", 1000)


@pytest.mark.parametrize(
    ("lose", "first"), [(no_middle_file, 100), (empty_middle_file, 100), (cut_middle_file, 150)]
)
def test_missing_files_of_queues_are_damage(
    lose: Callable[[Path], None], first: int, tmp_path: Path
) -> None:
    path = unpack(NAME, tmp_path).path
    lose(Path(path))
    (info,) = objects("info", path, expect=1)
    (said,) = info["damage"]
    hole = (
        f"queue orders/0 lists no message at queue offset {first} to 200: a file of it is missing"
    )
    assert said.startswith(hole)
    assert hole in call("queues", path).stderr
    assert "; not verified: rmqstore verify STORE" in run("info", path, expect=1)


def test_messages_in_no_queue_are_counted(tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path)
    no_queues(Path(golden.path))
    (info,) = objects("info", golden.path)
    listed = [r for r in golden.truth if in_a_queue(r)]
    assert info["undispatched"].startswith(f"{len(listed):,} messages at the end of the log")
    assert info["damage"] == []


def test_verify_agrees_that_a_closed_store_without_queue_files_has_lost_them(
    tmp_path: Path,
) -> None:
    path = unpack(NAME, tmp_path).path
    no_queues(Path(path))
    said = run("verify", path, "-v", expect=1)
    assert "(0 errors, 17 warnings, 0 notes)" in said
    assert "The store was closed, so files of queues are lost; the broker lists them" in said
    Path(path, "abort").touch()
    for command in ("info", "verify"):
        assert "are lost" not in run(command, path)


@pytest.mark.parametrize("name", few("whole queues", NAMES, *KINDS, "clean-5.5.0", "expired-5.5.0"))
def test_no_store_of_a_real_broker_lacks_files_of_queues(name: str, tmp_path: Path) -> None:
    golden = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    damage = store_info(golden.path, broker_conf=golden.conf).damage
    assert not [what for what in damage if "queue" in what]
