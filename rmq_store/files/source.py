"""Bytes of the files of a store, local or in an object store: one interface, `ReadableFile`.

Few bytes are read as a copy. Many are used in a `Window`, which is a view on the mapped file, or on the
part of it that was fetched. A window checks itself when it is left: if somebody cut the file meanwhile,
its bytes read as zeros, and nothing may be made of them.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from rmq_store.errors import AccessError, DataLossError, OsErrorsOf, from_os_error, shown_path
from rmq_store.files.remote.remote_store import (
    KEPT_BYTES,
    BlockRun,
    HeldBytes,
    RemoteFile,
    fetch_runs,
    shadow_of,
)
from rmq_store.files.segments import LOCAL, AccessCost, SegmentFile
from rmq_store.files.sigbus_handler import GuardedMapping, ReadFaults, guard_mapping
from rmq_store.format.byte_layout import Bytes, Ints

_REMOTE_FILES_KEPT = 1024
_MOST_RANGES = 64
_ROOM = 10_000_000
_mapping = threading.Lock()
_Item = TypeVar("_Item")


class ReadableFile(Protocol):
    """The bytes of one file. Positions count from its first byte.

    The methods with nothing to do for a local file, whose view keeps its mapping, do nothing here.
    """

    cost: AccessCost = LOCAL
    is_there: bool
    """Whether all bytes can be used without a fetch."""

    @property
    def bytes(self) -> Bytes:
        """A view on the whole file. Of a remote one, only what was fetched is there."""

    def read(self, start: int, stop: int) -> Bytes:
        """A copy of few bytes. Raises DataLossError if the file became shorter."""

    def missing(self, starts: Ints, stops: Ints) -> Iterator[BlockRun]:
        """What can be fetched side by side before these ranges are used; nothing of a local file,
        whose pages the system loads, or of a database."""
        return iter(())

    def fetch(self, starts: Ints, stops: Ints, *, first: bool = False) -> None:
        """Fetch these ranges. `first`: of the only window, so that other bytes may be released."""
        return

    def hold(self) -> None:
        """Count a window on the file that was opened."""
        return

    def release(self) -> None:
        """Count a window on the file that was left."""
        return

    def stored_from(self, position: int) -> int:
        """The first position at or after this one that is not in a hole; the file size if none is."""

    def stored_until(self) -> int:
        """The position after which only a hole follows."""

    def check(self, size: int) -> None:
        """Raise DataLossError if the file has less than `size` bytes now."""
        return


@dataclass(frozen=True, slots=True)
class PartOfDatabase(SegmentFile):
    """What is no file of its own, but a part of a database: `path` is only a name, and `opened` gives the
    bytes."""

    opened: Callable[[], ReadableFile] = field(kw_only=True, compare=False, repr=False)


class Ranges(NamedTuple):
    """Ranges [starts, stops) of a file, for `fetch_all`."""

    file: ReadableFile
    starts: Ints
    stops: Ints


def fetch_all(wanted: Iterable[Ranges]) -> None:
    """Fetch ranges of several files side by side, where they have to be fetched.

    Raises MissingFileError, AccessError.
    """
    fetch_runs([run for one in wanted for run in one.file.missing(one.starts, one.stops)])


class Sources:
    """The most recently used files, at most `limit`; thousands of queues share one cache.

    Remote files are limited to KEPT_BYTES together instead. `room`: bytes that may be kept of short queues,
    all together. Thread-safe.
    """

    def __init__(self, limit: int, *, block: int | None = None) -> None:
        """`block`: the smallest fetch from a remote file, in bytes; None for the default."""
        self.limit = limit
        self.room = _ROOM
        self.counts = ReadCounts()
        self._block = block
        self._kept: OrderedDict[str, ReadableFile] = OrderedDict()
        self._held = HeldBytes()
        self._lock = threading.Lock()
        self._guarded: weakref.WeakSet[GuardedMapping] = (
            weakref.WeakSet()
        )  # released ones with views too
        self._faults = ReadFaults.count

    def get(self, segment: SegmentFile, *, to_fetch: bool = False) -> ReadableFile:
        """The file; opens it if it is not kept.

        `to_fetch`: more of it will be fetched, so large remote files may have to be released.
        """
        with self._lock:
            file = self._kept.get(segment.path)
            if file is not None:
                self._kept.move_to_end(segment.path)
                while to_fetch and len(self._kept) > 1 and self._held.bytes > KEPT_BYTES:
                    self._drop_oldest()
                return file
            shadow = None
            if isinstance(segment, PartOfDatabase):
                file = segment.opened()
            elif (shadow := shadow_of(segment.path)) is None:
                file = LocalFile(segment, self._guarded)
            else:
                file = RemoteFile(shadow, segment.path, segment.size, self._held, block=self._block)
            limit = self.limit if shadow is None else _REMOTE_FILES_KEPT
            while len(self._kept) >= limit or (self._kept and self._held.bytes > KEPT_BYTES):
                self._drop_oldest()
            self._kept[segment.path] = file
        return file

    def window(self, segment: SegmentFile, start: int, stop: int, *, fetch: bool = True) -> Window:
        """The bytes [start, stop) of a file; zeros where it is shorter.

        With `fetch=False`, of a remote file only what `Window.fetch` makes available. Raises
        DataLossError if the file became shorter than it was when it was listed.
        """
        file = self.get(segment, to_fetch=fetch)
        self.counts.files[segment.path] = None
        window = Window(self, file, start, stop, segment.size)
        if fetch:
            window.fetch([0], [stop - start])
        return window

    def _drop_oldest(self) -> None:
        _, oldest = self._kept.popitem(last=False)
        if isinstance(oldest, RemoteFile):
            oldest.forget_held_bytes()

    def check_reads(self) -> None:
        """Raise DataLossError if a file was cut while its bytes were read.

        To be called after bytes of a view were used, and before they lead to a result.
        """
        if self._faults == ReadFaults.count:
            return
        faults_before = ReadFaults.count
        with self._lock:
            mapped = list(self._guarded)
        for guarded in mapped:
            _refuse_fault(guarded)
        self._faults = faults_before

    def release(self) -> None:
        """Close the files of disks; what was fetched of remote ones stays."""
        with self._lock:
            for path in [path for path, file in self._kept.items() if file.is_there]:
                del self._kept[path]

    def clear(self) -> None:
        """Release all mappings; a file is unmapped once no view on it is left."""
        with self._lock:
            self._kept.clear()
            self._held = HeldBytes()


class LocalFile(ReadableFile):
    """One file of a disk, open. It is mapped with the first window, and unmapped after the last."""

    is_there = True
    _fd = -1

    def __init__(self, segment: SegmentFile, guarded: weakref.WeakSet[GuardedMapping]) -> None:
        """`guarded`: gets the mapping of the file, for `Sources.check_reads`."""
        self._segment, self._all_guarded = segment, guarded
        self._mapped: Bytes | None = None
        self._guarded: GuardedMapping | None = None
        with OsErrorsOf(segment.path, "opening"):
            # A FIFO that has taken its place does not make the caller wait.
            self._fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def bytes(self) -> Bytes:
        """A view on the mapped file."""
        if self._mapped is None:
            with _mapping:
                if self._mapped is None:
                    self._mapped = self._map()
        return self._mapped

    def _map(self) -> Bytes:
        segment = self._segment
        self.check(segment.size)
        try:
            # No more than the listed size: bytes after it belong to a later snapshot.
            mapped = mmap.mmap(self._fd, segment.size, access=mmap.ACCESS_READ)
        except ValueError:  # the file was cut since the check
            raise _shrunk(segment, os.fstat(self._fd).st_size) from None
        except OSError as error:
            raise from_os_error(segment.path, error, "mapping") from error
        self._guarded = guard_mapping(mapped, segment)
        self._all_guarded.add(self._guarded)
        return np.frombuffer(mapped, dtype=np.uint8)

    def read(self, start: int, stop: int) -> Bytes:
        """A copy of few bytes, by a read. Raises DataLossError if the file became shorter.

        To map a file for that costs many times as much: of a queue file that is mostly a hole, the
        system also creates the pages around the touched one.
        """
        data: Bytes = np.empty(stop - start, dtype=np.uint8)
        try:
            count = os.preadv(self._fd, [data.data], start) if stop > start else 0
        except OSError as error:
            raise from_os_error(self._segment.path, error, "reading") from error
        if count < len(data):
            raise _shrunk(self._segment, os.fstat(self._fd).st_size)
        return data

    def check(self, size: int) -> None:
        """Raise DataLossError if the file has less than `size` bytes now."""
        actual = os.fstat(self._fd).st_size
        if actual < size:
            raise _shrunk(self._segment, actual)
        if self._guarded is not None:
            _refuse_fault(self._guarded)

    def stored_from(self, position: int) -> int:
        """The first position at or after this one that is not in a hole; the file size if none is."""
        return stored_from(self._fd, position, self._segment.size)

    def stored_until(self) -> int:
        """The position after which only a hole follows."""
        return stored_until(self._fd, self._segment.size)


def stored_from(fd: int, position: int, size: int) -> int:
    """The first position at or after `position` that is not in a hole of an open file of `size` bytes.

    Returns `size` if only a hole follows, and `position` if the file system does not report holes.
    Bytes in a hole read as zeros. Moves the file position.
    """
    if not hasattr(os, "SEEK_DATA"):
        return position
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else position


def stored_until(fd: int, size: int) -> int:
    """The end of the last stored range of an open file of `size` bytes: only a hole follows.

    Returns `size` if the file system does not report holes, or if the file has many ranges.
    """
    stop = 0
    for _ in range(_MOST_RANGES):
        start = stored_from(fd, stop, size)
        if start >= size:
            return stop
        try:
            stop = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        except (OSError, AttributeError):
            return size
    return size


def _refuse_fault(guarded: GuardedMapping) -> None:
    if guarded.fault is None:
        return
    segment = guarded.segment
    try:
        size = os.stat(segment.path).st_size
    except OSError:
        size = 0
    if size < segment.size:
        raise _shrunk(segment, size)
    raise AccessError(
        segment.path,
        offset=guarded.fault,
        reason="a page of the file could not be read",
        expected=f"the {segment.size} bytes that the file has",
        advice="Somebody cut the file and wrote it again, or the disk fails: look at the log of the "
        "system, and read again",
    )


def _shrunk(segment: SegmentFile, actual: int) -> DataLossError:
    return DataLossError(
        segment.path,
        offset=actual,
        reason="the file became shorter while it was being read",
        expected=f"{segment.size} bytes",
        actual=f"{actual} bytes",
        advice="Open the store again to read the rest of it",
    )


@dataclass(slots=True)
class ReadCounts:
    """What was read: files, each once, and requested bytes. Short looks do not count.

    `checked`: records of the log held against their entries, or items of the index on the way to others.
    """

    files: dict[str, None] = field(default_factory=dict)
    bytes: int = 0
    checked: int = 0


class StoreReads(NamedTuple):
    """The files opened and bytes read in a store. Bodies that no column needs do not count."""

    log: ReadCounts
    queues: ReadCounts
    key_index: ReadCounts
    requests: int = 0  # to an object store
    fetched: int = 0  # bytes that the requests returned

    def __str__(self) -> str:
        return (
            f"read {self.log.bytes} bytes of {len(self.log.files)} files of the log and "
            f"{self.queues.bytes} bytes of {len(self.queues.files)} files of queues: "
            + ", ".join(map(shown_path, (*self.log.files, *self.queues.files)))
        )


class Window:
    """Bytes of a file, to be used within a `with` block.

    Leaving the block raises DataLossError if a file was cut meanwhile. That error replaces another one
    of the block, because zeros in place of the bytes may have caused it.
    """

    __slots__ = ("_fetched", "_file", "_held", "_is_open", "_size", "_sources", "_start", "bytes")

    def __init__(
        self, sources: Sources, file: ReadableFile, start: int, stop: int, size: int
    ) -> None:
        """The bytes [start, stop) of a file of `size` bytes; zeros where it is shorter.

        Raises DataLossError if the file became shorter than that.
        """
        self._sources, self._file, self._start = sources, file, start
        self._size = min(stop, size)
        self._held = held = max(0, self._size - start)
        self._fetched = False
        file.check(self._size)
        file.hold()
        self._is_open = True
        if held == stop - start:
            self.bytes: Bytes = file.bytes[start:stop]
        else:
            self.bytes = np.zeros(stop - start, dtype=np.uint8)
            self._copy()

    def fetch(self, starts: Iterable[int], stops: Iterable[int]) -> None:
        """Make ranges of the bytes available; positions count from the first byte of the window.

        An error ends the window, because it may come before the `with` block.
        """
        if not self._file.is_there:
            first = np.minimum(np.asarray(starts, dtype=np.int64), self._held) + self._start
            last = np.minimum(np.asarray(stops, dtype=np.int64), self._held) + self._start
            try:
                self._file.fetch(first, last, first=not self._fetched)
            except BaseException:
                self._release()
                raise
            self._fetched = True
            if self._held < len(self.bytes):
                self._copy()

    def _copy(self) -> None:
        if self._held:
            self.bytes[: self._held] = self._file.bytes[self._start : self._start + self._held]

    def checked(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Items made of the bytes, each after a check that all bytes were there."""
        for item in items:
            self._check()
            yield item

    def _check(self) -> None:
        self._sources.check_reads()
        # No fault shows that the file ends within a page now.
        self._file.check(self._size)

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._release()
        if kind is not GeneratorExit:
            self._check()

    def _release(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.release()
