"""Log files that have the name of another place: each record says at which log offset it belongs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rmq_store.commitlog.log import CommitLog, unreadable_files
from rmq_store.errors import (
    CorruptRecordError,
    LogOffset,
    UnrecoverableStoreError,
    from_os_error,
    shown_path,
)
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import segment_name

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

    @property
    def error(self) -> CorruptRecordError:
        """The error for a reader, who lacks the messages of the place that the file has."""
        return CorruptRecordError(
            self.file.path,
            offset=LogOffset(self.file.base),
            reason=f"the log file {segment_name(self.file.base)} {self._what}",
            advice=self.advice,
        )

    def __str__(self) -> str:
        """A sentence with both names."""
        return f"{shown_path(self.file.path)} {self._what}"

    @property
    def _what(self) -> str:
        named = segment_name(self.base)
        return f"has a wrong name: by the physicalOffset of its first record it is the file {named}"


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
        base = log.other_base(file)
        if base is not None:
            others = [other for other in log.chain.segments_from(base) if other.base == base]
            taken = any(log.other_base(other) is None for other in others)
            yield MisnamedFile(file, base, _TAKEN if taken else _BOTH if others else _RENAME)


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
    for found in misnamed_files(log):
        error = found.error
        raise UnrecoverableStoreError(
            error.path, reason=error.reason, advice=f"{found.advice}. Nothing was changed"
        )
