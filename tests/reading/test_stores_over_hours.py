"""Reads by time of stores whose files lie hours apart, and of a queue with many inner batches."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest

from rmq_store.search.find_messages import find
from rmq_store.search.selection import Search
from tests.support.golden import Golden, messages_in, user_topic

HOUR = 3_600_000


@pytest.mark.parametrize("first", range(0, 12, 3))
def test_batches_that_reach_into_the_next_block_come_once(golden: Golden, first: int) -> None:
    store = golden("batches-5.5.0")
    records = [record for record in store.truth if record["topic"] == "inner"][first:]
    with store.open() as opened:
        rows = opened.read_batches(
            "inner", start=records[0]["queueOffset"], columns=["queueOffset"], unwrap_batches=True
        )
        assert rows.read_all()["queueOffset"].to_pylist() == [
            record["queueOffset"] + number
            for record in records
            for number in range(messages_in(record))
        ]


@pytest.mark.parametrize("name", ["hours-clean-5.5.0", "hours-crash-5.5.0", "days-crash-5.5.0"])
def test_offsets_by_time_are_those_of_the_records(golden: Golden, name: str) -> None:
    """Also in what no queue lists yet, and while a topic rests for hours."""
    store = golden(name)
    with store.open() as opened:
        for queue, listed in store.by_queue.items():
            stamps = [record["storeTimestamp"] for record in listed]
            asked = [stamp + more for stamp in stamps[:: len(stamps) // 10] for more in (-1, 0, 1)]
            for time in (0, stamps[0] - HOUR, *asked, stamps[-1] + 1):
                first = listed[0]["queueOffset"] + bisect_left(stamps, time)
                assert opened.first_since(queue, time) == first
                if first <= listed[-1]["queueOffset"]:
                    assert opened.offset_by_time(*queue, time) == first


@pytest.mark.parametrize("name", ["hours-clean-5.5.0", "hours-crash-4.9.7", "days-crash-5.5.0"])
def test_find_gives_what_was_stored_in_some_hours(golden: Golden, name: str) -> None:
    """Where the clock went back by minutes, messages of these minutes are on both sides of the step."""
    store = golden(name)
    stamps = [record["storeTimestamp"] for record in store.truth]
    step = next((at for at, (a, b) in enumerate(pairwise(stamps)) if b < a), None)
    eighth = len(stamps) // 8
    places = range(eighth, len(stamps), eighth) if step is None else range(step - 5, step + 5)
    near = [(stamps[at] - 2000, stamps[at]) for at in places]
    for low, high in ((stamps[0], stamps[len(stamps) // 3]), (stamps[-200], stamps[-1]), *near):
        search = Search(since=low, until=high)
        with store.open() as opened:
            found = [
                offset
                for batch in find(opened, search, ["commitLogOffset"])
                for offset in batch.column(0).to_pylist()
            ]
        assert sorted(found) == [
            record["commitLogOffset"]
            for record in store.truth
            if low <= record["storeTimestamp"] < high and user_topic(record)
        ]
