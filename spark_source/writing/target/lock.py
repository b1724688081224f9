"""A lock that lets one process at a time work on a target. A killed process loses it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rmq_store.files.journal import TargetLockedError, refusals

_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB


class TargetLock:
    """An exclusive lock on the file `path`, which exists only while the lock is held."""

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Raises TargetLockedError if another process holds the lock, and AccessError.

        `wait`: returns once the other process has released it.
        """
        self._path = path
        with refusals(path):
            self._descriptor: int | None = _locked(path, fcntl.LOCK_EX if wait else _AT_ONCE)

    def release(self) -> None:
        """Release the lock and remove the file."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def _locked(path: Path, how: int) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            continue  # the previous holder has removed the folder
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            raise TargetLockedError(
                path,
                reason="another process works on this target",
                advice="Let it finish, or end it; then run this again",
            ) from None
        # Between open and lock, the previous holder may have removed the file.
        if _is_file_of(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
