"""Scans every byte of a log range: runs of sound records, and the named gaps between them.

Readers that need a whole range use it: verify, salvage, reads of the log without queues. Unlike a
broker it continues after damage, at the next record with a matching physicalOffset.
`CommitLog.extents` gives the same, one record at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.headers import Headers, wrong_crc_rows
from rmq_store.commitlog.log import CommitLog, Extent
from rmq_store.commitlog.record_runs import RecordRun
from rmq_store.files.segments import SegmentFile
from rmq_store.format.array_types import Bytes
from rmq_store.format.record import Gap

_ROWS = 1 << 15  # records of a run at a time
_STEP = 128 << 20  # bytes scanned at a time
_REMOTE_STEP = 32 << 20  # the same for remote files, which are fetched first


@dataclass(frozen=True, slots=True)
class SoundRun:
    """At most `_ROWS` whole, consecutive records of one file, all at their physicalOffset."""

    segment: SegmentFile
    headers: Headers  # all valid; positions count from the start of the file
    stop: int  # log offset after the last

    @property
    def start(self) -> int:
        """Log offset of the first record."""
        return self.segment.base + int(self.headers.at[0])


def scan(
    log: CommitLog, start: int | None = None, stop: int | None = None, *, check_crc: bool = True
) -> Iterator[SoundRun | Extent]:
    """The records that start in [start, stop), log offsets, and every gap that starts there.

    `start` is the start of a file or of a record. The default range is the whole log. The pieces
    are adjacent, and a missing file is a gap too. With `check_crc`, a record with a wrong body CRC
    or record CRC is a gap.
    """
    expected = log.start if start is None else start
    last = log.chain.stop if stop is None else stop
    for segment in log.chain.segments_from(expected):
        if segment.base >= last:
            break
        if segment.base > expected:
            yield Extent(expected, segment.base, gap=Gap.MISSING)
            expected = segment.base
        end = log.chain.segment_end(segment)
        expected = yield from _scan_file(log, segment, expected, min(end, last), check_crc)
    if expected < last:
        yield Extent(expected, last, gap=Gap.MISSING)


def _scan_file(
    log: CommitLog, segment: SegmentFile, start: int, stop: int, check_crc: bool
) -> Generator[SoundRun | Extent, None, int]:
    """Scan one file from log offset `start` on; returns the end of the last piece."""
    step = _REMOTE_STEP if log.chain.is_remote else _STEP
    at = start
    while at < stop:
        upto = min(at + step, stop)
        window, run = log.run_at(segment, at, upto)
        if len(run.at):
            at = yield from _sound_parts(log, segment, window, run, check_crc)
        else:
            piece = _piece_at(log, segment, at)
            yield piece
            at = piece.stop
    return at


def _sound_parts(
    log: CommitLog, segment: SegmentFile, window: Bytes, run: RecordRun, check_crc: bool
) -> Generator[SoundRun | Extent, None, int]:
    """A run in pieces, up to its end or its first unsound record; returns the end of the last piece."""
    ends = np.append(run.at[1:], run.stop) + segment.base
    for first in range(0, len(run.at), _ROWS):
        rows = slice(first, first + _ROWS)
        headers, after = Headers(window, run.at[rows], segment.base), ends[rows]
        start = 0
        unsound = _unsound(headers, segment, check_crc)
        log.chain.check_reads()
        for row in unsound:
            if row > start:
                yield SoundRun(segment, headers.take(slice(start, row)), int(after[row - 1]))
            piece = _piece_at(log, segment, segment.base + int(headers.at[row]))
            yield piece
            if piece.stop != int(after[row]):
                return piece.stop
            start = row + 1
        if start < len(headers):
            yield SoundRun(segment, headers.take(slice(start, None)), int(after[-1]))
    return run.stop + segment.base


def _unsound(headers: Headers, segment: SegmentFile, check_crc: bool) -> list[int]:
    """Rows that are not whole records or, with `check_crc`, have a wrong CRC."""
    bad = ~headers.valid | (headers.at + headers.total > segment.size)
    if check_crc:
        good = np.flatnonzero(~bad)
        bad[good[wrong_crc_rows(headers if len(good) == len(bad) else headers.take(good))]] = True
    rows: list[int] = np.flatnonzero(bad).tolist()
    return rows


def _piece_at(log: CommitLog, segment: SegmentFile, at: int) -> SoundRun | Extent:
    """The piece that the readable decoder finds at a log offset where a run ends."""
    extent = log.extent_at(segment, at)
    if extent.record is None:
        return extent
    place = np.array([at - segment.base], dtype=np.int64)
    return SoundRun(segment, Headers(log.window_of(segment), place, segment.base), extent.stop)
