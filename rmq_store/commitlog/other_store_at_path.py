"""Digests of bytes of a log that do not change, by which another store at the same path is noticed."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import LogOffset, OtherStoreError
from rmq_store.files.segments import SegmentFile, list_segments

MARK_BYTES = 4096
_ADVICE = "Put the store back, or start again; a stream then needs another checkpoint"
IF_OTHER_STORE = (
    "If another store is at the path now, start again: nothing of the one before is there"
)
"""Advice where all that was known of a log is gone: it may have expired."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The digest of the bytes [start, stop) of a log."""

    start: int
    stop: int
    digest: str

    @classmethod
    def of(cls, log: CommitLog, start: int, stop: int) -> Mark | None:
        """The mark of a range within one file; None if the log does not have all of it."""
        segment = log.chain.segment_at(start)
        if segment is None or not start < stop <= log.chain.segment_end(segment):
            return None
        return cls.over(start, stop, log.chain.read(start, stop).tobytes())

    @classmethod
    def over(cls, start: int, stop: int, raw: bytes) -> Mark:
        """The mark of a range with these bytes."""
        return cls(start, stop, hashlib.blake2b(raw, digest_size=8).hexdigest())


def refuse_other(before: Mark, now: Mark | None, path: str) -> None:
    """Raise OtherStoreError if a range of a log has other bytes than before. None: it is not there now."""
    if now is not None and now != before:
        raise OtherStoreError(
            path,
            offset=LogOffset(before.start),
            reason="another store is at this path: its log has other bytes",
            expected=before.digest,
            actual=now.digest,
            advice=_ADVICE,
        )


def marks_of_files(log: CommitLog, stop: int) -> tuple[Mark, ...]:
    """Marks of the first bytes of the first and of the last file of a log whose bytes before `stop` do
    not change. None of a log in an object store, where each would be a request."""
    if log.chain.cost.looks_at_once > 1:
        return ()
    first, last = log.chain.segments[:1], log.chain.segment_at(stop - 1)
    files = dict.fromkeys((*first, *([last] if last else ())))
    marks = (_mark_now(file, file.base, min(file.base + MARK_BYTES, stop)) for file in files)
    return tuple(mark for mark in marks if mark is not None)


def refuse_other_store(log: CommitLog, marks: Iterable[Mark], path: str) -> None:
    """Raise OtherStoreError if a log has other bytes than at `marks`, or ends before one.

    Files at its front that are gone have expired. Reads the files that are at their paths now, also if
    others are open.
    """
    known = tuple(marks)
    if _has_all(known, log.chain.segments, path):
        return
    files = list_segments(log.chain.folders)
    if _has_all(known, files, path) or not files:
        return
    end = files[-1].base + files[-1].size
    for mark in known:
        if mark.start >= end:
            raise OtherStoreError(
                path,
                offset=LogOffset(mark.start),
                reason="another store is at this path, or the last files of its log are gone",
                expected=f"a file of the log with offset {mark.start}",
                actual=f"a log that ends at {end}",
                advice=_ADVICE,
            )


def _has_all(marks: Iterable[Mark], files: Sequence[SegmentFile], path: str) -> bool:
    """Whether files of a log have the bytes of all marks. Raises OtherStoreError for other bytes."""
    every = True
    for mark in marks:
        at = bisect_right(files, mark.start, key=lambda file: file.base) - 1
        now = _mark_now(files[at], mark.start, mark.stop) if at >= 0 else None
        refuse_other(mark, now, path)
        every = every and now is not None
    return every


def _mark_now(file: SegmentFile, start: int, stop: int) -> Mark | None:
    """The mark of a range of a file as it is now; None if it is gone or shorter, or cannot be read."""
    length = stop - start
    try:
        with open(file.path, "rb", buffering=0) as opened:
            raw = os.pread(opened.fileno(), max(length, 0), start - file.base)
    except OSError:  # who reads the file reports it
        return None
    return Mark.over(start, stop, raw) if 0 < length == len(raw) else None
