"""A chain of fixed-size segment files: one byte stream to read, and files to write from front to back.

Copy the bytes of a window that must outlive it.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.errors import FileOffset, MissingFileError, OsErrorsOf, Place
from rmq_store.files.durable_files import sync_path, unshare_file
from rmq_store.files.parallel import in_parallel
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.files.segments import (
    LOCAL,
    REMOTE,
    SegmentFile,
    infer_file_size,
    list_segments,
    refuse_larger_files,
    refuse_wrong_sizes,
    without_overlaps,
)
from rmq_store.files.source import Ranges, ReadableFile, Sources, Window, fetch_all
from rmq_store.format.byte_layout import Bytes, segment_name

# Open files that a chain without a shared cache keeps: one pass along the log needs two.
_FILES_KEPT = 2
_LOOKED_AT = 1 << 20  # bytes at a time in a search for anything but zeros


class SegmentChain:
    """A byte stream in segment files. Not thread-safe.

    `file_size` overrides the size inferred from the files. `start`: stream offset of the first byte of the
    first file, 0 for an empty chain; `stop`: of the one after the last file, as if that had its full size.
    `holes`: ranges before the last file that no file holds: missing, empty or cut files. `cost`: what looks
    at the bytes cost.
    """

    def __init__(
        self,
        folders: Sequence[str | os.PathLike[str]],
        *,
        file_size: int | None = None,
        segments: Sequence[SegmentFile] | None = None,
        sources: Sources | None = None,
        setting: str = "the file size given",
        place: type[Place] = FileOffset,
        from_empty: bool = False,
    ) -> None:
        """`setting`: the broker's name for `file_size`, and `place`: what offsets are, for errors.
        `from_empty`: begin with the empty files before the first one with bytes.

        Raises InvalidArgumentError if the files contradict `file_size`, and UnrecoverableStoreError
        for a file that is larger than the others' names allow.
        """
        self._place = place
        self.folders = [os.fspath(folder) for folder in folders]
        listed = list(list_segments(folders) if segments is None else segments)
        refuse_wrong_sizes(listed, file_size, setting)
        self.file_size = file_size or infer_file_size(listed)
        refuse_larger_files(listed, self.file_size)
        self.segments = without_overlaps(listed, self.file_size)
        self._bases = bases = [segment.base for segment in self.segments]
        self.start, self.stop = (bases[0], bases[-1] + self.file_size) if bases else (0, 0)
        if from_empty and bases:
            self.start = self.start_with_empty_files(self.segments[0])
        remote = bool(bases) and shadow_of(self.segments[0].path) is not None
        self.cost = REMOTE if remote else LOCAL
        self.holes = self._holes()
        self._sources = sources or Sources(_FILES_KEPT)
        self.counts = self._sources.counts  # of this chain and of others that share its sources

    def __repr__(self) -> str:
        return f"SegmentChain({self.folders}, {len(self.segments)} files of {self.file_size})"

    def count_read(self, segment: SegmentFile, length: int) -> None:
        """Count bytes that were read of a file."""
        self.counts.files[segment.path] = None
        self.counts.bytes += length

    def close(self) -> None:
        """Close all files."""
        self._sources.clear()

    def segment_at(self, offset: int) -> SegmentFile | None:
        """The file that holds `offset`; None in a hole or outside the chain."""
        at = bisect_right(self._bases, offset) - 1
        return None if at < 0 or offset >= self._bases[at] + self.file_size else self.segments[at]

    def segments_from(self, offset: int) -> Iterator[SegmentFile]:
        """The file that holds `offset`, if any, and all files after it."""
        for segment in self.segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            if segment.base + self.file_size > offset:
                yield segment

    def held(self, start: int, stop: int, width: int) -> list[tuple[int, int]]:
        """The ranges of units [start, stop) that files hold, one a file; a unit has `width` bytes."""
        ranges = []
        for base in self._bases[max(0, bisect_right(self._bases, start * width) - 1) :]:
            if base >= stop * width:
                break
            first, last = max(start, -(-base // width)), min(stop, (base + self.file_size) // width)
            if first < last:
                ranges.append((first, last))
        return ranges

    def _holes(self) -> list[tuple[int, int]]:
        holes = []
        expected = self.start
        for segment in self.segments:
            if segment.base > expected:
                holes.append((expected, segment.base))
            expected = self.segment_end(segment)
            if segment.size < self.file_size and segment is not self.segments[-1]:
                holes.append((segment.base + segment.size, expected))
        return holes

    def start_with_empty_files(self, first: SegmentFile) -> int:
        """Where the first file begins, or the empty ones before it: a broker deletes whole files."""
        start = first.base if first.empty_from is None else first.empty_from
        return start if (first.base - start) % self.file_size == 0 else first.base

    def segment_end(self, segment: SegmentFile) -> int:
        """Stream offset after `segment`, as if that file had its full size."""
        return segment.base + self.file_size

    def read(self, start: int, stop: int, *, counted: bool = False) -> Bytes:
        """A copy of few bytes of the stream, within one file; zeros beyond a short file's end.

        `counted`: as bytes that a query read. Raises as `window`.
        """
        segment = self._segment_of(start, stop)
        if counted:
            self.count_read(segment, stop - start)
        first, last = start - segment.base, stop - segment.base
        if last <= segment.size:
            return self._sources.get(segment, to_fetch=True).read(first, last)
        data = np.zeros(last - first, dtype=np.uint8)
        if first < segment.size:
            held = self._sources.get(segment, to_fetch=True).read(first, segment.size)
            data[: len(held)] = held
        return data

    def window(self, start: int, stop: int, *, fetch: bool = True) -> Window:
        """Bytes `start` to `stop` of the stream, within one file; zeros beyond a short file's end.

        With `fetch=False`, of a remote file only what `Window.fetch` makes available. Raises
        MissingFileError if no file holds the range, DataLossError if the file shrank after it was
        listed.
        """
        segment = self._segment_of(start, stop)
        return self._sources.window(segment, start - segment.base, stop - segment.base, fetch=fetch)

    def window_of(self, segment: SegmentFile, start: int | None = None) -> Window:
        """The bytes of one file, from a stream offset on if that is given; zeros where it was truncated.

        Of a remote file only what `Window.fetch` makes available. Raises DataLossError as `window`.
        """
        first = 0 if start is None else start - segment.base
        return self._sources.window(segment, first, self.file_size, fetch=False)

    def _segment_of(self, start: int, stop: int) -> SegmentFile:
        segment = self.segment_at(start)
        if segment is None or stop > segment.base + self.file_size:
            raise MissingFileError(
                self.folders[0] if self.folders else None,
                offset=self._place(start),
                reason=f"no file holds bytes {start} to {stop}",
                expected=f"{self.start} to {self.stop}" if self.segments else "no files",
                advice="The range expired and was deleted, or its file was not copied with the others",
            )
        return segment

    def stored_from(self, offset: int) -> int:
        """The first offset at or after `offset`, in its file, whose bytes are stored on disk.

        Bytes before it read as zeros, because files are created at full size and filled later.
        Reading such zeros would take as long as reading data, and would fill memory. Returns the
        end of the file if nothing more is stored.
        """
        segment = self.segment_at(offset)
        if segment is None:
            return offset
        stored = segment.base + self._sources.get(segment).stored_from(offset - segment.base)
        return stored if stored < segment.base + segment.size else self.segment_end(segment)

    def is_zero(self, start: int, stop: int) -> bool:
        """Whether bytes `start` to `stop` of the stream, within one file, are zeros.

        Looks only at what is stored, in steps of a mebibyte: the rest of a nearly empty file would
        take seconds. Raises DataLossError if the file was cut.
        """
        if start >= stop:
            return True
        segment = self.segment_at(start)
        base = start if segment is None else segment.base
        at = self.stored_from(start)
        while at < stop:
            # To the end of a page: in a file system in memory a look also stores the page.
            upto = min(at + _LOOKED_AT - (at - base) % _LOOKED_AT, stop)
            with self.window(at, upto) as window:
                some = window.bytes.any()
            if some:
                return False
            if upto == stop:
                break  # the next file may be gone, and is not asked for
            at = self.stored_from(upto)
        if segment is not None:
            self._sources.get(segment).check(segment.size)
        return True

    def file_of(self, segment: SegmentFile) -> ReadableFile:
        """One of the files."""
        return self._sources.get(segment)

    def fetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch ranges of the stream side by side, where they have to be fetched."""
        fetch_all(self.ranges_in_files(ranges))

    def ranges_in_files(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Ranges]:
        """Ranges of the stream as ranges of files, for `fetch_all`; none where that has no use."""
        for start, stop in () if self.cost is LOCAL else ranges:
            for segment in self.segments_from(start):
                if segment.base >= stop:
                    break
                first, last = max(start - segment.base, 0), min(stop - segment.base, segment.size)
                if first < last:
                    yield Ranges(self._sources.get(segment), np.array([first]), np.array([last]))


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
        with OsErrorsOf(path, "writing"), self._lock:
            fd = self._open(path, size)
            self._dirty[path] = self._dirty.get(path, 0) + len(view)
            while len(view):
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done

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
            unshare_file(path)
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
                in_parallel(
                    lambda path: sync_path(path, fds.pop(path, None)), list(dirty), _SYNCED_TOGETHER
                )
                # A new queue also made the folder of its topic, an entry two levels above its file.
                made = {above for folder in folders for above in (folder, *folder.parents[:2])}
                in_parallel(sync_path, sorted(made, reverse=True), _SYNCED_TOGETHER)
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

    def write(self, offset: int, data: Bytes) -> None:
        """Write at a stream offset, across as many files as needed."""
        raw = np.ascontiguousarray(data).view(np.uint8)
        at = 0
        while at < len(raw):
            base = (offset + at) // self.file_size * self.file_size
            count = min(len(raw) - at, base + self.file_size - (offset + at))
            if self._last is None or self._last[0] != base:  # most writes go to the same file
                self._last = base, self._folder_of(base) / segment_name(base)
            path = self._last[1]
            self._files.write(path, self.file_size, offset + at - base, raw[at : at + count].data)
            at += count
