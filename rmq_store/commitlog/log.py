"""The CommitLog: one stream of records in files of one size (CommitLog, MappedFileQueue)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_store.commitlog.doubled_files import fullest
from rmq_store.commitlog.headers import Headers, wrong_crc_rows
from rmq_store.commitlog.record_runs import RecordRun, follow, next_record
from rmq_store.errors import CorruptRecordError, MissingFileError, StoreError
from rmq_store.files.mapping import MappingCache
from rmq_store.files.remote.blocks import need_all
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.format.array_types import Bytes, Ints, Mask
from rmq_store.format.layout import BLANK_SIZE, HEAD_SIZE, MAGIC_BLANK, PROPERTY_SEPARATOR
from rmq_store.format.record import Gap, Record, decode_record

_SIZE_FIELD = 4
_LEAST_LOOK = 64 << 10
_LARGEST_RECORD = 32 << 20

_FIRST: Ints = np.zeros(1, dtype=np.int64)
# A record begins with four bytes of size. At most the first three of them are zeros, so a
# record may begin up to three bytes before the first stored byte.
_ZEROS_OF_A_SIZE = 3
_ROWS = 1 << 16  # records checked at a time, to limit memory


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of the log, [start, stop) in log offsets: a record, or a gap with its name.

    `reason` describes the fault if `gap` is Gap.DAMAGED or Gap.TORN.
    """

    start: int
    stop: int
    record: Record | None = None
    gap: Gap | None = None
    reason: str | None = None


def _require_whole(decoded: Record | Gap, segment: SegmentFile, offset: int) -> None:
    """Raise CorruptRecordError if the file ends inside the record.

    A truncated file reads as if zeros followed, so the record may seem whole.
    """
    if isinstance(decoded, Record) and offset + decoded.total_size > segment.base + segment.size:
        raise CorruptRecordError(
            segment.shown,
            offset=offset,
            reason="the file ends inside the record",
            expected=f"{decoded.total_size} bytes",
            actual=f"{segment.base + segment.size - offset} bytes",
            advice="The file was truncated or copied in part; the whole file holds the rest",
        )


class CommitLog:
    """The records of a store by log offset. Opens files only for reading."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        *,
        file_size: int | None = None,
        mappings: MappingCache | None = None,
        segments: Sequence[SegmentFile] | None = None,
    ) -> None:
        """`segments`: the files; by default those in `folders`, of several with one name the fullest."""
        self.chain = SegmentChain(
            folders,
            file_size=file_size,
            segments=list_segments(folders, fullest) if segments is None else segments,
            mappings=mappings,
            setting="mappedFileSizeCommitLog",
        )
        self._file_size = file_size
        self.known_damage = (0, 0)  # log offsets of a range without records that a search found
        self.known_starts: dict[int, int] = {}  # of the first record at or after an offset

    @property
    def start(self) -> int:
        """minPhyOffset: where the first file begins."""
        return self.chain.start

    def path_at(self, offset: int) -> str:
        """The file that holds `offset`, for messages; the folder if no file does."""
        segment = self.chain.segment_at(offset)
        return self.chain.folders[0] if segment is None else segment.shown

    def record_at(self, offset: int) -> Record:
        """The record at `offset`, fully checked.

        Raises MissingFileError if no file holds the offset, CorruptRecordError if no record starts
        there.
        """
        decoded = self._decode(offset)
        if isinstance(decoded, Record):
            return decoded
        raise CorruptRecordError(
            self.path_at(offset),
            offset=offset,
            reason=f"no record starts here: {decoded.value}",
            advice="The offset counts from the start of the log; rmqstore verify lists the gaps",
        )

    def _decode(self, offset: int) -> Record | Gap:
        segment = self.chain.segment_at(offset)
        if segment is None:
            hole = self._hole_at(offset)
            if hole is not None:
                raise MissingFileError(
                    self.chain.folders[0],
                    offset=offset,
                    reason=f"the files of the CommitLog from {hole[0]} to {hole[1]} are missing, "
                    "including the record",
                    advice="There are files before and after them, so they did not expire. Restore "
                    "them from a replica or a copy; rmqstore salvage saves the rest",
                )
            raise MissingFileError(
                self.chain.folders[0],
                offset=offset,
                reason="no file of the CommitLog holds this offset",
                expected=f"{self.start} to {self.chain.stop}",
                advice="It expired and was deleted, or was never written",
            )
        window = self._window_at(offset, segment)
        try:
            decoded = decode_record(window.data, 0, offset, segment.shown)
        finally:
            self.chain.check_reads()
        _require_whole(decoded, segment, offset)
        return decoded

    def _hole_at(self, offset: int) -> tuple[int, int] | None:
        """The missing range around `offset`, if there are files on both sides."""
        before = [file for file in self.chain.segments if file.base <= offset]
        behind = [file for file in self.chain.segments if file.base > offset]
        return (self.chain.segment_end(before[-1]), behind[0].base) if before and behind else None

    def _window_at(self, offset: int, segment: SegmentFile) -> Bytes:
        """The file from `offset` on; of a remote file only as many bytes as the record declares."""
        end = self.chain.segment_end(segment)
        if not self.chain.is_remote:
            return self.chain.window(offset, end)
        front = self.chain.window(offset, min(offset + _SIZE_FIELD, end)).tobytes()
        declared = int.from_bytes(front, "big", signed=True)
        least = min(max(declared, _LEAST_LOOK), _LARGEST_RECORD)
        return self.chain.window(offset, end, fetch=least)

    def starts_now(self) -> int:
        """The log offset of the first file that exists now; everything before it has expired."""
        segments = list_segments(self.chain.folders)
        return segments[0].base if segments else 0

    def fetch_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fetch ranges of log offsets in parallel if files are remote."""
        need_all(self.chain.remote_ranges(ranges))

    def window_of(self, segment: SegmentFile) -> Bytes:
        """The bytes of one whole file; zeros where it was truncated, or is remote and not fetched."""
        return self.chain.window(segment.base, self.chain.segment_end(segment), fetch=0)

    def is_record(self, offset: int, size: int | None = None) -> bool:
        """Whether a whole record of `size` bytes is at `offset`; its CRC is not checked."""
        return self._headers_at(offset, size) is not None

    def whole_records(self, offsets: Ints, sizes: Ints) -> Mask:
        """Which of these places hold a whole record of that size; CRCs are not checked."""
        whole = np.zeros(len(offsets), dtype=bool)
        for rows, _ in self.whole_headers(offsets, sizes):
            whole[rows] = True
        return whole

    def whole_headers(self, offsets: Ints, sizes: Ints) -> Iterator[tuple[Ints, Headers]]:
        """Those of these places that hold a whole record of that size, and their fields, file by file.

        CRCs are not checked.
        """
        for segment in self.chain.segments:
            rows = np.flatnonzero(
                (offsets >= segment.base) & (offsets + sizes <= segment.base + segment.size)
            )
            if len(rows):
                self.chain.need(offsets[rows], offsets[rows] + sizes[rows], fresh=True)
                places = offsets[rows] - segment.base
                headers = Headers(self.window_of(segment), places, segment.base)
                whole = np.flatnonzero(headers.valid & (headers.total == sizes[rows]))
                self.chain.check_reads()
                if len(whole):
                    yield rows[whole], headers.take(whole)
                    self.chain.check_reads()

    def store_time_at(self, offset: int, size: int | None = None) -> int | None:
        """The storeTimestamp (ms) of the whole record of `size` bytes at `offset`; None without one.

        The CRC is not checked.
        """
        headers = self._headers_at(offset, size)
        return None if headers is None else int(headers.store_timestamp[0])

    def _headers_at(self, offset: int, size: int | None) -> Headers | None:
        segment = self.chain.segment_at(offset)
        if segment is None or offset < 0:
            return None
        headers = Headers(self._window_at(offset, segment), _FIRST, offset)
        total = int(headers.total[0])
        whole = bool(headers.valid[0]) and offset + total <= segment.base + segment.size
        self.chain.check_reads()
        return headers if whole and (size is None or total == size) else None

    def end_from(self, offset: int) -> int:
        """The end of the run of records that starts at `offset`, across files.

        Skips ghosts that are followed by real records. Checks each record completely, including its
        CRC.
        """
        return self.last_from(offset)[1]

    def end_now(self, end: int) -> int:
        """Where the log ends now, if a broker has written on since it ended at `end`."""
        if self.chain.is_remote:  # its files are those of one listing
            return end
        log = CommitLog(self.chain.folders, file_size=self._file_size)
        try:
            return max(end, log.end_from(end))
        finally:
            log.chain.close()

    def last_from(self, offset: int) -> tuple[int | None, int]:
        """The start of the last record of that run, None without one; and the run's end."""
        last, end = None, offset
        for positions, stop in self._runs_to_the_end(offset):
            last, end = int(positions[-1]), stop
        return last, end

    def runs_from(
        self, offset: int, stop: int | None = None
    ) -> Iterator[tuple[SegmentFile, Bytes, Ints]]:
        """The records from `offset` to the end of the log: file, its bytes, positions in them.

        Ends as `end_from`. Yields some ten thousand records at a time, never none. May omit records
        after `stop`, a log offset.
        """
        for positions, _ in self._runs_to_the_end(offset, stop):
            segment = self.chain.segment_at(int(positions[0]))
            assert segment is not None
            yield segment, self.window_of(segment), positions - segment.base

    def _runs_to_the_end(self, offset: int, stop: int | None = None) -> Iterator[tuple[Ints, int]]:
        """Log offsets of records, some of a run at a time, and the end of the last one."""
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
                self.chain.check_reads()
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
            gap = self._gap_at(window, base, run.stop)
            self.chain.check_reads()
            match gap:
                case Gap.FILLER:
                    at = base + self.chain.file_size
                case Gap.GHOST:
                    at += int.from_bytes(window[run.stop : run.stop + 4].tobytes(), "big")
                case _:
                    return

    def run_at(self, segment: SegmentFile, at: int, upto: int) -> tuple[Bytes, RecordRun]:
        """The bytes of a file, and the run of its records that start in [at, upto), log offsets.

        For a remote file, fetches these records; earlier blocks may be released.
        """
        base, end = segment.base, self.chain.segment_end(segment)
        self.chain.need([at], [min(end, upto + HEAD_SIZE)], fresh=True)
        run = follow(self.window_of(segment), base, at - base, upto - base)
        self.chain.need([at], [base + run.stop])  # the last record may extend past `upto`
        self.chain.check_reads()
        return self.window_of(segment), run

    def _sound_until(self, window: Bytes, segment: SegmentFile, at: Ints, ends: Ints) -> int:
        """How many records of a run precede the first one that is not whole or has a wrong CRC."""
        headers = Headers(window, at, segment.base)
        broken = np.flatnonzero(~headers.valid | (ends > segment.size))
        if len(broken):
            headers = headers.take(slice(0, int(broken[0])))
        wrong = wrong_crc_rows(headers)
        return int(wrong[0]) if len(wrong) else len(headers)

    def _gap_at(self, window: Bytes, base: int, at: int) -> Gap | None:
        """The gap at a position of a file; None if the bytes are not a record."""
        if at >= len(window):
            return Gap.FILLER
        try:
            decoded = decode_record(window.data, at, base + at)
        except CorruptRecordError:
            return None
        return decoded if isinstance(decoded, Gap) else None

    def last_record_file(self) -> SegmentFile | None:
        """The last file that begins with a record (or a blank): the log ends in it.

        At most one file follows: the zeros that the broker preallocates.
        """
        for segment in reversed(self.chain.segments):
            window = self._window_at(segment.base, segment)
            front = Headers(window, _FIRST, segment.base)
            blank = int.from_bytes(window[4:BLANK_SIZE].tobytes(), "big") == MAGIC_BLANK
            self.chain.check_reads()
            if front.valid[0] or blank:
                return segment
        return None

    def extents(self, start: int | None = None) -> Iterator[Extent]:
        """Every byte from `start` (default: the first) to the end of the last file, piece by piece.

        Raises MissingFileError if no file holds `start`.
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
        """The piece at log offset `at` of a file: one record, or a whole gap."""
        end, decoded = self.chain.segment_end(segment), self._decoded_at(segment, at)
        extent = self._extent(segment, at, end, decoded)
        if extent.gap is Gap.DAMAGED:
            # A writer fills a log in order. It may have filled this place after the first look and
            # before the look that found more behind it.
            decoded = self._decoded_at(segment, at)
            if isinstance(decoded, Record) or decoded is Gap.FILLER:
                return self._extent(segment, at, end, decoded)
        return extent

    def _decoded_at(self, segment: SegmentFile, at: int) -> Record | Gap | CorruptRecordError:
        self._window_at(at, segment)
        window = self.window_of(segment).data
        try:
            decoded = decode_record(window, at - segment.base, at, segment.shown)
            _require_whole(decoded, segment, at)
        except CorruptRecordError as error:
            self.chain.check_reads()
            return error
        self.chain.check_reads()
        return decoded

    def _extent(
        self, segment: SegmentFile, at: int, end: int, decoded: Record | Gap | CorruptRecordError
    ) -> Extent:
        if isinstance(decoded, CorruptRecordError):
            return self._damage(segment, at, end, decoded)
        if isinstance(decoded, Record):
            return Extent(at, at + decoded.total_size, record=decoded)
        if decoded is Gap.GHOST:
            window = self.chain.window(at, at + 4)
            return Extent(at, at + int.from_bytes(window.tobytes(), "big"), gap=Gap.GHOST)
        if decoded is Gap.FILLER:
            return Extent(at, end, gap=Gap.FILLER)
        return self._zeros(segment, at, end)

    def _zeros(self, segment: SegmentFile, at: int, end: int) -> Extent:
        """Zeros up to the end of the file, or a range of zeros with data after it."""
        stored = self.chain.stored_from(at)
        self.chain.need([stored], [end])
        is_zero = self.chain.is_zero(stored, end)
        behind = None if is_zero else self.next_record(segment, self._with_front(at, stored), end)
        if behind is not None:
            return Extent(at, behind, gap=Gap.DAMAGED, reason="zeros before a record")
        if self._log_goes_on(segment):  # a broker ends each file with a filler
            return Extent(at, end, gap=Gap.DAMAGED, reason="zeros, and a later file has records")
        if is_zero:
            return Extent(at, end, gap=Gap.UNWRITTEN)
        return Extent(at, end, gap=Gap.STALE, reason="zeros, then bytes that are not a record")

    def next_record(self, segment: SegmentFile, start: int, stop: int) -> int | None:
        """The first log offset in [start, stop), within one file, where a record seems to start."""
        base = segment.base
        decoded = next_record(
            self.window_of(segment),
            base,
            start - base,
            stop - base,
            lambda position: self._with_front(position, self._stored_from(segment, position)),
        )
        self.chain.check_reads()
        return None if decoded is None else base + decoded

    def _stored_from(self, segment: SegmentFile, position: int) -> int:
        return self.chain.stored_from(segment.base + position) - segment.base

    @staticmethod
    def _with_front(start: int, stored: int) -> int:
        """Where a search starts if nothing is stored from `start` to `stored`, both in one file."""
        return max(start, stored - _ZEROS_OF_A_SIZE)

    def _damage(self, segment: SegmentFile, at: int, end: int, error: StoreError) -> Extent:
        """Bytes that are not a record: damage up to the next record, or the torn end of the log."""
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


def empty_files(log: CommitLog) -> list[Path]:
    """The files of a local log without a byte, before its last file: no broker starts with one."""
    last = max((segment.base for segment in log.chain.segments), default=-1)
    paths = (path for folder in log.chain.folders for path in Path(folder).glob("[0-9]" * 20))
    return sorted(path for path in paths if int(path.name) < last and not path.stat().st_size)


def guess_release_4(log: CommitLog) -> str | None:
    """The release "4.9.0" or "4.9.7", from the end of the first properties; None without properties.

    Releases up to 4.9.0 write a separator (0x02) after the last property, later ones do not.
    """
    for extent in log.extents():
        if extent.record is not None and extent.record.properties:
            ends = extent.record.properties[-1] == PROPERTY_SEPARATOR
            return "4.9.0" if ends else "4.9.7"
    return None
