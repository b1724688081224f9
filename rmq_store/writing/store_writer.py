"""Writes a store: records to the log, then to queues and index, as a broker does.

When written data reaches the disk is said by the broker's SYNC_FLUSH and ASYNC_FLUSH. Source:
CommitLog#GroupCommitService, #FlushRealTimeService; ConsumeQueueStore#FlushConsumeQueueService.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_store.arrow.encoding.batch_to_records import (
    batch_of_message,
    store_host_of,
    was_in_a_store,
)
from rmq_store.arrow.encoding.checks import as_error_of_one_message
from rmq_store.commitlog.log import CommitLog, LogAppender, refuse_misnamed_or_unreadable
from rmq_store.commitlog.walk import end_of_page_rest
from rmq_store.config.broker_conf import PATH_SPLITTER, StoreConfig, paths_in
from rmq_store.config.locate import (
    commitlog_folders,
    refuse_foreign_log,
    refuse_linked_queues,
    require_store,
)
from rmq_store.config.rocksdb import refuse_rocksdb_config
from rmq_store.config.topics_json import update_topics
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import (
    LOG,
    InvalidArgumentError,
    InvalidMessageError,
    ReadOnlyStoreError,
    cannot_create,
    shown_path,
)
from rmq_store.files.durable_files import cut
from rmq_store.files.journal import refuse_content, refuse_uri
from rmq_store.files.segment_chain import OpenFiles
from rmq_store.format.byte_layout import (
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    INDEX_DIR,
    Ints,
)
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Message, Record, message_id
from rmq_store.format.releases import Dialect, dialect
from rmq_store.markers import Checkpoint, StoreLock, checkpoint_size, remove_abort, write_abort
from rmq_store.recovery.recover_store import recover_under_lock
from rmq_store.recovery.report import RecoveryReport
from rmq_store.recovery.strict_recovery import refuse_abort, refuse_unclean
from rmq_store.snapshot.opening import geometry_from_files, refuse_contradicting_sizes
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot
from rmq_store.writing.append_messages import (
    AppendedMessage,
    AppendResult,
    ClockSetBack,
    QueueCounters,
    RecordAppender,
)
from rmq_store.writing.dispatcher import RETRIES, Dispatcher, Reput
from rmq_store.writing.encoded_records import EncodedRecords

_PAGE = 4096  # OS_PAGE_SIZE of MappedFile


class GroupCommit:
    """SYNC_FLUSH: the first waiting thread flushes for all threads that have appended."""

    def __init__(self, files: OpenFiles, written_to: Callable[[], int]) -> None:
        self._files = files
        self._written_to = written_to
        self._turn = threading.Condition()
        self._busy = False
        self._failed: BaseException | None = None
        self.flushed_to = written_to()

    def wait(self, offset: int) -> None:
        """Return once the log up to `offset` is on the disk. Raises AccessError if the flush fails."""
        with self._turn:
            while self._busy and self.flushed_to < offset and self._failed is None:
                self._turn.wait()
            if self.flushed_to >= offset:
                return
            if self._failed is not None:
                raise self._failed
            self._busy = True
        upto = self._written_to()
        try:
            self._files.sync()
            self.flushed_to = max(self.flushed_to, upto)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()


@dataclass(eq=False, repr=False)
class Flusher:
    """Flushes log, queues and index in the background, and maintains the checkpoint.

    Each interval it flushes files with the minimum number of unflushed pages; queues get the entries that
    wait first. At longer intervals it flushes everything (thoroughly); then the checkpoint records the
    progress at the start of that flush. `written`: the checkpoint if everything that is written now were
    on the disk.
    """

    config: StoreConfig
    log: OpenFiles
    queues: OpenFiles
    written: Callable[[], Checkpoint]
    write_entries: Callable[[], None]
    flush_index: Callable[[], None]
    write_checkpoint: Callable[[Checkpoint], None]
    failed: Callable[[BaseException], None]
    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        now = time.monotonic()
        self._log_at = self._queues_at = now
        self._log_thorough_at = now
        self._queues_thorough_at = -math.inf  # the first flush of queues is thorough

    def start(self) -> None:
        """Start the thread; further calls do nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmqstore-flush", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread. The caller flushes the rest."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        tick = min(self.config.flush_interval_log, self.config.flush_interval_queues)
        while not self._stop.wait(tick):
            try:
                self.flush_due(time.monotonic())
            except Exception as error:  # any error: otherwise flushing would stop unnoticed
                self.failed(error)
                return

    def flush_due(self, now: float) -> None:
        """Flush what is due at `now` (seconds of the monotonic clock)."""
        config = self.config
        queues_due = now - self._queues_at >= config.flush_interval_queues
        if queues_due:
            self.write_entries()
        before = self.written()
        if now - self._log_at >= config.flush_interval_log:
            self._log_at = now
            thorough = now - self._log_thorough_at >= config.flush_thorough_log
            self.log.sync(0 if thorough else config.flush_pages_log * _PAGE)
            if thorough:
                self._log_thorough_at = now
                self.note(physic_msg_timestamp=before.physic_msg_timestamp)
        if queues_due:
            self._queues_at = now
            if now - self._queues_thorough_at >= config.flush_thorough_queues:
                self._queues_thorough_at = now
                self.flush_queues_and_index(before)
            else:
                self.queues.sync(config.flush_pages_queues * _PAGE)

    def flush_queues_and_index(self, upto: Checkpoint) -> None:
        """Flush all queues and the index, then update the checkpoint."""
        self.queues.sync()
        self.flush_index()
        self.note(
            logics_msg_timestamp=upto.logics_msg_timestamp,
            logics_physical_offset=upto.logics_physical_offset,
            index_msg_timestamp=upto.index_msg_timestamp,
        )
        self.write_checkpoint(self.checkpoint)

    def flush_all(self) -> None:
        """Flush everything at once and update the checkpoint."""
        before = self.written()
        self.log.sync()
        self.note(physic_msg_timestamp=before.physic_msg_timestamp)
        self.flush_queues_and_index(before)

    def note(self, **flushed: int) -> None:
        """Raise fields of the checkpoint to where log, queues and index are on the disk."""
        old = self.checkpoint
        newer = {name: max(getattr(old, name), value) for name, value in flushed.items()}
        self.checkpoint = replace(old, **newer)


def _clear_page_rest(log: CommitLog, end: int) -> None:
    """Set what a broker left of its buffer after the last record to zero: it would follow ours too."""
    segment = log.chain.segment_at(end)
    if segment is not None and end_of_page_rest(log, end) is not None:
        for change in cut(segment.path, end - segment.base):
            change.make()


def _last_record(log: CommitLog, snapshot: StoreSnapshot) -> tuple[int, int]:
    """Log offset and store time (ms) of the last record; zeros without one."""
    last = snapshot.last_record
    stored = None if last is None else log.store_time_at(last)
    return (0, 0) if last is None or stored is None else (last, stored)


def without_log_paths(config: StoreConfig) -> StoreConfig:
    """The configuration of a new store, which keeps its log under its root, in folders of the same names.

    A configured path belongs to the store whose settings these are, whether it exists or not, and must not
    be written to. A relative one begins where that broker runs.
    """
    names = dict.fromkeys(Path(path).name for path in paths_in(config.storePathCommitLog))
    return replace(
        config,
        storePathCommitLog=PATH_SPLITTER.join(names) or None,
        readOnlyCommitLogStorePaths=None,
        enableDLegerCommitLog=None,
        storePathDLedgerCommitLog=None,
        storePathRootDir=None,
    )


class StoreWriter:
    """A store open for writing; from `MessageStore.create` or `MessageStore.append_to`.

    When `append` returns, the messages are in the log. Queues and index receive them in larger
    pieces, at the latest after flushIntervalConsumeQueue (1 s) or on `dispatch`, `flush` or `close`; readers
    find waiting messages in the log. `close` leaves the same files as a clean stop of a broker. The
    broker's `lock` file allows one writer at a time. As a context manager it closes cleanly, even after
    an exception. If writing itself failed, `abort` remains, so that the next broker recovers the store.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        lock: StoreLock,
        traits: Dialect,
        broker_name: str | None,
        snapshot: StoreSnapshot,
        recovered: RecoveryReport | None = None,
        last: tuple[int, int] = (0, 0),
    ) -> None:
        """Use `create` or `append_to`. `last`: place and store time (ms) of the last record."""
        self.path, self.config, self.dialect = root, config, traits
        self.broker_name = broker_name or config.brokerName or root.absolute().name
        self.recovered, self._lock = recovered, lock
        self._failed = False
        self._failure: BaseException | None = None  # the first, which a thread may have met
        self._closed = False
        self._log_start = snapshot.log_start
        ends = {queue: state.max_offset for queue, state in snapshot.queues.items()}
        self._offsets, self._ends_before = QueueCounters(ends), ends
        self._declared: dict[str, dict[str, Any]] = {}
        self._log_files = OpenFiles(warm=bool(config.warmMapedFileEnable))
        self._queue_files = OpenFiles()
        self._log = LogAppender(
            self._log_files,
            commitlog_folders(root, config),
            config.commitlog_file_size,
            snapshot.log_end,
        )
        self._dispatcher = Dispatcher(
            root, config, traits, snapshot, self._queue_files, self._listed
        )
        self._records = RecordAppender(
            self._log, self._offsets, config, traits, *last, self._dispatcher
        )
        self._appending = threading.RLock()  # the broker's putMessageLock
        self._group_commit = (
            GroupCommit(self._log_files, lambda: self._log.end)
            if config.flushes_each_append
            else None
        )
        self._flusher = Flusher(
            config,
            self._log_files,
            self._queue_files,
            self._written,
            self._write_entries,
            self._dispatcher.flush_index,
            self._write_checkpoint,
            self._fail,
            Checkpoint.read_or_zero(root / CHECKPOINT_FILE),
        )
        self._reput: Reput | None = None
        write_abort(root, traits)

    # --- opening ------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        config: Any = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
    ) -> StoreWriter:
        """Create a store in a new or empty folder; `release`: the broker release to write as.

        `config`: the broker's names (StoreConfig, a mapping, or a broker.conf); the broker's defaults apply.
        Raises TargetExistsError if the folder has content, AccessError, StoreLockedError.
        """
        settings, traits, root = StoreConfig.of(config), dialect(release), Path(path)
        refuse_uri(os.fspath(path))
        # Raises for an unknown flushDiskType, before a file is made.
        _ = settings.flushes_each_append
        try:
            refuse_content(root, "Use a new folder, or append_to for an existing store")
            for name in (CONSUMEQUEUE_DIR, INDEX_DIR, CONFIG_DIR):
                (root / name).mkdir(parents=True, exist_ok=True)
            settings = without_log_paths(settings)
            for folder in paths_in(settings.storePathCommitLog) or [COMMITLOG_DIR]:
                (root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_create(root, "the store's folders", error) from error
        with ExitStack() as on_failure:
            lock = on_failure.enter_context(StoreLock(root))
            writer = cls(root, settings, lock, traits, broker_name, StoreSnapshot(0, 0))
            on_failure.pop_all()
        return writer

    @classmethod
    def append_to(
        cls,
        path: str | os.PathLike[str],
        config: Any = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
        recovery: str = "strict",
        until: int | None = None,
    ) -> StoreWriter:
        """Open a store to append after its last message; recovers one that was not closed cleanly.

        `recovery`: "strict" (see `rmq_store.recovery.recover_store`), or "refuse",
        which raises UncleanStoreError for a store with `abort`, an unreadable tail or records that
        are in no queue. `until`: a strict recovery truncates the log at that offset, even if whole
        records follow; a store that was closed cleanly is never truncated. Sizes that are not in
        `config` are those of the existing files. Raises InvalidArgumentError if `config`
        contradicts the files; StoreLockedError; ForeignLogError if the log belongs to another
        store; UnrecoverableStoreError before a strict recovery without `until` cuts intact records
        behind a damaged one, or what a store that was closed lists after its log's end.
        """
        if recovery not in ("strict", "refuse"):
            raise InvalidArgumentError(
                reason=f"unknown way to recover {recovery!r}", expected="strict or refuse"
            )
        settings, traits = StoreConfig.of(config), dialect(release)
        root = require_store(path, settings)
        refuse_rocksdb_config(root)
        refuse_foreign_log(root, settings)
        refuse_linked_queues(root)
        with ExitStack() as on_failure:
            lock = on_failure.enter_context(StoreLock(root))
            report = None
            if recovery == "refuse":
                refuse_abort(root)
            else:
                report = recover_under_lock(root, settings, traits, until=until, cuts_intact=False)
                if report.entries_after_log:
                    LOG.warning("%s: %s", shown_path(str(root)), report.line_of_lost_end())
            folders = QueueFolders(root, settings)
            log = CommitLog(
                commitlog_folders(root, settings), file_size=settings.mappedFileSizeCommitLog
            )
            refuse_misnamed_or_unreadable(log)
            snapshot = take_snapshot(log, folders)
            refuse_unclean(log, folders, snapshot)
            all_settings = settings.with_defaults_of(
                geometry_from_files(log, folders, damaged_index=False)
            )
            refuse_contradicting_sizes(all_settings, log, folders, snapshot)
            _clear_page_rest(log, snapshot.log_end)
            last = _last_record(log, snapshot)
            writer = cls(root, all_settings, lock, traits, broker_name, snapshot, report, last)
            on_failure.pop_all()
        return writer

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(self.path / CHECKPOINT_FILE, used=checkpoint_size(self.dialect))

    def _written(self) -> Checkpoint:
        with self._appending:
            return Checkpoint(
                physic_msg_timestamp=self._records.last_timestamp,
                logics_msg_timestamp=self._dispatcher.last_timestamp,
                index_msg_timestamp=self._dispatcher.newest_time_of_full_index_files,
                logics_physical_offset=self._dispatcher.last_record,
            )

    def _fail(self, error: BaseException) -> None:
        """Stop all further writing, because the content of the disk is no longer known."""
        self._failed, self._failure = True, self._failure or error

    def follow_in_background(self, *, retries: int = RETRIES, retry_seconds: float = 1.0) -> None:
        """Let a thread that follows the log write queue and index entries from now on.

        Appending then only writes the log. The thread retries failed entries `retries` times,
        `retry_seconds` apart; after that the store accepts no more messages, `dispatch` raises, and `close`
        leaves `abort`, so that whoever opens the store next lists the messages.
        """
        self._check_open()
        if self._reput is not None:
            return
        self.dispatch()
        self._records.lists = False
        self._reput = Reput(
            self._log.end,
            self._written_log,
            self._readable_range,
            self._dispatcher.write_entries,
            self._fail,
            retries=retries,
            retry_seconds=retry_seconds,
        )
        self._reput.start()

    def _readable_range(self) -> tuple[int, int]:
        """The log range that may be dispatched: with SYNC_FLUSH only flushed records, as in a broker."""
        end = self._log.end if self._group_commit is None else self._group_commit.flushed_to
        return self._log_start, end

    # --- current state ------------------------------------------------------------------------------

    def log_range(self) -> tuple[int, int]:
        """Log offsets: the start of the first file and the end of the last record."""
        return self._log_start, self._log.end

    def queues(self, topic: str | None = None) -> list[QueueId]:
        """All queues, or those of one topic, sorted."""
        return sorted(queue for queue in list(self._offsets) if topic in (None, queue.topic))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queueOffset of the next message."""
        return self._offsets.next_offset(QueueId(topic, queue_id))

    def declare_topic(self, topic: str, **settings: Any) -> None:
        """Set a topic's settings in topics.json, under the broker's names.

        For example readQueueNums, perm, order, attributes={"queue.type": "BatchCQ"}."""
        self._declared[topic] = settings
        if (settings.get("attributes") or {}).get("queue.type") == "BatchCQ":
            if not self.dialect.has("batch_queues"):
                reason = f"release {self.dialect} has no queue.type BatchCQ"
                raise InvalidArgumentError(self.path, reason=reason)
            self._dispatcher.batch_topics.add(topic)
            # A recovery, which may come before the first batch queue, must know it too.
            update_topics(self.path, self.dialect, [], {topic: settings}, list(self._offsets))

    # --- appending ----------------------------------------------------------------------------------

    def append(self, message: Message | Record | Mapping[str, Any]) -> AppendedMessage:
        """Append one message: a Message, a Record as stored, or a mapping of column names.

        Same as `append_batch` with one row, which costs much less for each of many. A Message keeps
        raw_body, raw_properties, sysFlag, hosts and born time; it gets a new store time and new offsets.
        It and a Record are copies, as with `copied` in `append_batch`.
        """
        batch = batch_of_message(message, self.dialect)
        try:
            done = self.append_batch(batch, copied=was_in_a_store(message))
        except InvalidMessageError as error:
            raise as_error_of_one_message(error) from error.__cause__
        queue_offset, place, size, stamp = (int(column[0]) for column in done.columns())
        return AppendedMessage(
            queue_offset, place, size, stamp, message_id(store_host_of(batch), place)
        )

    def _wait_for_disk(self, log_end: int, timestamp: int) -> None:
        """With SYNC_FLUSH, return once the appended records are on the disk."""
        self._flusher.start()
        if self._group_commit is not None:
            with self._failing():
                self._group_commit.wait(log_end)
            self._flusher.note(physic_msg_timestamp=timestamp)
        if self._reput is not None:
            self._reput.wake()

    def append_batch(
        self,
        batch: pa.RecordBatch,
        *,
        keep_together: bool = False,
        copied: bool = False,
        halves: Ints | None = None,
    ) -> AppendResult:
        """Append all messages of an Arrow batch in its order, or none if one is invalid.

        Required columns are `topic`, `queueId` and `body` (bytes to be stored). Optional columns
        are `properties` (map), or `tags`, `keys`, `uniqKey`, or `rawProperties` (as stored; must agree);
        `flag`, `sysFlag`, `bornTimestamp`, `bornHost`, `storeTimestamp` (0: now), `storeHost`,
        `reconsumeTimes`, `preparedTransactionOffset`. The store assigns the queueOffset.
        `keep_together`: all in one file of the log, as the messages of a MessageBatch are.
        `copied`: these are records of a store. The rules for new messages do not hold for them: they
        may have any topic that can name a folder, and any size if `config` has no maxMessageSize.
        `halves`: for each row the number of an earlier row, its half message, whose place becomes its
        preparedTransactionOffset; -1: none.

        Raises InvalidMessageError, with the row, before a byte is written: for a body or properties
        that are too large, or a topic that the broker (of this release) would refuse. Raises
        AccessError for a full disk or another I/O error; the store then needs a recovery.
        """
        return self._appended(
            batch.num_rows, lambda: self._records.append_rows(batch, keep_together, copied, halves)
        )

    def append_records(self, records: EncodedRecords) -> AppendResult:
        """Append records that `encoded_records.encode` has made of messages, maybe elsewhere.

        Leaves the same bytes as `append_batch` with those messages. Raises InvalidArgumentError,
        before a byte is written, for bytes that are not such records, and for a store with
        enabledAppendPropCRC; InvalidMessageError for a record larger than a file of the log.
        """
        return self._appended(len(records), lambda: self._records.append_encoded(records))

    def _appended(self, count: int, append: Callable[[], AppendResult]) -> AppendResult:
        with self._appending:
            self._check_open()
            if not count:
                return AppendResult.none()
            try:
                done = append()
            except BaseException as error:
                if self._records.broken:  # the end of the log is unknown
                    self._fail(error)
                raise
        end = int(done.commit_log_offset[-1] + done.store_size[-1])
        self._wait_for_disk(end, int(done.store_timestamp.max()))
        return done

    def _check_open(self) -> None:
        if self._closed or self._failed:
            reason, advice = "the store was closed", "Open it again with append_to"
            if self._failed:
                why = f": {self._failure}" if self._failure else ""
                reason = f"an earlier write failed{why}; the store needs a recovery"
                advice = "Close it and open it again with append_to, which recovers it"
            raise ReadOnlyStoreError(self.path, reason=reason, advice=advice)

    def dispatch(self) -> None:
        """Write queue and index entries of all appended records; `close` does it too.

        Raises ReadOnlyStoreError if the store is closed, or the thread of `follow_in_background` could not.
        """
        if self._reput is not None:
            self._reput.catch_up()
        self._check_open()
        self._write_entries()

    def _write_entries(self) -> None:
        """Write the entries that wait; none do if a thread follows the log."""
        with self._appending, self._failing():
            if not self._failed:
                self._dispatcher.write_pieces()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Stop all further writing after an error in the block."""
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _listed(self, ends: Mapping[QueueId, int]) -> None:
        """Update counters after queues were written up to these ends."""
        with self._appending:  # appending threads use the same counters
            self._offsets.raise_offsets_to(ends)

    def flush(self) -> None:
        """Dispatch all appended records, flush everything to the disk, and update the checkpoint."""
        self._check_open()
        self.dispatch()
        with self._failing():
            self._flusher.flush_all()

    # --- closing ------------------------------------------------------------------------------------

    def sign(self, content: bytes) -> None:
        """Write 4 bytes to the lock file, which stay until another writer or a broker opens the store."""
        self._lock.sign(content)

    def abandon(self) -> None:
        """Close without finishing: `abort` stays, and the store needs a recovery."""
        self._failed = True
        self.close()

    def _written_log(self) -> CommitLog:
        """The files of the log as they are now."""
        size = self.config.commitlog_file_size
        return CommitLog(commitlog_folders(self.path, self.config), file_size=size)

    @contextmanager
    def watching_times(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Warn at the end if given store times go back within a queue. `path`: where the store will be."""
        stops = {queue: self._offsets.next_offset(queue) for queue in list(self._offsets)}
        files, log = QueueFolders(self.path, self.config), self._written_log()

        def last_of(queue: QueueId) -> int:
            stop = stops.get(queue, 0)
            last = files.files_in_folder(queue).unit_or_none(stop - 1) if stop else None
            return log.store_time_at(*last, queue) or 0 if last else 0

        self._records.times_back = back = ClockSetBack(last_of)
        try:
            yield
        finally:
            files.close()
            log.chain.close()
        if said := str(back):
            LOG.warning("%s: %s", shown_path(os.fspath(path)), said)

    def close(self, *, sync: bool = True) -> None:
        """Flush all files, write checkpoint and topics.json, delete `abort`, release the lock.

        `sync`: False leaves it to the operating system when the files reach the disk.
        """
        if self._closed:
            return
        try:
            if self._reput is not None:
                self._reput.stop()
            elif not self._failed:
                self.dispatch()
            self._closed = True
            self._flusher.stop()
            self._dispatcher.close()
            self._log_files.close(sync=sync and not self._failed)
            self._queue_files.close(sync=sync and not self._failed)
            if not self._failed:
                self._finish()
        finally:
            self._closed = True
            self._lock.release()

    def _finish(self) -> None:
        queues, ends = list(self._offsets), self._ends_before
        written = [queue for queue in queues if self._offsets.next_offset(queue) != ends.get(queue)]
        if self.recovered is not None and not self.recovered.clean:
            # The writer that did not close has declared nothing.
            written = queues
        update_topics(self.path, self.dialect, written, self._declared, queues)
        before = Checkpoint.read_or_zero(self.path / CHECKPOINT_FILE)
        last = self._records.last_record
        checkpoint = Checkpoint(
            physic_msg_timestamp=self._records.last_timestamp,
            logics_msg_timestamp=self._records.last_timestamp,
            index_msg_timestamp=self._dispatcher.newest_time_of_full_index_files
            or before.index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=last if self.dialect.has("confirm_offset") else 0,
            logics_physical_offset=last,
        )
        self._write_checkpoint(checkpoint)
        remove_abort(self.path)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StoreWriter({str(self.path)!r}, release={str(self.dialect)!r})"


Refusal = InvalidArgumentError | InvalidMessageError


class AcceptedRows(NamedTuple):
    """The numbers of the rows that were appended, their places, and each refused row with the reason."""

    rows: Ints
    places: AppendResult
    refused: list[tuple[int, Refusal]]


def append_valid_rows(store: StoreWriter, batch: pa.RecordBatch) -> AcceptedRows:
    """Append the rows of a store that `store` accepts, in order."""
    parts: list[AppendResult] = []
    refused = list(
        refused_rows(batch, lambda part: parts.append(store.append_batch(part, copied=True)))
    )
    rows = np.setdiff1d(np.arange(batch.num_rows), [row for row, _ in refused])
    return AcceptedRows(rows, AppendResult.concat(parts), refused)


def refused_rows(
    batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, Refusal]]:
    """Pass all rows to `take`, in order. Yields each refused row with the reason.

    `take` refuses a whole batch if one message is invalid, before it writes a byte. So the batch is
    halved until the message is alone.
    """
    if batch.num_rows == 0:
        return
    try:
        take(batch)
    except (InvalidArgumentError, InvalidMessageError) as error:
        if batch.num_rows == 1:
            yield 0, error
            return
        middle = batch.num_rows // 2
        yield from refused_rows(batch.slice(0, middle), take)
        for row, why in refused_rows(batch.slice(middle), take):
            yield middle + row, why
