"""A driver killed anywhere in a commit: the rows are in the store as a whole or not at all, and once."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_source.writing.staging import folder_beside
from spark_source.writing.target import StreamBatch
from spark_source.writing.writers import commit
from tests.support.golden import verified
from tests.support.running.campaigns import count, seed_of
from tests.support.running.killing import calls_of
from tests.support.writing.writes import left_beside, numbers_in, prepared, write_rows

SEED = "20261122"
BEFORE, ROWS, AFTER = 50, 90, 10
KILLS = 100
QUERY = "5a3c"


@pytest.fixture(autouse=True)
def without_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process wrote is in the page cache, so no test here waits for a disk."""
    monkeypatch.setattr(os, "fsync", os.fstat)


WAYS: dict[str, dict[str, Any]] = {
    "append": {},
    "create": {"new": True},
    "overwrite": {"overwrite": True},
    "stream": {"stream": True},
    "stream into a new store": {"stream": True, "new": True},
    "complete stream": {"stream": True, "overwrite": True},
}


class Round:
    """A target in a folder of its own, and the write that is killed."""

    def __init__(self, folder: Path, way: str) -> None:
        how = WAYS[way]
        self.target = folder / "store"
        self.overwrite = bool(how.get("overwrite"))
        self.stream = StreamBatch(QUERY, 1) if how.get("stream") else None
        self.before = [] if how.get("new") else list(range(BEFORE))
        if self.before:
            first = None if self.stream is None else StreamBatch(QUERY, 0)
            write_rows(self.target, 0, BEFORE, stream=first)
        self.written = list(range(BEFORE, BEFORE + ROWS))
        self.whole = self.written if self.overwrite else self.before + self.written

    def work(self) -> Callable[[], Any]:
        """Stage the rows of the write; its commit."""
        query = None if self.stream is None else self.stream.query
        write, parts = prepared(self.target, BEFORE, ROWS, overwrite=self.overwrite, query=query)
        return lambda: commit(write, parts, self.stream)

    def check_what_a_reader_sees(self) -> None:
        """Right after the kill: at least the old store, or a new one that is whole."""
        if not self.target.exists() or not any(self.target.iterdir()):
            assert not self.before
            return
        seen = numbers_in(self.target)
        if self.overwrite or not self.before:
            assert seen in (self.before, self.whole)
        else:
            # A write that was killed behind its last row stays, and one that is killed after it
            # begins at the same rows. A batch of a stream is written once.
            times = 1 if self.stream is not None else 2
            assert seen == (self.before + self.written * times)[: len(seen)]
            assert len(seen) >= len(self.before)

    def check_after_the_next_write(self) -> None:
        """After a write that was not killed: all or nothing of the killed one, and nothing left."""
        if self.stream is not None:
            write_rows(self.target, BEFORE, ROWS, overwrite=self.overwrite, stream=self.stream)
            assert numbers_in(self.target) == self.whole
            assert left_beside(self.target) == ["journal.json"]
        else:
            write_rows(self.target, 500, AFTER)
            after = list(range(500, 500 + AFTER))
            assert numbers_in(self.target) in (self.before + after, self.whole + after)
            # The rows of one that was killed before it had the lock may be those of one that runs.
            beside = folder_beside(str(self.target))
            left = [beside / name for name in left_beside(self.target)]
            assert not any((folder / "committing").exists() for folder in left)
            assert all(list(folder.glob("part-*.arrow")) for folder in left)
        assert not verified(self.target).findings


def kill_rounds(folder: Path, way: str, kills: int, chance: random.Random) -> None:
    (folder / "counted").mkdir()
    total = calls_of(Round(folder / "counted", way).work, None)
    assert total is not None
    assert total > 50
    step, killed = total / kills, 0
    for number in range(kills):
        place = folder / str(number)
        place.mkdir()
        now = Round(place, way)
        # Spread over the whole commit; each at another call of its stretch.
        at = int(number * step + chance.random() * step)
        print(f"{way}: killed at call {at} of {total}")
        # A few calls more or less depend on the time, so the last point may never come.
        killed += calls_of(now.work, at) is None
        now.check_what_a_reader_sees()
        if chance.random() < 0.5:  # the one that undoes it is killed too
            print(f"and again at {(again := chance.randrange(total // 2))}")
            calls_of(now.work, again)
            now.check_what_a_reader_sees()
        now.check_after_the_next_write()
        shutil.rmtree(place)
    assert killed >= kills * 0.9 - 1


@pytest.mark.campaign
@pytest.mark.parametrize("way", WAYS)
def test_a_driver_killed_in_its_commit_writes_all_or_nothing(way: str, tmp_path: Path) -> None:
    seed = seed_of(f"sink {way}", f"{SEED} {way}")
    print(f"seed {seed!r}")
    kill_rounds(tmp_path, way, count(KILLS), random.Random(seed))
