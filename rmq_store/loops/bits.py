"""What loops read, write and search, within the bounds of a buffer: the interpreted form of bits.pxd.

Buffers are memoryviews of bytes, or of int32 or int64 in native order. Every function raises IndexError
for a place outside of its buffer.
"""

from __future__ import annotations

Bytes = memoryview
Room = memoryview
Ints = memoryview
IntRoom = memoryview
Longs = memoryview
LongRoom = memoryview
Place = int
Long = int
Word = int

_WORD = 8  # bytes


def _check(at: int, size: int, room: int) -> None:
    if at < 0 or size < 0 or at + size > room:
        raise IndexError(f"bytes {at} to {at + size} are not inside of a buffer of {room}")


def word(raw: Bytes, at: int) -> int:
    """Eight bytes as a little-endian number; bytes behind the buffer's end count as zeros."""
    _check(at, 1, len(raw))
    return int.from_bytes(raw[at : at + _WORD], "little")


def i64(raw: Bytes, at: int) -> int:
    """A big-endian number of eight bytes."""
    return _signed(raw, at, 8)


def i32(raw: Bytes, at: int) -> int:
    """A big-endian number of four bytes."""
    return _signed(raw, at, 4)


def i16(raw: Bytes, at: int) -> int:
    """A big-endian number of two bytes."""
    return _signed(raw, at, 2)


def _signed(raw: Bytes, at: int, size: int) -> int:
    _check(at, 1, len(raw))
    return int.from_bytes(bytes(raw[at : at + size]).ljust(size, b"\0"), "big", signed=True)


def put_i64(out: Room, at: int, value: int) -> None:
    """Write the last eight bytes of a number, big-endian."""
    _put(out, at, value, 8)


def put_i32(out: Room, at: int, value: int) -> None:
    """Write the last four bytes of a number, big-endian."""
    _put(out, at, value, 4)


def put_i16(out: Room, at: int, value: int) -> None:
    """Write the last two bytes of a number, big-endian."""
    _put(out, at, value, 2)


def _put(out: Room, at: int, value: int, size: int) -> None:
    _check(at, size, len(out))
    out[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def find(raw: Bytes, at: int, stop: int, byte: int) -> int:
    """The first place in [at, stop) with this byte; `stop` if there is none."""
    if at >= stop:
        return stop
    _check(at, 1, len(raw))
    found = bytes(raw[at:stop]).find(byte)
    return stop if found < 0 else at + found


def copy(raw: Bytes, at: int, size: int, out: Room, to: int) -> int:
    """Copy bytes; returns the place behind the copy. May overwrite up to eight bytes behind it."""
    _check(at, size, len(raw))
    _check(to, size, len(out))
    out[to : to + size] = raw[at : at + size]
    return to + size


def same(one: Bytes, at: int, other: Bytes, place: int, size: int) -> bool:
    """Whether two places hold the same bytes."""
    _check(at, size, len(one))
    _check(place, size, len(other))
    return one[at : at + size] == other[place : place + size]


def signed32(value: int) -> int:
    """The last 32 bits of a number as a signed one, as Java's `(int)`."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
