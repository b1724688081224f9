"""Injuries of a killed store that a broker's recovery meets, each the same wherever it is made."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.damage import flip, write_at
from tests.support.golden import GoldenStore, log_files

Hurt = Callable[[GoldenStore], None]
RELEASE = "5.5.0"  # of the classes that recovered them
STORES = ("hours-crash-5.5.0", "hours-crash-4.9.7", "back-crash-5.5.0", "days-crash-5.5.0")


def queue_files(golden: GoldenStore) -> list[Path]:
    return sorted(Path(golden.path, "consumequeue/orders/0").iterdir())


def used_log(golden: GoldenStore) -> list[Path]:
    """The files of the log that hold records."""
    return [file for file in log_files(golden) if file.read_bytes().strip(b"\0")]


def nothing(golden: GoldenStore) -> None:
    """As the kill left it."""


def closed(golden: GoldenStore) -> None:
    Path(golden.path, "abort").unlink()


def no_checkpoint(golden: GoldenStore) -> None:
    Path(golden.path, "checkpoint").unlink()


def checkpoint_of(golden: GoldenStore, part: int) -> None:
    """Both times of the checkpoint, and no log offset, at a part of four of the log."""
    stored = golden.truth[len(golden.truth) * part // 4 - 1]["storeTimestamp"]
    write_at(Path(golden.path, "checkpoint"), 0, struct.pack(">qqq", stored, stored, stored))
    write_at(Path(golden.path, "checkpoint"), 40, bytes(8))


def early_checkpoint(golden: GoldenStore) -> None:
    checkpoint_of(golden, 1)


def late_checkpoint(golden: GoldenStore) -> None:
    checkpoint_of(golden, 4)


def no_queues(golden: GoldenStore) -> None:
    shutil.rmtree(Path(golden.path, "consumequeue"))


def no_index(golden: GoldenStore) -> None:
    shutil.rmtree(Path(golden.path, "index"))


def last_queue_file_gone(golden: GoldenStore) -> None:
    queue_files(golden)[-1].unlink()


def middle_queue_file_gone(golden: GoldenStore) -> None:
    files = queue_files(golden)
    files[len(files) // 2].unlink()


def entries_zeroed(golden: GoldenStore) -> None:
    """The second half of the last file of a queue did not reach the disk."""
    raw = (file := queue_files(golden)[-1]).read_bytes()
    write_at(file, len(raw) // 40 * 20, bytes(len(raw) - len(raw) // 40 * 20))


def log_torn(golden: GoldenStore) -> None:
    """The last record is there but for its last bytes."""
    last = golden.truth[-1]
    file = used_log(golden)[-1]
    write_at(file, last["commitLogOffset"] - int(file.name) + last["storeSize"] - 9, bytes(9))


def last_log_file_lost(golden: GoldenStore) -> None:
    for file in log_files(golden):
        if file >= used_log(golden)[-1]:
            file.unlink()


def record_hurt_in_the_middle(golden: GoldenStore) -> None:
    """One bit of a body in the file before the last one."""
    file = used_log(golden)[-2]
    record = next(r for r in golden.truth if r["commitLogOffset"] >= int(file.name) + 9000)
    at = record["commitLogOffset"] - int(file.name) + 100
    flip(file, at)


HURTS: tuple[Hurt, ...] = (
    *(nothing, closed, no_checkpoint, early_checkpoint, late_checkpoint, no_queues, no_index),
    *(last_queue_file_gone, middle_queue_file_gone, entries_zeroed),
    *(log_torn, last_log_file_lost, record_hurt_in_the_middle),
)
