"""Java's String.hashCode of many texts, and the hashes under which the index lists messages."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

_PLACES = cython.declare(cython.int, 10)  # numbers of a record in `values`
_AHEAD = cython.declare(cython.int, 8)  # records whose keys are on their way from the memory
_KEY = cython.declare(cython.int, 32)  # bytes of a UNIQ_KEY
_SPACE = cython.declare(cython.int, 0x20)
_REPLACEMENT = cython.declare(cython.int, 0xFFFD)
_CONTINUES = cython.declare(cython.int, 0x80)
_CONTINUES_MASK = cython.declare(cython.int, 0xC0)
_ALL = cython.declare(bits.Word, 0xFFFFFFFFFFFFFFFF)
_HIGH_BITS = cython.declare(bits.Word, 0x8080808080808080)
_EVERY_2ND = cython.declare(bits.Word, 0x00FF00FF00FF00FF)
_LOW_HALVES = cython.declare(bits.Word, 0x0000FFFF0000FFFF)
_LOW_HALF = cython.declare(bits.Word, 0xFFFFFFFF)
_31_2 = cython.declare(bits.Word, 961)
_31_4 = cython.declare(bits.Word, 923521)
_31_8 = cython.declare(bits.Word, 852891037441 & 0xFFFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _hash_of_8(units: bits.Word) -> bits.Word:
    """The hash of eight bytes, the first one lowest: neighbours join to lanes twice as wide."""
    units = (units & _EVERY_2ND) * 31 + (units >> 8 & _EVERY_2ND)
    units = (units & _LOW_HALVES) * _31_2 + (units >> 16 & _LOW_HALVES)
    return ((units & _LOW_HALF) * _31_4 + (units >> 32)) & _LOW_HALF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _power_of_31(exponent: bits.Place) -> bits.Word:
    """For an exponent below 8."""
    value: bits.Word = 31 if exponent & 1 else 1
    if exponent & 2:
        value *= _31_2
    return (value * _31_4 if exponent & 4 else value) & _LOW_HALF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _continues(byte: cython.int) -> cython.bint:
    return byte & _CONTINUES_MASK == _CONTINUES


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _character(raw: bits.Bytes, at: bits.Place, stop: bits.Place) -> bits.Place:
    """A character times 8, and how many bytes it takes; U+FFFD as Java reads a malformed one."""
    lead: cython.int = raw[at]
    second: cython.int = raw[at + 1] if at + 1 < stop else 0
    third: cython.int = raw[at + 2] if at + 2 < stop else 0
    fourth: cython.int = raw[at + 3] if at + 3 < stop else 0
    if lead < 0x80:
        return lead << 3 | 1
    if lead < 0xC2 or lead > 0xF4 or not _continues(second):
        return _REPLACEMENT << 3 | 1
    if lead < 0xE0:
        return ((lead & 0x1F) << 6 | second & 0x3F) << 3 | 2
    if lead == 0xED and second >= 0xA0:  # a surrogate, which Java replaces as one
        return _REPLACEMENT << 3 | (3 if _continues(third) else 2)
    if (lead == 0xE0 and second < 0xA0) or (lead == 0xF0 and second < 0x90):
        return _REPLACEMENT << 3 | 1
    if lead == 0xF4 and second >= 0x90:
        return _REPLACEMENT << 3 | 1
    if not _continues(third):
        return _REPLACEMENT << 3 | 2
    if lead < 0xF0:
        return ((lead & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F) << 3 | 3
    if not _continues(fourth):
        return _REPLACEMENT << 3 | 3
    return (
        (lead & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
    ) << 3 | 4


@cython.cfunc
@cython.nogil
@cython.exceptval(0x5AFE, check=True)
def _hash_of_characters(
    raw: bits.Bytes, at: bits.Place, stop: bits.Place, before: bits.Word
) -> bits.Word:
    """As `_hash`, for any UTF-8: a character above U+FFFF is two units of UTF-16."""
    character: bits.Place
    value: bits.Word = before
    while at < stop:
        character = _character(raw, at, stop)
        at += character & 7
        character >>= 3
        if character >= 0x10000:
            character -= 0x10000
            value = (value * 31 + 0xD800 + (character >> 10)) & _LOW_HALF
            character = 0xDC00 + (character & 0x3FF)
        value = (value * 31 + character) & _LOW_HALF
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(0x5AFE, check=True)
def _hash(raw: bits.Bytes, at: bits.Place, stop: bits.Place, before: bits.Word) -> bits.Word:
    """The hash, as an unsigned number, of a text with the hash `before` and raw[at:stop] behind it."""
    value: bits.Word = before & _LOW_HALF
    units: bits.Word
    place: bits.Place = at
    some: bits.Place = (stop - at) & 7
    if some:
        # The first few bytes move to the end of the word: zeros in front of them count nothing.
        units = (bits.word(raw, at) & (_ALL >> (64 - 8 * some))) << (64 - 8 * some)
        if units & _HIGH_BITS:
            return _hash_of_characters(raw, at, stop, before)
        value = (value * _power_of_31(some) + _hash_of_8(units)) & _LOW_HALF
        place += some
    while place < stop:
        units = bits.word(raw, place)
        if units & _HIGH_BITS:
            return _hash_of_characters(raw, at, stop, before)
        value = (value * _31_8 + _hash_of_8(units)) & _LOW_HALF
        place += 8
    return value


def hash_texts(raw: bits.Bytes, ends: bits.Longs, hashes: bits.IntRoom) -> None:
    """`String.hashCode` of the UTF-8 text raw[ends[i]:ends[i + 1]], for each i, to `found[i]`."""
    row: bits.Place
    with cython.nogil:
        for row in range(hashes.shape[0]):
            hashes[row] = bits.signed32(_hash(raw, ends[row], ends[row + 1], 0))


def tags_codes(raw: bits.Bytes, values: bits.Longs, codes: bits.LongRoom) -> None:
    """The tagsCode of every record to `codes`; `values` as `property_items.look` writes them."""
    row: bits.Place
    at: bits.Place
    with cython.nogil:
        for row in range(codes.shape[0]):
            at = row * _PLACES
            if row + _AHEAD < codes.shape[0]:
                bits.prefetch(raw, values[at + _AHEAD * _PLACES], 1)
            codes[row] = bits.signed32(_hash(raw, values[at], values[at + 1], 0))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _put_item(
    raw: bits.Bytes,
    at: bits.Place,
    stop: bits.Place,
    front: bits.Word,
    items: bits.IntRoom,
    count: bits.Place,
) -> bits.Place:
    """Write the hash of an index key where there is room; returns the number of items with it."""
    value: cython.int
    if count < items.shape[0]:
        value = bits.signed32(_hash(raw, at, stop, front))
        # The smallest int has no positive counterpart (IndexFile#indexKeyHashMethod).
        items[count] = 0 if value == -2147483648 else -value if value < 0 else value
    return count + 1


def index_items(
    raw: bits.Bytes,
    values: bits.Longs,
    topic_code: bits.Longs,
    fronts: bits.Ints,
    tag_fronts: bits.Ints,
    of_keys: cython.bint,
    of_tags: cython.bint,
    start: bits.Place,
    count: bits.Place,
    counts: bits.LongRoom,
    items: bits.IntRoom,
) -> tuple[int, int]:
    """Write the key hash of every index item of the records from `start` on, behind `count` others.

    `values` as `property_items.look` writes them. `fronts` are the hashes of `topic#` of each topic,
    `tag_fronts` those of `topic#T#`; `of_keys` (UNIQ_KEY and KEYS) and `of_tags` say which items are
    wanted. `counts` receives the number of items of each record; a record whose count is negative has
    none. Returns the record before which `items` were full, and the number of items.
    """
    row: bits.Place = start
    at: bits.Place
    place: bits.Place
    stop: bits.Place
    more: bits.Place = count
    topic: bits.Place
    with cython.nogil:
        while row < counts.shape[0]:
            at = row * _PLACES
            topic = topic_code[row]
            more = count
            if row + _AHEAD < counts.shape[0]:  # its UNIQ_KEY, or what stands in place of one
                bits.prefetch(raw, values[at + _AHEAD * _PLACES + 4], _KEY)
            if counts[row] < 0:
                counts[row] = 0
                row += 1
                continue
            if of_keys:
                if values[at + 4] < values[at + 5]:
                    more = _put_item(
                        raw, values[at + 4], values[at + 5], fronts[topic], items, more
                    )
                place = values[at + 2]
                while place < values[at + 3]:
                    stop = bits.find(raw, place, values[at + 3], _SPACE)
                    if place < stop:
                        more = _put_item(raw, place, stop, fronts[topic], items, more)
                    place = stop + 1
            if of_tags and values[at] < values[at + 1]:
                more = _put_item(raw, values[at], values[at + 1], tag_fronts[topic], items, more)
            if more > items.shape[0]:
                break
            counts[row] = more - count
            count = more
            row += 1
    return row, count
