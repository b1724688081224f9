"""What a follower of a log looks at: how often at all queues, and at which records again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store.commitlog.log import CommitLog
from rmq_store.files.mapping import stored_until
from rmq_store.reading.growing_log import LogFollower, LogPlace, dispatched_end, whole_end
from rmq_store.store import MessageStore
from tests.support.golden import GoldenStore
from tests.support.growing import Growing

Golden = Callable[[str], GoldenStore]
NAME = "clean-5.5.0"
MINUTES = 5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the follower sees, in seconds."""
    now = [0.0]
    monkeypatch.setattr("rmq_store.reading.growing_log.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def idle(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose log ends in many zeros that are stored, as in a file that a broker has warmed."""
    monkeypatch.setattr("rmq_store.reading.growing_log._MOST_ZEROS", 4096)  # the files are small
    path = tmp_path / "store"
    shutil.copytree(golden(NAME).path, path)
    last = max((path / "commitlog").iterdir())
    last.write_bytes(last.read_bytes())
    return path


def looks(path: Path, clock: list[float], steps: Iterator[int] | range) -> int:
    """The number of looks at all queues while the place stays the same."""
    count = [0]

    def listed_end() -> int:
        count[0] += 1
        with MessageStore.open(path) as store:
            return dispatched_end(store.view, store.queues())

    follower = LogFollower(listed_end)
    with MessageStore.open(path) as store:
        end = store.log_range()[1]
        place = LogPlace.at(store.log, end)
        size = store.log.chain.file_size
    for second in steps:
        clock[0] = float(second)
        log = CommitLog([path / "commitlog"], file_size=size)
        assert follower.after(log, place, str(path)) == end
        log.chain.close()
    return count[0]


def test_a_log_that_ends_in_a_hole_needs_no_queue(idle: Path, clock: list[float]) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # in memory, a look fills holes
        store = Path(shutil.copytree(idle, Path(folder, "store")))
        last = max((store / "commitlog").iterdir())
        with MessageStore.open(store) as opened:
            end = opened.log_range()[1] - int(last.name)
        size = last.stat().st_size
        os.truncate(last, end)
        os.truncate(last, size)
        with last.open("rb") as file:
            if stored_until(file.fileno(), size) == size:
                pytest.skip("this file system does not report holes")
        assert looks(store, clock, range(60 * MINUTES)) == 0


def test_an_idle_log_with_stored_zeros_has_its_queues_looked_at_once_a_minute(
    idle: Path, clock: list[float]
) -> None:
    assert looks(idle, clock, range(60 * MINUTES)) <= MINUTES + 3


def test_a_log_that_changes_has_its_queues_looked_at_every_ten_seconds(
    idle: Path, clock: list[float]
) -> None:
    last = max((idle / "commitlog").iterdir())

    def touched() -> Iterator[int]:
        for second in range(100):
            os.utime(last, ns=(second, second))
            yield second

    assert looks(idle, clock, touched()) == 10


# --- far behind -----------------------------------------------------------------------------------


def test_records_are_checked_once_until_the_log_is_cut(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that is far behind goes on from the end that it knows, if it is still that end."""
    starts: list[int] = []

    def noted(log: CommitLog, start: int, listed_end: Callable[[], int]) -> int:
        starts.append(start)
        return whole_end(log, start, listed_end)

    monkeypatch.setattr("rmq_store.reading.growing_log.whole_end", noted)
    store = Growing(golden("geometry-5.5.0"), tmp_path)
    follower, ends = LogFollower(lambda: 0), list[int]()
    size = len(store.bytes[0])
    for stop in (size // 2, size, size // 3, size):
        store.show(stop)
        log = CommitLog([store.path / "commitlog"], file_size=size)
        ends.append(follower.end(log, 0))
        log.chain.close()
    assert 0 < ends[2] <= size // 3 < ends[0] < ends[1] == ends[3]
    assert starts == [0, ends[0], 0, ends[2]]
