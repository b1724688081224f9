"""Writing to segment files, which are created at full size and filled from front to back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.errors import from_os_error
from rmq_store.files.durable_files import own, sync_path
from rmq_store.files.parallel import side_by_side
from rmq_store.format.byte_layout import Bytes, segment_name

_FILES_OPEN = 64
_PAGE = 4096
_SYNCED_TOGETHER = 16  # files whose flushes run at the same time


class OpenFiles:
    """Files open for writing, at most 64 at once. Thread-safe.

    Remembers written files until `sync` has flushed them, even if they were closed to make room for
    others.
    """

    def __init__(self, *, warm: bool = False) -> None:
        """`warm`: fill new files with zeros page by page (warmMapedFileEnable)."""
        self._warm = warm
        self._fds: dict[Path, int] = {}
        self._dirty: dict[Path, int] = {}  # bytes written since the last sync
        self._new_folders: set[Path] = set()
        self._lock = threading.Lock()
        self._syncing = threading.Lock()

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """Write `data` at byte `at` of a file; creates a missing file with `size` bytes."""
        view = memoryview(data).cast("B")
        try:
            with self._lock:
                fd = self._open(path, size)
                self._dirty[path] = self._dirty.get(path, 0) + len(view)
                while len(view):
                    done = os.pwrite(fd, view, at)
                    view, at = view[done:], at + done
        except OSError as error:
            raise from_os_error(path, error, "writing") from error

    def _open(self, path: Path, size: int) -> int:
        fd = self._fds.pop(path, None)
        if fd is None:
            while len(self._fds) >= _FILES_OPEN:
                os.close(self._fds.pop(next(iter(self._fds))))
            fd = self._make(path, size)
        self._fds[path] = fd  # moved to the end: the least recently used file is closed first
        return fd

    def _make(self, path: Path, size: int) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            own(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
                self._new_folders.add(path.parent)
                # A zero byte in every page, so that the disk reserves the whole file at once.
                for at in range(0, size, _PAGE) if self._warm else ():
                    os.pwrite(fd, b"\0", at)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def sync(self, least_bytes: int = 0) -> None:
        """Flush all files with at least `least_bytes` of unflushed data to the disk.

        Returns once the data is on the disk. Other threads may write meanwhile.
        """
        with self._syncing:
            with self._lock:
                dirty = {path: n for path, n in self._dirty.items() if n >= least_bytes}
                for path in dirty:
                    del self._dirty[path]
                folders, self._new_folders = self._new_folders, set()
                fds = {path: os.dup(self._fds[path]) for path in dirty if path in self._fds}
            try:
                # Flushes that wait together share the disk's time.
                side_by_side(
                    lambda path: sync_path(path, fds.pop(path, None)), list(dirty), _SYNCED_TOGETHER
                )
                # A new queue also made the folder of its topic, an entry two levels above its file.
                made = {above for folder in folders for above in (folder, *folder.parents[:2])}
                side_by_side(sync_path, sorted(made, reverse=True), _SYNCED_TOGETHER)
            except BaseException:
                with self._lock:
                    for path, count in dirty.items():
                        self._dirty[path] = self._dirty.get(path, 0) + count
                    self._new_folders |= folders
                raise
            finally:
                for fd in fds.values():
                    os.close(fd)

    def close(self, *, sync: bool = True) -> None:
        """Flush everything to the disk and close all files."""
        try:
            if sync:
                self.sync()
        finally:
            with self._lock:
                while self._fds:
                    os.close(self._fds.popitem()[1])


class SegmentWriter:
    """One stream over segment files of `file_size` bytes; `folder_of` gives the folder of a file."""

    def __init__(self, files: OpenFiles, folder_of: Callable[[int], Path], file_size: int) -> None:
        self._files = files
        self._folder_of = folder_of
        self.file_size = file_size
        self._last: tuple[int, Path] | None = None

    def _path_of(self, base: int) -> Path:
        """The file that begins at `base`; cached, because most writes go to the same file."""
        if self._last is None or self._last[0] != base:
            self._last = base, self._folder_of(base) / segment_name(base)
        return self._last[1]

    def write(self, offset: int, data: Bytes) -> None:
        """Write at a stream offset, across as many files as needed."""
        raw = np.ascontiguousarray(data).view(np.uint8)
        at = 0
        while at < len(raw):
            base = (offset + at) // self.file_size * self.file_size
            count = min(len(raw) - at, base + self.file_size - (offset + at))
            path = self._path_of(base)
            self._files.write(path, self.file_size, offset + at - base, raw[at : at + count].data)
            at += count
