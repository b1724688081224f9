"""Property strings: their items, and where the values of TAGS, KEYS and UNIQ_KEY stand.

The rule is MessageDecoder#string2messageProperties: an item ends at 0x02 or at the end of the string.
Its first 0x01 separates name and value. Items with an empty name or value are skipped. If a name is
repeated, its last value is used.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops.bits import (
        PROPERTY_SEPARATOR,
        Bytes,
        IntRoom,
        Long,
        LongRoom,
        Longs,
        LongTable,
        Place,
        Room,
        Word,
        copy,
        find,
        find_separator,
        first_bytes,
        is_ascii,
        mixed,
        same,
        word,
    )
else:
    from rmq_store.loops.bits import (
        PROPERTY_SEPARATOR,
        Bytes,
        IntRoom,
        Long,
        LongRoom,
        Longs,
        LongTable,
        Place,
        Room,
        Word,
        copy,
        find,
        find_separator,
        first_bytes,
        is_ascii,
        mixed,
        same,
        word,
    )

# The names as little-endian words.
_TAGS = cython.declare(cython.ulonglong, 0x53474154)
_KEYS = cython.declare(cython.ulonglong, 0x5359454B)
_UNIQ_KEY = cython.declare(cython.ulonglong, 0x59454B5F51494E55)
_LOW = cython.declare(cython.longlong, 0xFFFFFFFF)  # the half of an entry that is the item
# Rows of the table of items: place and length of name and value.
_NAME = cython.declare(cython.int, 0)
_NAME_SIZE = cython.declare(cython.int, 1)
_VALUE = cython.declare(cython.int, 2)
_VALUE_SIZE = cython.declare(cython.int, 3)


def look(
    raw: Bytes, at: Longs, length: Longs, looked_at: LongTable, items: LongTable, seen: LongRoom
) -> int:
    """Find the values of TAGS, KEYS and UNIQ_KEY in n property strings.

    `looked_at` has six rows of n: place and length for each of the three; the length is -1 where there
    is no such property. `items` (four rows) has a column for every item of the longest string, `seen`
    twice as many zeros, a power of two. Returns 1 if a string is not ASCII, else 0.
    """
    row: Place
    other: cython.int = 0
    with cython.nogil:
        for row in range(at.shape[0]):
            _items_of(raw, at[row], at[row] + length[row], row, looked_at, items, seen)
            if not is_ascii(raw, at[row], length[row]):
                other = 1
    return other


def split(
    raw: Bytes,
    at: Longs,
    length: Longs,
    looked_at: LongTable,
    items: LongTable,
    seen: LongRoom,
    names: Room,
    name_ends: IntRoom,
    values: Room,
    value_ends: IntRoom,
    row_ends: IntRoom,
) -> int:
    """As `look`, and copy names and values of all items, one after the other.

    `name_ends` and `value_ends` receive one offset more than there are items; `row_ends` n + 1
    numbers of items.
    """
    row: Place
    number: Place
    count: Place
    total: Place = 0
    name_end: Place = 0
    value_end: Place = 0
    other: cython.int = 0
    with cython.nogil:
        name_ends[0] = value_ends[0] = row_ends[0] = 0
        for row in range(at.shape[0]):
            count = _items_of(raw, at[row], at[row] + length[row], row, looked_at, items, seen)
            for number in range(count):
                if items[_NAME_SIZE, number]:
                    name_end = copy(
                        raw, items[_NAME, number], items[_NAME_SIZE, number], names, name_end
                    )
                    value_end = copy(
                        raw, items[_VALUE, number], items[_VALUE_SIZE, number], values, value_end
                    )
                    total += 1
                    name_ends[total] = cython.cast(cython.int, name_end)
                    value_ends[total] = cython.cast(cython.int, value_end)
            row_ends[row + 1] = cython.cast(cython.int, total)
            if not is_ascii(raw, at[row], length[row]):
                other = 1
    return other


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _items_of(
    raw: Bytes,
    at: Place,
    stop: Place,
    row: Place,
    looked_at: LongTable,
    items: LongTable,
    seen: LongRoom,
) -> Place:
    """Fill `items` with those of one string; one whose name is repeated has no name. Returns how many."""
    place: Place
    end: Place
    size: Place
    count: Place = 0
    name: Word
    looked_at[1, row] = looked_at[3, row] = looked_at[5, row] = -1
    looked_at[0, row] = looked_at[2, row] = looked_at[4, row] = 0
    while at < stop:
        place = find_separator(raw, at, stop)
        if place == stop:
            break
        if raw[place] == PROPERTY_SEPARATOR:
            at = place + 1
            continue
        end = find(raw, place + 1, stop, PROPERTY_SEPARATOR)
        size = place - at
        if size and end > place + 1:
            name = first_bytes(word(raw, at), size)
            items[_NAME, count] = at
            items[_NAME_SIZE, count] = size
            items[_VALUE, count] = place + 1
            items[_VALUE_SIZE, count] = end - place - 1
            _forget_earlier(raw, name, count, row, items, seen)
            if size == 4 and name == _TAGS:
                looked_at[0, row] = place + 1
                looked_at[1, row] = end - place - 1
            elif size == 4 and name == _KEYS:
                looked_at[2, row] = place + 1
                looked_at[3, row] = end - place - 1
            elif size == 8 and name == _UNIQ_KEY:
                looked_at[4, row] = place + 1
                looked_at[5, row] = end - place - 1
            count += 1
        at = end + 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _forget_earlier(
    raw: Bytes, name: Word, number: Place, row: Place, items: LongTable, seen: LongRoom
) -> cython.int:
    """Take the name from an earlier item of the row that has the same one.

    `seen` is a table of hashes with open places. An entry has the row and the item, so that what
    earlier rows left counts as empty.
    """
    at: Place = items[_NAME, number]
    size: Place = items[_NAME_SIZE, number]
    earlier: Place
    mask: Place = seen.shape[0] - 1
    mark: Long = row + 1
    last: Word = size
    slot: Place
    if size > 8:
        last = word(raw, at + size - 8)
    slot = mixed(name, last) & mask
    while seen[slot] >> 32 == mark:
        earlier = seen[slot] & _LOW
        if items[_NAME_SIZE, earlier] == size and same(raw, items[_NAME, earlier], raw, at, size):
            items[_NAME_SIZE, earlier] = 0
            break
        slot = (slot + 1) & mask
    seen[slot] = mark << 32 | number
    return 0
