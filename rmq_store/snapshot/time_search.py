"""offsetByTime: the queue offset that belongs to a point in time, by bisection over the records."""

from __future__ import annotations

from rmq_store.consumequeue.bisection import ValueAt, find_boundary
from rmq_store.errors import InvalidArgumentError, nearest

BOUNDARIES = ("LOWER", "UPPER")


def offset_by_time(
    low: int, high: int, timestamp: int, boundary: str, store_time_at: ValueAt
) -> int:
    """Within queue offsets [low, high): LOWER is the first stored at `timestamp` (ms) or later, else
    `high`; UPPER the last stored at `timestamp` or earlier, else `low`.

    `store_time_at` gives None for a record that cannot be read; such count as earlier where they
    are right at the boundary. Answers as ConsumeQueue#binarySearchInQueueByTime does where that is
    exact.
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
