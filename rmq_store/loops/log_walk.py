"""Follow the records of a log: each says how long it is, so that the next one starts behind it."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

FRONT_SIZE = cython.declare(cython.int, 36)  # bytes up to the end of physicalOffset


def follow(
    raw: bits.Bytes, base: bits.Place, start: bits.Place, stop: bits.Place, found: bits.LongRoom
) -> tuple[int, int]:
    """Write the places of consecutive records, from `start` on and before `stop`, to `found`.

    Returns how many there are, and the place behind the last one. A record counts if it has a magic and
    a possible size, ends inside of `raw`, and its physicalOffset is `base` plus its place. Ends too when
    `found` is full.
    """
    at: bits.Place = start
    count: bits.Place = 0
    size: bits.Place
    magic: cython.int
    last: bits.Place = raw.shape[0] - FRONT_SIZE
    with cython.nogil:
        while at < stop and at <= last and count < found.shape[0]:
            size = bits.i32(raw, at)
            magic = bits.i32(raw, at + 4)
            if magic != bits.MAGIC_V1 and magic != bits.MAGIC_V2:
                break
            if size < bits.MIN_RECORD_SIZE or size > raw.shape[0] - at:
                break
            if bits.i64(raw, at + 28) != base + at:
                break
            found[count] = at
            count += 1
            at += size
    return count, at
