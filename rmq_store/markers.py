"""The files by which a broker says what state its store is in: lock, abort, checkpoint, and its timer's.

`config` has the settings. `recovery` decides from these files how to repair a store.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import CorruptConfigError, OsErrorsOf, StoreLockedError, from_os_error
from rmq_store.files.durable_files import not_a_regular_file, read_file, sync_folder
from rmq_store.files.remote.remote_store import refuse_remote, shadow_of
from rmq_store.files.safe_paths import refuse_irregular_file, refuse_link
from rmq_store.format.byte_layout import (
    ABORT_BACKUP_FILE,
    ABORT_FILE,
    CHECKPOINT,
    CHECKPOINT_FILE_SIZE,
    CHECKPOINT_SIZE_BEFORE_48,
    CONFIG_DIR,
    LOCK_CONTENT,
    LOCK_FILE,
    TIMER_CHECK,
    TIMER_LOG,
    Ints,
)
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
            raise not_a_regular_file(self._path, mode)
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
        refuse_irregular_file(root / name)
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Timestamps in ms and CommitLog offsets; 0 if the broker wrote none.

    Do not use it as the end of the log: every field lags, and outside controller mode
    `confirm_phy_offset` holds the start of a record or an arbitrary value.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def newest_timestamp(self) -> int:
        """Up to when messages were on the disk, by the latest of the three times."""
        return max(self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp)

    @classmethod
    def decode(cls, raw: bytes, path: str | None = None) -> Checkpoint:
        """The checkpoint from the bytes of the file: 4096, of which 40 or 48 are used.

        Raises CorruptConfigError if there are fewer than 40.
        """
        if len(raw) < CHECKPOINT_SIZE_BEFORE_48:
            raise CorruptConfigError(
                path,
                reason="the checkpoint is too short",
                expected=f"at least {CHECKPOINT_SIZE_BEFORE_48} bytes",
                actual=f"{len(raw)} bytes",
                advice="Move it away; the broker can start without it",
            )
        values = np.frombuffer(
            raw[: CHECKPOINT.itemsize].ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT
        )
        return cls(*(int(value) for value in values[0]))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Checkpoint | None:
        """The checkpoint in a file; None if the file does not exist."""
        if not os.path.exists(path):
            return None
        return cls.decode(read_file(path), os.fspath(path))

    @classmethod
    def read_or_zero(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint in a file; all zeros if it is missing or torn, as for the broker."""
        try:
            return cls.read(path) or cls()
        except CorruptConfigError:
            return cls()

    def write(self, path: str | os.PathLike[str], *, used: int = CHECKPOINT.itemsize) -> None:
        """Write the first `used` bytes in place and flush them, as the broker does.

        It is one write of less than a sector, so after a crash the file is the old or the new one.
        Before 5.5.0 the bytes from 40 on are not changed.
        """
        refuse_irregular_file(path)
        with OsErrorsOf(path, "writing"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if os.fstat(fd).st_size < CHECKPOINT_FILE_SIZE:
                    os.ftruncate(fd, CHECKPOINT_FILE_SIZE)
                os.pwrite(fd, self.encode(used=used)[:used], 0)
                os.fsync(fd)
            finally:
                os.close(fd)

    def encode(self, *, used: int = CHECKPOINT.itemsize) -> bytes:
        """The bytes of the file; the first `used` bytes are filled (40 before 5.5.0)."""
        head = np.array([astuple(self)], dtype=CHECKPOINT).tobytes()[:used]
        return head.ljust(CHECKPOINT_FILE_SIZE, b"\0")


def checkpoint_size(release: Dialect) -> int:
    """Bytes of the checkpoint that this release uses."""
    return CHECKPOINT.itemsize if release.has("checkpoint_48") else CHECKPOINT_SIZE_BEFORE_48


ROLL = 2  # bit of a unit's magic: the message is for a time beyond the wheel, and is put off
DELETE = 4  # an order to delete another message

_UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_time", ">i8"),
        ("delay", ">i4"),
        ("log_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_CHECK = np.dtype([("read_time", ">i8"), ("log_flushed", ">i8"), ("queue_offset", ">i8")])
_LARGEST_CHECK = 1 << 16
_UNITS_READ = 1 << 16  # at a time


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """How far the timer is: it has delivered what was due before `read_time` (ms), the tick that it
    delivers next, and has read the timer topic up to `queue_offset`."""

    read_time: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class TimerUnits:
    """The newest unit of each record in the timer log, sorted by log offset."""

    log_offset: Ints
    time: Ints  # of the slot, ms since the epoch
    magic: Ints
    topic_hash: Ints  # of the record's own topic (String.hashCode)

    def leads_nowhere(self, start: int, stop: int) -> bool:
        """Whether there are units, and none of them is for a time after `start` and before `stop` (ms)."""
        inside = (self.time > start) & (self.time < stop)
        return len(self.time) > 0 and not inside.any().item()

    def time_of(self, log_offset: int) -> int | None:
        """When the timer turns to the record at a log offset (ms); None without a unit."""
        row = int(np.searchsorted(self.log_offset, log_offset))
        if row == len(self.log_offset) or self.log_offset[row] != log_offset:
            return None
        return int(self.time[row])


def read_timer_check(store: str | os.PathLike[str]) -> TimerCheck | None:
    """config/timercheck; None without one. Raises CorruptConfigError if it is too short."""
    path = Path(store) / CONFIG_DIR / TIMER_CHECK
    if not path.exists():
        return None
    raw = read_file(path, _LARGEST_CHECK)
    if len(raw) < _CHECK.itemsize:
        raise CorruptConfigError(
            path,
            reason="the timer's checkpoint is too short",
            expected=f"at least {_CHECK.itemsize} bytes",
            actual=f"{len(raw)} bytes",
            advice=advice_on_broken(path),
        )
    check = np.frombuffer(raw[: _CHECK.itemsize], _CHECK)[0]
    return TimerCheck(int(check["read_time"]), int(check["queue_offset"]))


def read_timer_units(store: str | os.PathLike[str]) -> TimerUnits | None:
    """The units of the timer log; None without files, and for an object store.

    Takes 32 bytes of memory a unit.
    """
    folder = Path(store) / TIMER_LOG
    if shadow_of(os.fspath(folder)) is not None or not folder.is_dir():
        return None  # of an object store only small files are read whole
    names = sorted(path for path in folder.iterdir() if path.name.isdigit() and path.is_file())
    parts = [part for path in names for part in _units_of(path)]
    if not names:
        return None
    units = np.concatenate(parts) if parts else np.zeros(0, dtype=_KEPT)
    # A unit may be written again after a crash; the later one counts.
    units = units[::-1]
    _, newest = np.unique(units["log_offset"], return_index=True)
    units = units[newest]
    return TimerUnits(*(units[name].copy() for name in _KEPT.names or ()))


_KEPT = np.dtype([("log_offset", "i8"), ("time", "i8"), ("magic", "i8"), ("topic_hash", "i8")])


def _units_of(path: Path) -> list[np.ndarray[tuple[int], np.dtype[np.void]]]:
    """The units of a file up to its end: a blank, or zeros."""
    try:
        return _read_units(path)
    except FileNotFoundError:
        return []  # the broker deletes files whose messages have expired
    except OSError as error:
        raise from_os_error(path, error, "reading") from error


def _read_units(path: Path) -> list[np.ndarray[tuple[int], np.dtype[np.void]]]:
    parts = []
    with path.open("rb") as file:
        while raw := file.read(_UNIT.itemsize * _UNITS_READ):
            units = np.frombuffer(raw[: len(raw) - len(raw) % _UNIT.itemsize], _UNIT)
            whole = units["size"] == _UNIT.itemsize
            count = len(units) if whole.all() else int(np.argmin(whole))
            kept = np.empty(count, dtype=_KEPT)
            kept["log_offset"] = units["log_offset"][:count]
            kept["time"] = units["write_time"][:count] + units["delay"][:count].astype(np.int64)
            kept["magic"] = units["magic"][:count]
            kept["topic_hash"] = units["topic_hash"][:count]
            parts.append(kept)
            if count < len(units):
                break
    return parts
