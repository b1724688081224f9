"""Finds record starts around a log offset at which possibly none is, or behind the log's seeming end.

What follows the end may also be the rest of a page. With writeWithoutMmap, release 5.5.0 writes from a
shared buffer up to the end of a page of the file (DefaultMappedFile#appendMessagesInner). What an earlier,
longer record left in the buffer follows the record then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_or_gap import Extent, SoundRun, gap_at
from rmq_store.commitlog.walk import walk
from rmq_store.errors import CorruptRecordError, LogOffset, MissingFileError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import MAGIC_V1, MAGIC_V2
from rmq_store.format.record import NO_RECORD, Gap, Record

_LOOK_BACK = 16 << 20  # how far before an offset a walk starts, to reach it record by record


@dataclass(slots=True)
class _Known:
    """What searches in one log found, because they take long and may be repeated."""

    starts: dict[int, int] = field(default_factory=dict)  # the first record at or after an offset
    damage: tuple[int, int] = (0, 0)  # the longest range without records


_known: WeakKeyDictionary[CommitLog, _Known] = WeakKeyDictionary()


def next_start(log: CommitLog, segment: SegmentFile, offset: int) -> tuple[int, int | None]:
    """The first log offset at or after `offset`, within one file, where a record or a gap starts.

    Of a record with a frame it is where the frame starts, which may be before `offset`.

    Every caller gets the same result: the walk starts well before `offset` and goes record by
    record, because bytes inside a body may look like a record. Without a record in the rest of the
    file, returns its end. Second value: the start of the record that contains `offset`, according
    to its head; None without one.
    """
    end = log.chain.segment_end(segment)
    at = segment.base
    if offset - at > _LOOK_BACK:
        found = log.next_record(segment, offset - _LOOK_BACK, end)
        at = end if found is None else found
        if at > offset:
            _note_damage(log, offset - _LOOK_BACK, at)
            return at, None
    around: int | None = None
    # The record at an offset begins before it, with its frame.
    for piece in walk(log, at, offset - log.frame_at(at), check_crc=False):
        at, around = piece.stop, piece.last if isinstance(piece, SoundRun) else None
        if isinstance(piece, Extent) and piece.gap is Gap.DAMAGED:
            _note_damage(log, piece.start, piece.stop)
    return at, around if at > offset else None


def walk_to_record(log: CommitLog, cut: int, log_end: int) -> int:
    """The start of the first record at or after `cut`. Every caller gets the same answer."""
    segment = log.chain.segment_at(cut)
    if segment is None:
        return next((s.base for s in log.chain.segments_from(cut)), log_end)
    known = _known.setdefault(log, _Known()).starts
    found = known.get(cut)
    if found is None:
        found = next_start(log, segment, cut)[0]
        if found <= log_end:  # behind it a broker may still write
            known[cut] = found
    return found


def _note_damage(log: CommitLog, start: int, stop: int) -> None:
    known = _known.setdefault(log, _Known())
    first, behind = known.damage
    if stop - start > behind - first:
        known.damage = (start, stop)


def record_or_damage(log: CommitLog, log_end: int, offset: int) -> Record | StoreError | None:
    """The record at a log offset; if it cannot be read, the error of the damage there, None without any."""
    try:
        return log.record_at(offset)
    except (CorruptRecordError, MissingFileError) as error:
        return not_a_record(log, log_end, offset, error)


def not_a_record(log: CommitLog, log_end: int, offset: int, why: StoreError) -> StoreError | None:
    """The error for a log offset that should be a record and cannot be read (`why`).

    None if no record can begin there: outside the log, inside a sound record, or in filler. If the
    head of the record is gone, the error shows the bytes there.
    """
    if not log.start <= offset < log_end:
        return None
    segment = log.chain.segment_at(offset)
    if segment is None or log.is_record(offset):
        return why
    first, behind = _known.setdefault(log, _Known()).damage
    found: str | None = None
    if not first <= offset < behind:
        _, around = next_start(log, segment, offset)
        if around is not None and log.intact_at(around) is not None:
            return None
        gap = gap_at(log, segment, log.front(offset))
        if gap is None or gap.gap is Gap.FILLER:
            return None
        ghost = gap.gap is Gap.GHOST
        found = "a copy of a record from another place" if ghost else gap.reason
    if why.expected is not None:
        found = why.reason.partition(NO_RECORD)[2]
    front = log.chain.read(offset, min(offset + _SHOWN, log.chain.segment_end(segment))).tobytes()
    return CorruptRecordError(
        segment.path,
        offset=LogOffset(offset),
        reason="the bytes at this offset of the log are not a record"
        + (f" ({found})" if found else ""),
        expected=why.expected or "the start of a record",
        actual=why.actual or f"bytes {front.hex()}",
        advice="The message at this place is lost or damaged. rmqstore verify lists all damage; "
        "a replica or a copy of the file may have it",
    )


_SHOWN = 8  # bytes: size and magic of a record


# Stored zeros at the log's end that are read in search of a record behind them: pages that a crash
# of the machine lost. A broker may fill a whole file with zeros in advance.
_ZEROS_READ = 64 << 20


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


_PAGE = 4096
_WORD = 4  # bytes of a record's size, which are never all zero
_SEARCHED = 64 << 20
_HEAD = 36  # bytes of a record up to its physicalOffset
_MAGIC, _PLACE = slice(4, 8), slice(28, 36)


def page_rest(log: CommitLog, end: int) -> int | None:
    """Where the bytes after the end of a log stop, if they may be such a rest; None if not.

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
    gap = gap_at(log, segment, end)
    if gap is not None and gap.gap is Gap.GHOST:
        return None
    if page_end < stop and not log.chain.is_zero(page_end, stop):
        return None
    found = rest[: int(used[-1]) + 1].tobytes()
    if not any(found[:_WORD]):
        with log.chain.window(max(segment.base, end - _SEARCHED), end) as before:
            if found not in before.bytes.tobytes():
                return None
    return end + len(found)


def _is_begun(head: bytes, at: int) -> bool:
    magic, place = head[_MAGIC], head[_PLACE]
    known = int.from_bytes(magic, "big") in (MAGIC_V1, MAGIC_V2)
    # A place that is cut off by the page, or not written yet, does not say that it is another record.
    return known and (place == at.to_bytes(8, "big") or len(head) < _HEAD or not any(place))
