"""Small files read and written whole, and synced folders."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from rmq_store.errors import CorruptConfigError, OsErrorsOf, from_os_error
from rmq_store.files.remote.remote_store import shadow_of

_PIECE = 1 << 20

LARGEST_JSON = 128 << 20
"""Bytes of a JSON file: a million consumer offsets take a tenth of it."""
LARGEST_SETTINGS = 1 << 20
"""Bytes of other small files: broker.conf, checkpoint, the state of a rebuild."""


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
                raise no_regular_file(path, status.st_mode)
            # The size of a file that is being written, or of /proc, is not what can be read.
            raw = bytearray()
            while status.st_size <= limit >= len(raw) and (piece := os.read(descriptor, _PIECE)):
                raw += piece
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise no_regular_file(path, 0) from error
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


def no_regular_file(path: str | os.PathLike[str], mode: int) -> CorruptConfigError:
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


def write_whole(path: Path, text: str, *, old: str | None = None) -> None:
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


def sync_file(path: str | os.PathLike[str]) -> None:
    """Sync the bytes of a file that was written and closed to the disk."""
    with OsErrorsOf(path, "flushing"), open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of files, and its parent's, to the disk."""
    for directory in (folder, folder.parent):
        sync_one_folder(directory)


def sync_one_folder(folder: Path) -> None:
    """Sync a folder's list of files to the disk."""
    with OsErrorsOf(folder, "flushing"):
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
