"""The CommitLog: one stream of records in files of one size (CommitLog, MappedFileQueue)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_store.commitlog.crc import wrong_crc_rows
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.runs import RecordRun, follow, next_record
from rmq_store.errors import CorruptRecordError, MissingFileError, StoreError
from rmq_store.files.chain import SegmentChain
from rmq_store.files.mapping import MappingCache
from rmq_store.files.remote.blocks import need_all
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import BLANK_SIZE, HEAD_SIZE, MAGIC_BLANK
from rmq_store.format.record import Gap, Record, decode_record

_SIZE_FIELD = 4
_LEAST_LOOK = 64 << 10
_LARGEST_RECORD = 32 << 20

_FIRST: Ints = np.zeros(1, dtype=np.int64)
# A record begins with its size, four bytes of which the first three may be zeros, and the last is
# none where those are: so far in front of the first byte that is stored a record may begin.
_ZEROS_OF_A_SIZE = 3
_ROWS = 1 << 16  # records looked at at a time, so that memory stays flat


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of the log, [start, stop) in log offsets: a record, or a gap with its name.

    `reason` says what was wrong where `gap` is Gap.DAMAGED or Gap.TORN.
    """

    start: int
    stop: int
    record: Record | None = None
    gap: Gap | None = None
    reason: str | None = None


def _require_whole(found: Record | Gap, segment: SegmentFile, offset: int) -> None:
    """A file that was cut reads as if zeros followed, but a record it ends in is none."""
    if isinstance(found, Record) and offset + found.total_size > segment.base + segment.size:
        raise CorruptRecordError(
            segment.path,
            offset=offset,
            reason="the file ends inside the record",
            expected=f"{found.total_size} bytes",
            actual=f"{segment.base + segment.size - offset} bytes",
            advice="The file was cut or copied in part; the whole file holds the rest",
        )


class CommitLog:
    """The records of a store by log offset. Opens files to read only."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        *,
        file_size: int | None = None,
        mappings: MappingCache | None = None,
    ) -> None:
        self.chain = SegmentChain(
            folders, file_size=file_size, mappings=mappings, setting="mappedFileSizeCommitLog"
        )
        self.known_damage = (0, 0)  # log offsets of a stretch without records that was met

    @property
    def start(self) -> int:
        """minPhyOffset: where the first file begins."""
        return self.chain.start

    def path_at(self, offset: int) -> str:
        """The file that holds `offset`, for messages; the folder where none does."""
        segment = self.chain.segment_at(offset)
        return self.chain.folders[0] if segment is None else segment.path

    def record_at(self, offset: int) -> Record:
        """The record at `offset`, all of it checked.

        Raises MissingFileError where no file holds it, CorruptRecordError where none starts there.
        """
        found = self._decode(offset)
        if isinstance(found, Record):
            return found
        raise CorruptRecordError(
            self.path_at(offset),
            offset=offset,
            reason=f"no record starts here: {found.value}",
            advice="The offset counts from the start of the log; rmqstore verify says what is where",
        )

    def _decode(self, offset: int) -> Record | Gap:
        segment = self.chain.segment_at(offset)
        if segment is None:
            hole = self._hole_at(offset)
            if hole is not None:
                raise MissingFileError(
                    self.chain.folders[0],
                    offset=offset,
                    reason=f"the files of the CommitLog from {hole[0]} to {hole[1]} are missing, and "
                    "with them what is",
                    advice="Files stand before and behind: these did not expire. Put them back from a "
                    "replica or a copy; rmqstore salvage saves the rest",
                )
            raise MissingFileError(
                self.chain.folders[0],
                offset=offset,
                reason="no file of the CommitLog holds this offset",
                expected=f"{self.start} to {self.chain.stop}",
                advice="It expired and was deleted, or was never written",
            )
        window = self._window_at(offset, segment)
        found = decode_record(window.data, 0, offset, segment.path)
        _require_whole(found, segment, offset)
        return found

    def _hole_at(self, offset: int) -> tuple[int, int] | None:
        """The missing range around `offset` that has files on both sides."""
        before = [one for one in self.chain.segments if one.base <= offset]
        behind = [one for one in self.chain.segments if one.base > offset]
        return (self.chain.segment_end(before[-1]), behind[0].base) if before and behind else None

    def _window_at(self, offset: int, segment: SegmentFile) -> Bytes:
        """The file from `offset` on; of a remote one as much as the record there says it takes."""
        end = self.chain.segment_end(segment)
        if not self.chain.is_remote:
            return self.chain.window(offset, end)
        front = self.chain.window(offset, min(offset + _SIZE_FIELD, end)).tobytes()
        declared = int.from_bytes(front, "big", signed=True)
        least = min(max(declared, _LEAST_LOOK), _LARGEST_RECORD)
        return self.chain.window(offset, end, fetch=least)

    def starts_now(self) -> int:
        """The log offset of the first file that exists now; what lies before it has expired."""
        segments = list_segments(self.chain.folders)
        return segments[0].base if segments else 0

    def fetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Where files are remote: fetch ranges of log offsets, side by side."""
        need_all(self.chain.remote_ranges(ranges))

    def window_of(self, segment: SegmentFile) -> Bytes:
        """The whole of one file, zeros where it was cut short, or is remote and not fetched."""
        return self.chain.window(segment.base, self.chain.segment_end(segment), fetch=0)

    def is_record(self, offset: int, size: int | None = None) -> bool:
        """Whether a whole record of `size` bytes, whatever its CRC, stands at `offset`."""
        return self._headers_at(offset, size) is not None

    def store_time_at(self, offset: int, size: int) -> int | None:
        """The storeTimestamp (ms) of the whole record of `size` bytes at `offset`, whatever its CRC;
        None where there is none."""
        headers = self._headers_at(offset, size)
        return None if headers is None else int(headers.field("store_timestamp", np.int64)[0])

    def _headers_at(self, offset: int, size: int | None) -> Headers | None:
        segment = self.chain.segment_at(offset)
        if segment is None or offset < 0:
            return None
        headers = Headers(self._window_at(offset, segment), _FIRST, offset)
        total = int(headers.total[0])
        whole = bool(headers.valid[0]) and offset + total <= segment.base + segment.size
        return headers if whole and (size is None or total == size) else None

    def end_from(self, offset: int) -> int:
        """Where the run of records that starts at `offset` ends, through file after file.

        Steps over ghosts that have real records behind them. Each record is checked whole, CRC too.
        """
        end = offset
        for _, stop in self._runs_to_the_end(offset):
            end = stop
        return end

    def runs_from(
        self, offset: int, stop: int | None = None
    ) -> Iterator[tuple[SegmentFile, Bytes, Ints]]:
        """The records from `offset` to the end of the log: file, its bytes, positions in them.

        As `end_from`; some ten thousand at a time, never none. Those behind `stop`, a log offset,
        may be left out.
        """
        for positions, _ in self._runs_to_the_end(offset, stop):
            segment = self.chain.segment_at(int(positions[0]))
            assert segment is not None
            yield segment, self.window_of(segment), positions - segment.base

    def _runs_to_the_end(self, offset: int, stop: int | None = None) -> Iterator[tuple[Ints, int]]:
        """Log offsets of records, some of a run at a time, and where the last of them ends."""
        at, step = offset, _LEAST_LOOK
        while (segment := self.chain.segment_at(at)) is not None:
            if stop is not None and at >= stop:
                return
            base, end = segment.base, self.chain.segment_end(segment)
            upto = min(end, at + step) if self.chain.is_remote else end
            window, run = self.run_at(segment, at, upto)
            ends = np.append(run.at[1:], run.stop)
            for first in range(0, len(run.at), _ROWS):
                places = run.at[first : first + _ROWS]
                sound = self._sound_until(window, segment, places, ends[first : first + _ROWS])
                if sound:
                    yield places[:sound] + base, int(ends[first + sound - 1]) + base
                if sound < len(places):
                    return
            at = base + run.stop
            if upto <= at < end:
                step = min(2 * step, _LARGEST_RECORD)
                continue
            if at < end:
                self._window_at(at, segment)
            window = self.window_of(segment)
            match self._what_stands(window, base, run.stop):
                case Gap.FILLER:
                    at = base + self.chain.file_size
                case Gap.GHOST:
                    at += int.from_bytes(window[run.stop : run.stop + 4].tobytes(), "big")
                case _:
                    return

    def run_at(self, segment: SegmentFile, at: int, upto: int) -> tuple[Bytes, RecordRun]:
        """The bytes of a file, and the run of records in it that start in [at, upto), log offsets.

        Of a remote file these records are fetched, and what was fetched before may be given up.
        """
        base, end = segment.base, self.chain.segment_end(segment)
        self.chain.need([at], [min(end, upto + HEAD_SIZE)], fresh=True)
        run = follow(self.window_of(segment), base, at - base, upto - base)
        self.chain.need([at], [base + run.stop])  # the last of them may go on behind `upto`
        return self.window_of(segment), run

    def _sound_until(self, window: Bytes, segment: SegmentFile, at: Ints, ends: Ints) -> int:
        """How many records of a run come before the first that is not whole or has a wrong CRC."""
        headers = Headers(window, at, segment.base)
        broken = np.flatnonzero(~headers.valid | (ends > segment.size))
        if len(broken):
            headers = headers.take(slice(0, int(broken[0])))
        wrong = wrong_crc_rows(headers)
        return int(wrong[0]) if len(wrong) else len(headers)

    def _what_stands(self, window: Bytes, base: int, at: int) -> Gap | None:
        """The gap at a position of a file; None for what is no record."""
        if at >= len(window):
            return Gap.FILLER
        try:
            found = decode_record(window.data, at, base + at)
        except CorruptRecordError:
            return None
        return found if isinstance(found, Gap) else None

    def last_record_file(self) -> SegmentFile | None:
        """The last file that begins with a record (or a blank): the log ends in it.

        Behind it stands at most the file of zeros that the broker makes ahead.
        """
        for segment in reversed(self.chain.segments):
            window = self._window_at(segment.base, segment)
            front = Headers(window, _FIRST, segment.base)
            blank = int.from_bytes(window[4:BLANK_SIZE].tobytes(), "big") == MAGIC_BLANK
            if front.valid[0] or blank:
                return segment
        return None

    def extents(self, start: int | None = None) -> Iterator[Extent]:
        """Every byte from `start` (default: the first) to the end of the last file, piece by piece.

        Raises MissingFileError where `start` lies in no file.
        """
        first = self.start if start is None else start
        if self.chain.segments and self.chain.segment_at(first) is None:
            self._decode(first)  # raises
        expected = first
        for segment in self.chain.segments_from(first):
            if segment.base > expected:
                yield Extent(expected, segment.base, gap=Gap.MISSING)
            yield from self._extents_of(segment, max(first, segment.base))
            expected = self.chain.segment_end(segment)

    def _extents_of(self, segment: SegmentFile, start: int) -> Iterator[Extent]:
        at, end = start, self.chain.segment_end(segment)
        while at < end:
            extent = self.extent_at(segment, at)
            yield extent
            at = extent.stop

    def extent_at(self, segment: SegmentFile, at: int) -> Extent:
        """What stands at log offset `at` of a file: one record, or a gap as far as it goes."""
        end = self.chain.segment_end(segment)
        self._window_at(at, segment)
        window = self.window_of(segment).data
        try:
            found = decode_record(window, at - segment.base, at, segment.path)
            _require_whole(found, segment, at)
        except CorruptRecordError as error:
            return self._damage(segment, at, end, error)
        return self._extent(segment, at, end, found)

    def _extent(self, segment: SegmentFile, at: int, end: int, found: Record | Gap) -> Extent:
        if isinstance(found, Record):
            return Extent(at, at + found.total_size, record=found)
        if found is Gap.GHOST:
            window = self.chain.window(at, at + 4)
            return Extent(at, at + int.from_bytes(window.tobytes(), "big"), gap=Gap.GHOST)
        if found is Gap.FILLER:
            return Extent(at, end, gap=Gap.FILLER)
        return self._zeros(segment, at, end)

    def _zeros(self, segment: SegmentFile, at: int, end: int) -> Extent:
        """Zeros: to the end of the file; or a hole with something behind it."""
        stored = self.chain.stored_from(at)
        self.chain.need([stored], [end])
        if stored >= end or not self.chain.window(stored, end).any():
            return Extent(at, end, gap=Gap.UNWRITTEN)
        behind = self.next_record(segment, self._with_front(at, stored), end)
        if behind is None:
            return Extent(at, end, gap=Gap.STALE, reason="zeros, then bytes that are no record")
        return Extent(at, behind, gap=Gap.DAMAGED, reason="zeros before a record")

    def next_record(self, segment: SegmentFile, start: int, stop: int) -> int | None:
        """The first log offset in [start, stop), of one file, where a record seems to stand."""
        base = segment.base
        found = next_record(
            self.window_of(segment),
            base,
            start - base,
            stop - base,
            lambda position: self._with_front(position, self._stored_from(segment, position)),
        )
        return None if found is None else base + found

    def _stored_from(self, segment: SegmentFile, position: int) -> int:
        return self.chain.stored_from(segment.base + position) - segment.base

    @staticmethod
    def _with_front(start: int, stored: int) -> int:
        """Where to look from, when nothing is stored from `start` to `stored`: both in one file."""
        return max(start, stored - _ZEROS_OF_A_SIZE)

    def _damage(self, segment: SegmentFile, at: int, end: int, error: StoreError) -> Extent:
        """Bytes that are no record: damage up to the next record; the torn end of the log without."""
        reason = f"{error.reason}: expected {error.expected}, found {error.actual}"
        self.chain.need([at], [end])
        behind = self.next_record(segment, at + 1, end)
        if behind is not None:
            return Extent(at, behind, gap=Gap.DAMAGED, reason=reason)
        if self._log_goes_on(segment):
            return Extent(at, end, gap=Gap.DAMAGED, reason=reason)
        return Extent(at, end, gap=Gap.TORN, reason=reason)

    def _log_goes_on(self, segment: SegmentFile) -> bool:
        last = self.last_record_file()
        return last is not None and last.base > segment.base
