"""Log files that have the name of another place: each record says at which log offset it belongs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog, unreadable_files
from rmq_store.errors import LogOffset, UnrecoverableStoreError, from_os_error, shown_path
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import HEAD_SIZE, RECORD_HEAD, segment_name

_LOOKED_AT = 64  # files at either end of the log; each is a place of the disk
_RENAME = "Give it that name before anything else: its messages are then read again"
_TAKEN = (
    "Another file has that name: keep the one with the messages, and move the other one away first"
)
_BOTH = (
    "The file with that name has a wrong one too: move that one aside first, then give each its own name "
    "before anything else: their messages are then read again"
)


@dataclass(frozen=True, slots=True)
class MisnamedFile:
    """A log file without a record that belongs there, whose first one names the start of another file."""

    file: SegmentFile
    base: int
    """The log offset that its name should be."""
    advice: str
    """What to do with the file, so that no other one is overwritten."""

    def __str__(self) -> str:
        """A sentence with both names."""
        return (
            f"{shown_path(self.file.path)} has a wrong name: by the physicalOffset of its first record it is "
            f"the file {segment_name(self.base)}"
        )


def misnamed_files(
    log: CommitLog, files: Iterable[SegmentFile] | None = None
) -> Iterator[MisnamedFile]:
    """Those among some files; by default among the first and last ones of the log."""
    every = log.chain.segments
    if files is None:
        files = (
            every if len(every) <= 2 * _LOOKED_AT else [*every[:_LOOKED_AT], *every[-_LOOKED_AT:]]
        )
    for file in files:
        base = _other_base(log, file)
        if base is not None:
            others = [other for other in log.chain.segments_from(base) if other.base == base]
            taken = any(_other_base(log, other) is None for other in others)
            yield MisnamedFile(file, base, _TAKEN if taken else _BOTH if others else _RENAME)


def _other_base(log: CommitLog, file: SegmentFile) -> int | None:
    """The start of another file that the first record of a file names, if none of its own is in it.

    None for copies of records, and for a file with entries.
    """
    if log.copied or log.frame_at(file.base) or file.size < HEAD_SIZE:
        return None
    with log.window_of(file) as window:
        window.fetch([0], [HEAD_SIZE])
        head = window.bytes[:HEAD_SIZE].view(RECORD_HEAD)[0]
        said, total = int(head["physical_offset"]), int(head["total_size"])
        if said == file.base or said % log.chain.file_size or not 0 < total <= file.size:
            return None
        window.fetch([0], [total])
        if not Headers(window.bytes, np.zeros(1, dtype=np.int64), said).valid[0]:
            return None
    own = log.next_record(file, file.base + 1, log.chain.segment_end(file))
    return None if own is not None else said


def refuse_unsure_files(log: CommitLog) -> None:
    """Raise UnrecoverableStoreError for log files of a wrong name: a writer would cut them.

    Raises AccessError for one that may not be read.
    """
    for file in unreadable_files(log):
        denied = OSError(errno.EACCES, os.strerror(errno.EACCES))
        raise from_os_error(file.path, denied, "opening")
    refuse_misnamed(log)


def refuse_misnamed(log: CommitLog) -> None:
    """Raise UnrecoverableStoreError for a log file with a wrong name."""
    for misnamed in misnamed_files(log):
        raise UnrecoverableStoreError(
            misnamed.file.path,
            offset=LogOffset(misnamed.file.base),
            reason=str(misnamed),
            advice=f"{misnamed.advice}. Nothing was changed",
        )
