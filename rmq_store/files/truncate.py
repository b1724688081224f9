"""Changes to the end of segment files: resize, clear after an offset, or remove."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rmq_store.errors import from_os_error
from rmq_store.files.durable_files import sync_folder
from rmq_store.files.mapping import stored_from
from rmq_store.files.safe_paths import refuse_special

_LOOKED_AT = 1 << 20  # bytes read at once to find the last nonzero byte


PRIVATE: set[Path] = set()
"""Folders whose links to files stand for the files, until a file is written to."""


def own(path: Path) -> None:
    """Replace a file that is shared by its own copy, so that writing changes only this one.

    A rebuilt store may share its log files with the original store, by hard links. The files of a
    private copy of a store are links. Raises UnsafeNameError for any other link.
    """
    linked = any(path.is_relative_to(folder) for folder in PRIVATE) and path.is_symlink()
    refuse_special(path.resolve() if linked else path)
    if linked or path.stat().st_nlink > 1:
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        _copy_data(path, part)
        part.replace(path)


def _copy_data(path: Path, copy: Path) -> None:
    """Copy a file without its holes: log files are created at full size."""
    with path.open("rb") as origin, copy.open("xb") as made:
        size = os.fstat(origin.fileno()).st_size
        for start, stop in _data_ranges(origin.fileno(), 0, size):
            for at in range(start, stop, _LOOKED_AT):
                piece = os.pread(origin.fileno(), min(_LOOKED_AT, stop - at), at)
                os.pwrite(made.fileno(), piece, at)
        made.truncate(size)
        os.fsync(made.fileno())
    shutil.copystat(path, copy)


def set_size(path: Path, size: int) -> None:
    """Set a file's full size; added bytes are zeros."""
    try:
        own(path)
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    except OSError as error:
        raise from_os_error(path, error, "setting the size") from error


def clear_from(path: Path, at: int) -> int:
    """Set all bytes of a file from `at` on to zero. Returns the bytes up to the last nonzero one.

    Overwrites instead of truncating and extending: a crash in between would leave a file with a
    meaningless size.
    """
    try:
        own(path)
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            used = _used_until(file.fileno(), at, size)
            if used > at:
                for place in range(at, used, _LOOKED_AT):
                    os.pwrite(file.fileno(), bytes(min(_LOOKED_AT, used - place)), place)
                os.fsync(file.fileno())
            return max(0, used - at)
    except OSError as error:
        raise from_os_error(path, error, "cutting") from error


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


def remove(path: Path) -> int:
    """Delete a file. Returns its size."""
    try:
        size = path.stat().st_size
        path.unlink()
        # If the sync fails, a power loss may restore the file; the next recovery then removes it
        # again. No readable data depends on it.
        with contextlib.suppress(OSError):
            sync_folder(path.parent)
        return size
    except OSError as error:
        raise from_os_error(path, error, "deleting") from error
