"""Where a time lies in a queue, also where records on the way to it cannot be read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store import MessageStore, QueueId, StoreError
from rmq_store.consumequeue.bisection import Boundary, find_boundary, offset_by_time
from rmq_store.search.find_messages import find
from rmq_store.search.selection import Search
from tests.support.damage import write_in_log
from tests.support.golden import GoldenStore, Truth, unpack
from tests.support.spark.reads import rows_of

SEED = 20_261_121
QUEUE = QueueId("orders", 1)

Times = list[int | None]


def by_looking_at_all(times: Times, wanted: int) -> Boundary:
    earlier = [at for at, time in enumerate(times) if time is not None and time < wanted]
    reached = [at for at, time in enumerate(times) if time is not None and time >= wanted]
    return Boundary(earlier[-1] + 1 if earlier else 0, reached[0] if reached else len(times))


def boundary(times: Times, wanted: int) -> Boundary:
    return find_boundary(0, len(times), times.__getitem__, lambda time: time >= wanted)


@pytest.mark.campaign
@settings(max_examples=2_000, derandomize=True, deadline=None)
@given(st.data())
def test_the_boundary_is_that_of_a_look_at_every_record(data: st.DataObject) -> None:
    whole = sorted(data.draw(st.lists(st.integers(0, 30), max_size=60)))
    dark = data.draw(st.sets(st.integers(0, max(0, len(whole) - 1))))
    times = [None if at in dark else time for at, time in enumerate(whole)]
    wanted = data.draw(st.integers(-1, 32))
    found = by_looking_at_all(times, wanted)
    assert boundary(times, wanted) == found
    lower = offset_by_time(0, len(times), wanted, "LOWER", times.__getitem__)
    assert lower == found.behind


def test_a_long_stretch_that_is_gone_costs_a_few_looks_and_no_record() -> None:
    count, start, stop = 1_000_000, 300_000, 900_000
    looks = 0

    def time_at(offset: int) -> int | None:
        nonlocal looks
        looks += 1
        return None if start <= offset < stop else offset

    for wanted in (5, start, start + 5, stop, stop + 5, count + 5):
        looks = 0
        found = find_boundary(0, count, time_at, lambda time: time >= wanted)  # noqa: B023
        end = min(wanted, count)
        inside = start <= wanted <= stop
        assert found == (Boundary(start, stop) if inside else Boundary(end, end))
        assert looks < 300


def truth_of(store: GoldenStore) -> list[Truth]:
    return store.by_queue[QUEUE]


def spoil(store: GoldenStore, record: Truth) -> None:
    """Zero a record in the log."""
    write_in_log(store, record["commitLogOffset"], bytes(record["storeSize"]))


def spark_rows(store: GoldenStore, **options: str) -> list[int]:
    asked = {"path": store.path, "assign": '{"orders": [1]}', "mode": "DROPMALFORMED", **options}
    rows = rows_of({name.lower(): value for name, value in asked.items()})
    return [row["commitLogOffset"] for row in rows]


@pytest.mark.campaign
@pytest.mark.parametrize("spoiled", ["one in the middle", "the last", "a run", "scattered"])
def test_times_select_the_same_messages_around_damage(copy: GoldenStore, spoiled: str) -> None:
    truth = truth_of(copy)
    count = len(truth)
    random_ = random.Random(SEED)
    numbers = {
        "one in the middle": [count // 2],
        "the last": [count - 1],
        "a run": list(range(count // 2 - 10, count // 2 + 30)),
        "scattered": random_.sample(range(count), 40),
    }[spoiled]
    for number in numbers:
        spoil(copy, truth[number])
    gone = {truth[number]["commitLogOffset"] for number in numbers}
    times = sorted({record["storeTimestamp"] for record in truth})
    for _ in range(12):
        since, until = sorted(random_.sample(times, 2))
        within = [r["commitLogOffset"] for r in truth if since <= r["storeTimestamp"] < until]
        wanted = [at for at in within if at not in gone]
        found = spark_rows(copy, startingTimestamp=str(since), endingTimestamp=str(until))
        assert found == wanted, (spoiled, since, until, SEED)
        reported: list[StoreError] = []
        search = Search(topics=["orders"], queue_ids=[1], since=since, until=until)
        with MessageStore.open(copy.path) as opened:
            batches = list(find(opened, search, ["commitLogOffset", "body"], reported.append))
        assert [at for b in batches for at in b.column(0).to_pylist()] == wanted
        assert {error.offset for error in reported} >= gone & set(within), (
            "damage of that time is reported"
        )


def test_the_time_of_a_reset_is_not_misled(copy: GoldenStore) -> None:
    truth = truth_of(copy)
    spoil(copy, truth[len(truth) // 2])
    early = truth[len(truth) // 5]
    wanted = next(r["queueOffset"] for r in truth if r["storeTimestamp"] >= early["storeTimestamp"])
    with copy.open() as opened:
        assert opened.offset_by_time(*QUEUE, early["storeTimestamp"]) == wanted


def test_a_file_of_another_queue_in_the_middle_hides_no_message(tmp_path: Path) -> None:
    """Its entries lead to records of other times."""
    store = unpack("clean-5.3.3", tmp_path)
    queues = Path(store.path, "consumequeue")
    ours = queues / "payments/0/00000000000000002000"
    ours.write_bytes((queues / "SCHEDULE_TOPIC_XXXX/2/00000000000000000000").read_bytes())
    own = store.by_queue[QueueId("payments", 0)]
    until = own[140]["storeTimestamp"]
    search = Search(topics=["payments"], queue_ids=[0], until=until)
    reported: list[StoreError] = []
    with store.open() as opened:
        with pytest.raises(StoreError, match="payments/0"):
            list(find(opened, search, ["queueOffset"]))
        batches = list(find(opened, search, ["queueOffset"], reported.append))
    found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
    assert found == [r["queueOffset"] for r in own[:100] if r["storeTimestamp"] < until]
    assert reported
