"""A quick summary of a store from its folders and the start and end of its log. Imports few
modules.

The cost does not depend on the number of messages or bytes: it counts queue folders and searches
for the end of the log. `MessageStore` gives the exact state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rmq_store.admin.queue_files_missing import missing_queue_files
from rmq_store.commitlog.log import CommitLog, open_log, unreadable_files
from rmq_store.commitlog.misnamed_files import misnamed_files
from rmq_store.commitlog.walk import last_from
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.dledger import members_in
from rmq_store.config.locate import require_store
from rmq_store.config.rocksdb import rocksdb_queues
from rmq_store.config.tiered import tiered_queues
from rmq_store.consumequeue.queue_database import QueueDatabase
from rmq_store.consumequeue.queue_folders import is_queue_id
from rmq_store.errors import CorruptConfigError, CorruptRecordError, StoreError, shown_path
from rmq_store.files.segments import SegmentFile, entries_of
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    CHECKPOINT_FILE,
    CONSUMEQUEUE_DIR,
    INDEX_DIR,
    is_index_name,
)
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Record
from rmq_store.format.topics import is_system_topic, topic_of_broker
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.markers.lock_file import LockState, lock_state, was_closed
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import iso_time

_BLOCK = 1 << 16  # bytes read to decide whether a file is written up to a position
_MOST_DAMAGE = 10  # damaged ranges named
_STEP_BACK = 8 << 20  # bytes before the written end that contain the start of the last records


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The summary. Times are ms since the epoch, or None if unknown."""

    path: str
    brokerName: str
    closed: bool  # cleanly: there is no file `abort`
    lockHeld: bool | None  # whether a process has it open to write now; None if unknown
    lockPid: int | None  # that process, if known
    logStart: int
    logEnd: int  # after the last record, found from near the written end
    logFiles: int
    logFileSize: int
    logBytes: int  # size of all files, including preallocated space
    firstStoreTimestamp: int | None
    lastStoreTimestamp: int | None
    # None: not known, because the queues are in a database that is not read.
    topics: int | None
    systemTopics: int | None
    queues: int | None
    indexFiles: int
    checkpointTimestamp: (
        int | None
    )  # time up to which messages were on the disk, according to the broker
    rocksdbQueues: str | None = None  # the folder of a database with the queues
    rocksdbUnread: str | None = None  # why that is not read
    dledgerLog: str | None = None  # the members whose log is here, and which of them is read
    tieredStorage: str | None = None  # what the broker has copied there, which is not read
    # What is missing in the log, where it is damaged near its end, and what listings show of queues.
    damage: tuple[str, ...] = ()
    queuesCompared: bool = False  # with the log, which would take time


def store_info(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    broker_conf: str | os.PathLike[str] | None = None,
) -> StoreInfo:
    """The summary of the store in `path`. Raises what MessageStore.open raises."""
    config = StoreConfig.of(None) if broker_conf is None else StoreConfig.read(broker_conf)
    root = require_store(path, config, to_read=True)
    return info_of_root(root, config, broker_name or config.brokerName or root.absolute().name)


def info_of_root(root: Path, config: StoreConfig, name: str) -> StoreInfo:
    """The summary of the store in `root`, a folder that is one, as of now. Raises the errors of reads."""
    log = open_log(root, config)
    with closing(log.chain):
        queues, in_database, unread = _queues_of(root)
        topics = {queue.topic for queue in queues}
        first = _record_at(log, log.first_place)
        end = last_record(log)
        last = end.last
        lock = lock_state(root)
        own = topic_of_broker(name, str(root.absolute()))
        database = rocksdb_queues(root)
        system = [topic for topic in topics if is_system_topic(topic, [own])]
        return StoreInfo(
            shown_path(str(root)),
            name,
            was_closed(root),
            lock.held,
            lock.pid,
            log.start,
            end.offset,
            len(log.chain.segments),
            log.chain.file_size,
            sum(segment.size for segment in log.chain.segments),
            None if first is None else first.store_timestamp,
            None if last is None else last.store_timestamp,
            None if unread else len(topics) - len(system),
            None if unread else len(system),
            None if unread else len(queues),
            sum(map(bool, map(is_index_name, _names(root / INDEX_DIR)))),
            _checkpointed(root),
            None if database is None else shown_path(str(database)),
            None if unread is None else f"{unread.reason}. {unread.advice}",
            _members(root, config),
            _tiered(root),
            (*_damage(root, log, first, end), *_damage_of_queues(root, log, end, in_database)),
        )


def _members(root: Path, config: StoreConfig) -> str | None:
    """The member of a DLedger group whose log is read, and those beside it; None without one."""
    members = members_in(root, config)
    if not members:
        return None
    others = ", ".join(sorted(map(str, members[1:])))
    return f"{members[0]}; not read: {others}" if others else str(members[0])


def _tiered(root: Path) -> str | None:
    found = tiered_queues(root)
    return None if found is None else str(found)


def _names(folder: Path) -> list[str]:
    """The names in a folder; empty if it does not exist. Raises AccessError."""
    return [entry.name for entry in entries_of(folder, "listing", NotADirectoryError)]


def _queues_of(root: Path) -> tuple[set[QueueId], set[QueueId] | None, StoreError | None]:
    """The queues with a folder, or in a database; those in that; None, and why, if it is not read."""
    queues: set[QueueId] = set()
    for kind in (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR):
        for topic in _names(root / kind):
            names = _names(root / kind / topic)
            queues.update(QueueId(topic, int(name)) for name in names if is_queue_id(name))
    folder = rocksdb_queues(root)
    if folder is None:
        return queues, set(), None
    try:
        with closing(QueueDatabase(folder)) as database:
            return queues | database.ranges.keys(), set(database.ranges), None
    except StoreError as error:
        return queues, None, error


def _record_at(log: CommitLog, offset: int) -> Record | None:
    if log.chain.segment_at(offset) is None:
        return None
    try:
        return log.record_at(offset)
    except CorruptRecordError:
        return None


def newest_store_timestamp(log: CommitLog) -> int | None:
    """The storeTimestamp (ms) of the last record of the log; None if none can be read there."""
    last = last_record(log).last
    return None if last is None else last.store_timestamp


class LogEnd(NamedTuple):
    """Where the log ends, its last record, and the damage shortly before: log offsets, half-open."""

    offset: int
    last: Record | None
    damaged: tuple[tuple[int, int], ...] = ()


def last_record(log: CommitLog) -> LogEnd:
    segment = log.last_file()
    if segment is None:
        return LogEnd(log.start, None)
    written = _written_until(log, segment)
    start = max(0, written - _STEP_BACK)
    log.chain.fetch([(segment.base + start, segment.base + written)])
    at = log.next_record(segment, segment.base + start, segment.base + written) if start else None
    last, end = last_from(log, segment.base if at is None else at)
    damaged: list[tuple[int, int]] = []
    while len(damaged) < _MOST_DAMAGE:
        after = log.next_record(segment, end + 1, segment.base + written)
        if after is None:
            break
        newer, stop = last_from(log, after)
        if newer is None:  # looks like a record only
            break
        damaged.append((end, after))
        last, end = newer, stop
    return LogEnd(end, None if last is None else _record_at(log, last), tuple(damaged))


def _written_until(log: CommitLog, segment: SegmentFile) -> int:
    """The approximate end of the written part of a file. Later blocks are all zero."""
    low, high = 0, max(1, -(-segment.size // _BLOCK))
    while low < high:
        middle = (low + high) // 2
        at = segment.base + middle * _BLOCK
        if log.chain.read(at, min(at + _BLOCK, log.chain.segment_end(segment))).any():
            low = middle + 1
        else:
            high = middle
    return min(low * _BLOCK, segment.size)


def _damage(root: Path, log: CommitLog, first: Record | None, end: LogEnd) -> Iterator[str]:
    """What the files, both ends of the log and the checkpoint show. Reads no queue."""
    unreadable = unreadable_files(log)
    yield from (
        f"{shown_path(file.path)} may not be read: Permission denied" for file in unreadable
    )
    misnamed = [] if unreadable else list(map(str, misnamed_files(log)))
    yield from misnamed
    named = unreadable or misnamed or any(start == log.start for start, _ in log.chain.holes)
    if first is None and end.last is not None and not named:
        yield f"no record starts at log offset {log.start}, where the log begins, and records follow"
    for start, stop in log.chain.holes:
        yield f"log offset {start} to {stop} is in no file: a file is missing, empty or cut"
    for start, stop in end.damaged:
        yield f"log offset {start} to {stop} is not a record, and records follow"
    checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)
    flushed = checkpoint.newest_timestamp
    closed = was_closed(root)
    if flushed > 0 and end.last is None:
        yield "the log has no record, and the checkpoint knows of messages: the log is lost"
    elif closed and end.last is not None and flushed > end.last.store_timestamp:
        yield (
            f"the last record, before log offset {end.offset}, is older than the checkpoint: the "
            "end of the log is lost, or a clock was set back"
        )
    elif closed and end.last is not None and checkpoint.logics_physical_offset >= end.offset:
        yield (
            f"the checkpoint knows of a record at log offset {checkpoint.logics_physical_offset}, and the "
            f"log ends at {end.offset}: its end is lost"
        )


def _damage_of_queues(
    root: Path, log: CommitLog, end: LogEnd, in_database: set[QueueId] | None
) -> Iterator[str]:
    """What listings show to be missing of queues."""
    listed = end.last is not None and was_closed(root)
    yield from missing_queue_files(root, log.start, in_database, is_listed=listed)


def _checkpointed(root: Path) -> int | None:
    try:
        checkpoint = Checkpoint.read(root / CHECKPOINT_FILE)
    except CorruptConfigError:
        return None
    if checkpoint is None:
        return None
    return min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)


_NOT_VERIFIED = "not verified: rmqstore verify STORE"
_MORE_QUEUES = " with files; rmqstore queues also counts those that only the log has so far"


def _closed(info: StoreInfo) -> str:
    if info.closed:
        return "cleanly"
    if info.lockHeld is None:
        return "not cleanly, or a broker has it open (abort)"
    return "not yet: a broker or a writer has it open" if info.lockHeld else "not cleanly (abort)"


def _unread(why: str | None) -> str:
    return "" if why is None else f", not read: {why}"


def facts_of(info: StoreInfo) -> list[tuple[str, str]]:
    """The summary as names and sentences, times in UTC."""
    used = info.logEnd - info.logStart
    return [
        ("store", info.path),
        ("broker", info.brokerName),
        ("closed", _closed(info)),
        ("lock", str(LockState(info.lockHeld, info.lockPid))),
        (
            "log",
            f"{info.logStart} to {info.logEnd}: {size(used)}, "
            f"{counted(info.logFiles, 'file')} of {size(info.logFileSize)}",
        ),
        ("stored", f"{iso_time(info.firstStoreTimestamp)} to {iso_time(info.lastStoreTimestamp)}"),
        ("checkpoint", iso_time(info.checkpointTimestamp)),
        *(
            [("queues", "not known: see RocksDB")]
            if info.queues is None
            else [
                ("topics", f"{info.topics} with queues, and {info.systemTopics} system topics"),
                ("queues", f"{info.queues}{'' if info.closed else _MORE_QUEUES}; {_NOT_VERIFIED}"),
            ]
        ),
        ("index files", str(info.indexFiles)),
        *([("DLedger log", info.dledgerLog)] if info.dledgerLog else []),
        *(
            [("RocksDB", f"{info.rocksdbQueues}: queues{_unread(info.rocksdbUnread)}")]
            if info.rocksdbQueues
            else []
        ),
        *([("tiered", info.tieredStorage)] if info.tieredStorage else []),
        *(("damage", f"{what}; see rmqstore verify") for what in info.damage),
    ]
