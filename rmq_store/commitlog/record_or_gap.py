"""What is at a place of the log: a record, or which gap.

A gap is filler, a ghost, damage, the torn end of a write, stale bytes, zeros never written, or a missing
file. Filler and ghosts do not end the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import CorruptRecordError, LogOffset
from rmq_store.files.segments import SegmentFile
from rmq_store.format.dledger import ENTRY_HEAD_SIZE, EntryHead
from rmq_store.format.record import NO_RECORD, Gap, Record

WITHIN_THE_LOG = (Gap.FILLER, Gap.GHOST)
"""Gaps that do not end the log. Some brokers leave ghosts between records, and at its end."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of the log, [start, stop) in log offsets: a record, or a gap with its name.

    With entries, that of a record begins at its entry. `reason` describes the fault if `gap` is
    Gap.DAMAGED or Gap.TORN.
    """

    start: int
    stop: int
    record: Record | None = None
    gap: Gap | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SoundRun:
    """Whole, consecutive records of one file, all at their physicalOffset."""

    segment: SegmentFile
    headers: Headers  # all valid; positions count from the start of the file
    stop: int  # log offset after the last
    frame: int = 0  # bytes before each record that belong to it

    @property
    def start(self) -> int:
        """Log offset of the first record, with its frame."""
        return self.segment.base + int(self.headers.at[0]) - self.frame

    @property
    def last(self) -> int:
        """Log offset of the last record."""
        return self.segment.base + int(self.headers.at[-1])

    def part(self, first: int, stop: int) -> SoundRun:
        """The records number `first` to `stop` of the run."""
        if first == 0 and stop == len(self.headers):
            return self
        headers = self.headers.take(slice(first, stop))
        end = (
            self.stop
            if stop == len(self.headers)
            else self.segment.base + int(self.headers.at[stop]) - self.frame
        )
        return SoundRun(self.segment, headers, end, self.frame)


def piece_at(log: CommitLog, segment: SegmentFile, at: int) -> SoundRun | Extent:
    """The whole gap at log offset `at` of a file, or the one record that starts there."""
    piece = _piece_of(log, segment, at, _decoded_at(log, segment, at))
    if isinstance(piece, Extent) and piece.gap is Gap.DAMAGED:
        # A writer fills a log in order. It may have filled this place after the first look and
        # before the look that found more behind it.
        found = _decoded_at(log, segment, at)
        if isinstance(found, Record) or found is Gap.FILLER:
            return _piece_of(log, segment, at, found)
    return piece


def gap_at(log: CommitLog, segment: SegmentFile, at: int) -> Extent | None:
    """The whole gap at log offset `at` of a file; None if a record starts there."""
    piece = piece_at(log, segment, at)
    return piece if isinstance(piece, Extent) else None


def front_at(log: CommitLog, segment: SegmentFile, at: int) -> SoundRun | Extent:
    """As `piece_at`; of a gap that is not within the log only the start."""
    found = _decoded_at(log, segment, at)
    if isinstance(found, Record) or found in WITHIN_THE_LOG:
        return _piece_of(log, segment, at, found)
    return Extent(at, at, gap=Gap.TORN)


def _decoded_at(log: CommitLog, segment: SegmentFile, at: int) -> Record | Gap | CorruptRecordError:
    head = log.entry_at(segment, at)
    try:
        return log.decoded_at(segment, at) if head is None else _in_entry(log, segment, at, head)
    except CorruptRecordError as error:
        return error


def _in_entry(log: CommitLog, segment: SegmentFile, at: int, head: EntryHead) -> Record | Gap:
    """What an entry holds. A sound record counts although the head is damaged; verify reports that.

    Raises CorruptRecordError.
    """
    room = log.chain.segment_end(segment) - at
    fault = head.fault_at(at)
    if head.is_blank(room) or (fault is None and head.body_length == 0):
        return Gap.FILLER
    found = _in_body(log, segment, at)
    if isinstance(found, Record) and (fault is not None or found.total_size == head.body_length):
        return found
    if head.magic == head.size == 0:
        return Gap.UNWRITTEN
    if fault is None and isinstance(found, CorruptRecordError):
        raise found
    what, expected, actual = fault or ("body length", "that of its record", head.body_length)
    raise CorruptRecordError(
        segment.path,
        offset=LogOffset(at),
        reason=f"{NO_RECORD}{what} of the entry",
        expected=expected,
        actual=actual,
        advice="Records after the offset are still readable; "
        "rmqstore verify lists the damaged ranges",
    )


def _in_body(log: CommitLog, segment: SegmentFile, at: int) -> Record | Gap | CorruptRecordError:
    if at + ENTRY_HEAD_SIZE >= log.chain.segment_end(segment):
        return Gap.UNWRITTEN
    try:
        return log.decoded_at(segment, at + ENTRY_HEAD_SIZE)
    except CorruptRecordError as error:
        return error


def _piece_of(
    log: CommitLog, segment: SegmentFile, at: int, found: Record | Gap | CorruptRecordError
) -> SoundRun | Extent:
    """The piece of which the decoder found the start."""
    end = log.chain.segment_end(segment)
    if isinstance(found, Record):
        frame = log.frame_at(at)
        place = np.array([at + frame - segment.base], dtype=np.int64)
        with log.window_of(segment) as window:
            headers = Headers(window.bytes, place, segment.base)
        return SoundRun(segment, headers, at + frame + found.total_size, frame)
    if isinstance(found, CorruptRecordError):
        return _damage(log, segment, at, end, found)
    if found is Gap.GHOST:
        size = int.from_bytes(log.chain.read(at, at + 4).tobytes(), "big")
        return Extent(at, at + size, gap=Gap.GHOST)
    if found is Gap.FILLER:
        head = log.entry_at(segment, at)
        return Extent(at, end if head is None else at + head.size, gap=Gap.FILLER)
    return _zeros(log, segment, at, end)


def _zeros(log: CommitLog, segment: SegmentFile, at: int, end: int) -> Extent:
    """Zeros up to the end of the file, or a range of zeros with data after it."""
    stored = log.chain.stored_from(at)
    is_zero = log.chain.is_zero(stored, end)
    behind = None if is_zero else log.next_record(segment, at + 1, end)
    if behind is not None:
        return Extent(at, behind, gap=Gap.DAMAGED, reason="zeros before a record")
    if _goes_on(log, segment):  # a broker ends each file with a filler
        return Extent(at, end, gap=Gap.DAMAGED, reason="zeros, and a later file has records")
    if is_zero:
        return Extent(at, end, gap=Gap.UNWRITTEN)
    return Extent(at, end, gap=Gap.STALE, reason="zeros, then bytes that are not a record")


def _damage(
    log: CommitLog, segment: SegmentFile, at: int, end: int, error: CorruptRecordError
) -> Extent:
    """Bytes that are not a record: damage up to the next record, or the torn end of the log."""
    reason = f"{error.reason}: expected {error.expected}, found {error.actual}"
    behind = log.next_record(segment, at + 1, end)
    if behind is not None:
        return Extent(at, behind, gap=Gap.DAMAGED, reason=reason)
    if _goes_on(log, segment):
        return Extent(at, end, gap=Gap.DAMAGED, reason=reason)
    return Extent(at, end, gap=Gap.TORN, reason=reason)


def _goes_on(log: CommitLog, segment: SegmentFile) -> bool:
    last = log.last_file()
    return last is not None and last.base > segment.base
