"""Cutting segment files: shorter, cleared behind an offset, or removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rmq_store.errors import from_os_error
from rmq_store.files.durable import sync_folder
from rmq_store.files.mapping import stored_from

_LOOKED_AT = 1 << 20  # bytes read at once to find the last one that is not zero


def own(path: Path) -> None:
    """Make a file that has another name too (a rebuilt store may share its log) one's own to write."""
    if path.stat().st_nlink > 1:
        part = path.with_name(path.name + ".part")
        shutil.copy2(path, part)
        part.replace(path)


def set_size(path: Path, size: int) -> None:
    """Make a file as long as it was to be; zeros follow what it has."""
    try:
        own(path)
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())
    except OSError as error:
        raise from_os_error(path, error, "setting the size") from error


def clear_from(path: Path, at: int) -> int:
    """Make all bytes of a file from `at` on zero; how many were there, up to the last not zero.

    By writing, not by cutting and stretching the file: a crash half-way would leave a file whose
    size tells nothing any more.
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
    """The position behind the last byte that is not zero, at least `start`."""
    for first, stop in reversed(list(_data_ranges(fd, start, size))):
        while stop > first:
            begin = max(first, stop - _LOOKED_AT)
            piece = os.pread(fd, stop - begin, begin).rstrip(b"\0")
            if piece:
                return begin + len(piece)
            stop = begin
    return start


def _data_ranges(fd: int, start: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file has data at all: holes are passed over, as far as the file system tells of any."""
    at = start
    while (first := stored_from(fd, at, size)) < size:
        try:
            at = min(os.lseek(fd, first, os.SEEK_HOLE), size)
        except OSError:
            at = size
        yield first, at


def remove(path: Path) -> int:
    """Delete a file; its size."""
    try:
        size = path.stat().st_size
        path.unlink()
        # Should the folder not be synced, a power loss brings the file back, and the next recovery
        # removes it again: nothing that could be read depends on it.
        with contextlib.suppress(OSError):
            sync_folder(path.parent)
        return size
    except OSError as error:
        raise from_os_error(path, error, "deleting") from error
