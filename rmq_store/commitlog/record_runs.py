"""The positions of a run of consecutive records in one window of the log.

Each record declares its length, so a run is a chain. `follow_one` follows it step by step. `follow`
starts at many places at once and joins the pieces, with the same result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rmq_store.format.array_types import Bytes, Ints, Mask
from rmq_store.format.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE, RECORD_HEAD

# total_size, magic, physical_offset; skips body_crc, queue_id, flag and queue_offset.
_FRONT = struct.Struct(">iI20xq")
_FRONT_DTYPE = np.dtype([("total", ">i4"), ("magic", ">u4"), ("x", "V20"), ("physical", ">i8")])
assert _FRONT.size == _FRONT_DTYPE.itemsize
assert RECORD_HEAD.fields is not None
assert RECORD_HEAD.fields["physical_offset"][1] == 28

MAGIC_FRONT = MAGIC_V1.to_bytes(4, "big")[:3]  # common to both magics
_MAGIC_AT = 4

# From this size on, starting at many places is faster than stepping.
_MANY_FROM = 4 << 20
_BYTES_A_LANE = 128 << 10
_MOST_LANES = 1024
_LANES_OF_STEPS = 2  # widths of the widest lane that the smallest records may fill in a pass
_PROBE = 64 << 10
_FIRST_PIECE = 512
_LARGEST_PIECE = 16 << 20
_SEARCH = 8 << 10  # how far after its mark a lane searches for its first record

StoredFrom = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records: the start of each in the window, and where the run stops."""

    at: Ints
    stop: int


def follow_one(window: Bytes, base: int, start: int, stop: int) -> RecordRun:
    """The run of records from `start` up to `stop`, or up to the first bytes that are not a record.

    A record counts if it has a magic, a possible size, and its physicalOffset equals its place.
    """
    view = window.data
    last = len(window) - _FRONT.size
    positions: list[int] = []
    at = start
    unpack = _FRONT.unpack_from
    while at < stop and at <= last:
        total, magic, physical = unpack(view, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        if physical != base + at or total < MIN_RECORD_SIZE or at + total > len(window):
            break
        positions.append(at)
        at += total
    return RecordRun(np.array(positions, dtype=np.int64), at)


def follow(
    window: Bytes, base: int, start: int, stop: int, stored_from: StoredFrom | None = None
) -> RecordRun:
    """As `follow_one`; for a long range, follows many lanes in parallel.

    `stored_from` gives the first position at or after another that is not known to be zeros. Lanes
    start only there: the log often ends early in its file, and looks into the rest would fill memory.
    """
    # Step first: the log often ends early in its preallocated file.
    first = follow_one(window, base, start, min(stop, start + _PROBE))
    if first.stop < min(stop, start + _PROBE):
        return first
    pieces: list[Ints] = [first.at]
    at = first.stop
    while stop - at >= _MANY_FROM:
        run = _follow_lanes(window, base, at, stop, stored_from)
        pieces.append(run.at)
        # If the lanes did not join up to `stop`, the run ended or a lane started inside a body:
        # step over that place, then continue.
        if run.stop >= stop or not len(run.at):
            at = run.stop
            break
        bridge = follow_one(window, base, run.stop, min(stop, run.stop + _SEARCH))
        pieces.append(bridge.at)
        at = bridge.stop
        if not len(bridge.at):
            break
    rest = follow_one(window, base, at, stop)
    return RecordRun(np.concatenate([*pieces, rest.at]), rest.stop)


def _follow_lanes(
    window: Bytes, base: int, start: int, stop: int, stored_from: StoredFrom | None
) -> RecordRun:
    starts = _lane_starts(window, base, start, stop, stored_from)
    goals = np.append(starts[1:], stop)
    at, lanes, ends = _steps(window, starts, goals)
    places = np.sort(at)  # memory is read faster in order
    if np.array_equal(ends[:-1], goals[:-1]) and _are_records(window, base, places).all():
        return RecordRun(places, int(ends[-1]))
    wrong = np.flatnonzero(~_are_records(window, base, at))
    if len(wrong):
        first = np.full(len(starts), len(window))
        np.minimum.at(first, lanes[wrong], at[wrong])
        ends = np.where(first < len(window), first, ends)
    joined = np.flatnonzero(ends != goals)
    upto = int(joined[0]) if len(joined) else len(starts) - 1
    end = int(ends[upto])
    # The next lane may start inside a body, before the end of a lane that does not join it.
    return RecordRun(np.sort(at[(at < end) & (lanes <= upto)]), end)


def _steps(window: Bytes, starts: Ints, goals: Ints) -> tuple[Ints, Ints, Ints]:
    """The positions that all lanes reach before their goals, the lane of each, and the lanes' ends.

    Reads only the sizes, so that a step is cheap. What a lane reaches after a position without a
    record is chance, and is bounded by _LANES_OF_STEPS.
    """
    sizes = np.ndarray((len(window) - _FRONT.size + 1,), ">i4", window, strides=(1,))
    limits = np.minimum(goals, len(sizes))
    ends = starts.copy()
    lanes = np.flatnonzero(starts < limits)
    at, limits = starts[lanes], limits[lanes]
    found: list[Ints] = []
    of_lane: list[Ints] = []
    widest = int((goals - starts).max())
    for _ in range(_LANES_OF_STEPS * widest // MIN_RECORD_SIZE + 1):
        found.append(at)
        of_lane.append(lanes)
        size = sizes[at]
        at = at + size
        going = (at < limits) & (size >= MIN_RECORD_SIZE)
        if not going.all():
            ends[lanes] = at
            at, lanes, limits = at[going], lanes[going], limits[going]
            if not len(lanes):
                break
    ends[lanes] = at
    return np.concatenate(found), np.concatenate(of_lane), ends


def _are_records(window: Bytes, base: int, at: Ints) -> Mask:
    # As bytes, because numpy copies the fields of a structure one by one.
    every = np.ndarray((len(window) - _FRONT.size + 1,), f"V{_FRONT.size}", window, strides=(1,))
    fronts = every[at].view(_FRONT_DTYPE)
    total, magic = fronts["total"].astype(np.int64), fronts["magic"]
    good: Mask = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    good &= (fronts["physical"] == at + base) & (total >= MIN_RECORD_SIZE)
    good &= at + total <= len(window)
    return good


def _lane_starts(
    window: Bytes, base: int, start: int, stop: int, stored_from: StoredFrom | None
) -> Ints:
    """`start`, and records near evenly spread marks after it, in ascending order."""
    count = min(_MOST_LANES, (stop - start) // _BYTES_A_LANE)
    marks = np.linspace(start, stop, count, endpoint=False, dtype=np.int64)[1:]
    starts, stored = [start], start
    for mark in marks.tolist():
        if stored_from is not None and stored <= mark:
            stored = stored_from(mark)
        if stored > mark:
            continue
        found = next_record(window, base, mark, min(mark + _SEARCH, stop))
        if found is not None and found > starts[-1]:
            starts.append(found)
    return np.array(starts, dtype=np.int64)


def next_record(
    window: Bytes,
    base: int,
    start: int,
    stop: int,
    stored_from: StoredFrom | None = None,
) -> int | None:
    """The first position in [start, stop) where a record with a matching physicalOffset seems to start.

    `stored_from` gives the first position at or after another that is not known to be zeros.
    """
    piece = _SEARCH  # most records are near; pieces overlap by the head of a record
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
