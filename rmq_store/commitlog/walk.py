"""Walks the log: runs of sound records, and the named gaps between them.

Unlike a broker, `walk` continues after damage, at the next record with a matching physicalOffset.
`records_from` ends there, as a log does to which a writer appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.check_crcs import wrong_crc_rows
from rmq_store.commitlog.entry_order import EntryOrder
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_runs import RecordRun
from rmq_store.errors import (
    CorruptRecordError,
    LogOffset,
)
from rmq_store.files.segments import SegmentFile
from rmq_store.files.window import Window
from rmq_store.format.dledger import ENTRY_HEAD_SIZE, EntryHead
from rmq_store.format.layout import PROPERTY_SEPARATOR
from rmq_store.format.record import NO_RECORD, Gap, Record

_ROWS = 1 << 15  # records of a run at a time
_SHORT_STEP = (
    64 << 10
)  # bytes of the first step where the end may be near, or few records are wanted

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
    """At most `_ROWS` whole, consecutive records of one file, all at their physicalOffset."""

    segment: SegmentFile
    headers: Headers  # all valid; positions count from the start of the file
    stop: int  # log offset after the last
    frame: int = 0  # bytes before each record that belong to it

    @property
    def start(self) -> int:
        """Log offset of the first record, with its frame."""
        return self.segment.base + int(self.headers.at[0]) - self.frame

    @property
    def before_last(self) -> int:
        """Log offset where the records before the last one end."""
        return self.last - self.frame

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


_Piece = SoundRun | Extent
_PieceAt = Callable[[CommitLog, SegmentFile, int], _Piece]


def walk(
    log: CommitLog, start: int | None = None, stop: int | None = None, *, check_crc: bool = True
) -> Iterator[SoundRun | Extent]:
    """The records that start in [start, stop), log offsets, and every gap that starts there.

    `start` is the start of a file, of a record, or of its entry. The default range is the whole log.
    The pieces are adjacent, and a missing file is a gap too. With `check_crc`, a record with a wrong
    body CRC or record CRC is a gap.
    """
    first = log.start if start is None else start
    return _pieces(log, first, log.chain.stop if stop is None else stop, check_crc, piece_at)


def records_from(log: CommitLog, start: int, stop: int | None = None) -> Iterator[SoundRun]:
    """The records from `start` to the end of the log, or those before `stop`, log offsets.

    The log ends before the first bytes that are neither a record with right CRCs, nor a ghost, nor a
    filler. What they are is not looked into: that may take a search through the rest of the file.
    """
    upto = log.chain.stop if stop is None else stop
    for piece in _pieces(log, start, upto, True, _front_at, _SHORT_STEP):
        if isinstance(piece, SoundRun):
            yield piece
        elif piece.gap not in WITHIN_THE_LOG:
            return


def last_from(log: CommitLog, start: int) -> tuple[int | None, int]:
    """The start of the last of the `records_from` a log offset, None without one; and their end."""
    last, end = None, start
    for run in records_from(log, start):
        last, end = run.last, run.stop
    return last, end


def end_now(log: CommitLog, end: int) -> int:
    """Where the log ends now, if a broker has written on since it ended at `end`."""
    if not log.chain.cost.grows:
        return end
    now = log.listed_again()
    try:
        return max(end, last_from(now, end)[1])
    finally:
        now.chain.close()


def extents(log: CommitLog, start: int | None = None) -> Iterator[Extent]:
    """As `walk` to the end of the last file, one decoded record at a time.

    Raises MissingFileError if no file holds `start`.
    """
    if start is not None and log.chain.segments and log.chain.segment_at(start) is None:
        log.record_at(start)  # raises
    first = log.start if start is None else start
    for piece in _pieces(log, first, log.chain.stop, True, piece_at, _SHORT_STEP):
        if isinstance(piece, Extent):
            yield piece
            continue
        places, sizes = piece.headers.at + piece.segment.base, piece.headers.total
        for at, size in zip(places.tolist(), sizes.tolist(), strict=True):
            yield Extent(at - piece.frame, at + size, record=log.record_at(at))


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


def guess_release_4(log: CommitLog) -> str | None:
    """The release "4.9.0" or "4.9.7", from the end of the first properties; None without properties.

    Releases up to 4.9.0 write a separator (0x02) after the last property, later ones do not.
    """
    for extent in extents(log):
        if extent.record is not None and extent.record.properties:
            ends = extent.record.properties[-1] == PROPERTY_SEPARATOR
            return "4.9.0" if ends else "4.9.7"
    return None


# --- runs -----------------------------------------------------------------------------------------


def _pieces(
    log: CommitLog,
    start: int,
    stop: int,
    check_crc: bool,
    piece_at: _PieceAt,
    first_step: int | None = None,
) -> Iterator[_Piece]:
    """The adjacent pieces of [start, stop). `piece_at` gives the one where a run of records ends.

    `first_step`: bytes to walk at first; they double.
    """
    most, order = log.chain.cost.step, EntryOrder()
    start = at = log.front(start)
    step = min(first_step or most, most)
    for segment in log.chain.segments_from(start):
        if segment.base >= stop:
            break
        if segment.base > at:
            yield Extent(at, segment.base, gap=Gap.MISSING)
            at = segment.base
        end = min(log.chain.segment_end(segment), stop)
        while at < end:
            with log.window_of(segment) as window:
                run = log.run_in(window, segment, at, min(at + step, end))
                parts: Iterable[_Piece] = (
                    _parts_of(log, segment, window, run, check_crc, piece_at)
                    if len(run.at)
                    else (piece_at(log, segment, at),)
                )
                framed = len(run.at) and log.frame_at(at)
                if framed and order.is_left_over(window, segment.base, run):
                    parts = (_left_over(at, segment.base + run.stop),)
                for piece in parts:
                    yield piece
                    at = piece.stop
            step = min(2 * step, most)
    if at < stop:
        yield Extent(at, stop, gap=Gap.MISSING)


def _parts_of(
    log: CommitLog,
    segment: SegmentFile,
    window: Window,
    run: RecordRun,
    check_crc: bool,
    piece_at: _PieceAt,
) -> Iterator[_Piece]:
    """A run in pieces, up to its end or to a gap that ends at another place than the record there."""
    frame = log.frame_at(segment.base)
    ends = np.append(run.at[1:] - frame, run.stop) + segment.base
    for first in range(0, len(run.at), _ROWS):
        rows = slice(first, first + _ROWS)
        headers, after = Headers(window.bytes, run.at[rows], segment.base), ends[rows]
        start = 0
        for row in _unsound(headers, segment, check_crc):
            if row > start:
                sound = headers.take(slice(start, row))
                yield SoundRun(segment, sound, int(after[row - 1]), frame)
            piece = piece_at(log, segment, segment.base + int(headers.at[row]) - frame)
            yield piece
            if piece.stop != int(after[row]):
                return
            start = row + 1
        if start < len(headers):
            yield SoundRun(segment, headers.take(slice(start, None)), int(after[-1]), frame)


def _unsound(headers: Headers, segment: SegmentFile, check_crc: bool) -> list[int]:
    """Rows that are not whole records or, with `check_crc`, have a wrong CRC."""
    bad = ~headers.valid | (headers.at + headers.total > segment.size)
    if check_crc:
        good = np.flatnonzero(~bad)
        bad[good[wrong_crc_rows(headers if len(good) == len(bad) else headers.take(good))]] = True
    rows: list[int] = np.flatnonzero(bad).tolist()
    return rows


# --- gaps -----------------------------------------------------------------------------------------


def _front_at(log: CommitLog, segment: SegmentFile, at: int) -> _Piece:
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
        segment.shown,
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
) -> _Piece:
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


def _left_over(start: int, stop: int) -> Extent:
    return Extent(start, stop, gap=Gap.STALE, reason="entries that the log was cut before")


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
