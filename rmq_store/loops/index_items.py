"""Items of an index file: put as IndexFile#putKey does, and checked against their slots."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops.bits import (
        Bytes,
        IntRoom,
        Ints,
        Long,
        LongRoom,
        Longs,
        Place,
        Room,
        i32,
        i64,
        put_i32,
        put_i64,
    )
else:
    from rmq_store.loops.bits import (
        Bytes,
        IntRoom,
        Ints,
        Long,
        LongRoom,
        Longs,
        Place,
        Room,
        i32,
        i64,
        put_i32,
        put_i64,
    )

# Of INDEX_HEADER, INDEX_SLOT and INDEX_ITEM in format/layout.py, which a test compares.
_HEADER_SIZE = cython.declare(cython.int, 40)
_SLOT_SIZE = cython.declare(cython.int, 4)
_ITEM_SIZE = cython.declare(cython.int, 20)
_LOG_OFFSET_AT = cython.declare(cython.int, 4)
_TIME_DIFF_AT = cython.declare(cython.int, 12)
_PREVIOUS_AT = cython.declare(cython.int, 16)
_MOST_SECONDS = cython.declare(Long, 0x7FFFFFFF)
_WRONG = cython.declare(cython.int, 1)
_EMPTY = cython.declare(cython.int, 2)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(key_hash: Long, slots: Place) -> Place:
    slot: Place = key_hash % slots
    return slot + slots if slot < 0 else slot


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _seconds(stamp: Long, begin: Long) -> Long:
    """Whole seconds since a file's beginTimestamp, as an item holds them."""
    if begin <= 0 or stamp <= begin:
        return 0
    seconds: Long = (stamp - begin) // 1000
    return seconds if seconds < _MOST_SECONDS else _MOST_SECONDS


def put_items(
    raw: Bytes,
    file: Room,
    slots: Place,
    number: Place,
    begin: Long,
    hashes: Ints,
    row: Longs,
    offsets: Longs,
    stamps: Longs,
) -> int:
    """Put the items number, number + 1 and so on into an index file, which has room for them.

    Item i has the hash `hashes[i]`, and log offset and store time (ms) of record `row[i]`. `raw` and
    `file` are the same file, `begin` its beginTimestamp. Returns how many items have none before them
    in their slot.
    """
    item: Place
    at: Place
    slot_at: Place
    previous: Long
    since: Long = begin
    alone: Place = 0
    with cython.nogil:
        for item in range(hashes.shape[0]):
            slot_at = _HEADER_SIZE + _slot_of(hashes[item], slots) * _SLOT_SIZE
            previous = i32(raw, slot_at)
            if previous <= 0 or previous > number:  # of a damaged slot: IndexFile#putKey
                previous = 0
                alone += 1
            at = _HEADER_SIZE + slots * _SLOT_SIZE + number * _ITEM_SIZE
            put_i32(file, at, hashes[item])
            put_i64(file, at + _LOG_OFFSET_AT, offsets[row[item]])
            put_i32(file, at + _TIME_DIFF_AT, _seconds(stamps[row[item]], since))
            put_i32(file, at + _PREVIOUS_AT, previous)
            put_i32(file, slot_at, number)
            if number <= 1:
                # The first item of a rolled file counts from the end of the previous file: the broker
                # sets beginTimestamp only afterwards.
                since = stamps[row[item]]
            number += 1
    return int(alone)


def check_items(
    raw: Bytes,
    number: Place,
    slots: Place,
    begin: Long,
    end: Long,
    log_end: Long,
    newest: IntRoom,
    used: IntRoom,
    faults: Room,
    found: LongRoom,
) -> None:
    """Follow the items number, number + 1 and so on of an index file, whose bytes are `raw`.

    By slot, `newest` has the number of the newest item so far, and `used` how many there are. `faults`,
    by number, gets 1 for an item that does not lead to the one before it in its slot, and 2 for zeros.
    `found` has the number of items that lead out of `begin` to `end`, and of the first of them; the
    number that the first item with a wrong chain should have; how many items lead to `log_end` or
    beyond; and the highest log offset.
    """
    item: Place
    at: Place
    slot: Place
    fault: cython.int
    key_hash: Long
    offset: Long
    previous: Long
    with cython.nogil:
        for item in range(raw.shape[0] // _ITEM_SIZE):
            at = item * _ITEM_SIZE
            key_hash = i32(raw, at)
            offset = i64(raw, at + _LOG_OFFSET_AT)
            previous = i32(raw, at + _PREVIOUS_AT)
            slot = _slot_of(key_hash, slots)
            fault = 0
            if previous != newest[slot]:
                fault = _WRONG
                if found[2] < 0:
                    found[2] = newest[slot]
            if not (key_hash or offset or previous or i32(raw, at + _TIME_DIFF_AT)):
                fault |= _EMPTY
            elif offset < begin or offset > end:
                if not found[0]:
                    found[1] = number
                found[0] += 1
            if offset >= log_end:
                found[3] += 1
            if offset > found[4]:
                found[4] = offset
            faults[number] = fault
            newest[slot] = number
            used[slot] += 1
            number += 1
