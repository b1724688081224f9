"""Where bytes come from: a chain of fixed-size segment files, mapped and read-only.

A chain is one byte stream cut into files of one size; a file's name is the offset of its first byte
(MappedFileQueue). Views are windows on the mapped file and must not be kept: copy what is to stay.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmq_store.errors import (
    InvalidArgumentError,
    MissingFileError,
    TruncatedFileError,
    from_os_error,
)
from rmq_store.layout import SEGMENT_NAME_DIGITS
from rmq_store.remote import Shadow, shadow_of
from rmq_store.remotefile import KEPT_BYTES, Held, Ranges, RemoteMapping

Bytes = npt.NDArray[np.uint8]

LARGEST_FILE = 2**31 - 1
"""Bytes of the largest file that a broker can be set to write: the setting is a Java int."""

_LAST_BASE = 2**63 - 1 - LARGEST_FILE

# Mapped files kept at once by a chain of its own: a pass along the log needs two.
_MAPPINGS_KEPT = 2
_REMOTE_FILES_KEPT = 1024


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One file of a chain: `base` is the stream offset of its first byte, `size` its size now."""

    path: str
    base: int
    size: int


def list_segments(folders: Sequence[str | os.PathLike[str]]) -> list[SegmentFile]:
    """The segment files in `folders` in stream order; empty files and other names are passed over.

    A folder that does not exist holds none. Of one name in two folders the first folder's counts.
    """
    found: dict[int, SegmentFile] = {}
    for folder in folders:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise from_os_error(folder, error, "listing segment files") from error
        for entry in entries:
            name = entry.name
            if len(name) != SEGMENT_NAME_DIGITS or not (name.isascii() and name.isdigit()):
                continue
            try:
                size = entry.stat().st_size
            except FileNotFoundError:  # deleted by the broker since the listing
                continue
            if int(name) > _LAST_BASE:  # no broker counts that far, nor do 64 bits
                continue
            if size and int(name) not in found and entry.is_file():
                found[int(name)] = SegmentFile(entry.path, int(name), size)
    return [found[base] for base in sorted(found)]


def infer_file_size(segments: Sequence[SegmentFile]) -> int:
    """The size all files of a chain were made with; 0 for an empty chain.

    The last file may be cut short (a copied snapshot), and so may others of a damaged store; the
    names then tell more than the sizes, as far as they make sense.
    """
    if not segments:
        return 0
    largest = max(segment.size for segment in segments)
    bases = [segment.base for segment in segments]
    if all(base % largest == 0 for base in bases) or len(bases) == 1:
        return largest
    by_name = math.gcd(*bases)
    return by_name if largest <= by_name <= LARGEST_FILE else largest


@dataclass(slots=True)
class ReadCounts:
    """What was read: files that were opened, each once, and bytes that were asked for."""

    files: dict[str, None] = field(default_factory=dict)
    bytes: int = 0


class MappingCache:
    """The files mapped last, at most `limit` of them: thousands of queues share one cache.

    Of remote files as many as hold KEPT_BYTES together. May be asked by several threads at once.
    """

    def __init__(self, limit: int, *, block: int | None = None) -> None:
        """`block`: bytes of a remote file that are fetched at least; None for the usual."""
        self.limit = limit
        self.counts = ReadCounts()
        self._block = block
        self._kept: OrderedDict[str, _Mapping | _RemoteFile] = OrderedDict()
        self._held = Held()
        self._lock = threading.Lock()

    def get(self, segment: SegmentFile, *, to_fetch: bool = False) -> _Mapping | _RemoteFile:
        """The mapping of `segment`, made where it is not kept.

        `to_fetch`: more of it is about to be fetched, so that others that hold much have to go.
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
                mapping = _Mapping(segment)
            else:
                mapping = _RemoteFile(shadow, segment, self._held, self._block)
            self.counts.files[segment.path] = None
            self._make_room(remote=shadow is not None)
            self._kept[segment.path] = mapping
        return mapping

    def _make_room(self, *, remote: bool) -> None:
        limit = _REMOTE_FILES_KEPT if remote else self.limit
        while len(self._kept) >= limit or (self._kept and self._held.bytes > KEPT_BYTES):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, oldest = self._kept.popitem(last=False)
        if isinstance(oldest, _RemoteFile):
            oldest.let_go()

    def clear(self) -> None:
        """Give up all of them; a file is unmapped once no view on it is left."""
        with self._lock:
            self._kept.clear()
            self._held = Held()


class SegmentChain:
    """A byte stream in segment files, read through mapped windows.

    `file_size` overrules what the files tell. Not for several threads at once.
    """

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        *,
        file_size: int | None = None,
        segments: Sequence[SegmentFile] | None = None,
        mappings: MappingCache | None = None,
        setting: str = "the file size given",
    ) -> None:
        """`setting`: what the broker calls `file_size`, for messages."""
        self.folders = [os.fspath(folder) for folder in folders]
        listed = list(list_segments(folders) if segments is None else segments)
        _refuse_sizes(listed, file_size, setting)
        self.file_size = file_size or infer_file_size(listed)
        self.segments = _without_overlaps(listed, self.file_size)
        self._bases = [segment.base for segment in self.segments]
        self._mappings = mappings or MappingCache(_MAPPINGS_KEPT)

    def __repr__(self) -> str:
        return f"SegmentChain({self.folders}, {len(self.segments)} files of {self.file_size})"

    @property
    def counts(self) -> ReadCounts:
        """What was read of this chain and of others that share its mappings."""
        return self._mappings.counts

    @property
    def start(self) -> int:
        """Stream offset of the first byte of the first file; 0 of an empty chain."""
        return self._bases[0] if self._bases else 0

    @property
    def stop(self) -> int:
        """Stream offset behind the last file, had it its full size."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def close(self) -> None:
        """Give up all mapped files."""
        self._mappings.clear()

    def segment_at(self, offset: int) -> SegmentFile | None:
        """The file that holds `offset`, or None in a hole and outside."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0 or offset >= self._bases[at] + self.file_size:
            return None
        return self.segments[at]

    def segments_from(self, offset: int) -> Iterator[SegmentFile]:
        """The file that holds `offset`, if any, and all behind it."""
        for segment in self.segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            if segment.base + self.file_size > offset:
                yield segment

    def segment_end(self, segment: SegmentFile) -> int:
        """Stream offset behind `segment`, had it its full size."""
        return segment.base + self.file_size

    def window(self, start: int, stop: int, *, fetch: int | None = None) -> Bytes:
        """Bytes `start` to `stop` of the stream, all in one file; zeros where that file is short.

        A view on the mapped file where it can be. Of a remote file all of it is fetched, or its
        first `fetch` bytes; with 0 nothing that was not asked for by `need`. Raises
        MissingFileError where no file holds them, TruncatedFileError where the file shrank since it
        was listed.
        """
        segment = self.segment_at(start)
        if segment is None or stop > segment.base + self.file_size:
            raise self._missing(start, stop)
        mapping = self._mappings.get(segment, to_fetch=fetch != 0)
        first, last = start - segment.base, stop - segment.base
        mapping.check(min(last, segment.size), segment)
        if fetch != 0 and isinstance(mapping, _RemoteFile):
            behind = last if fetch is None else min(first + fetch, last)
            mapping.need(np.array([first]), np.array([behind]), fresh=False)
        if last <= segment.size:
            return mapping.bytes[first:last]
        padded = np.zeros(last - first, dtype=np.uint8)
        there = mapping.bytes[first : segment.size]
        padded[: len(there)] = there
        return padded

    def stored_from(self, offset: int) -> int:
        """The first offset at or behind `offset`, in its file, for which bytes are stored at all.

        What lies before reads as zeros: files are made at their full size, and filled later. To
        look there would take as long as to read what is written, and fill memory with zeros. The
        end of the file where nothing more is stored.
        """
        segment = self.segment_at(offset)
        if segment is None:
            return offset
        found = segment.base + self._mappings.get(segment).stored_from(offset - segment.base)
        return found if found < segment.base + segment.size else self.segment_end(segment)

    @property
    def is_remote(self) -> bool:
        """Whether the files are in an object store."""
        return bool(self.segments) and shadow_of(self.segments[0].path) is not None

    def need(self, starts: Iterable[int], stops: Iterable[int], *, fresh: bool = False) -> None:
        """Fetch ranges of the stream, all in one file, that are about to be looked at in a window.

        Nothing to do for local files. `fresh`: no window is in use.
        """
        if not self.is_remote:
            return
        begin = np.asarray(list(starts), dtype=np.int64)
        end = np.asarray(list(stops), dtype=np.int64)
        segment = self.segment_at(int(begin[0])) if len(begin) else None
        if segment is None:
            return
        mapping = self._mappings.get(segment)
        mapping.need(begin - segment.base, end - segment.base, fresh=fresh)

    def remote_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Ranges]:
        """Ranges of the stream as ranges of remote files, for `need_all`; none of local ones."""
        for start, stop in ranges if self.is_remote else ():
            for segment in self.segments_from(start):
                if segment.base >= stop:
                    break
                mapping = self._mappings.get(segment)
                first, last = max(start - segment.base, 0), min(stop - segment.base, segment.size)
                if isinstance(mapping, RemoteMapping) and first < last:
                    yield Ranges(mapping, np.array([first]), np.array([last]))

    def _missing(self, start: int, stop: int) -> MissingFileError:
        held = f"{self.start} to {self.stop}" if self.segments else "no files"
        return MissingFileError(
            self.folders[0],
            offset=start,
            reason=f"no file holds bytes {start} to {stop}",
            expected=held,
            advice="The range expired and was deleted, or its file was not copied along",
        )


_SIZE_ADVICE = "Leave the size out to have it found from the files, or take it from broker.conf"


def _refuse_sizes(segments: Sequence[SegmentFile], said: int | None, setting: str) -> None:
    """Raises InvalidArgumentError where files are not of the size that is said, or of none that can be."""
    largest = max(segments, key=lambda segment: segment.size, default=None)
    if largest is not None and largest.size > (said or LARGEST_FILE):
        raise InvalidArgumentError(
            largest.path,
            reason=f"the file is larger than {setting}"
            if said
            else "the file is larger than any that a broker can write",
            expected=f"at most {said or LARGEST_FILE} bytes",
            actual=largest.size,
            advice=_SIZE_ADVICE,
        )
    for before, after in pairwise(segments):
        if said and after.base < before.base + said:
            raise InvalidArgumentError(
                after.path,
                reason=f"the files are smaller than {setting}",
                expected=f"{said} bytes from one to the next",
                actual=after.base - before.base,
                advice=_SIZE_ADVICE,
            )


def _without_overlaps(segments: Sequence[SegmentFile], file_size: int) -> list[SegmentFile]:
    """Without files whose name puts them inside the one before: such a name is wrong."""
    kept: list[SegmentFile] = []
    for segment in segments:
        if not kept or segment.base >= kept[-1].base + file_size:
            kept.append(segment)
    return kept


class _RemoteFile(RemoteMapping):
    """A remote file in the place of a mapped one."""

    def __init__(self, shadow: Shadow, segment: SegmentFile, held: Held, block: int | None) -> None:
        super().__init__(shadow, segment.path, segment.size, held, block=block)

    def check(self, size: int, segment: SegmentFile) -> None:
        """Objects are not cut while they are read: what is short is seen when it is fetched."""

    def stored_from(self, position: int) -> int:
        """Objects have no holes that could be asked for."""
        return position


class _Mapping:
    """One mapped file. It is unmapped when the last view on it is gone."""

    def __init__(self, segment: SegmentFile) -> None:
        try:
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise from_os_error(segment.path, error, "opening") from error
        try:
            size = os.fstat(fd).st_size
            if size < segment.size:
                raise _shrunk(segment, size)
            # Not more than was listed: what is behind belongs to a later snapshot.
            mapped = mmap.mmap(fd, segment.size, access=mmap.ACCESS_READ)
        except OSError as error:
            os.close(fd)
            raise from_os_error(segment.path, error, "mapping") from error
        except BaseException:
            os.close(fd)
            raise
        self.bytes: Bytes = np.frombuffer(mapped, dtype=np.uint8)
        self._fd = fd
        # Closed once and only once: the number may belong to another file a moment later.
        weakref.finalize(self, os.close, fd)

    def need(
        self, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], *, fresh: bool
    ) -> None:
        """Nothing to do: the system fetches what is looked at."""

    def check(self, size: int, segment: SegmentFile) -> None:
        """Reading behind the end of a file that was cut kills the process (SIGBUS): look first."""
        actual = os.fstat(self._fd).st_size
        if actual < size:
            raise _shrunk(segment, actual)

    def stored_from(self, position: int) -> int:
        """The first position at or behind this one that is in no hole; the size where all is."""
        return stored_from(self._fd, position, len(self.bytes))


def stored_from(fd: int, position: int, size: int) -> int:
    """The first position of an open file, of `size` bytes, at or behind this one that is in no hole.

    `size` where all behind it is one; `position` where the file system does not tell. What is in a
    hole reads as zeros. Moves the file's own position.
    """
    if not hasattr(os, "SEEK_DATA"):
        return position
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else position


def _shrunk(segment: SegmentFile, actual: int) -> TruncatedFileError:
    return TruncatedFileError(
        segment.path,
        offset=actual,
        reason="the file was cut while it was being read",
        expected=f"{segment.size} bytes",
        actual=f"{actual} bytes",
        advice="Open the store anew to read what is left of it",
    )


def read_file(path: str | os.PathLike[str]) -> bytes:
    """A small file whole. Raises our error where it cannot be read."""
    shadow = shadow_of(os.fspath(path))
    if shadow is not None:
        return shadow.read_whole(os.fspath(path))
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise from_os_error(path, error, "reading") from error


def require_positive(name: str, value: int) -> int:
    """`value`, or InvalidArgumentError where it is not above zero."""
    if value <= 0:
        raise InvalidArgumentError(None, reason=f"{name} must be above 0", actual=value)
    return value
