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
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    looked_at: bits.LongTable,
    items: bits.LongTable,
    seen: bits.LongRoom,
    places: bits.LongRoom,
) -> int:
    """Find the values of TAGS, KEYS and UNIQ_KEY in n property strings.

    `looked_at` has eight rows of n: place and length for each of the three, and two rows that nobody
    reads. The length is -1 where there is no such property. `items` (four rows) has a column for every
    item of the longest string, `seen` twice as many zeros, a power of two, and `places` room for each
    of its bytes. Returns 1 if a string is not ASCII, else 0.
    """
    row: bits.Place
    count: bits.Place
    other: cython.int = 0
    with cython.nogil:
        for row in range(at.shape[0]):
            if row + 4 < at.shape[0]:
                bits.prefetch(raw, at[row + 4], length[row + 4])
            count = bits.separators(raw, at[row], at[row] + length[row], places)
            other |= count & 1
            _items_of(
                raw, at[row], at[row] + length[row], row, places, count >> 1, looked_at, items, seen
            )
    return other


def split(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    looked_at: bits.LongTable,
    items: bits.LongTable,
    seen: bits.LongRoom,
    places: bits.LongRoom,
    names: bits.Room,
    name_ends: bits.IntRoom,
    values: bits.Room,
    value_ends: bits.IntRoom,
    row_ends: bits.IntRoom,
) -> int:
    """As `look`, and copy names and values of all items, one after the other.

    `name_ends` and `value_ends` receive one offset more than there are items; `row_ends` n + 1
    numbers of items.
    """
    row: bits.Place
    number: bits.Place
    count: bits.Place
    total: bits.Place = 0
    name_end: bits.Place = 0
    value_end: bits.Place = 0
    other: cython.int = 0
    with cython.nogil:
        name_ends[0] = value_ends[0] = row_ends[0] = 0
        for row in range(at.shape[0]):
            if row + 4 < at.shape[0]:
                bits.prefetch(raw, at[row + 4], length[row + 4])
            count = bits.separators(raw, at[row], at[row] + length[row], places)
            other |= count & 1
            count = _items_of(
                raw, at[row], at[row] + length[row], row, places, count >> 1, looked_at, items, seen
            )
            for number in range(count):
                if items[_NAME_SIZE, number]:
                    name_end = bits.copy(
                        raw, items[_NAME, number], items[_NAME_SIZE, number], names, name_end
                    )
                    value_end = bits.copy(
                        raw, items[_VALUE, number], items[_VALUE_SIZE, number], values, value_end
                    )
                    total += 1
                    name_ends[total] = cython.cast(cython.int, name_end)
                    value_ends[total] = cython.cast(cython.int, value_end)
            row_ends[row + 1] = cython.cast(cython.int, total)
    return other


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _items_of(
    raw: bits.Bytes,
    at: bits.Place,
    stop: bits.Place,
    row: bits.Place,
    places: bits.LongRoom,
    most: bits.Place,
    looked_at: bits.LongTable,
    items: bits.LongTable,
    seen: bits.LongRoom,
) -> bits.Place:
    """Fill `items` with those of one string; one whose name is repeated has no name. Returns how many.

    `places`: the `most` separators of the string.
    """
    place: bits.Place
    end: bits.Place
    size: bits.Place
    number: bits.Place = 0
    count: bits.Place = 0
    name: bits.Word
    which: bits.Place
    looked_at[1, row] = looked_at[3, row] = looked_at[5, row] = -1
    looked_at[0, row] = looked_at[2, row] = looked_at[4, row] = 0
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
        size = place - at
        if size and end > place + 1:
            name = bits.first_bytes(bits.word(raw, at), size)
            items[_NAME, count] = at
            items[_NAME_SIZE, count] = size
            items[_VALUE, count] = place + 1
            items[_VALUE_SIZE, count] = end - place - 1
            _forget_earlier(raw, name, count, row, items, seen)
            # Which one it is would be a guess for a branch: others write to a place that nobody reads.
            which = 6
            which = 0 if (name == _TAGS) & (size == 4) else which
            which = 2 if (name == _KEYS) & (size == 4) else which
            which = 4 if (name == _UNIQ_KEY) & (size == 8) else which
            looked_at[which, row] = place + 1
            looked_at[which + 1, row] = end - place - 1
            count += 1
        at = end + 1
    return count


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _forget_earlier(
    raw: bits.Bytes,
    name: bits.Word,
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
    last: bits.Word = bits.first_bytes(bits.word(raw, at + size - short), short)
    slot: bits.Place = bits.mixed(name, last ^ cython.cast(cython.ulonglong, size)) & mask
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
