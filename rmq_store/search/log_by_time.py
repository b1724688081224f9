"""Where the log reaches a store time, by bisection over its bytes. Reads heads of records only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from rmq_store.consumequeue.bisection import bisect_first
from rmq_store.store import MessageStore

_LOOKS = 64
_JUMP_MS = 60_000
_LAST_MS = 253_402_300_799_999  # of the year 9999


def newest_time(stores: Iterable[MessageStore]) -> int | None:
    """When the last record of the log was stored (ms), of several stores the latest; None without one."""
    lasts = ((store.log, store.snapshot().last_record) for store in stores)
    times = (log.store_time_at(last) for log, last in lasts if last is not None)
    return max((time for time in times if time is not None), default=None)


def store_times(store: MessageStore) -> tuple[int, int] | None:
    """The storeTimestamp (ms) of the first and of the last record; None where none is readable."""
    start, end = store.log_range()
    first, last = _time_from(store, start, end), newest_time([store])
    return None if first is None or last is None else (first, last)


def times_in_order(store: MessageStore) -> tuple[int, int] | None:
    """As `store_times`; None too where records between them show that the log is not in the order of
    its store times, or where the times are none of a broker.

    Looks at some records, evenly over the log. A jump of the clock up to `_JUMP_MS` is let pass.
    """
    times = store_times(store)
    if times is None or not 0 <= times[0] <= times[1] <= _LAST_MS:
        return None
    start, end = store.log_range()
    places = [start + (end - start) * number // _LOOKS for number in range(1, _LOOKS)]
    between = [time for at in places if (time := _time_from(store, at, end)) is not None]
    every = [times[0], *between, times[1]]
    in_order = all(after >= before - _JUMP_MS for before, after in pairwise(every))
    return times if in_order else None


def log_offsets_since(store: MessageStore, times: Sequence[int]) -> Iterator[int]:
    """For each of ascending `times` (ms), the log offset of the first record stored then or later.

    Records are in the order of their store time but for jumps of the broker's clock. Offsets between
    two records stand for the second one; the log's end stands for no record.
    """
    at, end = store.log_range()
    for time in times:
        at = bisect_first(at, end, partial(_is_since, store, time, end))
        yield at


def _is_since(store: MessageStore, time: int, end: int, at: int) -> bool:
    stored = _time_from(store, at, end)
    return stored is None or stored >= time


def _time_from(store: MessageStore, at: int, end: int) -> int | None:
    """The storeTimestamp (ms) of the first record that starts at `at` or later; None without one."""
    log = store.log
    for segment in log.chain.segments_from(at):
        if segment.base >= end:
            break
        stop = min(end, log.chain.segment_end(segment))
        start = log.next_record(segment, max(at, segment.base), stop)
        time = None if start is None else log.store_time_at(start + log.frame_at(start))
        if time is not None:
            return time
    return None
