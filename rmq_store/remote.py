"""Stores in an object store: ranges are read through pyarrow.fs, and nothing is copied whole.

The tree is shadowed by sparse local files of the same names and sizes, so that all that lists and
looks works as with a local store; small files (config, checkpoint) are really there. Bytes of the
large ones are fetched into memory, in blocks, joined where they are neighbours, and given up again.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from rmq_store.errors import (
    SHOWN_AS,
    AccessError,
    InvalidArgumentError,
    MissingFileError,
    NotAStoreError,
    StoreError,
)
from rmq_store.layout import (
    BATCH_CONSUMEQUEUE_DIR,
    COMMITLOG_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    INDEX_DIR,
)

BLOCK = 64 << 10
JOINED = 16  # blocks between two wanted ones that are read along, to save a request
MOST_A_REQUEST = 128  # blocks
KEPT_BYTES = 96 << 20  # of one file, before a new batch gives them up
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_LARGE_PARTS = (
    COMMITLOG_DIR,
    CONSUMEQUEUE_DIR,
    BATCH_CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    INDEX_DIR,
)
_SMALL = 1 << 20


def is_uri(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a file system as well, such as s3://bucket/store."""
    return _URI.match(os.fspath(path)) is not None


class StorageOptions(dict[str, str]):
    """What a file system wants to be opened with, credentials among it; never shows them."""

    def __repr__(self) -> str:
        return "StorageOptions(hidden)"

    __str__ = __repr__


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

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Bytes of a file by one request; fewer where it ends before.

        Raises MissingFileError or AccessError, without what the file system was opened with.
        """
        inside = os.path.relpath(path, self.folder)
        try:
            file = self._open.get(inside)
            if file is None:
                if len(self._open) >= _FILES_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                file = self._open[inside] = self._fs.open_input_file(f"{self._base}/{inside}")
            raw: bytes = file.read_at(stop - start, start)
        except OSError as error:
            raise _from_remote(f"{self.uri}/{inside}", error, "reading") from None
        self.requests += 1
        self.fetched += len(raw)
        return raw

    def close(self) -> None:
        """Take the shadow away."""
        _SHADOWS.pop(self.folder, None)
        SHOWN_AS.pop(self.folder, None)
        for file in self._open.values():
            file.close()
        self._open.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_FILES_OPEN = 16
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
    fs, base = _file_system(uri, options)
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


def _file_system(uri: str, options: Mapping[str, str] | None) -> tuple[Any, str]:
    from pyarrow import fs as pafs  # not before a store is remote: it loads every file system

    parts = urlsplit(uri)
    if parts.username or parts.password or parts.query:
        raise InvalidArgumentError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path}",
            reason="a path with credentials or settings in it would show them in plans and logs",
            advice="Give them in the environment, or with option storageOptions",
        )
    try:
        if options and parts.scheme == "s3":
            return pafs.S3FileSystem(**_typed(options)), f"{parts.netloc}{parts.path}"
        if options and parts.scheme in ("gs", "gcs"):
            return pafs.GcsFileSystem(**_typed(options)), f"{parts.netloc}{parts.path}"
        fs, base = pafs.FileSystem.from_uri(uri)
    except (OSError, ValueError, TypeError) as error:
        raise _from_remote(uri, error, "opening the file system") from None
    return fs, base.rstrip("/")


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    words = {"true": True, "false": False}
    return {name: words.get(str(value).lower(), value) for name, value in options.items()}


def _from_remote(where: str, error: BaseException, doing: str) -> StoreError:
    """Our error, of what kind the other was and no more: its text may quote what it was given."""
    if isinstance(error, FileNotFoundError) or "404" in str(error) or "NO_SUCH" in str(error):
        return MissingFileError(
            where,
            reason=f"{doing}: it is not there",
            advice="It may have expired and been deleted; open the store anew",
        )
    return AccessError(
        where,
        reason=f"{doing} failed ({type(error).__name__})",
        advice="Check the address, the credentials in the environment or in storageOptions, and "
        "the network",
    )


def _list(fs: Any, base: str, uri: str) -> Listing:
    from pyarrow import fs as pafs  # not before a store is remote: it loads every file system

    try:
        infos = fs.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    except OSError as error:
        raise _from_remote(uri, error, "listing") from None
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
    large = PurePosixPath(one.path).parts[0] in _LARGE_PARTS or one.size > _SMALL
    with open(path, "wb") as file:
        if large:
            file.truncate(one.size)
        elif one.size:
            file.write(shadow.read(path, 0, one.size))
    os.utime(path, ns=(one.modified, one.modified))


class RemoteMapping:
    """A remote file as memory that is filled in where it is needed: see `need`."""

    def __init__(self, shadow: Shadow, path: str, size: int) -> None:
        self._shadow, self._path, self._size = shadow, path, size
        self._memory = mmap.mmap(-1, max(size, 1))
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)[:size]
        self._there = np.zeros(-(-size // BLOCK), dtype=bool)

    def need(self, starts: npt.NDArray[Any], stops: npt.NDArray[Any], *, fresh: bool) -> None:
        """Fetch ranges (positions in the file) that are not there yet.

        `fresh`: no view on the file is in use, so what was fetched before may be given up.
        """
        if fresh and int(self._there.sum()) * BLOCK > KEPT_BYTES:
            self._memory.madvise(mmap.MADV_DONTNEED)
            self._there[:] = False
        wanted = np.zeros(len(self._there) + 1, dtype=np.int64)
        first = np.clip(starts // BLOCK, 0, len(self._there))
        last = np.clip(-(-stops // BLOCK), 0, len(self._there))
        np.add.at(wanted, first, 1)
        np.add.at(wanted, last, -1)
        blocks = np.flatnonzero((np.cumsum(wanted)[:-1] > 0) & ~self._there)
        for one, behind in _runs(blocks):
            self._fetch(one, behind)

    def _fetch(self, first: int, behind: int) -> None:
        start, stop = first * BLOCK, min(behind * BLOCK, self._size)
        raw = self._shadow.read(self._path, start, stop)
        if len(raw) < stop - start:
            raise MissingFileError(
                self._path,
                offset=start,
                reason="the file is shorter than when it was listed",
                expected=f"{stop - start} bytes",
                actual=f"{len(raw)} bytes",
                advice="It was replaced; open the store anew",
            )
        self._memory[start:stop] = raw
        self._there[first:behind] = True


def _runs(blocks: npt.NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Ranges of blocks that are asked for at once: neighbours joined, up to a size."""
    if not len(blocks):
        return
    first = last = int(blocks[0])
    for block in blocks[1:].tolist():
        if block - last > JOINED or block - first >= MOST_A_REQUEST:
            yield first, last + 1
            first = block
        last = block
    yield first, last + 1


def parse_storage_options(value: str) -> StorageOptions:
    """A JSON object of texts. Raises ValueError, without the value, where it is none."""
    try:
        found = json.loads(value)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    return StorageOptions({str(name): str(one) for name, one in found.items()})
