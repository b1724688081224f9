"""Progress on stderr: what is done, the rate, and the time left."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from shutil import get_terminal_size

from rmq_store.text.sizes import size
from rmq_store.text.times import shown_duration

SHOWN_AFTER = 1.0  # seconds of work
BYTES = "bytes"
_EVERY = 0.2  # seconds between two looks at what is done
_BAR = 30  # cells


class Progress:
    """A line on stderr for work of more than a second. Without a terminal it does nothing.

    `total`: what there is to do, in `unit`; `expect` adds to it. As long as it is 0, the line shows
    what is done, the rate and the time that has passed. `measure` returns what is done, for work that
    nobody counts by calls. `active`: whether progress is shown, or will be after a second.
    """

    def __init__(
        self,
        what: str,
        total: int = 0,
        *,
        unit: str = BYTES,
        measure: Callable[[], int] | None = None,
    ) -> None:
        self.active = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._what, self._total, self._unit = what, total, unit
        self._measure, self._done = measure, 0
        self._stream = sys.stderr
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._began = self._due = 0.0
        self._shown = False

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        self._due = self._began + SHOWN_AFTER
        if self.active:
            # The end of the process does not wait for a daemon.
            threading.Thread(target=self._show, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._clear()

    def __call__(self, done: int) -> None:
        """Count `done` units more."""
        self._done += done

    def expect(self, more: int) -> None:
        """Add to what there is to do."""
        self._total += more

    def pause(self) -> None:
        """Remove the line before others are printed in its terminal; it comes back after a second."""
        self._due = time.monotonic() + SHOWN_AFTER
        self._clear()

    def _show(self) -> None:
        while not self._ended.wait(max(_EVERY, self._due - time.monotonic())):
            self._draw()

    def _draw(self) -> None:
        with self._lock:
            if time.monotonic() >= self._due and not self._ended.is_set():
                line = self._line()[: get_terminal_size().columns - 1]
                self._print(f"\r{line}\x1b[K")
                self._shown = True

    def _clear(self) -> None:
        with self._lock:
            if self._shown:
                self._print("\r\x1b[K")
                self._shown = False

    def _print(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _line(self) -> str:
        done = self._done if self._measure is None else self._measure()
        passed = time.monotonic() - self._began
        rate = done / max(passed, 0.001)
        parts = [self._what]
        if self._total:
            parts.append(f"[{'#' * min(_BAR, done * _BAR // self._total):-<{_BAR}}]")
            parts.append(f"{self._counted(done)} of {self._counted(self._total)}")
        else:
            parts.append(self._counted(done))
        parts[-1] += f" {self._unit}" * (self._unit != BYTES)
        parts.append(f"{self._counted(rate)}/s")
        seconds = (self._total - done) / rate if self._total and rate else passed
        parts.append(shown_duration(round(max(seconds, 0)) * 1000))
        return "  ".join(parts)

    def _counted(self, count: float) -> str:
        return size(count) if self._unit == BYTES else f"{count:,.0f}"
