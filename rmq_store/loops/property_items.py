"""Property strings: their items, and where the values of TAGS, KEYS and UNIQ_KEY stand.

The rule is MessageDecoder#string2messageProperties: an item ends at 0x02 or at the end of the string.
Its first 0x01 separates name and value. Items with an empty name or value are skipped. If a name is
repeated, its last value is used.

Most strings have the names of an earlier one in the same order. Such a layout is remembered with the names
that were copied, so that a string of it is compared with them, and no name is looked at alone.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

PLACES = bits.PLACES
"""Numbers of a string in `values`: start and end of the values of TAGS, KEYS, UNIQ_KEY and
INNER_MULTI_QUEUE_OFFSET, both 0 without one, and a pair for others, which nobody reads."""

LAYOUTS = bits.LAYOUT * bits.LAYOUT_SLOTS
"""Numbers of the table of layouts."""

_PLUS = cython.declare(cython.int, 0x2B)
_MINUS = cython.declare(cython.int, 0x2D)
_ZERO = cython.declare(cython.int, 0x30)
_MOST = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
_TENTH = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF // 10)
_LOW = cython.declare(cython.longlong, 0xFFFFFFFF)  # the half of an entry that is the item


def look(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    values: bits.LongRoom,
    places: bits.LongRoom,
    items: bits.LongRoom,
) -> int:
    """Find the values of some names in n property strings; `values` receives PLACES numbers of each.

    `places` has room for one more than the longest string has bytes, `items` for four numbers of each of
    its items. Returns 1 if a string is not ASCII, else 0.
    """
    row: bits.Place
    count: bits.Place
    other: cython.int = 0
    with cython.nogil:
        for row in range(at.shape[0]):
            count = _separators(raw, at, length, row, places)
            other |= count & 1
            count = _items_of(at[row], places, count >> 1, items)
            _values_of(raw, row, count, items, values)
    return other


def numbers(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    name: bits.Bytes,
    values: bits.LongRoom,
    places: bits.LongRoom,
    items: bits.LongRoom,
) -> None:
    """Write to `values` the number of a property in each of n strings, where it is one (Long#parseLong).

    `places` and `items` as for `look`.
    """
    row: bits.Place
    item: bits.Place
    size: bits.Place = name.shape[0]
    with cython.nogil:
        for row in range(at.shape[0]):
            item = bits.ITEM * _items_of(
                at[row], places, _separators(raw, at, length, row, places) >> 1, items
            )
            while item > 0:  # the last one of a name counts
                item -= bits.ITEM
                if items[item + bits.NAME_SIZE] == size and bits.same(
                    raw, items[item + bits.NAME], name, 0, size
                ):
                    _parse(
                        raw, items[item + bits.VALUE], items[item + bits.VALUE_SIZE], row, values
                    )
                    break


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _parse(
    raw: bits.Bytes, at: bits.Place, size: bits.Place, row: bits.Place, values: bits.LongRoom
) -> cython.int:
    """Write a number of 64 bits, if the text is one: digits, maybe with a sign before them.

    The digits are subtracted: the least number has no positive counterpart.
    """
    stop: bits.Place = at + size
    least: bits.Long = -_MOST - 1
    value: bits.Long = 0
    digit: bits.Long
    minus: cython.bint = raw[at] == _MINUS
    if minus or raw[at] == _PLUS:
        at += 1
    if at == stop:
        return 0
    while at < stop:
        digit = cython.cast(cython.longlong, raw[at]) - _ZERO
        if digit < 0 or digit > 9 or value < -_TENTH or value * 10 < least + digit:
            return 0
        value = value * 10 - digit
        at += 1
    if minus or value > least:
        values[row] = value if minus else -value
    return 0


def split(
    raw: bits.Bytes,
    at: bits.Longs,
    length: bits.Longs,
    values: bits.LongRoom,
    places: bits.LongRoom,
    items: bits.LongRoom,
    seen: bits.LongRoom,
    layouts: bits.LongRoom,
    names: bits.Room,
    name_ends: bits.IntRoom,
    texts: bits.Room,
    text_ends: bits.IntRoom,
    row_ends: bits.IntRoom,
    tags: bits.Room,
    tag_ends: bits.IntRoom,
    keys: bits.Room,
    key_ends: bits.IntRoom,
    uniq_keys: bits.Room,
    uniq_key_ends: bits.IntRoom,
    is_there: bits.Room,
) -> int:
    """Copy name and value of all items to `names` and `texts`, one after the other; otherwise as `look`.

    `seen` has zeros, at least twice as many as `items` has items, a power of two; `layouts` has LAYOUTS
    zeros. `name_ends` and `text_ends` receive one offset more than there are items; `row_ends` n + 1
    numbers of items. The values of TAGS, KEYS and UNIQ_KEY are copied to rooms of their own too: `tag_ends`
    and its like receive n + 1 offsets, `is_there` 1 for a string that has the value, else 0: n numbers for
    TAGS, then as many for KEYS and for UNIQ_KEY. `values` has room for the PLACES of one string.
    """
    row: bits.Place
    most: bits.Place
    count: bits.Place
    layout: bits.Place
    first: bits.Place = 0
    total: bits.Place
    rows: bits.Place = at.shape[0]
    mark: bits.Long = 0
    other: cython.int = 0
    with cython.nogil:
        name_ends[0] = text_ends[0] = row_ends[0] = 0
        tag_ends[0] = key_ends[0] = uniq_key_ends[0] = 0
        for row in range(rows):
            most = _separators(raw, at, length, row, places)
            other |= most & 1
            most >>= 1
            layout = _layout_of(raw, at[row], places, most)
            total = _copy_as_earlier(
                raw,
                at[row],
                places,
                most,
                layout,
                layouts,
                names,
                name_ends,
                texts,
                text_ends,
                first,
            )
            if total >= 0:
                _values_as_earlier(places, layout, layouts, values)
            else:
                count = _items_of(at[row], places, most, items)
                _values_of(raw, 0, count, items, values)
                # A name that comes twice is noticed when it is copied: then once more, without its first.
                while total < 0:
                    mark += 1
                    total = _copy_items(
                        raw, count, items, mark, seen, names, name_ends, texts, text_ends, first
                    )
                _remember(first, total - first, most, places, values, layout, layouts)
            is_there[row] = _copy_value(raw, values, 0, row, tags, tag_ends)
            is_there[rows + row] = _copy_value(raw, values, 2, row, keys, key_ends)
            is_there[2 * rows + row] = _copy_value(raw, values, 4, row, uniq_keys, uniq_key_ends)
            row_ends[row + 1] = cython.cast(cython.int, total)
            first = total
    return other


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _separators(
    raw: bits.Bytes, at: bits.Longs, length: bits.Longs, row: bits.Place, places: bits.LongRoom
) -> bits.Place:
    """Those of one string, as `bits.separators` gives them; an item that the end ends has one too."""
    packed: bits.Place
    count: bits.Place
    if row + 4 < at.shape[0]:
        bits.prefetch(raw, at[row + 4], length[row + 4])
    packed = bits.separators(raw, at[row], at[row] + length[row], places)
    count = packed >> 1
    if count and not places[count - 1] & 1:
        places[count] = (at[row] + length[row]) << 1 | 1
        packed += 2
    return packed


# --- items one by one -----------------------------------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _items_of(
    at: bits.Place, places: bits.LongRoom, most: bits.Place, items: bits.LongRoom
) -> bits.Place:
    """Fill `items` with those of a string from `at` on, which has `most` separators; returns their number."""
    place: bits.Place
    end: bits.Place
    number: bits.Place = 0
    item: bits.Place = 0
    while number < most:
        place = places[number] >> 1
        end = place
        while not places[number] & 1:
            number += 1
            end = places[number] >> 1
        number += 1
        if place > at and end > place + 1:
            items[item + bits.NAME] = at
            items[item + bits.NAME_SIZE] = place - at
            items[item + bits.VALUE] = place + 1
            items[item + bits.VALUE_SIZE] = end - place - 1
            item += bits.ITEM
        at = end + 1
    return item // bits.ITEM


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _values_of(
    raw: bits.Bytes, row: bits.Place, count: bits.Place, items: bits.LongRoom, values: bits.LongRoom
) -> cython.int:
    """Write where the values of the PLACES of a string are."""
    which: bits.Place
    item: bits.Place
    number: bits.Place
    for which in range(row * bits.PLACES, row * bits.PLACES + bits.PLACES):
        values[which] = 0
    for number in range(count):
        item = number * bits.ITEM
        which = _place_of(raw, items[item + bits.NAME], items[item + bits.NAME_SIZE])
        which += row * bits.PLACES
        values[which] = items[item + bits.VALUE]
        values[which + 1] = items[item + bits.VALUE] + items[item + bits.VALUE_SIZE]
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _place_of(raw: bits.Bytes, at: bits.Place, size: bits.Place) -> bits.Place:
    """Where the value of a name stands among the PLACES of its string."""
    name: bits.Word = bits.first_bytes(bits.word(raw, at), size)
    # Which one it is would be a guess for a branch.
    place: bits.Place = bits.OTHERS
    rest: cython.bint
    place = 0 if (name == bits.TAGS) & (size == 4) else place
    place = 2 if (name == bits.KEYS) & (size == 4) else place
    place = 4 if (name == bits.UNIQ_KEY) & (size == 8) else place
    if size != bits.OTHER_QUEUES_SIZE or name != bits.OTHER_QUEUES_1:
        return place
    rest = (
        bits.word(raw, at + 8) == bits.OTHER_QUEUES_2
        and bits.word(raw, at + 16) == bits.OTHER_QUEUES_3
    )
    return 6 if rest else place


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2)
def _copy_items(
    raw: bits.Bytes,
    count: bits.Place,
    items: bits.LongRoom,
    mark: bits.Long,
    seen: bits.LongRoom,
    names: bits.Room,
    name_ends: bits.IntRoom,
    texts: bits.Room,
    text_ends: bits.IntRoom,
    total: bits.Place,
) -> bits.Place:
    """Copy the items of one string behind those before; returns how many there are now.

    -1 if a name came twice: its earlier items are out of `items` then.
    """
    number: bits.Place
    item: bits.Place
    size: bits.Place
    name_end: bits.Place = name_ends[total]
    text_end: bits.Place = text_ends[total]
    doubled: cython.bint = False
    for number in range(count):
        item = bits.ITEM * number
        size = items[item + bits.NAME_SIZE]
        if size == 0:
            continue
        doubled |= _is_repeated(raw, item, items, mark, seen)
        name_end = bits.copy(raw, items[item + bits.NAME], size, names, name_end)
        text_end = bits.copy(
            raw, items[item + bits.VALUE], items[item + bits.VALUE_SIZE], texts, text_end
        )
        total += 1
        name_ends[total] = cython.cast(cython.int, name_end)
        text_ends[total] = cython.cast(cython.int, text_end)
    return -1 if doubled else total


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _is_repeated(
    raw: bits.Bytes, item: bits.Place, items: bits.LongRoom, mark: bits.Long, seen: bits.LongRoom
) -> cython.int:
    """Whether an earlier item has the same name; that one is taken out of `items`.

    `seen` is a table of hashes with open places. An entry has the mark of the pass and the item, so
    that what earlier passes left counts as empty.
    """
    at: bits.Place = items[item + bits.NAME]
    size: bits.Place = items[item + bits.NAME_SIZE]
    earlier: bits.Place
    mask: bits.Place = seen.shape[0] - 1
    # The last bytes of the name too: many start alike.
    short: bits.Place = size if size < 8 else 8
    first: bits.Word = bits.first_bytes(bits.word(raw, at), size)
    last: bits.Word = bits.first_bytes(bits.word(raw, at + size - short), short)
    slot: bits.Place = bits.mixed(first, last ^ cython.cast(cython.ulonglong, size)) & mask
    repeated: cython.int = 0
    while seen[slot] >> 32 == mark:
        earlier = seen[slot] & _LOW
        if items[earlier + bits.NAME_SIZE] == size and bits.same(
            raw, items[earlier + bits.NAME], raw, at, size
        ):
            items[earlier + bits.NAME_SIZE] = 0
            repeated = 1
            break
        slot = (slot + 1) & mask
    seen[slot] = mark << 32 | item
    return repeated


# --- strings with the names of an earlier one -----------------------------------------------------------


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2)
def _layout_of(
    raw: bits.Bytes, at: bits.Place, places: bits.LongRoom, most: bits.Place
) -> bits.Place:
    """Where in `layouts` a string of `most` separators has its place: a hash of what few looks show."""
    key: bits.Word
    sizes: bits.Place = most
    if most == 0:
        return 0
    if most > 3:  # the sizes of the second name and of the last one
        sizes += (places[2] >> 1) - (places[1] >> 1) << 16
        sizes += (places[most - 2] >> 1) - (places[most - 3] >> 1) << 32
    key = bits.mixed(bits.first_bytes(bits.word(raw, at), (places[0] >> 1) - at), sizes)
    return key % bits.LAYOUT_SLOTS * bits.LAYOUT


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2)
def _copy_as_earlier(
    raw: bits.Bytes,
    at: bits.Place,
    places: bits.LongRoom,
    most: bits.Place,
    layout: bits.Place,
    layouts: bits.LongRoom,
    names: bits.Room,
    name_ends: bits.IntRoom,
    texts: bits.Room,
    text_ends: bits.IntRoom,
    total: bits.Place,
) -> bits.Place:
    """As `_copy_items`, if names and values alternate and the names are those of the layout; else -1."""
    earlier: bits.Place = layouts[layout + bits.LAYOUT_FIRST]
    count: bits.Place = layouts[layout + bits.LAYOUT_ITEMS]
    name_at: bits.Place = name_ends[earlier]
    further: bits.Place = name_ends[total] - name_at
    text_end: bits.Place = text_ends[total]
    number: bits.Place
    size: bits.Place
    place: bits.Place
    end: bits.Place
    if count == 0 or 2 * count != most:
        return -1
    for number in range(count):
        place = places[2 * number] >> 1
        end = places[2 * number + 1] >> 1
        size = name_ends[earlier + number + 1] - name_at
        if (places[2 * number] & 1) | (places[2 * number + 1] & 1 ^ 1) | (end <= place + 1):
            return -1
        if size != place - at or not bits.same(raw, at, names, name_at, size):
            return -1
        text_end = bits.copy(raw, place + 1, end - place - 1, texts, text_end)
        name_at += size
        total += 1
        name_ends[total] = cython.cast(cython.int, name_at + further)
        text_ends[total] = cython.cast(cython.int, text_end)
        at = end + 1
    size = name_at - name_ends[earlier]
    bits.copy(names, name_ends[earlier], size, names, name_ends[total - count])
    return total


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _values_as_earlier(
    places: bits.LongRoom, layout: bits.Place, layouts: bits.LongRoom, values: bits.LongRoom
) -> cython.int:
    """As `_values_of`, for a string of a layout."""
    which: bits.Place
    item: bits.Place
    is_there: bits.Place
    for which in range(bits.PLACES // 2):
        item = layouts[layout + bits.LAYOUT_VALUES + which]
        is_there = item >= 0
        item *= is_there
        values[2 * which] = is_there * ((places[2 * item] >> 1) + 1)
        values[2 * which + 1] = is_there * (places[2 * item + 1] >> 1)
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _copy_value(
    raw: bits.Bytes,
    values: bits.LongRoom,
    first: bits.Place,
    row: bits.Place,
    out: bits.Room,
    ends: bits.IntRoom,
) -> cython.int:
    """Copy the value that stands from `first` on in `values` behind those of earlier rows; 0 without one."""
    start: bits.Place = values[first]
    end: bits.Place = values[first + 1]
    ends[row + 1] = cython.cast(cython.int, bits.copy(raw, start, end - start, out, ends[row]))
    return end > 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _remember(
    first: bits.Place,
    count: bits.Place,
    most: bits.Place,
    places: bits.LongRoom,
    values: bits.LongRoom,
    layout: bits.Place,
    layouts: bits.LongRoom,
) -> cython.int:
    """Remember the layout of a string whose items are copied, if they are all that its separators make."""
    which: bits.Place
    item: bits.Place
    if 2 * count != most:  # another separator in a value, something empty, or a name twice
        return 0
    layouts[layout + bits.LAYOUT_FIRST] = first
    layouts[layout + bits.LAYOUT_ITEMS] = count
    for which in range(bits.PLACES // 2):
        layouts[layout + bits.LAYOUT_VALUES + which] = -1
        for item in range(count):
            if values[2 * which] == (places[2 * item] >> 1) + 1:
                layouts[layout + bits.LAYOUT_VALUES + which] = item
    return 0
