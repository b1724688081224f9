"""Walks the log: runs of sound records, and the named gaps between them.

Unlike a broker, `walk` continues after damage, at the next record with a matching physicalOffset.
`sound_runs_from` ends there, as a log does to which a writer appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from rmq_store.commitlog.headers import Headers, RecordRun, wrong_crc_rows
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import CorruptRecordError, LogOffset, MissingFileError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Window
from rmq_store.format.byte_layout import MAGIC_V1, MAGIC_V2, PROPERTY_SEPARATOR
from rmq_store.format.record import ENTRY_HEAD_SIZE, NO_RECORD, DLedgerEntryHead, Gap, Record

WITHIN_THE_LOG = (Gap.FILLER, Gap.GHOST)
"""Gaps that do not end the log. Some brokers leave ghosts between records, and at its end."""
_LOOK_BACK = 16 << 20  # how far before an offset a walk starts, to reach it record by record
_SHOWN = 8  # bytes: size and magic of a record

# Stored zeros at the log's end that are read in search of a record behind them: pages that a crash
# of the machine lost. A broker may fill a whole file with zeros in advance.
_ZEROS_READ = 64 << 20

_PAGE = 4096
_WORD = 4  # bytes of a record's size, which are never all zero
_SEARCHED = 64 << 20
_HEAD = 36  # bytes of a record up to its physicalOffset
_MAGIC, _PLACE = slice(4, 8), slice(28, 36)


@dataclass(frozen=True, slots=True)
class RecordOrGap:
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


def piece_at(log: CommitLog, segment: SegmentFile, at: int) -> SoundRun | RecordOrGap:
    """The whole gap at log offset `at` of a file, or the one record that starts there."""
    piece = _piece_of(log, segment, at, _decoded_at(log, segment, at))
    if isinstance(piece, RecordOrGap) and piece.gap is Gap.DAMAGED:
        # A writer fills a log in order. It may have filled this place after the first look and
        # before the look that found more behind it.
        content = _decoded_at(log, segment, at)
        if isinstance(content, Record) or content is Gap.FILLER:
            return _piece_of(log, segment, at, content)
    return piece


def piece_or_gap_start(log: CommitLog, segment: SegmentFile, at: int) -> SoundRun | RecordOrGap:
    """As `piece_at`; of a gap that is not within the log only the start."""
    content = _decoded_at(log, segment, at)
    if isinstance(content, Record) or content in WITHIN_THE_LOG:
        return _piece_of(log, segment, at, content)
    return RecordOrGap(at, at, gap=Gap.TORN)


def _decoded_at(log: CommitLog, segment: SegmentFile, at: int) -> Record | Gap | CorruptRecordError:
    head = log.entry_at(segment, at)
    try:
        return (
            log.record_or_gap_at(segment, at) if head is None else _in_entry(log, segment, at, head)
        )
    except CorruptRecordError as error:
        return error


def _in_entry(
    log: CommitLog, segment: SegmentFile, at: int, head: DLedgerEntryHead
) -> Record | Gap:
    """What an entry holds. A sound record counts although the head is damaged; verify reports that.

    Raises CorruptRecordError.
    """
    room = log.chain.segment_end(segment) - at
    fault = head.fault_at(at)
    if head.is_blank(room) or (fault is None and head.body_length == 0):
        return Gap.FILLER
    content: Record | Gap | CorruptRecordError = Gap.UNWRITTEN
    if room > ENTRY_HEAD_SIZE:
        try:
            content = log.record_or_gap_at(segment, at + ENTRY_HEAD_SIZE)
        except CorruptRecordError as error:
            content = error
    if isinstance(content, Record) and (
        fault is not None or content.total_size == head.body_length
    ):
        return content
    if head.magic == head.size == 0:
        return Gap.UNWRITTEN
    if fault is None and isinstance(content, CorruptRecordError):
        raise content
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


def _piece_of(
    log: CommitLog, segment: SegmentFile, at: int, content: Record | Gap | CorruptRecordError
) -> SoundRun | RecordOrGap:
    """The piece of which the decoder found the start."""
    end = log.chain.segment_end(segment)
    if isinstance(content, Record):
        frame = log.frame_size_at(at)
        place = np.array([at + frame - segment.base], dtype=np.int64)
        with log.chain.window_of(segment) as window:
            headers = Headers(window.bytes, place, segment.base)
        return SoundRun(segment, headers, at + frame + content.total_size, frame)
    if isinstance(content, CorruptRecordError):
        return _damage(log, segment, at, end, content)
    if content is Gap.GHOST:
        stop = at + int.from_bytes(log.chain.read(at, at + 4).tobytes(), "big")
        # A record may have been written over its end.
        inside = log.next_record(segment, at + 1, stop)
        return RecordOrGap(at, stop if inside is None else inside, gap=Gap.GHOST)
    if content is Gap.FILLER:
        head = log.entry_at(segment, at)
        return RecordOrGap(at, end if head is None else at + head.size, gap=Gap.FILLER)
    return _zeros(log, segment, at, end)


def _zeros(log: CommitLog, segment: SegmentFile, at: int, end: int) -> RecordOrGap:
    """Zeros up to the end of the file, or a range of zeros with data after it."""
    is_zero = log.chain.is_zero(log.chain.stored_from(at), end)
    behind = None if is_zero else log.next_record(segment, at + 1, end)
    if behind is not None:
        return RecordOrGap(at, behind, gap=Gap.DAMAGED, reason="zeros before a record")
    if _goes_on(log, segment):  # a broker ends each file with a filler
        return RecordOrGap(at, end, gap=Gap.DAMAGED, reason="zeros, and a later file has records")
    if is_zero:
        return RecordOrGap(at, end, gap=Gap.UNWRITTEN)
    return RecordOrGap(at, end, gap=Gap.STALE, reason="zeros, then bytes that are not a record")


def _damage(
    log: CommitLog, segment: SegmentFile, at: int, end: int, error: CorruptRecordError
) -> RecordOrGap:
    """Bytes that are not a record: damage up to the next record, or the torn end of the log."""
    reason = f"{error.reason}: expected {error.expected}, found {error.actual}"
    behind = log.next_record(segment, at + 1, end)
    gap = Gap.DAMAGED if behind is not None or _goes_on(log, segment) else Gap.TORN
    return RecordOrGap(at, end if behind is None else behind, gap=gap, reason=reason)


def _goes_on(log: CommitLog, segment: SegmentFile) -> bool:
    last = log.last_file()
    return last is not None and last.base > segment.base


_ROWS = 1 << 14  # records of a run at a time
# Bytes of the first step where the end may be near, or few records are wanted.
_SHORT_STEP = 64 << 10

_LEFT_OVER = "entries that the log was cut before"

Progress = Callable[[int], None]  # receives the number of bytes of the log that were worked on
_Piece = SoundRun | RecordOrGap
_PieceAt = Callable[[CommitLog, SegmentFile, int], _Piece]


def walk(
    log: CommitLog, start: int | None = None, stop: int | None = None, *, check_crc: bool = True
) -> Iterator[SoundRun | RecordOrGap]:
    """The records that start in [start, stop), log offsets, and every gap that starts there.

    `start` is the start of a file, of a record, or of its entry. The default range is the whole log.
    The pieces are adjacent, and a missing file is a gap too. With `check_crc`, a record with a wrong
    body CRC or record CRC is a gap.
    """
    first = log.start if start is None else start
    return _pieces(log, first, log.chain.stop if stop is None else stop, check_crc, piece_at)


def sound_headers(
    log: CommitLog, start: int | None = None, stop: int | None = None, *, check_crc: bool
) -> Iterator[Headers]:
    """The headers of the records of a `walk`, without what lies between them."""
    pieces = walk(log, start, stop, check_crc=check_crc)
    return (piece.headers for piece in pieces if isinstance(piece, SoundRun))


def sound_runs_from(log: CommitLog, start: int) -> Iterator[SoundRun]:
    """The records from `start`, a log offset, to the end of the log.

    The log ends before the first bytes that are neither a record with right CRCs, nor a ghost, nor a
    filler. What they are is not looked into: that may take a search through the rest of the file.
    """
    for piece in _pieces(log, start, log.chain.stop, True, piece_or_gap_start, _SHORT_STEP):
        if isinstance(piece, SoundRun):
            yield piece
        elif piece.gap not in WITHIN_THE_LOG:
            return


def last_record_and_end(log: CommitLog, start: int) -> tuple[int | None, int]:
    """The start of the last of the `sound_runs_from` a log offset, None without one; and their end."""
    last, end = None, start
    for run in sound_runs_from(log, start):
        last, end = run.last, run.stop
    return last, end


def current_end(log: CommitLog, end: int) -> int:
    """Where the log ends now, if a broker has written on since it ended at `end`."""
    if not log.chain.cost.grows:
        return end
    now = log.with_files_of_now()
    try:
        return max(end, last_record_and_end(now, end)[1])
    finally:
        now.chain.close()


def records_and_gaps(log: CommitLog, start: int | None = None) -> Iterator[RecordOrGap]:
    """As `walk` to the end of the last file, one decoded record at a time.

    Raises MissingFileError if no file holds `start`.
    """
    first = log.start if start is None else start
    if first != log.start and log.chain.segments and log.chain.segment_at(first) is None:
        log.record_at(first)  # raises
    for piece in _pieces(log, first, log.chain.stop, True, piece_at, _SHORT_STEP):
        if isinstance(piece, RecordOrGap):
            yield piece
            continue
        places, sizes = piece.headers.at + piece.segment.base, piece.headers.total
        for at, size in zip(places.tolist(), sizes.tolist(), strict=True):
            yield RecordOrGap(at - piece.frame, at + size, record=log.record_at(at))


def guess_release_4(log: CommitLog) -> str | None:
    """The release "4.9.0" or "4.9.7", from the end of the first properties; None without properties.

    Releases up to 4.9.0 write a separator (0x02) after the last property, later ones do not.
    """
    for extent in records_and_gaps(log):
        if extent.record is not None and extent.record.properties:
            return "4.9.0" if extent.record.properties[-1] == PROPERTY_SEPARATOR else "4.9.7"
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
    most, order = log.chain.cost.step, CutOffEntries()
    start = at = log.entry_start(start)
    step = min(first_step or most, most)
    for segment in log.chain.segments_from(start):
        if segment.base >= stop:
            break
        if segment.base > at:
            yield RecordOrGap(at, segment.base, gap=Gap.MISSING)
            at = segment.base
        end = min(log.chain.segment_end(segment), stop)
        while at < end:
            with log.chain.window_of(segment) as window:
                run = log.run_in(window, segment, at, min(at + step, end))
                parts: Iterable[_Piece]
                if not len(run.at):
                    parts = (piece_at(log, segment, at),)
                elif log.frame_size_at(at) and order.is_left_over(window, segment.base, run):
                    parts = (
                        RecordOrGap(at, segment.base + run.stop, gap=Gap.STALE, reason=_LEFT_OVER),
                    )
                else:
                    parts = _parts_of(log, segment, window, run, check_crc, piece_at)
                for piece in parts:
                    yield piece
                    at = piece.stop
            step = min(2 * step, most)
    if at < stop:
        yield RecordOrGap(at, stop, gap=Gap.MISSING)


def _parts_of(
    log: CommitLog,
    segment: SegmentFile,
    window: Window,
    run: RecordRun,
    check_crc: bool,
    piece_at: _PieceAt,
) -> Iterator[_Piece]:
    """A run in pieces, up to its end or to a gap that ends at another place than the record there."""
    frame = log.frame_size_at(segment.base)
    ends = np.append(run.at[1:] - frame, run.stop) + segment.base
    for first in range(0, len(run.at), _ROWS):
        rows = slice(first, first + _ROWS)
        headers, after = Headers(window.bytes, run.at[rows], segment.base), ends[rows]
        start = 0
        for row in _unsound(headers, segment, check_crc):
            if row > start:
                yield SoundRun(segment, headers.take(slice(start, row)), int(after[row - 1]), frame)
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


class CutOffEntries:
    """Knows which entries of a DLedger log a member has cut off, by the entries before them in one walk.

    A member cuts off its last entries if no majority has them and a leader of a later term says so. Their
    bytes stay until others are written over them: they are left over. An entry behind a damaged head is not.
    """

    def __init__(self) -> None:
        self._last: DLedgerEntryHead | None = None

    def is_left_over(self, window: Window, base: int, run: RecordRun) -> bool:
        """Whether the entries of a run, in a window of a file that begins at `base`, are left over."""
        raw, before = window.bytes, self._last
        first, last = (
            DLedgerEntryHead.of(raw[at - ENTRY_HEAD_SIZE : at].tobytes())
            for at in run.at[[0, -1]].tolist()
        )
        window.fetch([run.stop], [run.stop + 2 * ENTRY_HEAD_SIZE])
        after = DLedgerEntryHead.of(raw[run.stop : run.stop + ENTRY_HEAD_SIZE].tobytes())
        alone = len(run.at) == 1 and after.fault_at(base + run.stop) is None
        if before is None or (first.index > before.index and first.term >= before.term):
            goes_on = after.index > first.index and after.term >= first.term
            if not alone or goes_on or _is_newer(window, base, run):
                self._last = last
            return False
        damaged = after.index == before.index + 2 and after.term >= before.term
        return not (alone and damaged)


def _is_newer(window: Window, base: int, run: RecordRun) -> bool:
    """Whether the only record of a run was stored later than the one behind it in the file."""
    places = np.array([run.at[0], run.stop + ENTRY_HEAD_SIZE], dtype=np.int64)
    stored = Headers(window.bytes, places, base).store_timestamp
    return bool(stored[1] and stored[0] > stored[1])


@dataclass(slots=True)
class _Learned:
    """What searches in one log found, because they take long and may be repeated."""

    starts: dict[int, int] = field(default_factory=dict)  # the first record at or after an offset
    damage: tuple[int, int] = (0, 0)  # the longest range without records


_learned: WeakKeyDictionary[CommitLog, _Learned] = WeakKeyDictionary()


def next_record_or_gap(
    log: CommitLog, segment: SegmentFile, offset: int, *, check_crc: bool = False
) -> tuple[int, int | None]:
    """The first log offset at or after `offset`, within one file, where a record or a gap starts.

    Of a record with a frame it is where the frame starts, which may be before `offset`.

    Every caller gets the same result: the walk starts well before `offset` and goes record by
    record, because bytes inside a body may look like a record. Without a record in the rest of the
    file, returns its end. Second value: the start of the record that contains `offset`, according
    to its head; None without one. `check_crc`: a record with a wrong CRC is part of a gap, as it is
    for a walk that checks them.
    """
    end = log.chain.segment_end(segment)
    at = segment.base
    if offset - at > _LOOK_BACK:
        start = log.next_record(segment, offset - _LOOK_BACK, end)
        at = end if start is None else start
        if at > offset:
            _note_damage(log, offset - _LOOK_BACK, at)
            return at, None
    around: int | None = None
    # The record at an offset begins before it, with its frame.
    for piece in walk(log, at, offset - log.frame_size_at(at), check_crc=check_crc):
        at, around = piece.stop, piece.last if isinstance(piece, SoundRun) else None
        if isinstance(piece, RecordOrGap) and piece.gap is Gap.DAMAGED:
            _note_damage(log, piece.start, piece.stop)
    return at, around if at > offset else None


def first_record_from(log: CommitLog, cut: int, log_end: int) -> int:
    """The start of the first record at or after `cut`. Every caller gets the same answer."""
    segment = log.chain.segment_at(cut)
    if segment is None:
        return next((s.base for s in log.chain.segments_from(cut)), log_end)
    starts = _learned.setdefault(log, _Learned()).starts
    first = starts.get(cut)
    if first is None:
        first = next_record_or_gap(log, segment, cut)[0]
        if first <= log_end:  # behind it a broker may still write
            starts[cut] = first
    return first


def _note_damage(log: CommitLog, start: int, stop: int) -> None:
    of_log = _learned.setdefault(log, _Learned())
    first, behind = of_log.damage
    if stop - start > behind - first:
        of_log.damage = (start, stop)


def record_or_damage(log: CommitLog, log_end: int, offset: int) -> Record | StoreError | None:
    """The record at a log offset; if it cannot be read, the error of the damage there, None without any."""
    try:
        return log.record_at(offset)
    except (CorruptRecordError, MissingFileError) as error:
        return error_of_unreadable_record(log, log_end, offset, error)


def error_of_unreadable_record(
    log: CommitLog, log_end: int, offset: int, why: StoreError
) -> StoreError | None:
    """The error for a log offset that should be a record and cannot be read (`why`).

    None if no record can begin there: outside the log, inside a sound record, or in filler. If the
    head of the record is gone, the error shows the bytes there.
    """
    if not log.start <= offset < log_end:
        return None
    segment = log.chain.segment_at(offset)
    if segment is None or log.is_record(offset):
        return why
    first, behind = _learned.setdefault(log, _Learned()).damage
    reason: str | None = None
    if not first <= offset < behind:
        _, around = next_record_or_gap(log, segment, offset)
        if around is not None and log.intact_record_at(around) is not None:
            return None
        piece = piece_at(log, segment, log.entry_start(offset))
        if isinstance(piece, SoundRun) or piece.gap is Gap.FILLER:
            return None
        ghost = piece.gap is Gap.GHOST
        reason = "a copy of a record from another place" if ghost else piece.reason
    if why.expected is not None:
        reason = why.reason.partition(NO_RECORD)[2]
    front = log.chain.read(offset, min(offset + _SHOWN, log.chain.segment_end(segment))).tobytes()
    return CorruptRecordError(
        segment.path,
        offset=LogOffset(offset),
        reason="the bytes at this offset of the log are not a record"
        + (f" ({reason})" if reason else ""),
        expected=why.expected or "the start of a record",
        actual=why.actual or f"bytes {front.hex()}",
        advice="The message at this place is lost or damaged. rmqstore verify lists all damage; "
        "a replica or a copy of the file may have it",
    )


def intact_records_behind(
    log: CommitLog, stop: int, newest: int | None, *, older: bool = False
) -> Iterator[SoundRun]:
    """The intact records behind `stop`, a log offset; `newest`: when the one before it was stored (ms).

    Records that are older than the one before them, and what follows, are left from before the log
    was cut: they are given with `older` alone.
    """
    if not _has_more(log, stop):
        return
    for piece in walk(log, stop, log.chain.stop):
        if isinstance(piece, SoundRun):
            stored = piece.headers.store_timestamp
            if newest is not None and int(stored[0]) < newest and not older:
                return
            yield piece
            newest = int(stored[-1])


def _has_more(log: CommitLog, stop: int) -> bool:
    """Whether anything but zeros is at `stop`, soon after it, or at the start of a later file."""
    file = log.last_file()
    if file is None or stop < file.base:
        return file is not None
    end = log.chain.segment_end(file)
    read = min(_ZEROS_READ, log.chain.cost.spare)
    return stop < end and not log.chain.is_zero(stop, min(end, log.chain.stored_from(stop) + read))


def end_of_page_rest(log: CommitLog, end: int) -> int | None:
    """Where the bytes after the end of a log stop, if they may be the rest of a page; None if not.

    With writeWithoutMmap, release 5.5.0 writes from a shared buffer up to the end of a page of the file
    (DefaultMappedFile#appendMessagesInner). What an earlier, longer record left in it follows the record.

    They are not if a record begins there, with its magic and its own offset, or if bytes follow the
    page. A whole record of another place is a ghost, which has its own rules. Zeros at their front
    are what a lost write looks like too: then the log must have the bytes before, for the buffer held
    them once. Whether a record was there, only the queues and the checkpoint show.
    """
    segment = log.chain.segment_at(end)
    if segment is None:
        return None
    stop = log.chain.segment_end(segment)
    page_end = min(segment.base + ((end - segment.base) // _PAGE + 1) * _PAGE, stop)
    rest = log.chain.read(end, page_end)
    used = rest.nonzero()[0]
    if not len(used) or _is_begun(rest[:_HEAD].tobytes(), end):
        return None
    piece = piece_at(log, segment, end)
    if isinstance(piece, RecordOrGap) and piece.gap is Gap.GHOST:
        return None
    if page_end < stop and not log.chain.is_zero(page_end, stop):
        return None
    raw = rest[: int(used[-1]) + 1].tobytes()
    if not any(raw[:_WORD]):
        with log.chain.window(max(segment.base, end - _SEARCHED), end) as before:
            if raw not in before.bytes.tobytes():
                return None
    return end + len(raw)


def _is_begun(head: bytes, at: int) -> bool:
    magic, place = head[_MAGIC], head[_PLACE]
    known = int.from_bytes(magic, "big") in (MAGIC_V1, MAGIC_V2)
    # A place that is cut off by the page, or not written yet, does not say that it is another record.
    return known and (place == at.to_bytes(8, "big") or len(head) < _HEAD or not any(place))
