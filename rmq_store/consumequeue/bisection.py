"""Bisection over values some of which cannot be known: of damaged entries, of records that are gone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

_LOOKED_AT_ONE_BY_ONE = 1_000

ValueAt = Callable[[int], int | None]
"""The value of a number; None where it cannot be known."""


class Boundary(NamedTuple):
    """Where the values of [low, high) reach a point: known ones before `first` do not, those from
    `behind` on do, and between the two none is known."""

    first: int
    behind: int


def find_boundary(
    low: int, high: int, value_at: ValueAt, reached: Callable[[int], bool]
) -> Boundary:
    """Where in [low, high) the values begin for which `reached` holds; known ones ascend.

    What is not known tells nothing, so the search looks at the nearest that is: to take it for a
    low one would lose all between the boundary and it. Where very many are not known some between
    the two may be, of either kind.
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


def _narrowed(found: Boundary, value_at: ValueAt, reached: Callable[[int], bool]) -> Boundary:
    """Without the single known values between, which doubling steps have passed over."""
    first, behind = found
    if behind - first > _LOOKED_AT_ONE_BY_ONE:
        return found
    for offset in range(first, behind):
        value = value_at(offset)
        if value is not None and reached(value):
            return Boundary(first, offset)
        if value is not None:
            first = offset + 1
    return Boundary(first, behind)


def _nearest(start: int, stop: int, step: int, value_at: ValueAt) -> tuple[int, int] | None:
    """The first number from `start` on whose value is known, before `stop`, and that; else None.

    Steps double, and the last one is bisected: where values are not known, as a rule a stretch of
    the log is gone, with many thousand records in it.
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
    known = (probe, value)
    while abs(known[0] - dark) > 1:
        probe = (known[0] + dark) // 2
        value = value_at(probe)
        if value is None:
            dark = probe
        else:
            known = (probe, value)
    return known


def bisect_first(start: int, stop: int, test: Callable[[int], bool]) -> int:
    """The first number in [start, stop) that passes `test`; `stop` if none does.

    All numbers after the first one that passes must pass too.
    """
    return start + bisect_left(range(start, stop), True, key=test)


def recheck_neighbours(found: int, low: int, high: int, value_at: ValueAt, wanted: int) -> int:
    """What a plain bisection in [low, high) found for `wanted`, or better where a value misled it.

    Values ascend, but for damaged ones. One that the bisection believed is right beside what it
    found, since all on the other side of it are as they should be. `value_at` gives None for
    numbers that are not there; it is asked for some outside of the range as well.
    """
    around = [value_at(number) for number in range(max(low, found - 2), min(high, found + 2))]
    known = [value for value in around if value is not None]
    if len(known) == len(around) and all(a <= b for a, b in pairwise(known)):
        return found

    def in_order(number: int) -> int | None:
        value = value_at(number)
        if value is None:
            return None
        before = [value_at(one) for one in range(number - _NEIGHBOURS, number)]
        behind = [value_at(one) for one in range(number + 1, number + 1 + _NEIGHBOURS)]
        return value if _fits(value, before, behind) else None

    return find_boundary(low, high, in_order, lambda value: value >= wanted).behind


_NEIGHBOURS = 3  # on each side


def _fits(value: int, before: Sequence[int | None], behind: Sequence[int | None]) -> bool:
    """Whether no more neighbours ascend without the value than with it."""
    left = [one for one in before if one is not None]
    right = [one for one in behind if one is not None]
    with_it = [one for one in left if one <= value], [one for one in right if one >= value]
    return 1 + sum(map(_most_ascending, with_it)) >= _most_ascending([*left, *right])


def _most_ascending(values: Sequence[int]) -> int:
    """The length of the longest subsequence that does not descend."""
    lengths: list[int] = []
    for at, value in enumerate(values):
        before = (lengths[one] for one in range(at) if values[one] <= value)
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)
