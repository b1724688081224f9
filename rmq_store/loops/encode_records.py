"""Property strings and records, written from columns into one buffer whose size is known."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

LONGEST_NUMBER = 20
"""Characters of the smallest int64."""

# Of format/byte_layout.py, which a test compares.
_HOST_V4_SIZE = cython.declare(cython.int, 8)
_HOST_V6_SIZE = cython.declare(cython.int, 20)
_CRC_DIGITS = cython.declare(cython.int, 10)
_CRC_DIGITS_BEHIND = cython.declare(cython.int, 11)  # bytes from the first digit to the end
_DIGIT_0 = cython.declare(cython.int, 0x30)
_MINUS = cython.declare(cython.int, 0x2D)

# --- property strings -----------------------------------------------------------------------------


def join_items(
    items: bits.Ints,
    keys: bits.Bytes,
    key_ends: bits.Ints,
    values: bits.Bytes,
    value_ends: bits.Ints,
    last_separator: cython.bint,
    out: bits.Room,
    ends: bits.IntRoom,
) -> int:
    """Write the property strings of rows of a map column to `out`; returns their bytes.

    Row i has the items items[i] to items[i + 1]. `ends` receives one more number than there are rows.
    """
    row: bits.Place
    item: bits.Place
    to: bits.Place = 0
    with cython.nogil:
        ends[0] = 0
        for row in range(items.shape[0] - 1):
            for item in range(items[row], items[row + 1]):
                to = bits.copy(keys, key_ends[item], key_ends[item + 1] - key_ends[item], out, to)
                out[to] = bits.NAME_VALUE_SEPARATOR
                to += 1
                to = bits.copy(
                    values, value_ends[item], value_ends[item + 1] - value_ends[item], out, to
                )
                out[to] = bits.PROPERTY_SEPARATOR
                to += 1
            if not last_separator and to > ends[row]:
                to -= 1
            ends[row + 1] = to
    return int(to)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _put_word(
    fronts: bits.Bytes,
    front: bits.Place,
    width: bits.Place,
    words: bits.Bytes,
    at: bits.Place,
    stop: bits.Place,
    out: bits.Room,
    to: bits.Place,
) -> bits.Place:
    """Write an item of a property, unless its value is empty; returns the place behind it."""
    if stop == at:
        return to
    to = bits.copy(fronts, front, width, out, to)
    to = bits.copy(words, at, stop - at, out, to)
    out[to] = bits.PROPERTY_SEPARATOR
    return to + 1


def join_words(
    fronts: bits.Bytes,
    front_ends: bits.Ints,
    keys: bits.Bytes,
    key_ends: bits.Ints,
    tags: bits.Bytes,
    tag_ends: bits.Ints,
    ids: bits.Bytes,
    id_ends: bits.Ints,
    last_separator: cython.bint,
    out: bits.Room,
    ends: bits.IntRoom,
) -> int:
    """As `join_items`, of three properties; empty values are left out.

    `fronts` are the names with 0x01 behind them.
    """
    row: bits.Place
    to: bits.Place = 0
    first: bits.Place = front_ends[1]
    second: bits.Place = front_ends[2]
    third: bits.Place = front_ends[3]
    with cython.nogil:
        ends[0] = 0
        for row in range(ends.shape[0] - 1):
            to = _put_word(fronts, 0, first, keys, key_ends[row], key_ends[row + 1], out, to)
            to = _put_word(
                fronts, first, second - first, tags, tag_ends[row], tag_ends[row + 1], out, to
            )
            to = _put_word(
                fronts, second, third - second, ids, id_ends[row], id_ends[row + 1], out, to
            )
            if not last_separator and to > ends[row]:
                to -= 1
            ends[row + 1] = to
    return int(to)


def any_has(raw: bits.Bytes, ends: bits.Ints, piece: bits.Bytes, before_end: bits.Place) -> bool:
    """Whether any text raw[ends[i]:ends[i + 1]] has `piece` that many bytes before its end."""
    row: bits.Place
    at: bits.Place
    is_there: cython.bint = False
    with cython.nogil:
        for row in range(ends.shape[0] - 1):
            at = ends[row + 1] - before_end
            if at >= ends[row] and bits.same(raw, at, piece, 0, piece.shape[0]):
                is_there = True
                break
    return bool(is_there)


def have_item(
    raw: bits.Bytes, ends: bits.Ints, fronts: bits.Bytes, front_ends: bits.Ints, have: bits.Room
) -> int:
    """Write 1 for each property string raw[ends[i]:ends[i + 1]] with an item of one of some names, else 0.

    `fronts` are the names with 0x01 behind them. Returns how many strings have one.
    """
    row: bits.Place
    at: bits.Place
    stop: bits.Place
    count: bits.Place = 0
    with cython.nogil:
        for row in range(have.shape[0]):
            have[row] = 0
            at = ends[row]
            stop = ends[row + 1]
            while at < stop:
                if _starts_with(raw, at, stop, fronts, front_ends):
                    have[row] = 1
                    count += 1
                    break
                at = bits.find(raw, at, stop, bits.PROPERTY_SEPARATOR) + 1
    return int(count)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _starts_with(
    raw: bits.Bytes, at: bits.Place, stop: bits.Place, fronts: bits.Bytes, front_ends: bits.Ints
) -> cython.int:
    """Whether one of some texts stands at a place."""
    number: bits.Place
    first: bits.Place
    size: bits.Place
    for number in range(front_ends.shape[0] - 1):
        first = front_ends[number]
        size = front_ends[number + 1] - first
        # Most names already begin with another byte.
        if raw[at] != fronts[first] or size > stop - at:
            continue
        if bits.same(raw, at, fronts, first, size):
            return 1
    return 0


def add_items(
    raw: bits.Bytes,
    ends: bits.Ints,
    fronts: bits.Bytes,
    front_ends: bits.Ints,
    first: bits.Bytes,
    first_ends: bits.Ints,
    second: bits.Bytes,
    second_ends: bits.Ints,
    numbers: bits.Longs,
    out: bits.Room,
    out_ends: bits.IntRoom,
) -> int:
    """Write n property strings, and behind each the same items with other values; returns the bytes.

    `fronts` are the names of the items with 0x01 behind them. The values of the first two are texts; those
    of the others are `numbers`: n of the third, then n of the fourth and so on, each of up to LONGEST_NUMBER
    characters. `out_ends` receives n + 1 offsets. A string without a last separator gets one.
    """
    row: bits.Place
    item: bits.Place
    start: bits.Place
    size: bits.Place
    rows: bits.Place = out_ends.shape[0] - 1
    to: bits.Place = 0
    with cython.nogil:
        out_ends[0] = 0
        for row in range(rows):
            size = ends[row + 1] - ends[row]
            to = bits.copy(raw, ends[row], size, out, to)
            if size > 0 and out[to - 1] != bits.PROPERTY_SEPARATOR:
                out[to] = bits.PROPERTY_SEPARATOR
                to += 1
            for item in range(front_ends.shape[0] - 1):
                start = front_ends[item]
                to = bits.copy(fronts, start, front_ends[item + 1] - start, out, to)
                if item == 0:
                    size = first_ends[row + 1] - first_ends[row]
                    to = bits.copy(first, first_ends[row], size, out, to)
                elif item == 1:
                    size = second_ends[row + 1] - second_ends[row]
                    to = bits.copy(second, second_ends[row], size, out, to)
                else:
                    to = _put_decimal(numbers[(item - 2) * rows + row], out, to)
                out[to] = bits.PROPERTY_SEPARATOR
                to += 1
            out_ends[row + 1] = cython.cast(cython.int, to)
    return int(to)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _put_decimal(value: bits.Long, out: bits.Room, to: bits.Place) -> bits.Place:
    """Write a number; returns the place behind it."""
    left: bits.Word = value if value >= 0 else -(value + 1)
    rest: bits.Word
    place: bits.Place
    if value < 0:
        left += 1  # only now: the smallest number has no positive counterpart
        out[to] = _MINUS
        to += 1
    rest = left
    while rest >= 10:
        rest //= 10
        to += 1
    place = to
    rest = left
    while rest >= 10:
        out[place] = _DIGIT_0 + rest % 10
        rest //= 10
        place -= 1
    out[place] = _DIGIT_0 + rest
    return to + 1


# --- records --------------------------------------------------------------------------------------


def put_records(
    out: bits.Room,
    total: bits.Longs,
    body_crc: bits.Longs,
    queue_id: bits.Ints,
    flag: bits.Ints,
    queue_offset: bits.Longs,
    log_offset: bits.Longs,
    sys_flag: bits.Ints,
    born_timestamp: bits.Longs,
    born_hosts: bits.Bytes,
    born_host: bits.Ints,
    store_timestamp: bits.Longs,
    store_hosts: bits.Bytes,
    store_host: bits.Ints,
    reconsume_times: bits.Ints,
    prepared_transaction_offset: bits.Longs,
    body_ends: bits.Ints,
    bodies: bits.Bytes,
    topic: bits.Longs,
    magics: bits.Ints,
    topic_ends: bits.Ints,
    topic_fields: bits.Bytes,
    property_ends: bits.Ints,
    properties: bits.Bytes,
) -> None:
    """Write records one after the other, field after field (MessageExtEncoder#encode).

    All columns have a number for each record, or one more end. `born_host` and `store_host` are places
    in tables of 20 bytes a host, of which an IPv4 host uses 8, and `topic` one among `magics` and
    `topic_fields`, which are length and topic as stored. Raises IndexError if `out` is too small.
    """
    row: bits.Place
    at: bits.Place = 0
    start: bits.Place
    size: bits.Place
    code: bits.Place
    with cython.nogil:
        for row in range(total.shape[0]):
            code = topic[row]
            bits.put_i32(out, at, total[row])
            bits.put_i32(out, at + 4, magics[code])
            bits.put_i32(out, at + 8, body_crc[row])
            bits.put_i32(out, at + 12, queue_id[row])
            bits.put_i32(out, at + 16, flag[row])
            bits.put_i64(out, at + 20, queue_offset[row])
            bits.put_i64(out, at + 28, log_offset[row])
            bits.put_i32(out, at + 36, sys_flag[row])
            bits.put_i64(out, at + 40, born_timestamp[row])
            size = _HOST_V6_SIZE if sys_flag[row] & bits.BORN_HOST_V6 else _HOST_V4_SIZE
            at = bits.copy(born_hosts, born_host[row] * _HOST_V6_SIZE, size, out, at + 48)
            bits.put_i64(out, at, store_timestamp[row])
            size = _HOST_V6_SIZE if sys_flag[row] & bits.STORE_HOST_V6 else _HOST_V4_SIZE
            at = bits.copy(store_hosts, store_host[row] * _HOST_V6_SIZE, size, out, at + 8)
            bits.put_i32(out, at, reconsume_times[row])
            bits.put_i64(out, at + 4, prepared_transaction_offset[row])
            start = body_ends[row]
            size = body_ends[row + 1] - start
            bits.put_i32(out, at + 12, size)
            at = bits.copy(bodies, start, size, out, at + 16)
            start = topic_ends[code]
            at = bits.copy(topic_fields, start, topic_ends[code + 1] - start, out, at)
            start = property_ends[row]
            size = property_ends[row + 1] - start
            bits.put_i16(out, at, size)
            at = bits.copy(properties, start, size, out, at + 2)


def put_record_crcs(out: bits.Room, ends: bits.Longs, crcs: bits.Longs) -> None:
    """Write the ten digits of each record CRC, the least significant first, at the end of its record."""
    row: bits.Place
    digit: bits.Place
    at: bits.Place
    left: bits.Long
    with cython.nogil:
        for row in range(ends.shape[0]):
            left = crcs[row]
            at = ends[row] - _CRC_DIGITS_BEHIND
            for digit in range(_CRC_DIGITS):
                out[at + digit] = _DIGIT_0 + left % 10
                left //= 10
