"""Waiting for messages: what the broker's long polling does (PullRequestHoldService)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rmq_store.format.queues import QueueId


class Arrivals:
    """How far each queue is listed, and those who wait for more. For any number of threads."""

    def __init__(self, listed_to: Mapping[QueueId, int]) -> None:
        """`listed_to`: the max offset of the queues there are."""
        self._listed_to = dict(listed_to)
        self._changed = threading.Condition()
        self.waiting = 0

    def note(self, ends: Mapping[QueueId, int]) -> None:
        """Queues are listed up to there."""
        with self._changed:
            self._listed_to.update(ends)
            self._changed.notify_all()

    def wake_all(self) -> None:
        """Have all who wait look whether there is anything to wait for still."""
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
        """Wait until `queue` has a message at `offset`, at most `timeout` seconds; whether it has.

        `begin` is called once this counts as waiting; `check` raises where no more will come.
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
