"""Walks the log: runs of sound records, and the named gaps between them.

Unlike a broker, `walk` continues after damage, at the next record with a matching physicalOffset.
`records_from` ends there, as a log does to which a writer appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from rmq_store.commitlog.check_crcs import wrong_crc_rows
from rmq_store.commitlog.entry_order import EntryOrder
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_or_gap import WITHIN_THE_LOG, Extent, SoundRun, front_at, piece_at
from rmq_store.commitlog.record_runs import RecordRun
from rmq_store.files.checked_window import Window
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import PROPERTY_SEPARATOR
from rmq_store.format.record import Gap

_ROWS = 1 << 15  # records of a run at a time
# Bytes of the first step where the end may be near, or few records are wanted.
_SHORT_STEP = 64 << 10

_LEFT_OVER = "entries that the log was cut before"

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


def records_from(log: CommitLog, start: int) -> Iterator[SoundRun]:
    """The records from `start`, a log offset, to the end of the log.

    The log ends before the first bytes that are neither a record with right CRCs, nor a ghost, nor a
    filler. What they are is not looked into: that may take a search through the rest of the file.
    """
    for piece in _pieces(log, start, log.chain.stop, True, front_at, _SHORT_STEP):
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
    first = log.start if start is None else start
    if first != log.start and log.chain.segments and log.chain.segment_at(first) is None:
        log.record_at(first)  # raises
    for piece in _pieces(log, first, log.chain.stop, True, piece_at, _SHORT_STEP):
        if isinstance(piece, Extent):
            yield piece
            continue
        places, sizes = piece.headers.at + piece.segment.base, piece.headers.total
        for at, size in zip(places.tolist(), sizes.tolist(), strict=True):
            yield Extent(at - piece.frame, at + size, record=log.record_at(at))


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
                    stop_of_run = segment.base + run.stop
                    parts = (Extent(at, stop_of_run, gap=Gap.STALE, reason=_LEFT_OVER),)
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
