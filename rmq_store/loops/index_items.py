"""Items of an index file: put as IndexFile#putKey does, and checked against their slots."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

# Of INDEX_HEADER, INDEX_SLOT and INDEX_ITEM in format/byte_layout.py, which a test compares.
_HEADER_SIZE = cython.declare(cython.int, 40)
_SLOT_SIZE = cython.declare(cython.int, 4)
_ITEM_SIZE = cython.declare(cython.int, 20)
_LOG_OFFSET_AT = cython.declare(cython.int, 4)
_TIME_DIFF_AT = cython.declare(cython.int, 12)
_PREVIOUS_AT = cython.declare(cython.int, 16)
_MOST_SECONDS = cython.declare(bits.Long, 0x7FFFFFFF)
_MOST_SLOTS = cython.declare(bits.Long, 0x7FFFFFFF)
_AHEAD = cython.declare(cython.int, 16)  # items whose slots are on their way from the memory
_FARTHEST = cython.declare(bits.Long, 0x7FFFFFFFFFFFFFFF)
_LOWER_HALF = cython.declare(bits.Long, 0xFFFFFFFF)
_WRONG = cython.declare(cython.int, 1)
_EMPTY = cython.declare(cython.int, 2)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(key_hash: cython.int, slots: bits.Place) -> bits.Place:
    # A division of 32 bits takes a fraction of the time of one of 64.
    slot: bits.Place = key_hash % cython.cast(cython.int, slots)
    return slot + slots if slot < 0 else slot


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _seconds(stamp: bits.Long, begin: bits.Long) -> bits.Long:
    """Whole seconds since a file's beginTimestamp, as an item holds them."""
    if begin <= 0 or stamp <= begin:
        return 0
    seconds: bits.Long = (stamp - begin) // 1000
    return seconds if seconds < _MOST_SECONDS else _MOST_SECONDS


def put_items(
    raw: bits.Bytes,
    file: bits.Room,
    slots: bits.Place,
    number: bits.Place,
    begin: bits.Long,
    hashes: bits.Ints,
    row: bits.Longs,
    offsets: bits.Longs,
    stamps: bits.Longs,
) -> int:
    """Put the items number, number + 1 and so on into an index file, which has room for them.

    Item i has the hash `hashes[i]`, and log offset and store time (ms) of record `row[i]`. `raw` and
    `file` are the same file, `begin` its beginTimestamp. Returns how many items have none before them
    in their slot.
    """
    item: bits.Place
    at: bits.Place
    slot_at: bits.Place
    previous: bits.Long
    since: bits.Long = begin
    alone: bits.Place = 0
    if not 0 < slots <= _MOST_SLOTS:
        raise IndexError(f"an index file of {slots} slots")
    with cython.nogil:
        for item in range(hashes.shape[0]):
            if item + _AHEAD < hashes.shape[0]:
                bits.prefetch(
                    raw, _HEADER_SIZE + _slot_of(hashes[item + _AHEAD], slots) * _SLOT_SIZE, 1
                )
            slot_at = _HEADER_SIZE + _slot_of(hashes[item], slots) * _SLOT_SIZE
            previous = bits.i32(raw, slot_at)
            if previous <= 0 or previous > number:  # of a damaged slot: IndexFile#putKey
                previous = 0
                alone += 1
            at = _HEADER_SIZE + slots * _SLOT_SIZE + number * _ITEM_SIZE
            bits.put_i32(file, at, hashes[item])
            bits.put_i64(file, at + _LOG_OFFSET_AT, offsets[row[item]])
            bits.put_i32(file, at + _TIME_DIFF_AT, _seconds(stamps[row[item]], since))
            bits.put_i32(file, at + _PREVIOUS_AT, previous)
            bits.put_i32(file, slot_at, number)
            if number <= 1:
                # The first item of a rolled file counts from the end of the previous file: the broker
                # sets beginTimestamp only afterwards.
                since = stamps[row[item]]
            number += 1
    return int(alone)


def check_items(
    raw: bits.Bytes,
    number: bits.Place,
    slots: bits.Place,
    begin: bits.Long,
    end: bits.Long,
    log_end: bits.Long,
    by_slot: bits.IntRoom,
    faults: bits.Room,
    counts: bits.LongRoom,
) -> None:
    """Follow the items number, number + 1 and so on of an index file, whose bytes are `raw`.

    `by_slot` has two numbers of each slot: that of its newest item so far, and how many there are. `faults`,
    by number, gets 1 for an item that does not lead to the one before it in its slot, and 2 for zeros.
    `counts` has the number of items that lead out of `begin` to `end`, and of the first of them; the
    number that the first item with a wrong chain should have; how many items lead to `log_end` or
    beyond; and the highest log offset.
    """
    item: bits.Place
    at: bits.Place
    slot: bits.Place
    fault: cython.int
    key_hash: cython.int
    offset: bits.Long
    previous: bits.Long
    items: bits.Place = raw.shape[0] // _ITEM_SIZE
    if not 0 < slots <= _MOST_SLOTS:
        raise IndexError(f"an index file of {slots} slots")
    with cython.nogil:
        for item in range(items):
            at = item * _ITEM_SIZE
            if item + _AHEAD < items:
                slot = _slot_of(bits.i32(raw, at + _AHEAD * _ITEM_SIZE), slots)
                bits.prefetch_number(by_slot, 2 * slot)
            key_hash = bits.i32(raw, at)
            offset = bits.i64(raw, at + _LOG_OFFSET_AT)
            previous = bits.i32(raw, at + _PREVIOUS_AT)
            slot = 2 * _slot_of(key_hash, slots)
            fault = 0
            if previous != by_slot[slot]:
                fault = _WRONG
                if counts[2] < 0:
                    counts[2] = by_slot[slot]
            if not (key_hash or offset or previous or bits.i32(raw, at + _TIME_DIFF_AT)):
                fault |= _EMPTY
            elif offset < begin or offset > end:
                if not counts[0]:
                    counts[1] = number
                counts[0] += 1
            if offset >= log_end:
                counts[3] += 1
            if offset > counts[4]:
                counts[4] = offset
            faults[number] = fault
            by_slot[slot] = number
            by_slot[slot + 1] += 1
            number += 1


def pairs_between(
    raw: bits.Bytes, start: bits.Long, stop: bits.Long, pairs: bits.LongRoom
) -> tuple[int, int, int]:
    """Write to `pairs` the items of `raw` that lead into the log range [start, stop), shorter than 2 GiB.

    Each as one number: how far its log offset is from `start` in the upper half, its hash in the lower.
    Returns how many there are, and the lowest and the highest log offset of all items of `raw`. Raises
    IndexError if `pairs` is too short.
    """
    item: bits.Place
    at: bits.Place
    offset: bits.Long
    low: bits.Long = _FARTHEST
    high: bits.Long = -1
    count: bits.Place = 0
    with cython.nogil:
        for item in range(raw.shape[0] // _ITEM_SIZE):
            at = item * _ITEM_SIZE
            offset = bits.i64(raw, at + _LOG_OFFSET_AT)
            low = min(low, offset)
            high = max(high, offset)
            if start <= offset < stop:
                pairs[count] = (offset - start) << 32 | (bits.i32(raw, at) & _LOWER_HALF)
                count += 1
    return int(count), int(low), int(high)
