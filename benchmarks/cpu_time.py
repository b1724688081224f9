"""Processor time, which is less noisy than the clock and shows what other processes lack."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of user and system time: of Java's threads, and of all other processes."""

    jvm: float
    python: float

    def __sub__(self, earlier: CpuTime) -> CpuTime:
        return CpuTime(self.jvm - earlier.jvm, self.python - earlier.python)

    @property
    def total(self) -> float:
        """Of all processes."""
        return self.jvm + self.python


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    is_java: bool
    own: int  # ticks
    of_ended_children: int  # ticks of those that it has waited for


def cpu_time() -> CpuTime:
    """The time so far of this process and of all that it has started (Linux).

    Of those that have ended it counts what their parent has waited for. Java starts nothing
    but Python, so that is Python's time.
    """
    found = {int(path.name): _process(path) for path in Path("/proc").glob("[0-9]*")}
    ours = {os.getpid()}
    while more := {pid for pid, one in found.items() if one.parent in ours} - ours:
        ours |= more
    living = [found[pid] for pid in ours if pid in found]
    jvm = sum(one.own for one in living if one.is_java)
    everything = sum(one.own + one.of_ended_children for one in living)
    return CpuTime(jvm / _TICKS, (everything - jvm) / _TICKS)


def _process(folder: Path) -> _Process:
    """A process; without parent and ticks if it has ended."""
    try:
        text = (folder / "stat").read_text("utf-8", "replace")
    except OSError:
        return _Process(0, False, 0, 0)
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    own, waited = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return _Process(int(fields[1]), name == "java", own, waited)
