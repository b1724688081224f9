"""Who holds the lock of a store, asked without taking it, changing it or making its file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_store.errors import StoreLockedError
from rmq_store.markers import LockState, StoreLock, lock_state
from tests.support.golden import unpack
from tests.support.running.child import run_python
from tests.support.running.commands import objects, run

_HOLD = """
import sys
from pathlib import Path
from rmq_store.markers import StoreLock
lock = StoreLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process_holding(root: str) -> Iterator[int]:
    """A process that holds the store's lock as a broker does. Gives its id."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_info_and_verify_say_which_process_holds_the_lock(tmp_path: Path) -> None:
    """A store that a broker writes has `abort`, like a crashed one: the lock is the difference."""
    store = unpack("crash-5.3.3", tmp_path)
    root = Path(store.path)
    (root / "lock").unlink(missing_ok=True)
    before = store.fingerprint()
    assert lock_state(root) == LockState(False)
    assert store.fingerprint() == before  # no lock file was made
    (info,) = objects("info", store.path)
    assert (info["closed"], info["lockHeld"], info["lockPid"]) == (False, False, None)
    assert "not cleanly (abort)" in run("info", store.path)
    with another_process_holding(store.path) as pid:
        before = store.fingerprint()
        (info,) = objects("info", store.path)
        assert (info["lockHeld"], info["lockPid"]) == (True, pid)
        printed = run("info", store.path)
        assert f"held: process {pid} has the store open" in printed
        assert "a broker or a writer has it open" in printed
        summary = objects("verify", store.path)[-1]
        assert (summary["lockHeld"], summary["lockPid"]) == (True, pid)
        assert f"lock held: process {pid}" in run("verify", store.path)
        with pytest.raises(StoreLockedError):  # it still holds it: nothing was released or taken
            StoreLock(root)
        assert store.fingerprint() == before
    assert lock_state(root) == LockState(False)
    assert "lock held" not in run("verify", store.path)


def test_asking_does_not_release_a_lock_of_this_process(tmp_path: Path) -> None:
    """POSIX drops all locks of a process on a file when it closes any descriptor of it."""
    store = unpack("clean-4.9.7", tmp_path)
    lock = StoreLock(Path(store.path))
    try:
        assert lock_state(Path(store.path)) == LockState(True, os.getpid())
        assert "StoreLockedError" in run_python("-c", _HOLD, store.path).stderr
    finally:
        lock.release()
    assert lock_state(Path(store.path)).held is False


def test_what_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "lock")  # a loop: also for root, whom no mode stops
    assert lock_state(tmp_path) == LockState(None)
    assert "unknown" in str(lock_state(tmp_path))
