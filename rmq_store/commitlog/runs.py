"""From record to record: the positions of a run of records in one window of the log.

Each record says how long it is, so a run is a chain that must be followed. `follow_one` does it step
by step; `follow` sets out from many places at once and joins the pieces, which gives the same run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, RECORD_HEAD

# total_size, magic, then body_crc, queue_id, flag and queue_offset passed over, physical_offset.
_FRONT = struct.Struct(">iI20xq")
_FRONT_DTYPE = np.dtype([("total", ">i4"), ("magic", ">u4"), ("x", "V20"), ("physical", ">i8")])
assert _FRONT.size == _FRONT_DTYPE.itemsize
assert RECORD_HEAD.fields is not None
assert RECORD_HEAD.fields["physical_offset"][1] == 28

MAGIC_FRONT = MAGIC_V1.to_bytes(4, "big")[:3]  # what both magics begin with
_MAGIC_AT = 4

# Setting out from many places pays off from here on; below it stepping is quicker.
_MANY_FROM = 4 << 20
_BYTES_A_LANE = 128 << 10
_MOST_LANES = 1024
_PROBE = 64 << 10
_FIRST_PIECE = 512
_LARGEST_PIECE = 16 << 20
_SEARCH = 8 << 10  # how far behind its mark a lane looks for a record to set out from


@dataclass(frozen=True, slots=True)
class Run:
    """Records that follow one another: where each starts in the window, and where the run stops."""

    at: Ints
    stop: int


def follow_one(window: Bytes, base: int, start: int, stop: int) -> Run:
    """The run of records from `start` on, up to `stop` or the first that is none.

    A record counts by its magic, a possible size, and saying that it stands where it does.
    """
    view = window.data
    last = len(window) - _FRONT.size
    found: list[int] = []
    at = start
    unpack = _FRONT.unpack_from
    while at < stop and at <= last:
        total, magic, physical = unpack(view, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        if physical != base + at or total < MIN_RECORD_SIZE or at + total > len(window):
            break
        found.append(at)
        at += total
    return Run(np.array(found, dtype=np.int64), at)


def follow(window: Bytes, base: int, start: int, stop: int) -> Run:
    """As `follow_one`, in lockstep along many lanes where the range is long."""
    # The end of the log, in a file made far larger, is found by stepping.
    first = follow_one(window, base, start, min(stop, start + _PROBE))
    if first.stop < min(stop, start + _PROBE):
        return first
    pieces: list[Ints] = [first.at]
    at = first.stop
    while stop - at >= _MANY_FROM:
        run = _follow_lanes(window, base, at, stop)
        pieces.append(run.at)
        # Where the lanes did not join up to `stop`, the run may have ended or a lane set out from
        # the inside of a body: step over that place, then go on.
        if run.stop >= stop or not len(run.at):
            at = run.stop
            break
        bridge = follow_one(window, base, run.stop, min(stop, run.stop + _SEARCH))
        pieces.append(bridge.at)
        at = bridge.stop
        if not len(bridge.at):
            break
    rest = follow_one(window, base, at, stop)
    return Run(np.concatenate([*pieces, rest.at]), rest.stop)


def _follow_lanes(window: Bytes, base: int, start: int, stop: int) -> Run:
    starts = _lane_starts(window, base, start, stop)
    goals = np.append(starts[1:], stop)
    lanes = np.arange(len(starts))
    at = starts.copy()
    ends = starts.copy()
    last = len(window) - _FRONT.size
    fronts = np.ndarray((last + 1,), dtype=_FRONT_DTYPE, buffer=window, strides=(1,))
    found: list[Ints] = []
    while len(lanes):
        front = fronts[at]
        total = front["total"].astype(np.int64)
        magic = front["magic"]
        good = (magic == MAGIC_V1) | (magic == MAGIC_V2)
        good &= (front["physical"] == at + base) & (total >= MIN_RECORD_SIZE)
        good &= at + total <= len(window)
        found.append(at[good])
        lanes, at = lanes[good], at[good] + total[good]
        ends[lanes] = at
        going = (at < goals[lanes]) & (at <= last)
        lanes, at = lanes[going], at[going]
    joined = np.flatnonzero(ends != goals)
    end = int(ends[joined[0]]) if len(joined) else int(ends[-1])
    positions = np.sort(np.concatenate(found))
    return Run(positions[: np.searchsorted(positions, end)], end)


def _lane_starts(window: Bytes, base: int, start: int, stop: int) -> Ints:
    """`start`, and records found near marks spread evenly behind it, in ascending order."""
    count = min(_MOST_LANES, (stop - start) // _BYTES_A_LANE)
    marks = np.linspace(start, stop, count, endpoint=False, dtype=np.int64)[1:]
    starts = [start]
    for mark in marks.tolist():
        found = next_record(window, base, mark, min(mark + _SEARCH, stop))
        if found is not None and found > starts[-1]:
            starts.append(found)
    return np.array(starts, dtype=np.int64)


def next_record(
    window: Bytes,
    base: int,
    start: int,
    stop: int,
    stored_from: Callable[[int], int] | None = None,
) -> int | None:
    """The first position in [start, stop) where a record seems to stand that says it stands there.

    `stored_from` gives the first position at or behind another that is not known to be zeros.
    """
    piece = (
        _SEARCH  # what is looked for is mostly near; pieces overlap by what a record begins with
    )
    while start < stop:
        if stored_from is not None and (start := stored_from(start)) >= stop:
            return None
        upto = min(start + piece, stop)
        found = _next_in_piece(window, base, start, upto)
        if found is not None:
            return found
        start, piece = upto, min(2 * piece, _LARGEST_PIECE)
    return None


def _next_in_piece(window: Bytes, base: int, start: int, stop: int) -> int | None:
    raw = window[start : min(stop + _FRONT.size, len(window))].tobytes()
    at = raw.find(MAGIC_FRONT, _MAGIC_AT)
    while at >= 0:
        place = start + at - _MAGIC_AT
        if place >= stop:
            return None
        if len(follow_one(window, base, place, place + 1).at):
            return place
        at = raw.find(MAGIC_FRONT, at + 1)
    return None
