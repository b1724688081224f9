"""Progress on stderr: what is done, the rate, and the time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SHOWN_AFTER = 1.0
"""Seconds of work before anything is shown."""
BYTES = "bytes"


class Progress:
    """A progress bar on stderr for work of more than a second. Without a terminal it does nothing.

    `total`: what there is to do, in `unit`; `expect` adds to it. As long as it is 0, the bar shows
    what is done, the rate and the time that has passed. `measure` returns what is done, for work that
    nobody counts by calls.
    """

    def __init__(
        self,
        what: str,
        total: int = 0,
        *,
        unit: str = BYTES,
        measure: Callable[[], int] | None = None,
    ) -> None:
        self._bar: Any = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None  # None: not begun, or ended
        self._due = 0.0  # when the bar may be shown
        self._shown = False
        if sys.stderr.isatty():
            from rmq_store.text.progress_bar import bar

            self._bar = bar(unit, measure)
            self._task = self._bar.add_task(what, total=total or None)
            self._total = total

    @property
    def active(self) -> bool:
        """Whether progress is shown, or will be after a second."""
        return self._bar is not None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._due = time.monotonic() + SHOWN_AFTER
            self._wait(SHOWN_AFTER)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._remove()

    def __call__(self, done: int) -> None:
        """Advance the bar by `done` units."""
        if self._bar is not None:
            self._bar.advance(self._task, done)

    def expect(self, more: int) -> None:
        """Add to what there is to do."""
        if self._bar is not None and more:
            self._total += more
            self._bar.update(self._task, total=self._total)

    def pause(self) -> None:
        """Remove the bar before lines are printed in its terminal; it comes back after a second."""
        if self._bar is None:
            return
        self._due = time.monotonic() + SHOWN_AFTER
        if self._shown:
            with self._lock:
                self._remove()
                if self._timer is not None:
                    self._wait(SHOWN_AFTER)

    def _wait(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._show)
        self._timer.daemon = True  # the end of the process does not wait for it
        self._timer.start()

    def _show(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            left = self._due - time.monotonic()
            if left > 0:
                self._wait(left)
            else:
                self._bar.start()
                self._shown = True

    def _remove(self) -> None:
        if self._shown:
            self._bar.stop()
            self._shown = False
