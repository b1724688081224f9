"""Planning on literal numbers: no store, no Spark."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import QueueId, QueueSlice
from rmq_store.format.queues import Entry
from rmq_store.search.log_partitions import (
    QUEUES_IN_ALL,
    QUEUES_OF_ONE_SLICE,
    Stretch,
    cut_stretches,
    log_slices_of_ranges,
    ranges_to_sample,
    sample_offsets,
)
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice
from tests.support.running.examples import fast

ORDERS = QueueId("orders", 0)
PAYMENTS = QueueId("payments", 0)


def test_samples_are_spread_evenly_and_few() -> None:
    assert sample_offsets(QueueSlice(ORDERS, 10, 14), queues=1) == [10, 11, 12, 13]
    many = sample_offsets(QueueSlice(ORDERS, 0, 6400), queues=1)
    assert many == list(range(0, 6400, 100))
    assert sample_offsets(QueueSlice(ORDERS, 3, 9), queues=100_000) == [3]
    assert sample_offsets(QueueSlice(ORDERS, 3, 3), queues=1) == []


def test_even_bytes_are_cut_evenly() -> None:
    assert cut_stretches([Stretch(0, 1000, 1000)], target_bytes=250) == [
        LogSlice(None, 250, 250),
        LogSlice(250, 500, 250),
        LogSlice(500, 750, 250),
        LogSlice(750, None, 250),
    ]


def test_cuts_are_closer_where_more_is_selected() -> None:
    slices = cut_stretches([Stretch(0, 1000, 1000), Stretch(0, 100, 1000)], target_bytes=500)
    assert [piece.stop for piece in slices] == [46, 91, 500, None]


def test_a_hole_in_the_selection_makes_no_slice_of_its_own() -> None:
    slices = cut_stretches([Stretch(0, 100, 100), Stretch(9_900, 10_000, 100)], target_bytes=100)
    assert len(slices) == 2
    assert slices[0].stop is not None
    assert 100 <= slices[0].stop <= 9_900


def test_little_is_one_slice_unless_more_are_asked_for() -> None:
    assert cut_stretches([Stretch(0, 10, 10)], target_bytes=1 << 20) == [LogSlice(None, None, 10)]
    assert len(cut_stretches([Stretch(0, 100, 100)], 1 << 20, min_slices=4)) == 4


def test_nothing_selected_makes_no_slice() -> None:
    assert cut_stretches([], target_bytes=100) == []

    def entry_at(queue: QueueId, offset: int) -> Entry:
        raise AssertionError("there is no entry")

    assert log_slices_of_ranges([QueueSlice(ORDERS, 4, 4)], entry_at, 100) == []


def test_more_slices_than_positions_are_no_error() -> None:
    slices = cut_stretches([Stretch(7, 8, 1000)], target_bytes=1)
    assert [(p.start, p.stop) for p in slices] == [(None, None)]


def test_planning_asks_for_few_entries_of_a_long_queue() -> None:
    asked = []

    def entry_at(queue: QueueId, offset: int) -> Entry:
        asked.append(offset)
        return Entry(offset * 1000, 1000)

    slices = log_slices_of_ranges([QueueSlice(ORDERS, 0, 10**9)], entry_at, 128 << 20)
    assert len(asked) <= 65  # SAMPLES_PER_QUEUE and the last
    assert len(slices) == -(-(10**12) // (128 << 20))
    widths = [b - a for a, b in pairwise([0, *(p.stop for p in slices[:-1] if p.stop), 10**12])]
    assert max(widths) <= 1.01 * min(widths)


def test_pieces_of_neighbouring_slices_fit_together() -> None:
    # orders at even positions, payments at odd ones
    def offset_at_log(queue: QueueId, position: int) -> int:
        return (position + 1) // 2 if queue == ORDERS else position // 2

    wanted = [QueueSlice(ORDERS, 0, 50), QueueSlice(PAYMENTS, 10, 50)]
    first = parts_in_log_slice(wanted, LogSlice(None, 40, 0), offset_at_log)
    second = parts_in_log_slice(wanted, LogSlice(40, None, 0), offset_at_log)
    assert first == [QueueSlice(ORDERS, 0, 20), QueueSlice(PAYMENTS, 10, 20)]
    assert second == [QueueSlice(ORDERS, 20, 50), QueueSlice(PAYMENTS, 20, 50)]


def test_a_queue_that_has_nothing_in_a_slice_is_left_out() -> None:
    def offset_at_log(queue: QueueId, position: int) -> int:
        return 0 if queue == PAYMENTS else 5

    wanted = [QueueSlice(ORDERS, 0, 5), QueueSlice(PAYMENTS, 0, 5)]
    assert parts_in_log_slice(wanted, LogSlice(None, 100, 0), offset_at_log) == [
        QueueSlice(ORDERS, 0, 5)
    ]


positions = st.lists(st.integers(0, 10_000), min_size=1, max_size=60)


@fast(100)
@given(st.lists(positions, min_size=1, max_size=5), st.integers(1, 3_000), st.booleans())
def test_every_entry_is_in_exactly_one_slice(
    logs: list[list[int]], target: int, in_order: bool
) -> None:
    """Whatever the records' positions, sorted as a broker writes them or not."""
    queues = {QueueId("t", i): sorted(set(log)) if in_order else log for i, log in enumerate(logs)}

    def entry_at(queue: QueueId, offset: int) -> Entry:
        return Entry(queues[queue][offset], 90)

    def offset_at_log(queue: QueueId, position: int) -> int:
        return bisect_left(queues[queue], position)

    wanted = [QueueSlice(queue, 0, len(log)) for queue, log in queues.items()]
    read = [
        (piece.queue, offset)
        for part in log_slices_of_ranges(wanted, entry_at, target)
        for piece in parts_in_log_slice(wanted, part, offset_at_log)
        for offset in range(piece.start, piece.stop)
    ]
    assert sorted(read) == [(q, o) for q, log in queues.items() for o in range(len(log))]


def test_of_very_many_queues_some_stand_for_the_others() -> None:
    """50,000 queues of 1 to 100 messages of 1,000 bytes, spread over the log, and two long ones."""
    lengths = [1 + number % 100 for number in range(50_000)] + [100_000, 200_000]
    parts = [QueueSlice(QueueId("t", n), 0, length) for n, length in enumerate(lengths)]
    total = sum(lengths) * 1000
    phases = np.random.default_rng(7).random(len(lengths))  # of a message's distance
    asked: set[QueueId] = set()

    def entry_at(queue: QueueId, offset: int) -> Entry:
        asked.add(queue)
        number = queue.queue_id
        return Entry(int(total * (offset + phases[number]) / lengths[number]), 1000)

    target = 64 << 20
    slices = log_slices_of_ranges(parts, entry_at, target)
    assert len(asked) == QUEUES_IN_ALL
    assert {QueueId("t", 50_000), QueueId("t", 50_001)} <= asked
    assert abs(sum(piece.selected_bytes for piece in slices) - total) < total / 100
    places = [total * (np.arange(n) + phase) / n for n, phase in zip(lengths, phases, strict=True)]
    edges = [piece.stop for piece in slices if piece.stop is not None]
    filled = np.histogram(np.concatenate(places), [0, *edges, total])[0] * 1000
    assert filled.max() < 1.5 * target
    assert np.median(filled) < 1.1 * target


def test_of_many_queues_all_are_looked_at() -> None:
    parts = [QueueSlice(QueueId("t", n), 0, 1) for n in range(QUEUES_IN_ALL)]
    assert ranges_to_sample(parts) == [(part, 1.0) for part in parts]


@pytest.mark.parametrize(
    ("log_bytes", "least", "most", "looked"),
    [
        (1000, 1, None, QUEUES_OF_ONE_SLICE),
        (1001, 1, None, 500),  # more than a slice
        (1000, 2, None, 500),  # more slices are asked for
        (1000, 1, 400, 500),
        (None, 1, None, 500),
    ],
)
def test_a_log_of_one_slice_needs_few_looks(
    log_bytes: int | None, least: int, most: int | None, looked: int
) -> None:
    parts = [QueueSlice(QueueId("t", n), 0, 1) for n in range(500)]
    asked: set[QueueId] = set()

    def entry_at(queue: QueueId, offset: int) -> Entry:
        asked.add(queue)
        return Entry(2 * queue.queue_id, 2)

    slices = log_slices_of_ranges(parts, entry_at, 1000, least, most, log_bytes=log_bytes)
    assert len(asked) == looked
    assert (slices[0].start, slices[-1].stop) == (None, None)
    assert abs(sum(piece.selected_bytes for piece in slices) - 1000) < 2


def test_few_cuts_in_a_selection_of_known_size_need_few_looks() -> None:
    """A wave of a replay: its size is known, and each is planned again."""
    queues, each, size = 16, 6_000, 700
    parts = [QueueSlice(QueueId("t", n), 0, each) for n in range(queues)]
    looks = 0

    def entry_at(queue: QueueId, offset: int) -> Entry:
        nonlocal looks
        looks += 1
        return Entry((offset * queues + queue.queue_id) * size, size)

    total = queues * each * size
    slices = log_slices_of_ranges(parts, entry_at, total // 2, selected_bytes=total)
    assert looks <= 64 * 2 + queues, "64 samples a slice, and the last entry of each queue"
    (first, second) = slices
    assert (first.start, second.stop) == (None, None)
    assert first.stop is not None
    assert abs(first.stop - total / 2) < total / 10


@pytest.mark.parametrize("heavy", [0, 567, 1_000])
def test_a_wave_with_most_bytes_in_one_queue_is_cut_by_them(heavy: int) -> None:
    """1,000 queues of 100 messages of 200 bytes, and one of 60 messages of 4 MiB."""
    lengths, sizes = [100] * 1_001, [200] * 1_001
    lengths[heavy], sizes[heavy] = 60, 4 << 20
    parts = [QueueSlice(QueueId("t", n), 0, length) for n, length in enumerate(lengths)]
    total = sum(length * size for length, size in zip(lengths, sizes, strict=True))

    def entry_at(queue: QueueId, offset: int) -> Entry:
        number = queue.queue_id
        return Entry(total * offset // lengths[number], sizes[number])

    target = 32 << 20
    slices = log_slices_of_ranges(parts, entry_at, target, selected_bytes=total)
    edges = [0, *(piece.stop for piece in slices if piece.stop is not None), total]
    places = [total * offset // 60 for offset in range(60)]
    assert (np.histogram(places, edges)[0] * sizes[heavy]).max() <= 1.5 * target


def test_readable_entries_count_where_all_that_stand_for_others_are_damaged() -> None:
    parts = [QueueSlice(QueueId("t", n), 0, 1) for n in range(3 * QUEUES_IN_ALL)]
    damaged = {part.queue for part, _ in ranges_to_sample(parts)}

    def entry_at(queue: QueueId, offset: int) -> Entry | None:
        return None if queue in damaged else Entry(1000 * queue.queue_id, 1000)

    slices = log_slices_of_ranges(parts, entry_at, 1 << 40)
    assert [(piece.start, piece.stop) for piece in slices] == [(None, None)]
