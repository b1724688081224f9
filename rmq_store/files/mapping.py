"""Files mapped for reading, and their counterpart for files in an object store."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.errors import AccessError, DataLossError, from_os_error, shown_path
from rmq_store.files.mapping_guard import Faults, Guarded, guard
from rmq_store.files.remote.blocks import KEPT_BYTES, Held, RemoteMapping
from rmq_store.files.remote.remote_store import Shadow, shadow_of
from rmq_store.files.segments import SegmentFile, open_to_read
from rmq_store.format.array_types import Bytes

_REMOTE_FILES_KEPT = 1024
_MOST_RANGES = 64
_LOOKS_REMEMBERED = 1 << 17  # paths, of some 100 bytes each


class MappingCache:
    """The most recently used mapped files, at most `limit`; thousands of queues share one cache.

    Remote files are limited to KEPT_BYTES together instead. Thread-safe.
    """

    def __init__(self, limit: int, *, block: int | None = None) -> None:
        """`block`: the smallest fetch from a remote file, in bytes; None for the default."""
        self.limit = limit
        self.counts = ReadCounts()
        self._block = block
        self._kept: OrderedDict[str, Mapping | RemoteFile] = OrderedDict()
        self._held = Held()
        self._looked_into: set[str] = set()
        self._lock = threading.Lock()
        self._guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()  # released ones with views too
        self._faults = Faults.count

    def get(self, segment: SegmentFile, *, to_fetch: bool = False) -> Mapping | RemoteFile:
        """The mapping of `segment`; creates it if it is not cached.

        `to_fetch`: more of it will be fetched, so large remote files may have to be released.
        """
        with self._lock:
            mapping = self._kept.get(segment.path)
            if mapping is not None:
                self._kept.move_to_end(segment.path)
                while to_fetch and len(self._kept) > 1 and self._held.bytes > KEPT_BYTES:
                    self._drop_oldest()
                return mapping
            shadow = shadow_of(segment.path)
            if shadow is None:
                mapping = Mapping(segment)
                self._guarded.add(mapping.guarded)
            else:
                mapping = RemoteFile(shadow, segment, self._held, self._block)
            self.counts.files[segment.path] = None
            self._make_room(remote=shadow is not None)
            self._kept[segment.path] = mapping
        return mapping

    def first_look(self, segment: SegmentFile, start: int, stop: int) -> Bytes | None:
        """Bytes of a local file by one short read, for the first small look into it; else None.

        To map a file for that costs many times as much: of a queue file that is mostly a hole, the
        system also creates the pages around the touched one. Raises DataLossError if the file became
        shorter.
        """
        with self._lock:
            if segment.path in self._kept or segment.path in self._looked_into:
                return None
            if len(self._looked_into) >= _LOOKS_REMEMBERED:
                self._looked_into.clear()
            self._looked_into.add(segment.path)
        if shadow_of(segment.path) is not None:
            return None
        looked: Bytes = np.empty(stop - start, dtype=np.uint8)
        try:
            fd = open_to_read(segment)
            try:
                count = os.preadv(fd, [looked.data], start)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        except OSError as error:
            raise from_os_error(segment.path, error, "reading") from error
        if count < len(looked):
            raise _shrunk(segment, size)
        self.counts.files[segment.path] = None
        return looked

    def _make_room(self, *, remote: bool) -> None:
        limit = _REMOTE_FILES_KEPT if remote else self.limit
        while len(self._kept) >= limit or (self._kept and self._held.bytes > KEPT_BYTES):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, oldest = self._kept.popitem(last=False)
        if isinstance(oldest, RemoteFile):
            oldest.count_as_released()

    def check_reads(self) -> None:
        """Raise DataLossError if a file was cut while its bytes were read.

        To be called after bytes of a view were used, and before they lead to a result.
        """
        if self._faults == Faults.count:
            return
        known = Faults.count
        with self._lock:
            mapped = list(self._guarded)
        for guarded in mapped:
            _refuse_fault(guarded)
        self._faults = known

    def clear(self) -> None:
        """Release all mappings; a file is unmapped once no view on it is left."""
        with self._lock:
            self._kept.clear()
            self._held = Held()


class RemoteFile(RemoteMapping):
    """A remote file with the interface of a mapped one."""

    def __init__(self, shadow: Shadow, segment: SegmentFile, held: Held, block: int | None) -> None:
        super().__init__(shadow, segment.path, segment.size, held, block=block)

    def check(self, size: int, segment: SegmentFile) -> None:
        """Does nothing: objects do not shrink during a read, and a fetch detects a short object."""

    def stored_from(self, position: int) -> int:
        """Returns `position`: objects have no holes."""
        return position


class Mapping:
    """One mapped file. It is unmapped when the last view on it is gone."""

    def __init__(self, segment: SegmentFile) -> None:
        try:
            fd = open_to_read(segment)
        except OSError as error:
            raise from_os_error(segment.path, error, "opening") from error
        try:
            size = os.fstat(fd).st_size
            if size < segment.size:
                raise _shrunk(segment, size)
            # No more than the listed size: bytes after it belong to a later snapshot.
            mapped = mmap.mmap(fd, segment.size, access=mmap.ACCESS_READ)
        except OSError as error:
            os.close(fd)
            raise from_os_error(segment.path, error, "mapping") from error
        except BaseException:
            os.close(fd)
            raise
        self.bytes: Bytes = np.frombuffer(mapped, dtype=np.uint8)
        self.guarded = guard(mapped, segment)
        self._fd = fd
        # Close exactly once: another file may get the same descriptor right afterwards.
        weakref.finalize(self, os.close, fd)

    def need(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], *, fresh: bool
    ) -> None:
        """Does nothing: the system loads the pages of a local file."""

    def check(self, size: int, segment: SegmentFile) -> None:
        """Raises DataLossError if the file shrank."""
        actual = os.fstat(self._fd).st_size
        if actual < size:
            raise _shrunk(segment, actual)
        _refuse_fault(self.guarded)

    def stored_from(self, position: int) -> int:
        """The first position at or after this one that is not in a hole; the file size if none is."""
        return stored_from(self._fd, position, len(self.bytes))


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


def _refuse_fault(guarded: Guarded) -> None:
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
    """What was read: opened files, each once, and requested bytes."""

    files: dict[str, None] = field(default_factory=dict)
    bytes: int = 0


class StoreReads(NamedTuple):
    """The files opened and bytes read in a store. Bodies that no column needs do not count."""

    log: ReadCounts
    queues: ReadCounts
    requests: int = 0  # to an object store
    fetched: int = 0  # bytes that the requests returned

    def __str__(self) -> str:
        return (
            f"read {self.log.bytes} bytes of {len(self.log.files)} files of the log and "
            f"{self.queues.bytes} bytes of {len(self.queues.files)} files of queues: "
            + ", ".join(map(shown_path, (*self.log.files, *self.queues.files)))
        )
