"""offsetByTime: the queue offset that belongs to a point in time, by bisection over the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rmq_store.errors import InvalidArgumentError, nearest

BOUNDARIES = ("LOWER", "UPPER")

_LOOKED_AT_ONE_BY_ONE = 1_000

StoreTimeAt = Callable[[int], int | None]
"""When the message at a queue offset was stored (ms); None where its record cannot be read."""


class Boundary(NamedTuple):
    """Where times of [low, high) reach a point: readable records before `first` are earlier, those
    from `behind` on are not, and none between the two can be read."""

    first: int
    behind: int


def find_boundary(
    low: int, high: int, store_time_at: StoreTimeAt, reached: Callable[[int], bool]
) -> Boundary:
    """Where in [low, high) store times begin for which `reached` holds.

    A record that cannot be read tells nothing, so the search looks at the nearest ones that can:
    to take it for an early one would lose all between the boundary and it. Where very many cannot
    be read some between the two may be, of either kind: no record is lost for that.
    """
    while low < high:
        middle = (low + high) // 2
        right = _nearest(middle, high, 1, store_time_at)
        if right is not None and not reached(right[1]):
            low = right[0] + 1
            continue
        behind = high if right is None else right[0]
        if behind == middle:
            high = middle
            continue
        left = _nearest(middle - 1, low - 1, -1, store_time_at)
        if left is None or not reached(left[1]):
            first = low if left is None else left[0] + 1
            return _narrowed(Boundary(first, behind), store_time_at, reached)
        high = left[0]
    return Boundary(low, low)


def _narrowed(
    found: Boundary, store_time_at: StoreTimeAt, reached: Callable[[int], bool]
) -> Boundary:
    """Without the single records between that can be read, which doubling steps have passed over."""
    first, behind = found
    if behind - first > _LOOKED_AT_ONE_BY_ONE:
        return found
    for offset in range(first, behind):
        time = store_time_at(offset)
        if time is not None and reached(time):
            return Boundary(first, offset)
        if time is not None:
            first = offset + 1
    return Boundary(first, behind)


def _nearest(
    start: int, stop: int, step: int, store_time_at: StoreTimeAt
) -> tuple[int, int] | None:
    """The first record from `start` on that can be read, before `stop`, with its time; else None.

    Steps double, and the last one is bisected: where records cannot be read, as a rule a stretch of
    the log is gone, with many thousand records in it.
    """
    time = store_time_at(start) if start != stop else None
    if time is not None or start == stop:
        return None if time is None else (start, time)
    dark, stride = start, step
    while True:
        probe = dark + stride
        if (probe - stop) * step >= 0:
            probe = stop - step
        if probe == dark:
            return None
        time = store_time_at(probe)
        if time is not None:
            break
        dark, stride = probe, stride * 2
    light = (probe, time)
    while abs(light[0] - dark) > 1:
        probe = (light[0] + dark) // 2
        time = store_time_at(probe)
        if time is None:
            dark = probe
        else:
            light = (probe, time)
    return light


def offset_by_time(
    low: int, high: int, timestamp: int, boundary: str, store_time_at: StoreTimeAt
) -> int:
    """Within queue offsets [low, high): LOWER is the first stored at `timestamp` (ms) or later, else
    `high`; UPPER the last stored at `timestamp` or earlier, else `low`.

    Records at the boundary that cannot be read count as earlier. Answers as
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
    if boundary == "LOWER":
        return find_boundary(low, high, store_time_at, lambda time: time >= timestamp).behind
    return max(
        low, find_boundary(low, high, store_time_at, lambda time: time > timestamp).behind - 1
    )
