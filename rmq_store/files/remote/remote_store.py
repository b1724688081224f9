"""Stores in an object store, read by range through pyarrow.fs without copying whole files.

Sparse local files of the same names and sizes (the shadow) stand for the remote tree, so that code
that lists folders works as for a local store. Small files are fetched whole. Of others only the
needed blocks are fetched: see `blocks`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.errors import SHOWN_AS, NotAStoreError
from rmq_store.escaping import warn_once
from rmq_store.files.remote.uri_filesystem import file_system, from_remote, in_an_object_store
from rmq_store.files.safe_paths import is_plain_name


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a remote store: path below the root, size in bytes, and mtime in ns."""

    path: str
    size: int
    modified: int


Listing = tuple[Listed, ...]


@dataclass(slots=True)
class Shadow:
    """A remote store with its shadow in the local folder `folder`."""

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
        """Bytes of a file by one request; fewer if the file ends earlier. Thread-safe.

        Raises MissingFileError or AccessError, without the file system's options.
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
        """All bytes of a small file, up to its listed size."""
        size = os.path.getsize(path)
        return self.read(path, 0, size) if size else b""

    def _opened(self, inside: str) -> Any:
        """A file to read from. Opening requests its size, so a few files stay open."""
        with self._lock:
            file = self._open.get(inside)
            gate = self._gates.setdefault(inside, threading.Lock())
        if file is not None:
            return file
        with gate:  # one thread opens the file; others wait
            file = self._open.get(inside)
            if file is not None:
                return file
            file = self._fs.open_input_file(f"{self._base}/{inside}")
            with self._lock:
                self.requests += 1
                while len(self._open) >= _FILES_OPEN:
                    # Not closed here: another thread may still read it. The last reference closes it.
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    self._gates.pop(oldest, None)
                self._open[inside] = file
        return file

    def close(self) -> None:
        """Delete the shadow."""
        _SHADOWS.pop(self.folder, None)
        SHOWN_AS.pop(self.folder, None)
        for file in self._open.values():
            file.close()
        self._open.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_FILES_OPEN = 256
_SHADOWS: dict[str, Shadow] = {}


def shadow_of(path: str) -> Shadow | None:
    """The remote store that a path of a shadow belongs to; None for a local path."""
    for folder, shadow in _SHADOWS.items():
        if path.startswith(folder + os.sep):
            return shadow
    return None


def refuse_remote(root: str | os.PathLike[str]) -> None:
    """Raise InvalidArgumentError for the root of a store in an object store: its files here are stand-ins."""
    shadow = _SHADOWS.get(os.fspath(root))
    if shadow is not None:
        raise in_an_object_store(shadow.uri)


def open_shadow(
    uri: str, options: Mapping[str, str] | None = None, listing: Listing | None = None
) -> Shadow:
    """The remote store at `uri`, listed and shadowed. `listing`: use this earlier listing instead.

    `options` are the arguments of the file system's class in pyarrow.fs; without them that class
    reads the environment. Raises InvalidArgumentError for credentials in the URI, NotAStoreError if
    the address holds no files, AccessError.
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
        for listed in listing:
            _put(shadow, listed)
    except BaseException:
        shadow.close()
        raise
    return shadow


def _list(fs: Any, base: str, uri: str) -> Listing:
    from pyarrow import fs as pafs  # slow import: loads every file system

    try:
        infos = fs.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    except OSError as error:
        raise from_remote(uri, error, "listing") from None
    found = tuple(
        Listed(path, one.size, one.mtime_ns or 0)
        for one in infos
        if one.type == pafs.FileType.File and _is_of_a_store(path := _below(base, one.path), uri)
    )
    if not found:
        raise NotAStoreError(
            uri,
            reason="no files under this address",
            advice="Give the folder that contains commitlog/ and consumequeue/",
        )
    return found


def _put(shadow: Shadow, listed: Listed) -> None:
    path = os.path.join(shadow.folder, listed.path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(listed.size)
    os.utime(path, ns=(listed.modified, listed.modified))


def _below(base: str, path: str) -> str:
    return path.removeprefix(base).lstrip("/")


def _is_of_a_store(path: str, uri: str) -> bool:
    """Whether a key of the bucket names a file below the store; any key may be in a bucket."""
    if all(map(is_plain_name, path.split("/"))):
        return True
    warn_once("%s: passed over the key %r, which names no file below it", uri, path)
    return False
