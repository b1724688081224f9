"""Send messages from an executor to a running broker: in parallel lanes, with a rate limit, retries
and order.

A lane is a thread that sends one message at a time. Messages that must stay in order go through one
lane; others are distributed in turn. Messages that the client or broker refuses are returned with
the reason. If the broker cannot be reached for too long, all lanes end.
"""

from __future__ import annotations

import atexit
import os
import queue
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rmq_store.errors import InvalidArgumentError, OsErrorsOf
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from spark_source.options.parse import Secret, reveal

ACCESS_KEY, SECRET_KEY = "RMQSTORE_ACCESS_KEY", "RMQSTORE_SECRET_KEY"
"""Environment variables of the driver. Options would be visible in the list of processes."""

_ROOTS = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"  # read by gRPC once in a process
_TRUSTED: list[bytes] = []  # what it read there; b"" for its own
_NONE = Secret("")


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Travels from the driver to the executors. Prints no credentials.

    `roots`: the certificates, in PEM, that sign the broker's; None for those that gRPC brings along.
    """

    tls: bool = False
    roots: bytes | None = None
    access_key: Secret = _NONE
    secret_key: Secret = _NONE

    @classmethod
    def of(cls, spec: ReplaySpec) -> BrokerAccess:
        """The access that a spec and the environment give.

        Raises InvalidArgumentError if only one half of the credentials is set, and MissingFileError
        or AccessError for a file of certificates that cannot be read.
        """
        keys = [os.environ.get(name, "") for name in (ACCESS_KEY, SECRET_KEY)]
        if any(keys) and not all(keys):
            raise InvalidArgumentError(
                reason="the environment has one half of the broker's credentials",
                expected=f"{ACCESS_KEY} and {SECRET_KEY}, or neither",
            )
        return cls(spec.tls, _certificates(spec.tls_ca), Secret(keys[0]), Secret(keys[1]))

    @property
    def credentials(self) -> tuple[str, str]:
        """Access key and secret key themselves; empty without credentials."""
        return reveal(self.access_key), reveal(self.secret_key)

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed with credentials."""
        return any(self.credentials)

    def hidden(self, text: str) -> str:
        """The text of somebody else's error without the credentials."""
        for value in self.credentials:
            text = text.replace(value, "***") if value else text
        return text

    def trust(self) -> None:
        """Make gRPC trust only `roots` in this process, before its first connection.

        The official client takes no certificates of its own. Raises Denied if this process trusts
        others already, because gRPC looks only once.
        """
        wanted = self.roots or b""
        if not self.tls or wanted in _TRUSTED:
            return
        if _TRUSTED:
            raise Denied(
                "this process trusts other certificates already; replay to a broker of another CA "
                "in another process"
            )
        if wanted:
            folder = Path(tempfile.mkdtemp(prefix="rmqstore-roots-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = folder / "roots.pem"
            path.write_bytes(wanted)
            os.environ[_ROOTS] = str(path)
        _TRUSTED.append(wanted)


def _certificates(path: str | None) -> bytes | None:
    if path is None:
        return None
    with OsErrorsOf(path, "reading --tls-ca"):
        raw = Path(path).read_bytes()
    if b"-----BEGIN CERTIFICATE-----" not in raw:
        raise InvalidArgumentError(
            path, reason="--tls-ca has no certificate", expected="certificates in PEM"
        )
    return raw


Row = dict[str, Any]

LANES = 8
_WAITING = 64  # rows that wait in each lane
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds


class RefusedMessage(Exception):
    """The message can never be sent; the text is the reason."""


class Unreachable(Exception):
    """The message may be sent later; the text is the reason of this failure."""


class Denied(Exception):
    """No message can be sent, now or later; the text is the reason."""


class Client(Protocol):
    """A client: prepares a message, which finds most refusals, and sends it."""

    def prepare(self, row: Row) -> Any:
        """The client's message for a row. Raises RefusedMessage."""

    def send(self, message: Any) -> None:
        """Send a message and wait until the broker has it. Raises RefusedMessage, Unreachable, Denied."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(slots=True)
class Outcome:
    """The result for the rows so far. `failure`: why sending ended early."""

    sent: int = 0
    retries: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """How to send. `rate`: messages per second of this sender. `patience`: seconds to retry one
    message."""

    rate: float | None = None
    patience: float = 120.0
    lanes: int = LANES


class Pacer:
    """Spaces calls evenly at a rate."""

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
    ordered: Callable[[Row], Any | None]  # rows with the same value stay in order; None: no order
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
        """Send all rows. Yields each refused row with its `reason`."""
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
        except Exception as error:  # if one lane ends, all must end, else rows would be lost
            self._fail(f"{type(error).__name__}: {error}")

    def _send_one(self, row: Row) -> None:
        try:
            if not self._delivered(self.client.prepare(row)):
                return
        except RefusedMessage as why:
            self._refused.put({**row, "reason": str(why)})
            return
        with self._lock:
            self.outcome.sent += 1

    def _delivered(self, message: Any) -> bool:
        """Send with retries. Returns False if this lane or another one gave up."""
        began: float | None = None
        pause = _FIRST_PAUSE
        while True:
            # Each attempt counts for the rate limit.
            if self._ended.wait(self._pacer.delay()):
                return False
            began = time.monotonic() if began is None else began
            try:
                self.client.send(message)
            except Denied as why:
                self._fail(str(why))
                return False
            except Unreachable as why:
                if time.monotonic() - began > self.manner.patience:
                    self._fail(f"tried for {self.manner.patience:.0f} s: {why}")
                    return False
                with self._lock:
                    self.outcome.retries += 1
                # Random, so that not all lanes retry at the same time.
                if self._ended.wait(pause * random.uniform(0.5, 1.0)):
                    return False
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            return True

    def _fail(self, why: str) -> None:
        with self._lock:
            self.outcome.failure = self.outcome.failure or why
        self._ended.set()
