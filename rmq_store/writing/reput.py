"""Follows the log: dispatches appended records to queue and index (ReputMessageService)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_or_gap import WITHIN_THE_LOG, Extent, SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.errors import CorruptRecordError, LogOffset, StoreError
from rmq_store.format.record import Gap

_BYTES_AT_A_TIME = 4 << 20
RETRIES = 30  # ConsumeQueue#putMessagePositionInfoWrapper
RETRY_SECONDS = 1.0


class Reput:
    """A thread that reads the log from `position` on and passes its records on, in order.

    `open_log` opens the log as it is now, because files come and go. `log_range` returns its start
    and its readable end. `sink` receives records; if it raises, it is called again with the same
    records and must skip those it has already processed. After `retries` failures, `failed` is
    called and dispatching stops.
    """

    def __init__(
        self,
        position: int,
        open_log: Callable[[], CommitLog],
        log_range: Callable[[], tuple[int, int]],
        sink: Callable[[Headers], None],
        failed: Callable[[BaseException], None],
        *,
        retries: int = RETRIES,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.position = position
        self._open_log = open_log
        self._log_range = log_range
        self._sink = sink
        self._failed = failed
        self._retries = retries
        self._retry_seconds = retry_seconds
        self._log: CommitLog | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._done = threading.Condition()
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="rmqstore-reput", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Notify the thread that the log has grown."""
        self._wake.set()

    def catch_up(self) -> None:
        """Return once all current records of the log are dispatched, or cannot be."""
        end = self._log_range()[1]
        self.wake()
        with self._done:
            while self.position < end and not self._broken and self._thread.is_alive():
                self._done.wait(0.1)

    def stop(self) -> None:
        """Dispatch the remaining records and stop the thread."""
        if self._thread.is_alive():
            self.catch_up()
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._log is not None:
            self._log.chain.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._closing.is_set() and self.dispatch_some():
                    pass
            except Exception as error:  # any error: otherwise callers would wait for a dead thread
                self._failed(error)
                self._broken = True
                with self._done:
                    self._done.notify_all()
                return

    def dispatch_some(self) -> bool:
        """Dispatch a few megabytes; returns whether there were any. Works with or without the thread."""
        start, end = self._log_range()
        if self.position < start:
            self.position = start  # earlier files were deleted, dispatched or not
        if self.position >= end:
            return False
        piece = self._next(end)
        if isinstance(piece, SoundRun):
            self._hand_on(piece.headers)
        with self._done:
            self.position = piece.stop
            self._done.notify_all()
        return True

    def _next(self, end: int) -> SoundRun | Extent:
        """The next records, or what a broker passes over."""
        log, upto = self._log_with(self.position), min(end, self.position + _BYTES_AT_A_TIME)
        piece = next(walk(log, self.position, upto, check_crc=False))
        if isinstance(piece, Extent) and piece.gap not in WITHIN_THE_LOG:
            raise self._lost(piece.gap)
        return piece

    def _log_with(self, offset: int) -> CommitLog:
        """The log, reopened if a file was added."""
        if self._log is None or self._log.chain.segment_at(offset) is None:
            if self._log is not None:
                self._log.chain.close()
            self._log = self._open_log()
        return self._log

    def _lost(self, gap: Gap | None) -> CorruptRecordError:
        return CorruptRecordError(
            None if self._log is None else self._log.path_at(self.position),
            offset=LogOffset(self.position),
            reason="the log cannot be dispatched further" + (f": {gap.value}" if gap else ""),
            advice="Close the store and open it again, which recovers it",
        )

    def _hand_on(self, headers: Headers) -> None:
        for left in range(self._retries, -1, -1):
            try:
                self._sink(headers)
            except StoreError:
                if not left or self._closing.wait(self._retry_seconds):
                    raise
            else:
                return
