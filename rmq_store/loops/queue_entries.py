"""Queue entries: as files have them, beside the records they lead to, and of many queues in log order.

The log offsets of records are spread evenly enough to be counted into as many buckets as there are rows:
most have one or two. That takes less than half the time of a sort.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.rmq_store.loops import bits
else:
    from rmq_store.loops import bits

_UNIT_SIZE = cython.declare(cython.int, 20)  # of an entry in a ConsumeQueue file
_COLUMNS = cython.declare(cython.int, 5)
_FILLER_SIZE = cython.declare(cython.longlong, 0x7FFFFFFF)
_CROWD = cython.declare(cython.int, 16)  # rows of a bucket, which are put in order one by one

SAME, OTHER_RECORD, OTHER_QUEUE, OTHER_OFFSET = range(4)
"""How an entry compares with the bytes it leads to: there is no whole record of its size, the record names
another queue, or another offset in the queue. The first that holds."""
_SAME = cython.declare(cython.int, 0)
_OTHER_RECORD = cython.declare(cython.int, 1)
_OTHER_QUEUE = cython.declare(cython.int, 2)
_OTHER_OFFSET = cython.declare(cython.int, 3)


def split(raw: bits.Bytes, first: bits.Long, columns: bits.LongRoom) -> None:
    """Write n entries of a ConsumeQueue as the columns of format/queue_entries.py, behind each other.

    `raw`: the file from the queue offset `first` on.
    """
    row: bits.Place
    at: bits.Place
    n: bits.Place = columns.shape[0] // _COLUMNS
    with cython.nogil:
        for row in range(n):
            at = row * _UNIT_SIZE
            columns[row] = first + row
            columns[n + row] = bits.i64(raw, at)
            columns[2 * n + row] = bits.i32(raw, at + 8)
            columns[3 * n + row] = bits.i64(raw, at + 12)
            columns[4 * n + row] = 1


def all_lead(log_offset: bits.Longs, size: bits.Longs, end: bits.Long) -> bool:
    """Whether each entry may lead to a record of a log that ends at `end`."""
    row: bits.Place
    wrong: cython.bint = False
    with cython.nogil:
        for row in range(log_offset.shape[0]):
            wrong |= (
                size[row] <= 0
                or size[row] >= _FILLER_SIZE
                or log_offset[row] < 0
                or log_offset[row] > end - size[row]
            )
    return not wrong


def compare(
    raw: bits.Bytes,
    fault: bits.Ints,
    total: bits.Longs,
    topic_at: bits.Longs,
    topic_length: bits.Longs,
    queue_id: bits.Ints,
    queue_offset: bits.Longs,
    names: bits.Bytes,
    starts: bits.Ints,
    stops: bits.Ints,
    queue_ids: bits.Ints,
    queue: bits.Longs,
    offset: bits.Longs,
    size: bits.Longs,
    out: bits.Room,
) -> int:
    """Write how each of n entries compares with its record; returns how many are the same.

    The fields up to `queue_offset` are of the records, as record_fields.split finds them. Queue i has the
    queueId `queue_ids[i]`, and its topic is a slice of `names`. The others are of the entries; one whose
    `offset` is below 0 is of a record that no queue lists.
    """
    row: bits.Place
    which: bits.Place
    answer: cython.int
    count: bits.Place = 0
    with cython.nogil:
        for row in range(queue.shape[0]):
            if row + 8 < topic_at.shape[0]:
                bits.prefetch(raw, topic_at[row + 8], 1)
            which = queue[row]
            if fault[row] or total[row] != size[row]:
                answer = _OTHER_RECORD
            elif (
                queue_id[row] != queue_ids[which]
                or topic_length[row] != stops[which] - starts[which]
                or not bits.same(raw, topic_at[row], names, starts[which], topic_length[row])
            ):
                answer = _OTHER_QUEUE
            elif queue_offset[row] != offset[row] and offset[row] >= 0:
                answer = _OTHER_OFFSET
            else:
                answer = _SAME
                count += 1
            out[row] = answer
    return count


def first_behind(log_offset: bits.Longs, start: bits.Place, place: bits.Long) -> int:
    """The first row from `start` on that leads to `place` in the log or behind it; n if none does."""
    row: bits.Place = start
    with cython.nogil:
        while row < log_offset.shape[0] and log_offset[row] < place:
            row += 1
    return row


def spread(
    ranks: bits.Longs,
    number: bits.Long,
    offset: bits.Longs,
    log_offset: bits.Longs,
    size: bits.Longs,
    tags_code: bits.Longs,
    count: bits.Longs,
    to_offset: bits.LongRoom,
    to_log_offset: bits.LongRoom,
    to_size: bits.LongRoom,
    to_tags_code: bits.LongRoom,
    to_count: bits.LongRoom,
    to_number: bits.LongRoom,
) -> None:
    """Write n entries to their places among those of other queues: entry i to `ranks[i]`, with `number`."""
    row: bits.Place
    to: bits.Place
    with cython.nogil:
        for row in range(ranks.shape[0]):
            to = ranks[row]
            to_offset[to] = offset[row]
            to_log_offset[to] = log_offset[row]
            to_size[to] = size[row]
            to_tags_code[to] = tags_code[row]
            to_count[to] = count[row]
            to_number[to] = number


def order(
    places: bits.Longs, counts: bits.IntRoom, rows: bits.LongRoom, ranks: bits.LongRoom
) -> int:
    """Write the place of each row among all in ascending order of `places` to `ranks`, those of one place
    in their order, and the rows in that order to `rows`.

    `counts` has zeros, a few at least: the buckets, and one more. Returns 1; 0 if the places crowd in few
    buckets, so that a sort is faster: `rows` and `ranks` are of no use then.
    """
    count: bits.Place = places.shape[0]
    row: bits.Place
    bucket: bits.Place
    shift: cython.int = 0
    most: cython.int = 0
    low: bits.Long
    high: bits.Long
    if count == 0:
        return 1
    with cython.nogil:
        low = high = places[0]
        for row in range(count):
            low = places[row] if places[row] < low else low
            high = places[row] if places[row] > high else high
        # Log offsets that a damaged entry has may be as far apart as 64 bits allow.
        if low < 0 or counts.shape[0] < 2:
            most = _CROWD + 1
        else:
            while (high - low) >> shift >= counts.shape[0] - 1:
                shift += 1
            for row in range(count):
                bucket = ((places[row] - low) >> shift) + 1
                counts[bucket] += 1
                most = counts[bucket] if counts[bucket] > most else most
        if most <= _CROWD:
            for bucket in range(1, counts.shape[0]):
                counts[bucket] += counts[bucket - 1]
            for row in range(count):
                bucket = (places[row] - low) >> shift
                rows[counts[bucket]] = row
                counts[bucket] += 1
            _put_in_order(places, rows)
            for row in range(count):
                ranks[rows[row]] = row
    return most <= _CROWD


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(-1)
def _put_in_order(places: bits.Longs, rows: bits.LongRoom) -> cython.int:
    """Move each row before those that are behind it in the log; none is far."""
    at: bits.Place
    to: bits.Place
    row: bits.Place
    place: bits.Long
    before: bits.Long = places[rows[0]]
    for at in range(1, places.shape[0]):
        row = rows[at]
        place = places[row]
        if place >= before:
            before = place
            continue
        to = at
        while to > 0 and places[rows[to - 1]] > place:
            rows[to] = rows[to - 1]
            to -= 1
        rows[to] = row
    return 0
