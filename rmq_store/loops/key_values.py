"""Where the properties that queues and index list lie in property strings."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

_PLACES = cython.declare(cython.int, 6)  # numbers of a string in `values`
_NAME_END = cython.declare(cython.int, 0x01)
_ITEM_END = cython.declare(cython.int, 0x02)
# Names as little-endian words, and the half of one.
_HALF = cython.declare(bits.Word, 0xFFFFFFFF)
_TAGS = cython.declare(bits.Word, int.from_bytes(b"TAGS", "little"))
_KEYS = cython.declare(bits.Word, int.from_bytes(b"KEYS", "little"))
_UNIQ_KEY = cython.declare(bits.Word, int.from_bytes(b"UNIQ_KEY", "little"))
_OTHER_QUEUES = cython.declare(cython.int, 24)  # bytes of INNER_MULTI_QUEUE_OFFSET
_OTHER_1 = cython.declare(bits.Word, int.from_bytes(b"INNER_MU", "little"))
_OTHER_2 = cython.declare(bits.Word, int.from_bytes(b"LTI_QUEU", "little"))
_OTHER_3 = cython.declare(bits.Word, int.from_bytes(b"E_OFFSET", "little"))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-2)
def _named(raw: bits.Bytes, at: bits.Place, length: bits.Place) -> bits.Place:
    """Which one the name is: 0 TAGS, 2 KEYS, 4 UNIQ_KEY, 6 INNER_MULTI_QUEUE_OFFSET; else -1."""
    name: bits.Word
    if length == 4:
        name = bits.word(raw, at) & _HALF
        return 0 if name == _TAGS else 2 if name == _KEYS else -1
    if length == 8:
        return 4 if bits.word(raw, at) == _UNIQ_KEY else -1
    if length != _OTHER_QUEUES or bits.word(raw, at) != _OTHER_1:
        return -1
    return 6 if bits.word(raw, at + 8) == _OTHER_2 and bits.word(raw, at + 16) == _OTHER_3 else -1


def find_values(
    raw: bits.Bytes,
    starts: bits.Longs,
    lengths: bits.Longs,
    values: bits.LongRoom,
    other_queues: bits.Room,
) -> None:
    """Find the values of TAGS, KEYS and UNIQ_KEY in the property strings raw[start:start + length].

    Six numbers of each string go to `values`: start and end of each value in `raw`, both 0 without one.
    `other_queues` receives 1 for a string with INNER_MULTI_QUEUE_OFFSET, else 0. The rule is that of
    MessageDecoder#string2messageProperties: an item ends at 0x02 or with the string, its name at the
    first 0x01; one without name or value does not count; of a repeated name the last one does.
    """
    row: bits.Place
    at: bits.Place
    stop: bits.Place
    item_end: bits.Place
    name_end: bits.Place
    which: bits.Place
    with cython.nogil:
        for row in range(starts.shape[0]):
            for which in range(_PLACES):
                values[row * _PLACES + which] = 0
            other_queues[row] = 0
            at = starts[row]
            stop = at + lengths[row]
            while at < stop:
                item_end = bits.find(raw, at, stop, _ITEM_END)
                name_end = bits.find(raw, at, item_end, _NAME_END)
                if at < name_end < item_end - 1:
                    which = _named(raw, at, name_end - at)
                    if which == _PLACES:
                        other_queues[row] = 1
                    elif which >= 0:
                        values[row * _PLACES + which] = name_end + 1
                        values[row * _PLACES + which + 1] = item_end
                at = item_end + 1
