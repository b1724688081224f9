"""Bytes and texts of many records, one after the other: slices, hosts, message ids, topics."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

LONGEST_HOST = 56
"""Bytes: eight groups of four digits, their colons, brackets, and a port."""
LONGEST_V4_HOST = 28
LONGEST_MESSAGE_ID = 56
"""Bytes, of an IPv6 storeHost."""

_AHEAD = cython.declare(cython.int, 8)  # slices that are on their way from the memory
_KEY_BITS = cython.declare(cython.int, 24)  # of bits.mixed
_ZERO = cython.declare(cython.int, 48)
_LETTERS = cython.declare(cython.int, 87)  # "a" less ten
_DOT = cython.declare(cython.int, 46)
_COLON = cython.declare(cython.int, 58)
_MINUS = cython.declare(cython.int, 45)
_OPEN = cython.declare(cython.int, 91)
_CLOSE = cython.declare(cython.int, 93)


def gather(
    raw: bits.Bytes, at: bits.Longs, length: bits.Longs, out: bits.Room, ends: bits.IntRoom
) -> None:
    """Copy n slices of `raw` to `out`, one after the other; `ends` receives n + 1 offsets."""
    row: bits.Place
    to: bits.Place = 0
    with cython.nogil:
        ends[0] = 0
        for row in range(at.shape[0]):
            if row + 4 < at.shape[0]:
                bits.prefetch(raw, at[row + 4], length[row + 4])
            to = bits.copy(raw, at[row], length[row], out, to)
            ends[row + 1] = cython.cast(cython.int, to)


def gather_values(
    raw: bits.Bytes,
    values: bits.Longs,
    first: bits.Place,
    width: bits.Place,
    out: bits.Room,
    ends: bits.IntRoom,
    is_there: bits.Room,
) -> None:
    """As `gather`, for the value of one name in n property strings.

    `values` as `property_items.look` writes them: `width` numbers of a string, start and end of this
    one from `first` on. `is_there` receives 0 where there is none, else 1.
    """
    row: bits.Place
    at: bits.Place
    to: bits.Place = 0
    with cython.nogil:
        ends[0] = 0
        for row in range(is_there.shape[0]):
            at = row * width + first
            if row + 16 < is_there.shape[0]:
                bits.prefetch(raw, values[at + 16 * width], 1)
            is_there[row] = values[at + 1] > 0
            to = bits.copy(raw, values[at], values[at + 1] - values[at], out, to)
            ends[row + 1] = cython.cast(cython.int, to)


def gather_numbered(
    raw: bits.Bytes,
    starts: bits.Ints,
    stops: bits.Ints,
    number: bits.Longs,
    out: bits.Room,
    ends: bits.IntRoom,
) -> None:
    """As `gather`, for slices that have numbers: copy the one with `number[i]` for each row."""
    row: bits.Place
    which: bits.Place
    to: bits.Place = 0
    with cython.nogil:
        ends[0] = 0
        for row in range(number.shape[0]):
            which = number[row]
            to = bits.copy(raw, starts[which], stops[which] - starts[which], out, to)
            ends[row + 1] = cython.cast(cython.int, to)


def number(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    memory: bits.IntRoom,
    numbers: bits.LongRoom,
    rows: bits.LongRoom,
) -> int:
    """Number the distinct ones of n slices of `raw`: `numbers` receives the number of each row.

    `rows` receives the first row of each number. `memory`, of zeros, has room for the numbers of some: a
    slice that was forgotten for another gets one more. Returns how many numbers there are.
    """
    row: bits.Place
    size: bits.Place
    slot: bits.Place
    number_and_1: bits.Place  # a number, and 1
    place: bits.Place
    key: bits.Word
    count: bits.Place = 0
    with cython.nogil:
        for row in range(at.shape[0]):
            if row + _AHEAD < at.shape[0]:
                bits.prefetch(raw, at[row + _AHEAD], 1)
            size = length[row]
            key = cython.cast(bits.Word, size)
            for place in range(0, size, 8):
                key = bits.mixed(
                    bits.first_bytes(bits.word(raw, at[row] + place), size - place), key
                )
            # Its upper bits: the last byte of a word changes no others.
            slot = cython.cast(bits.Place, key * memory.shape[0] >> _KEY_BITS)
            number_and_1 = memory[slot]
            if (
                not number_and_1
                or length[rows[number_and_1 - 1]] != size
                or not bits.same(raw, at[row], raw, at[rows[number_and_1 - 1]], size)
            ):
                bits.same(raw, at[row], raw, at[row], size)  # inside of `raw`, or an IndexError
                rows[count] = row
                count += 1
                number_and_1 = count
                memory[slot] = cython.cast(cython.int, number_and_1)
            numbers[row] = number_and_1 - 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _host_place(at: bits.Place, flags: cython.int, of_store: cython.bint) -> bits.Place:
    """Where a host of a record stands."""
    if not of_store:
        return at + bits.BORN_HOST_AT
    at += bits.BORN_HOST_AT + 16
    return at + bits.V6_EXTRA if flags & bits.BORN_HOST_V6 else at


def hosts(
    raw: bits.Bytes,
    at: bits.Longs,
    sys_flag: bits.Ints,
    host: bits.Longs,
    of_store: cython.bint,
    out: bits.Room,
    ends: bits.IntRoom,
) -> int:
    """Write the hosts of n records as `ip:port` or `[ip]:port`; returns the place behind the last one.

    `at`: the starts of the records. `host`: address and port of those with an IPv4 address, as
    record_fields.split finds them. `ends` receives n + 1 offsets in `out`.
    """
    row: bits.Place
    to: bits.Place = 0
    place: bits.Place
    before: bits.Place = 0  # the IPv4 host that was written last
    size: bits.Place = 0
    last_host: bits.Long = 0
    flag: cython.int = bits.STORE_HOST_V6 if of_store else bits.BORN_HOST_V6
    with cython.nogil:
        ends[0] = 0
        for row in range(at.shape[0]):
            if sys_flag[row] & flag:
                to = _host_v6(raw, _host_place(at[row], sys_flag[row], of_store), out, to)
            elif size and host[row] == last_host:  # mostly that of the record before
                to = bits.copy(out, before, size, out, to)
            else:
                last_host = host[row]
                before = to
                place = _host_place(at[row], sys_flag[row], of_store)
                to = _host_v4(raw, place, place + 4, out, to)
                size = to - before
            ends[row + 1] = cython.cast(cython.int, to)
    return to


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _decimal(value: cython.longlong, out: bits.Room, to: bits.Place) -> bits.Place:
    """Write a number of up to ten digits."""
    power: cython.longlong = 1
    if value < 0:
        out[to] = _MINUS
        to += 1
        value = -value
    while power * 10 <= value:
        power *= 10
    while power:
        out[to] = _ZERO + value // power % 10
        to += 1
        power //= 10
    return to


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _host_v4(
    raw: bits.Bytes, place: bits.Place, port_at: bits.Place, out: bits.Room, to: bits.Place
) -> bits.Place:
    number: cython.int
    for number in range(4):
        to = _decimal(raw[place + number], out, to)
        out[to] = _COLON if number == 3 else _DOT
        to += 1
    return _decimal(bits.i32(raw, port_at), out, to)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _host_v6(raw: bits.Bytes, place: bits.Place, out: bits.Room, to: bits.Place) -> bits.Place:
    """An address that holds an IPv4 one is printed as that, as java.net reads it."""
    group: cython.int
    value: cython.int
    shift: cython.int
    if bits.word(raw, place) == 0 and bits.i32(raw, place + 8) == 0xFFFF:
        return _host_v4(raw, place + 12, place + 16, out, to)
    out[to] = _OPEN
    to += 1
    for group in range(8):
        value = raw[place + 2 * group] << 8 | raw[place + 2 * group + 1]
        shift = 12
        while shift and not value >> shift:
            shift -= 4
        while shift >= 0:
            out[to] = _ZERO + (value >> shift & 15)
            if value >> shift & 15 > 9:
                out[to] = _LETTERS + (value >> shift & 15)
            to += 1
            shift -= 4
        out[to] = _CLOSE if group == 7 else _COLON
        to += 1
    out[to] = _COLON
    return _decimal(bits.i32(raw, place + 16), out, to + 1)


def message_ids(
    raw: bits.Bytes,
    at: bits.Longs,
    sys_flag: bits.Ints,
    host: bits.Longs,
    physical_offset: bits.Longs,
    out: bits.Room,
    ends: bits.IntRoom,
) -> int:
    """Write the offsetMsgId of n records: storeHost and physicalOffset in upper-case hex.

    `host`: as in `hosts`, of storeHost. `out` has 56 bytes for each. Returns the place behind the last one.
    """
    row: bits.Place
    to: bits.Place = 0
    place: bits.Place
    with cython.nogil:
        ends[0] = 0
        for row in range(at.shape[0]):
            to = bits.put_hex(out, to, host[row])
            if sys_flag[row] & bits.STORE_HOST_V6:
                place = _host_place(at[row], sys_flag[row], True)
                to = bits.put_hex(out, to, bits.i64(raw, place + 8))
                # Four bytes: the second half of these digits is written over.
                to = bits.put_hex(out, to, bits.i64(raw, place + 16)) - 8
            to = bits.put_hex(out, to, physical_offset[row])
            ends[row + 1] = cython.cast(cython.int, to)
    return to
