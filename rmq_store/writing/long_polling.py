"""Waiting for messages, as the broker's long polling does (PullRequestHoldService)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rmq_store.format.queues import QueueId


class Arrivals:
    """The listed end of each queue, and the threads that wait for more. Thread-safe."""

    def __init__(self, listed_to: Mapping[QueueId, int]) -> None:
        """`listed_to`: the max offset of each existing queue."""
        self._listed_to = dict(listed_to)
        self._changed = threading.Condition()
        self.waiting = 0

    def note(self, ends: Mapping[QueueId, int]) -> None:
        """Set the new listed ends of queues."""
        with self._changed:
            self._listed_to.update(ends)
            self._changed.notify_all()

    def wake_all(self) -> None:
        """Wake all waiting threads, so that they check whether to keep waiting."""
        with self._changed:
            self._changed.notify_all()

    def wait(
        self,
        queue: QueueId,
        offset: int,
        timeout: float | None,
        begin: Callable[[], None],
        check: Callable[[], None],
    ) -> bool:
        """Wait at most `timeout` seconds until `queue` has a message at `offset`; returns whether
        it has.

        `begin` is called once this thread counts as waiting. `check` raises if no more messages
        will come.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self.waiting += 1
        try:
            begin()
            with self._changed:
                while self._listed_to.get(queue, 0) <= offset:
                    check()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._changed.wait(left)
            return True
        finally:
            with self._changed:
                self.waiting -= 1
