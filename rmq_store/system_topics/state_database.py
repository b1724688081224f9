"""What a broker keeps of timers, transactions and popped messages in databases of RocksDB.

In `rocksdbstore/`, since 5.4.0, with timerRocksDBEnable the timers that wait, with transRocksDBEnable the
transactions whose producers it asks (MessageRocksDBStorage). It writes timers after minutes: what is lost
in a crash it reads again from its timer topic.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rmq_store.errors import CorruptConfigError, StoreError, UnsupportedStoreError
from rmq_store.files.rocksdb import had_database, open_database, require_rocksdict
from rmq_store.format.byte_layout import ROCKSDB_STORE_DIR
from rmq_store.reading.query import OnDamage, raise_error

_TIMERS, _TRANSACTIONS, _WHAT = "timer", "trans", "timers and transactions"
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
class TransactionsInDatabase:
    """The transactions of the family `trans`. `checks`: how often the broker asked for each that it asks for,
    by the log offset of the half message; `last_half`: that of the last one that it noted."""

    checks: Mapping[int, int]
    last_half: int

    def has_given_up(self, half: int) -> bool:
        """Whether the broker noted a half message and does not ask for it any more."""
        return half <= self.last_half and half not in self.checks


def timers_in_database(store: Path, on_damage: OnDamage | None = None) -> TimersInDatabase | None:
    """The timers that are there now; None where a broker keeps none there.

    Raises UnsupportedStoreError without the extra `rocksdb`, CorruptConfigError for a damaged database;
    with `on_damage` the error goes there.
    """
    with _reading(store, on_damage):
        timers = _family(store, _TIMERS)
        marks = [timers.pop(name, None) for name in (_READ_TO, _FORWARDED_TO)]
        due = {_TIMER.unpack(value)[1]: _first_number(key) for key, value in timers.items()}
        if due or any(marks):
            read_to, read_time = (0 if mark is None else _first_number(mark) for mark in marks)
            return TimersInDatabase(read_to, read_time, due)
    return None


def transactions_in_database(
    store: Path, on_damage: OnDamage | None = None
) -> TransactionsInDatabase | None:
    """As `timers_in_database`, the transactions."""
    with _reading(store, on_damage):
        halves = _family(store, _TRANSACTIONS)
        last = halves.pop(_LAST_HALF, None)
        checks = {
            _first_number(key): _TRANSACTION.unpack(value)[0] for key, value in halves.items()
        }
        if last is not None:
            return TransactionsInDatabase(checks, _first_number(last))
    return None


def is_in_use(store: Path) -> bool:
    """Whether something was written to the database: a new one has a log without a byte, and no table."""
    folder = store / ROCKSDB_STORE_DIR
    if not had_database(folder):
        return False
    try:
        files = [path for path in folder.iterdir() if path.suffix in (".sst", ".log")]
        return any(os.path.getsize(path) for path in files)
    except OSError:
        return True  # who opens it says why


@contextmanager
def _reading(store: Path, on_damage: OnDamage | None) -> Iterator[None]:
    try:
        yield
    except struct.error as error:
        said = f"a value of another length: {error}"
        (on_damage or raise_error)(damaged_database(store / ROCKSDB_STORE_DIR, _WHAT, said))
    except (CorruptConfigError, UnsupportedStoreError) as error:
        (on_damage or raise_error)(error)


def _family(store: Path, name: str) -> dict[bytes, bytes]:
    return dict(items_of(store / ROCKSDB_STORE_DIR, name, _WHAT)) if is_in_use(store) else {}


def items_of(folder: Path, family: str, what: str) -> list[tuple[bytes, bytes]]:
    """Keys and values of a family of the database in a folder; none where there is none. `what`: it has.

    Raises UnsupportedStoreError without the extra `rocksdb`, CorruptConfigError for a damaged database.
    """
    if not had_database(folder):
        return []
    require_rocksdict(folder, f"{what} may be in a database", "Messages are read without it")
    damaged = partial(damaged_database, folder, what)
    with closing(open_database(str(folder), (family,), damaged)) as database:
        return database.items(family)


def damaged_database(folder: Path, what: str, said: str) -> StoreError:
    """The error for a database that cannot be read, of what is `said` to be wrong."""
    return CorruptConfigError(
        folder,
        reason=f"the database of {what} cannot be read: {said}",
        advice="Look for the folder in a copy or a replica",
    )


def _first_number(key: bytes) -> int:
    number: int = _NUMBER.unpack_from(key)[0]
    return number
