"""Records followed along a log, and their fields: fixed ones as numbers, others as places and lengths.

A record: docs/format-commitlog.md; CommitLog#checkMessageAndReturnSize is what a broker checks of it.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

FAULTS = (
    "intact",
    "outside",
    "magic",
    "size",
    "head",
    "body",
    "topic",
    "properties",
    "sum",
    "elsewhere",
    "unwritten",
)
"""What a record was refused for, by number: the first field that cannot be right, or unwritten bytes."""

FRONT_SIZE = cython.declare(cython.int, 36)  # bytes up to the end of physicalOffset
_ENTRY_HEAD = cython.declare(cython.int, 48)  # of a DLedger log, before each record
_AHEAD = cython.declare(cython.int, 2048)  # bytes
_INTACT = cython.declare(cython.int, 0)
_OUTSIDE = cython.declare(cython.int, 1)
_MAGIC = cython.declare(cython.int, 2)
_SIZE = cython.declare(cython.int, 3)
_HEAD = cython.declare(cython.int, 4)
_BODY = cython.declare(cython.int, 5)
_TOPIC = cython.declare(cython.int, 6)
_PROPERTIES = cython.declare(cython.int, 7)
_SUM = cython.declare(cython.int, 8)
_ELSEWHERE = cython.declare(cython.int, 9)
_UNWRITTEN = cython.declare(cython.int, 10)
_SECTOR = cython.declare(cython.int, 512)  # bytes of the smallest disk write

# Rows of the two tables.
LONG_FIELDS = (
    "total",
    "queue_offset",
    "physical_offset",
    "born_timestamp",
    "store_timestamp",
    "prepared_transaction_offset",
    "born_host",
    "store_host",
    "body_at",
    "body_length",
    "topic_at",
    "topic_length",
    "properties_at",
    "properties_length",
)
INT_FIELDS = ("magic", "body_crc", "queue_id", "flag", "sys_flag", "reconsume_times", "fault")


def split(
    raw: bits.Bytes, base: bits.Place, at: bits.Longs, longs: bits.LongTable, ints: bits.IntTable
) -> None:
    """Fill a column of `longs` and `ints`, whose rows are named above, for each record.

    `at`: places in `raw`, which is the log from offset `base` on. `fault` is 0 for a whole record at
    its physicalOffset, else a place in FAULTS; then the fields behind that one are zero.
    """
    row: bits.Place
    with cython.nogil:
        for row in range(at.shape[0]):
            _prefetch(raw, at, row)
            ints[6, row] = _split(raw, base, at[row], row, longs, ints)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _prefetch(raw: bits.Bytes, at: bits.Longs, row: bits.Place) -> cython.int:
    """Ask for the head of a record that follows soon, and for what stands behind a nearer one's body."""
    place: bits.Place
    if row + 8 < at.shape[0]:
        bits.prefetch(raw, at[row + 8], bits.HEAD_SIZE)
    if row + 4 < at.shape[0]:
        place = at[row + 4]
        if 0 <= place <= raw.shape[0] - bits.HEAD_SIZE:
            bits.prefetch(
                raw, place + bits.HEAD_SIZE + bits.i32(raw, place + bits.HEAD_SIZE - 4), 128
            )
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _split(
    raw: bits.Bytes,
    base: bits.Place,
    at: bits.Place,
    row: bits.Place,
    longs: bits.LongTable,
    ints: bits.IntTable,
) -> cython.int:
    size: bits.Place
    place: bits.Place
    end: bits.Place
    flags: cython.int
    column: cython.int
    fault: cython.int
    if at < 0 or at > raw.shape[0] - bits.HEAD_SIZE:
        for column in range(5):
            ints[column, row] = 0
        return _refused(_OUTSIDE, 0, row, longs, ints)
    size = bits.i32(raw, at)
    flags = bits.i32(raw, at + 36)
    longs[0, row] = size
    ints[0, row] = bits.i32(raw, at + 4)
    ints[1, row] = bits.i32(raw, at + 8)
    ints[2, row] = bits.i32(raw, at + 12)
    ints[3, row] = bits.i32(raw, at + 16)
    longs[1, row] = bits.i64(raw, at + 20)
    longs[2, row] = bits.i64(raw, at + 28)
    ints[4, row] = flags
    longs[3, row] = bits.i64(raw, at + 40)
    place = at + 56
    end = at + bits.HEAD_SIZE
    if flags & bits.BORN_HOST_V6:
        place += bits.V6_EXTRA
        end += bits.V6_EXTRA
    if flags & bits.STORE_HOST_V6:
        end += bits.V6_EXTRA
    if ints[0, row] != bits.MAGIC_V1 and ints[0, row] != bits.MAGIC_V2:
        return _refused(_MAGIC, 4, row, longs, ints)
    if size < bits.MIN_RECORD_SIZE or size > raw.shape[0] - at:
        return _refused(_SIZE, 4, row, longs, ints)
    if end > at + size:
        return _refused(_HEAD, 4, row, longs, ints)
    longs[4, row] = bits.i64(raw, place)
    ints[5, row] = bits.i32(raw, end - 16)
    longs[5, row] = bits.i64(raw, end - 12)
    # Of a host that has an IPv6 address: the first half of that.
    longs[6, row] = bits.i64(raw, at + bits.BORN_HOST_AT)
    longs[7, row] = bits.i64(raw, place + 8)
    fault = _lengths(raw, end, at + size, row, longs, 2 if ints[0, row] == bits.MAGIC_V2 else 1)
    if fault == _INTACT and longs[2, row] != base + at:
        return _ELSEWHERE
    if fault == _INTACT and _is_unwritten(raw, longs[12, row], longs[13, row]):
        return _UNWRITTEN
    return fault


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _is_unwritten(raw: bits.Bytes, properties: bits.Place, length: bits.Place) -> cython.int:
    """Whether topic and properties, which no CRC covers, have zeros where bytes did not reach the disk.

    A writer copies a record from front to back into zeros, so its last byte shows whether the end is
    there: that of the properties, or without any that of the topic, because the size proves the length
    of 0 behind it. A disk writes whole sectors.
    """
    if raw[properties - 3] == 0 or (length > 0 and raw[properties + length - 1] == 0):
        return 1
    return length > _SECTOR and _lacks_sector(raw, properties, properties + length)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _lacks_sector(raw: bits.Bytes, start: bits.Place, end: bits.Place) -> cython.int:
    """Whether as many zeros as a sector has follow each other."""
    first: bits.Place
    last: bits.Place
    at: bits.Place = start + _SECTOR - 1
    while at < end:
        first = last = at
        while last < end and raw[last] == 0:
            last += 1
        while last > at and first > start and raw[first - 1] == 0:
            first -= 1
        if last - first >= _SECTOR:
            return 1
        at = last + _SECTOR
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _refused(
    fault: cython.int,
    first: cython.int,
    row: bits.Place,
    longs: bits.LongTable,
    ints: bits.IntTable,
) -> cython.int:
    """As `_rest_unread`, for a head that is not read to its end."""
    ints[5, row] = 0
    return _rest_unread(fault, first, row, longs)


@cython.cfunc
@cython.nogil
@cython.exceptval(-1)
def _rest_unread(
    fault: cython.int, first: cython.int, row: bits.Place, longs: bits.LongTable
) -> cython.int:
    """Write zeros to the fields from `first` on, which a refused record lacks; returns its fault."""
    column: cython.int
    for column in range(first, 14):
        longs[column, row] = 0
    return fault


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _lengths(
    raw: bits.Bytes,
    place: bits.Place,
    end: bits.Place,
    row: bits.Place,
    longs: bits.LongTable,
    topic_width: cython.int,
) -> cython.int:
    """Place and length of body, topic and properties. `place`: the end of the head."""
    length: bits.Place = bits.i32(raw, place - 4)
    longs[8, row] = place
    longs[9, row] = length
    if length < 0 or length > end - place:
        return _rest_unread(_BODY, 10, row, longs)
    place += length
    longs[10, row] = place + topic_width
    if end - place < topic_width:
        return _rest_unread(_TOPIC, 11, row, longs)
    length = bits.i16(raw, place)
    if topic_width == 1:
        length >>= 8
    longs[11, row] = length
    place += topic_width
    if length < 0 or length > end - place:
        return _rest_unread(_TOPIC, 12, row, longs)
    place += length
    longs[12, row] = place + 2
    if end - place < 2:
        return _rest_unread(_PROPERTIES, 13, row, longs)
    length = bits.i16(raw, place)
    longs[13, row] = length
    place += 2
    if length < 0 or length > end - place:
        return _PROPERTIES
    return _INTACT if place + length == end else _SUM


def follow(
    raw: bits.Bytes, base: bits.Place, start: bits.Place, stop: bits.Place, starts: bits.LongRoom
) -> tuple[int, int]:
    """Write the places of consecutive records, from `start` on and before `stop`, to `starts`.

    Returns how many there are, and the place behind the last one. A record counts if it has a magic and
    a possible size, ends inside of `raw`, and its physicalOffset is `base` plus its place. Ends too when
    `starts` is full.
    """
    at: bits.Place = start
    count: bits.Place = 0
    size: bits.Place
    magic: cython.int
    last: bits.Place = raw.shape[0] - FRONT_SIZE
    with cython.nogil:
        before = 0
        while at < stop and at <= last and count < starts.shape[0]:
            size = bits.i32(raw, at)
            magic = bits.i32(raw, at + 4)
            if magic != bits.MAGIC_V1 and magic != bits.MAGIC_V2:
                break
            if size < bits.MIN_RECORD_SIZE or size > raw.shape[0] - at:
                break
            if bits.i64(raw, at + 28) != base + at:
                break
            starts[count] = at
            count += 1
            # Where the fourth record from here begins, if records are of one size; else all bytes that are
            # further ahead: the place of a record is known when the one before it is there.
            if size == before:
                bits.prefetch(raw, at + 4 * size, 1)
            else:
                bits.prefetch(raw, at + _AHEAD, size)
            before = size
            at += size
    return count, at


def follow_entries(
    raw: bits.Bytes, base: bits.Place, start: bits.Place, stop: bits.Place, starts: bits.LongRoom
) -> tuple[int, int]:
    """As `follow`, for records in the entries of a DLedger log: `start` is that of an entry.

    Writes the places of the records. The head of an entry must fit its place and its record, and the
    index of each must be one more than that before it, in the same term.
    """
    at: bits.Place = start
    count: bits.Place = 0
    size: bits.Place
    magic: cython.int
    index: bits.Long = 0
    term: bits.Long = 0
    last: bits.Place = raw.shape[0] - _ENTRY_HEAD - FRONT_SIZE
    with cython.nogil:
        while at < stop and at <= last and count < starts.shape[0]:
            size = bits.i32(raw, at + _ENTRY_HEAD)
            magic = bits.i32(raw, at + _ENTRY_HEAD + 4)
            if magic != bits.MAGIC_V1 and magic != bits.MAGIC_V2:
                break
            if size < bits.MIN_RECORD_SIZE or size > raw.shape[0] - at - _ENTRY_HEAD:
                break
            if bits.i64(raw, at + _ENTRY_HEAD + 28) != base + at + _ENTRY_HEAD:
                break
            if bits.i32(raw, at) != 1 or bits.i64(raw, at + 24) != base + at:
                break
            if bits.i32(raw, at + 4) != size + _ENTRY_HEAD or bits.i32(raw, at + 44) != size:
                break
            if count > 0 and (bits.i64(raw, at + 8) != index + 1 or bits.i64(raw, at + 16) != term):
                break
            index = bits.i64(raw, at + 8)
            term = bits.i64(raw, at + 16)
            starts[count] = at + _ENTRY_HEAD
            count += 1
            bits.prefetch(raw, at + 4 * (size + _ENTRY_HEAD), 1)
            at += size + _ENTRY_HEAD
    return count, at
