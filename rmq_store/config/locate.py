"""Checks that a folder is a supported store; if it is not, finds the store nearby.

Tiered storage (messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore): the broker's own
store stays as it is; the plugin copies messages to a backend, which keeps them longer than the log does.
`config/tieredStoreMetadata.json` of the store lists the files there (DefaultMetadataStore,
TieredMetadataManager before 5.2). In a file system they are
tieredStoreFilePath/HASH_CLUSTER/BROKER/TOPIC/QUEUE/{COMMIT_LOG,CONSUME_QUEUE,INDEX}/ (PosixFileSegment).
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from rmq_store.config.broker_conf import StoreConfig, paths_in
from rmq_store.config.dledger import entries_folders, refuse_to_change, unread_dledger
from rmq_store.config.json_files import read_config, whole_number
from rmq_store.config.rocksdb import refuse_rocksdb
from rmq_store.errors import (
    AccessError,
    ForeignLogError,
    InvalidArgumentError,
    MissingFileError,
    NotAStoreError,
    OsErrorsOf,
    StoreError,
    UnsupportedStoreError,
    from_os_error,
    shown_path,
)
from rmq_store.files.journal import refuse_uri
from rmq_store.files.remote.uri_filesystem import (
    absolute_path,
    error_of_object_store_address,
    has_pattern,
    is_uri,
    local_path,
    matching_addresses,
    real_path,
)
from rmq_store.files.safe_paths import refuse_link
from rmq_store.files.segments import folder_entries, list_segments
from rmq_store.format.byte_layout import (
    ABORT_FILE,
    BATCH_CONSUMEQUEUE_DIR,
    BLANK_SIZE,
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    INDEX_DIR,
    LOCK_FILE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from rmq_store.format.queues import QUEUE_ENTRY, QueueId

_PARTS = (COMMITLOG_DIR, CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR, INDEX_DIR)
_ROOT_DIRS = (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR)
_ROOT_FILES = (CHECKPOINT_FILE, ABORT_FILE, LOCK_FILE)


def require_store(
    path: str | os.PathLike[str], config: StoreConfig, *, queues: bool = True, to_read: bool = False
) -> Path:
    """`path` as the root folder of a store.

    Raises NotAStoreError, with a store nearby if there is one, and InvalidArgumentError for an address in an
    object store. Raises MissingFileError if a
    configured folder of the log does not exist, or has other files than those of a log. Raises
    UnsupportedStoreError for tiered stores, for a DLedger log that is not here and, with `queues` and
    not `to_read`, for queues in RocksDB and a DLedger log, which no writer changes. Without `queues`,
    the CommitLog that a DLedger log followed may be read.
    """
    where = local_path(os.fspath(path))
    root = Path(where)
    try:
        if not root.exists():
            if is_uri(where):
                raise error_of_object_store_address(where)
            raise _not_a_store(root, "there is no such folder", _nearest_existing(root))
        if not root.is_dir():
            raise _not_a_store(
                root, "this is a file, not the folder of a store", _store_above(root)
            )
        _refuse_other_kinds(root, config, queues, to_read)
        if _has_log(root, config):
            _refuse_other_content(root, config)
            return root
        _refuse_tiered(root)
    except PermissionError as error:
        raise from_os_error(path, error, "looking into the folder") from error
    reason = "the folder does not contain commitlog/"
    if list_segments([root]):
        reason = "the folder holds segment files of a store; it is not the store's root"
    elsewhere = _logs_of_other_names(root)
    if elsewhere:
        raise NotAStoreError(
            root,
            reason=reason,
            actual=", ".join(folder.name for folder in elsewhere) + " with log files",
            advice="Give the broker's configuration (--broker-conf, or the option brokerConf) with the "
            f"line storePathCommitLog={','.join(map(str, elsewhere))}",
        )
    if (root / CONSUMEQUEUE_DIR).is_dir():
        raise NotAStoreError(
            root,
            reason="the folder has queues and no log: neither commitlog/ nor the dledger-*/ of a broker in "
            "DLedger mode",
            advice="Copy the log's folder too; if it is elsewhere, give the broker's configuration "
            "(--broker-conf, or the option brokerConf) with its storePathCommitLog",
        )
    raise _not_a_store(root, reason, _store_above(root) or _store_below(root))


def commitlog_folders(root: Path, config: StoreConfig) -> list[Path]:
    """The folders of the CommitLog: `commitlog/`, or all of storePathCommitLog and the read-only ones.
    Those of a DLedger log come last.

    Each folder once, however it is named: through links, with `./` or a slash at the end.

    Relative paths start at the store's root. If a configured folder does not exist (the store was
    copied), the folder of the same name under the root is used. Raises MissingFileError if that
    does not exist either, because a part of the log would be missing.
    """
    named = paths_in(config.storePathCommitLog) + paths_in(config.readOnlyCommitLogStorePaths)
    folders = [_found(root, Path(name)) for name in named] or [root / COMMITLOG_DIR]
    plain = {os.path.realpath(folder): folder for folder in reversed(folders)}
    return [*reversed(plain.values()), *entries_folders(root, config)]


def _found(root: Path, folder: Path) -> Path:
    for place in (root / folder, root / folder.name):  # an absolute path stays what it is
        if place.is_dir():
            return place
    raise MissingFileError(
        root / folder,
        reason="this configured folder of the log does not exist",
        advice=f"{root / folder.name} does not exist either: mount or copy it to one of the two, or correct "
        "storePathCommitLog and readOnlyCommitLogStorePaths",
    )


def require_apart(
    folders: Iterable[str | os.PathLike[str]], target: str | os.PathLike[str]
) -> None:
    """Raise InvalidArgumentError for a URI, and for a target in, around or at one of a source's folders.

    Otherwise the new store would become files of the store that it was made from. Links are
    followed.
    """
    refuse_uri(os.fspath(target))
    made = Path(os.path.realpath(target))
    for folder in folders:
        real = Path(os.path.realpath(folder))
        if made.is_relative_to(real) or real.is_relative_to(made):
            raise InvalidArgumentError(
                target,
                reason="the target and the source must be separate folders",
                expected=f"a folder outside {folder}",
                actual=None if made == Path(os.path.abspath(target)) else made,  # through a link
                advice="Name a new folder. Nothing was written",
            )


def refuse_foreign_log(root: Path, config: StoreConfig) -> None:
    """Raise ForeignLogError if writing to the store `root` would change another store's log.

    That happens with a copied store whose configuration names the folders of the original: its lock
    covers only the copy. Log folders outside the root are legal (several disks). Refused are: a
    folder that the root has its own version of, a folder named by a configuration for another root
    (storePathRootDir), and a folder inside another store. Every writer calls this before it takes
    the lock.
    """
    home = Path(os.path.realpath(root))
    folders = commitlog_folders(root, config)
    mine = [Path(os.path.realpath(folder)) for folder in folders]
    for folder, real in zip(folders, mine, strict=True):
        if real.is_relative_to(home):
            continue
        evidence = (
            _own_log_folder(root, folder, mine)
            or _another_root(home, config)
            or (None if _names_a_root(config) else _store_around(root, real))
        )
        if evidence is not None:
            raise ForeignLogError(
                folder,
                reason="this folder of the log does not belong to the store to be written to",
                expected=f"a log of {root}",
                actual=evidence,
                advice=_ways_out(root, folder),
            )


def refuse_linked_queues(root: Path) -> None:
    """Raise UnsafeNameError if the folder of a topic or queue is a link.

    A writer would change, cut or delete files somewhere else. The folders in the root itself may be
    links, to other disks. Every writer calls this before it takes the lock.
    """
    for part in (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR):
        for topic in _listed(root / part):
            if topic.is_symlink():
                refuse_link(topic.path)
            for queue in _listed(topic.path):
                if queue.is_symlink():
                    refuse_link(queue.path)


def _listed(folder: str | Path) -> list[os.DirEntry[str]]:
    with OsErrorsOf(folder, "listing queues"):
        entries = folder_entries(folder, "listing queues", NotADirectoryError)
        return [entry for entry in entries if entry.is_symlink() or entry.is_dir()]


def _own_log_folder(root: Path, folder: Path, mine: list[Path]) -> str | None:
    own = root / folder.name
    if Path(os.path.realpath(own)) in mine or not list_segments([own]):
        return None  # folders on several disks may have the same name
    return f"the store has its own log files in {own}"


def _another_root(home: Path, config: StoreConfig) -> str | None:
    configured = config.storePathRootDir or ""
    if not _names_a_root(config) or Path(os.path.realpath(configured)) == home:
        return None
    return f"the configuration belongs to the store storePathRootDir={configured}"


def _names_a_root(config: StoreConfig) -> bool:
    # A relative path starts at the broker's working directory, which is unknown.
    return config.storePathRootDir is not None and os.path.isabs(config.storePathRootDir)


def _store_around(root: Path, real: Path) -> str | None:
    """Evidence that a folder lies in another store's root, at any depth; None if there is none."""
    for above in real.parents:
        dirs = [name for name in _ROOT_DIRS if _has_content(above / name)]
        files = [name for name in _ROOT_FILES if (above / name).is_file()]
        # Other programs also use one of these file names; two of them identify a store.
        marks = files + dirs if dirs or len(files) > 1 else []
        for name in marks:
            mark, own = above / name, root / name
            # Queues may lie on the log's disk, with a link to them in the root.
            if not (own.exists() and own.samefile(mark)):
                return f"{above} is another store, with its own {name}"
    return None


def _has_content(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def _ways_out(root: Path, folder: Path) -> str:
    if Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(root)):
        return f"Nothing was changed. Replace the link {folder} by a copy of the log"
    return (
        "Nothing was changed. If this store is a copy, remove storePathCommitLog and "
        "readOnlyCommitLogStorePaths from its configuration, or set them and storePathRootDir "
        "to its own folders. If the folder is its own and the other store is a leftover, move that "
        "away. Reading needs no change"
    )


def _has_log(root: Path, config: StoreConfig) -> bool:
    try:
        return any(folder.is_dir() for folder in commitlog_folders(root, config))
    except MissingFileError:
        if any((root / part).is_dir() for part in _PARTS):
            raise
        return False  # no store here at all: that error is clearer


def _refuse_other_content(root: Path, config: StoreConfig) -> None:
    """Raise MissingFileError if configured folders of the log have no log file, but other files.

    A log without any file is one that has no message yet. /etc is no log.
    """
    if not (config.storePathCommitLog or config.readOnlyCommitLogStorePaths):
        return
    folders = commitlog_folders(root, config)
    if list_segments(folders):
        return
    for folder in folders:
        other = sorted(set(os.listdir(folder)) - {"lost+found"})
        if other:
            raise MissingFileError(
                folder,
                reason="there is no log file in this configured folder of the log",
                expected="files named by 20 digits",
                actual=f"{len(other)} other names, such as {other[0]!r}",
                advice="Correct storePathCommitLog and readOnlyCommitLogStorePaths",
            )


def _not_a_store(root: Path, reason: str, nearby: Path | None) -> NotAStoreError:
    advice = "A store is the folder that contains commitlog/ and consumequeue/ (storePathRootDir)"
    if nearby is not None:
        advice = f"Did you mean {nearby}?"
    return NotAStoreError(root, reason=reason, advice=advice)


def _logs_of_other_names(root: Path) -> list[Path]:
    """Folders with log files in a root that has queues or an index, but no commitlog/."""
    if not any((root / part).is_dir() for part in _PARTS):
        return []
    try:
        others = sorted(folder for folder in root.iterdir() if folder.name not in _PARTS)
        return [folder for folder in others if folder.is_dir() and _begins_with_record(folder)]
    except (OSError, StoreError):
        return []  # only the advice of an error depends on it


def _begins_with_record(folder: Path) -> bool:
    """Whether the first file of a folder begins as one of a log does; those of a timer log do not."""
    segments = list_segments([folder])
    first = Path(segments[0].path) if segments else folder
    if first.is_symlink() or not first.is_file():
        return False
    with first.open("rb") as file:
        return int.from_bytes(file.read(BLANK_SIZE)[4:], "big") in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def _is_store(folder: Path) -> bool:
    """Whether to name the folder as a store: its commitlog/ has files of a log, or none yet.

    Also if this user may not list commitlog/, which is there.
    """
    log = folder / COMMITLOG_DIR
    try:
        names = os.listdir(log)
    except PermissionError:
        return os.path.isdir(log)
    except OSError:
        return False
    return not names or any(name.isdigit() for name in names)


def _store_above(root: Path) -> Path | None:
    return next((folder for folder in list(root.absolute().parents)[:4] if _is_store(folder)), None)


def _store_below(root: Path, like: str = "") -> Path | None:
    """A store in the folder or one level below it. With `like`, only in the folder, of a name like this."""
    try:
        inside = _folders_in(root, 200)
        if like:
            near = get_close_matches(like, [child.name for child in inside])
            return next((root / name for name in near if _is_store(root / name)), None)
        deeper = (child for folder in inside[:50] for child in _folders_in(folder, 50))
        return next(filter(_is_store, chain(inside, deeper)), None)
    except OSError:
        return None


def _nearest_existing(root: Path) -> Path | None:
    """A store above or beside a path that does not exist."""
    place = Path(os.path.abspath(root))
    for missing, folder in zip((place, *place.parents), list(place.parents)[:2], strict=False):
        if _is_store(folder):
            return folder
        if folder == folder.parent:
            return None  # what lies below the root of all folders is not nearby
        if folder.is_dir():
            return _store_below(folder, missing.name)
    return None


def _refuse_other_kinds(root: Path, config: StoreConfig, queues: bool, to_read: bool) -> None:
    try:
        log = list_segments(commitlog_folders(root, config))
    except MissingFileError:
        log = []  # `_has_log` says so, unless the store is of another kind
    missing = unread_dledger(root, config, log)
    if missing is not None and (queues or not log):
        raise missing
    if queues and not to_read:
        refuse_rocksdb(root)
        refuse_to_change(root, config, log)


def _refuse_tiered(root: Path) -> None:
    if is_tiered_folder(root):
        raise UnsupportedStoreError(
            root,
            reason="this is tiered storage, to which a broker copies messages (tieredStoreFilePath); its "
            "files are not read",
            advice="Read the broker's own store, the folder storePathRootDir: it has the newest messages",
        )


def matching_folders(path: str, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The folders that match a pattern; the path itself if it is no pattern or exists.

    Raises InvalidArgumentError for a pattern that matches none.
    """
    local = local_path(path)
    if not has_pattern(path):
        return [path]
    if is_uri(local):
        folders = matching_addresses(path, storage_options)
    else:
        folders = [local] if os.path.isdir(local) else sorted(glob.glob(local))
    if not folders:
        raise InvalidArgumentError(
            path, reason="the pattern matches no folder", advice="Try it with ls on the driver"
        )
    return folders


def without_same_folders(paths: Sequence[str]) -> list[str]:
    """The paths, of those that lead to the same folder the first one."""
    by_place: dict[str, str] = {}
    for path in paths:
        by_place.setdefault(real_path(path), path)
    return list(by_place.values())


def broker_names_of_paths(paths: Sequence[str]) -> list[str]:
    """Broker names for several stores: their folders' names.

    Stores with the same folder name get the first part of the path that differs: `a` and
    `b` of /data/a/store and /data/b/store. If one part is not enough, those after it are added.
    """
    parts = [_parts(path) for path in paths]
    own = [part[-1] if part else path for part, path in zip(parts, paths, strict=True)]
    for same in [name for name, count in Counter(own).items() if count > 1]:
        rows = [row for row, name in enumerate(own) if name == same]
        for row, name in zip(rows, _distinct([parts[row] for row in rows]), strict=True):
            own[row] = name
    return own


def name_in_pattern(pattern: str, path: str) -> str | None:
    """The parts of a path at the places of a pattern's wildcards: broker-a for /data/*/store.

    None if the path is not one of the pattern's.
    """
    wanted, parts = _parts(pattern), _parts(path)
    if not has_pattern(pattern) or len(wanted) != len(parts):
        return None
    pairs = list(zip(wanted, parts, strict=True))
    if not all(fnmatch.fnmatchcase(part, want) for want, part in pairs):
        return None
    return "-".join(part for want, part in pairs if has_pattern(want))


def _parts(path: str) -> list[str]:
    return [part for part in absolute_path(path).split("/") if part]


def _distinct(parts: Sequence[Sequence[str]]) -> list[str]:
    """For each path its parts from the first that differs on, as few as make all differ."""
    longest = max(map(len, parts))
    first = next((n for n in range(longest) if len({tuple(p[n : n + 1]) for p in parts}) > 1), 0)
    for stop in range(first + 1, longest + 1):
        names = ["-".join(part[first:stop]) for part in parts]
        if all(names) and len(set(names)) == len(names):
            return names
    return [part[-1] if part else "" for part in parts]  # refused later, because they are the same


_METADATA = "tieredStoreMetadata.json"
_QUEUE_FILES, _DELETED = "consumeQueueFileSegmentTable", 2
_KINDS = frozenset(("COMMIT_LOG", "CONSUME_QUEUE"))
_FOLDERS_ABOVE = 4  # cluster, broker, topic and queue, below tieredStoreFilePath
_LOOKED_AT = 20  # folders in each of these


@dataclass(frozen=True, slots=True)
class TieredQueues:
    """What a broker has copied to tiered storage. `first`: queue -> its first queue offset there; None if
    the list of files at `path` cannot be read."""

    path: str
    first: Mapping[QueueId, int] | None

    def __str__(self) -> str:
        count = None if self.first is None else len(self.first)
        queues = "" if count is None else f" of {count} queue{'s' if count != 1 else ''}"
        return (
            f"the broker copies messages{queues} to tiered storage ({shown_path(self.path)}), which is not "
            "read: rmqstore reads those on the broker's disk"
        )

    def queues_with_older(self, begins: Mapping[QueueId, int]) -> list[QueueId]:
        """The queues with messages there that are older than the first one here, sorted.

        `begins`: queue -> the first queue offset here; the end of a queue without messages.
        """
        first_offsets = {} if self.first is None else self.first
        return sorted(q for q, first in first_offsets.items() if q in begins and first < begins[q])


def tiered_queues(store: str | os.PathLike[str]) -> TieredQueues | None:
    """What the broker of a store has copied to tiered storage; None if it has no such plugin.

    Raises AccessError.
    """
    path = os.fspath(Path(store) / CONFIG_DIR / _METADATA)
    try:
        file = read_config(store, _METADATA, lambda _, content: _first_offsets(content))
    except AccessError:
        raise
    except StoreError:
        return TieredQueues(path, None)
    return None if file is None else TieredQueues(os.fspath(file.path), file.value)


def _first_offsets(content: Mapping[str, Any]) -> dict[QueueId, int]:
    first_offsets: dict[QueueId, int] = {}
    for segment in _segments(content.get(_QUEUE_FILES)):
        queue, base = _queue_of(segment), whole_number(segment.get("baseOffset"), 63)
        if queue is None or base is None or base < 0 or segment.get("status") == _DELETED:
            continue
        first = base // QUEUE_ENTRY.itemsize
        first_offsets[queue] = min(first, first_offsets.get(queue, first))
    return first_offsets


def _segments(table: Any) -> Iterator[Mapping[str, Any]]:
    """The files of a table: path -> offset -> what is known of the file."""
    for by_offset in table.values() if isinstance(table, dict) else ():
        for segment in by_offset.values() if isinstance(by_offset, dict) else ():
            if isinstance(segment, dict):
                yield segment


def _queue_of(segment: Mapping[str, Any]) -> QueueId | None:
    """The queue of a file, by its path: BROKER/TOPIC/QUEUE."""
    parts = str(segment.get("path")).split("/")
    number = parts[-1]
    if len(parts) < 3 or not (number.isascii() and number.isdigit()):
        return None
    return QueueId(parts[-2], int(number))


def is_tiered_folder(folder: Path) -> bool:
    """Whether a folder is tieredStoreFilePath, or one below it. Looks at a few folders in each."""
    if folder.name in _KINDS:
        return True
    below = [folder]
    for _ in range(_FOLDERS_ABOVE + 1):
        below = [child for above in below[:_LOOKED_AT] for child in _folders_in(above, _LOOKED_AT)]
        if any(child.name in _KINDS for child in below):
            return True
    return False


def _folders_in(folder: Path, most: int) -> list[Path]:
    """The first folders by name; none of a folder that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            folders = sorted(entry.path for entry in entries if entry.is_dir())
    except OSError:
        return []
    return [Path(path) for path in folders[:most]]
