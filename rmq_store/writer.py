"""Writing a store: records to the log, and from there to queue and index, as a broker does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store import single
from rmq_store.abortfile import remove_abort, write_abort
from rmq_store.checkpoint import Checkpoint, checkpoint_size
from rmq_store.commitlog import CommitLog
from rmq_store.config import PATH_SPLITTER, StoreConfig, batch_topics, read_topic_configs
from rmq_store.consumequeue import QueueId
from rmq_store.dialects import Dialect, dialect
from rmq_store.dispatch import Dispatched, entries_of
from rmq_store.encoding import LOOPBACK, Prepared, assemble, prepare
from rmq_store.errors import (
    InvalidArgumentError,
    InvalidMessageError,
    NotAStoreError,
    ReadOnlyStoreError,
    from_os_error,
)
from rmq_store.files import Bytes
from rmq_store.flush import Flusher, GroupCommit, Progress
from rmq_store.geometry import geometry_found, refuse_contradiction
from rmq_store.headers import Headers, Ints
from rmq_store.indexfile import Geometry, Header, IndexFile, list_index_files
from rmq_store.indexwriter import IndexWriter
from rmq_store.layout import (
    BLANK_SIZE,
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    INDEX_DIR,
    SysFlag,
)
from rmq_store.locate import commitlog_folders, require_store
from rmq_store.lock import StoreLock
from rmq_store.logappender import LogAppender
from rmq_store.message import Message, Record, encode_record
from rmq_store.places import Places, with_places
from rmq_store.queuecounters import QueueCounters, message_counts
from rmq_store.queuewriter import QueueWriter
from rmq_store.recovery import check_mode, recover_locked
from rmq_store.recoveryreport import RecoveryReport
from rmq_store.reput import RETRIES, Reput
from rmq_store.segmentwriter import OpenFiles
from rmq_store.snapshot import QueueFolders, StoreSnapshot, take_snapshot
from rmq_store.strings import decode_utf8
from rmq_store.topicconfig import update_topics
from rmq_store.unclean import refuse_abort, refuse_unclean

_BYTES_UNDISPATCHED = 1 << 20  # appended before queue and index entries are written
_RUNS_AT_A_TIME = 1024  # appends whose queue and index entries are written together


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where messages went; arrays of n for a batch, in its order. Timestamps in ms."""

    queue_offset: Ints
    commit_log_offset: Ints
    store_size: Ints
    store_timestamp: Ints

    def __len__(self) -> int:
        return len(self.commit_log_offset)


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one message went."""

    queue_offset: int
    commit_log_offset: int
    store_size: int
    store_timestamp: int
    msg_id: str


class StoreWriter:
    """A store open for writing; from `MessageStore.create` or `MessageStore.append_to`.

    Messages are in the log when `append` returns. Queue and index get them in larger pieces, and by
    `dispatch`, `flush` or `close` at the latest; readers find those that wait in the log. `close`
    leaves what a broker leaves after a clean stop. One writer at a time, held off by the broker's
    `lock` file. A context manager that closes cleanly, also after an exception, unless writing
    itself failed: then `abort` stays and tells the broker to recover.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        lock: StoreLock,
        how: Dialect,
        broker_name: str,
        snapshot: StoreSnapshot,
    ) -> None:
        """Use `create` or `append_to`."""
        self.path = root
        self.config = config
        self.dialect = how
        self.broker_name = broker_name
        self._lock = lock
        self._failed = False
        self._closed = False
        self._log_start = snapshot.log_start
        self._last_record = 0
        self._last_timestamp = 0
        self._offsets = QueueCounters(
            {queue: state.max_offset for queue, state in snapshot.queues.items()}
        )
        self._min_offsets = {queue: state.min_offset for queue, state in snapshot.queues.items()}
        self._declared: dict[str, dict[str, Any]] = {}
        self._pending: list[tuple[Bytes, Ints]] = []
        self._pending_bytes = 0
        self._batch_topics = batch_topics(read_topic_configs(root)) | {
            queue.topic for queue, state in snapshot.queues.items() if state.batch
        }
        self._log_files = OpenFiles(warm=bool(config.warmMapedFileEnable))
        self._queue_files = OpenFiles()
        self._log = LogAppender(
            self._log_files,
            commitlog_folders(root, config),
            config.commitlog_file_size,
            snapshot.log_end,
        )
        ends = {queue: state.file_stop for queue, state in snapshot.queues.items()}
        self._queues = QueueWriter(root, config, self._queue_files, ends)
        self._index = self._open_index()
        self.recovered: RecoveryReport | None = None
        self._appending = threading.RLock()  # the broker's putMessageLock
        self._arrived = threading.Condition()
        self._listed_to = {queue: state.max_offset for queue, state in snapshot.queues.items()}
        self._waiting = 0
        self._dispatched_record = self._dispatched_timestamp = 0
        self._group_commit = (
            GroupCommit(self._log_files, lambda: self._log.end)
            if config.flushes_each_append
            else None
        )
        self._flusher = self._make_flusher()
        self._reput: Reput | None = None
        write_abort(root, how)

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
        """Make a store in a folder that is not there or empty; `release`: of the broker to write as.

        `config`: the broker's names (StoreConfig, a mapping, or a broker.conf); defaults are the
        broker's. Raises NotAStoreError where the folder has content, AccessError, StoreLockedError.
        """
        known, how, root = StoreConfig.of(config), dialect(release), Path(path)
        _ = known.flushes_each_append  # a kind that is none is refused before a file is made
        try:
            if root.exists() and (not root.is_dir() or any(root.iterdir())):
                raise NotAStoreError(
                    root,
                    reason="there is something here already",
                    advice="Name a folder that is not there yet, or use append_to for a store",
                )
            for name in (CONSUMEQUEUE_DIR, INDEX_DIR, CONFIG_DIR):
                (root / name).mkdir(parents=True, exist_ok=True)
            for folder in _new_commitlog_folders(root, known):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(root, error, "making the store's folders") from error
        name = broker_name or known.brokerName or root.absolute().name
        lock = StoreLock(root)
        try:
            return cls(root, known, lock, how, name, StoreSnapshot(0, 0))
        except BaseException:
            lock.release()
            raise

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
        """Open a store to go on behind its last message; one that was not closed cleanly is recovered.

        `recovery`: "strict" or "broker" (see `rmq_store.recovery`), or "refuse", which raises
        UncleanStoreError for a store with `abort`, an unreadable tail or records that are in no
        queue yet. `until`: a strict recovery cuts the log at that offset, though whole records
        follow; a store that was closed cleanly is never cut. Sizes that `config` does not say are
        those of the files there are. Raises
        InvalidArgumentError where `config` contradicts the files; StoreLockedError.
        """
        check_mode(recovery, others=("refuse",))
        said, how = StoreConfig.of(config), dialect(release)
        root = require_store(path, said)
        lock = StoreLock(root)
        try:
            report = None
            if recovery == "refuse":
                refuse_abort(root)
            else:
                report = recover_locked(root, said, how, recovery, until=until)
            folders = QueueFolders(root, said)
            log = CommitLog(commitlog_folders(root, said), file_size=said.mappedFileSizeCommitLog)
            if recovery == "broker" and report is not None and report.snapshot is not None:
                snapshot = report.snapshot
            else:
                snapshot = take_snapshot(root, log, folders, said)
                refuse_unclean(root, log, folders, snapshot)
            known = said.with_defaults_of(geometry_found(root, log, folders, said))
            refuse_contradiction(root, known, log, folders, snapshot)
            name = broker_name or known.brokerName or root.absolute().name
            writer = cls(root, known, lock, how, name, snapshot)
            writer.recovered = report
            writer._remember_last(log)
        except BaseException:
            lock.release()
            raise
        return writer

    def _remember_last(self, log: CommitLog) -> None:
        """Time and place of the last record, to go on from."""
        last = log.last_record_file()
        if last is None:
            return
        for segment, window, at in log.runs_from(last.base):
            headers = Headers(window, at[-1:], segment.base)
            self._last_record = int(at[-1]) + segment.base
            self._last_timestamp = int(headers.field("store_timestamp", np.int64)[0])

    def _make_flusher(self) -> Flusher:
        used = checkpoint_size(self.dialect)

        def write(checkpoint: Checkpoint) -> None:
            checkpoint.write(self.path / CHECKPOINT_FILE, used=used)

        return Flusher(
            self.config,
            self._log_files,
            self._queue_files,
            self._progress,
            lambda: None if self._index is None else self._index.flush(),
            write,
            self._fail,
            Checkpoint.read_or_zero(self.path / CHECKPOINT_FILE),
        )

    def _progress(self) -> Progress:
        with self._appending:
            return Progress(
                self._log.end,
                self._last_timestamp,
                self._dispatched_timestamp,
                self._dispatched_record,
                0 if self._index is None else self._index.full_until,
            )

    def _fail(self, error: BaseException) -> None:
        """From now on nothing is written any more: what the disk has is no longer known."""
        self._failed = True
        with self._arrived:
            self._arrived.notify_all()

    def follow_in_background(self, *, retries: int = RETRIES, retry_seconds: float = 1.0) -> None:
        """From now on queue and index entries are written by a thread that follows the log.

        Appending is then no more than writing the log. Entries that cannot be written are tried
        again `retries` times, `retry_seconds` apart; after that the store takes no more messages.
        """
        self._check_open()
        if self._reput is not None:
            return
        self.dispatch()
        self._reput = Reput(
            self._log.end,
            lambda: CommitLog(
                commitlog_folders(self.path, self.config),
                file_size=self.config.commitlog_file_size,
            ),
            self._readable_range,
            self._dispatch,
            self._fail,
            retries=retries,
            retry_seconds=retry_seconds,
        )
        self._reput.start()

    def _readable_range(self) -> tuple[int, int]:
        """What may be dispatched: with SYNC_FLUSH no more than the disk has, as the broker has it."""
        end = self._log.end if self._group_commit is None else self._group_commit.flushed_to
        return self._log_start, end

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log whose queue and index entries are not written yet (dispatchBehindBytes)."""
        if self._reput is not None:
            return max(0, self._log.end - self._reput.position)
        return self._pending_bytes

    def wait_for_arrival(
        self, topic: str, queue_id: int, offset: int, timeout: float | None = None
    ) -> bool:
        """Wait until a queue has a message at `offset`, at most `timeout` seconds; whether it has.

        What the broker's long polling does (PullRequestHoldService). Raises ReadOnlyStoreError where
        the store is closed or fails meanwhile.
        """
        queue = QueueId(topic, queue_id)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._waiting += 1
        try:
            if self._reput is None:
                self.dispatch()
            with self._arrived:
                while self._listed_to.get(queue, 0) <= offset:
                    self._check_open()
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._arrived.wait(left)
            return True
        finally:
            self._waiting -= 1

    def _open_index(self) -> IndexWriter | None:
        if self.config.messageIndexEnable is False:
            return None
        geometry = Geometry(self.config.index_slots, self.config.index_items)
        files = list_index_files(self.path / INDEX_DIR)
        header: Header | None = None
        if files:
            header = IndexFile(files[-1], slots=geometry.slots, items=geometry.items).header
        last = Path(files[-1].path) if files else None
        return IndexWriter(self.path, geometry, self.dialect, last, header)

    # --- what is there ------------------------------------------------------------------------------

    def log_range(self) -> tuple[int, int]:
        """CommitLog offsets: where the first file begins and where the last record ends."""
        return self._log_start, self._log.end

    def queues(self, topic: str | None = None) -> list[QueueId]:
        """All queues, or those of one topic, sorted."""
        return sorted(queue for queue in list(self._offsets) if topic in (None, queue.topic))

    def topics(self) -> list[str]:
        """All topics that have a queue, sorted."""
        return sorted({queue.topic for queue in list(self._offsets)})

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset; 0 of a queue that is not there yet."""
        return self._min_offsets.get(QueueId(topic, queue_id), 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets."""
        return self._offsets.next_of(QueueId(topic, queue_id))

    def declare_topic(self, topic: str, **settings: Any) -> None:
        """Settings of a topic for topics.json, by the broker's names: readQueueNums, perm, order,
        attributes={"queue.type": "BatchCQ"}, ..."""
        self._declared[topic] = settings
        if (settings.get("attributes") or {}).get("queue.type") == "BatchCQ":
            if not self.dialect.has("batch_queues"):
                raise InvalidArgumentError(
                    self.path, reason=f"release {self.dialect} has no queue.type BatchCQ"
                )
            self._batch_topics.add(topic)

    # --- appending ----------------------------------------------------------------------------------

    def append(self, message: Message | Record | Mapping[str, Any]) -> Appended:
        """Append one message: a Message, a Record as stored, or a mapping of column names.

        As `append_batch` with one row, by the readable encoder. A Message goes as it was stored:
        raw_body, sysFlag, hosts and born time are kept; its store time is not, nor are its offsets.
        """
        record = single.to_record(message, self.dialect, self.config)
        with self._appending:
            self._check_open()
            record = self._append_record(record)
        self._wait_for_disk(record.physical_offset + record.total_size, record.store_timestamp)
        return Appended(
            record.queue_offset,
            record.physical_offset,
            record.total_size,
            record.store_timestamp,
            record.offset_msg_id(),
        )

    def _append_record(self, record: Record) -> Record:
        queue = QueueId(decode_utf8(record.topic), record.queue_id)
        count = single.messages_in(record)
        listed = record.transaction in (0, SysFlag.TRANSACTION_COMMIT)
        places = self._places()
        if places.concern(record.properties, record.sys_flag):
            stored = places.set(record.properties, record.sys_flag, queue, listed)
            single.check_properties(stored)
            record = replace(record, properties=stored)
        record = replace(
            record,
            queue_offset=self._offsets.next_of(queue) if listed else 0,
            store_timestamp=record.store_timestamp or self._now(),
        )
        try:
            record = self._write_record(record)
        except BaseException as error:
            self._fail(error)
            raise
        if listed:
            self._offsets.update({queue: record.queue_offset + count})
        self._offsets.update(places.light)
        self._last_timestamp = max(self._last_timestamp, record.store_timestamp)
        return record

    def _places(self) -> Places:
        return Places(self.config, self._offsets.next_of)

    def _wait_for_disk(self, log_end: int, timestamp: int) -> None:
        """With SYNC_FLUSH return once the disk has what was appended."""
        self._flusher.start()
        if self._group_commit is not None:
            try:
                self._group_commit.wait(log_end)
            except BaseException as error:
                self._fail(error)
                raise
            self._flusher.note_log_flushed(timestamp)
        if self._reput is not None:
            self._reput.wake()
        elif self._waiting:
            self.dispatch()

    def _write_record(self, record: Record) -> Record:
        """Write one record at the end of the log; returns it with its place."""
        if not self._log.fitting(np.array([record.total_size])):
            self._end_log_file()
        record = replace(record, physical_offset=self._log.end)
        raw = encode_record(record, with_record_crc=self._with_record_crc)
        self._write_run(np.frombuffer(raw, dtype=np.uint8), np.array([self._log.end]))
        return record

    @property
    def _with_record_crc(self) -> bool:
        return bool(self.config.enabledAppendPropCRC and self.dialect.has("record_crc"))

    def append_batch(self, batch: pa.RecordBatch, *, keep_together: bool = False) -> AppendResult:
        """Append the messages of an Arrow batch in its order; all of them, or none where one cannot be.

        Columns `topic`, `queueId` and `body` (bytes as they are to be stored), and as wanted
        `properties` (map), or `tags`, `keys`, `uniqKey`, or `rawProperties` (bytes as stored); `flag`,
        `sysFlag`, `bornTimestamp`, `bornHost`, `storeTimestamp` (0: now), `storeHost`,
        `reconsumeTimes`, `preparedTransactionOffset`. The queue offset is assigned by the store.
        `keep_together`: all in one file of the log, as the messages of a MessageBatch are.

        Raises InvalidMessageError, naming the row, before a byte is written: a body or properties too
        large, a topic that the broker (of this release) would refuse. AccessError where the disk is
        full or the like; the store then needs a recovery.
        """
        if batch.num_rows == 0:
            self._check_open()
            nothing = np.zeros(0, dtype=np.int64)
            return AppendResult(nothing, nothing, nothing, nothing)
        with self._appending:
            self._check_open()
            done = self._append_rows(batch, keep_together)
        end = int(done.commit_log_offset[-1] + done.store_size[-1])
        self._wait_for_disk(end, int(done.store_timestamp.max()))
        return done

    def _append_rows(self, batch: pa.RecordBatch, together: bool) -> AppendResult:
        light = self._places()
        prepared = prepare(with_places(batch, light), self.config, self.dialect, LOOPBACK)
        if together and int(prepared.total.sum()) + BLANK_SIZE > self.config.commitlog_file_size:
            raise InvalidMessageError(
                None, reason="the batch does not fit into one file of the log"
            )
        counts = message_counts(prepared)
        queue_offset = self._offsets.assign(prepared, counts)
        stamps = self._stamps(prepared)
        try:
            places = self._write_records(prepared, queue_offset, stamps, together)
        except BaseException as error:
            self._fail(error)
            raise
        self._offsets.update(light.light)
        self._last_timestamp = max(self._last_timestamp, int(stamps.max()))
        return AppendResult(queue_offset, places, prepared.total, stamps)

    def _check_open(self) -> None:
        if self._closed or self._failed:
            reason, advice = "the store was closed", "Open it anew with append_to"
            if self._failed:
                reason = "writing failed before; the store needs a recovery"
                advice = "Close it and open it anew with append_to, which recovers it"
            raise ReadOnlyStoreError(self.path, reason=reason, advice=advice)

    def _stamps(self, prepared: Prepared) -> Ints:
        """Store times: given, else now, never before the one before."""
        given: Ints = prepared.numbers["storeTimestamp"]
        return np.where(given > 0, given, self._now())

    def _now(self) -> int:
        return max(time.time_ns() // 1_000_000, self._last_timestamp)

    def _write_records(
        self, prepared: Prepared, queue_offset: Ints, stamps: Ints, together: bool
    ) -> Ints:
        places = np.empty(len(prepared), dtype=np.int64)
        at = 0
        while at < len(prepared):
            count = self._log.fitting(prepared.total[at:], together=together)
            if not count:
                self._end_log_file()
                continue
            rows = slice(at, at + count)
            sizes = prepared.total[rows]
            places[rows] = self._log.end + np.cumsum(sizes) - sizes
            data = assemble(prepared, rows, queue_offset[rows], places[rows], stamps[rows])
            self._write_run(data, places[rows])
            at += count
        return places

    def _write_run(self, data: Bytes, places: Ints) -> None:
        """Write records that stand at `places` at the end of the log, and take them down for dispatch.

        Queue and index are written in larger pieces: what is not there yet when a writer dies is
        found again from the log, by a broker and by a reader alike.
        """
        self._log.append(data)
        self._last_record = int(places[-1])
        if self._reput is not None:
            return
        self._pending.append((data, places))
        self._pending_bytes += len(data)
        if self._pending_bytes >= _BYTES_UNDISPATCHED or len(self._pending) >= _RUNS_AT_A_TIME:
            self.dispatch()

    def _end_log_file(self) -> None:
        self._dispatch_pending()  # what is pending must be one piece
        self._log.end_file()

    def dispatch(self) -> None:
        """Write queue and index entries of all that was appended; `close` does it too."""
        if self._reput is not None:
            self._reput.catch_up()
            return
        with self._appending:
            self._dispatch_pending()

    def _dispatch_pending(self) -> None:
        if not self._pending:
            return
        runs, self._pending, self._pending_bytes = self._pending, [], 0
        base = int(runs[0][1][0])
        data = runs[0][0] if len(runs) == 1 else np.concatenate([run for run, _ in runs])
        places = np.concatenate([places for _, places in runs])
        try:
            self._dispatch(Headers(data, places - base, base))
        except BaseException as error:
            self._fail(error)
            raise

    def _dispatch(self, headers: Headers) -> None:
        """Queue before index: a reader may miss a key for a moment, never a message.

        The same records can be given again after a failure: both know what they have of them.
        """
        found, topics, properties = entries_of(headers, self.config, self._batch_topics)
        if self._again and self._index is not None:
            self._index.resume()
        self._again = True
        self._queues.append(found)
        if self._index is not None:
            self._index.append(headers, topics, properties)
        self._again = False
        self._note_dispatched(headers, found)

    _again = False  # whether the last dispatch broke off

    def _note_dispatched(self, headers: Headers, found: Dispatched) -> None:
        self._dispatched_record = int(headers.at[-1]) + headers.base
        self._dispatched_timestamp = int(headers.field("store_timestamp", np.int64).max())
        ends = {}
        for number, queue in enumerate(found.queues):
            rows = np.flatnonzero(found.queue == number)
            if len(rows):
                ends[queue] = max(
                    int(found.offset[rows[-1]] + found.count[rows[-1]]),
                    self._queues.end_of(queue),
                )
        with self._appending:  # who appends meanwhile counts on the same numbers
            self._offsets.raise_to(ends)
            for queue in ends:
                self._min_offsets.setdefault(queue, 0)
        with self._arrived:
            self._listed_to.update(ends)
            self._arrived.notify_all()

    def flush(self) -> None:
        """Dispatch what was appended, put all of it on the disk, and have the checkpoint say so."""
        self._check_open()
        self.dispatch()
        try:
            self._flusher.flush_all()
        except BaseException as error:
            self._fail(error)
            raise

    # --- closing ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush all files, write checkpoint and topics.json, take `abort` away, free the lock."""
        if self._closed:
            return
        try:
            if not self._failed:
                self.dispatch()
            if self._reput is not None:
                self._reput.stop()
            self._closed = True
            self._flusher.stop()
            if self._index is not None:
                self._index.close()
            self._log_files.close(sync=not self._failed)
            self._queue_files.close(sync=not self._failed)
            if not self._failed:
                self._finish()
        finally:
            self._closed = True
            self._lock.release()
            with self._arrived:
                self._arrived.notify_all()

    def _finish(self) -> None:
        update_topics(self.path, self.dialect, list(self._offsets), self._declared)
        full_until = 0 if self._index is None else self._index.full_until
        before = Checkpoint.read_or_zero(self.path / CHECKPOINT_FILE)
        checkpoint = Checkpoint(
            physic_msg_timestamp=self._last_timestamp,
            logics_msg_timestamp=self._last_timestamp,
            index_msg_timestamp=full_until or before.index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=self._last_record if self.dialect.has("confirm_offset") else 0,
            logics_physical_offset=self._last_record,
        )
        checkpoint.write(self.path / CHECKPOINT_FILE, used=checkpoint_size(self.dialect))
        remove_abort(self.path)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StoreWriter({str(self.path)!r}, release={str(self.dialect)!r})"


def _new_commitlog_folders(root: Path, config: StoreConfig) -> list[Path]:
    """Where a new store keeps its log: under its root, whatever the paths of another machine were."""
    named = [part.strip() for part in (config.storePathCommitLog or "").split(PATH_SPLITTER)]
    folders = [Path(name) for name in named if name] or [Path(COMMITLOG_DIR)]
    return [root / (folder.name if folder.is_absolute() else folder) for folder in folders]
