"""From selected queue ranges to slices of the log of about equal size: arithmetic on plain values.

A partition is a stretch of the CommitLog and the part of every selected queue that points into it.
One partition a queue would read every page of a shared log once for each queue; neighbouring slices
read it once. Only the cut positions are planned ahead. Which queue offsets lie between two cuts is
found where the slice is read (`pieces_of`), so planning costs a few samples a queue and grows
neither with the messages nor with queues times slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmq_store.consumequeue import QueueId

SAMPLES_IN_ALL = 20_000
SAMPLES_PER_QUEUE = 64


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """Neighbouring entries of one queue."""

    queue: QueueId
    start: int  # queue offset, included
    stop: int  # queue offset, excluded

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A stretch of the CommitLog between two cuts; None is the end of what is selected."""

    start: int | None  # CommitLog offset, included
    stop: int | None  # CommitLog offset, excluded
    selected_bytes: int  # an estimate


class Stretch(NamedTuple):
    """So many selected bytes lie about evenly between two positions of the CommitLog."""

    start: int
    stop: int
    selected_bytes: float


class Entry(NamedTuple):
    """Where the message at a queue offset lies, and how much it takes."""

    log_offset: int  # CommitLog offset of its record, bytes
    size: float  # bytes; its share of the record where that holds several messages


EntryAt = Callable[[QueueId, int], Entry | None]
"""The entry at a queue offset; None where it leads to no record."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a range of a queue begins or ends: an offset, else a time, else the queue's own end."""

    offset: int | None = None  # queue offset; the one furthest in or out where out of range
    time_ms: int | None = None  # the first message stored then or later


OffsetByTime = Callable[[QueueId, int], int]
"""The first queue offset stored at or after a time (ms); the queue's max offset without one."""


def resolve(
    queue: QueueId, limits: tuple[int, int], start: Bound, stop: Bound, by_time: OffsetByTime
) -> QueueSlice:
    """The range of `queue` between two bounds, cut to its `limits` (min, max offset), half-open."""
    least, most = limits

    def position(bound: Bound, unbounded: int) -> int:
        if bound.offset is not None:
            asked = bound.offset
        elif bound.time_ms is not None:
            asked = by_time(queue, bound.time_ms)
        else:
            asked = unbounded
        return min(max(asked, least), most)

    first = position(start, least)
    return QueueSlice(queue, first, max(first, position(stop, most)))


def sample_offsets(part: QueueSlice, queues: int) -> list[int]:
    """Evenly spaced queue offsets of `part`, its first one included, where its size is sampled.

    `queues` is how many queues share the budget of samples.
    """
    most = max(1, min(SAMPLES_PER_QUEUE, SAMPLES_IN_ALL // max(1, queues)))
    count = min(most, len(part))
    return [part.start + len(part) * i // count for i in range(count)]


def stretches_of(part: QueueSlice, queues: int, entry_at: EntryAt) -> Iterator[Stretch]:
    """Where in the log the records of `part` lie, and how many bytes, from a few of its entries."""
    offsets = dict.fromkeys((*sample_offsets(part, queues), part.stop - 1)) if len(part) else ()
    found = [(offset, entry_at(part.queue, offset)) for offset in offsets]
    known = [(offset, entry) for offset, entry in found if entry is not None]
    for (offset, here), (end, there) in pairwise(known):
        low, high = sorted((here.log_offset, there.log_offset))
        size = (end - offset) * (here.size + there.size) / 2
        yield Stretch(low, max(high, low + 1), size)
    if known:
        last = known[-1][1]
        yield Stretch(last.log_offset, last.log_offset + max(1, round(last.size)), last.size)


def cut_log(stretches: Iterable[Stretch], target_bytes: int, min_slices: int = 1) -> list[LogSlice]:
    """Neighbouring slices of the log of about equal selected bytes, each about `target_bytes`.

    None for no stretches. The first and the last slice are open to the outside, so a record is in
    exactly one slice wherever it lies.
    """
    parts = np.array([tuple(s) for s in stretches], dtype=np.float64).reshape(-1, 3)
    if not len(parts):
        return []
    total = float(parts[:, 2].sum())
    count = max(min_slices, int(-(-total // target_bytes)), 1)
    cuts = _quantiles(parts, count)
    share = round(total / (len(cuts) + 1))
    edges: list[int | None] = [None, *cuts, None]
    return [LogSlice(a, b, share) for a, b in pairwise(edges)]


def _quantiles(parts: np.ndarray[tuple[int, int], np.dtype[np.float64]], count: int) -> list[int]:
    """The positions that cut the bytes in `count` equal shares, without repeats."""
    starts, stops, sizes = parts.T
    density = sizes / (stops - starts)
    # Bytes per position change where a stretch begins or ends; their running sum is linear between.
    positions = np.concatenate([starts, stops])
    changes = np.concatenate([density, -density])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    rates = np.cumsum(changes[order])[:-1]
    below = np.concatenate([[0.0], np.cumsum(rates * np.diff(positions))])
    wanted = below[-1] * np.arange(1, count) / count
    cuts = np.ceil(np.interp(wanted, np.maximum.accumulate(below), positions))
    inside = (cuts > positions[0]) & (cuts < positions[-1])
    return sorted({int(cut) for cut in cuts[inside]})


def plan_partitions(
    wanted: Sequence[QueueSlice],
    entry_at: EntryAt,
    target_bytes: int,
    min_slices: int = 1,
) -> list[LogSlice]:
    """Slices of the log that hold the selected entries; none where nothing is selected.

    `entry_at` gives the entry of a queue offset within the selected ranges.
    """
    parts = [part for part in wanted if len(part)]
    found = (s for part in parts for s in stretches_of(part, len(parts), entry_at))
    return cut_log(found, target_bytes, min_slices)


def pieces_of(
    wanted: Iterable[QueueSlice],
    piece: LogSlice,
    offset_at_log: Callable[[QueueId, int], int],
) -> list[QueueSlice]:
    """The part of every selected range whose records lie in `piece`; empty ones are left out.

    `offset_at_log` gives the first queue offset whose record lies at or behind a log position. As
    long as it answers alike each time, every selected entry is in exactly one of the neighbouring
    slices, even where a queue's log offsets are not in order.
    """
    pieces = []
    for part in wanted:
        start, stop = part.start, part.stop
        if piece.start is not None:
            start = min(max(start, offset_at_log(part.queue, piece.start)), part.stop)
        if piece.stop is not None:
            stop = max(min(stop, offset_at_log(part.queue, piece.stop)), start)
        if start < stop:
            pieces.append(QueueSlice(part.queue, start, stop))
    return pieces
