"""Work in a process of its own that is killed at one of its calls to the operating system."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

# Calls that change what is on the disk, or stand between two that do.
_CALLS = {
    *("open", "close", "pwrite", "fstat", "rename", "replace", "unlink", "remove"),
    *("ftruncate", "truncate", "mkdir", "rmdir", "lstat", "scandir"),
}


class _Killer:
    """Counts the calls of this process to the operating system, and kills it at one of them.

    Calls of two threads at the same moment may count as one.
    """

    def __init__(self, at: int | None) -> None:
        self.at, self.calls = at, 0

    def __call__(self, frame: Any, event: str, called: Any) -> None:
        """A profile function."""
        if event != "c_call" or called.__name__ not in _CALLS:
            return
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1


class Victim:
    """A child that prepares work and does it, until it is killed at the call `kill_at` of the work.

    `threads`: counts the calls of threads that the work starts too. Their number has to follow from
    the work: a thread that flushes by the clock calls more or less often.
    """

    def __init__(
        self,
        prepare: Callable[[], Callable[[], Any]],
        kill_at: int | None,
        *,
        threads: bool = False,
    ) -> None:
        readable, writable = os.pipe()
        self._child, self._status = os.fork(), -1
        if not self._child:
            _work(prepare, kill_at, writable, threads)
        os.close(writable)
        self._pipe = os.fdopen(readable)

    def runs(self) -> bool:
        """Whether it has not ended yet."""
        if self._status < 0:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                self._status = status
        return self._status < 0

    def calls(self) -> int | None:
        """Wait for its end; None if it was killed, else the number of its calls."""
        with self._pipe:
            said = self._pipe.read()
        if self._status < 0:
            self._status = os.waitpid(self._child, 0)[1]
        if os.WIFSIGNALED(self._status):
            assert os.WTERMSIG(self._status) == signal.SIGKILL
            return None
        assert self._status == 0, "the work failed: see above"
        return int(said)


def calls_of(prepare: Callable[[], Callable[[], Any]], kill_at: int | None) -> int | None:
    """The number of calls of work in a child, threads included; None if it was killed at one of them."""
    return Victim(prepare, kill_at, threads=True).calls()


def _work(
    prepare: Callable[[], Callable[[], Any]], kill_at: int | None, writable: int, threads: bool
) -> None:
    try:
        work, killer = prepare(), _Killer(kill_at)
        if threads:
            threading.setprofile(killer)
        sys.setprofile(killer)
        work()
        sys.setprofile(None)
        os.write(writable, str(killer.calls).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)
