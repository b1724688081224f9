"""The strict recovery: the log ends after its last whole record, and everything else is repaired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.doubled_records import refuse_doubled
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog, empty_files
from rmq_store.commitlog.next_intact_record import intact_records_behind
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.config.topics_json import declared_batch_topics
from rmq_store.consumequeue.entry_of_record import entries_to_write
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.consumequeue.queue_writer import QueueWriter
from rmq_store.errors import InvalidArgumentError, UnrecoverableStoreError
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.files.segment_writer import OpenFiles
from rmq_store.files.segments import LARGEST_FILE
from rmq_store.files.truncate import clear_from, remove, set_size
from rmq_store.format.layout import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    INDEX_DIR,
)
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import list_index_files, list_too_short
from rmq_store.index.index_writer import IndexWriter
from rmq_store.markers.checkpoint import Checkpoint, checkpoint_size
from rmq_store.markers.lock_file import write_abort
from rmq_store.recovery.clean_stop import why_unclean
from rmq_store.recovery.find_log_end import LogWalk, careful_start
from rmq_store.recovery.report import FileChange, RecoveryReport
from rmq_store.recovery.strict_index import IndexRecovery, index_geometry, last_index_writer
from rmq_store.recovery.strict_queues import LookFurther, QueueRecovery
from rmq_store.snapshot.file_sizes import queue_sizes, refuse_smaller
from rmq_store.snapshot.snapshot import take_snapshot

_BYTES_BETWEEN_MARKS = 1 << 30  # of the log, dispatched


class StrictRecovery:
    """One strict recovery: first finds the end of the log, then repairs everything else."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        release: Dialect,
        until: int | None = None,
        flushed_until: int = 0,
        progress: Callable[[int], None] | None = None,
        *,
        cuts_intact: bool = True,
    ) -> None:
        """For the parameters see `recover_locked` in rmq_store.recovery.recover_store."""
        self._progress = progress
        self._flushed_until = flushed_until
        self.root = root
        # The other queues show the full size of a queue whose only file was truncated.
        self.config = config.with_defaults_of(queue_sizes(QueueFolders(root, config)))
        self.release = release
        self._until, self._cuts_intact = until, cuts_intact
        self.report = RecoveryReport(str(root), "strict", not (root / ABORT_FILE).exists())
        self.checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)
        self._holes: list[tuple[int, int]] = []  # of the log, and where its files ended:
        self._stored: dict[int, int] = {}  # both before truncated files got their size again
        folder = root / INDEX_DIR
        self._index_files = {
            *(str(file.path) for file in list_index_files(folder)),
            *(path for path, _ in list_too_short(folder)),
        }

    def run(self) -> RecoveryReport:
        """Recover the store and return the report."""
        log = self._open_log()
        if not self.report.clean or why_unclean(self.root, log, self.config):
            write_abort(self.root, self.release)  # also if a clean store's tail was torn later
            self._extend_files(log)
            log = self._open_log()
            try:
                self._run_from(log, careful_start(log, self.checkpoint))
            except LookFurther:
                self._run_from(log, log.start)
        else:
            self.report.untouched = True
        return self._reported(log)

    def _open_log(self) -> CommitLog:
        folders = commitlog_folders(self.root, self.config)
        log = CommitLog(folders, file_size=self.config.mappedFileSizeCommitLog)
        refuse_doubled(log)
        return log

    def _extend_files(self, log: CommitLog) -> None:
        """Restore the full size of truncated files with zeros: a broker loads no others."""
        self._holes = log.chain.holes
        self._stored = {one.base: one.base + one.size for one in log.chain.segments}
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
                    self._extend(Path(segment.path), chain.file_size)
        for path in empty_files(log):
            if int(path.name) < log.start:
                self._changed(path, "removed", remove(path))  # else zeros would begin the log
            else:
                self._extend(path, log.chain.file_size)
        folders.close()

    def _extend(self, path: Path, size: int) -> None:
        missing = size - path.stat().st_size
        set_size(path, size)
        self._changed(path, "extended", missing)

    def _changed(self, path: Path, what: str, count: int) -> None:
        self.report.files.append(FileChange(str(path), what, count))

    def _run_from(self, log: CommitLog, start: int) -> None:
        first = self._first_walk(log, start)
        start, end = first.start, first.end
        geometry = index_geometry(self.root, self.config)
        index = IndexRecovery(self.root, geometry, self.checkpoint, (log.start, end))
        self.report.scanned_from, self.report.records = start, first.records
        before = [hole for hole in self._holes if hole[1] <= start]
        self.report.damage = [*before, *first.damage]
        if self._until is None:
            self.report.intact_cut += self._intact_behind(log, end, first.newest_timestamp)
        if self.report.intact_cut and not self._cuts_intact:
            raise UnrecoverableStoreError(
                log.path_at(end),
                offset=end,
                reason=f"{self.report.intact_cut} intact records are behind a damaged one, and a recovery "
                "cuts them",
                advice="The offset is a log offset. Copy them into a new store first: rmqstore salvage; "
                "then rmqstore recover --apply cuts them here",
            )
        self._cut_log(log, end)
        self._extend_report_by(index)
        log = self._open_log()
        begin = start if index.start is None else min(start, index.start)
        self._dispatch_again(log, LogWalk(log, begin, stop=end, damage=first.damage), index)
        self._write_checkpoint(first)

    def _intact_behind(self, log: CommitLog, end: int, newest: int) -> int:
        """How many intact records follow the one at `end`, which does not count.

        That one may be whole, and only its properties half-written. One that a file ended inside of
        is not intact.
        """
        count = 0
        for run in intact_records_behind(log, end, newest):
            starts = run.headers.at + run.headers.base
            whole = starts + run.headers.total <= self._stored[run.segment.base]
            count += int((whole & (starts > end)).sum())
        return count

    def _first_walk(self, log: CommitLog, start: int) -> LogWalk:
        """Walk to the end of the log, or to the end that the caller requested."""
        until = self._until
        if until is not None:
            before = log.chain.segment_at(max(log.start, until - 1))
            start = min(start, log.start if before is None else before.base)
        flushed = max(self.checkpoint.physic_msg_timestamp, self._flushed_until)
        walk = LogWalk(log, start, flushed_until=flushed).to_the_end(self._progress)
        if until is None or walk.end == until:
            return walk
        damage = [damaged for damaged in walk.damage if damaged[1] <= until]
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
            # A second pass also removes what the first one created.
            if str(path) in self._index_files:
                self._changed(path, what, count)

    def _cut_log(self, log: CommitLog, end: int) -> None:
        """Zero the rest of the file after the end, and delete the files after it."""
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
            indexer = last_index_writer(self.root, index.geometry, self.release)
            indexer.resume()
        batch = declared_batch_topics(self.root) | {
            queue.topic for queue, is_batch in folders.listed().items() if is_batch
        }
        unmarked = 0
        try:
            for headers in walk.pieces():
                records = DecodedRecords.of(headers)
                requests = entries_to_write(records, known, batch)
                self.report.batch_topics |= requests.batch_topics()
                queues.take(requests, walk.end)
                if indexer is not None:
                    indexer.add_items(records)
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
            self.report.left_out = queues.changes.left_out
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
        """Save the progress in the checkpoint, so that an interrupted recovery continues there."""
        stamp = int(headers.store_timestamp[-1])
        old = self.checkpoint
        fresh = Checkpoint(
            physic_msg_timestamp=max(old.physic_msg_timestamp, stamp),
            logics_msg_timestamp=max(old.logics_msg_timestamp, stamp),
            index_msg_timestamp=max(old.index_msg_timestamp, full_until),
            master_flushed_offset=old.master_flushed_offset,
            confirm_phy_offset=old.confirm_phy_offset,
            logics_physical_offset=int(headers.at[-1]) + headers.base,
        )
        fresh.write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.release))

    def _write_checkpoint(self, walk: LogWalk) -> None:
        old = self.checkpoint
        last = max(walk.last_record, 0)
        stamp = walk.last_timestamp
        fresh = Checkpoint(
            physic_msg_timestamp=stamp,
            logics_msg_timestamp=stamp,
            index_msg_timestamp=self._full_until or min(old.index_msg_timestamp, stamp),
            master_flushed_offset=old.master_flushed_offset,
            confirm_phy_offset=last if self.release.has("confirm_offset") else 0,
            logics_physical_offset=last,
        )
        fresh.write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.release))

    def _reported(self, log: CommitLog) -> RecoveryReport:
        log = self._open_log()
        folders = QueueFolders(self.root, self.config)
        compared_from = None if self.report.untouched else self.report.scanned_from
        snapshot = take_snapshot(self.root, log, folders, self.config, compared_from=compared_from)
        self.report.snapshot = snapshot
        self.report.log_start, self.report.log_end = snapshot.log_start, snapshot.log_end
        self.report.queues = {
            queue: (state.min_offset, state.max_offset)
            for queue, state in snapshot.queues.items()
            if is_plain_name(queue.topic)  # others have no files
        }
        folders.close()
        log.chain.close()
        return self.report
