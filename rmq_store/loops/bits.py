"""What loops read, write and search, within the bounds of a buffer: the interpreted form of bits.pxd.

Buffers are memoryviews of bytes, or of int32 or int64 in native order. Every function raises IndexError
for a place outside of its buffer.
"""

from __future__ import annotations

import ctypes

Bytes = memoryview
Room = memoryview
Ints = memoryview
IntRoom = memoryview
Longs = memoryview
LongRoom = memoryview
Place = int
Long = int
Word = int

# Of the format, as in format/byte_layout.py; a test compares them.
MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MIN_RECORD_SIZE = 91
HEAD_SIZE = 88
V6_EXTRA = 12
BORN_HOST_AT = 48
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NAME_VALUE_SEPARATOR = 1
PROPERTY_SEPARATOR = 2
CRC_MASK = 0x7FFFFFFF

# Of the loops of properties: numbers of a string's values, of an item, and of a layout (property_items.py).
PLACES = 10
OTHERS = 8
ITEM = 4
NAME = 0
NAME_SIZE = 1
VALUE = 2
VALUE_SIZE = 3
LAYOUT = 8
LAYOUT_SLOTS = 1024
LAYOUT_FIRST = 0
LAYOUT_ITEMS = 1
LAYOUT_VALUES = 2
OTHER_QUEUES_SIZE = 24
# Names of properties as little-endian words; INNER_MULTI_QUEUE_OFFSET has three.
TAGS = int.from_bytes(b"TAGS", "little")
KEYS = int.from_bytes(b"KEYS", "little")
UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "little")
OTHER_QUEUES_1 = int.from_bytes(b"INNER_MU", "little")
OTHER_QUEUES_2 = int.from_bytes(b"LTI_QUEU", "little")
OTHER_QUEUES_3 = int.from_bytes(b"E_OFFSET", "little")

_WORD = 8  # bytes
_MASK64 = (1 << 64) - 1


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
    _check(at, stop - at, len(raw))
    found = bytes(raw[at:stop]).find(byte)
    return stop if found < 0 else at + found


def copy(raw: Bytes, at: int, size: int, out: Room, to: int) -> int:
    """Copy bytes; returns the place behind the copy.

    May overwrite up to 64 bytes behind the copy. Inside of one buffer it goes behind what is copied.
    """
    _check(at, size, len(raw))
    _check(to, size, len(out))
    out[to : to + size] = raw[at : at + size]
    return to + size


def same(one: Bytes, at: int, other: Bytes, place: int, size: int) -> bool:
    """Whether two places hold the same bytes."""
    _check(at, size, len(one))
    _check(place, size, len(other))
    return one[at : at + size] == other[place : place + size]


LongTable = memoryview
IntTable = memoryview


def put_hex(out: Room, at: int, value: int) -> int:
    """Write the sixteen upper-case hex digits of a number; returns the place behind them."""
    _check(at, 16, len(out))
    out[at : at + 16] = b"%016X" % (value & _MASK64)
    return at + 16


def first_bytes(found: int, size: int) -> int:
    """The first `size` bytes of a word; the others are zeros."""
    return found & ((1 << 8 * min(max(size, 0), _WORD)) - 1)


def mixed(one: int, other: int) -> int:
    """A hash of two words, of 24 bits."""
    one ^= (other << 29 | other >> 35) & _MASK64
    return (one * 0x9E3779B97F4A7C15 & _MASK64) >> 40


def separators(raw: Bytes, at: int, stop: int, places: LongRoom) -> int:
    """Write the places in [at, stop) of separators of properties: twice the place, plus 1 for 0x02.

    `places` has room for one in each byte. Returns twice their number, plus 1 if there are bytes
    beside ASCII.
    """
    if at < 0 or stop > len(raw):
        raise IndexError(f"bytes {at} to {stop} are not inside of a buffer of {len(raw)}")
    _check(0, max(0, stop - at), len(places))
    some = bytes(raw[at : max(at, stop)])
    positions = [
        (at + place) << 1 | (byte == PROPERTY_SEPARATOR)
        for place, byte in enumerate(some)
        if byte in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)
    ]
    for number, place in enumerate(positions):
        places[number] = place
    return len(positions) << 1 | (not some.isascii())


def prefetch(raw: Bytes, at: int, size: int) -> None:
    """Ask the processor for bytes that are read soon."""


def prefetch_number(numbers: IntRoom, at: int) -> None:
    """As `prefetch`, for one of some numbers."""


def view_of(raw: Bytes, at: int, size: int) -> Bytes:
    """A view of some bytes, which must not be kept."""
    _check(at, size, len(raw))
    return raw[at : at + size]


def signed32(value: int) -> int:
    """The last 32 bits of a number as a signed one, as Java's `(int)`."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


_Sum = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)


def sum_of(function: int, raw: Bytes, at: int, size: int) -> int:
    """The checksum of some bytes, 0 of none, by a function of C: `uint32_t (before, at, size)`.

    `function` is its address.
    """
    _check(at, size, len(raw))
    found: int = _Sum(function)(0, bytes(raw[at : at + size]), size) if size else 0
    return found
