"""What log files hold that have the name of another one, from which the log is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.doubled_files import first_difference
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_or_gap import SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.errors import (
    CorruptRecordError,
    LogOffset,
    StoreError,
    UnrecoverableStoreError,
    shown_path,
)
from rmq_store.files.segments import SegmentFile

_ADVICE = "Find out which of the two is right, and move the other one away"


@dataclass(frozen=True, slots=True)
class DoubledFile:
    """A log file `other` of the same name as `used`, from which the log is read.

    `records`: intact ones in `other`. `differing`: those of them that `used` does not have, the
    first at log offset `first`.
    """

    used: SegmentFile
    other: SegmentFile
    records: int
    differing: int = 0
    first: int | None = None

    def __str__(self) -> str:
        """A sentence that names both files."""
        if not self.other.size:
            held = "is empty"
        elif not self.records:
            held = "has no record"
        elif not self.differing:
            held = f"has {self.records} records, all of which the first one has too"
        else:
            held = (
                f"has {self.records} records, of which the first one lacks {self.differing}, "
                f"from log offset {self.first} on"
            )
        used, other = shown_path(self.used.path), shown_path(self.other.path)
        return (
            f"two files have the name of log offset {self.used.base}: {used}, which is read, and "
            f"{other}, which {held}"
        )


def doubled_files(log: CommitLog, start: int | None = None) -> Iterator[DoubledFile]:
    """Each file that has the name of another one, read and compared; with `start`, of that file."""
    for used, other in _pairs(log):
        if start is None or used.base == start:
            yield _compared(log, used, other)


def _pairs(log: CommitLog) -> Iterator[tuple[SegmentFile, SegmentFile]]:
    """Each file that is read with each other one of its name."""
    for used in log.chain.segments:
        for other in used.others:
            yield used, other


def _compared(log: CommitLog, used: SegmentFile, other: SegmentFile) -> DoubledFile:
    records = differing = 0
    first: int | None = None
    if not other.size:
        return DoubledFile(used, other, 0)
    beside = CommitLog([], segments=[other])
    try:
        for piece in walk(beside):
            if isinstance(piece, SoundRun):
                wrong = _rows_that_differ(log, used, piece)
                records += len(piece.headers)
                if len(wrong):
                    differing += len(wrong)
                    first = piece.headers.base + int(wrong[0]) if first is None else first
    finally:
        beside.chain.close()
    return DoubledFile(used, other, records, differing, first)


def _rows_that_differ(log: CommitLog, used: SegmentFile, run: SoundRun) -> list[int]:
    """The places in the file of the records of a run that `used` does not have."""
    first, stop = run.start - used.base, run.stop - used.base
    with log.window_of(used) as window:
        window.fetch([first], [stop])
        mine, its = window.bytes, run.headers.window
        if np.array_equal(mine[first:stop], its[first:stop]):
            return []
        places = zip(run.headers.at.tolist(), run.headers.total.tolist(), strict=True)
        return [
            at
            for at, size in places
            if not np.array_equal(mine[at : at + size], its[at : at + size])
        ]


def contradictions(log: CommitLog, start: int = 0, stop: int = 2**63 - 1) -> Iterator[StoreError]:
    """An error for each such file with records in [start, stop) that the log does not have, by looks
    at some of them."""
    for used, other in _pairs(log):
        if used.base >= stop or log.chain.segment_end(used) <= start:
            continue
        offset = first_difference(used, other)
        if offset is not None and start <= offset < stop:
            yield CorruptRecordError(
                used.path,
                offset=LogOffset(offset),
                reason=f"another file of this name, {shown_path(other.path)}, has other records; "
                "this one is read. They differ",
                advice=f"{_ADVICE}; rmqstore verify counts the records",
            )


def refuse_doubled(log: CommitLog) -> None:
    """Raise UnrecoverableStoreError if two files of the log have one name: a writer would change one
    of them, and a broker may read the other."""
    for used, other in _pairs(log):
        raise UnrecoverableStoreError(
            used.path,
            reason=f"another folder of the log has a file of this name, {shown_path(other.path)}",
            advice=f"{_ADVICE}: rmqstore verify compares them. Nothing was changed",
        )


def doubled_names(log: CommitLog) -> str | None:
    """A sentence about the files that have the name of another one; None without any."""
    pairs = list(_pairs(log))
    if not pairs:
        return None
    used, other = pairs[0]
    more = f" (and {len(pairs) - 1} more files)" if len(pairs) > 1 else ""
    return (
        f"two folders of the log have a file of one name{more}: {shown_path(used.path)}, which is read, "
        f"because none has more records, and {shown_path(other.path)}"
    )
