"""Every byte of a log, file by file: runs of sound records, and by name what lies between them.

The fast twin of `CommitLog.extents`, for whoever has to look at all of a log (verify, rebuild,
salvage). Unlike a broker it goes on behind damage, from the next record that stands where it says.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from rmq_store.commitlog.crc import wrong_crc_rows
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog, Extent
from rmq_store.commitlog.runs import follow
from rmq_store.files.segments import SegmentFile
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.record import Gap

_ROWS = 1 << 15  # records of a run at a time
_REMOTE_STEP = 32 << 20  # bytes that are fetched at a time where files are remote
_LARGEST_RECORD = 32 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Sound records of one file that follow one another: whole, in their place, with their CRCs.

    `at` are positions in `window`, the bytes of the file; at most a few ten thousand of them.
    """

    segment: SegmentFile
    window: Bytes
    at: Ints
    stop: int  # log offset behind the last

    @property
    def start(self) -> int:
        """Log offset of the first."""
        return self.segment.base + int(self.at[0])

    @property
    def headers(self) -> Headers:
        """The records, all of them valid."""
        return Headers(self.window, self.at, self.segment.base)


def sweep(
    log: CommitLog, start: int | None = None, stop: int | None = None
) -> Iterator[Run | Extent]:
    """All of the log from `start` to the end of the files that begin before `stop`.

    `start` is where a file begins, or a record. What is yielded joins without a gap: a file that is
    missing in the middle is an extent, too.
    """
    expected = log.start if start is None else start
    for segment in log.chain.segments_from(expected):
        if stop is not None and segment.base >= stop:
            if expected < stop:
                yield Extent(expected, stop, gap=Gap.MISSING)
            return
        if segment.base > expected:
            yield Extent(expected, segment.base, gap=Gap.MISSING)
        yield from _sweep_file(log, segment, max(expected, segment.base))
        expected = log.chain.segment_end(segment)


def _sweep_file(log: CommitLog, segment: SegmentFile, start: int) -> Iterator[Run | Extent]:
    at, end = start - segment.base, log.chain.file_size
    while at < end:
        upto = min(at + _REMOTE_STEP, end) if log.chain.is_remote else end
        log.chain.need(
            [segment.base + at], [segment.base + min(upto + _LARGEST_RECORD, end)], fresh=True
        )
        window = log.window_of(segment)
        run = follow(window, segment.base, at, upto)
        if len(run.at):
            at = yield from _sound_parts(log, segment, window, run.at, run.stop)
            continue
        extent = log.extent_at(segment, segment.base + at)
        yield extent
        at = extent.stop - segment.base


def _sound_parts(
    log: CommitLog, segment: SegmentFile, window: Bytes, places: Ints, stop: int
) -> Generator[Run | Extent, None, int]:
    """A run in pieces, up to where it ends, or does not add up; returns the position behind."""
    ends = np.append(places[1:], stop)
    for first in range(0, len(places), _ROWS):
        rows = slice(first, min(first + _ROWS, len(places)))
        at, behind = places[rows], ends[rows]
        start = 0
        for row in _unsound(window, segment, at, behind):
            if row > start:
                yield Run(segment, window, at[start:row], segment.base + int(at[row]))
            extent = log.extent_at(segment, segment.base + int(at[row]))
            yield extent
            if extent.stop != segment.base + int(behind[row]):
                return extent.stop - segment.base
            start = row + 1
        if start < len(at):
            yield Run(segment, window, at[start:], segment.base + int(behind[-1]))
    return stop


def _unsound(window: Bytes, segment: SegmentFile, at: Ints, behind: Ints) -> list[int]:
    """Rows that are not whole records, or have a wrong CRC."""
    headers = Headers(window, at, segment.base)
    bad = ~headers.valid | (behind > segment.size)
    good = np.flatnonzero(~bad)
    sound = headers if len(good) == len(at) else Headers(window, at[good], segment.base)
    bad[good[wrong_crc_rows(sound)]] = True
    rows: list[int] = np.flatnonzero(bad).tolist()
    return rows
