"""Bytes of a buffer that a broker left after its last record.

With writeWithoutMmap, release 5.5.0 writes from a shared buffer up to the end of a page of the file
(DefaultMappedFile#appendMessagesInner). What an earlier, longer record left in the buffer follows the
record then.
"""

from __future__ import annotations

from rmq_store.commitlog.log import CommitLog
from rmq_store.format.layout import MAGIC_V1, MAGIC_V2
from rmq_store.format.record import Gap

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
    rest = log.chain.window(end, page_end)
    used = rest.nonzero()[0]
    if not len(used) or _is_begun(rest[:_HEAD].tobytes(), end):
        return None
    if log.extent_at(segment, end).gap is Gap.GHOST:
        return None
    if page_end < stop and not log.chain.is_zero(page_end, stop):
        return None
    found = rest[: int(used[-1]) + 1].tobytes()
    if not any(found[:_WORD]):
        before = log.chain.window(max(segment.base, end - _SEARCHED), end)
        if found not in before.tobytes():
            return None
    return end + len(found)


def _is_begun(head: bytes, at: int) -> bool:
    magic, place = head[_MAGIC], head[_PLACE]
    known = int.from_bytes(magic, "big") in (MAGIC_V1, MAGIC_V2)
    # A place that is cut off by the page, or not written yet, does not say that it is another record.
    return known and (place == at.to_bytes(8, "big") or len(head) < _HEAD or not any(place))
