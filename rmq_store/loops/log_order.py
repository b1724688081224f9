"""Rows of many queues in the order of the log.

The log offsets of records are spread evenly enough to be counted into as many buckets as there are rows:
most have one or two. That takes less than half the time of a sort.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

_CROWD = cython.declare(cython.int, 16)  # rows of a bucket, which are put in order one by one


def order(places: bits.Longs, counts: bits.IntRoom, rows: bits.LongRoom) -> int:
    """Write the rows to `rows` in ascending order of `places`; those of one place stay in their order.

    `counts` has zeros, a few at least: the buckets, and one more. Returns 1; 0 if the places crowd in few
    buckets, so that a sort is faster: `rows` is of no use then.
    """
    count: bits.Place = places.shape[0]
    row: bits.Place
    bucket: bits.Place
    shift: cython.int = 0
    most: cython.int = 0
    low: bits.Long
    high: bits.Long
    if count == 0:
        return 1
    with cython.nogil:
        low = high = places[0]
        for row in range(count):
            low = places[row] if places[row] < low else low
            high = places[row] if places[row] > high else high
        # Log offsets that a damaged entry has may be as far apart as 64 bits allow.
        if low < 0 or counts.shape[0] < 2:
            most = _CROWD + 1
        else:
            while (high - low) >> shift >= counts.shape[0] - 1:
                shift += 1
            for row in range(count):
                bucket = ((places[row] - low) >> shift) + 1
                counts[bucket] += 1
                most = counts[bucket] if counts[bucket] > most else most
        if most <= _CROWD:
            for bucket in range(1, counts.shape[0]):
                counts[bucket] += counts[bucket - 1]
            for row in range(count):
                bucket = (places[row] - low) >> shift
                rows[counts[bucket]] = row
                counts[bucket] += 1
            _put_in_order(places, rows)
    return most <= _CROWD


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _put_in_order(places: bits.Longs, rows: bits.LongRoom) -> cython.int:
    """Move each row before those that are behind it in the log; none is far."""
    at: bits.Place
    to: bits.Place
    row: bits.Place
    place: bits.Long
    before: bits.Long = places[rows[0]]
    for at in range(1, places.shape[0]):
        row = rows[at]
        place = places[row]
        if place >= before:
            before = place
            continue
        to = at
        while to > 0 and places[rows[to - 1]] > place:
            rows[to] = rows[to - 1]
            to -= 1
        rows[to] = row
    return 0
