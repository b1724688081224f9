"""`info` names what listings show to be missing of queues, and compares no queue with the log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.admin.info import store_info
from tests.support.golden import KINDS, STORES, unpack, unpack_kind
from tests.support.running.commands import objects, run

NAME = "clean-5.5.0"
_HOLE = "of the queue in {}/consumequeue/orders/0 is in no file"


def no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "batchconsumequeue")


def no_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/orders")


def no_files(root: Path) -> None:
    for file in (root / "consumequeue/orders/2").iterdir():
        file.unlink()


def no_middle_file(root: Path) -> None:
    (root / "consumequeue/orders/0/00000000000000002000").unlink()


def empty_middle_file(root: Path) -> None:
    os.truncate(root / "consumequeue/orders/0/00000000000000002000", 0)


def cut_middle_file(root: Path) -> None:
    os.truncate(root / "consumequeue/orders/0/00000000000000002000", 1000)


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (no_queues, ["the log has records, and no queue has a file"]),
        (
            no_topic,
            [
                f"queue orders/{number} has no files, although a consumer is at queue offset {offset}"
                for number, offset in enumerate((49, 102, 133))
            ],
        ),
        (no_files, ["queue orders/2 has no files, although a consumer is at queue offset 133"]),
        (no_middle_file, [f"byte 2000 to 4000 {_HOLE}"]),
        (empty_middle_file, [f"byte 2000 to 4000 {_HOLE}"]),
        (cut_middle_file, [f"byte 3000 to 4000 {_HOLE}"]),
    ],
)
def test_missing_files_of_queues_are_damage(
    lose: Callable[[Path], None], said: list[str], tmp_path: Path
) -> None:
    path = unpack(NAME, tmp_path).path
    lose(Path(path))
    (info,) = objects("info", path, expect=1)
    assert info["damage"] == [line.format(path) for line in said]
    assert info["queuesCompared"] is False
    assert "; not verified: rmqstore verify STORE" in run("info", path, expect=1)


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


@pytest.mark.parametrize("name", [name for name in (*STORES, *KINDS) if name != "multipath-5.5.0"])
def test_no_store_of_a_real_broker_lacks_files_of_queues(name: str, tmp_path: Path) -> None:
    golden = (unpack_kind if name in KINDS else unpack)(name, tmp_path)
    damage = store_info(golden.path, broker_conf=golden.conf).damage
    assert not [what for what in damage if "queue" in what]
