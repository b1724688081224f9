"""What is on the disk when: group commit, the background flush, the checkpoint, many threads."""

from __future__ import annotations

import errno
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import AccessError, InvalidArgumentError, ReadOnlyStoreError
from rmq_store.files.segment_chain import OpenFiles
from rmq_store.markers import Checkpoint
from rmq_store.writing.store_writer import Flusher, GroupCommit
from tests.support.stores import QUEUES, SMALL, append_many, contents, one_message

SYNC = {**SMALL, "flushDiskType": "SYNC_FLUSH"}
THREADS = 8
EACH = 40


def append_from_threads(store: Any, each: int = EACH) -> dict[int, int]:
    """Messages from several threads at once; log offset of each by its number."""
    done: dict[int, int] = {}

    def work(first: int) -> None:
        for number in range(first, first + each):
            done[number] = store.append(one_message(number)).commit_log_offset

    threads = [threading.Thread(target=work, args=(n * each,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


@pytest.mark.parametrize("kind", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("background", [False, True])
def test_many_threads_append_without_gaps_or_doubles(
    kind: str, background: bool, tmp_path: Path
) -> None:
    with MessageStore.create(tmp_path / "s", {**SMALL, "flushDiskType": kind}) as store:
        if background:
            store.follow_in_background()
        done = append_from_threads(store)
    assert len(done) == THREADS * EACH
    with MessageStore.open(tmp_path / "s") as reader:
        found = contents(reader)
        for messages in found.values():
            assert [m[0] for m in messages] == list(range(len(messages)))
        listed = {m[1]: m[3] for messages in found.values() for m in messages}
        assert listed == {at: one_message(n)["body"] for n, at in done.items()}
        assert len(reader.queues("orders")) == QUEUES


def test_sync_flush_returns_after_the_disk_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def watched(fd: int) -> None:
        real(fd)
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), store.log_range()[1]))

    with MessageStore.create(tmp_path / "s", SYNC) as store:
        monkeypatch.setattr(os, "fsync", watched)
        for number in range(20):
            done = store.append(one_message(number))
            end = done.commit_log_offset + done.store_size
            assert max(at for path, at in synced if "/commitlog/" in path) >= end


def test_one_flush_serves_all_that_wait(tmp_path: Path) -> None:
    files = OpenFiles()
    path = tmp_path / "f"
    at_once = 20
    gate, entered = threading.Event(), threading.Event()
    real = files.sync

    flushes = 0

    def slow(least_bytes: int = 0) -> None:
        nonlocal flushes
        flushes += 1
        entered.set()
        gate.wait()
        real(least_bytes)

    files.sync = slow  # type: ignore[method-assign]
    end = [0]
    commit = GroupCommit(files, lambda: end[0])
    files.write(path, 100, 0, b"x")
    end[0] = 1
    leader = threading.Thread(target=commit.wait, args=(1,))
    leader.start()
    entered.wait()
    end[0] = at_once + 1  # appended while the first flush is under way
    rest = [threading.Thread(target=commit.wait, args=(n + 2,)) for n in range(at_once)]
    for thread in rest:
        thread.start()
    gate.set()
    for thread in [leader, *rest]:
        thread.join()
    assert (commit.flushed_to, flushes) == (at_once + 1, 2)
    files.close()


def test_a_disk_that_fails_to_flush_fails_the_append_and_all_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = MessageStore.create(tmp_path / "s", SYNC)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(AccessError, match="Input/output"):
            store.append(one_message(0))
    with pytest.raises(ReadOnlyStoreError):
        store.append(one_message(1))
    store.close()
    assert (tmp_path / "s/abort").exists()
    with MessageStore.append_to(tmp_path / "s", SYNC) as again:
        assert again.max_offset("orders", 0) == 1


class Recorder:
    """Stands for the files: which flushes were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sync(self, least_bytes: int = 0) -> None:
        self.asked.append(least_bytes)


def make_flusher(config: dict[str, Any]) -> tuple[Flusher, Recorder, Recorder, list[Checkpoint]]:
    log, queues, written = Recorder(), Recorder(), list[Checkpoint]()
    flusher = Flusher(
        StoreConfig.of(config),
        log,  # type: ignore[arg-type]
        queues,  # type: ignore[arg-type]
        lambda: Checkpoint(50, 40, 30, logics_physical_offset=900),
        lambda: None,
        lambda: None,
        written.append,
        lambda error: None,
        Checkpoint(),
    )
    return flusher, log, queues, written


def test_the_background_flush_keeps_the_broker_s_intervals_and_pages() -> None:
    flusher, log, queues, written = make_flusher({})
    begun = time.monotonic()
    for tick in range(1, 25):  # every half second for twelve
        flusher.flush_due(begun + 1 + tick * 0.5)
    assert set(log.asked) == {0, 4 * 4096}
    assert log.asked.count(0) == 1
    assert queues.asked[0] == 0
    assert set(queues.asked[1:]) == {2 * 4096}
    assert written[0] == Checkpoint(0, 40, 30, 0, 0, 900)


def test_the_checkpoint_advances_only_with_thorough_flushes() -> None:
    flusher, _, _, written = make_flusher(
        {"flushCommitLogThoroughInterval": 1000, "flushConsumeQueueThoroughInterval": 5000}
    )
    begun = time.monotonic()
    flusher.flush_due(begun + 1.5)
    flusher.flush_due(begun + 2.6)
    flusher.flush_due(begun + 8)
    assert [one.physic_msg_timestamp for one in written] == [50, 50]
    assert [one.logics_physical_offset for one in written] == [900, 900]


def test_the_running_writer_keeps_its_checkpoint(tmp_path: Path) -> None:
    quick = {**SMALL, "flushIntervalCommitLog": 1, "flushIntervalConsumeQueue": 1}
    quick |= {"flushCommitLogThoroughInterval": 1, "flushConsumeQueueThoroughInterval": 1}
    with MessageStore.create(tmp_path / "s", quick) as store:
        append_many(store, 30)
        store.dispatch()
        last = store.append(one_message(30))
        store.dispatch()
        deadline = threading.Event()
        for _ in range(1000):
            found = Checkpoint.read_or_zero(tmp_path / "s/checkpoint")
            listed = found.logics_physical_offset == last.commit_log_offset
            if listed and found.physic_msg_timestamp:
                break
            deadline.wait(0.01)
        assert found.logics_physical_offset == last.commit_log_offset
        assert found.physic_msg_timestamp == found.logics_msg_timestamp == last.store_timestamp


def test_entries_that_wait_are_written_at_the_interval(tmp_path: Path) -> None:
    """A writer that appended little and then dies has listed it, and the checkpoint says so."""
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        store._flusher.stop()  # the test is its clock
        done = [store.append(one_message(number)) for number in (0, 6, 12)]  # orders/0
        begun = store._flusher._queues_at
        store._flusher.flush_due(begun)  # before the interval
        queue = tmp_path / "s/consumequeue/orders/0" / "0".zfill(20)
        assert not queue.exists()
        store._flusher.flush_due(begun + 1)
        first, last, *_ = struct.unpack_from(">qi8xqi8xqi8x", queue.read_bytes())[::4]
        assert (first, last) == (done[0].commit_log_offset, done[2].commit_log_offset)
        times = struct.unpack_from(">8xq24xq", (tmp_path / "s/checkpoint").read_bytes())
        assert times == (done[2].store_timestamp, done[2].commit_log_offset)


def test_pages_are_warmed_before_they_are_written(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", {**SMALL, "warmMapedFileEnable": True}) as store:
        store.append(one_message(0))
        (log,) = (tmp_path / "s/commitlog").iterdir()
        assert log.stat().st_blocks * 512 >= SMALL["mappedFileSizeCommitLog"]


def test_a_kind_of_flush_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="SYNC_FLUSH or ASYNC_FLUSH"):
        MessageStore.create(tmp_path / "s", {**SMALL, "flushDiskType": "sometimes"})
