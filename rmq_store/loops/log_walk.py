"""Follow the records of a log: each says how long it is, so that the next one starts behind it."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops.bits import (
        MAGIC_V1,
        MAGIC_V2,
        MIN_RECORD_SIZE,
        Bytes,
        LongRoom,
        Place,
        i32,
        i64,
    )
else:
    from rmq_store.loops.bits import (
        MAGIC_V1,
        MAGIC_V2,
        MIN_RECORD_SIZE,
        Bytes,
        LongRoom,
        Place,
        i32,
        i64,
    )

FRONT_SIZE = cython.declare(cython.int, 36)  # bytes up to the end of physicalOffset


def follow(raw: Bytes, base: Place, start: Place, stop: Place, found: LongRoom) -> tuple[int, int]:
    """Write the places of consecutive records, from `start` on and before `stop`, to `found`.

    Returns how many there are, and the place behind the last one. A record counts if it has a magic and
    a possible size, ends inside of `raw`, and its physicalOffset is `base` plus its place. Ends too when
    `found` is full.
    """
    at: Place = start
    count: Place = 0
    size: Place
    magic: cython.int
    last: Place = raw.shape[0] - FRONT_SIZE
    with cython.nogil:
        while at < stop and at <= last and count < found.shape[0]:
            size = i32(raw, at)
            magic = i32(raw, at + 4)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                break
            if size < MIN_RECORD_SIZE or size > raw.shape[0] - at:
                break
            if i64(raw, at + 28) != base + at:
                break
            found[count] = at
            count += 1
            at += size
    return count, at
