"""Where records start around a log offset at which, perhaps, none does."""

from __future__ import annotations

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.runs import follow, next_record
from rmq_store.errors import CorruptRecordError, MissingFileError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.record import Gap

_LARGEST_RECORD = 8 << 20  # bytes; twice what a broker takes by default
_LOOK_BACK = (
    16 << 20
)  # how far before an offset a walk sets out, so that it comes to it record by record


def next_start(log: CommitLog, segment: SegmentFile, offset: int) -> tuple[int, int | None]:
    """The first log offset at or behind `offset`, of one file, where a record or a gap starts.

    Found alike by whoever asks: a walk sets out well before and comes to it record by record, since
    bytes inside a body may look like a record. Without a record in the rest of the file, its end.
    Also gives where the record starts that `offset` lies inside, by its head; None without one.
    """
    base, size = segment.base, log.chain.file_size
    goal = offset - base
    if goal == 0:
        return offset, None
    low, high = max(0, goal - _LOOK_BACK - _LARGEST_RECORD), min(size, goal + _LARGEST_RECORD)
    log.chain.need([base + low], [base + high])
    window = log.window_of(segment)
    at: int | None = 0
    if goal > _LOOK_BACK:
        at = next_record(window, base, goal - _LOOK_BACK, size)
        if at is None or at > goal:
            _note_damage(log, base + goal - _LOOK_BACK, base + (size if at is None else at))
    while at is not None and at < goal:
        run = follow(window, base, at, goal)
        at = run.stop
        if at > goal:
            return min(at, size) + base, int(run.at[-1]) + base
        if at == goal:
            break
        gap = next(log.extents(at + base))
        if gap.gap is Gap.DAMAGED:
            _note_damage(log, gap.start, gap.stop)
        at = gap.stop - base
    return (log.chain.segment_end(segment) if at is None else min(at, size) + base), None


def _note_damage(log: CommitLog, start: int, stop: int) -> None:
    """Many places may lead into one stretch, and to walk to each takes long: the longest is kept."""
    first, behind = log.known_damage
    if stop - start > behind - first:
        log.known_damage = (start, stop)


def not_a_record(log: CommitLog, log_end: int, offset: int, why: StoreError) -> StoreError | None:
    """What is wrong at a log offset where a record is said to begin and cannot be read: `why`.

    None where none can have begun: outside of the log, inside a sound record, or in filler. Where
    the head of the record is gone the error tells what stands there instead.
    """
    if not log.start <= offset < log_end:
        return None
    segment = log.chain.segment_at(offset)
    if segment is None or log.is_record(offset):
        return why
    first, behind = log.known_damage
    found: str | None = None
    if not first <= offset < behind:
        _, around = next_start(log, segment, offset)
        if around is not None and _is_sound(log, around):
            return None
        extent = log.extent_at(segment, offset)
        if extent.gap is Gap.FILLER:
            return None
        ghost = extent.gap is Gap.GHOST
        found = "the copy of a record of another place" if ghost else extent.reason
    front = log.chain.window(offset, min(offset + _SHOWN, log.chain.segment_end(segment))).tobytes()
    return CorruptRecordError(
        segment.path,
        offset=offset,
        reason="the bytes at this offset of the log are no record"
        + (f" ({found})" if found and why.expected is None else ""),
        expected=why.expected or "a record that begins here",
        actual=why.actual or f"bytes {front.hex()}",
        advice="A message that was here is lost or damaged. rmqstore verify lists all damage; "
        "a replica or a copy of the file may have it",
    )


_SHOWN = 8  # bytes: the size and the magic that a record begins with


def _is_sound(log: CommitLog, offset: int) -> bool:
    try:
        log.record_at(offset)
    except (CorruptRecordError, MissingFileError):
        return False
    return True
