"""Starting after a crash: the log cut to its last whole record, queues and index made to agree with it.

`strict` is ours. `broker` does what DefaultMessageStore#load does, and has what that has of defects;
docs/recovery.md sets one against the other.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.checkpoint import Checkpoint
from rmq_store.columns import stored_topics
from rmq_store.commitlog import CommitLog
from rmq_store.config import StoreConfig, batch_topics, read_topic_configs
from rmq_store.consumequeue import QueueId
from rmq_store.dialects import Dialect, dialect
from rmq_store.dispatch import Dispatched, dispatch
from rmq_store.errors import CorruptConfigError, InvalidArgumentError, from_os_error
from rmq_store.files import LARGEST_FILE, SegmentChain
from rmq_store.headers import Headers
from rmq_store.indexrecovery import IndexRecovery, index_geometry, last_index_writer
from rmq_store.indexwriter import IndexWriter
from rmq_store.layout import (
    ABORT_BACKUP_FILE,
    ABORT_FILE,
    CHECKPOINT,
    CHECKPOINT_FILE,
    CHECKPOINT_SIZE_BEFORE_48,
)
from rmq_store.locate import commitlog_folders, require_store
from rmq_store.lock import StoreLock
from rmq_store.logrecovery import LogWalk, careful_start
from rmq_store.properties import PropertyColumns, decode_property_columns, slices
from rmq_store.queuerecovery import LookFurther, QueueRecovery
from rmq_store.queuewriter import QueueWriter
from rmq_store.segmentwriter import OpenFiles, clear_from, remove, set_size, sync_folder
from rmq_store.snapshot import QueueFolders, StoreSnapshot, take_snapshot
from rmq_store.unclean import why_unclean

MODES = ("strict", "broker")
_BYTES_BETWEEN_MARKS = 1 << 30  # of the log, dispatched


@dataclass(frozen=True, slots=True)
class FileChange:
    """What happened to a file: `removed`, `cut` or `extended`, and how many bytes that were."""

    path: str
    what: str
    bytes: int


@dataclass
class RecoveryReport:
    """What a recovery found and did. `print` shows it; `to_json` is for machines.

    `log_start` and `log_end`: the log afterwards. `scanned_from`: where it was walked from. `damage`:
    ranges of it that are no records and were left as they are. `entries_cut` and `entries_rebuilt`:
    units of queues. `queues`: min and max offset of each.
    """

    path: str
    mode: str
    clean: bool
    log_start: int = 0
    log_end: int = 0
    scanned_from: int = 0
    records: int = 0
    damage: list[tuple[int, int]] = field(default_factory=list)
    files: list[FileChange] = field(default_factory=list)
    entries_cut: int = 0
    entries_rebuilt: int = 0
    index_items_rebuilt: int = 0
    queues: dict[QueueId, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0
    snapshot: StoreSnapshot | None = field(default=None, repr=False)

    @property
    def bytes_cut(self) -> int:
        """Bytes of the log that went: behind its end, up to the last that was not zero."""
        return sum(one.bytes for one in self.files if one.what == "cut log")

    def to_json(self) -> str:
        """One JSON object; queues as topic@queueId -> [min, max]."""
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("files", "queues", "snapshot")
        }
        found["bytes_cut"] = self.bytes_cut
        found["files"] = [
            {"path": one.path, "what": one.what, "bytes": one.bytes} for one in self.files
        ]
        found["queues"] = {
            f"{queue.topic}@{queue.queue_id}": list(ends) for queue, ends in self.queues.items()
        }
        return json.dumps(found, ensure_ascii=False)

    def __str__(self) -> str:
        state = "was closed cleanly" if self.clean else "was not closed cleanly"
        lines = [
            f"{self.path} {state}; recovered ({self.mode}) in {self.seconds:.2f} s",
            f"  log {self.log_start} to {self.log_end}, walked from {self.scanned_from}: "
            f"{self.records} records, {self.bytes_cut} bytes cut",
            f"  queues: {len(self.queues)}, entries cut {self.entries_cut}, "
            f"rebuilt {self.entries_rebuilt}; index items rebuilt {self.index_items_rebuilt}",
        ]
        lines += [f"  damage left as it is: {start} to {stop}" for start, stop in self.damage]
        lines += [f"  {one.what}: {one.path} ({one.bytes} bytes)" for one in self.files]
        return "\n".join(lines)


def recover(
    path: str | os.PathLike[str],
    config: StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    mode: str = "strict",
    release: str | None = None,
) -> RecoveryReport:
    """Bring a store that was not closed cleanly into the state a clean stop leaves.

    `mode`: "strict" or "broker" (with the ways of `release`). Holds the store's lock meanwhile; a
    crash during it leaves a store that can be recovered again. A store that was closed cleanly is
    only looked at. Raises NotAStoreError, StoreLockedError, AccessError, and in mode "broker"
    UnrecoverableStoreError where the broker would not start.
    """
    check_mode(mode)
    said, how = StoreConfig.of(config), dialect(release)
    root = require_store(path, said)
    lock = StoreLock(root)
    try:
        report = recover_locked(root, said, how, mode)
        remove_abort(root)
    finally:
        lock.release()
    return report


def check_mode(mode: str, *, others: tuple[str, ...] = ()) -> None:
    """Raises InvalidArgumentError for a mode that is none."""
    if mode not in (*MODES, *others):
        raise InvalidArgumentError(
            None,
            reason=f"recovery {mode!r} is not one",
            expected=" or ".join((*MODES, *others)),
        )


def recover_locked(
    root: Path,
    config: StoreConfig,
    how: Dialect,
    mode: str,
    *,
    until: int | None = None,
    flushed_until: int = 0,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """As `recover`, under the caller's lock; `abort` is there afterwards where it was needed.

    `flushed_until` (ms): what was stored up to then had been on the disk, though the store's own
    checkpoint does not say so; damage before such records does not end the log.
    `progress` is told bytes of the log, each of which is gone through twice. `until`: of a store
    that was not closed cleanly cut the log there, though whole records follow. Raises
    InvalidArgumentError where no record ends there.
    """
    begun = time.monotonic()
    if mode == "broker":
        from rmq_store.brokerrecovery import recover_as_broker

        report = recover_as_broker(root, config, how)
    else:
        report = _Strict(root, config, how, until, flushed_until, progress).run()
    report.seconds = time.monotonic() - begun
    return report


def write_abort(root: Path, how: Dialect) -> None:
    """The mark of a store in use: its absence says that the last stop was clean."""
    pid = str(os.getpid()) if how.has("abort_holds_pid") else ""
    try:
        with (root / ABORT_FILE).open("w") as file:
            file.write(pid)
            file.flush()
            os.fsync(file.fileno())
        if how.has("abort_holds_pid"):
            (root / ABORT_BACKUP_FILE).touch()
        sync_folder(root)  # after a power loss it has to be there
    except OSError as error:
        raise from_os_error(root / ABORT_FILE, error, "writing") from error


def remove_abort(root: Path) -> None:
    """The mark of a store in use goes: it was closed cleanly."""
    try:
        (root / ABORT_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(root / ABORT_FILE, error, "deleting") from error


def checkpoint_size(how: Dialect) -> int:
    """Bytes of the checkpoint that a release writes."""
    return CHECKPOINT.itemsize if how.has("checkpoint_48") else CHECKPOINT_SIZE_BEFORE_48


class _Strict:
    """One strict recovery: first where the log ends, then, knowing it, everything else."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        how: Dialect,
        until: int | None = None,
        flushed_until: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._progress = progress
        self._flushed_until = flushed_until
        self.root = root
        # Of a queue with a single file that was cut, the other queues tell what its size was.
        self.config = config.with_defaults_of(queue_sizes(QueueFolders(root, config)))
        self.how = how
        self._until = until
        self.report = RecoveryReport(str(root), "strict", not (root / ABORT_FILE).exists())
        self.checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)

    def run(self) -> RecoveryReport:
        log = self._open_log()
        if not self.report.clean or why_unclean(self.root, log, self.config):
            write_abort(self.root, self.how)  # also where a clean store's tail was torn later
            self._extend_files(log)
            log = self._open_log()
            try:
                self._run_from(log, careful_start(log, self.checkpoint))
            except LookFurther:
                self._run_from(log, log.start)
        return self._reported(log)

    def _open_log(self) -> CommitLog:
        folders = commitlog_folders(self.root, self.config)
        return CommitLog(folders, file_size=self.config.mappedFileSizeCommitLog)

    def _extend_files(self, log: CommitLog) -> None:
        """Files that were cut get their size back, zeros at the end: a broker loads no others."""
        folders = QueueFolders(self.root, self.config)
        chains = [log.chain]
        listed = folders.listed()
        chains += [folders.files(queue, batch=batch).chain for queue, batch in listed.items()]
        refuse_smaller([log.chain])
        for kind in (False, True):
            mine = [queue for queue, batch in listed.items() if batch is kind]
            refuse_smaller([folders.files(queue, batch=kind).chain for queue in mine])
        for chain in chains:
            for segment in chain.segments:
                if segment.size < chain.file_size <= LARGEST_FILE:
                    path = Path(segment.path)
                    set_size(path, chain.file_size)
                    self._changed(path, "extended", chain.file_size - segment.size)
        folders.close()

    def _changed(self, path: Path, what: str, count: int) -> None:
        self.report.files.append(FileChange(str(path), what, count))

    def _run_from(self, log: CommitLog, start: int) -> None:
        first = self._first_walk(log, start)
        start, end = first.start, first.end
        geometry = index_geometry(self.root, self.config)
        index = IndexRecovery(self.root, geometry, self.checkpoint, (log.start, end))
        self.report.scanned_from, self.report.records = start, first.records
        self.report.damage = first.damage
        self._cut_log(log, end)
        self._extend_report_by(index)
        log = self._open_log()
        begin = start if index.start is None else min(start, index.start)
        self._dispatch_again(log, LogWalk(log, begin, stop=end, damage=first.damage), index)
        self._write_checkpoint(first)

    def _first_walk(self, log: CommitLog, start: int) -> LogWalk:
        """To the end of the log, or to where the caller wants it to end."""
        until = self._until
        if until is not None:
            before = log.chain.segment_at(max(log.start, until - 1))
            start = min(start, log.start if before is None else before.base)
        flushed = max(self.checkpoint.physic_msg_timestamp, self._flushed_until)
        walk = LogWalk(log, start, flushed_until=flushed).to_the_end(self._progress)
        if until is None or walk.end == until:
            return walk
        damage = [one for one in walk.damage if one[1] <= until]
        shorter = LogWalk(log, start, stop=until, damage=damage).to_the_end()
        if shorter.end != until:
            raise InvalidArgumentError(
                self.root,
                reason="the log cannot be cut there: no record ends at this offset",
                offset=until,
                actual=f"records to {walk.end}",
            )
        return shorter

    def _extend_report_by(self, index: IndexRecovery) -> None:
        for path, what, count in index.remove_doubtful():
            self._changed(path, what, count)

    def _cut_log(self, log: CommitLog, end: int) -> None:
        """Zeros behind the end, and no files behind the one it lies in."""
        for segment in reversed(log.chain.segments):
            path = Path(segment.path)
            if segment.base > end or (segment.base == end and segment.base > log.start):
                self._changed(path, "removed", remove(path))
            elif segment.base + log.chain.file_size > end:
                cleared = clear_from(path, end - segment.base)
                if cleared:
                    self._changed(path, "cut log", cleared)
        log.chain.close()

    def _dispatch_again(self, log: CommitLog, walk: LogWalk, index: IndexRecovery) -> None:
        files = OpenFiles()
        folders = QueueFolders(self.root, self.config)
        known = self.config
        writer = QueueWriter(self.root, known, files, {})
        queues = QueueRecovery(
            log, folders, writer, (log.start, walk.stop or 0), start=walk.start, damage=walk.damage
        )
        indexer: IndexWriter | None = None
        if self.config.messageIndexEnable is not False:
            indexer = last_index_writer(self.root, index.geometry, self.how)
            indexer.resume()
        batch = declared_batch_topics(self.root) | {
            queue.topic for queue, is_batch in folders.listed().items() if is_batch
        }
        unmarked = 0
        try:
            for headers in walk.pieces():
                found, topics, properties = entries_of(headers, known, batch)
                queues.take(found, walk.end)
                if indexer is not None:
                    indexer.append(headers, topics, properties)
                if self._progress is not None:
                    self._progress(int(headers.total.sum()))
                unmarked += int(headers.total.sum())
                if unmarked >= _BYTES_BETWEEN_MARKS:
                    files.sync()
                    self._mark(headers, 0 if indexer is None else indexer.full_until)
                    unmarked = 0
            queues.finish()
            self.report.entries_cut = queues.changes.cut
            self.report.entries_rebuilt = queues.changes.rebuilt
        finally:
            for path, what, count in queues.changes.files:
                self._changed(path, what, count)
            files.close()
            if indexer is not None:
                self.report.index_items_rebuilt += indexer.items_written
                self._full_until = indexer.full_until
                indexer.close()

    _full_until = 0

    def _mark(self, headers: Headers, full_until: int) -> None:
        """Put down how far this has come: a recovery that is killed and done again starts there."""
        stamp = int(headers.field("store_timestamp", np.int64)[-1])
        old = self.checkpoint
        fresh = Checkpoint(
            physic_msg_timestamp=max(old.physic_msg_timestamp, stamp),
            logics_msg_timestamp=max(old.logics_msg_timestamp, stamp),
            index_msg_timestamp=max(old.index_msg_timestamp, full_until),
            master_flushed_offset=old.master_flushed_offset,
            confirm_phy_offset=old.confirm_phy_offset,
            logics_physical_offset=int(headers.at[-1]) + headers.base,
        )
        fresh.write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.how))

    def _write_checkpoint(self, walk: LogWalk) -> None:
        old = self.checkpoint
        last = max(walk.last_record, 0)
        stamp = walk.last_timestamp
        fresh = Checkpoint(
            physic_msg_timestamp=stamp,
            logics_msg_timestamp=stamp,
            index_msg_timestamp=self._full_until or min(old.index_msg_timestamp, stamp),
            master_flushed_offset=old.master_flushed_offset,
            confirm_phy_offset=last if self.how.has("confirm_offset") else 0,
            logics_physical_offset=last,
        )
        fresh.write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.how))

    def _reported(self, log: CommitLog) -> RecoveryReport:
        log = self._open_log()
        folders = QueueFolders(self.root, self.config)
        snapshot = take_snapshot(self.root, log, folders, self.config)
        self.report.snapshot = snapshot
        self.report.log_start, self.report.log_end = snapshot.log_start, snapshot.log_end
        self.report.queues = {
            queue: (state.min_offset, state.max_offset) for queue, state in snapshot.queues.items()
        }
        folders.close()
        log.chain.close()
        return self.report


def refuse_smaller(chains: list[SegmentChain]) -> None:
    """Raises InvalidArgumentError where no file of all these has the size that is configured."""
    files = [segment for chain in chains for segment in chain.segments]
    largest = max(files, key=lambda segment: segment.size, default=None)
    if largest is not None and largest.size < chains[0].file_size:
        raise InvalidArgumentError(
            largest.path,
            reason="all files are smaller than the configuration says",
            expected=f"{chains[0].file_size} bytes",
            actual=f"{largest.size} bytes",
            advice="Leave the size out, or take the broker.conf of the broker that made them",
        )


def declared_batch_topics(root: Path) -> set[str]:
    """Topics that topics.json declares as BatchCQ; none where it cannot be read."""
    try:
        return batch_topics(read_topic_configs(root))
    except CorruptConfigError:
        return set()


def queue_sizes(folders: QueueFolders) -> StoreConfig:
    """The sizes that the queue files there are were made with: none is larger than that."""
    sizes = {False: 0, True: 0}
    for queue, batch in folders.listed().items():
        sizes[batch] = max(sizes[batch], folders.files(queue, batch=batch).chain.file_size)
    return StoreConfig(
        mappedFileSizeConsumeQueue=sizes[False] or None,
        mapperFileSizeBatchConsumeQueue=sizes[True] or None,
    )


def entries_of(
    headers: Headers, config: StoreConfig, batch: set[str], *, lmq: bool = True
) -> tuple[Dispatched, pa.Array, PropertyColumns]:
    """Queue entries of records, and what the index needs of them: topics and properties."""
    topics = stored_topics(headers)
    stored = slices(headers.window, headers.properties_at, headers.properties_length, pa.binary())
    properties = decode_property_columns(stored, with_map=False)
    found = dispatch(
        headers,
        delay_levels_ms=config.delay_levels_ms,
        batch_topics=batch,
        lmq=lmq,
        topics=topics,
        properties=properties,
    )
    return found, topics, properties
