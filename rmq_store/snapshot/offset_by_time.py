"""offsetByTime: the queue offset for a point in time, by bisection over the records."""

from __future__ import annotations

from rmq_store.consumequeue.bisection import ValueAt, find_boundary
from rmq_store.errors import InvalidArgumentError, nearest

BOUNDARIES = ("LOWER", "UPPER")


def offset_by_time(
    low: int, high: int, timestamp: int, boundary: str, store_time_at: ValueAt
) -> int:
    """The offset for a time, within queue offsets [low, high).

    LOWER: the first one stored at `timestamp` (ms) or later, else `high`. UPPER: the last one
    stored at `timestamp` or earlier, else `low`. `store_time_at` returns None for an unreadable
    record; next to the boundary such records count as earlier. Gives the result of
    ConsumeQueue#binarySearchInQueueByTime wherever that one is exact.
    """
    if boundary not in BOUNDARIES:
        raise InvalidArgumentError(
            None,
            reason=f"unknown boundary {boundary!r}",
            advice=nearest(str(boundary), BOUNDARIES),
        )
    if low >= high:
        return high
    if boundary == "LOWER":
        return find_boundary(low, high, store_time_at, lambda time: time >= timestamp).behind
    return max(
        low, find_boundary(low, high, store_time_at, lambda time: time > timestamp).behind - 1
    )
