"""Where a broker keeps queues and configuration in RocksDB databases (storeType=defaultRocksDB).

Queue files may be beside them: a broker with rocksdbCQDoubleWriteEnable=true, or with both kinds in
combineCQLoadingCQTypes, writes both (CombineConsumeQueueStore).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rmq_store.config.without_file import advice_on_broken
from rmq_store.errors import CorruptConfigError, UnsupportedStoreError, from_os_error
from rmq_store.files.rocksdb import Database, had_databases, has_database_files, open_database
from rmq_store.files.segments import list_segments
from rmq_store.format.byte_layout import CONFIG_DIR, CONSUMEQUEUE_DIR, CONSUMEQUEUE_ROCKSDB_DIR

Parse = Callable[[str], Any]
_VERSION_2, _ONE_FOR_ALL = "rdb", "metadata"
_DEFAULT, _VERSIONS, _FORBIDDEN = "default", "kvDataVersion", "forbidden"
_VERSION_KEY = b"kvDataVersionKey"
_VERSION_2_KEY = b"data_version"
_HEAD = struct.Struct(">BhB")  # of a key of version 2: 1, table, kind of record
_A_VERSION, _DATA, _JSON = 1, 2, 1
_NUMBERS = struct.Struct(">qqq")  # stateVersion, timestamp, counter
_LENGTH, _QUEUE, _OFFSET = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
# Of queues; the second with useSeparateStorePathForRocksdbCQ.
_FOLDERS = (CONSUMEQUEUE_DIR, CONSUMEQUEUE_ROCKSDB_DIR)


class _Kind(NamedTuple):
    """What a JSON file holds, and where: folder and family in version 1, number of a table in version 2."""

    table: str
    folder: str
    family: str
    number: int


GROUPS_FILE = "subscriptionGroup.json"
_KINDS = {
    "topics.json": _Kind("topicConfigTable", "topics", "topic", 3),
    GROUPS_FILE: _Kind("subscriptionGroupTable", "subscriptionGroups", "subscriptionGroup", 4),
    "consumerOffset.json": _Kind("offsetTable", "consumerOffsets", "consumerOffset", 1),
}
KEPT_NAMES = tuple(_KINDS)
"""The JSON files in place of which a broker with RocksDB has databases."""

_PULLED = 2  # table of version 2
_OFFSETS = "offsetTable"


class DatabaseContent(NamedTuple):
    """What a database has in place of a JSON file. `is_merged`: a newer JSON file beside it counts too."""

    path: Path
    content: dict[str, Any]
    is_merged: bool


def data_version_counter(content: dict[str, Any]) -> int:
    """The counter of a dataVersion; 0 without one."""
    version = content.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else None
    return counter if isinstance(counter, int) else 0


def names_in_databases(root: Path) -> list[str]:
    """The JSON files in place of which the broker has a database."""
    return [name for name in _KINDS if _databases(root, name)]


def may_lack_topics(root: Path) -> bool:
    """Whether a database may lack topics and groups that the broker knew: one of version 2 keeps those that
    it made itself in memory alone (TopicConfigManager#putTopicConfig, which TopicConfigManagerV2 leaves as
    it is), and the last changes until it writes its log (rocksdbFlushWalFrequency)."""
    return bool(had_databases(root / CONFIG_DIR, [_VERSION_2]))


def read_database(root: Path, name: str, parse: Parse) -> DatabaseContent | None:
    """What a database has in place of a JSON file of `config/`; None if there is none.

    Of two databases the one with the larger counter counts. `parse`: makes a value of JSON. Raises
    CorruptConfigError for a damaged database, and without rocksdict; AccessError.
    """
    databases = [_read(folder, name, parse) for folder in _databases(root, name)]
    return max(databases, key=lambda database: data_version_counter(database.content), default=None)


def _databases(root: Path, name: str) -> list[Path]:
    """The databases with what a JSON file holds. One of version 2 stands for all."""
    if name not in _KINDS:
        return []
    databases = had_databases(root / CONFIG_DIR, (_VERSION_2, _ONE_FOR_ALL, _KINDS[name].folder))
    return [database for database in databases if database.name == _VERSION_2] or databases


def _read(folder: Path, name: str, parse: Parse) -> DatabaseContent:
    if find_spec("rocksdict") is None:
        raise CorruptConfigError(
            folder,
            reason=f"this is a RocksDB database in place of {name}, which needs a library to be read",
            advice="pip install 'rmqstore[rocksdb]'. The messages do not depend on it",
        )

    def damaged(problem: str) -> CorruptConfigError:
        return CorruptConfigError(
            folder,
            reason=f"the RocksDB database in place of {name} cannot be read: {problem}",
            advice=advice_on_broken(name),
        )

    kind = _KINDS[name]
    version_2, alone = folder.name == _VERSION_2, folder.name != _ONE_FOR_ALL
    family, versions = (_DEFAULT, _VERSIONS) if alone else (kind.family, f"{kind.family}Version")
    with closing(open_database(str(folder), (family, versions, _FORBIDDEN), damaged)) as database:
        try:
            if version_2:
                content = _version_2(database, kind, parse)
            else:
                content = _version_1(database, kind, family, versions, parse)
        except (ValueError, struct.error) as error:  # UnicodeDecodeError too
            raise damaged(str(error)) from None
    return DatabaseContent(folder, content, not version_2)


def _version_1(
    database: Database, kind: _Kind, family: str, versions: str, parse: Parse
) -> dict[str, Any]:
    def rows_in(name: str) -> dict[str, Any]:
        items = database.items(name)
        return {key.decode("utf-8"): parse(value.decode("utf-8")) for key, value in items}

    content: dict[str, Any] = {}
    for key, value in database.items(versions):
        if key == _VERSION_KEY:
            content["dataVersion"] = parse(value.decode("utf-8"))
    rows = rows_in(family)
    if kind.table == _OFFSETS:
        rows = {key: _offsets_of(key, value) for key, value in rows.items()}
    content[kind.table] = rows
    if kind.family == "subscriptionGroup":
        content["forbiddenTable"] = rows_in(_FORBIDDEN)
    return content


def _offsets_of(key: str, value: Any) -> Any:
    if not isinstance(value, dict) or _OFFSETS not in value:
        raise ValueError(f"{key!r} has {str(value)[:40]!r} and no offsets")
    return value[_OFFSETS]


def _version_2(database: Database, kind: _Kind, parse: Parse) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in _rows(database, kind.number, _A_VERSION):
        if key == _VERSION_2_KEY:
            names = ("stateVersion", "timestamp", "counter")
            content["dataVersion"] = dict(zip(names, _NUMBERS.unpack(value), strict=True))
    if kind.table == _OFFSETS:
        content[_OFFSETS] = _offsets(database, kind.number)
        pulled = _offsets(database, _PULLED)
        return content | ({"pullOffsetTable": pulled} if pulled else {})
    table = content[kind.table] = {}
    for key, value in _rows(database, kind.number, _DATA):
        name, _ = _text(key, 0)
        if value[:1] != bytes([_JSON]):
            raise ValueError(f"{name!r} is not in JSON")
        table[name] = parse(value[1:].decode("utf-8"))
    return content


def _rows(database: Database, table: int, record: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys, without what all of a table begin with, and values."""
    first, stop = _HEAD.pack(1, table, record), _HEAD.pack(1, table, record + 1)
    for key, value in database.items(_DEFAULT, first, stop):
        yield key[_HEAD.size :], value


def _offsets(database: Database, table: int) -> dict[str, dict[str, int]]:
    offsets: dict[str, dict[str, int]] = {}
    for key, value in _rows(database, table, _DATA):
        group, at = _text(key, 0)
        topic, at = _text(key, at + 1)
        queue = _QUEUE.unpack(key[at + 1 :])[0]
        offsets.setdefault(f"{topic}@{group}", {})[str(queue)] = _OFFSET.unpack(value)[0]
    return offsets


def _text(key: bytes, at: int) -> tuple[str, int]:
    """A text with its length before it, and where it ends."""
    start = at + _LENGTH.size
    stop = start + _LENGTH.unpack(key[at:start])[0]
    if not start <= stop <= len(key):
        raise ValueError(f"a key is cut: {key[:60]!r}")
    return key[start:stop].decode("utf-8"), stop


def rocksdb_queues(root: Path) -> Path | None:
    """The folder of the database with this store's queues; None if there is none."""
    return next((root / name for name in _FOLDERS if has_database_files(root / name)), None)


def refuse_rocksdb(root: Path) -> None:
    """Raise UnsupportedStoreError if the queues are in a database, for writers.

    They would leave the database behind the log and the queue files.
    """
    database = rocksdb_queues(root)
    if database is None:
        return
    raise UnsupportedStoreError(
        database,
        reason="the queues of this store are in a RocksDB database too, which rmqstore does not "
        "change: it would contradict the queue files and the log afterwards",
        advice="Reading and rmqstore verify need no change. To repair, let the broker start on a "
        "copy, or use rmqstore rebuild, which writes a new store without the database",
    )


def refuse_rocksdb_config(root: Path) -> None:
    """Raise UnsupportedStoreError if the broker keeps topics or offsets in a database, for those who write
    JSON files: a broker may not read these."""
    names = names_in_databases(root)
    if names:
        raise UnsupportedStoreError(
            root / CONFIG_DIR,
            reason=f"the broker keeps what {' and '.join(names)} would hold in a RocksDB database, which "
            "rmqstore does not change",
            advice="Change it with the broker's mqadmin, or use rmqstore rebuild, which writes a new store "
            "with JSON files",
        )


def has_queue_files(root: Path) -> bool:
    """Whether some queue has a file."""
    try:
        with os.scandir(root / CONSUMEQUEUE_DIR) as topics:
            for topic in topics:
                if topic.is_dir():
                    with os.scandir(topic.path) as queues:
                        if any(list_segments([queue.path]) for queue in queues):
                            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise from_os_error(root / CONSUMEQUEUE_DIR, error, "listing queues") from error
    return False
