"""New index files follow those of a host whose clock is ahead, or whose time zone is east of ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.recovery import recover
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, keys_of, unpack

NAME = "crash-5.5.0"
_MOST_NAMES = 200  # far more than the store has index files


def mend(golden: GoldenStore) -> None:
    """Index the last records again, as a recovery does."""
    recover(golden.path, release="5.5.0")


def append(golden: GoldenStore) -> None:
    """Fill the last file and the one after it."""
    with MessageStore.append_to(golden.path, {"maxHashSlotNum": 200, "maxIndexNum": 400}) as store:
        for number in range(401):
            store.append({"topic": "orders", "queueId": 0, "keys": f"new-{number}", "body": b"x"})


@pytest.fixture(params=["a clock hours behind", "a time zone hours to the west"])
def other_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Another clock here than that of the store, which is asked for no more names than there are files."""
    times, strftime = 0, time.strftime

    def counted(*arguments: object) -> str:
        nonlocal times
        times += 1
        assert times < _MOST_NAMES, "names are looked for one by one"
        return strftime(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(time, "strftime", counted)
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("work", [mend, append])
def test_new_index_files_follow_those_of_a_clock_that_is_ahead(
    work: Callable[[GoldenStore], None],
    other_clock: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    golden = unpack(NAME, tmp_path)
    folder = Path(golden.path, "index")
    before = sorted(path.name for path in folder.iterdir())
    made = time.mktime(time.strptime(before[-1][:14], "%Y%m%d%H%M%S"))
    west = other_clock == "a time zone hours to the west"
    monkeypatch.setenv("TZ", "Etc/GMT+9" if west else "UTC")
    time.tzset()
    now = int(made) + (3600 if west else -13 * 3600)
    monkeypatch.setattr(time, "time_ns", lambda: now * 10**9)
    work(golden)
    after = sorted(path.name for path in folder.iterdir())
    assert set(after) - set(before)
    with MessageStore.open(golden.path) as store:
        assert verify(store).nothing_wrong
        ends = [file.header.begin_log_offset for file in store.key_index().files]
        assert ends == sorted(ends)
        for record in golden.truth[-20:]:
            for key in keys_of(record):
                found = store.key_index().candidates([record["topic"]], key)[record["topic"]]
                assert record["commitLogOffset"] in found
