"""What a broker keeps of timers and transactions in the database `rocksdbstore/`, since 5.4.0.

With timerRocksDBEnable the timers that wait, with transRocksDBEnable the transactions whose producers it
asks (MessageRocksDBStorage). It writes timers every five minutes, and when it stops: after a crash it reads
its timer topic again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rmq_store.errors import CorruptConfigError, StoreError
from rmq_store.files.rocksdb import had_database, open_database, require_rocksdict
from rmq_store.format.byte_layout import ROCKSDB_STORE_DIR

_TIMERS, _TRANSACTIONS = "timer", "trans"
_READ_TO, _FORWARDED_TO = b"sys_topic_scan_offset_checkpoint", b"timeline_checkpoint"
_LAST_HALF = b"lastOffsetPy"
_NUMBER = struct.Struct(">q")
_TIMER, _TRANSACTION = struct.Struct(">iq"), struct.Struct(">ii")  # size, place; checks, size


@dataclass(frozen=True, slots=True)
class TimersInDatabase:
    """The timers of the family `timer`: it has read the timer topic up to `queue_offset`, and has delivered
    what is due before `read_time` (ms). `due`: when those that are there are due, by log offset."""

    queue_offset: int
    read_time: int
    due: Mapping[int, int]

    def waits(self, log_offset: int) -> bool:
        """Whether the timer at a log offset is to be delivered."""
        return self.due.get(log_offset, -1) >= self.read_time


@dataclass(frozen=True, slots=True)
class StateDatabase:
    """`timers`: None if the broker keeps none here. `checks`: how often it asked for each transaction that it
    asks for, by the log offset of the half message; `last_half`: that of the last one that it noted."""

    timers: TimersInDatabase | None
    checks: Mapping[int, int]
    last_half: int

    def has_given_up(self, half: int) -> bool:
        """Whether the broker noted a half message and does not ask for it any more."""
        return half <= self.last_half and half not in self.checks


def read_state_database(store: Path) -> StateDatabase | None:
    """What is there now; None without a database, or where nothing was written to it.

    Raises UnsupportedStoreError without the extra `rocksdb`, CorruptConfigError for a damaged database.
    """
    folder = store / ROCKSDB_STORE_DIR
    if not had_database(folder) or not _has_content(folder):
        return None
    require_rocksdict(
        folder, "timers or transactions may be in a RocksDB database", "Reading needs it alone"
    )

    def damaged(said: str) -> StoreError:
        return CorruptConfigError(
            folder,
            reason=f"the database of timers and transactions cannot be read: {said}",
            advice="Look for the folder in a copy or a replica",
        )

    with closing(open_database(str(folder), (_TIMERS, _TRANSACTIONS), damaged)) as database:
        timers, halves = dict(database.items(_TIMERS)), dict(database.items(_TRANSACTIONS))
    try:
        marks = [timers.pop(name, None) for name in (_READ_TO, _FORWARDED_TO)]
        last = halves.pop(_LAST_HALF, None)
        due = {_TIMER.unpack(value)[1]: _first_number(key) for key, value in timers.items()}
        checks = {
            _first_number(key): _TRANSACTION.unpack(value)[0] for key, value in halves.items()
        }
        read_to, forwarded_to = (0 if mark is None else _NUMBER.unpack(mark)[0] for mark in marks)
        last_half = -1 if last is None else _NUMBER.unpack(last)[0]
    except struct.error as error:
        raise damaged(f"a value of another length: {error}") from None
    in_database = TimersInDatabase(read_to, forwarded_to, due) if due or any(marks) else None
    return StateDatabase(in_database, checks, last_half)


def _first_number(key: bytes) -> int:
    number: int = _NUMBER.unpack_from(key)[0]
    return number


def _has_content(folder: Path) -> bool:
    """Whether something was written: a new database has a log without a byte, and no table."""
    try:
        files = [path for path in folder.iterdir() if path.suffix in (".sst", ".log")]
        return any(os.path.getsize(path) for path in files)
    except OSError:
        return True  # who opens it says why
