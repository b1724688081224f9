"""`info` says what opening the store sees of its log and its queues, and compares none of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.admin.info import store_info
from tests.support.golden import KINDS, STORES, GoldenStore, in_a_queue, unpack, unpack_kind
from tests.support.running.campaigns import few
from tests.support.running.commands import call, objects, run

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
    lose: Callable[[Path], None], first: int, copy: GoldenStore
) -> None:
    path = copy.path
    lose(Path(path))
    (info,) = objects("info", path, expect=1)
    (said,) = info["damage"]
    hole = (
        f"queue orders/0 lists no message at queue offset {first} to 200: a file of it is missing"
    )
    assert said.startswith(hole)
    assert hole in call("queues", path).stderr
    assert "; not verified: rmqstore verify STORE" in run("info", path, expect=1)


def test_messages_in_no_queue_are_counted(copy: GoldenStore) -> None:
    no_queues(Path(copy.path))
    (info,) = objects("info", copy.path)
    listed = [r for r in copy.truth if in_a_queue(r)]
    assert info["undispatched"].startswith(f"{len(listed):,} messages at the end of the log")
    assert info["damage"] == []


def test_verify_agrees_that_a_closed_store_without_queue_files_has_lost_them(
    copy: GoldenStore,
) -> None:
    path = copy.path
    no_queues(Path(path))
    said = run("verify", path, "-v", expect=1)
    assert "(0 errors, 17 warnings, 0 notes)" in said
    assert "The store was closed, so files of queues are lost; the broker lists them" in said
    Path(path, "abort").touch()
    assert "are lost" not in run("info", path)
    said = run("verify", path, expect=1)  # a broker lists the messages of the newest files alone
    assert "are lost" not in said
    assert "broker-cuts" in said


@pytest.mark.parametrize("name", few("whole queues", NAMES, *KINDS, "clean-5.5.0", "expired-5.5.0"))
def test_no_store_of_a_real_broker_lacks_files_of_queues(name: str, tmp_path: Path) -> None:
    golden = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    damage = store_info(golden.path, broker_conf=golden.conf).damage
    assert not [what for what in damage if "queue" in what]


def remove(file: Path) -> None:
    file.unlink()


def clear(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize("lose", [remove, clear])
def test_a_log_without_a_record_is_lost_if_the_checkpoint_knows_of_one(
    copy: GoldenStore, lose: Callable[[Path], None]
) -> None:
    for file in (Path(copy.path) / "commitlog").iterdir():
        lose(file)
    assert "the log is lost" in run("info", copy.path, expect=1)


def test_usage_of_a_log_that_is_gone_has_no_shares(copy: GoldenStore) -> None:
    for file in (Path(copy.path) / "commitlog").iterdir():
        file.unlink()
    lines = run("usage", copy.path, expect=1).splitlines()[1:]  # no message can be read
    assert lines
    assert all(line.endswith("\t") for line in lines)
    assert {row["share"] for row in objects("usage", copy.path, expect=1)} == {None}
