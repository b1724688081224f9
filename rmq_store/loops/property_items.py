"""Property strings: their items, and where the values of TAGS, KEYS and UNIQ_KEY stand.

The rule is MessageDecoder#string2messageProperties: an item ends at 0x02 or at the end of the string.
Its first 0x01 separates name and value. Items with an empty name or value are skipped. If a name is
repeated, its last value is used.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

PLACES = 10
"""Numbers of a string in `values`: start and end of the values of TAGS, KEYS, UNIQ_KEY and
INNER_MULTI_QUEUE_OFFSET, both 0 without one, and a pair for others, which nobody reads."""

_PLACES = cython.declare(cython.int, 10)
_OTHERS = cython.declare(cython.int, 8)  # the place of that pair
# The names as little-endian words.
_TAGS = cython.declare(bits.Word, int.from_bytes(b"TAGS", "little"))
_KEYS = cython.declare(bits.Word, int.from_bytes(b"KEYS", "little"))
_UNIQ_KEY = cython.declare(bits.Word, int.from_bytes(b"UNIQ_KEY", "little"))
_OTHER_QUEUES_SIZE = cython.declare(cython.int, 24)
_OTHER_QUEUES_1 = cython.declare(bits.Word, int.from_bytes(b"INNER_MU", "little"))
_OTHER_QUEUES_2 = cython.declare(bits.Word, int.from_bytes(b"LTI_QUEU", "little"))
_OTHER_QUEUES_3 = cython.declare(bits.Word, int.from_bytes(b"E_OFFSET", "little"))
_LOW = cython.declare(cython.longlong, 0xFFFFFFFF)  # the half of an entry that is the item
# Rows of the table of items: place and length of name and value.
_NAME = cython.declare(cython.int, 0)
_NAME_SIZE = cython.declare(cython.int, 1)
_VALUE = cython.declare(cython.int, 2)
_VALUE_SIZE = cython.declare(cython.int, 3)


def look(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    values: bits.LongRoom,
    places: bits.LongRoom,
    items: bits.LongTable,
) -> int:
    """Find the values of some names in n property strings; `values` receives PLACES numbers of each.

    `places` has room for each byte of the longest string, `items` (four rows) for each of its items.
    Returns 1 if a string is not ASCII, else 0.
    """
    row: bits.Place
    count: bits.Place
    other: cython.int = 0
    with cython.nogil:
        for row in range(at.shape[0]):
            count = _separators(raw, at, length, row, places)
            other |= count & 1
            _items_of(raw, at[row], length[row], row, places, count >> 1, values, items)
    return other


def split(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    values: bits.LongRoom,
    places: bits.LongRoom,
    items: bits.LongTable,
    seen: bits.LongRoom,
    names: bits.Room,
    name_ends: bits.IntRoom,
    texts: bits.Room,
    text_ends: bits.IntRoom,
    row_ends: bits.IntRoom,
) -> int:
    """As `look`, and copy name and value of all items to `names` and `texts`, one after the other.

    `seen` has zeros, at least twice as many as `items` has columns, a power of two. `name_ends` and
    `text_ends` receive one offset more than there are items; `row_ends` n + 1 numbers of items.
    """
    row: bits.Place
    number: bits.Place
    count: bits.Place
    total: bits.Place = 0
    name_end: bits.Place = 0
    text_end: bits.Place = 0
    other: cython.int = 0
    with cython.nogil:
        name_ends[0] = text_ends[0] = row_ends[0] = 0
        for row in range(at.shape[0]):
            count = _separators(raw, at, length, row, places)
            other |= count & 1
            count = _items_of(raw, at[row], length[row], row, places, count >> 1, values, items)
            for number in range(count):
                _forget_earlier(raw, number, row, items, seen)
            for number in range(count):
                if items[_NAME_SIZE, number]:
                    name_end = bits.copy(
                        raw, items[_NAME, number], items[_NAME_SIZE, number], names, name_end
                    )
                    text_end = bits.copy(
                        raw, items[_VALUE, number], items[_VALUE_SIZE, number], texts, text_end
                    )
                    total += 1
                    name_ends[total] = cython.cast(cython.int, name_end)
                    text_ends[total] = cython.cast(cython.int, text_end)
            row_ends[row + 1] = cython.cast(cython.int, total)
    return other


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _separators(
    raw: bits.Bytes, at: bits.Longs, length: bits.Longs, row: bits.Place, places: bits.LongRoom
) -> bits.Place:
    """Those of one string, as `bits.separators` gives them."""
    if row + 4 < at.shape[0]:
        bits.prefetch(raw, at[row + 4], length[row + 4])
    return bits.separators(raw, at[row], at[row] + length[row], places)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _items_of(
    raw: bits.Bytes,
    at: bits.Place,
    length: bits.Place,
    row: bits.Place,
    places: bits.LongRoom,
    most: bits.Place,
    values: bits.LongRoom,
    items: bits.LongTable,
) -> bits.Place:
    """Fill `items` with those of one string, which has `most` separators. Returns how many there are."""
    place: bits.Place
    end: bits.Place
    stop: bits.Place = at + length
    which: bits.Place
    number: bits.Place = 0
    count: bits.Place = 0
    for which in range(row * _PLACES, row * _PLACES + _PLACES):
        values[which] = 0
    while number < most:
        place = places[number] >> 1
        if places[number] & 1:
            at = place + 1
            number += 1
            continue
        number += 1
        while number < most and not places[number] & 1:
            number += 1
        end = places[number] >> 1 if number < most else stop
        number += 1
        if place > at and end > place + 1:
            items[_NAME, count] = at
            items[_NAME_SIZE, count] = place - at
            items[_VALUE, count] = place + 1
            items[_VALUE_SIZE, count] = end - place - 1
            which = row * _PLACES + _place_of(raw, at, place - at)
            values[which] = place + 1
            values[which + 1] = end
            count += 1
        at = end + 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _place_of(raw: bits.Bytes, at: bits.Place, size: bits.Place) -> bits.Place:
    """Where the value of a name stands among the PLACES of its string."""
    name: bits.Word = bits.first_bytes(bits.word(raw, at), size)
    # Which one it is would be a guess for a branch.
    found: bits.Place = _OTHERS
    rest: cython.bint
    found = 0 if (name == _TAGS) & (size == 4) else found
    found = 2 if (name == _KEYS) & (size == 4) else found
    found = 4 if (name == _UNIQ_KEY) & (size == 8) else found
    if size != _OTHER_QUEUES_SIZE or name != _OTHER_QUEUES_1:
        return found
    rest = bits.word(raw, at + 8) == _OTHER_QUEUES_2 and bits.word(raw, at + 16) == _OTHER_QUEUES_3
    return 6 if rest else found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _forget_earlier(
    raw: bits.Bytes,
    number: bits.Place,
    row: bits.Place,
    items: bits.LongTable,
    seen: bits.LongRoom,
) -> cython.int:
    """Take the name from an earlier item of the row that has the same one.

    `seen` is a table of hashes with open places. An entry has the row and the item, so that what
    earlier rows left counts as empty.
    """
    at: bits.Place = items[_NAME, number]
    size: bits.Place = items[_NAME_SIZE, number]
    earlier: bits.Place
    mask: bits.Place = seen.shape[0] - 1
    mark: bits.Long = row + 1
    # The last bytes of the name too: many start alike.
    short: bits.Place = size if size < 8 else 8
    first: bits.Word = bits.first_bytes(bits.word(raw, at), size)
    last: bits.Word = bits.first_bytes(bits.word(raw, at + size - short), short)
    slot: bits.Place = bits.mixed(first, last ^ cython.cast(cython.ulonglong, size)) & mask
    while seen[slot] >> 32 == mark:
        earlier = seen[slot] & _LOW
        if items[_NAME_SIZE, earlier] == size and bits.same(
            raw, items[_NAME, earlier], raw, at, size
        ):
            items[_NAME_SIZE, earlier] = 0
            break
        slot = (slot + 1) & mask
    seen[slot] = mark << 32 | number
    return 0
