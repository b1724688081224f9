"""Remote files without a server: the file system of this machine in the place of an object store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest

from rmq_store import MessageStore, StoreError
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.errors import AccessError, MissingFileError
from rmq_store.files import source
from rmq_store.files.parallel import IN_FLIGHT, in_parallel
from rmq_store.files.remote import remote_store
from rmq_store.files.remote import remote_store as remote
from rmq_store.files.remote.remote_store import BLOCK, HeldBytes, RemoteFile
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Sources
from rmq_store.verify import verify
from tests.support.golden import Golden, GoldenStore, keys_of, unpack_field, unpack_kind, user_topic

SEED = 7
Far = Callable[[str], MessageStore]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    """`far(folder)` opens the store in a local folder as if it were in an object store."""
    opened: list[MessageStore] = []

    def here(uri: str, options: Any) -> tuple[Any, str]:
        return pafs.LocalFileSystem(), uri.removeprefix("far://")

    monkeypatch.setattr(remote, "file_system", here)

    def open_(folder: str) -> MessageStore:
        opened.append(MessageStore.open(f"far://{folder}"))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.mark.parametrize("name", ["clean-5.5.0", "geometry-5.5.0", "crash-4.9.7"])
def test_a_far_store_answers_as_one_that_is_near(golden: Golden, far: Far, name: str) -> None:
    store = golden(name)
    away = far(store.path)
    records = [r for r in store.truth if user_topic(r)]
    words = sorted({(r["topic"], word) for r in records for word in keys_of(r)})
    print("seed", SEED)
    with store.open() as near:
        assert away.snapshot() == near.snapshot()
        for topic, word in random.Random(SEED).sample(words, 12):
            found = [m.commit_log_offset for m in away.query_message(topic, word)]
            assert found == [m.commit_log_offset for m in near.query_message(topic, word)]
            assert found
        assert not away.query_message("orders", "no such key")
        for mine, theirs in zip(away.read_batches(), near.read_batches(), strict=True):
            index = mine.schema.get_field_index("brokerName")
            assert mine.remove_column(index) == theirs.remove_column(index)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NO_SUCH_KEY during GetObject operation: it does not exist", MissingFileError),
        ("UNKNOWN (HTTP status 404) during GetObject operation", MissingFileError),
        ("SLOW_DOWN during GetObject operation: (Request ID: 5D40404B)", AccessError),
        ("ACCESS_DENIED during HeadObject operation: No response body.", AccessError),
    ],
)
def test_a_number_in_a_key_does_not_say_that_a_file_is_gone(
    golden: Golden, far: Far, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[StoreError]
) -> None:
    store = far(golden("clean-5.5.0").path)

    def refused(self: remote.Shadow, inside: str) -> Any:
        raise OSError(f"When reading key 's/commitlog/00000000404000000000': AWS Error {said}")

    monkeypatch.setattr(remote.Shadow, "_opened", refused)
    with pytest.raises(StoreError) as raised:
        store.message_at(0)
    assert type(raised.value) is kind


def test_a_key_takes_a_few_requests_and_kilobytes(clean: GoldenStore, far: Far) -> None:
    away = far(clean.path)
    record = [r for r in clean.truth if r["topic"] == "orders" and r["uniqKey"]][40]
    before = away.reads()[-2:]
    (found,) = away.query_message("orders", record["uniqKey"])
    requests, fetched = (b - a for a, b in zip(before, away.reads()[-2:], strict=True))
    assert found.commit_log_offset == record["commitLogOffset"]
    files = len(list((Path(clean.path) / "index").iterdir()))
    # Of each index file its front (opened, header, first items), slots and a chain; each gap between
    # two of them; then the record.
    assert requests <= 8 * files + 12
    assert fetched < files * (16 << 10) + (files + 3) * (64 << 10)


def test_a_file_that_became_shorter_is_an_error(
    copy: GoldenStore, tmp_path: Path, far: Far
) -> None:
    away = far(copy.path)
    for path in (Path(copy.path) / "commitlog").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(MissingFileError, match="shorter than when it was listed") as short:
        list(away.read_batches())
    assert f"far://{copy.path}/commitlog/00000000000000000000" in str(short.value)
    with pytest.raises(StoreError) as none:  # beside it, a path of this host is that path
        MessageStore.open(tmp_path / "none")
    assert f" {tmp_path / 'none'}" in str(none.value)


class Pattern:
    """An object of bytes that say where they are; counts what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def read(self, path: str, start: int, stop: int) -> bytes:
        self.asked.append((start, stop))
        return (np.arange(start, stop) % 251).astype(np.uint8).tobytes()


def test_neighbours_are_fetched_together_and_nothing_twice() -> None:
    pattern = Pattern()
    file = RemoteFile(pattern, "a", 10_000_000, HeldBytes(), block=4096)  # type: ignore[arg-type]
    chance = random.Random(SEED)
    for _ in range(40):
        count = chance.choice((1, 9, 99))
        starts = np.array([chance.randrange(0, 9_990_000) for _ in range(count)])
        stops = starts + chance.randrange(1, 9_000)
        file.fetch(starts, stops)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            assert (file.bytes[start:stop] == np.arange(start, stop) % 251).all()
    assert file.held_bytes <= 10_002_432
    asked = len(pattern.asked)
    file.fetch(np.array([0]), np.array([10_000_000]))
    file.fetch(np.array([0]), np.array([10_000_000]))
    assert max(stop - start for start, stop in pattern.asked) <= 4 << 20
    assert len(pattern.asked) <= asked + 3 + 2442 // 17


@pytest.fixture
def patterns(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SegmentFile]:
    """`patterns(name)`: a file of 100 blocks in an object store."""
    store = Pattern()
    monkeypatch.setattr(source, "shadow_of", lambda path: store)
    return lambda name: SegmentFile(name, 0, 100 * BLOCK)


def test_a_window_that_cannot_be_fetched_keeps_no_blocks_in_memory(
    patterns: Callable[[str], SegmentFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_store, "KEPT_BYTES", 2 * BLOCK)
    read, asked = Pattern.read, []

    def fails_once(store: Pattern, path: str, start: int, stop: int) -> bytes:
        asked.append(start)
        if len(asked) == 1:
            raise AccessError(path, reason="the network is down")
        return read(store, path, start, stop)

    monkeypatch.setattr(Pattern, "read", fails_once)
    sources, file = Sources(2), patterns("a")
    with pytest.raises(AccessError):
        sources.window(file, 0, BLOCK)
    for number in range(100):
        with sources.window(file, number * BLOCK, (number + 1) * BLOCK) as window:
            assert (window.bytes[:9] == (np.arange(9) + number * BLOCK) % 251).all()
    held = sources.get(file)
    assert isinstance(held, RemoteFile)
    assert held.held_bytes <= 4 * BLOCK


def test_what_an_open_window_fetches_of_a_released_file_does_not_count(
    patterns: Callable[[str], SegmentFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "KEPT_BYTES", 2 * BLOCK)
    sources, other = Sources(2), patterns("b")
    for _ in range(5):
        with sources.window(patterns("a"), 0, 100 * BLOCK, fetch=False) as window:
            window.fetch([0], [3 * BLOCK])
            sources.get(other, to_fetch=True)  # releases the one of the window
            window.fetch([3 * BLOCK], [6 * BLOCK])
            assert (window.bytes[: 6 * BLOCK] == np.arange(6 * BLOCK) % 251).all()
    with sources.window(other, 0, BLOCK):
        assert sources._held.bytes == BLOCK


def test_work_side_by_side_is_done_once_each_and_stops_at_an_error() -> None:
    lock = threading.Lock()
    done: list[int] = []
    names: set[str] = set()
    together = threading.Barrier(IN_FLIGHT)

    def work(number: int) -> None:
        if number < IN_FLIGHT:
            together.wait(30)  # all of these are under way at once
        with lock:
            done.append(number)
            names.add(threading.current_thread().name)
        # Of its own it does one by one.
        in_parallel(lambda _: names.add(threading.current_thread().name), range(20))

    in_parallel(work, range(100))
    assert sorted(done) == list(range(100))
    assert len(names) == IN_FLIGHT
    done.clear()

    def fails(number: int) -> None:
        with lock:
            done.append(number)
        if number == 3:
            raise MissingFileError("a file", reason="it is not there")

    with pytest.raises(MissingFileError, match="a file"):
        in_parallel(fails, range(100_000))
    assert len(done) < 100_000
    assert not [one for one in threading.enumerate() if "rmqstore-fetch" in one.name]


def test_a_dataset_of_a_remote_store_has_its_rows_and_outlives_it(
    clean: GoldenStore, far: Far
) -> None:
    """Times are not proven there: to look at each record's head costs as much as to read it."""
    users = [r for r in clean.truth if user_topic(r)]
    keyed = next(r for r in users[len(users) // 2 :] if r["keys"])
    since = sorted(r["storeTimestamp"] for r in users)[len(users) // 2]
    remote_store = far(clean.path)
    columns = ["topic", "keys", "storeTimestamp"]
    dataset = remote_store.messages(unwrap_batches=False, columns=columns)
    narrow = remote_store.messages(unwrap_batches=False, since=since)
    remote_store.close()
    stored = pc.field("storeTimestamp") >= pa.scalar(since, pa.int64()).cast(TIMESTAMP)
    assert dataset.count_rows() == len(users)
    assert dataset.count_rows(stored) == sum(r["storeTimestamp"] >= since for r in users)
    assert dataset.plan(stored).stores[0].ranges == dataset.plan().stores[0].ranges
    same = sum(r["keys"] == keyed["keys"] for r in users)
    assert dataset.count_rows(pc.field("keys") == keyed["keys"]) == same
    assert narrow.count_rows() == sum(r["storeTimestamp"] >= since for r in users)


@pytest.mark.parametrize("name", ["dledger-5.5.0", "mixed-dledger-old-log-there"])
@pytest.mark.parametrize("small", [False, True])
def test_a_dledger_log_far_away_is_as_one_that_is_near(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, small: bool
) -> None:
    kind = name.startswith("dledger")
    root = Path(unpack_kind(name, tmp_path).path) if kind else unpack_field(name, tmp_path)
    if small:
        monkeypatch.setattr(remote_store, "BLOCK", 512)
        monkeypatch.setattr(remote_store, "MOST_A_REQUEST", 16 << 10)
        monkeypatch.setattr(remote_store, "KEPT_BYTES", 16 << 10)
        monkeypatch.setattr("rmq_store.commitlog.log._LEAST_LOOK", 2048)
    away = far(str(root))
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]
    with MessageStore.open(root) as near:
        wanted = near.read_batches(columns=columns, include_system_topics=True).read_all()
        log = near.read_log(columns=columns).read_all()
        assert near.log_range() == away.log_range()
    assert away.read_batches(columns=columns, include_system_topics=True).read_all() == wanted
    assert away.read_log(columns=columns).read_all() == log
    assert list(verify(away).findings) == []
