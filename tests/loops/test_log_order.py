"""The order of rows in the log, compiled, interpreted, and as Python sorts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rmq_store.consumequeue.log_order import _order_of
from rmq_store.loops import log_order
from tests.loops.test_record_loops import both, numbers


def in_order(places: list[int], buckets: int) -> tuple[int, list[int]]:
    def rooms() -> list[Any]:
        return [np.zeros(buckets, np.int32), np.zeros(len(places), np.int64)]

    answer, _, rows = both(
        log_order,
        lambda form, some: form.order(numbers(places).data, *(room.data for room in some)),
        rooms,
    )
    return answer, rows


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
    assert _order_of(numbers(places)).tolist() == sorted_rows(places)


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
    assert _order_of(numbers(places)).tolist() == sorted_rows(places)


def test_room_for_too_few_buckets_and_rows() -> None:
    assert in_order([3, 1, 2], 1)[0] == 0
    assert both(
        log_order,
        lambda form, some: form.order(numbers([3, 1, 2]).data, *(room.data for room in some)),
        lambda: [np.zeros(4, np.int32), np.zeros(2, np.int64)],
    ) == [IndexError]
