"""What opening a store sees without a look at its messages: holes between files, and an end that is lost.

It costs O(files). Reads, `info`, the report and the plan of a recovery say it in the same words; what only
a comparison of the messages shows is proven by `verify` alone (docs/promises.md).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import RecordOrGap, SoundRun, current_end, sound_headers, walk
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import tiered_queues
from rmq_store.config.without_file import limit_of_dispatch
from rmq_store.consumequeue.queue_folders import QueueFolders, line_of_lost_end
from rmq_store.errors import (
    LOG,
    CorruptQueueError,
    DataLossError,
    InvalidArgumentError,
    ListedAt,
    LogOffset,
    MissingFileError,
    StoreError,
    shown_path,
)
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import BLANK_SIZE, CHECKPOINT_FILE, INDEX_DIR, MAGIC_V1, MAGIC_V2
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import Gap
from rmq_store.index.index_file_reader import index_geometry, list_index_files
from rmq_store.markers import Checkpoint, was_closed
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.snapshot import SharedProperty, StoreSnapshot
from rmq_store.snapshot.undispatched_records import record_start_near
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import shown_time

_NEAR_END = 4 << 20  # last bytes of the log in which a clock may have been set back
_SEARCHED = 64 << 20  # bytes of the log searched for the record of a queue's last entry
_SAID: set[Path] = set()  # stores of which was said what follows the end of their log
REBUILD_QUEUES = (
    "Read with source=commitlog, or rebuild the queues: rmqstore rebuild STORE --to NEW"
)
_LISTS_THEM = "rmqstore rebuild STORE --to NEW lists its messages, and source=commitlog reads them"
_NAMED = 3  # queues in a sentence
_QUEUES_ASKED = 100  # of each kind; a store may have 100,000
_END = 4096  # bytes of a file at whose end a look shows whether it was cut


class Opening:
    """What opening the store of a view has seen.

    A closed store whose log lost its end has a checkpoint with a later time than the last record, or queues
    that list messages after it. Of a store that was not closed, a crash may have lost them.
    """

    def __init__(self, view: QueueView) -> None:
        self.view, self.log, self.snapshot = view, view.log, view.snapshot

    def ends_in(self, slices: Collection[QueueSlice]) -> set[QueueId]:
        """The queues whose ends some slices reach."""
        states = self.snapshot.queues
        there = (part for part in slices if part.queue in states)
        return {part.queue for part in there if part.stop >= states[part.queue].max_offset}

    def errors(self, queues: Collection[QueueId]) -> Iterator[StoreError]:
        """The errors for a read that reaches the end of some queues.

        Of records that no queue lists yet and that do not follow the end of theirs, and of a log that lost
        its end. Says once of a store that was not closed that these queues list messages after its log.
        """
        for error in self.snapshot.misplaced:
            if queues if error.entry is None else QueueId(*error.entry[:2]) in queues:
                yield error
        if queues and self._ends_before_checkpoint is not None:
            yield self._ends_before_checkpoint
        if self.after_log.keys() & queues:
            self._say_after_log()

    def errors_of_log(self) -> Iterator[StoreError]:
        """The errors for a read of the log that reaches its end, after which queues may list messages."""
        if self._ends_before_checkpoint is not None:
            yield self._ends_before_checkpoint
        else:  # in a hole, or in a closed store
            end = self.snapshot.log_end
            holes = [start for start, stop in self.log.chain.holes if stop > end]
            for start in filter(self.is_listed_beyond, holes):
                try:
                    self.log.record_at(start)
                except StoreError as error:
                    yield error
            if self.lost_end is not None:
                yield self.lost_end
        if self.after_log:
            self._say_after_log()

    def _say_after_log(self) -> None:
        if self.view.root not in _SAID:
            where = shown_path(os.fspath(self.view.root))
            for line in self.lines_after_log():
                LOG.warning("%s: %s", where, line)

    def lines_after_log(self) -> Iterator[str]:
        """A sentence about what `after_log` has. Who takes it says it: no read of the store does then."""
        if self.after_log:
            _SAID.add(self.view.root)
            yield line_of_lost_end(self.after_log, self.snapshot.log_end)

    def only(self, queues: Iterable[QueueId]) -> StoreSnapshot:
        """The snapshot with only these `queues`, for a part of a job, and what only all of them show."""
        states = self.snapshot.queues
        some = {queue: states[queue] for queue in queues if queue in states}
        _ = self.lost_end, self.after_log
        return replace(self.snapshot, queues=some, facts=dict(self.snapshot.facts))

    # --- the end of the log ------------------------------------------------------------------------

    @cached_property
    def is_closed(self) -> bool:
        """Whether nothing has written the store since its last clean stop, which ended it."""
        if not self.snapshot.closed or not was_closed(self.view.root):
            return False
        return current_end(self.log, self.snapshot.log_end) == self.snapshot.log_end

    @property
    def lost_end(self) -> StoreError | None:
        """The error if the checkpoint of a closed store is later than its log, or its queues list messages
        after it."""
        error, end = self._ends_before_checkpoint, self.snapshot.log_end
        if error is not None or not (self.is_listed_after_end and self.is_closed):
            return error
        if any(stop > end for _, stop in self.log.chain.holes):
            return None  # in a file that is missing
        return DataLossError(
            self.log.path_at(end),
            offset=LogOffset(end),
            reason="the end of the log is lost: queues list messages after it",
            advice="Look for the rest in a replica or a copy",
        )

    @SharedProperty
    def _ends_before_checkpoint(self) -> StoreError | None:
        """The error if the checkpoint of a closed store is later than the log's last record."""
        last = self.snapshot.last_record
        stored = 0 if last is None else self.log.store_time_at(last)
        if stored is None or not self.is_closed or (last is None and self.log.chain.segments):
            return None
        flushed = Checkpoint.read_or_zero(self.view.root / CHECKPOINT_FILE).newest_timestamp
        if flushed <= stored or flushed <= self._newest_near_end:
            return None
        # A clock that was set back leaves no entry without a record.
        proven = self.is_listed_after_end
        unless = "" if proven else ", unless a clock was set back"
        return DataLossError(
            self.log.path_at(self.snapshot.log_end),
            offset=LogOffset(self.snapshot.log_end),
            reason=f"the end of the log is lost{unless}: the checkpoint has a later time than the last record"
            + (", and queues list messages after it" if proven else ""),
            expected=f"a record stored at {shown_time(flushed)}",
            actual="no record" if last is None else f"the last one stored at {shown_time(stored)}",
            advice="Look for the rest in a replica or a copy"
            + ("" if proven else "; if a clock was set back, move the checkpoint away"),
        )

    @SharedProperty
    def after_log(self) -> dict[QueueId, int]:
        """Of each queue, how many entries lead after the log's end, and to no record that is there now.

        Of a store that was not closed: the snapshot leaves them out, as a broker does at its next start. They
        are of messages that a crash lost, or of a log that lost its end, or was copied before the queues.
        """
        states = self.snapshot.queues.items()
        stops = {
            queue: state.file_stop + state.after_log for queue, state in states if state.after_log
        }
        if not stops:
            return {}
        log = self.log.with_files_of_now()  # a broker may have begun a file since
        try:
            return self.view.count_entries_after_log(log, stops)
        finally:
            log.chain.close()

    def is_listed_beyond(self, place: int) -> bool:
        """Whether the last entry of a queue leads to a log offset at or after `place`."""
        return self.snapshot.last_listed >= place

    @SharedProperty
    def is_listed_after_end(self) -> bool:
        """Whether the last entry of a queue leads after the log's end, and is not just damaged: the log has
        no whole record for its queue offset."""
        end, states = self.snapshot.log_end, self.snapshot.queues
        beyond = (
            queue
            for queue, state in states.items()
            if state.min_offset < state.max_offset
            and self.view.log_offset_of(queue, state.max_offset - 1) >= end
        )
        return self.is_listed_beyond(end) and not all(map(self._has_last, beyond))

    def _has_last(self, queue: QueueId) -> bool:
        """Whether the log has a record of the last queue offset of a queue, near the one before it."""
        state, start = self.snapshot.queues[queue], self.snapshot.log_start
        last = state.max_offset - 1
        if last > state.min_offset:
            before = self.view.log_offset_of(queue, last - 1)
            start = before if self.log.is_record(before) else start
        for headers in self._headers(start, min(start + _SEARCHED, self.snapshot.log_end)):
            requests = self.view.requests_of(DecodedRecords.of(headers))
            for its, rows in requests.by_queue(np.flatnonzero(requests.offset == last)):
                if its == queue and len(rows):
                    return True
        return False

    @property
    def _newest_near_end(self) -> int:
        """The latest store time (ms) of the last bytes: a clock may have been set back since."""
        end = self.snapshot.log_end
        headers = self._headers(record_start_near(self.log, end - _NEAR_END, end), end)
        return max((int(some.store_timestamp.max()) for some in headers), default=0)

    def _headers(self, start: int, stop: int) -> Iterator[Headers]:
        """The records of a range of the log, up to a file that expired meanwhile."""
        try:
            yield from sound_headers(self.log, start, stop, check_crc=False)
        except MissingFileError:
            return

    # --- holes, and what is elsewhere --------------------------------------------------------------

    def queue_holes(self) -> Iterator[StoreError]:
        """An error for each range of queue offsets between others that no file holds."""
        for queue, state in self.snapshot.queues.items():
            for start, stop in self.view.offsets_without_entry(queue) if state.has_hole else ():
                yield CorruptQueueError(
                    self.view.folder(queue),
                    reason=f"queue {queue.name} lists no message at queue offset {start} "
                    f"to {stop}: a file of it is missing, empty or cut",
                    advice=REBUILD_QUEUES,
                    entry=ListedAt(*queue, start, -1, 0, stop - start),
                )

    def losses(self) -> Iterator[str]:
        """Messages that are lost or cannot be read: parts of the log and of queues without files, and the
        log's lost end."""
        for start, stop in self.log.chain.holes:
            if start > self.snapshot.log_end and not self.is_listed_beyond(start):
                continue  # between files that were made ahead
            yield (
                f"log offset {start} to {stop} is in no file, so its messages cannot be read: a file is "
                "missing, empty or cut. rmqstore verify shows what is lost"
            )
        if self.lost_end is not None:
            yield (
                f"{self.lost_end.reason}. It ends at log offset {self.snapshot.log_end}, and messages that "
                f"queues count behind it cannot be read. {self.lost_end.advice}; rmqstore verify shows what "
                "is lost"
            )
        for error in self.queue_holes():
            yield f"{error.reason}. {_LISTS_THEM}"

    @property
    def has_losses(self) -> bool:
        """Whether messages are lost or cannot be read, so that a count of the store's lacks some."""
        return any(True for _ in self.losses())

    def notes(self) -> Iterator[str]:
        """What may be lost, or is elsewhere."""
        yield from self.lines_after_log()
        yield from self._tiered()
        unread = self.view.unread_database
        if unread is not None:
            yield (
                "a RocksDB database has queues too and was not read, so queues may have more messages than "
                f"their files list: {unread}"
            )

    @property
    def behind(self) -> str | None:
        """How many messages and bytes the queues are behind the log; None if they are not."""
        tails = [state.tail for state in self.snapshot.queues.values() if state.tail is not None]
        count, total = sum(map(len, tails)), sum(int(tail.size.sum()) for tail in tails)
        if not count:
            return None
        bases = [segment.base for segment in self.view.log.chain.segments]
        places = np.concatenate([tail.log_offset[tail.points_to_record] for tail in tails])
        but = limit_of_dispatch(bases, int(places.min(initial=self.snapshot.log_end)))
        return (
            f"{counted(count, 'message')} at the end of the log ({size(total)}) in no queue yet: a broker "
            f"lists them when it starts{but}, and reads here give them"
        )

    def _tiered(self) -> Iterator[str]:
        tiered = tiered_queues(self.view.root)
        if tiered is None:
            return
        begins = {queue: state.min_offset for queue, state in self.snapshot.queues.items()}
        older = tiered.queues_with_older(begins)
        if older or tiered.first is None:
            some = ", ".join(queue.name for queue in older[:_NAMED])
            some += ", ..." if len(older) > _NAMED else ""
            which = f"{counted(len(older), 'queue')} ({some})" if older else "queues"
            yield f"{tiered}. There {which} may begin with older messages, which consumers get"


def geometry_from_files(
    log: CommitLog, folders: QueueFolders, *, damaged_index: bool = False
) -> StoreConfig:
    """The sizes that the files were created with, as settings; None if no file shows the size.

    The given numbers of index slots and items are checked against the files.

    Raises IndexGeometryError if the newest index file does not show its geometry. With
    `damaged_index`, an older file is used instead.
    """
    files = list_index_files(folders.root / INDEX_DIR)
    geometry = index_geometry(files, folders.config, damaged=damaged_index)
    return replace(
        queue_file_sizes(folders, _QUEUES_ASKED),
        mappedFileSizeCommitLog=log.chain.file_size or None,
        maxHashSlotNum=None if geometry is None else geometry.slots,
        maxIndexNum=None if geometry is None else geometry.items,
    )


def refuse_contradicting_sizes(
    config: StoreConfig, log: CommitLog, folders: QueueFolders, snapshot: StoreSnapshot
) -> None:
    """Raise InvalidArgumentError if a file does not have its configured size: no broker loads it."""
    sizes = [("mappedFileSizeCommitLog", config.commitlog_file_size, log.chain.segments)]
    for queue, state in snapshot.queues.items():
        name = "mapperFileSizeBatchConsumeQueue" if state.batch else "mappedFileSizeConsumeQueue"
        size = config.batch_queue_file_size if state.batch else config.queue_file_size
        sizes.append((name, size, folders.files(queue, batch=state.batch).chain.segments))
    for name, size, segments in sizes:
        for segment in segments:
            if segment.size != size:
                raise InvalidArgumentError(
                    segment.path,
                    reason=f"the files of this store were not created with this {name}",
                    expected=f"{size} bytes",
                    actual=f"{segment.size} bytes",
                    advice="Omit it, or use the broker.conf of the broker that created them",
                )


def require_configured_size(chains: list[SegmentChain]) -> None:
    """Raises InvalidArgumentError if no file of these chains has the configured size."""
    files = [segment for chain in chains for segment in chain.segments]
    largest = max(files, key=lambda segment: segment.size, default=None)
    if largest is not None and largest.size < chains[0].file_size:
        raise InvalidArgumentError(
            largest.path,
            reason="all files are smaller than the configured size: the setting is of another broker, or "
            "they were cut short, and no broker starts on them",
            expected=f"{chains[0].file_size} bytes",
            actual=f"{largest.size} bytes",
            advice="Use the broker.conf of the broker that created them. If this is the one, restore the "
            f"files, or give them their size with zeros: truncate -s {chains[0].file_size} FILE",
        )


def is_last_file_cut(log: CommitLog) -> bool:
    """Whether the only file of the log ends inside a record, or right after one.

    It was longer: a broker ends a full file with a blank record (CommitLog#END_FILE_MIN_BLANK_LENGTH),
    and one that is not full ends with zeros.
    """
    segments = log.chain.segments
    if len(segments) != 1 or not 0 < segments[0].size <= log.chain.cost.spare:
        return False
    own = CommitLog(log.chain.folders, file_size=segments[0].size)
    end = own.chain.stop
    last: SoundRun | RecordOrGap | None = None
    try:
        if not own.chain.read(max(own.start, end - _END), end).any():
            return False
        for piece in walk(own, check_crc=False):
            last = piece
        if not isinstance(last, RecordOrGap):
            return last is not None and last.stop == end
        if last.gap not in (Gap.TORN, Gap.DAMAGED) or last.stop != end:
            return False
        head = own.chain.read(last.start, min(end, last.start + BLANK_SIZE)).tobytes()
        magic = int.from_bytes(head[4:], "big")
        return len(head) < BLANK_SIZE or (
            magic in (MAGIC_V1, MAGIC_V2) and last.start + int.from_bytes(head[:4], "big") > end
        )
    finally:
        own.chain.close()


def refuse_unknown_size(log: CommitLog, config: StoreConfig) -> None:
    """Raise InvalidArgumentError if the full size of the log's files is neither given nor to be seen.

    A broker starts on no file of another size, so what is made of it would be of no use.
    """
    if config.mappedFileSizeCommitLog is None and is_last_file_cut(log):
        segment = log.chain.segments[0]
        raise InvalidArgumentError(
            segment.path,
            reason="the only file of the log was cut short: it ends without a blank record, so that its "
            "full size is not known",
            expected="mappedFileSizeCommitLog",
            actual=f"{segment.size} bytes",
            advice="Give the broker's configuration: --broker-conf. What followed is lost: search for it in "
            "a replica or a copy first",
        )


def queue_file_sizes(folders: QueueFolders, most: int | None = None) -> StoreConfig:
    """File sizes of the existing queues, as most of them say; of `most` queues of each kind at most.

    Queues with several files show the size by their names, so they decide if there are any. A file that was
    cut inside of a unit shows none.
    """
    votes: dict[bool, Counter[tuple[bool, int]]] = {False: Counter(), True: Counter()}
    for queue, batch in folders.queues_in_folders().items():
        if most is None or votes[batch].total() < most:
            files = folders.files_in_folder(queue, batch=batch)
            chain = files.chain
            if chain.segments and chain.file_size % files.dtype.itemsize == 0:
                votes[batch][len(chain.segments) > 1, chain.file_size] += 1
    return StoreConfig(
        mappedFileSizeConsumeQueue=_elected(votes[False]),
        mapperFileSizeBatchConsumeQueue=_elected(votes[True]),
    )


def _elected(votes: Mapping[tuple[bool, int], int]) -> int | None:
    """The size with most votes, of those from several files if there are any; the largest of equals."""
    if not votes:
        return None
    by_names = {size: count for (several, size), count in votes.items() if several}
    counts = by_names or {size: count for (_, size), count in votes.items()}
    return max(counts, key=lambda size: (counts[size], size))
