"""Small files read and written whole, and synced folders."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import CorruptConfigError, OsErrorsOf, from_os_error
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.files.safe_paths import refuse_irregular_file
from rmq_store.files.source import stored_from

_PIECE = 1 << 20

LARGEST_JSON = 128 << 20
"""Bytes of a JSON file: a million consumer offsets take a tenth of it."""
LARGEST_SETTINGS = 1 << 20
"""Bytes of other small files: broker.conf, checkpoint, the state of a rebuild."""
_LOOKED_AT = 1 << 20  # bytes read at once to find the last nonzero byte
_ZEROS = bytes(_LOOKED_AT)


def read_file(path: str | os.PathLike[str], limit: int = LARGEST_SETTINGS) -> bytes:
    """The content of a small file. Opens it without waiting for a writer.

    Raises MissingFileError, AccessError, and CorruptConfigError for what is no regular file or has
    more than `limit` bytes.
    """
    shadow = shadow_of(os.fspath(path))
    try:
        if shadow is not None:
            if os.path.getsize(path) > limit:
                raise _too_large(path, limit)
            return shadow.read_whole(os.fspath(path))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise not_a_regular_file(path, status.st_mode)
            # The size of a file that is being written, or of /proc, is not what can be read.
            raw = bytearray()
            while status.st_size <= limit >= len(raw) and (piece := os.read(descriptor, _PIECE)):
                raw += piece
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise not_a_regular_file(path, 0) from error
        raise from_os_error(path, error, "reading") from error
    if max(status.st_size, len(raw)) > limit:
        raise _too_large(path, limit)
    return bytes(raw)


def is_small_file(path: Path) -> bool:
    """Whether `read_file` could read it: a regular file, or a link to one, of at most LARGEST_JSON."""
    try:
        status = path.stat()
    except OSError:  # deleted, or a link to nothing or to itself
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_JSON


def not_a_regular_file(path: str | os.PathLike[str], mode: int) -> CorruptConfigError:
    """The error for a folder, FIFO, device or socket in the place of a file. `mode`: its st_mode."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "a device or a socket")
    return CorruptConfigError(
        path,
        reason=f"this is {kind}, not a file",
        advice="Move it away, and restore the file from a backup",
    )


def _too_large(path: str | os.PathLike[str], limit: int) -> CorruptConfigError:
    return CorruptConfigError(
        path,
        reason="the file is larger than any of its kind",
        expected=f"at most {limit} bytes",
        advice="Move it away, and restore it from a backup",
    )


def replace_file(path: Path, text: str, *, old: str | None = None) -> None:
    """Replace a file's content and flush it. After a crash the file is the old one or the new one.

    `old`: the name that the old file gets; after a crash it may have it before the new one is there.
    """
    aside = path.with_name(path.name + ".tmp")
    aside.unlink(missing_ok=True)  # of an interrupted write, or a link to a file elsewhere
    with aside.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if old is not None:
        path.replace(old)
    aside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of files, and its parent's, to the disk."""
    for directory in (folder, folder.parent):
        sync_path(directory)


def sync_path(path: str | os.PathLike[str], fd: int | None = None) -> None:
    """Sync the bytes of a file, or a folder's list of files, to the disk. `fd`: open on it; it is closed."""
    with OsErrorsOf(path, "flushing"):
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of `bytes` bytes of a file, from byte `at` on.

    `what`: "removed" deletes the file, "cut" (of the log: "cut log") sets the bytes to zero, and
    "extended" adds them, as zeros, at the end.
    """

    path: str
    what: str
    bytes: int
    at: int = 0

    def make(self) -> None:
        """Make the change, on the disk too. It can be made again. Raises AccessError."""
        path = Path(self.path)
        try:
            if self.what == "removed":
                path.unlink()
                # If the sync fails, a power loss may restore the file; the next recovery then
                # removes it again. No readable data depends on it.
                with contextlib.suppress(OSError):
                    sync_folder(path.parent)
                return
            unshare_file(path)
            with path.open("r+b") as file:
                if self.what == "extended":
                    file.truncate(self.at + self.bytes)
                else:
                    stop = self.at + self.bytes
                    for at in range(self.at, stop, _LOOKED_AT):
                        os.pwrite(file.fileno(), bytes(min(_LOOKED_AT, stop - at)), at)
                os.fsync(file.fileno())
        except OSError as error:
            doing = {"removed": "deleting", "extended": "setting the size"}
            raise from_os_error(path, error, doing.get(self.what, "cutting")) from error


def cut(path: str | Path, at: int, what: str = "cut") -> list[Change]:
    """The change that sets all bytes of a file from `at` on to zero; none if they are zeros.

    Overwrites instead of truncating and extending: a crash in between would leave a file with a
    meaningless size. Raises AccessError, and UnsafeNameError for a link.
    """
    refuse_irregular_file(path)
    with OsErrorsOf(path, "cutting"), open(path, "rb") as file:
        used = _used_until(file.fileno(), at, os.fstat(file.fileno()).st_size)
    return [Change(str(path), what, used - at, at)] if used > at else []


def unshare_file(path: Path) -> None:
    """Replace a file that is shared by its own copy, so that writing changes only this one.

    A rebuilt store may share its log files with the original store, by hard links. Raises
    UnsafeNameError for a symbolic link.
    """
    refuse_irregular_file(path)
    if path.stat().st_nlink > 1:
        unshared = path.with_name(path.name + ".part")
        unshared.unlink(missing_ok=True)
        size = path.stat().st_size
        copy_stored(path, unshared, size, size)
        shutil.copystat(path, unshared)
        unshared.replace(path)


def copy_stored(path: str | Path, copy: Path, stop: int, size: int) -> None:
    """Copy a file up to byte `stop` into a new one of `size` bytes, on the disk too.

    Leaves holes and stored zeros out: log files are created at full size.
    """
    with open(path, "rb") as origin, copy.open("xb") as made:
        for start, end in _data_ranges(origin.fileno(), 0, stop):
            for at in range(start, end, _LOOKED_AT):
                piece = os.pread(origin.fileno(), min(_LOOKED_AT, end - at), at)
                if piece != _ZEROS[: len(piece)]:  # ends at the first byte that differs
                    os.pwrite(made.fileno(), piece, at)
        made.truncate(size)
        os.fsync(made.fileno())


def _used_until(fd: int, start: int, size: int) -> int:
    """The position after the last nonzero byte; at least `start`."""
    for first, stop in reversed(list(_data_ranges(fd, start, size))):
        while stop > first:
            begin = max(first, stop - _LOOKED_AT)
            piece = os.pread(fd, stop - begin, begin).rstrip(b"\0")
            if piece:
                return begin + len(piece)
            stop = begin
    return start


def _data_ranges(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that hold data; skips holes that the file system reports."""
    at = start
    while (first := stored_from(fd, at, size)) < size:
        try:
            at = min(os.lseek(fd, first, os.SEEK_HOLE), size)
        except OSError:
            at = size
        yield first, at
