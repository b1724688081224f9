"""What tests do to a real broker beside reading all: read by key, send without end, and hold it still."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rmq_store.testing.live_broker.harness import (
    Broker,
    BrokerFailed,
    Row,
    ask_reader,
    java_command,
)
from rmq_store.testing.live_broker.java import JVM_OPENS
from tests.support.checkout import CHECKOUT

SENDER = CHECKOUT / "tests/support/Sender.java"
# Settings that shape files, or what is in them, by the beginnings of their names.
SHAPING = (
    "mapped",
    "maped",
    "mapper",
    "maxHash",
    "maxIndex",
    "maxMessageSize",
    "messageDelayLevel",
    "enable",
    "transientStorePoolEnable",
    "writeWithoutMmap",
)


def golden_conf(broker_conf: Path) -> dict[str, str | int | bool]:
    """Those settings of a golden store's broker.conf that another broker must repeat."""
    pairs = (line.split("=", 1) for line in broker_conf.read_text().splitlines() if "=" in line)
    return {name: value for name, value in pairs if name.startswith(SHAPING)}


def read_by_key(broker: Broker, topic: str, keys: Iterable[str]) -> list[Row]:
    """What the client finds by each key (see `foundBy`). A key that is not found has no row."""
    return ask_reader(broker, ["key", topic], keys)


class Acknowledged(NamedTuple):
    """A message that a broker acknowledged, as the client heard it."""

    topic: str
    queue_id: int
    queue_offset: int
    key: str


class Sending:
    """A client that sends to a broker until `finish`, also while the broker is down for a while."""

    def __init__(self, broker: Broker, rate: int, topics: Sequence[str], output: Path) -> None:
        options = [*JVM_OPENS, "-Drocketmq.client.logUseSlf4j=false"]
        command = [*java_command(broker, SENDER, *options), broker.namesrv, str(rate), *topics]
        self._output = output
        with output.open("wb") as acknowledged, output.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=acknowledged, stderr=log
            )
        atexit.register(self._process.kill)

    def acknowledged_so_far(self) -> int:
        """The number of messages that the broker has acknowledged, as far as it is known."""
        return self._output.read_bytes().count(b"\n")

    def kill(self) -> None:
        """End it at once; what was acknowledged last is not known then."""
        self._process.kill()
        self._process.wait()
        atexit.unregister(self._process.kill)

    def finish(self) -> list[Acknowledged]:
        """Stop sending; what the broker acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        atexit.unregister(self._process.kill)
        lines = self._output.read_text().splitlines()
        if not lines or json.loads(lines[-1]) != {"done": len(lines) - 1}:
            said = self._output.with_suffix(".log").read_text()[-3000:]
            raise BrokerFailed(f"the sender's answer is cut off\n{said}")
        return [
            Acknowledged(topic, int(queue), int(offset), key)
            for topic, queue, offset, key in map(str.split, lines[:-1])
        ]


@contextmanager
def paused(broker: Broker) -> Iterator[Callable[[], bool]]:
    """A broker's JVM stands still inside the block, wherever it was: what changes there, others change.

    Gives a function that says whether it still does: somebody else may let it go on. Needs /proc.
    """
    assert broker.process is not None
    pid = broker.process.pid
    broker.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # all threads stand still
    stopped, used = _state_of(pid)
    try:
        yield lambda: stopped and _state_of(pid) == (True, used)
    finally:
        broker.process.send_signal(signal.SIGCONT)


def _state_of(pid: int) -> tuple[bool, tuple[int, int]]:
    """Whether a process is stopped, and the time it has used: user and system, in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0] == "T", (int(fields[11]), int(fields[12]))
