"""A quick summary of a store: what opening it sees, the files of its log, its lock and its checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from rmq_store.config.dledger import members_in
from rmq_store.config.locate import tiered_queues
from rmq_store.config.rocksdb import rocksdb_queues
from rmq_store.errors import CorruptConfigError, StoreError, printable, shown_path
from rmq_store.files.segments import folder_entries
from rmq_store.format.byte_layout import CHECKPOINT_FILE, INDEX_DIR, is_index_name
from rmq_store.markers import Checkpoint, LockState, lock_state, was_closed
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import newest_time
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import iso_time

_NOT_VERIFIED = "not verified: rmqstore verify STORE"


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The summary. Times are ms since the epoch, or None if unknown."""

    path: str
    brokerName: str
    closed: bool  # cleanly: there is no file `abort`
    lockHeld: bool | None  # whether a process has it open to write now; None if unknown
    lockPid: int | None  # that process, if known
    logStart: int
    logEnd: int  # after the last record
    logFiles: int
    logFileSize: int
    logBytes: int  # size of all files, including preallocated space
    firstStoreTimestamp: int | None
    lastStoreTimestamp: int | None
    # None: not known, because the queues cannot be read.
    topics: int | None
    systemTopics: int | None
    queues: int | None
    indexFiles: int
    checkpointTimestamp: int | None  # up to then messages were on the disk, as the broker says
    rocksdbQueues: str | None = None  # the folder of a database with the queues
    queuesUnread: str | None = None  # why the queues, or that database, cannot be read
    dledgerLog: str | None = None  # the members whose log is here, and which of them is read
    tieredStorage: str | None = None  # what the broker has copied there, which is not read
    undispatched: str | None = None  # what the log has and no queue yet
    damage: tuple[str, ...] = ()  # what opening sees to be lost


def store_info(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    broker_conf: str | os.PathLike[str] | None = None,
) -> StoreInfo:
    """The summary of the store in `path`, without its queues if they cannot be read.

    Raises what StoreReader.open raises.
    """
    opened = partial(StoreReader.open, path, broker_name=broker_name, broker_conf=broker_conf)
    try:
        with opened() as store:
            return info_of(store)
    except StoreError as error:
        with opened(queues=False) as store:
            return info_of(store, error)


def info_of(store: StoreReader, unread: StoreError | None = None) -> StoreInfo:
    """The summary of an open store; `unread`: why its queues cannot be read. Raises the errors of reads."""
    root, chain, opening = store.path, store.log.chain, store.opening
    start, end = store.log_range()
    lock, database = lock_state(root), rocksdb_queues(root)
    unread = unread or store.view.unread_database
    topics = {queue.topic for queue in store.queues()}
    system = sum(map(store.is_system_topic, topics))
    tiered = tiered_queues(root)
    names = [
        entry.name for entry in folder_entries(root / INDEX_DIR, "listing", NotADirectoryError)
    ]
    return StoreInfo(
        shown_path(str(root)),
        store.broker_name,
        was_closed(root),
        lock.held,
        lock.pid,
        start,
        end,
        len(chain.segments),
        chain.file_size,
        sum(segment.size for segment in chain.segments),
        store.log.store_time_at(store.log.first_record_offset),
        newest_time([store]),
        None if unread else len(topics) - system,
        None if unread else system,
        None if unread else len(store.queues()),
        sum(1 for name in names if is_index_name(name)),
        _checkpointed(root),
        None if database is None else shown_path(str(database)),
        None if unread is None else str(unread),
        _members(store),
        None if tiered is None else str(tiered),
        opening.behind,
        tuple(opening.losses()),
    )


def _members(store: StoreReader) -> str | None:
    """The member of a DLedger group whose log is read, and those beside it; None without one."""
    members = members_in(store.path, store.config)
    if not members:
        return None
    others = ", ".join(sorted(map(str, members[1:])))
    return f"{members[0]}; not read: {others}" if others else str(members[0])


def _checkpointed(root: Path) -> int | None:
    try:
        checkpoint = Checkpoint.read(root / CHECKPOINT_FILE)
    except CorruptConfigError:
        return None
    if checkpoint is None:
        return None
    return min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)


def _closed(info: StoreInfo) -> str:
    if info.closed:
        return "cleanly"
    if info.lockHeld is None:
        return "not cleanly, or a broker has it open (abort)"
    return "not yet: a broker or a writer has it open" if info.lockHeld else "not cleanly (abort)"


def summary_of(info: StoreInfo, *, verified: bool = False) -> list[tuple[str, str]]:
    """The summary as names and sentences, times in UTC. `verified`: whether the store was."""
    return [
        ("store", info.path),
        ("broker", info.brokerName),
        ("closed", _closed(info)),
        ("lock", str(LockState(info.lockHeld, info.lockPid))),
        (
            "log",
            f"{info.logStart} to {info.logEnd}: {size(info.logEnd - info.logStart)}, "
            f"{counted(info.logFiles, 'file')} of {size(info.logFileSize)}",
        ),
        ("stored", f"{iso_time(info.firstStoreTimestamp)} to {iso_time(info.lastStoreTimestamp)}"),
        ("checkpoint", iso_time(info.checkpointTimestamp)),
        *(
            [("queues", f"not known: {info.queuesUnread}")]
            if info.queues is None
            else [
                ("topics", f"{info.topics} with queues, and {info.systemTopics} system topics"),
                ("queues", f"{info.queues}{'' if verified else f'; {_NOT_VERIFIED}'}"),
            ]
        ),
        ("index files", str(info.indexFiles)),
        *([("DLedger log", info.dledgerLog)] if info.dledgerLog else []),
        *([("RocksDB", f"{info.rocksdbQueues}: queues")] if info.rocksdbQueues else []),
        *([("tiered", info.tieredStorage)] if info.tieredStorage else []),
        *([("undispatched", info.undispatched)] if info.undispatched else []),
        *(("damage", what) for what in info.damage),
    ]


def html_of_store(store: StoreReader) -> str:
    """What `rmqstore info` says of a store now, as an HTML table; of one that cannot be read, its error."""
    try:
        facts = summary_of(info_of(store))
    except StoreError as error:
        facts = [("store", repr(store)), ("error", str(error))]
    rows = (f"<tr><th>{_safe(name)}</th><td>{_safe(value)}</td></tr>" for name, value in facts)
    return f"<table>{''.join(rows)}</table>"


def _safe(text: str) -> str:
    return escape(printable(text))
