"""When written data reaches the disk: the broker's SYNC_FLUSH and ASYNC_FLUSH.

Source: CommitLog#GroupCommitService, #FlushRealTimeService;
ConsumeQueueStore#FlushConsumeQueueService.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.files.segment_chain import OpenFiles
from rmq_store.markers import Checkpoint

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


class Flusher:
    """Flushes log, queues and index in the background, and maintains the checkpoint.

    Each interval it flushes files with the minimum number of unflushed pages; queues get the entries that
    wait first. At longer intervals it flushes everything (thoroughly); then the checkpoint records the
    progress at the start of that flush.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: OpenFiles,
        queues: OpenFiles,
        written: Callable[[], Checkpoint],
        write_entries: Callable[[], None],
        flush_index: Callable[[], None],
        write_checkpoint: Callable[[Checkpoint], None],
        failed: Callable[[BaseException], None],
        checkpoint: Checkpoint,
    ) -> None:
        """`written`: the checkpoint if everything that is written now were on the disk."""
        self._config = config
        self._log = log
        self._queues = queues
        self._written = written
        self._write_entries = write_entries
        self._flush_index = flush_index
        self._write_checkpoint = write_checkpoint
        self._report_failure = failed
        self._checkpoint = checkpoint
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
        tick = min(self._config.flush_interval_log, self._config.flush_interval_queues)
        while not self._stop.wait(tick):
            try:
                self.flush_due(time.monotonic())
            except Exception as error:  # any error: otherwise flushing would stop unnoticed
                self._report_failure(error)
                return

    def flush_due(self, now: float) -> None:
        """Flush what is due at `now` (seconds of the monotonic clock)."""
        config = self._config
        queues_due = now - self._queues_at >= config.flush_interval_queues
        if queues_due:
            self._write_entries()
        before = self._written()
        if now - self._log_at >= config.flush_interval_log:
            self._log_at = now
            thorough = now - self._log_thorough_at >= config.flush_thorough_log
            self._log.sync(0 if thorough else config.flush_pages_log * _PAGE)
            if thorough:
                self._log_thorough_at = now
                self.note(physic=before.physic_msg_timestamp)
        if queues_due:
            self._queues_at = now
            if now - self._queues_thorough_at >= config.flush_thorough_queues:
                self._queues_thorough_at = now
                self.flush_queues(before)
            else:
                self._queues.sync(config.flush_pages_queues * _PAGE)

    def flush_queues(self, before: Checkpoint) -> None:
        """Flush all queues and the index, then update the checkpoint."""
        self._queues.sync()
        self._flush_index()
        self.note(
            logics=before.logics_msg_timestamp,
            record=before.logics_physical_offset,
            index=before.index_msg_timestamp,
        )
        self._write_checkpoint(self._checkpoint)

    def flush_all(self) -> None:
        """Flush everything at once and update the checkpoint."""
        before = self._written()
        self._log.sync()
        self.note(physic=before.physic_msg_timestamp)
        self.flush_queues(before)

    def note(self, physic: int = 0, logics: int = 0, record: int = 0, index: int = 0) -> None:
        """Note for the checkpoint up to where log, queues and index are on the disk: times of records
        (ms), and the log offset of the last one in the queues."""
        old = self._checkpoint
        self._checkpoint = Checkpoint(
            max(old.physic_msg_timestamp, physic),
            max(old.logics_msg_timestamp, logics),
            max(old.index_msg_timestamp, index),
            old.master_flushed_offset,
            old.confirm_phy_offset,
            max(old.logics_physical_offset, record),
        )
