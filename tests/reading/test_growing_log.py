"""What a follower of a log looks at: how often at all queues, and at which records again."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.commitlog.log import CommitLog
from rmq_store.files.source import stored_until
from rmq_store.reading.log_reader import (
    LogEndFinder,
    LogPlace,
    end_of_known_records,
    end_of_whole_records,
)
from tests.support.damage import break_start
from tests.support.golden import Golden, in_a_queue, unpack
from tests.support.growing import Growing
from tests.support.log_records import parts, records

NAME = "clean-5.5.0"
MINUTES = 5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the follower sees, in seconds."""
    now = [0.0]
    monkeypatch.setattr("rmq_store.reading.log_reader.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def idle(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store whose log ends in many zeros that are stored, as in a file that a broker has warmed."""
    monkeypatch.setattr("rmq_store.reading.log_reader._MOST_ZEROS", 4096)  # the files are small
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
            return end_of_known_records(store.view, store.queues())

    follower = LogEndFinder(listed_end)
    with MessageStore.open(path) as store:
        end = store.log_range()[1]
        place = LogPlace.at(store.log, end)
        size = store.log.chain.file_size
    for second in steps:
        clock[0] = float(second)
        log = CommitLog([path / "commitlog"], file_size=size)
        assert follower.end_after(log, place, str(path)) == end
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

    def noted(log: CommitLog, start: int, listed_end: Callable[[int], int]) -> int:
        starts.append(start)
        return end_of_whole_records(log, start, listed_end)

    monkeypatch.setattr("rmq_store.reading.log_reader.end_of_whole_records", noted)
    store = Growing(golden("geometry-5.5.0"), tmp_path)
    follower, ends = LogEndFinder(lambda: 0), list[int]()
    size = len(store.bytes[0])
    for stop in (size // 2, size, size // 3, size):
        store.show(stop)
        log = CommitLog([store.path / "commitlog"], file_size=size)
        ends.append(follower.end(log, 0))
        log.chain.close()
    assert 0 < ends[2] <= size // 3 < ends[0] < ends[1] == ends[3]
    assert starts == [0, ends[0], 0, ends[2]]


# --- a last record that ends in zeros -------------------------------------------------------------


def with_body(raw: bytes, body: bytes) -> bytes:
    """A record with another body of the same length, which its CRC covers."""
    head, old, topic, properties = parts(raw)
    assert len(old) == len(body)
    at = raw.index(old, 88) if old else 88
    crc = struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF)
    changed = raw[:8] + crc + raw[12:at] + body + raw[at + len(body) :]
    assert parts(changed) == (crc + head[4:], body, topic, properties)
    return changed


def zero_at_its_end(raw: bytes) -> Iterator[bytes]:
    """Variants of a record without properties: as it is, and with zeros in its body."""
    yield raw
    body = parts(raw)[1]
    if len(body) > 20:
        yield with_body(raw, body[:-7] + bytes(7))
        yield with_body(raw, bytes(len(body)))


def ends(path: Path, size: int) -> int:
    """How far the log is whole without any queue."""
    log = CommitLog([path / "commitlog"], file_size=size)
    end = end_of_whole_records(log, 0, lambda _: 0)
    log.chain.close()
    return end


@pytest.mark.parametrize("name", ["direct-5.5.0", "geometry-5.5.0"])
def test_a_record_without_properties_is_whole_when_its_topic_is_there(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """Of both versions, with bodies that end in zeros and without a body, and at a file's end."""
    store = Growing(golden(name), tmp_path)
    size = len(store.bytes[0])
    bare = [one for one in records(golden(name).path) if not parts(one[2])[3]]
    kinds = {(raw[7], bool(parts(raw)[1])) for _, _, raw in bare}
    assert len(kinds) == 4  # both versions, with a body and without
    last_of_files = [one for one in bare if one[1] + len(one[2]) + 200 > size]
    for file, at, raw in [*bare[::9], *(one for one in bare if one[2][7] == 0xAB), *last_of_files]:
        base, before = int(file.name), store.bytes[int(file.name)]
        for whole in zero_at_its_end(raw):
            store.bytes[base] = before[:at] + whole + before[at + len(raw) :]
            stop = base + at + len(raw)
            store.show(stop)
            assert ends(store.path, size) == stop
            topic = len(whole) - 2 - len(parts(whole)[2])  # its place
            for missing in (3, 4, len(whole) - topic, len(whole) - topic + 1, len(whole) // 2):
                store.show(stop - missing)
                assert ends(store.path, size) == base + at, missing
        store.bytes[base] = before


def last_value_of_zeros(raw: bytes) -> bytes:
    """A record whose last property ends in zeros, as those of releases without a last separator."""
    assert parts(raw)[3]
    return raw[:-3] + bytes(3)


def test_properties_that_end_in_zeros_are_not_whole(golden: Golden, tmp_path: Path) -> None:
    """The end of the log waits before them, until a queue lists a record behind."""
    store = Growing(golden("clean-4.9.7"), tmp_path)
    size = len(store.bytes[0])
    found = list(records(golden("clean-4.9.7").path))
    (file, at, raw), (_, after, following) = found[100:102]
    assert int(file.name) == 0
    first = store.bytes[0]
    store.bytes[0] = first[:at] + last_value_of_zeros(raw) + first[at + len(raw) :]
    stop = after + len(following)
    for shown in (after, stop):
        store.show(shown)
        assert ends(store.path, size) == at
    log = CommitLog([store.path / "commitlog"], file_size=size)
    asked: list[int] = []

    def listed(end: int) -> int:
        asked.append(end)
        return stop

    assert end_of_whole_records(log, 0, listed) == stop
    assert asked == [at]
    log.chain.close()


def test_a_record_behind_damage_has_the_queues_looked_at_soon(
    golden: Golden, tmp_path: Path, clock: list[float]
) -> None:
    """A mapped file may keep its time while a broker writes, so the end of its records is the change."""
    store = Growing(golden("clean-4.9.7"), tmp_path)
    size = len(store.bytes[0])
    found = list(records(golden("clean-4.9.7").path))
    (_, at, raw), (_, after, following) = found[100:102]
    first, listed, looked = store.bytes[0], [0], list[float]()
    store.bytes[0] = first[:at] + last_value_of_zeros(raw) + first[at + len(raw) :]
    stop = after + len(following)

    def listed_end() -> int:
        looked.append(clock[0])
        return listed[0]

    follower = LogEndFinder(listed_end)
    file = store.files[0]
    for second in range(200):
        clock[0] = float(second)
        if second in (0, 100):
            store.show(stop if second else at - 1)
        os.utime(file, ns=(0, 0))
        if second == 105:
            listed[0] = stop
        log = CommitLog([store.path / "commitlog"], file_size=size)
        end = follower.end(log, 0)
        log.chain.close()
        if end == stop:
            break
    assert end == stop
    assert clock[0] <= 120


@pytest.mark.parametrize("name", ["clean-5.5.0", "crash-5.5.0", "nommap-5.5.0"])
@pytest.mark.parametrize("width", [1, 5000])
def test_records_behind_damage_at_the_start_of_the_last_file_are_reached(
    tmp_path: Path, name: str, width: int
) -> None:
    """Queues list them, so no writer is at work on the damaged one: a follower must not wait there."""
    store = unpack(name, tmp_path)
    start = break_start(store, width)
    listed = [r for r in store.truth if in_a_queue(r)]
    reached = max(r["commitLogOffset"] + r["storeSize"] for r in listed)
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        log, place = opened.log, LogPlace.at(opened.log, start)
        follower = LogEndFinder(lambda: end_of_known_records(opened.view, opened.queues()))
        assert follower.end(log, log.start) >= reached
        assert follower.end_after(log, place, "") >= reached


@pytest.mark.parametrize("shown", [0, 1, 60])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_first_record_that_is_half_there_is_waited_for(
    golden: Golden, tmp_path: Path, shown: int, ahead: int
) -> None:
    """In the last file, and in one behind which the broker made the next with zeros."""
    store = Growing(golden(NAME), tmp_path)
    base, size = max(store.files), len(store.bytes[0])
    found = list(records(golden(NAME).path))
    whole = max(int(f.name) + at + len(raw) for f, at, raw in found if int(f.name) < base)
    store.show(base + shown)
    for number in range(ahead + 1):
        file = store.path / "commitlog" / f"{base + size * number:020}"
        if not file.exists():
            file.write_bytes(bytes(size))
    assert ends(store.path, size) == whole
