"""One writer at a time, through the broker's own `lock` file (DefaultMessageStore#start)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rmq_store.errors import StoreLockedError, from_os_error
from rmq_store.format.layout import LOCK_CONTENT, LOCK_FILE

# The kernel's lock belongs to the process; this set detects a second writer in the same process.
_held: set[str] = set()


class StoreLock:
    """The exclusive lock on the first byte of `lock`, as the broker locks it."""

    def __init__(self, root: Path) -> None:
        """Raises StoreLockedError if a broker or another writer holds the lock."""
        self._path = root / LOCK_FILE
        self._key = os.path.realpath(self._path)
        if self._key in _held:
            raise _locked(self._path)
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(self._path, error, "opening the lock") from error
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._fd)
            raise _locked(self._path) from error
        _held.add(self._key)
        try:
            os.pwrite(self._fd, LOCK_CONTENT, 0)
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise from_os_error(self._path, error, "writing the lock") from error
            raise

    def release(self) -> None:
        """Release the lock. The file remains, as with the broker."""
        if self._fd >= 0:
            _held.discard(self._key)
            os.close(self._fd)
            self._fd = -1


def _locked(path: Path) -> StoreLockedError:
    return StoreLockedError(
        path,
        reason="a broker or another writer has this store open",
        advice="Stop it first, or write to another folder; reading needs no lock",
    )
