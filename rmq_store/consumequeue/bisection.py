"""Bisection that tolerates missing values: damaged entries, or records that are gone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rmq_store.errors import InvalidArgumentError, nearest

_LOOKED_AT_ONE_BY_ONE = 1_000

ValueAt = Callable[[int], int | None]
"""The value at a number; None if it is unknown."""
_NEIGHBOURS = 3  # on each side
BOUNDARIES = ("LOWER", "UPPER")


class Boundary(NamedTuple):
    """Where the values of [low, high) reach a point.

    Known values before `first` do not reach it. Values from `behind` on do. Between the two none is
    known.
    """

    first: int
    behind: int


def find_boundary(
    low: int, high: int, value_at: ValueAt, reached: Callable[[int], bool]
) -> Boundary:
    """Where in [low, high) `reached` becomes true; known values ascend.

    Unknown values are skipped; the search uses the nearest known one. Treating an unknown value as
    low would lose everything between the boundary and it. In a long unknown range, some values
    between `first` and `behind` may still be known, on either side of the boundary.
    """
    while low < high:
        middle = (low + high) // 2
        right = _nearest(middle, high, 1, value_at)
        if right is not None and not reached(right[1]):
            low = right[0] + 1
            continue
        behind = high if right is None else right[0]
        if behind == middle:
            high = middle
            continue
        left = _nearest(middle - 1, low - 1, -1, value_at)
        if left is None or not reached(left[1]):
            first = low if left is None else left[0] + 1
            return _narrowed(Boundary(first, behind), value_at, reached)
        high = left[0]
    return Boundary(low, low)


def _narrowed(boundary: Boundary, value_at: ValueAt, reached: Callable[[int], bool]) -> Boundary:
    """The boundary without single known values in it, which the doubling steps skipped."""
    first, behind = boundary
    if behind - first > _LOOKED_AT_ONE_BY_ONE:
        return boundary
    for offset in range(first, behind):
        value = value_at(offset)
        if value is not None and reached(value):
            return Boundary(first, offset)
        if value is not None:
            first = offset + 1
    return Boundary(first, behind)


def _nearest(start: int, stop: int, step: int, value_at: ValueAt) -> tuple[int, int] | None:
    """The first number from `start` on, before `stop`, with a known value, and the value; else None.

    Steps double, and the last step is bisected: unknown values usually form a long range, because a
    missing part of the log holds many thousand records.
    """
    value = value_at(start) if start != stop else None
    if value is not None or start == stop:
        return None if value is None else (start, value)
    dark, stride = start, step
    while True:
        probe = dark + stride
        if (probe - stop) * step >= 0:
            probe = stop - step
        if probe == dark:
            return None
        value = value_at(probe)
        if value is not None:
            break
        dark, stride = probe, stride * 2
    readable = (probe, value)
    while abs(readable[0] - dark) > 1:
        probe = (readable[0] + dark) // 2
        value = value_at(probe)
        if value is None:
            dark = probe
        else:
            readable = (probe, value)
    return readable


def bisect_first(start: int, stop: int, test: Callable[[int], bool]) -> int:
    """The first number in [start, stop) that passes `test`; `stop` if none does.

    All numbers after the first one that passes must pass too.
    """
    return start + bisect_left(range(start, stop), True, key=test)


def recheck_neighbours(position: int, low: int, high: int, value_at: ValueAt, wanted: int) -> int:
    """`position`, the result of a plain bisection for `wanted`, corrected if a wrong value misled it.

    Values ascend, except damaged ones. A wrong value that misled the bisection is next to its
    result, because all values on the other side are in order. `value_at` returns None for missing
    numbers, and may be called for some outside the range.
    """
    around = [value_at(number) for number in range(max(low, position - 2), min(high, position + 2))]
    known = [value for value in around if value is not None]
    if len(known) == len(around) and all(a <= b for a, b in pairwise(known)):
        return position

    def in_order(number: int) -> int | None:
        value = value_at(number)
        if value is None:
            return None
        before = [value_at(other) for other in range(number - _NEIGHBOURS, number)]
        behind = [value_at(other) for other in range(number + 1, number + 1 + _NEIGHBOURS)]
        return value if _fits(value, before, behind) else None

    return find_boundary(low, high, in_order, lambda value: value >= wanted).behind


def _fits(value: int, before: Sequence[int | None], behind: Sequence[int | None]) -> bool:
    """Whether an ascending sequence with the value is at least as long as the longest one without it."""
    left = [other for other in before if other is not None]
    right = [other for other in behind if other is not None]
    with_it = [x for x in left if x <= value], [x for x in right if x >= value]
    return 1 + sum(map(_most_ascending, with_it)) >= _most_ascending([*left, *right])


def _most_ascending(values: Sequence[int]) -> int:
    """The length of the longest subsequence that does not descend."""
    lengths: list[int] = []
    for at, value in enumerate(values):
        before = (lengths[i] for i in range(at) if values[i] <= value)
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


def longest_ascending(values: Sequence[int]) -> list[int]:
    """The positions of the longest ascending subsequence; of several, the one with the lowest end."""
    ends: list[int] = []  # by length: the lowest last value, and its position
    places: list[int] = []
    before: list[int] = []
    for position, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1], places[length : length + 1] = [value], [position]
        before.append(places[length - 1] if length else -1)
    chosen = []
    position = places[-1] if places else -1
    while position >= 0:
        chosen.append(position)
        position = before[position]
    return chosen[::-1]


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
            reason=f"unknown boundary {boundary!r}", advice=nearest(str(boundary), BOUNDARIES)
        )
    if low >= high:
        return high
    if boundary == "LOWER":
        return find_boundary(low, high, store_time_at, lambda time: time >= timestamp).behind
    return max(
        low, find_boundary(low, high, store_time_at, lambda time: time > timestamp).behind - 1
    )
