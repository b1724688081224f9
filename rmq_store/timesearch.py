"""offsetByTime: the queue offset that belongs to a point in time, by bisection over the records."""

from __future__ import annotations

from collections.abc import Callable

from rmq_store.consumequeue import bisect_first
from rmq_store.errors import InvalidArgumentError, nearest

BOUNDARIES = ("LOWER", "UPPER")

StoreTimeAt = Callable[[int], int | None]


def offset_by_time(
    low: int, high: int, timestamp: int, boundary: str, store_time_at: StoreTimeAt
) -> int:
    """Within queue offsets [low, high): LOWER is the first stored at `timestamp` (ms) or later, else
    `high`; UPPER the last stored at `timestamp` or earlier, else `low`.

    `store_time_at` gives None for an entry without a record; such count as earlier. Answers as
    ConsumeQueue#binarySearchInQueueByTime does where that is exact.
    """
    if boundary not in BOUNDARIES:
        raise InvalidArgumentError(
            None,
            reason=f"unknown boundary {boundary!r}",
            advice=nearest(str(boundary), BOUNDARIES),
        )
    if low >= high:
        return high

    def time_at(offset: int) -> int:
        time = store_time_at(offset)
        return -1 if time is None else time

    if boundary == "LOWER":
        return bisect_first(low, high, lambda offset: time_at(offset) >= timestamp)
    return max(low, bisect_first(low, high, lambda offset: time_at(offset) > timestamp) - 1)
