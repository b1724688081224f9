"""The messages in the bodies of inner batches (MessageDecoder#decodeMessages)."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

# Of MEMBER_HEAD in format/byte_layout.py, which a test compares.
_HEAD_SIZE = cython.declare(cython.int, 20)
_FLAG_AT = cython.declare(cython.int, 12)
_BODY_LENGTH_AT = cython.declare(cython.int, 16)
_LENGTH_SIZE = cython.declare(cython.int, 2)  # bytes of the length of properties


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _behind(raw: bits.Bytes, at: bits.Place, stop: bits.Place) -> bits.Place:
    """The place behind the member at `at`; 0 if it is not a whole one before `stop`."""
    room: bits.Place = stop - at - _HEAD_SIZE - _LENGTH_SIZE
    if room < 0:
        return 0
    body: bits.Place = bits.i32(raw, at + _BODY_LENGTH_AT)
    if body < 0 or body > room:
        return 0
    properties: bits.Place = bits.i16(raw, at + _HEAD_SIZE + body)
    if properties < 0 or properties > room - body:
        return 0
    size: bits.Place = _HEAD_SIZE + body + _LENGTH_SIZE + properties
    return at + size if bits.i32(raw, at) == size else 0


def count_members(
    raw: bits.Bytes, ends: bits.Ints, most: bits.Place, counts: bits.LongRoom
) -> None:
    """The number of members of each body raw[ends[i]:ends[i + 1]] to `counts`.

    -1 for a body that is not made of whole members, or has more than `most`.
    """
    row: bits.Place
    at: bits.Place
    stop: bits.Place
    count: bits.Place
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
    raw: bits.Bytes,
    ends: bits.Ints,
    counts: bits.Longs,
    rows: bits.LongRoom,
    numbers: bits.LongRoom,
    flags: bits.IntRoom,
    body_at: bits.LongRoom,
    body_length: bits.LongRoom,
    properties_at: bits.LongRoom,
    properties_length: bits.LongRoom,
) -> None:
    """The fields of all members of bodies whose `counts` are known, in order."""
    row: bits.Place
    at: bits.Place
    number: bits.Place
    member: bits.Place = 0
    with cython.nogil:
        for row in range(counts.shape[0]):
            at = ends[row]
            for number in range(counts[row]):
                rows[member] = row
                numbers[member] = number
                flags[member] = bits.i32(raw, at + _FLAG_AT)
                body_at[member] = at + _HEAD_SIZE
                body_length[member] = bits.i32(raw, at + _BODY_LENGTH_AT)
                at = body_at[member] + body_length[member]
                properties_at[member] = at + _LENGTH_SIZE
                properties_length[member] = bits.i16(raw, at)
                at += _LENGTH_SIZE + properties_length[member]
                member += 1
