"""Loops over queue entries, compiled, interpreted, and as numpy and Python do it."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rmq_store import QueueId
from rmq_store.consumequeue.log_order import _rows_in_log_order
from rmq_store.format.queues import FILLER_SIZE, QUEUE_ENTRY, Entries, Queues
from rmq_store.loops import queue_entries
from tests.loops.test_record_loops import both, numbers


def in_order(places: list[int], buckets: int) -> tuple[int, list[int]]:
    def rooms() -> list[Any]:
        return [np.zeros(buckets, np.int32), *(np.zeros(len(places), np.int64) for _ in range(2))]

    answer, _, rows, ranks = both(
        queue_entries,
        lambda form, some: form.order(numbers(places).data, *(room.data for room in some)),
        rooms,
    )
    assert not answer or [rows[rank] for rank in ranks] == [*range(len(places))]
    return answer, rows


def merged(places: list[list[int]]) -> list[tuple[int, int]]:
    """Number of the queue, and row, of entries of some queues in log order."""
    parts = []
    for number, of_queue in enumerate(places):
        rows = np.arange(len(of_queue))
        parts.append((number, Entries(rows, numbers(of_queue), rows + 1, rows + 2, rows + 3)))
    queues = Queues(QueueId("t", number) for number in range(len(places)))
    found = _rows_in_log_order(queues, parts)
    for number, row, at in zip(found.queue, found.offset, found.log_offset, strict=True):
        assert places[number][row] == at
    assert (found.size == found.offset + 1).all()
    assert (found.tags_code == found.offset + 2).all()
    assert (found.count == found.offset + 3).all()
    return [*zip(found.queue.tolist(), found.offset.tolist(), strict=True)]


def sorted_rows(places: list[int]) -> list[int]:
    return sorted(range(len(places)), key=lambda row: places[row])


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_queues_behind_each_other(seed: int) -> None:
    """Each queue in its order; some records are in several queues, and entries may point back."""
    chosen = random.Random(seed)
    log, at = [], chosen.choice([0, 1 << 30, 1 << 62])
    for _ in range(chosen.randrange(1, 400)):
        log.append(at)
        at += chosen.choice([91, 300, 300, 300, chosen.randrange(91, 3000)])
    queues: list[list[int]] = [[] for _ in range(chosen.randrange(1, 9))]
    for place in log:
        for queue in chosen.sample(queues, 1 + (chosen.random() < 0.1 and len(queues) > 1)):
            queue.append(place)
    places = [place for queue in queues for place in queue]
    if seed % 4 == 3:
        for _ in range(5):
            places[chosen.randrange(len(places))] = chosen.choice(places)
    buckets = chosen.choice([len(places) + 1, len(places) // 2 + 2, 2 * len(places) + 3])
    answer, rows = in_order(places, buckets)
    assert not answer or rows == sorted_rows(places)
    rows_of = [(n, row) for n, queue in enumerate(queues) for row in range(len(queue))]
    if seed % 4 != 3:
        assert merged(queues) == [rows_of[row] for row in sorted_rows(places)]


@pytest.mark.parametrize(
    ("places", "answer"),
    [
        ([], 1),
        ([7], 1),
        ([5, 5, 5, 4], 1),
        ([3, 2, 1, 0], 1),
        ([0, (1 << 63) - 1, 5], 1),
        ([-1, 8, 3], 0),  # a damaged entry
        ([*range(1000, 0, -1), 1 << 60], 0),
    ],
)
def test_places_of_damaged_entries_and_crowds(places: list[int], answer: int) -> None:
    found, rows = in_order(places, len(places) + 1)
    assert found == answer
    assert not found or rows == sorted_rows(places)
    assert merged([places]) == [(0, row) for row in sorted_rows(places)]


def test_room_for_too_few_buckets_and_rows() -> None:
    assert in_order([3, 1, 2], 1)[0] == 0
    assert both(
        queue_entries,
        lambda form, some: form.order(numbers([3, 1, 2]).data, *(room.data for room in some)),
        lambda: [np.zeros(4, np.int32), np.zeros(2, np.int64), np.zeros(3, np.int64)],
    ) == [IndexError]


def answer(call: Callable[[ModuleType], Any]) -> Any:
    """What a loop returns that writes nothing, or the kind of its error."""
    return both(queue_entries, lambda form, _: call(form), lambda: [np.zeros(0, np.int64)])[0]


def split(raw: bytes, rows: int) -> Any:
    return both(
        queue_entries,
        lambda form, rooms: form.split(memoryview(raw), 7, rooms[0].data),
        lambda: [np.zeros(5 * rows, np.int64)],
    )


def test_entries_are_those_of_the_file() -> None:
    chosen = np.random.default_rng(5)
    units = np.frombuffer(chosen.bytes(20 * 300), QUEUE_ENTRY)
    names = QUEUE_ENTRY.names or ()
    offsets, *columns, counts = np.split(numbers(split(units.tobytes(), 300)[1]), 5)
    assert offsets.tolist() == [*range(7, 307)]
    assert [column.tolist() for column in columns] == [units[name].tolist() for name in names]
    assert (counts == 1).all()
    assert split(units.tobytes()[:-20], 300) == [IndexError]
    assert split(b"", 0) == [None, []]


@pytest.mark.parametrize(
    ("entry", "leads"),
    [
        ((0, 91), True),
        ((-1, 91), False),
        ((-(2**63), 91), False),
        ((0, 0), False),
        ((0, -1), False),
        ((0, FILLER_SIZE), False),
        ((0, FILLER_SIZE - 1), False),
        ((909, 91), True),
        ((910, 91), False),
        ((2**63 - 1, 91), False),
    ],
)
def test_which_entries_lead_to_the_log(entry: tuple[int, int], leads: bool) -> None:
    places, sizes = zip(*[(5, 100)] * 9, entry, *[(5, 100)] * 9, strict=True)
    given = (numbers([*places]).data, numbers([*sizes]).data)
    assert answer(lambda form: form.all_lead(*given, 1000)) is leads
    assert queue_entries.all_lead(numbers([]).data, numbers([]).data, 0)


def test_the_first_entry_that_leads_behind_a_place() -> None:
    places = numbers([5, 9, 7, 20])

    def first(start: int, place: int) -> Any:
        return answer(lambda form: form.first_behind(places.data, start, place))

    assert [first(0, 5), first(0, 6), first(2, 8), first(2, 21), first(4, 0)] == [0, 1, 3, 4, 4]


def test_no_entry_is_put_outside_of_its_room() -> None:
    def put(rank: int) -> Any:
        some = numbers([1, 2]).data
        return both(
            queue_entries,
            lambda form, rooms: form.spread(
                numbers([0, rank]).data, 9, *[some] * 5, *(room.data for room in rooms)
            ),
            lambda: [np.zeros(3, np.int64) for _ in range(6)],
        )

    assert put(2) == [None, *[[1, 0, 2]] * 5, [9, 0, 9]]
    assert put(3) == [IndexError]
