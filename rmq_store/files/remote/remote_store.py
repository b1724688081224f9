"""Stores in an object store, read by range through pyarrow.fs without copying whole files.

Sparse local files of the same names and sizes (the shadow) stand for the remote tree, so that code
that lists folders works as for a local store. Small files are fetched whole. Of others only the
needed blocks are fetched: see `blocks`.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rmq_store.errors import SHOWN_AS, MissingFileError, NotAStoreError, warn_once
from rmq_store.files.parallel import in_parallel
from rmq_store.files.remote.uri_filesystem import (
    error_of_object_store_address,
    error_of_remote,
    file_system,
)
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.files.segments import REMOTE
from rmq_store.format.byte_layout import Bytes, Ints

_FILES_OPEN = 256
_SHADOWS: dict[str, Shadow] = {}
BLOCK = 64 << 10
JOINED = 16  # unneeded blocks that one request may span, instead of two requests
MOST_A_REQUEST = 4 << 20
KEPT_BYTES = 32 << 20
"""Memory of all files of one cache; above it the least recently used files are released."""

_FEW = 64  # ranges; with more of them, checking all blocks is faster
_NONE = np.zeros(0, dtype=np.int64)

# Private, because MADV_DONTNEED does not release shared memory. Unreserved, because only
# fetched blocks take memory.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a remote store: path below the root, size in bytes, and mtime in ns."""

    path: str
    size: int
    modified: int


Listing = tuple[ListedFile, ...]


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
            raise error_of_remote(f"{self.uri}/{inside}", error, "reading") from None
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
        raise error_of_object_store_address(shadow.uri)


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
            path = os.path.join(folder, listed.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.truncate(listed.size)
            os.utime(path, ns=(listed.modified, listed.modified))
    except BaseException:
        shadow.close()
        raise
    return shadow


def _list(fs: Any, base: str, uri: str) -> Listing:
    from pyarrow import fs as pafs  # slow import: loads every file system

    try:
        infos = fs.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    except OSError as error:
        raise error_of_remote(uri, error, "listing") from None
    files = tuple(
        ListedFile(path, info.size, info.mtime_ns or 0)
        for info in infos
        if info.type == pafs.FileType.File
        and _is_of_a_store(path := info.path.removeprefix(base).lstrip("/"), uri)
    )
    if not files:
        raise NotAStoreError(
            uri,
            reason="no files under this address",
            advice="Give the folder that contains commitlog/ and consumequeue/",
        )
    return files


def _is_of_a_store(path: str, uri: str) -> bool:
    """Whether a key of the bucket names a file below the store; any key may be in a bucket."""
    if all(map(is_plain_name, path.split("/"))):
        return True
    warn_once("%s: passed over the key %r, which names no file below it", uri, path)
    return False


@dataclass(slots=True)
class HeldBytes:
    """Bytes in memory for all remote files of a cache."""

    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, count: int) -> None:
        """Add `count` bytes; a negative `count` subtracts."""
        with self._lock:
            self.bytes += count


class BlockRun(NamedTuple):
    """Blocks [first, end) of a file that one request fetches."""

    file: RemoteFile
    first: int
    end: int


class RemoteFile:
    """A remote file as memory that is filled on demand: a `files.source.ReadableFile`."""

    cost = REMOTE
    is_there = False

    def __init__(
        self, shadow: Shadow, path: str, size: int, held: HeldBytes, *, block: int | None = None
    ) -> None:
        """`block`: the smallest fetch in bytes; BLOCK by default."""
        self._shadow, self._path, self._size = shadow, path, size
        self._held = held
        self._block = block or BLOCK
        self._memory = mmap.mmap(-1, max(size, 1), flags=_FLAGS)
        self.bytes: Bytes = np.frombuffer(self._memory, dtype=np.uint8)[:size]
        self._is_fetched = np.zeros(-(-size // self._block), dtype=bool)
        self._fetched_count = 0
        self._windows = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of this file that are in memory."""
        return self._fetched_count * self._block

    def read(self, start: int, stop: int) -> Bytes:
        """A copy of some bytes. Raises MissingFileError, AccessError."""
        self.fetch(np.array([start]), np.array([stop]))
        copied: Bytes = self.bytes[start:stop].copy()
        return copied

    def fetch(self, starts: Ints, stops: Ints, *, first: bool = False) -> None:
        """Fetch ranges (positions in the file) that are not in memory yet.

        `first`: a window begins. If no other one is open, earlier blocks may be released, those in
        front first, because files are read forwards. Raises MissingFileError, AccessError.
        """
        if first and self._windows <= 1 and len(starts) and self.held_bytes > KEPT_BYTES:
            self._give_up(0, int(starts.min()) // self._block)
            if self.held_bytes > 2 * KEPT_BYTES:
                self._give_up(-(-int(stops.max()) // self._block), len(self._is_fetched))
        fetch_runs(list(self.missing(starts, stops)))

    def hold(self) -> None:
        """Count a window on the file that was opened: it needs the blocks that are there."""
        with self._lock:
            self._windows += 1

    def release(self) -> None:
        """Count a window on the file that was left."""
        with self._lock:
            self._windows -= 1

    def check(self, size: int) -> None:
        """Does nothing: objects do not shrink during a read, and a fetch detects a short object."""

    def stored_from(self, position: int) -> int:
        """Returns `position`: objects have no holes."""
        return position

    def stored_until(self) -> int:
        """The size of the file: objects have no holes."""
        return self._size

    def _give_up(self, first: int, end: int) -> None:
        """Release the blocks [first, end) from memory."""
        gone = int(self._is_fetched[first:end].sum())
        if not gone:
            return
        start = -(-first * self._block // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = min(end * self._block, self._size) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)
        with self._lock:
            self._is_fetched[first:end] = False
            self._fetched_count -= gone
        self._held.add(-gone * self._block)

    def forget_held_bytes(self) -> None:
        """Count this file as no longer in memory."""
        self._held.add(-self.held_bytes)
        self._held = (
            HeldBytes()
        )  # what a window that is still open fetches is not the cache's any more

    def missing(self, starts: Ints, stops: Ints) -> Iterator[BlockRun]:
        """The block runs to fetch for these ranges."""
        first = np.clip(starts // self._block, 0, len(self._is_fetched))
        last = np.clip(-(-stops // self._block), 0, len(self._is_fetched))
        if len(first) <= _FEW:
            parts = [np.arange(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
            blocks = np.unique(np.concatenate([_NONE, *parts]))
            blocks = blocks[~self._is_fetched[blocks]]
        else:
            wanted = np.zeros(len(self._is_fetched) + 1, dtype=np.int64)
            np.add.at(wanted, first, 1)
            np.add.at(wanted, last, -1)
            blocks = np.flatnonzero((np.cumsum(wanted)[:-1] > 0) & ~self._is_fetched)
        for start, stop in _runs(blocks, JOINED, MOST_A_REQUEST // self._block):
            yield BlockRun(self, start, stop)

    def fetch_run(self, first: int, end: int) -> None:
        """Fetch blocks by one request. Threads may fetch different blocks at the same time."""
        start, stop = first * self._block, min(end * self._block, self._size)
        raw = self._shadow.read(self._path, start, stop)
        if len(raw) < stop - start:
            raise MissingFileError(
                self._path,
                offset=start,
                reason="the file is shorter than when it was listed",
                expected=f"{stop - start} bytes",
                actual=f"{len(raw)} bytes",
                advice="It was replaced; open the store again",
            )
        self._memory[start:stop] = raw

    def note(self, first: int, end: int) -> None:
        """Record that blocks are in memory."""
        with self._lock:
            new = int((~self._is_fetched[first:end]).sum())
            self._is_fetched[first:end] = True
            self._fetched_count += new
        self._held.add(new * self._block)


def fetch_runs(runs: Sequence[BlockRun]) -> None:
    """Fetch blocks of several files in parallel. Raises MissingFileError, AccessError."""
    in_parallel(lambda run: run.file.fetch_run(run.first, run.end), runs)
    for run in runs:
        run.file.note(run.first, run.end)


def _runs(blocks: Ints, joined: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks to request at once: joins neighbours, up to `most` blocks."""
    if not len(blocks):
        return
    first = last = int(blocks[0])
    for block in blocks[1:].tolist():
        if block - last > joined or block - first >= most:
            yield first, last + 1
            first = block
        last = block
    yield first, last + 1
