"""One writer at a time, through the broker's own `lock` file (DefaultMessageStore#start).

`abort` marks a store as in use (DefaultMessageStore#createTempFile).
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import OsErrorsOf, StoreLockedError
from rmq_store.files.durable_files import no_regular_file, sync_folder
from rmq_store.files.remote.remote_store import refuse_remote, shadow_of
from rmq_store.files.safe_paths import refuse_link, refuse_special
from rmq_store.format.byte_layout import ABORT_BACKUP_FILE, ABORT_FILE, LOCK_CONTENT, LOCK_FILE
from rmq_store.format.releases import Dialect

_FLOCK = "@hhqqi"  # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# The kernel's lock belongs to the process; this set detects a second writer in the same process.
_held: set[str] = set()


class StoreLock:
    """The exclusive lock on the first byte of `lock`, as the broker locks it."""

    def __init__(self, root: Path, content: bytes = LOCK_CONTENT) -> None:
        """Raises StoreLockedError if a broker or another writer holds the lock, UnsafeNameError
        for a link, CorruptConfigError for what is no file, and InvalidArgumentError for a store in an object
        store. `content`: see `sign`."""
        refuse_remote(root)
        self._path = root / LOCK_FILE
        self._key = os.path.realpath(self._path)
        if self._key in _held:
            raise _locked(self._path)
        refuse_link(self._path)
        with OsErrorsOf(self._path, "opening the lock"):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o644)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            mode = os.fstat(self._fd).st_mode
            os.close(self._fd)
            raise no_regular_file(self._path, mode)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._fd)
            raise _locked(self._path) from error
        _held.add(self._key)
        try:
            self.sign(content)
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def sign(self, content: bytes) -> None:
        """Write 4 bytes to the lock file. A broker, and any other writer, writes `lock` there when
        it opens the store, so these bytes stay only while nobody else does."""
        with OsErrorsOf(self._path, "writing the lock"):
            os.pwrite(self._fd, content, 0)
            os.fsync(self._fd)  # after a power failure, the bytes are still those of the last one

    def release(self) -> None:
        """Release the lock. The file remains, as with the broker."""
        if self._fd >= 0:
            _held.discard(self._key)
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class LockState:
    """Whether a process holds a store's lock; None if unknown. `pid`: that process, if known."""

    held: bool | None
    pid: int | None = None

    def __str__(self) -> str:
        if self.held is None:
            return "unknown: this file system or this lock file does not show it"
        if not self.held:
            return "free: no process of this host has the store open to write"
        who = "a process" if self.pid is None else f"process {self.pid}"
        return f"held: {who} has the store open to write"


def lock_state(root: Path) -> LockState:
    """Whether a process holds the lock of the store `root` now.

    Takes no lock and changes no file. A process in another container has no known pid. Locks of
    other hosts are known only where the file system shares them (NFS does). Unknown for an object
    store, on other systems than Linux, and for a lock file that cannot be opened.
    """
    path = root / LOCK_FILE
    # Closing any descriptor of the file would release a lock of this process.
    if os.path.realpath(path) in _held:
        return LockState(True, os.getpid())
    if shadow_of(str(path)) is not None or sys.platform != "linux":
        return LockState(None)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return LockState(False)
    except OSError:
        return LockState(None)
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError:
        return LockState(None)
    finally:
        os.close(fd)
    return LockState(kind != fcntl.F_UNLCK, pid if kind != fcntl.F_UNLCK and pid > 0 else None)


def refuse_locked(root: Path) -> None:
    """Raise StoreLockedError if a process holds the lock of the store. Takes no lock."""
    if lock_state(root).held:
        raise _locked(root / LOCK_FILE)


def _locked(path: Path) -> StoreLockedError:
    return StoreLockedError(
        path,
        reason="a broker or another writer has this store open",
        advice="Stop it first, or write to another folder; reading needs no lock",
    )


def write_abort(root: Path, release: Dialect) -> None:
    """Create `abort`. If it is missing, the last stop was clean."""
    pid = str(os.getpid()) if release.has("abort_holds_pid") else ""
    for name in (ABORT_FILE, ABORT_BACKUP_FILE):
        refuse_special(root / name)
    with OsErrorsOf(root / ABORT_FILE, "writing"):
        with (root / ABORT_FILE).open("w") as file:
            file.write(pid)
            file.flush()
            os.fsync(file.fileno())
        if release.has("abort_holds_pid"):
            (root / ABORT_BACKUP_FILE).touch()
        sync_folder(root)  # must survive a power loss


def was_closed(root: Path) -> bool:
    """Whether the last who wrote the store has closed it: the file `abort` is gone."""
    return not (root / ABORT_FILE).exists()


def remove_abort(root: Path) -> None:
    """Delete `abort`: the store was closed cleanly."""
    with OsErrorsOf(root / ABORT_FILE, "deleting"):
        (root / ABORT_FILE).unlink(missing_ok=True)
