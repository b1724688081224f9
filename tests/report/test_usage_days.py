"""Days that begin where the log reaches midnight, compared with those of each queue, and messages by topic
and time, compared with what the broker's own decoder read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import MessageStore, QueueSlice
from rmq_store.format.queues import Entries
from rmq_store.questions import usage
from rmq_store.questions.usage import small_queue, usage_of
from tests.support.golden import Golden, in_a_queue, messages_in
from tests.support.running.commands import complaint, in_ms, objects, run
from tests.support.stores import SMALL, one_message

DAY_MS = 86_400_000
LARGEST = 20


@pytest.mark.parametrize(
    "name",
    [
        "clean-5.3.3",
        "expired-5.5.0",
        "lmq-5.3.3",
        "ext-5.5.0",
        "hours-crash-4.9.7",
        "days-crash-5.5.0",
    ],
)
def test_the_answer_is_the_same_for_a_brokers_store(name: str, golden: Golden) -> None:
    with golden(name).open() as store:
        usual = usage_of(store, largest=LARGEST)
        by_log = usage_of(store, largest=LARGEST, days_by_log=True)
    assert by_log == usual


def test_the_answer_is_the_same_over_several_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times at midnight, days without a message, and queues that do not reach every day."""
    first = 20_000 * DAY_MS - 3
    times = [first, first + 2, first + 3, first + 4, *(first + 2 * DAY_MS + n for n in range(9))]
    times += [first + 5 * DAY_MS] * 5
    with MessageStore.create(tmp_path / "store", SMALL) as writer:
        for number, time in enumerate(times):
            writer.append(one_message(number) | {"storeTimestamp": time})
    with MessageStore.open(tmp_path / "store") as store:
        usual = usage_of(store, largest=LARGEST)
        read: list[int] = []

        def noted(store: MessageStore, part: QueueSlice, most: int) -> Entries | None:
            entries = small_queue(store, part, most)
            read.append(0 if entries is None else len(entries))
            return entries

        monkeypatch.setattr("rmq_store.questions.usage.small_queue", noted)
        assert usage_of(store, largest=LARGEST, days_by_log=True) == usual
    assert sum(read) == len(times)
    assert len({row["day"] for row in usual.rows}) == 5


@pytest.mark.parametrize(
    ("days", "first"), [((0, 1, 1, 15, 30), 0), ((0, 1, 2, 3), 0), ((0, 9, *range(11, 18)), 9)]
)
def test_days_without_messages_count_in_the_mean(
    days: Sequence[int], first: int, tmp_path: Path
) -> None:
    """That of the last seven days with messages, up to the last day."""
    with MessageStore.create(tmp_path / "store", SMALL) as writer:
        for number, day in enumerate(days):
            writer.append(one_message(number) | {"storeTimestamp": (20_000 + day) * DAY_MS})
    begin, stop = ((20_000 + day) * DAY_MS for day in (first, days[-1]))
    with MessageStore.open(tmp_path / "store") as store:
        rows = pa.Table.from_batches(store.read_batches(columns=["storeTimestamp", "storeSize"]))
        sizes = zip(rows[0].cast(pa.int64()).to_pylist(), rows[1].to_pylist(), strict=True)
        count = days[-1] - first
        mean = sum(size for at, size in sizes if begin <= at < stop) // count
        assert usage_of(store).growth() == (count, mean)
    said = complaint("usage", str(tmp_path / "store"), "--by", "day", expect=0)
    assert f"{mean} B a day, mean of {count} days before the last" in said


@pytest.mark.parametrize("by_log", [False, True])
@pytest.mark.parametrize(
    "name", ["hours-crash-4.9.7", "back-crash-5.5.0", "hours-crash-5.5.0", "days-crash-5.5.0"]
)
def test_each_day_has_its_messages(name: str, by_log: bool, golden: Golden) -> None:
    """Several days, and one on which the clock goes back by minutes."""
    store = golden(name)
    with store.open() as opened:
        rows = usage_of(opened, largest=LARGEST, days_by_log=by_log).rows
    found = {(row["topic"], row["queueId"], row["day"]): row["messages"] for row in rows}
    wanted = Counter(
        (r["topic"], r["queueId"], date(1970, 1, 1) + timedelta(r["storeTimestamp"] // DAY_MS))
        for r in store.truth
    )
    assert found == wanted
    assert len({day for _, _, day in wanted}) > 1 or name == "hours-crash-5.5.0"


@pytest.mark.parametrize("zone", ["Asia/Shanghai", "Pacific/Honolulu", "America/St_Johns"])
@pytest.mark.parametrize("name", ["hours-crash-4.9.7", "clean-5.5.0", "days-crash-5.5.0"])
def test_days_are_those_of_a_zone(name: str, zone: str, golden: Golden) -> None:
    store = golden(name)
    with store.open() as opened:
        rows = usage_of(opened, largest=LARGEST, zone=ZoneInfo(zone)).by("day")
    records = {r["commitLogOffset"]: r for r in store.truth if in_a_queue(r)}.values()
    wanted: Counter[date] = Counter()
    for record in records:
        stored = datetime.fromtimestamp(record["storeTimestamp"] / 1000, ZoneInfo(zone))
        wanted[stored.date()] += messages_in(record)
    assert {row["day"]: row["messages"] for row in rows} == wanted


def test_hours_are_those_of_a_zone(golden: Golden) -> None:
    """Which is half an hour beside those of UTC."""
    zone = "America/St_Johns"
    store, of_zone = golden("hours-crash-4.9.7"), ZoneInfo(zone)
    records = {r["commitLogOffset"]: r for r in store.truth if in_a_queue(r)}.values()
    wanted: Counter[datetime] = Counter()
    for record in records:
        stored = datetime.fromtimestamp(record["storeTimestamp"] / 1000, of_zone)
        wanted[stored.replace(minute=0, second=0, microsecond=0)] += messages_in(record)
    assert len(wanted) > 3
    words = ("usage", store.path, "--by", "hour", "--zone", zone)
    rows = objects(*words, "--broker-conf", store.conf)
    assert [(in_ms(row["hour"]), row["messages"]) for row in rows] == [
        (int(hour.timestamp() * 1000), count) for hour, count in sorted(wanted.items())
    ]
    said = run(*words, "--broker-conf", store.conf).splitlines()[1:]
    assert [line.split("\t")[0] for line in said if line.startswith("2")] == [
        f"{hour:%Y-%m-%d %H:%M}" for hour in sorted(wanted)
    ]


@pytest.mark.parametrize("name", ["clean-5.3.3", "expired-5.5.0"])
def test_estimates_have_the_same_messages_and_about_the_bytes(name: str, golden: Golden) -> None:
    with golden(name).open() as store:
        usual = usage_of(store, largest=LARGEST)
        few = usage_of(store, largest=LARGEST, days_by_log=True, entries_of_a_queue=10)
    assert few.messages == usual.messages
    assert [row["messages"] for row in few.rows] == [row["messages"] for row in usual.rows]
    assert few.bytes_in_queues != usual.bytes_in_queues
    assert abs(few.bytes_in_queues / usual.bytes_in_queues - 1) < 0.2


@pytest.mark.parametrize("counted", [1 << 16, 1])
@pytest.mark.parametrize(
    "name",
    [
        *("clean-5.3.3", "crash-5.5.0", "expired-5.5.0", "lmq-5.3.3", "multipath-5.5.0"),
        *("hours-crash-5.5.0", "days-crash-5.5.0"),
    ],
)
def test_the_counts_are_those_of_the_broker(
    name: str, counted: int, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a queue's entries are read (few messages) or bisected (many)."""
    monkeypatch.setattr(usage, "_COUNTED", counted)
    store = golden(name)
    with store.open() as opened:
        found = usage.message_rate(opened, periods=40)
    expected: dict[str, tuple[int, ...]] = {}
    for queue, records in store.by_queue.items():
        if queue.topic.startswith("%LMQ%"):
            continue
        times = [one["storeTimestamp"] for one in records for _ in range(messages_in(one))]
        counts = np.histogram(times, bins=np.array(found.edges) - 0.5)[0]
        before = expected.get(queue.topic, (0,) * len(counts))
        expected[queue.topic] = tuple(int(a + b) for a, b in zip(before, counts, strict=True))
    assert len(found.edges) > 2
    assert found.counts == expected
