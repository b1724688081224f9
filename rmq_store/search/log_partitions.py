"""Cut selected queue ranges into log slices of about equal size, and add up bytes of queue ranges.

A partition is a range of the commitLog and the part of every selected queue that points into it.
One partition per queue would read every page of a shared log once per queue; adjacent slices read
it once. The plan has only the cut positions. The task that reads a slice finds the queue offsets
between two cuts (`parts_in_log_slice`). So planning costs a few samples per queue, and its cost grows
neither with messages nor with queues times slices. The cut computes only with plain values.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from rmq_store.consumequeue.bisection import bisect_first
from rmq_store.files.parallel import looked_up_in_parallel
from rmq_store.format.queues import EntryAt, QueueId, QueueSlice
from rmq_store.reading.store_reader import StoreReader
from rmq_store.snapshot.compacted_view import QueueSource
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice

SAMPLES_IN_ALL = 20_000
SAMPLES_PER_QUEUE = 64
QUEUES_IN_ALL = 10_000
QUEUES_OF_ONE_SLICE = 64  # where nothing is cut, so that only the estimate of bytes needs them
# For few cuts. No queue is left out, because one of large messages may have most of the bytes.
SAMPLES_OF_ONE_SLICE = 64
LEAST_SAMPLES_OF_A_QUEUE = 4


class Stretch(NamedTuple):
    """A number of selected bytes, spread about evenly between two positions of the commitLog."""

    start: int
    stop: int
    selected_bytes: float
    entries: float = 0.0


def sample_offsets(slice_: QueueSlice, queues: int, samples: int = SAMPLES_IN_ALL) -> list[int]:
    """Evenly spaced queue offsets of `slice_`, including its first, where `queues` share the `samples`."""
    most = max(1, min(SAMPLES_PER_QUEUE, samples // max(1, queues)))
    count = min(most, len(slice_))
    return [slice_.start + len(slice_) * i // count for i in range(count)]


def stretches_of_range(
    slice_: QueueSlice, queues: int, entry_at: EntryAt, samples: int = SAMPLES_IN_ALL
) -> Iterator[Stretch]:
    """The positions and bytes of the records of `slice_`, estimated from its entries at `sample_offsets`."""
    some = sample_offsets(slice_, queues, samples)
    offsets = dict.fromkeys((*some, slice_.stop - 1)) if len(slice_) else ()
    entries = [(offset, entry_at(slice_.queue, offset)) for offset in offsets]
    readable = [(offset, entry) for offset, entry in entries if entry is not None]
    for (offset, here), (end, there) in pairwise(readable):
        low, high = sorted((here.log_offset, there.log_offset))
        size = (end - offset) * (here.size + there.size) / 2
        # A queue may claim 2^62 messages; not more can be there than bytes.
        most = max(high - low, 1)
        yield Stretch(low, low + most, min(size, most), min(end - offset, most))
    if readable:
        last = readable[-1][1]
        yield Stretch(last.log_offset, last.log_offset + max(1, round(last.size)), last.size, 1)


def cut_stretches(
    stretches: Iterable[Stretch],
    target_bytes: int,
    min_slices: int = 1,
    max_entries: int | None = None,
) -> list[LogSlice]:
    """Adjacent log slices with about equal selected bytes, each about `target_bytes`.

    With `max_entries`, no slice has more than about this number of entries, so slices are shorter
    where entries are small. No slice if there is no stretch. The first and last slice have no outer
    limit, so every record is in exactly one slice.
    """
    parts = np.array([tuple(s) for s in stretches], dtype=np.float64).reshape(-1, 4)
    if not len(parts):
        return []
    total = float(parts[:, 2].sum())
    # The load of a slice: its bytes, or its entries if they reach their limit sooner.
    filled = parts[:, 2] / target_bytes
    if max_entries is not None:
        filled = np.maximum(filled, parts[:, 3] / max_entries)
    # Rounding may put a sum of shares just below a whole number.
    count = max(min_slices, math.ceil(float(filled.sum()) * (1 - 1e-12)), 1)
    cuts = _quantiles(np.column_stack([parts[:, :2], filled]), count)
    share = round(total / (len(cuts) + 1))
    edges: list[int | None] = [None, *cuts, None]
    return [LogSlice(a, b, share) for a, b in pairwise(edges)]


def _quantiles(parts: np.ndarray[tuple[int, int], np.dtype[np.float64]], count: int) -> list[int]:
    """The positions that cut the bytes into `count` equal shares, without repeats."""
    starts, stops, sizes = parts.T
    density = sizes / (stops - starts)
    # Bytes per position change at the start or end of a stretch; the running sum is linear between
    # them.
    positions = np.concatenate([starts, stops])
    changes = np.concatenate([density, -density])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    rates = np.cumsum(changes[order])[:-1]
    below = np.concatenate([[0.0], np.cumsum(rates * np.diff(positions))])
    wanted = below[-1] * np.arange(1, count) / count
    cuts = np.ceil(np.interp(wanted, np.maximum.accumulate(below), positions))
    inside = (cuts > positions[0]) & (cuts < positions[-1])
    return sorted({int(cut) for cut in cuts[inside]})


def log_slices_of_ranges(
    wanted: Sequence[QueueSlice],
    entry_at: EntryAt,
    target_bytes: int,
    min_slices: int = 1,
    max_entries: int | None = None,
    *,
    log_bytes: int | None = None,
    selected_bytes: int | None = None,
) -> list[LogSlice]:
    """Log slices with the selected entries; none if nothing is selected.

    `entry_at` returns the entry of a queue offset in the selected ranges. `log_bytes`: the whole
    log, if known. One that fits into a slice is not cut, and few of its queues are looked at.
    `selected_bytes`: an estimate by an earlier plan; few slices need few samples.
    """
    filled = [slice_ for slice_ in wanted if len(slice_)]
    is_one_slice = log_bytes is not None and log_bytes <= target_bytes and min_slices <= 1
    is_one_slice = is_one_slice and max_entries is None
    most = QUEUES_OF_ONE_SLICE if is_one_slice else QUEUES_IN_ALL
    # Of one slice the first entry of each range, and the last.
    samples = len(filled) if is_one_slice else SAMPLES_IN_ALL
    if selected_bytes is not None:
        expected = max(min_slices, -(-selected_bytes // target_bytes))
        enough = max(SAMPLES_OF_ONE_SLICE * expected, LEAST_SAMPLES_OF_A_QUEUE * len(filled))
        samples = min(samples, enough)

    def slices_of(sampled: Iterable[tuple[QueueSlice, float]]) -> list[LogSlice]:
        slices = (
            Stretch(s.start, s.stop, s.selected_bytes * stands_for, s.entries * stands_for)
            for slice_, stands_for in sampled
            for s in stretches_of_range(slice_, len(filled), entry_at, samples)
        )
        return cut_stretches(slices, target_bytes, min_slices, max_entries)

    # Where all entries that were looked at are damaged or gone, others may not be, and the read reports it.
    slices = slices_of(ranges_to_sample(filled, most)) or slices_of(
        (slice_, 1.0) for slice_ in filled
    )
    return slices or [LogSlice(None, None, 0)] * bool(filled)


def ranges_by_log_slice(
    store: StoreReader,
    ranges: Sequence[QueueSlice],
    target_bytes: int,
    view: QueueSource | None = None,
) -> list[tuple[QueueSlice, ...]]:
    """The parts of `ranges` in adjacent slices of the log, each with about `target_bytes` of them.

    Ranges without messages are in the first. `view`: what the ranges are of; default: the queues themselves.
    """
    view = view or store.view
    some = [slice_ for slice_ in ranges if len(slice_)]
    cuts = log_slices_of_ranges(some, prefetched_entry_at(store, some, view), target_bytes)
    parts = [parts_in_log_slice(some, cut, view.offset_at_log) for cut in cuts]
    parts[:1] = [[slice_ for slice_ in ranges if not len(slice_)] + (parts[0] if parts else [])]
    return [tuple(part) for part in parts if part]


def ranges_to_sample(
    ranges: Sequence[QueueSlice], most: int = QUEUES_IN_ALL
) -> list[tuple[QueueSlice, float]]:
    """The ranges whose entries are sampled, and for how many times its size each of them stands.

    All of them, up to `most`. Of more, the longest half of that number, and as many of the
    others, evenly by length, which stand for all others.
    """
    if len(ranges) <= most:
        return [(slice_, 1.0) for slice_ in ranges]
    by_length = sorted(ranges, key=len, reverse=True)
    half = most // 2
    longest, others = by_length[:half], by_length[half:]
    some = [others[len(others) * i // half] for i in range(half)]
    stands_for = sum(map(len, others)) / sum(map(len, some))
    return [(slice_, 1.0) for slice_ in longest] + [(slice_, stands_for) for slice_ in some]


def even_slices(start: int, stop: int, target_bytes: int, min_slices: int = 1) -> list[LogSlice]:
    """Adjacent slices of the whole log range [start, stop); none if it is empty."""
    if start >= stop:
        return []
    count = min(max(min_slices, -(-(stop - start) // target_bytes)), stop - start)
    edges = [start + (stop - start) * number // count for number in range(count + 1)]
    return [LogSlice(a, b, b - a) for a, b in pairwise(edges)]


def cut_to_entries(
    slices: Iterable[LogSlice], most: int, ranges: Sequence[QueueSlice], view: QueueSource
) -> list[LogSlice]:
    """The slices, cut again if they have more than `most` entries of `ranges`.

    Entries of several queues that point to the same record stay together.
    """
    done: list[LogSlice] = []
    todo = list(slices)[::-1]
    while todo:
        piece = todo.pop()
        parts = parts_in_log_slice(ranges, piece, view.offset_at_log)
        cut = None
        if sum(map(len, parts)) > most:
            longest = max(parts, key=len)
            cut = view.log_offset_of(longest.queue, (longest.start + longest.stop) // 2)
            first = view.log_offset_of(longest.queue, longest.start)
            if cut <= first or (piece.stop is not None and cut >= piece.stop):
                cut = None
        if cut is None:
            done.append(piece)
            continue
        half = piece.selected_bytes // 2
        todo.append(LogSlice(cut, piece.stop, piece.selected_bytes - half))
        todo.append(LogSlice(piece.start, cut, half))
    return done


def bins_of_ranges(
    sized: Sequence[tuple[QueueSlice, float]],
    target_bytes: int,
    min_bins: int = 1,
    max_entries: int | None = None,
) -> list[tuple[QueueSlice, ...]]:
    """Whole queue ranges combined into bins of about `target_bytes`.

    `sized`: each range and its bytes. A queue larger than a bin has its own bin. The fullest queues
    are placed first, each into the emptiest bin (the longest processing time rule).
    """
    weighted = [
        (max(size / target_bytes, len(slice_) / max_entries if max_entries else 0.0), slice_)
        for slice_, size in sized
        if len(slice_)
    ]
    count = math.ceil(sum(min(1.0, weight) for weight, _ in weighted))
    count = min(len(weighted), max(min_bins, count))
    bins: list[list[QueueSlice]] = [[] for _ in range(count)]
    heap = [(0.0, number) for number in range(count)]
    for weight, slice_ in sorted(weighted, key=lambda pair: -pair[0]):
        filled, number = heapq.heappop(heap)
        # Only an empty bin may overflow, because a queue is not split.
        if bins[number] and max_entries and filled + weight > 1:
            heapq.heappush(heap, (filled, number))
            filled, number = 0.0, len(bins)
            bins.append([])
        bins[number].append(slice_)
        heapq.heappush(heap, (filled + weight, number))
    return [tuple(sorted(bin_)) for bin_ in bins if bin_]


def joined_ranges(ranges: Iterable[QueueSlice]) -> list[QueueSlice]:
    """The ranges sorted, with adjacent and overlapping ones merged."""
    joined: list[QueueSlice] = []
    for slice_ in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and last.queue == slice_.queue and slice_.start <= last.stop:
            joined[-1] = replace(last, stop=max(last.stop, slice_.stop))
        else:
            joined.append(slice_)
    return joined


_LEAST_BYTES = 16  # of the log for a message: a member of an inner batch has more


def queue_offset_steps(store: StoreReader, start: int, stop: int, step: int) -> range:
    """The queue offsets at which steps of `step` begin, from `start` to before `stop`.

    The name of one file, or one entry, may claim that a queue has 2^62 messages. The log says how
    many there can be; a range with more is walked in as many steps as that number has. Its entries
    are few: a hole between files is one entry.
    """
    log_start, log_end = store.log_range()
    most = (log_end - log_start) // _LEAST_BYTES // step + 1
    return range(start, stop, max(step, -(-(stop - start) // most)))


COUNTED = 1_000_000
"""Up to this number of messages, sizes are added up; above it, estimated from samples."""

_AT_ONCE = 1 << 16


def bytes_between(
    store: StoreReader, queue: QueueId, start: int, stop: int, counted: int = COUNTED
) -> int:
    """Bytes of the records at queue offsets [start, stop), estimated from samples for a range of more
    than `counted` messages. An inner batch counts at its first message."""
    if stop - start > counted:
        stretches = stretches_of_range(QueueSlice(queue, start, stop), 1, store.view.entry_at)
        return round(sum(stretch.selected_bytes for stretch in stretches))
    total = 0
    steps = queue_offset_steps(store, start, stop, _AT_ONCE)
    for at in steps:
        entries = store.entries(queue, at, min(at + steps.step, stop))
        mine = entries.points_to_record & (entries.offset >= at)
        total += int(entries.size[mine].sum())
    return total


_Found = TypeVar("_Found")
_Look = Callable[[QueueId, int], _Found]


def prefetched_entry_at(
    store: StoreReader, ranges: Sequence[QueueSlice], view: QueueSource
) -> EntryAt:
    """`view.entry_at`, with the entries that a plan of `ranges` needs fetched in advance."""

    def places() -> Iterator[tuple[QueueId, int]]:
        for part, _ in ranges_to_sample([part for part in ranges if len(part)]):
            for offset in dict.fromkeys((*sample_offsets(part, len(ranges)), part.stop - 1)):
                yield part.queue, offset

    return _prefetched(store, view.entry_at, places())


def prefetched_offset_at_log(
    store: StoreReader,
    ranges: Sequence[QueueSlice],
    places: Sequence[int | None],
    view: QueueSource,
) -> _Look[int]:
    """`view.offset_at_log`, with the answers for these log offsets fetched in advance."""
    wanted = ((part.queue, place) for part in ranges for place in places if place is not None)
    return _prefetched(store, view.offset_at_log, wanted)


def _prefetched(
    store: StoreReader, look: _Look[_Found], places: Iterable[tuple[QueueId, int]]
) -> _Look[_Found]:
    """`look`, which has the answers for some places where looks are worth making side by side."""
    at_once = store.log.chain.cost.looks_at_once
    if at_once == 1:
        return look
    known = looked_up_in_parallel(lambda place: look(*place), list(places), at_once)
    return lambda queue, number: (
        known[queue, number] if (queue, number) in known else look(queue, number)
    )


_LOOKS = 64
_JUMP_MS = 60_000
_LAST_MS = 253_402_300_799_999  # of the year 9999


def newest_time(stores: Iterable[StoreReader]) -> int | None:
    """When the last record of the log was stored (ms), of several stores the latest; None without one."""
    lasts = ((store.log, store.snapshot().last_record) for store in stores)
    times = (log.store_time_at(last) for log, last in lasts if last is not None)
    return max((time for time in times if time is not None), default=None)


def times_in_order(store: StoreReader) -> tuple[int, int] | None:
    """The storeTimestamp (ms) of the first and of the last record; None where none is readable, where records
    between them show that the log is not in the order of its times, or where these are none of a broker.

    Looks at some records, evenly over the log. A jump of the clock up to `_JUMP_MS` is let pass.
    """
    start, end = store.log_range()
    first, last = _time_from(store, start, end), newest_time([store])
    if first is None or last is None or not 0 <= first <= last <= _LAST_MS:
        return None
    places = [start + (end - start) * number // _LOOKS for number in range(1, _LOOKS)]
    between = [time for at in places if (time := _time_from(store, at, end)) is not None]
    every = [first, *between, last]
    in_order = all(after >= before - _JUMP_MS for before, after in pairwise(every))
    return (first, last) if in_order else None


def log_offsets_since(store: StoreReader, times: Sequence[int]) -> Iterator[int]:
    """For each of ascending `times` (ms), the log offset of the first record stored then or later.

    Records are in the order of their store time but for jumps of the broker's clock. Offsets between
    two records stand for the second one; the log's end stands for no record.
    """
    at, end = store.log_range()
    for time in times:
        at = bisect_first(at, end, partial(_is_since, store, time, end))
        yield at


def _is_since(store: StoreReader, time: int, end: int, at: int) -> bool:
    stored = _time_from(store, at, end)
    return stored is None or stored >= time


def _time_from(store: StoreReader, at: int, end: int) -> int | None:
    """The storeTimestamp (ms) of the first record that starts at `at` or later; None without one."""
    log = store.log
    for segment in log.chain.segments_from(at):
        if segment.base >= end:
            break
        stop = min(end, log.chain.segment_end(segment))
        start = log.next_record(segment, max(at, segment.base), stop)
        time = None if start is None else log.store_time_at(start + log.frame_size_at(start))
        if time is not None:
            return time
    return None
