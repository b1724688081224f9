"""CRC-32 of many slices, by a function of a library, and the CRC that a record has at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

# The item is "__CRC32#", 0x01, ten digits, 0x02 (MessageDecoder#createCrc32).
_NAME = cython.declare(cython.ulonglong, 0x2332334352435F5F)
_ITEM_SIZE = cython.declare(cython.int, 20)
_DIGITS = cython.declare(cython.int, 10)


def of_slices(
    crc32: Callable[[Any], int],
    function: bits.Long,
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    crcs: bits.LongRoom,
) -> None:
    """Write the CRC-32 of n slices of `raw` to `crcs`.

    `function`: the address of the same function in C, or 0. A call of `crc32` costs more than its work,
    and holds the GIL.
    """
    row: bits.Place
    if function == 0:
        for row in range(at.shape[0]):
            crcs[row] = crc32(bits.view_of(raw, at[row], length[row]))
        return
    with cython.nogil:
        for row in range(at.shape[0]):
            if row + 4 < at.shape[0]:
                bits.prefetch(raw, at[row + 4], length[row + 4])
            crcs[row] = bits.sum_of(function, raw, at[row], length[row])


def of_copies(
    crc32: Callable[[Any], int],
    function: bits.Long,
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    out: bits.Room,
    ends: bits.IntRoom,
    crcs: bits.LongRoom,
) -> None:
    """As `of_slices`, and copy the slices to `out`, one after the other.

    `ends` receives n + 1 offsets. The copy brings a slice into the cache, where the library reads it.
    """
    row: bits.Place
    to: bits.Place = 0
    with cython.nogil:
        ends[0] = 0
        for row in range(at.shape[0]):
            if row + 4 < at.shape[0]:
                bits.prefetch(raw, at[row + 4], length[row + 4])
            to = bits.copy(raw, at[row], length[row], out, to)
            ends[row + 1] = cython.cast(cython.int, to)
            if function != 0:
                crcs[row] = bits.sum_of(function, raw, at[row], length[row])
    if function == 0:
        of_slices(crc32, function, raw, at, length, crcs)


def stored_in_records(
    raw: bits.Bytes, properties_at: bits.Longs, length: bits.Longs, crcs: bits.LongRoom
) -> int:
    """Write the record CRC at the end of n property strings, -1 without one; returns how many have it.

    An item without a separator before it belongs to the value before it.
    """
    row: bits.Place
    item: bits.Place
    count: bits.Place = 0
    with cython.nogil:
        for row in range(properties_at.shape[0]):
            crcs[row] = -1
            item = length[row] - _ITEM_SIZE
            if row + 8 < crcs.shape[0]:
                bits.prefetch(raw, properties_at[row + 8] + length[row + 8] - _ITEM_SIZE, 1)
            if item < 0 or bits.word(raw, properties_at[row] + item) != _NAME:
                continue
            if item > 0 and raw[properties_at[row] + item - 1] != 2:
                continue
            crcs[row] = _digits(raw, properties_at[row] + item + 8)
            if crcs[row] >= 0:
                count += 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(-2)
def _digits(raw: bits.Bytes, at: bits.Place) -> bits.Long:
    """The number behind the name, whose least significant digit is the first; -1 if it is none."""
    place: bits.Place
    value: bits.Long = 0
    digit: cython.int
    if raw[at] != 1:
        return -1
    for place in range(at + _DIGITS, at, -1):
        digit = raw[place]
        if digit < 48 or digit > 57:
            return -1
        value = value * 10 + (digit - 48)
    return value
