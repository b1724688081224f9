"""A chain of fixed-size segment files: one byte stream, mapped read-only.

Views are windows on the mapped file. Copy the bytes that must outlive the window.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from rmq_store.errors import MissingFileError
from rmq_store.files.mapping import MappingCache, ReadCounts, RemoteFile
from rmq_store.files.remote.blocks import Ranges, RemoteMapping
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.files.segments import (
    SegmentFile,
    infer_file_size,
    list_segments,
    refuse_larger,
    refuse_sizes,
    without_overlaps,
)
from rmq_store.format.array_types import Bytes

# Mapped files that a chain without a shared cache keeps: one pass along the log needs two.
_MAPPINGS_KEPT = 2
_LOOKED_AT = 1 << 20  # bytes at a time in a search for anything but zeros
_COPIED = 1 << 16  # bytes of a window: a copy costs less than to ask again whether they were there


class SegmentChain:
    """A byte stream in segment files, read through mapped windows. Not thread-safe.

    `file_size` overrides the size inferred from the files.
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
        """`setting`: the broker's name for `file_size`, for messages.

        Raises InvalidArgumentError if the files contradict `file_size`, and UnrecoverableStoreError
        for a file that is larger than the others' names allow.
        """
        self.folders = [os.fspath(folder) for folder in folders]
        listed = list(list_segments(folders) if segments is None else segments)
        refuse_sizes(listed, file_size, setting)
        self.file_size = file_size or infer_file_size(listed)
        refuse_larger(listed, self.file_size)
        self.segments = without_overlaps(listed, self.file_size)
        self._bases = [segment.base for segment in self.segments]
        self._mappings = mappings or MappingCache(_MAPPINGS_KEPT)

    def __repr__(self) -> str:
        return f"SegmentChain({self.folders}, {len(self.segments)} files of {self.file_size})"

    @property
    def counts(self) -> ReadCounts:
        """What was read from this chain and from others that share its mappings."""
        return self._mappings.counts

    @property
    def start(self) -> int:
        """Stream offset of the first byte of the first file; 0 for an empty chain."""
        return self._bases[0] if self._bases else 0

    @property
    def stop(self) -> int:
        """Stream offset after the last file, as if that file had its full size."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def close(self) -> None:
        """Release all mapped files."""
        self._mappings.clear()

    def segment_at(self, offset: int) -> SegmentFile | None:
        """The file that holds `offset`; None in a hole or outside the chain."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0 or offset >= self._bases[at] + self.file_size:
            return None
        return self.segments[at]

    def segments_from(self, offset: int) -> Iterator[SegmentFile]:
        """The file that holds `offset`, if any, and all files after it."""
        for segment in self.segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            if segment.base + self.file_size > offset:
                yield segment

    @cached_property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of the stream before the last file that no file holds: missing, empty or cut files."""
        holes = []
        expected = self.start
        for segment in self.segments:
            if segment.base > expected:
                holes.append((expected, segment.base))
            expected = self.segment_end(segment)
            if segment.size < self.file_size and segment is not self.segments[-1]:
                holes.append((segment.base + segment.size, expected))
        return holes

    def segment_end(self, segment: SegmentFile) -> int:
        """Stream offset after `segment`, as if that file had its full size."""
        return segment.base + self.file_size

    def window(self, start: int, stop: int, *, fetch: int | None = None) -> Bytes:
        """Bytes `start` to `stop` of the stream, within one file; zeros beyond a short file's end.

        Returns a view on the mapped file, or a copy of at most _COPIED bytes. Call `check_reads` after
        the bytes of a view were used, and before they lead to a result. For a remote file, fetches all
        of the range or its first `fetch` bytes; with `fetch=0` only what `need` requested before.
        Raises MissingFileError if no file holds the range, DataLossError if the file shrank after it
        was listed.
        """
        segment = self.segment_at(start)
        if segment is None or stop > segment.base + self.file_size:
            raise self._missing(start, stop)
        first, last = start - segment.base, stop - segment.base
        if last - first <= _COPIED and last <= segment.size:
            looked = self._mappings.first_look(segment, first, last)
            if looked is not None:
                return looked
        mapping = self._mappings.get(segment, to_fetch=fetch != 0)
        mapping.check(min(last, segment.size), segment)
        if fetch != 0 and isinstance(mapping, RemoteFile):
            behind = last if fetch is None else min(first + fetch, last)
            mapping.need(np.array([first]), np.array([behind]), fresh=False)
        if last <= segment.size:
            if last - first > _COPIED or isinstance(mapping, RemoteFile):
                return mapping.bytes[first:last]
            copied: Bytes = mapping.bytes[first:last].copy()
            self.check_reads()
            return copied
        padded = np.zeros(last - first, dtype=np.uint8)
        there = mapping.bytes[first : segment.size]
        padded[: len(there)] = there
        self.check_reads()
        return padded

    def check_reads(self) -> None:
        """Raise DataLossError if a file was cut while its bytes were read: they read as zeros."""
        self._mappings.check_reads()

    def stored_from(self, offset: int) -> int:
        """The first offset at or after `offset`, in its file, whose bytes are stored on disk.

        Bytes before it read as zeros, because files are created at full size and filled later.
        Reading such zeros would take as long as reading data, and would fill memory. Returns the
        end of the file if nothing more is stored.
        """
        segment = self.segment_at(offset)
        if segment is None:
            return offset
        found = segment.base + self._mappings.get(segment).stored_from(offset - segment.base)
        return found if found < segment.base + segment.size else self.segment_end(segment)

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
            some = self.window(at, upto).any()
            self.check_reads()
            if some:
                return False
            if upto == stop:
                break  # the next file may be gone, and is not asked for
            at = self.stored_from(upto)
        if segment is not None:
            self._mappings.get(segment).check(segment.size, segment)
        return True

    @property
    def is_remote(self) -> bool:
        """Whether the files are in an object store."""
        return bool(self.segments) and shadow_of(self.segments[0].path) is not None

    def need(self, starts: Iterable[int], stops: Iterable[int], *, fresh: bool = False) -> None:
        """Fetch ranges of the stream, all in one file, before a window reads them.

        Does nothing for local files. `fresh`: no window is in use.
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
        """Ranges of the stream as ranges of remote files, for `need_all`; nothing for local files."""
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
            advice="The range expired and was deleted, or its file was not copied with the others",
        )
