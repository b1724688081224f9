"""Writing a store: records to the log, and from there to queue and index, as a broker does."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rmq_store.arrow.encoding import single_message as single
from rmq_store.commitlog.appender import LogAppender
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.abort import remove_abort, write_abort
from rmq_store.config.checkpoint import Checkpoint, checkpoint_size
from rmq_store.config.locate import commitlog_folders
from rmq_store.config.topics_json import update_topics
from rmq_store.errors import InvalidArgumentError, ReadOnlyStoreError
from rmq_store.files.writer import OpenFiles
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import CHECKPOINT_FILE
from rmq_store.format.message import Message
from rmq_store.format.queues import QueueId
from rmq_store.format.record import Record
from rmq_store.recovery.report import RecoveryReport
from rmq_store.writing.dispatcher import Dispatcher
from rmq_store.writing.flush import Flusher, GroupCommit, Progress
from rmq_store.writing.long_polling import Arrivals
from rmq_store.writing.opening import WritableStore, make_store, open_store
from rmq_store.writing.queue_offsets import QueueCounters
from rmq_store.writing.record_appender import (
    Appended,
    AppendResult,
    RecordAppender,
    nothing_appended,
)
from rmq_store.writing.reput import RETRIES, Reput


class StoreWriter:
    """A store open for writing; from `MessageStore.create` or `MessageStore.append_to`.

    Messages are in the log when `append` returns. Queue and index get them in larger pieces, and by
    `dispatch`, `flush` or `close` at the latest; readers find those that wait in the log. `close`
    leaves what a broker leaves after a clean stop. One writer at a time, held off by the broker's
    `lock` file. A context manager that closes cleanly, also after an exception, unless writing
    itself failed: then `abort` stays and tells the broker to recover.
    """

    def __init__(self, store: WritableStore) -> None:
        """Use `create` or `append_to`."""
        root, config, traits, snapshot = store.root, store.config, store.dialect, store.snapshot
        self.path = root
        self.config = config
        self.dialect = traits
        self.broker_name = store.broker_name
        self.recovered: RecoveryReport | None = store.recovered
        self._lock = store.lock
        self._failed = False
        self._closed = False
        self._log_start = snapshot.log_start
        self._offsets = QueueCounters(
            {queue: state.max_offset for queue, state in snapshot.queues.items()}
        )
        self._min_offsets = {queue: state.min_offset for queue, state in snapshot.queues.items()}
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
            self._log,
            self._offsets,
            config,
            traits,
            (store.last_record, store.last_timestamp),
            written=self._take_down,
            file_ends=self._dispatch_taken,  # what is dispatched at a time must be one piece
            fail=self._fail,
        )
        self._appending = threading.RLock()  # the broker's putMessageLock
        self._arrivals = Arrivals(
            {queue: state.max_offset for queue, state in snapshot.queues.items()}
        )
        self._group_commit = (
            GroupCommit(self._log_files, lambda: self._log.end)
            if config.flushes_each_append
            else None
        )
        self._flusher = self._make_flusher()
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
        """Make a store in a folder that is not there or empty; `release`: of the broker to write as.

        `config`: the broker's names (StoreConfig, a mapping, or a broker.conf); defaults are the
        broker's. Raises NotAStoreError where the folder has content, AccessError, StoreLockedError.
        """
        return cls._of(make_store(path, config, release, broker_name))

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

        `recovery`: "strict" or "broker" (see `rmq_store.recovery.recover_store`), or "refuse", which raises
        UncleanStoreError for a store with `abort`, an unreadable tail or records that are in no
        queue yet. `until`: a strict recovery cuts the log at that offset, though whole records
        follow; a store that was closed cleanly is never cut. Sizes that `config` does not say are
        those of the files there are. Raises
        InvalidArgumentError where `config` contradicts the files; StoreLockedError; ForeignLogError
        where the log is that of another store.
        """
        return cls._of(open_store(path, config, release, broker_name, recovery, until))

    @classmethod
    def _of(cls, store: WritableStore) -> StoreWriter:
        try:
            return cls(store)
        except BaseException:
            store.lock.release()
            raise

    def _make_flusher(self) -> Flusher:
        used = checkpoint_size(self.dialect)

        def write(checkpoint: Checkpoint) -> None:
            checkpoint.write(self.path / CHECKPOINT_FILE, used=used)

        return Flusher(
            self.config,
            self._log_files,
            self._queue_files,
            self._progress,
            self._dispatcher.flush_index,
            write,
            self._fail,
            Checkpoint.read_or_zero(self.path / CHECKPOINT_FILE),
        )

    def _progress(self) -> Progress:
        with self._appending:
            return Progress(
                self._log.end,
                self._records.last_timestamp,
                self._dispatcher.last_timestamp,
                self._dispatcher.last_record,
                self._dispatcher.index_full_until,
            )

    def _fail(self, error: BaseException) -> None:
        """From now on nothing is written any more: what the disk has is no longer known."""
        self._failed = True
        self._arrivals.wake_all()

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
            self._dispatcher.dispatch,
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
        return self._dispatcher.bytes_taken

    def wait_for_arrival(
        self, topic: str, queue_id: int, offset: int, timeout: float | None = None
    ) -> bool:
        """Wait until a queue has a message at `offset`, at most `timeout` seconds; whether it has.

        What the broker's long polling does (PullRequestHoldService). Raises ReadOnlyStoreError where
        the store is closed or fails meanwhile.
        """

        def begin() -> None:
            if self._reput is None:
                self.dispatch()

        queue = QueueId(topic, queue_id)
        return self._arrivals.wait(queue, offset, timeout, begin, self._check_open)

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
            self._dispatcher.batch_topics.add(topic)

    # --- appending ----------------------------------------------------------------------------------

    def append(self, message: Message | Record | Mapping[str, Any]) -> Appended:
        """Append one message: a Message, a Record as stored, or a mapping of column names.

        As `append_batch` with one row, by the readable encoder. A Message goes as it was stored:
        raw_body, sysFlag, hosts and born time are kept; its store time is not, nor are its offsets.
        """
        record = single.to_record(message, self.dialect, self.config)
        with self._appending:
            self._check_open()
            record = self._records.append(record)
        self._wait_for_disk(record.physical_offset + record.total_size, record.store_timestamp)
        return Appended(
            record.queue_offset,
            record.physical_offset,
            record.total_size,
            record.store_timestamp,
            record.offset_msg_id(),
        )

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
        elif self._arrivals.waiting:
            self.dispatch()

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
            return nothing_appended()
        with self._appending:
            self._check_open()
            done = self._records.append_rows(batch, keep_together)
        end = int(done.commit_log_offset[-1] + done.store_size[-1])
        self._wait_for_disk(end, int(done.store_timestamp.max()))
        return done

    def _check_open(self) -> None:
        if self._closed or self._failed:
            reason, advice = "the store was closed", "Open it anew with append_to"
            if self._failed:
                reason = "writing failed before; the store needs a recovery"
                advice = "Close it and open it anew with append_to, which recovers it"
            raise ReadOnlyStoreError(self.path, reason=reason, advice=advice)

    def _take_down(self, data: Bytes, places: Ints) -> None:
        """Note records that were written at `places` of the log, for dispatch."""
        if self._reput is None and self._dispatcher.take(data, places):
            self.dispatch()

    def dispatch(self) -> None:
        """Write queue and index entries of all that was appended; `close` does it too."""
        if self._reput is not None:
            self._reput.catch_up()
            return
        with self._appending:
            self._dispatch_taken()

    def _dispatch_taken(self) -> None:
        try:
            self._dispatcher.dispatch_taken()
        except BaseException as error:
            self._fail(error)
            raise

    def _listed(self, ends: Mapping[QueueId, int]) -> None:
        """Queues were written up to there."""
        with self._appending:  # who appends meanwhile counts on the same numbers
            self._offsets.raise_to(ends)
            for queue in ends:
                self._min_offsets.setdefault(queue, 0)
        self._arrivals.note(ends)

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
            self._dispatcher.close()
            self._log_files.close(sync=not self._failed)
            self._queue_files.close(sync=not self._failed)
            if not self._failed:
                self._finish()
        finally:
            self._closed = True
            self._lock.release()
            self._arrivals.wake_all()

    def _finish(self) -> None:
        update_topics(self.path, self.dialect, list(self._offsets), self._declared)
        before = Checkpoint.read_or_zero(self.path / CHECKPOINT_FILE)
        checkpoint = Checkpoint(
            physic_msg_timestamp=self._records.last_timestamp,
            logics_msg_timestamp=self._records.last_timestamp,
            index_msg_timestamp=self._dispatcher.index_full_until or before.index_msg_timestamp,
            master_flushed_offset=before.master_flushed_offset,
            confirm_phy_offset=self._records.last_record
            if self.dialect.has("confirm_offset")
            else 0,
            logics_physical_offset=self._records.last_record,
        )
        checkpoint.write(self.path / CHECKPOINT_FILE, used=checkpoint_size(self.dialect))
        remove_abort(self.path)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StoreWriter({str(self.path)!r}, release={str(self.dialect)!r})"
