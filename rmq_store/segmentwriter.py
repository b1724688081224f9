"""Writing to segment files: made in full size at once, filled front to back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.errors import from_os_error
from rmq_store.files import Bytes
from rmq_store.layout import segment_name

_FILES_OPEN = 64


class OpenFiles:
    """Files open for writing, at most so many at once; closing flushes."""

    def __init__(self, limit: int = _FILES_OPEN) -> None:
        self._limit = limit
        self._fds: dict[Path, int] = {}

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """Write `data` at byte `at` of a file, which is made with `size` bytes if it is not there."""
        try:
            fd = self._open(path, size)
            view = memoryview(data).cast("B")
            while len(view):
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise from_os_error(path, error, "writing") from error

    def _open(self, path: Path, size: int) -> int:
        fd = self._fds.pop(path, None)
        if fd is None:
            while len(self._fds) >= self._limit:
                self._close(next(iter(self._fds)))
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
        self._fds[path] = fd  # at the end again: the one used last goes last
        return fd

    def _close(self, path: Path) -> None:
        fd = self._fds.pop(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Flush and close all."""
        path = Path()
        try:
            while self._fds:
                path = next(iter(self._fds))
                self._close(path)
        except OSError as error:
            raise from_os_error(path, error, "flushing") from error


class SegmentWriter:
    """One stream over segment files of `file_size` bytes; `folder_of` tells where a file goes."""

    def __init__(self, files: OpenFiles, folder_of: Callable[[int], Path], file_size: int) -> None:
        self._files = files
        self._folder_of = folder_of
        self.file_size = file_size

    def write(self, offset: int, data: Bytes) -> None:
        """Write at a stream offset, on through as many files as it takes."""
        raw = np.ascontiguousarray(data).view(np.uint8)
        at = 0
        while at < len(raw):
            base = (offset + at) // self.file_size * self.file_size
            count = min(len(raw) - at, base + self.file_size - (offset + at))
            path = self._folder_of(base) / segment_name(base)
            self._files.write(path, self.file_size, offset + at - base, raw[at : at + count].data)
            at += count
