"""The broker's timer: config/timercheck and timerlog, as TimerMessageStore writes them.

docs/format.md has the layout. The wheel itself only speeds the broker up: each of its slots is a chain
of units in the timer log.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import CorruptConfigError, from_os_error
from rmq_store.files.durable_files import read_file
from rmq_store.files.remote.remote_store import shadow_of
from rmq_store.format.byte_layout import CONFIG_DIR, TIMER_CHECK, TIMER_LOG, Ints

ROLL = 2  # bit of a unit's magic: the message is for a time beyond the wheel, and is put off
DELETE = 4  # an order to delete another message

_UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_time", ">i8"),
        ("delay", ">i4"),
        ("log_offset", ">i8"),
        ("record_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
_CHECK = np.dtype([("read_time", ">i8"), ("log_flushed", ">i8"), ("queue_offset", ">i8")])
_LARGEST_CHECK = 1 << 16
_UNITS_READ = 1 << 16  # at a time


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """How far the timer is: it has delivered what was due before `read_time` (ms), the tick that it
    delivers next, and has read the timer topic up to `queue_offset`."""

    read_time: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class TimerUnits:
    """The newest unit of each record in the timer log, sorted by log offset."""

    log_offset: Ints
    time: Ints  # of the slot, ms since the epoch
    magic: Ints
    topic_hash: Ints  # of the record's own topic (String.hashCode)

    def leads_nowhere(self, start: int, stop: int) -> bool:
        """Whether there are units, and none of them is for a time after `start` and before `stop` (ms)."""
        inside = (self.time > start) & (self.time < stop)
        return len(self.time) > 0 and not inside.any().item()

    def time_of(self, log_offset: int) -> int | None:
        """When the timer turns to the record at a log offset (ms); None without a unit."""
        row = int(np.searchsorted(self.log_offset, log_offset))
        if row == len(self.log_offset) or self.log_offset[row] != log_offset:
            return None
        return int(self.time[row])


def read_timer_check(store: str | os.PathLike[str]) -> TimerCheck | None:
    """config/timercheck; None without one. Raises CorruptConfigError if it is too short."""
    path = Path(store) / CONFIG_DIR / TIMER_CHECK
    if not path.exists():
        return None
    raw = read_file(path, _LARGEST_CHECK)
    if len(raw) < _CHECK.itemsize:
        raise CorruptConfigError(
            path,
            reason="the timer's checkpoint is too short",
            expected=f"at least {_CHECK.itemsize} bytes",
            actual=f"{len(raw)} bytes",
            advice=advice_on_broken(path),
        )
    check = np.frombuffer(raw[: _CHECK.itemsize], _CHECK)[0]
    return TimerCheck(int(check["read_time"]), int(check["queue_offset"]))


def read_timer_units(store: str | os.PathLike[str]) -> TimerUnits | None:
    """The units of the timer log; None without files, and for an object store.

    Takes 32 bytes of memory a unit.
    """
    folder = Path(store) / TIMER_LOG
    if shadow_of(os.fspath(folder)) is not None or not folder.is_dir():
        return None  # of an object store only small files are read whole
    names = sorted(path for path in folder.iterdir() if path.name.isdigit() and path.is_file())
    parts = [part for path in names for part in _units_of(path)]
    if not names:
        return None
    units = np.concatenate(parts) if parts else np.zeros(0, dtype=_KEPT)
    # A unit may be written again after a crash; the later one counts.
    units = units[::-1]
    _, newest = np.unique(units["log_offset"], return_index=True)
    units = units[newest]
    return TimerUnits(*(units[name].copy() for name in _KEPT.names or ()))


_KEPT = np.dtype([("log_offset", "i8"), ("time", "i8"), ("magic", "i8"), ("topic_hash", "i8")])


def _units_of(path: Path) -> list[np.ndarray[tuple[int], np.dtype[np.void]]]:
    """The units of a file up to its end: a blank, or zeros."""
    try:
        return _read_units(path)
    except FileNotFoundError:
        return []  # the broker deletes files whose messages have expired
    except OSError as error:
        raise from_os_error(path, error, "reading") from error


def _read_units(path: Path) -> list[np.ndarray[tuple[int], np.dtype[np.void]]]:
    parts = []
    with path.open("rb") as file:
        while raw := file.read(_UNIT.itemsize * _UNITS_READ):
            units = np.frombuffer(raw[: len(raw) - len(raw) % _UNIT.itemsize], _UNIT)
            whole = units["size"] == _UNIT.itemsize
            count = len(units) if whole.all() else int(np.argmin(whole))
            kept = np.empty(count, dtype=_KEPT)
            kept["log_offset"] = units["log_offset"][:count]
            kept["time"] = units["write_time"][:count] + units["delay"][:count].astype(np.int64)
            kept["magic"] = units["magic"][:count]
            kept["topic_hash"] = units["topic_hash"][:count]
            parts.append(kept)
            if count < len(units):
                break
    return parts
