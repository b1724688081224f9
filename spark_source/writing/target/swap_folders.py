"""Put a folder in the place of another at once."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from rmq_store.errors import TargetExistsError
from rmq_store.files.durable_files import sync_one_folder
from rmq_store.files.journal import refusals

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# File systems and systems without an exchange answer so.
_NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
# A rename onto a folder with content, and onto a file.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def place(new: Path, target: Path) -> None:
    """Put the folder `new` at `target`, which is missing or an empty folder.

    Raises TargetExistsError, and changes nothing, if anything else is there.
    """
    with refusals(target):
        try:
            new.rename(target)  # replaces an empty folder, and never one with content
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            raise TargetExistsError(
                target,
                reason="the target appeared meanwhile",
                expected="a folder that does not exist or is empty, as when the write began",
                advice="The target is as it was, and nothing was written. Run the write again",
            ) from error
    sync_one_folder(target.parent)
    sync_one_folder(new.parent)


def exchange(new: Path, target: Path, aside: Path) -> None:
    """Put the folder `new` at `target`. The folder that was at `target` is then at `new` or `aside`.

    At every moment `target` is the old folder or the new one. Where the file system cannot exchange
    two folders (NFS), `target` is missing for a moment, and the old folder is at `aside`.
    """
    with refusals(target):
        if not _exchanged(new, target):
            target.rename(aside)
            new.rename(target)
    sync_one_folder(target.parent)
    sync_one_folder(aside.parent)


def _exchanged(new: Path, target: Path) -> bool:
    """Exchange two folders with renameat2; False where that does not exist."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = os.fsencode(new), os.fsencode(target)
    if call(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_HERE:
        return False
    raise OSError(number, os.strerror(number), str(target))
