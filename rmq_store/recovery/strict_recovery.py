"""The strict recovery: the log ends after its last whole record, and everything else is repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog, files_without_a_byte, refuse_misnamed_or_unreadable
from rmq_store.commitlog.walk import end_of_page_rest, intact_records_behind
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.config.topics_json import batch_topics, declared_topics
from rmq_store.consumequeue.entry_of_record import (
    DispatchRequests,
    LastLivesOfQueues,
    entries_to_write,
)
from rmq_store.consumequeue.queue_folders import (
    QueueFolders,
    entries_after_log,
    entries_into_ranges,
    line_of_lost_end,
)
from rmq_store.errors import (
    CorruptIndexError,
    IndexGeometryError,
    InvalidArgumentError,
    LogOffset,
    UncleanStoreError,
    UnrecoverableStoreError,
    spoken,
)
from rmq_store.files.durable_files import Change, cut
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import LARGEST_FILE, SegmentFile
from rmq_store.format.byte_layout import (
    ABORT_FILE,
    BLANK_HEAD,
    BLANK_SIZE,
    CHECKPOINT_FILE,
    INDEX_DIR,
    MAGIC_BLANK,
)
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import is_system_topic
from rmq_store.index.index_file_reader import IndexFile, list_index_files
from rmq_store.index.index_writer import IndexWriter
from rmq_store.markers import Checkpoint, checkpoint_size, was_closed, write_abort
from rmq_store.recovery.as_broker import LOG_SIZE, refused_files
from rmq_store.recovery.report import DEFAULT_SIZES, ChangeList, RecoveryReport
from rmq_store.recovery.strict_log_end import (
    IndexRecovery,
    LogWalk,
    start_after_checkpoint,
    writer_of_newest_index_file,
)
from rmq_store.recovery.strict_queues import DatabaseQueues, EntriesBeforeScanMissing, QueueRecovery
from rmq_store.snapshot.opening import (
    Opening,
    is_last_file_cut,
    queue_file_sizes,
    refuse_unknown_size,
    require_configured_size,
)
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot

_unclean = partial(
    UncleanStoreError,
    advice="Repair it with rmqstore recover STORE --apply, or start a broker on it and stop it cleanly",
)
_BYTES_BETWEEN_MARKS = 1 << 30  # of the log, dispatched
_Queues = QueueRecovery | DatabaseQueues


def refuse_abort(root: Path) -> None:
    """Raises UncleanStoreError if `abort` exists."""
    if (root / ABORT_FILE).exists():
        raise _unclean(
            root / ABORT_FILE, reason="the store was not closed cleanly, or a broker has it open"
        )


def refuse_unclean(log: CommitLog, folders: QueueFolders, snapshot: StoreSnapshot) -> None:
    """Raises UncleanStoreError if the log has a torn tail, or if log and queues do not end together."""
    _refuse_tail(log, snapshot.log_end)
    for queue, state in snapshot.queues.items():
        files = folders.files(queue, batch=state.batch)
        stop = files.find_end_unit()
        if files.ends_with_empty_file(stop):
            last = files.chain.segments[-1].path
            raise _unclean(last, reason=f"the last file of queue {queue.name} has no entry")
        if state.tail is not None or stop > state.file_stop:
            raise _unclean(
                folders.root,
                reason=f"queue {queue.name} and the log do not end together",
                expected=f"its last entry to be unit {state.file_stop - 1}",
            )


def why_unclean(root: Path, log: CommitLog, config: StoreConfig) -> UncleanStoreError | None:
    """The difference of a store without `abort` to a clean stop; None if there is none."""
    folders = QueueFolders(root, config)
    try:
        refuse_abort(root)
        _refuse_short_files(log)
        refuse_unclean(log, folders, take_snapshot(log, folders))
        _refuse_index(root, config)
    except UncleanStoreError as error:
        return error
    finally:
        folders.close()
    return None


def _refuse_short_files(log: CommitLog) -> None:
    """Raise UncleanStoreError for a short or empty file of the log, with which no broker starts."""
    for error in refused_files(log.chain.folders, log.chain.file_size, LOG_SIZE):
        path = Path(error.path or "")
        if path.name.isdigit() and path.stat().st_size < log.chain.file_size:
            raise _unclean(path, reason=error.reason, expected=error.expected, actual=error.actual)


def _refuse_index(root: Path, config: StoreConfig) -> None:
    """Raise UncleanStoreError for an index file that fits neither its own items nor `config`."""
    for segment in list_index_files(root / INDEX_DIR):
        damage = _index_damage(segment, StoreConfig())
        if damage is not None and (config.maxHashSlotNum or config.maxIndexNum):
            damage = _index_damage(segment, config)
        if damage is not None:
            why = f"an index file is damaged, or of an unknown geometry: {damage}"
            raise _unclean(segment.path, reason=why)


def _index_damage(segment: SegmentFile, config: StoreConfig) -> str | None:
    try:
        file = IndexFile(segment, slots=config.maxHashSlotNum, items=config.maxIndexNum)
    except (IndexGeometryError, CorruptIndexError) as error:
        return error.reason
    return "its header is damaged" if file.header.index_count < 0 else None


def _refuse_tail(log: CommitLog, log_end: int) -> None:
    """Raise UncleanStoreError unless a blank record, zeros or the rest of a page follow the last record.

    Only for a store without `abort`: in another one, such a rest may be of a record that was begun.
    """
    segment = log.chain.segment_at(log_end)
    if segment is None:
        return
    end = log.chain.segment_end(segment)
    front = log.chain.read(log_end, min(log_end + BLANK_SIZE, end))
    if len(front) == BLANK_SIZE and front.view(BLANK_HEAD)[0]["magic"] == MAGIC_BLANK:
        return
    if not log.chain.is_zero(log_end, end) and end_of_page_rest(log, log_end) is None:
        raise _unclean(
            segment.path,
            offset=LogOffset(log_end),
            reason="bytes that are not a record follow the last record",
            expected="zeros",
        )


@dataclass
class StrictRecovery:
    """One strict recovery: first finds the end of the log, then repairs everything else.

    It reads the files as they were before it: nothing that it reads is among its changes. For the fields see
    `recover_under_lock` in rmq_store.recovery.recover_store.
    """

    root: Path
    config: StoreConfig
    release: Dialect
    changes: ChangeList
    until: int | None
    flushed_until: int
    keeps_intact: bool
    cuts_intact: bool
    progress: Callable[[int], None] | None
    queue_database: Path | None

    def __post_init__(self) -> None:
        root, planned = self.root, self.changes.planned
        # The other queues show the full size of a queue whose only file was truncated.
        self.config = self.config.with_defaults_of(
            queue_file_sizes(QueueFolders(root, self.config))
        )
        self._folders = QueueFolders(root, self.config)
        self.report = RecoveryReport(str(root), "strict", was_closed(root), not planned)
        self.checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)
        self._empty: list[SegmentFile] = []  # of the log, and passed over in it
        self._full_until = 0

    def run(self) -> RecoveryReport:
        """Recover the store and return the report."""
        folders = commitlog_folders(self.root, self.config)
        log = CommitLog(folders, file_size=self.config.mappedFileSizeCommitLog, from_empty=False)
        refuse_misnamed_or_unreadable(log)
        if self.report.clean and not why_unclean(self.root, log, self.config):
            self._report_untouched(log)
            return self.report
        self._refuse_lost_log(log)
        refuse_unknown_size(log, self.config)
        chains = self._chains(log)
        first = self._looked_through(log, start_after_checkpoint(log, self.checkpoint))
        # Whatever refuses a store has refused it now, before the first change.
        if not self.changes.planned:
            write_abort(self.root, self.release)  # also if a clean store's tail was torn later
        self._extend_files(log, chains)
        try:
            self._repair(log, first)
        except EntriesBeforeScanMissing:
            self.changes.release(forget=True)
            first = self._looked_through(log, log.start)
            self._repair(log, first)
        if not self.changes.planned:
            self.changes.sync()
            self._write_checkpoint(first)
        return self.report

    def _refuse_lost_log(self, log: CommitLog) -> None:
        """Raise UnrecoverableStoreError if the log has no file, and a queue has entries.

        No crash takes all files; a disk that is not mounted does. A recovery would delete all queues.
        """
        if log.chain.segments:
            return
        for queue, batch in self._folders.listed().items():
            files = self._folders.files(queue, batch=batch)
            if files.find_end_unit() > files.first_unit:
                raise UnrecoverableStoreError(
                    log.chain.folders[0],
                    reason=f"the log has no file, and queue {queue.name} lists messages",
                    expected="the files that hold them",
                    actual="none",
                    advice="Look whether the disk of the log is mounted and storePathCommitLog is right. "
                    "For a store without messages move consumequeue/ and index/ away",
                )

    def _chains(self, log: CommitLog) -> list[SegmentChain]:
        """The files of the log, of each queue and of its extension.

        Raises InvalidArgumentError for an impossible size.
        """
        kinds: dict[bool, list[SegmentChain]] = {False: [], True: []}
        for queue, batch in self._folders.listed().items():
            kinds[batch].append(self._folders.files(queue, batch=batch).chain)
        # A log whose only file lost its end gets its size again.
        of_log = [] if is_last_file_cut(log) else [[log.chain]]
        for chains in (*of_log, *kinds.values()):
            require_configured_size(chains)
        return [log.chain, *kinds[False], *kinds[True], *self._folders.extensions()]

    def _extend_files(self, log: CommitLog, chains: list[SegmentChain]) -> None:
        """Restore the full size of truncated files with zeros: a broker loads no others.

        They read as if they had it.
        """
        for chain in chains:
            for segment in chain.segments:
                if segment.size < chain.file_size <= LARGEST_FILE:
                    self._extend(segment.path, segment.size, chain.file_size)
        for path in files_without_a_byte(log):
            if int(path.name) < log.start:
                self.changes.remove(path, 0)  # else zeros would begin the log
            else:
                self._empty.append(SegmentFile(str(path), int(path.name), 0))
                self._extend(path, 0, log.chain.file_size)

    def _extend(self, path: str | Path, size: int, full: int) -> None:
        self.changes.add(Change(str(path), "extended", full - size, size))

    def _looked_through(self, log: CommitLog, start: int) -> LogWalk:
        """The walk that finds the end of the log. Raises UnrecoverableStoreError."""
        first, report = self._first_walk(log, start), self.report
        start, end = first.start, first.end
        report.scanned_from, report.records = start, first.records
        report.damage = [*(hole for hole in log.chain.holes if hole[1] <= start), *first.damage]
        report.log_start, report.log_end = log.start, end
        report.entries_in_damage = entries_into_ranges(self._folders, report.damage)
        if self.until is None:
            report.entries_after_log = entries_after_log(
                self._folders, log, end, self._folders.stops()
            )
            self._count_behind(log, end, first.newest_timestamp)
        if not self.cuts_intact:
            self._refuse_to_cut(log.path_at(end), end)
        return first

    def _refuse_to_cut(self, path: str, end: int) -> None:
        """Raise UnrecoverableStoreError before a writer cuts intact records, or entries of a store that was
        closed: no crash lost their records. New messages would get the offsets of those, which consumers
        have passed, and the file that is lost could no longer be put back."""
        report = self.report
        if report.records_cut:
            reason = f"{report.records_cut} intact records are behind a damaged one, and a recovery cuts them"
            advice = (
                "Copy them into a new store first: rmqstore salvage; "
                "then rmqstore recover --apply cuts them here"
            )
        elif report.entries_after_log and report.clean:
            reason = line_of_lost_end(report.entries_after_log, end)
            advice = "To append without them, let rmqstore recover --apply cut these entries first"
        else:
            return
        raise UnrecoverableStoreError(path, offset=LogOffset(end), reason=reason, advice=advice)

    def _count_behind(self, log: CommitLog, end: int, newest: int) -> None:
        """Count the intact records that follow the one at `end`, which does not count.

        That one may be whole, and only its properties half-written. One that a file ended inside of
        is not intact.
        """
        for run in intact_records_behind(log, end, newest, older=True):
            starts = run.headers.at + run.headers.base
            whole = starts + run.headers.total <= run.segment.base + run.segment.size
            count = int((whole & (starts > end)).sum())
            stored = run.headers.store_timestamp
            if self.report.old_records_cut or int(stored[0]) < newest:
                self.report.old_records_cut += count
            else:
                self.report.records_cut += count
            newest = int(stored[-1])

    def _first_walk(self, log: CommitLog, start: int) -> LogWalk:
        """Walk to the end of the log, or to the end that the caller requested."""
        until = self.until
        if until is not None:
            before = log.chain.segment_at(max(log.start, until - 1))
            start = min(start, log.start if before is None else before.base)
        flushed = max(self.checkpoint.physic_msg_timestamp, self.flushed_until)
        walk = LogWalk(log, start, flushed, self.keeps_intact).walk_to_end(self.progress)
        if until is None or walk.end == until:
            return walk
        damage = [damaged for damaged in walk.damage if damaged[1] <= until]
        shorter = LogWalk(log, start, stop=until, damage=damage).walk_to_end()
        if shorter.end != until:
            raise InvalidArgumentError(
                self.root,
                reason="the log cannot be cut there: no record ends at this offset",
                offset=LogOffset(until),
                actual=f"records to {walk.end}",
            )
        return shorter

    def _repair(self, log: CommitLog, first: LogWalk) -> None:
        """Cut the log, and make queues and index match it."""
        index = IndexRecovery(self.root, self.config, self.checkpoint, (log.start, first.end))
        begin = first.start if index.start is None else min(first.start, index.start)
        walk = first.again(begin)
        if begin > log.start:  # queues may need earlier records, which only the last one decides
            self.changes.hold()
        self._cut_log(log, first.end)
        index.remove_doubtful_files(self.changes)
        queues: _Queues
        if self.queue_database is None:
            queues = QueueRecovery(self._folders, self.config, walk, self.changes)
        else:
            queues = DatabaseQueues(self.queue_database, walk)
        dispatched = self._dispatched(first.again(first.start))
        lives = LastLivesOfQueues(first.begun, queues.offsets_before_scan(), dispatched)
        queues.cut_earlier_lives(lives)
        self.report.earlier_lives = lives.earlier
        indexer: IndexWriter | None = None
        if self.config.messageIndexEnable is not False:
            indexer = writer_of_newest_index_file(
                *(self.root, index.kept, index.geometry, self.release), planned=self.changes.planned
            )
            indexer.resume()
        try:
            self._along_log(walk, queues, lives, indexer)
        except BaseException:
            if indexer is not None and queues.may_look_further:
                indexer.discard()
            queues.discard()
            raise
        self.changes.release()
        if indexer is not None:
            self.report.index_items_rebuilt = indexer.items_written
            self._full_until = indexer.full_until
            indexer.close()
        self.report.default_sizes = self._default_sizes(index)

    def _default_sizes(self, index: IndexRecovery) -> dict[str, int]:
        """The settings whose defaults gave new files their size, as no configuration or file has them."""
        config, report, batch = self.config, self.report, self._batch_topics()
        names = []
        if self.queue_database is None:
            kinds = {queue.topic in batch for queue in report.queues}
            names += ["mappedFileSizeConsumeQueue"] * (False in kinds)
            names += ["mapperFileSizeBatchConsumeQueue"] * (True in kinds)
        if index.has_default_size and report.index_items_rebuilt:
            names += ["maxHashSlotNum", "maxIndexNum"]
        return {name: DEFAULT_SIZES[name] for name in names if getattr(config, name) is None}

    def _cut_log(self, log: CommitLog, end: int) -> None:
        """Zero the rest of the file after the end, and delete the files after it."""
        for file in sorted([*log.chain.segments, *self._empty], key=lambda file: -file.base):
            if file.base > end:
                self.changes.remove(file.path, file.size)
            elif file.base + log.chain.file_size > end:
                for change in cut(file.path, end - file.base, "cut log"):
                    self.changes.add(change)

    def _batch_topics(self) -> set[str]:
        by_folder = {queue.topic for queue, is_batch in self._folders.listed().items() if is_batch}
        return batch_topics(declared_topics(self.root)) | by_folder

    def _dispatched(self, walk: LogWalk) -> Iterator[DispatchRequests]:
        """What the records of the walk give the queues."""
        batch = self._batch_topics()
        for headers in walk.pieces():
            yield entries_to_write(DecodedRecords.of(headers), self.config, batch)

    def _along_log(
        self, walk: LogWalk, queues: _Queues, lives: LastLivesOfQueues, indexer: IndexWriter | None
    ) -> None:
        batch, report, unmarked = self._batch_topics(), self.report, 0
        for headers in walk.pieces():
            records = DecodedRecords.of(headers)
            requests = lives.entries_of_last_lives(entries_to_write(records, self.config, batch))
            report.batch_topics |= requests.batch_topics()
            queues.take(requests, walk.end)
            if indexer is not None:
                indexer.add_records(records)
            count = int(headers.total.sum())
            if self.progress is not None:
                self.progress(count)
            unmarked += count
            is_certain = not (self.changes.planned or queues.may_look_further)
            if unmarked >= _BYTES_BETWEEN_MARKS and is_certain:
                self.changes.sync()
                self._mark(headers, 0 if indexer is None else indexer.full_until)
                unmarked = 0
        queues.finish()
        report.entries_cut, report.entries_rebuilt = queues.cut, queues.rebuilt
        report.delayed_rebuilt = queues.delayed
        if isinstance(queues, DatabaseQueues):
            report.inner_batches = queues.inner_batches
        report.left_out, report.queues = queues.left_out, queues.ranges()

    def _mark(self, headers: Headers, full_until: int) -> None:
        """Save the progress in the checkpoint, so that an interrupted recovery continues there."""
        stamp, old = int(headers.store_timestamp[-1]), self.checkpoint
        replace(
            old,
            physic_msg_timestamp=max(old.physic_msg_timestamp, stamp),
            logics_msg_timestamp=max(old.logics_msg_timestamp, stamp),
            index_msg_timestamp=max(old.index_msg_timestamp, full_until),
            logics_physical_offset=int(headers.at[-1]) + headers.base,
        ).write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.release))

    def _write_checkpoint(self, walk: LogWalk) -> None:
        old, stamp = self.checkpoint, walk.last_timestamp
        last = max(walk.last_record, 0)
        replace(
            old,
            physic_msg_timestamp=stamp,
            logics_msg_timestamp=stamp,
            index_msg_timestamp=self._full_until or min(old.index_msg_timestamp, stamp),
            confirm_phy_offset=last if self.release.has("confirm_offset") else 0,
            logics_physical_offset=last,
        ).write(self.root / CHECKPOINT_FILE, used=checkpoint_size(self.release))

    def _report_untouched(self, log: CommitLog) -> None:
        snapshot = take_snapshot(log, self._folders)
        self.report.untouched = True
        self.report.log_start, self.report.log_end = snapshot.log_start, snapshot.log_end
        view = QueueView(log, self._folders, snapshot, is_system_topic)
        self.report.lacking = [*map(spoken, Opening(view).losses())]
        self.report.queues = {
            queue: (state.min_offset, state.max_offset)
            for queue, state in snapshot.queues.items()
            if is_plain_name(queue.topic)  # others have no files
        }
