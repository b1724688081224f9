"""Changes to files, as values: `Change` is one, and `make` makes it.

A recovery computes its changes over the files as they are. A plan is their list.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import OsErrorsOf, from_os_error
from rmq_store.files.durable_files import sync_folder
from rmq_store.files.safe_paths import refuse_special
from rmq_store.files.source import stored_from

_LOOKED_AT = 1 << 20  # bytes read at once to find the last nonzero byte


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
            own(path)
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
    refuse_special(path)
    with OsErrorsOf(path, "cutting"), open(path, "rb") as file:
        used = _used_until(file.fileno(), at, os.fstat(file.fileno()).st_size)
    return [Change(str(path), what, used - at, at)] if used > at else []


def own(path: Path) -> None:
    """Replace a file that is shared by its own copy, so that writing changes only this one.

    A rebuilt store may share its log files with the original store, by hard links. Raises
    UnsafeNameError for a symbolic link.
    """
    refuse_special(path)
    if path.stat().st_nlink > 1:
        part = path.with_name(path.name + ".part")
        part.unlink(missing_ok=True)
        size = path.stat().st_size
        copy_stored(path, part, size, size)
        shutil.copystat(path, part)
        part.replace(path)


_ZEROS = bytes(_LOOKED_AT)


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
