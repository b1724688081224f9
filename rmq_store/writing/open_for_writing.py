"""Opens a store for one writer: locks it, recovers it if necessary, and finds where to continue."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.misnamed_files import refuse_unsure_files
from rmq_store.commitlog.walk import page_rest
from rmq_store.config.broker_conf import PATH_SPLITTER, StoreConfig, paths_in
from rmq_store.config.locate import (
    commitlog_folders,
    refuse_foreign_log,
    refuse_linked_queues,
    require_store,
)
from rmq_store.config.rocksdb import refuse_rocksdb_config
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import InvalidArgumentError, cannot_create, shown_path
from rmq_store.escaping import LOG
from rmq_store.files.changes import cut
from rmq_store.files.journal import refuse_content, refuse_uri
from rmq_store.format.byte_layout import COMMITLOG_DIR, CONFIG_DIR, CONSUMEQUEUE_DIR, INDEX_DIR
from rmq_store.format.releases import Dialect, dialect
from rmq_store.markers.lock_file import StoreLock
from rmq_store.recovery.clean_stop import refuse_abort, refuse_unclean
from rmq_store.recovery.recover_store import recover_locked
from rmq_store.recovery.report import RecoveryReport
from rmq_store.snapshot.file_sizes import geometry_found, refuse_contradiction
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot


@dataclass(frozen=True, slots=True)
class WritableStore:
    """The state that a writer continues from. The owner of this object releases the lock."""

    root: Path
    config: StoreConfig
    lock: StoreLock
    dialect: Dialect
    broker_name: str
    snapshot: StoreSnapshot
    recovered: RecoveryReport | None = None
    last_record: int = 0  # log offset
    last_timestamp: int = 0  # ms


def make_store(
    path: str | os.PathLike[str], config: Any, release: str | None, broker_name: str | None
) -> WritableStore:
    """A new store without messages: see StoreWriter.create."""
    known, traits, root = StoreConfig.of(config), dialect(release), Path(path)
    refuse_uri(os.fspath(path))
    _ = known.flushes_each_append  # raises for an unknown flushDiskType before a file is created
    try:
        refuse_content(root, "Use a new folder, or append_to for an existing store")
        for name in (CONSUMEQUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            (root / name).mkdir(parents=True, exist_ok=True)
        known = with_log_of_its_own(known)
        for folder in paths_in(known.storePathCommitLog) or [COMMITLOG_DIR]:
            (root / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_create(root, "the store's folders", error) from error
    name = broker_name or known.brokerName or root.absolute().name
    return WritableStore(root, known, StoreLock(root), traits, name, StoreSnapshot(0, 0))


def open_store(
    path: str | os.PathLike[str],
    config: Any,
    release: str | None,
    broker_name: str | None,
    recovery: str,
    until: int | None,
) -> WritableStore:
    """A store as its last writer or broker left it, or recovered: see StoreWriter.append_to."""
    if recovery not in ("strict", "refuse"):
        raise InvalidArgumentError(
            reason=f"unknown way to recover {recovery!r}", expected="strict or refuse"
        )
    given, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, given)
    refuse_rocksdb_config(root)
    refuse_foreign_log(root, given)
    refuse_linked_queues(root)
    lock = StoreLock(root)
    try:
        report = None
        if recovery == "refuse":
            refuse_abort(root)
        else:
            report = recover_locked(root, given, traits, until=until, cuts_intact=False)
            if report.entries_after_log:
                LOG.warning("%s: %s", shown_path(str(root)), report.line_of_lost_end())
        folders = QueueFolders(root, given)
        log = CommitLog(commitlog_folders(root, given), file_size=given.mappedFileSizeCommitLog)
        refuse_unsure_files(log)
        snapshot = take_snapshot(log, folders)
        refuse_unclean(log, folders, snapshot)
        known = given.with_defaults_of(geometry_found(log, folders, damaged_index=False))
        refuse_contradiction(known, log, folders, snapshot)
        _clear_page_rest(log, snapshot.log_end)
        name = broker_name or known.brokerName or root.absolute().name
        return WritableStore(
            root, known, lock, traits, name, snapshot, report, *_last_record(log, snapshot)
        )
    except BaseException:
        lock.release()
        raise


def _clear_page_rest(log: CommitLog, end: int) -> None:
    """Set what a broker left of its buffer after the last record to zero: it would follow ours too."""
    segment = log.chain.segment_at(end)
    if segment is not None and page_rest(log, end) is not None:
        for change in cut(segment.path, end - segment.base):
            change.make()


def _last_record(log: CommitLog, snapshot: StoreSnapshot) -> tuple[int, int]:
    """Log offset and store time (ms) of the last record; zeros without one."""
    last = snapshot.last_record
    stored = None if last is None else log.store_time_at(last)
    return (0, 0) if last is None or stored is None else (last, stored)


def with_log_of_its_own(config: StoreConfig) -> StoreConfig:
    """The configuration without log paths: a new store keeps its log under its root.

    A configured path elsewhere belongs to the store whose settings these are, whether it exists or
    not, and must not be written to.
    """
    folders = map(Path, paths_in(config.storePathCommitLog))
    under = [
        folder.name if folder.is_absolute() or ".." in folder.parts else str(folder)
        for folder in folders
    ]
    return replace(
        config,
        storePathCommitLog=PATH_SPLITTER.join(under) or None,
        readOnlyCommitLogStorePaths=None,
        enableDLegerCommitLog=None,
        storePathDLedgerCommitLog=None,
        storePathRootDir=None,
    )
