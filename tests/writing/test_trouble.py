"""A full disk, a closed folder, a second writer, a clock that jumps: a clear error, nothing lost."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import AccessError, ReadOnlyStoreError, StoreError, StoreLockedError
from rmq_store.recovery import recover
from rmq_store.writing.store_writer import StoreWriter
from tests.support.running.child import become_nobody, in_a_child, run_python
from tests.support.stores import SMALL, append_many, contents, make_store, one_message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if not done or done.returncode:
        pytest.skip(
            "no small file system can be mounted here; the test with a size limit stands in"
        )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("kind", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_full_disk_is_reported_and_nothing_is_lost(kind: str, small_disk: Path) -> None:
    # An index that is larger than the disk: it must not kill the writer when the room runs out.
    config = {**SMALL, "flushDiskType": kind, "maxHashSlotNum": 1000, "maxIndexNum": 200_000}
    store = MessageStore.create(small_disk / "s", config)
    acknowledged, reported = append_until_refused(store)
    assert "No space left on device" in reported
    with pytest.raises(StoreError, match="recover"):
        store.append(one_message(0))
    store.close()
    assert acknowledged > 50
    there = {m[3] for messages in read(small_disk / "s").values() for m in messages}
    assert {one_message(n)["body"] for n in range(acknowledged)} <= there


def append_until_refused(store: StoreWriter) -> tuple[int, str]:
    """How many messages were acknowledged, and what was said then: by the append, or by the next one
    if the disk was full when waiting entries were written."""
    number = 0
    try:
        while True:
            store.append(one_message(number))
            number += 1
    except (AccessError, ReadOnlyStoreError) as error:
        return number, str(error)


def read(root: Path) -> dict[Any, list[Any]]:
    with MessageStore.open(root) as reader:
        return contents(reader)


def test_a_store_that_met_a_full_disk_goes_on_once_there_is_room(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(800 << 10))
    store = MessageStore.create(small_disk / "s", SMALL)
    acknowledged, _ = append_until_refused(store)
    store.close()
    filler.unlink()
    with MessageStore.append_to(small_disk / "s", SMALL) as again:
        append_many(again, 10, first=acknowledged + 1)
    bodies = {m[3] for messages in read(small_disk / "s").values() for m in messages}
    wanted = [*range(acknowledged), *range(acknowledged + 1, acknowledged + 11)]
    assert {one_message(n)["body"] for n in wanted} <= bodies


def fill(root: Path) -> None:
    with MessageStore.create(root, SMALL) as store:
        append_many(store, 100)


def test_a_limit_on_file_sizes_is_reported(tmp_path: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
        with pytest.raises(AccessError, match="File too large"):
            fill(tmp_path / "s")

    assert in_a_child(work) == 0


@pytest.mark.parametrize("what", [".", "commitlog", "consumequeue/orders/0"])
def test_a_folder_without_permission_is_reported(what: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as open_to_all:
        root = Path(open_to_all, "s")
        Path(open_to_all).chmod(0o755)
        make_store(root, 20)
        before = read(root)
        for path in (root, *root.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        for path in (root / what).iterdir():
            if path.is_file():
                path.chmod(0o444)
        (root / what).chmod(0o555)

        def work() -> None:
            become_nobody()
            with pytest.raises(AccessError, match="Permission denied"):
                append_to(root)

        assert in_a_child(work) == 0
        there = read(root)
        assert all(there[queue][: len(messages)] == messages for queue, messages in before.items())


def append_to(root: Path) -> None:
    with MessageStore.append_to(root, SMALL) as store:
        append_many(store, 20, first=20)


def test_a_folder_mounted_read_only_is_reported(small_disk: Path) -> None:
    make_store(small_disk / "s", 20)
    before = read(small_disk / "s")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (MessageStore.append_to, recover):
        with pytest.raises(AccessError, match="Read-only file system"):
            call(small_disk / "s", SMALL)
    assert read(small_disk / "s") == before


def test_a_second_writer_is_refused_in_this_and_any_other_process(tmp_path: Path) -> None:
    def second() -> None:
        with pytest.raises(StoreLockedError, match="another writer"):
            MessageStore.append_to(tmp_path / "s", SMALL)
        with pytest.raises(StoreLockedError):
            recover(tmp_path / "s", SMALL)

    with MessageStore.create(tmp_path / "s", SMALL) as store:
        append_many(store, 5)
        second()
        script = (
            "import sys; from rmq_store import MessageStore; "
            "from rmq_store.errors import StoreLockedError\n"
            "try: MessageStore.append_to(sys.argv[1])\n"
            "except StoreLockedError: sys.exit(3)\n"
        )
        assert run_python("-c", script, str(tmp_path / "s")).returncode == 3
        append_many(store, 5, first=5)
    assert sum(len(messages) for messages in read(tmp_path / "s").values()) == 10


def test_a_clock_that_jumps_back_does_not_turn_store_times_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        first = store.append(one_message(0))
        monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
        append_many(store, 60, first=1)
    with MessageStore.append_to(tmp_path / "s", SMALL) as store:  # and after a restart
        last = store.append(one_message(61))
        assert last.store_timestamp >= first.store_timestamp
        (tmp_path / "s/copied").touch()
    (tmp_path / "s/abort").touch()
    report = recover(tmp_path / "s", SMALL)
    assert report.log_end == last.commit_log_offset + last.store_size
    with MessageStore.open(tmp_path / "s") as reader:
        stamps = [e.record.store_timestamp for e in reader.scan() if e.record]
        assert stamps == sorted(stamps)
        assert len(stamps) == 62
