"""A file of an object store as memory that is filled in, block by block, where it is looked at."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import MissingFileError
from rmq_store.files.remote.object_store import Shadow
from rmq_store.files.remote.parallel import side_by_side

BLOCK = 64 << 10
JOINED = 16  # blocks between two wanted ones that are read along, to save a request
MOST_A_REQUEST = 4 << 20
KEPT_BYTES = 32 << 20
"""Of the files of one cache together, before those that were not looked at lately are given up."""

_FEW = 64  # ranges; with more it is quicker to look at all blocks
_NONE = np.zeros(0, dtype=np.int64)

# Private: what MADV_DONTNEED gives up of shared memory is not given back. Unreserved: only what is
# fetched is ever there.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


@dataclass(slots=True)
class Held:
    """Bytes in memory of all the remote files of a cache."""

    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, count: int) -> None:
        """Count `count` bytes more, or fewer where it is below 0."""
        with self._lock:
            self.bytes += count


class Ranges(NamedTuple):
    """Ranges [starts, stops) of a remote file."""

    file: RemoteMapping
    starts: npt.NDArray[Any]
    stops: npt.NDArray[Any]


class _Run(NamedTuple):
    """Blocks [first, behind) of a file that come by one request."""

    file: RemoteMapping
    first: int
    behind: int


class RemoteMapping:
    """A remote file as memory that is filled in where it is needed: see `need`."""

    def __init__(
        self, shadow: Shadow, path: str, size: int, held: Held, *, block: int | None = None
    ) -> None:
        """`block`: bytes that are fetched at least, by default BLOCK."""
        self._shadow, self._path, self._size = shadow, path, size
        self._held = held
        self._block = block or BLOCK
        self._memory = mmap.mmap(-1, max(size, 1), flags=_FLAGS)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._memory, dtype=np.uint8)[:size]
        self._there = np.zeros(-(-size // self._block), dtype=bool)
        self._there_count = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of this file that are in memory."""
        return self._there_count * self._block

    def need(self, starts: npt.NDArray[Any], stops: npt.NDArray[Any], *, fresh: bool) -> None:
        """Fetch ranges (positions in the file) that are not there yet.

        `fresh`: no view on the file is in use, so what was fetched before may be given up: first
        what lies in front, for files are gone along. Raises MissingFileError, AccessError.
        """
        if fresh and len(starts) and self.held_bytes > KEPT_BYTES:
            self._give_up(0, int(starts.min()) // self._block)
            if self.held_bytes > 2 * KEPT_BYTES:
                self._give_up(-(-int(stops.max()) // self._block), len(self._there))
        need_all([Ranges(self, starts, stops)])

    def _give_up(self, first: int, behind: int) -> None:
        """Blocks [first, behind) go out of memory."""
        gone = int(self._there[first:behind].sum())
        if not gone:
            return
        start = -(-first * self._block // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = min(behind * self._block, self._size) // mmap.PAGESIZE * mmap.PAGESIZE
        if start < stop:
            self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)
        with self._lock:
            self._there[first:behind] = False
            self._there_count -= gone
        self._held.add(-gone * self._block)

    def let_go(self) -> None:
        """Count this file as no longer in memory."""
        self._held.add(-self.held_bytes)
        self._there_count = 0

    def missing(self, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> Iterator[_Run]:
        """What has to be fetched to have these ranges."""
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
        for one, behind in _runs(blocks, JOINED, MOST_A_REQUEST // self._block):
            yield _Run(self, one, behind)

    def fetch(self, first: int, behind: int) -> None:
        """Fill in blocks by one request. May be called by several threads for several blocks."""
        start, stop = first * self._block, min(behind * self._block, self._size)
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

    def note(self, first: int, behind: int) -> None:
        """Take blocks down as being there."""
        with self._lock:
            new = int((~self._there[first:behind]).sum())
            self._there[first:behind] = True
            self._there_count += new
        self._held.add(new * self._block)


def need_all(wanted: Iterable[Ranges]) -> None:
    """Fetch ranges of several files that are not there yet, side by side.

    Raises MissingFileError, AccessError.
    """
    runs = [run for one in wanted for run in one.file.missing(one.starts, one.stops)]
    side_by_side(lambda run: run.file.fetch(run.first, run.behind), runs)
    for run in runs:
        run.file.note(run.first, run.behind)


def _runs(blocks: npt.NDArray[np.int64], joined: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks that are asked for at once: neighbours joined, up to `most`."""
    if not len(blocks):
        return
    first = last = int(blocks[0])
    for block in blocks[1:].tolist():
        if block - last > joined or block - first >= most:
            yield first, last + 1
            first = block
        last = block
    yield first, last + 1
