"""The messages in the bodies of inner batches (MessageDecoder#decodeMessages)."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops.bits import (
        Bytes,
        IntRoom,
        Ints,
        LongRoom,
        Longs,
        Place,
        i16,
        i32,
    )
else:
    from rmq_store.loops.bits import Bytes, IntRoom, Ints, LongRoom, Longs, Place, i16, i32

# Of MEMBER_HEAD in format/layout.py, which a test compares.
_HEAD_SIZE = cython.declare(cython.int, 20)
_FLAG_AT = cython.declare(cython.int, 12)
_BODY_LENGTH_AT = cython.declare(cython.int, 16)
_LENGTH_SIZE = cython.declare(cython.int, 2)  # bytes of the length of properties


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _behind(raw: Bytes, at: Place, stop: Place) -> Place:
    """The place behind the member at `at`; 0 if it is not a whole one before `stop`."""
    room: Place = stop - at - _HEAD_SIZE - _LENGTH_SIZE
    if room < 0:
        return 0
    body: Place = i32(raw, at + _BODY_LENGTH_AT)
    if body < 0 or body > room:
        return 0
    properties: Place = i16(raw, at + _HEAD_SIZE + body)
    if properties < 0 or properties > room - body:
        return 0
    size: Place = _HEAD_SIZE + body + _LENGTH_SIZE + properties
    return at + size if i32(raw, at) == size else 0


def count_members(raw: Bytes, ends: Ints, most: Place, counts: LongRoom) -> None:
    """The number of members of each body raw[ends[i]:ends[i + 1]] to `counts`.

    -1 for a body that is not made of whole members, or has more than `most`.
    """
    row: Place
    at: Place
    stop: Place
    count: Place
    with cython.nogil:
        for row in range(counts.shape[0]):
            at = ends[row]
            stop = ends[row + 1]
            count = 0
            while at < stop:
                at = _behind(raw, at, stop)
                if not at or count == most:
                    count = -1
                    break
                count += 1
            counts[row] = count


def split_members(
    raw: Bytes,
    ends: Ints,
    counts: Longs,
    rows: LongRoom,
    numbers: LongRoom,
    flags: IntRoom,
    body_at: LongRoom,
    body_length: LongRoom,
    properties_at: LongRoom,
    properties_length: LongRoom,
) -> None:
    """The fields of all members of bodies whose `counts` are known, in order."""
    row: Place
    at: Place
    number: Place
    member: Place = 0
    with cython.nogil:
        for row in range(counts.shape[0]):
            at = ends[row]
            for number in range(counts[row]):
                rows[member] = row
                numbers[member] = number
                flags[member] = i32(raw, at + _FLAG_AT)
                body_at[member] = at + _HEAD_SIZE
                body_length[member] = i32(raw, at + _BODY_LENGTH_AT)
                at = body_at[member] + body_length[member]
                properties_at[member] = at + _LENGTH_SIZE
                properties_length[member] = i16(raw, at)
                at += _LENGTH_SIZE + properties_length[member]
                member += 1
