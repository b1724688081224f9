"""A RocksDB database of a store: what it holds at one moment, read by the library rocksdict.

The library writes a file into the folder that it opens, and RocksDB a log. So they open a temporary
folder: it has links to the files that never change (*.sst), and copies of those that a broker appends
to. RocksDB then holds all files open (max_open_files), so the folder is deleted at once, and a broker
that deletes a file later takes nothing away.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from rmq_store.errors import (
    AccessError,
    OsErrorsOf,
    StoreError,
    UnsupportedStoreError,
    from_os_error,
)
from rmq_store.files.durable_files import sync_folder
from rmq_store.files.remote.remote_store import shadow_of

_SIGNS = ("CURRENT", "IDENTITY", "LOCK")  # of a database, which may have lost one
_CURRENT, _MANIFEST, _LOG, _TABLE = "CURRENT", "MANIFEST-", ".log", ".sst"
_TRIES = 20
_FORMAT = 5  # of tables; that of a broker, whose RocksDB may not read later ones
_OF_THE_LIBRARY = ("rocksdict-config.json", "LOG")
_BLOCK, _HEAD, _KINDS = 32 << 10, struct.Struct("<4xHB"), 4  # of logs: full, first, middle, last

Damaged = Callable[[str], StoreError]
"""Makes the error of a database that cannot be read, of what RocksDB says."""


def has_database_files(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a RocksDB database, or what is left of one."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in _SIGNS)


def had_database(folder: str | os.PathLike[str]) -> bool:
    """As `has_database_files`, also for a folder that has lost all files by which a database is known."""
    try:
        return os.path.isdir(folder) and (
            has_database_files(folder) or any(_is_list(name) for name in os.listdir(folder))
        )
    except OSError:
        return False


def had_databases(folder: Path, names: Sequence[str]) -> list[Path]:
    """Those of the folders in a folder that had a database."""
    return [folder / name for name in names if had_database(folder / name)]


class Database:
    """Column families of a database, as they were when it was opened. Not thread-safe.

    Each has the family `default`; `items` alone may be asked for one that it lacks. All methods raise the
    error of a damaged database.
    """

    def __init__(self, opened: Any, families: Sequence[str], damaged: Damaged) -> None:
        """Use `open_database`."""
        self._opened, self.damaged = opened, damaged
        self.families = {name: opened.get_column_family(name) for name in families}

    def items(
        self, family: str, first: bytes = b"", stop: bytes = b""
    ) -> list[tuple[bytes, bytes]]:
        """Keys and values from the key `first` to before `stop`, in order; empty: no limit.

        Nothing where there is no such family.
        """
        if family not in self.families:
            return []
        with _errors_as(self.damaged):
            how = _upto(stop)
            pairs: list[tuple[bytes, bytes]]
            pairs = list(self.families[family].items(from_key=first or None, read_opt=how))
            # The library's list ends where a block is damaged. Only an iterator says so.
            beyond = pairs[-1][0] + b"\0" if pairs else first
            if self._seek(family, beyond, how) is not None:
                raise self.damaged("a list of keys ended early")
        return pairs

    def keys(self, family: str, first: bytes, stop: bytes) -> list[bytes]:
        """The keys from `first` to before `stop`, in order; fewer where a block is damaged."""
        with _errors_as(self.damaged):
            return list(self.families[family].keys(from_key=first, read_opt=_upto(stop)))

    def values(self, family: str, first: bytes, stop: bytes) -> list[bytes]:
        """The values of these keys, in half the time of `items`; fewer where a block is damaged."""
        with _errors_as(self.damaged):
            return list(self.families[family].values(from_key=first, read_opt=_upto(stop)))

    def first_key(self, family: str, first: bytes, stop: bytes) -> bytes | None:
        """The first key at or after `first` and before `stop`; None if there is none."""
        with _errors_as(self.damaged):
            return self._seek(family, first, _upto(stop))

    def _seek(self, family: str, key: bytes, how: Any) -> bytes | None:
        place = self.families[family].iter(how)
        place.seek(key) if key else place.seek_to_first()
        if place.valid():
            found: bytes = place.key()
            return found
        place.status()  # raises, if that is why
        return None

    def close(self) -> None:
        """Close the files."""
        self.families.clear()
        self._opened.close()


class NewDatabase:
    """A database that is being written. It has no log: what is in it counts after `close`.

    All methods raise AccessError.
    """

    def __init__(self, folder: str | os.PathLike[str], universal: str, small: str) -> None:
        """Make it in `folder`, with two families: `universal`, which is large, and `small`.

        They are compressed and compacted as the database of a broker (RocksDBOptionsFactory), in a format
        that its RocksDB reads. The caller has called `require_rocksdict`.
        """
        from rocksdict import DBCompactionStyle, DBCompressionType, Rdict, WriteOptions

        self._folder = str(folder)
        large, plain = _of_broker(), _of_broker()
        large.set_compression_type(DBCompressionType.lz4())
        large.set_compaction_style(DBCompactionStyle.universal())
        with _errors_as(self._refused):
            self._opened = Rdict(self._folder, options=large)
            # The library knows a family `default` alone before it has made others.
            self._families = {
                universal: self._opened.get_column_family(universal),
                small: self._opened.create_column_family(small, plain),
            }
        self._handles = {
            name: self._opened.get_column_family_handle(name) for name in self._families
        }
        self._how = cast("Any", WriteOptions())
        self._how.disable_wal = True

    def put(self, family: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write keys and values. A later value of a key replaces an earlier one."""
        from rocksdict import WriteBatch

        batch, handle = WriteBatch(raw_mode=True), self._handles[family]
        for key, value in pairs:
            batch.put(key, value, handle)
        with _errors_as(self._refused):
            self._opened.write(batch, self._how)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key that was written."""
        with _errors_as(self._refused):
            value: bytes | None = self._families[family].get(key)
        return value

    def items(self, family: str, first: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """Keys and values from the key `first` to before `stop`, in order."""
        with _errors_as(self._refused):
            pairs: Any = self._families[family].items(from_key=first, read_opt=_upto(stop))
            return list(pairs)

    def close(self, *, keep: bool) -> None:
        """Close the files; with `keep` after all of it is on the disk."""
        with _errors_as(self._refused):
            for family in self._families.values() if keep else ():
                family.flush()
            self._families.clear()
            self._handles.clear()
            self._opened.close()
        for name in os.listdir(self._folder):
            if name in _OF_THE_LIBRARY or name.startswith("LOG.old."):
                os.unlink(os.path.join(self._folder, name))
        if keep:
            sync_folder(Path(self._folder))

    def _refused(self, said: str) -> AccessError:
        return AccessError(
            self._folder,
            reason=f"RocksDB cannot write the database: {said}",
            advice="Run the same command again when the folder can be written, or name another target",
        )


@contextmanager
def _errors_as(convert: Damaged) -> Iterator[None]:
    """Convert errors of the library, by what RocksDB says."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # the library has no class of its own
        raise convert(_sentence(error)) from None


def _of_broker() -> Any:
    from rocksdict import BlockBasedOptions, Options

    settings, table = Options(raw_mode=True), BlockBasedOptions()
    table.set_format_version(_FORMAT)
    settings.set_block_based_table_factory(table)
    settings.create_if_missing(True)
    return settings


def _upto(stop: bytes) -> Any:
    from rocksdict import ReadOptions

    how = ReadOptions()
    if stop:
        how.set_iterate_upper_bound(stop)
    return how


def require_rocksdict(folder: str | os.PathLike[str], reason: str, otherwise: str) -> None:
    """Raise UnsupportedStoreError unless the extra `rocksdb` is installed."""
    if find_spec("rocksdict") is None:
        raise UnsupportedStoreError(
            folder, reason=reason, advice=f"pip install 'rmqstore[rocksdb]'. {otherwise}"
        )


def open_database(folder: str, families: Sequence[str], damaged: Damaged) -> Database:
    """The database in `folder`, as it is now, with those of `families` that it has.

    A broker may have it open, and write. Nothing is written in `folder`. Raises AccessError, and what
    `damaged` makes of an error of RocksDB. The caller has called `require_rocksdict`.
    """
    problem = ""
    for attempt in range(_TRIES):
        before = _versions(folder)
        with _copy(folder, hold=attempt > 0) as (aside, lost):
            if not _holds_the_same(before, _versions(folder)):
                continue
            opened, problem = (None, lost) if lost else _opened(aside, families)
        if opened is not None:
            return Database(*opened, damaged)
        problem = problem.replace(aside, folder)
        if before == _versions(folder):
            break  # nothing has changed, so that it would not open the next time either
    raise damaged(problem or "a broker changed its files again and again while it was opened")


@contextmanager
def _copy(folder: str, *, hold: bool) -> Iterator[tuple[str, str]]:
    """A temporary folder with what RocksDB reads, and what was missing when it was made.

    With `hold` the tables are open, so that a broker that deletes one takes nothing away. It takes a second
    file descriptor a table, which one that stands still does not need.
    """
    try:
        aside = tempfile.mkdtemp(prefix="rmqstore-rocksdb-")
    except OSError as error:
        raise from_os_error(tempfile.gettempdir(), error, "making a temporary folder") from error
    with ExitStack() as held:
        held.callback(shutil.rmtree, aside, ignore_errors=True)
        with OsErrorsOf(folder, "reading the database"):
            lost = _put_files(folder, aside, held if hold else None)
        yield aside, lost


def _opened(aside: str, families: Sequence[str]) -> tuple[tuple[Any, list[str]] | None, str]:
    """The database and the families that it has, or why it cannot be opened."""
    from rocksdict import AccessType, Rdict

    logs = [name for name in os.listdir(aside) if name.startswith(_MANIFEST) or name.endswith(_LOG)]
    odd = next(filter(None, (_odd_record(os.path.join(aside, name)) for name in logs)), None)
    if odd is not None:
        return None, odd
    try:
        there = set(Rdict.list_cf(aside, _options()))
        wanted = [name for name in families if name in there]
        opened = Rdict(
            aside,
            options=_options(),
            column_families={name: _options() for name in ("default", *wanted)},
            access_type=AccessType.read_only(),
        )
    except Exception as error:  # the library has no class of its own
        return None, _sentence(error)
    return (opened, wanted), ""


def _sentence(error: Exception) -> str:
    """What RocksDB says, on one line, to be a part of ours."""
    return " ".join(str(error).split()).rstrip(". ")


def _options() -> Any:
    from rocksdict import Options

    settings = Options(raw_mode=True)
    settings.create_if_missing(False)
    settings.set_max_open_files(-1)  # all, from now on: the folder is deleted
    return settings


def _put_files(folder: str, aside: str, held: ExitStack | None) -> str:
    """Copy and link what RocksDB reads, and return what was deleted meanwhile.

    The lists come first, and the folder is listed after them: what they name is there by then.
    """
    for of_lists in (True, False):
        for name in sorted(filter(_is_read, os.listdir(folder))):
            source, target = os.path.join(folder, name), os.path.join(aside, name)
            if _is_list(name) is not of_lists or not os.path.isfile(source):
                continue  # a pipe would make the reader wait
            try:
                _put_file(source, target, held)
            except FileNotFoundError:
                return f"{name} is missing"
    return ""


def _put_file(source: str, target: str, held: ExitStack | None) -> None:
    shadow = shadow_of(source)
    if shadow is not None:
        with open(target, "wb") as file:
            file.write(shadow.read_whole(source))
    elif source.endswith(_TABLE):
        os.symlink(_held_open(source, held) or os.path.realpath(source), target)
    else:
        shutil.copyfile(source, target)


def _held_open(path: str, held: ExitStack | None) -> str | None:
    """A path that leads to the file also when it is deleted; None if there is no such path."""
    if held is None:
        return None
    file = os.open(path, os.O_RDONLY)
    held.callback(os.close, file)
    here = f"/dev/fd/{file}"
    return here if os.path.exists(here) else None


def _odd_record(path: str) -> str | None:
    """What is wrong with the first record of a kind that no broker writes; None if there is none.

    RocksDB checks sums itself, but reads one kind for ever where it does not belong: that of logs which
    are used again (recycle_log_file_num).
    """
    size = os.path.getsize(path)
    if not size:
        return None
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        at = 0
        while at + _HEAD.size <= size:
            left = _BLOCK - at % _BLOCK
            if left < _HEAD.size:
                at += left
                continue
            length, kind = _HEAD.unpack_from(raw, at)
            if kind > _KINDS:
                return f"a record of kind {kind} at byte {at} of {os.path.basename(path)}"
            behind = _HEAD.size + length
            at += left if behind > left or not kind else behind
    return None


def _is_read(name: str) -> bool:
    return _is_list(name) or name.endswith((_LOG, _TABLE))


def _is_list(name: str) -> bool:
    return name == _CURRENT or name.startswith(_MANIFEST)


def _versions(folder: str) -> dict[str, tuple[int, int]]:
    """The files of a database: inode, and size of those that do not grow."""
    versions = {}
    with OsErrorsOf(folder, "listing the files of the database"), os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            versions[entry.name] = status.st_ino, status.st_size
    return versions


def _holds_the_same(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> bool:
    """Whether no list of files was replaced, and no log deleted: its content is in a later table."""
    return all(
        name in after and after[name][0] == inode
        for name, (inode, _) in before.items()
        if _is_list(name) or name.endswith(_LOG)
    )
