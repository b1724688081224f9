"""Messages to a running broker, from an executor: in lanes, paced, tried again, in order where asked.

A lane is a thread with one message under way. Messages of one source queue that must stay in order
go through one lane; others are dealt out in turn. What the client or the broker refuses for good is
handed back with the reason; where the broker cannot be reached for too long all lanes end.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Row = dict[str, Any]

LANES = 8
_WAITING = 64  # rows in front of each lane
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds


class Refused(Exception):
    """The message can never be sent as it is; the text is the reason."""


class Unreachable(Exception):
    """The message may be sent later; the text is what went wrong this time."""


class Client(Protocol):
    """What sends: prepares a message, which finds most refusals, and sends it."""

    def prepare(self, row: Row) -> Any:
        """The message. Raises Refused."""

    def send(self, message: Any) -> None:
        """Send, and wait until the broker has it. Raises Refused, Unreachable."""

    def close(self) -> None:
        """Let go of connections."""


@dataclass(slots=True)
class Outcome:
    """What became of the rows so far. `failure`: why sending ended early."""

    sent: int = 0
    retries: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How to send. `rate`: messages a second, of this sender alone; `patience`: seconds for one."""

    rate: float | None = None
    patience: float = 120.0
    lanes: int = LANES


class Pacer:
    """Lets callers through at a rate, evenly."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._step = 0.0 if rate is None else 1.0 / rate
        self._clock = clock
        self._next = clock()
        self._lock = threading.Lock()

    def delay(self) -> float:
        """Seconds to wait before the next message."""
        if not self._step:
            return 0.0
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + self._step
        return at - now


@dataclass
class Sender:
    """Sends rows through a client. Iterate over `send`: it yields the rows that were refused."""

    client: Client
    manner: Manner
    ordered: Callable[[Row], Any | None]  # what must stay in order together; None: nothing
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._refused: queue.SimpleQueue[Row] = queue.SimpleQueue()
        self._pacer = Pacer(self.manner.rate)
        self._lanes: list[queue.Queue[Row | None]] = [
            queue.Queue(_WAITING) for _ in range(self.manner.lanes)
        ]

    def send(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Send all rows; yields each that was refused, with its `reason`."""
        threads = [
            threading.Thread(target=self._work, args=(lane,), daemon=True) for lane in self._lanes
        ]
        for thread in threads:
            thread.start()
        turn = 0
        for row in rows:
            together = self.ordered(row)
            if together is None:
                turn += 1
            number = turn if together is None else hash(together)
            if not self._put(self._lanes[number % len(self._lanes)], row):
                break
            yield from self._taken()
        for lane in self._lanes:
            self._put(lane, None)
        for thread in threads:
            thread.join()
        yield from self._taken()

    def _put(self, lane: queue.Queue[Row | None], row: Row | None) -> bool:
        """Whether the lane took it; it takes none after the end."""
        while not self._ended.is_set():
            try:
                lane.put(row, timeout=0.5)
            except queue.Full:
                continue
            return True
        return False

    def _taken(self) -> Iterator[Row]:
        while not self._refused.empty():
            yield self._refused.get()

    def _work(self, lane: queue.Queue[Row | None]) -> None:
        try:
            while not self._ended.is_set():
                try:
                    row = lane.get(timeout=0.5)
                except queue.Empty:
                    continue
                if row is None:
                    return
                self._send_one(row)
        except Exception as error:  # a lane that ends must end all, or rows would be left out
            self._fail(f"{type(error).__name__}: {error}")

    def _send_one(self, row: Row) -> None:
        try:
            if not self._delivered(self.client.prepare(row)):
                return
        except Refused as why:
            self._refused.put({**row, "reason": str(why)})
            return
        with self._lock:
            self.outcome.sent += 1

    def _delivered(self, message: Any) -> bool:
        """Sent at last; False where patience, or another lane's, was at an end."""
        began: float | None = None
        pause = _FIRST_PAUSE
        while True:
            # Each attempt is one to the broker, and keeps the pace.
            if self._ended.wait(self._pacer.delay()):
                return False
            began = time.monotonic() if began is None else began
            try:
                self.client.send(message)
            except Unreachable as why:
                if time.monotonic() - began > self.manner.patience:
                    self._fail(f"tried for {self.manner.patience:.0f} s: {why}")
                    return False
                with self._lock:
                    self.outcome.retries += 1
                # Not all lanes at the same moment.
                if self._ended.wait(pause * random.uniform(0.5, 1.0)):
                    return False
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            return True

    def _fail(self, why: str) -> None:
        with self._lock:
            self.outcome.failure = self.outcome.failure or why
        self._ended.set()
