"""Stores in an object store: ranges are read through pyarrow.fs, and nothing is copied whole.

The tree is shadowed by sparse local files of the same names and sizes, so that all that lists and
looks works as with a local store. Bytes are fetched where they are looked at: see `remotefile` for
files of which a part is wanted; small ones come whole.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from rmq_store.errors import (
    SHOWN_AS,
    NotAStoreError,
)
from rmq_store.files.remote.filesystem import file_system, from_remote


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a remote store: its path under the root, bytes and mtime (ns)."""

    path: str
    size: int
    modified: int


Listing = tuple[Listed, ...]


@dataclass(slots=True)
class Shadow:
    """A remote store, shadowed in the local folder `folder`."""

    uri: str
    folder: str
    listing: Listing
    _fs: Any
    _base: str
    requests: int = 0
    fetched: int = 0  # bytes
    _open: dict[str, Any] = field(default_factory=dict)
    _gates: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Bytes of a file by one request; fewer where it ends before. For several threads at once.

        Raises MissingFileError or AccessError, without what the file system was opened with.
        """
        inside = os.path.relpath(path, self.folder)
        try:
            raw: bytes = self._opened(inside).read_at(stop - start, start)
        except (OSError, ValueError) as error:
            raise from_remote(f"{self.uri}/{inside}", error, "reading") from None
        with self._lock:
            self.requests += 1
            self.fetched += len(raw)
        return raw

    def read_whole(self, path: str) -> bytes:
        """All bytes of a small file, as it was when it was listed."""
        size = os.path.getsize(path)
        return self.read(path, 0, size) if size else b""

    def _opened(self, inside: str) -> Any:
        """A file to read from, which knows its size by a request of its own; a few stay open."""
        with self._lock:
            file = self._open.get(inside)
            gate = self._gates.setdefault(inside, threading.Lock())
        if file is not None:
            return file
        with gate:  # one thread opens a file, others wait for it
            file = self._open.get(inside)
            if file is not None:
                return file
            file = self._fs.open_input_file(f"{self._base}/{inside}")
            with self._lock:
                self.requests += 1
                while len(self._open) >= _FILES_OPEN:
                    # Not closed: another thread may read from it. It is once nobody does.
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    self._gates.pop(oldest, None)
                self._open[inside] = file
        return file

    def close(self) -> None:
        """Take the shadow away."""
        _SHADOWS.pop(self.folder, None)
        SHOWN_AS.pop(self.folder, None)
        for file in self._open.values():
            file.close()
        self._open.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_FILES_OPEN = 256
_SHADOWS: dict[str, Shadow] = {}


def shadow_of(path: str) -> Shadow | None:
    """The remote store that a path of a shadow belongs to; None for a local one."""
    for folder, shadow in _SHADOWS.items():
        if path.startswith(folder + os.sep):
            return shadow
    return None


def open_shadow(
    uri: str, options: Mapping[str, str] | None = None, listing: Listing | None = None
) -> Shadow:
    """The remote store at `uri`, listed (with a `listing`: as it was then) and shadowed.

    `options` are the arguments of the file system's class in pyarrow.fs; without them it looks into
    the environment. Raises InvalidArgumentError for credentials in the URI, NotAStoreError where
    nothing is there, AccessError.
    """
    uri = uri.rstrip("/")
    fs, base = file_system(uri, options)
    if listing is None:
        listing = _list(fs, base, uri)
    folder = tempfile.mkdtemp(prefix="rmqstore-")
    shadow = Shadow(uri, folder, listing, fs, base)
    _SHADOWS[folder] = shadow
    SHOWN_AS[folder] = uri
    try:
        for one in listing:
            _put(shadow, one)
    except BaseException:
        shadow.close()
        raise
    return shadow


def _list(fs: Any, base: str, uri: str) -> Listing:
    from pyarrow import fs as pafs  # not before a store is remote: it loads every file system

    try:
        infos = fs.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    except OSError as error:
        raise from_remote(uri, error, "listing") from None
    found = tuple(
        Listed(str(PurePosixPath(one.path).relative_to(base)), one.size, one.mtime_ns or 0)
        for one in infos
        if one.type == pafs.FileType.File
    )
    if not found:
        raise NotAStoreError(
            uri,
            reason="there is no file under this address",
            advice="Give the folder with commitlog/ and consumequeue/ in it",
        )
    return found


def _put(shadow: Shadow, one: Listed) -> None:
    path = os.path.join(shadow.folder, one.path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(one.size)
    os.utime(path, ns=(one.modified, one.modified))
