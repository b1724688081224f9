"""A file of an object store as memory that is filled block by block on demand."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import MissingFileError
from rmq_store.files.cost import REMOTE
from rmq_store.files.parallel import side_by_side
from rmq_store.files.remote.remote_store import Shadow

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


@dataclass(slots=True)
class Held:
    """Bytes in memory for all remote files of a cache."""

    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, count: int) -> None:
        """Add `count` bytes; a negative `count` subtracts."""
        with self._lock:
            self.bytes += count


class Run(NamedTuple):
    """Blocks [first, end) of a file that one request fetches."""

    file: RemoteFile
    first: int
    end: int


class RemoteFile:
    """A remote file as memory that is filled on demand: a `files.source.Source`."""

    cost = REMOTE
    is_there = False

    def __init__(
        self, shadow: Shadow, path: str, size: int, held: Held, *, block: int | None = None
    ) -> None:
        """`block`: the smallest fetch in bytes; BLOCK by default."""
        self._shadow, self._path, self._size = shadow, path, size
        self._held = held
        self._block = block or BLOCK
        self._memory = mmap.mmap(-1, max(size, 1), flags=_FLAGS)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)[:size]
        self._there = np.zeros(-(-size // self._block), dtype=bool)
        self._there_count = 0
        self._windows = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of this file that are in memory."""
        return self._there_count * self._block

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """A copy of some bytes. Raises MissingFileError, AccessError."""
        self.fetch(np.array([start]), np.array([stop]))
        found: npt.NDArray[np.uint8] = self.bytes[start:stop].copy()
        return found

    def fetch(
        self, starts: npt.NDArray[Any], stops: npt.NDArray[Any], *, first: bool = False
    ) -> None:
        """Fetch ranges (positions in the file) that are not in memory yet.

        `first`: a window begins. If no other one is open, earlier blocks may be released, those in
        front first, because files are read forwards. Raises MissingFileError, AccessError.
        """
        if first and self._windows <= 1 and len(starts) and self.held_bytes > KEPT_BYTES:
            self._give_up(0, int(starts.min()) // self._block)
            if self.held_bytes > 2 * KEPT_BYTES:
                self._give_up(-(-int(stops.max()) // self._block), len(self._there))
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
        gone = int(self._there[first:end].sum())
        if not gone:
            return
        start = -(-first * self._block // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = min(end * self._block, self._size) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)
        with self._lock:
            self._there[first:end] = False
            self._there_count -= gone
        self._held.add(-gone * self._block)

    def count_as_released(self) -> None:
        """Count this file as no longer in memory."""
        self._held.add(-self.held_bytes)
        self._held = Held()  # what a window that is still open fetches is not the cache's any more
        self._there_count = 0

    def missing(self, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> Iterator[Run]:
        """The block runs to fetch for these ranges."""
        first = np.clip(starts // self._block, 0, len(self._there))
        last = np.clip(-(-stops // self._block), 0, len(self._there))
        if len(first) <= _FEW:
            parts = [np.arange(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
            blocks = np.unique(np.concatenate([_NONE, *parts]))
            blocks = blocks[~self._there[blocks]]
        else:
            wanted = np.zeros(len(self._there) + 1, dtype=np.int64)
            np.add.at(wanted, first, 1)
            np.add.at(wanted, last, -1)
            blocks = np.flatnonzero((np.cumsum(wanted)[:-1] > 0) & ~self._there)
        for start, stop in _runs(blocks, JOINED, MOST_A_REQUEST // self._block):
            yield Run(self, start, stop)

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
            new = int((~self._there[first:end]).sum())
            self._there[first:end] = True
            self._there_count += new
        self._held.add(new * self._block)


def fetch_runs(runs: Sequence[Run]) -> None:
    """Fetch blocks of several files in parallel. Raises MissingFileError, AccessError."""
    side_by_side(lambda run: run.file.fetch_run(run.first, run.end), runs)
    for run in runs:
        run.file.note(run.first, run.end)


def _runs(blocks: npt.NDArray[np.int64], joined: int, most: int) -> Iterator[tuple[int, int]]:
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
