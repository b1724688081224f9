"""The log after a crash: where the scan starts, and where the log ends.

A record counts if it is whole, at its physicalOffset, and has the right CRC. Anything else ends the
log, unless it is known to have been flushed before as a whole record. Then it is damage: it remains
unchanged, and the log continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import (
    WITHIN_THE_LOG,
    RecordOrGap,
    SoundRun,
    last_record_and_end,
    sound_headers,
    walk,
)
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.entry_of_record import QueuesBegun
from rmq_store.errors import StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import INDEX_DIR, Ints
from rmq_store.format.record import Gap
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import (
    Geometry,
    Header,
    IndexFile,
    index_geometry,
    list_index_files,
)
from rmq_store.index.index_writer import IndexWriter
from rmq_store.markers import Checkpoint
from rmq_store.recovery.report import ChangeList

TIMESTAMP_SLACK_MS = 3000  # StoreCheckpoint#getMinTimestamp


def start_after_checkpoint(log: CommitLog, checkpoint: Checkpoint) -> int:
    """The scan start: the newest file before which log and queues were flushed completely.

    Uses the checkpoint's offset (5.5.0 and later) and its times (all releases), whichever is
    earlier. Without a checkpoint it is the log's first file.
    """
    times = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    until = min(times) - TIMESTAMP_SLACK_MS
    dispatched = checkpoint.logics_physical_offset
    for segment in reversed(log.chain.segments):
        record = log.intact_record_at(segment.base)
        if record is None or not 0 < record.store_timestamp <= until:
            continue
        if dispatched <= 0 or segment.base <= dispatched:
            return segment.base
    return log.start


@dataclass
class LogWalk:
    """One pass over the log from `start`; `end` and the other results are valid after the pass.

    `flushed_until`: records stored up to that time (ms) were on the disk. `keeps_intact`: intact
    records behind damage count, unless they are older than the record before it. `stop`: the known
    end from an earlier pass, with the damage found then; CRCs are not computed again.
    """

    log: CommitLog
    start: int
    flushed_until: int = 0
    keeps_intact: bool = False
    stop: int | None = None
    end: int = 0
    records: int = 0
    last_record: int = -1
    last_timestamp: int = 0  # when that was stored, ms
    newest_timestamp: int = 0  # the latest of all: a clock may have been set back
    damage: list[tuple[int, int]] = field(default_factory=list)

    begun: QueuesBegun = field(default_factory=QueuesBegun)
    last_base: int = -1  # of the last file with a record; by default looked for

    def __post_init__(self) -> None:
        self.end = self.start
        if self.last_base < 0:
            last = self.log.last_file()
            self.last_base = self.log.start if last is None else last.base

    def again(self, start: int) -> LogWalk:
        """The walk over the same records, or from another start, that has nothing to find."""
        return LogWalk(self.log, start, stop=self.end, damage=self.damage, last_base=self.last_base)

    def walk_to_end(self, progress: Callable[[int], None] | None = None) -> LogWalk:
        """Walk, and find the queues that begin in it. `progress`: callback that receives byte counts of
        records."""
        for headers in self.pieces():
            self.begun.add_headers(headers)
            if progress is not None:
                progress(int(headers.total.sum()))
        return self

    def pieces(self) -> Iterator[Headers]:
        """The records in order, some thousand at a time."""
        for headers in self._found() if self.stop is None else self._known(self.stop):
            self._note(headers)
            yield headers
        # The last file may begin with damage too, so that no record follows what is before it.
        self.damage = [part for part in self.damage if part[0] < self.end]

    def _known(self, stop: int) -> Iterator[Headers]:
        """The records of a log whose end and damage are known."""
        at = self.start
        for damaged, behind in [*self.damage, (stop, stop)]:
            if at < damaged:
                yield from sound_headers(self.log, at, damaged, check_crc=False)
            at = max(at, behind)

    def _found(self) -> Iterator[Headers]:
        """The records up to the end of the log. Notes the damage before the end."""
        doubt: _Doubt | None = None
        for piece in walk(self.log, self.start):
            if doubt is not None and piece.start >= doubt.file_end:
                if doubt.base >= self.last_base:
                    return
                self.damage.append((doubt.start, doubt.file_end))
                doubt = None
            if isinstance(piece, SoundRun):
                if doubt is not None:
                    if doubt.base >= self.last_base and not self._counts(piece, doubt):
                        return
                    self.damage.append((doubt.start, piece.start))
                    doubt = None
                yield piece.headers
            elif piece.gap is Gap.MISSING:
                if piece.stop > self.last_base:
                    return
                self.damage.append((piece.start, piece.stop))
            elif piece.gap is Gap.DAMAGED:
                doubt = doubt or self._doubt_at(piece)
            elif piece.gap not in WITHIN_THE_LOG:
                return

    def _doubt_at(self, gap: RecordOrGap) -> _Doubt:
        segment = self.log.chain.segment_at(gap.start)
        assert segment is not None
        return _Doubt(gap.start, segment.base, self.log.chain.segment_end(segment))

    def _note(self, headers: Headers) -> None:
        last = int(headers.at[-1]) + headers.base
        self.records += len(headers)
        self.last_record = last
        self.end = last + int(headers.total[-1])
        stamps: Ints = headers.store_timestamp
        self.last_timestamp = int(stamps[-1])
        self.newest_timestamp = max(self.newest_timestamp, int(stamps.max()))

    def _counts(self, run: SoundRun, doubt: _Doubt) -> bool:
        """Whether the records behind damage count: they were on the disk before a crash, or are kept."""
        stored = int(run.headers.store_timestamp[0])
        # A record older than its predecessors remains from before the log was truncated. That leaves no
        # file without a newer record before them: behind the front of a file the clock was set back.
        if self.keeps_intact and (doubt.start == doubt.base or stored >= self.last_timestamp):
            return True
        if max(1, self.newest_timestamp) <= stored <= self.flushed_until:
            return True
        if self.newest_timestamp <= self.flushed_until:
            return False
        # Times went back, or this was not flushed. The checkpoint of a store that was closed has the
        # time of its last record.
        last, _ = last_record_and_end(self.log, run.start)
        return last is not None and self.log.store_time_at(last) == self.flushed_until


class _Doubt(NamedTuple):
    """Where bytes that do not count begin, and the file that holds them, as log offsets."""

    start: int
    base: int
    file_end: int


def writer_of_newest_index_file(
    root: Path, files: Sequence[SegmentFile], geometry: Geometry, release: Dialect, *, planned: bool
) -> IndexWriter:
    """A writer that continues the newest of the `files`, with the header that it has.

    As in the broker, nothing else of the file is checked (IndexService#getAndCreateLastIndexFile).
    `planned`: it only counts.
    """
    header: Header | None = None
    if files:
        header = IndexFile(files[-1], assumed=geometry).header
        header = replace(header, index_count=max(1, header.index_count))  # IndexHeader#load
    last = Path(files[-1].path) if files else None
    return IndexWriter(root, geometry, release, last, header, only_counts=planned)


class IndexRecovery:
    """Which files remain, and the log offset from which to rebuild the index: their end, else the start of
    the deleted ones."""

    def __init__(
        self, root: Path, config: StoreConfig, checkpoint: Checkpoint, log_range: tuple[int, int]
    ) -> None:
        files = list_index_files(root / INDEX_DIR)
        geometry = index_geometry(files, config)
        self.has_default_size = geometry is None
        self.geometry = geometry or Geometry(config.index_slots, config.index_items)
        self._root = root
        first, self._log_end = log_range
        headers, full = [self._header(segment) for segment in files], list[Header]()
        for header in headers:
            if header is None or not self._is_full(header, checkpoint):
                break  # all files after a doubtful one are doubtful
            full.append(header)
        self.kept, self.doubtful = files[: len(full)], files[len(full) :]
        self.start: int | None = None
        if full:
            self.start = max(first, full[-1].end_log_offset)
        elif files:
            begin = -1 if headers[0] is None else headers[0].begin_log_offset
            self.start = begin if first <= begin < self._log_end else first

    def _is_full(self, header: Header, checkpoint: Checkpoint) -> bool:
        """Whether a file was flushed completely and is no longer written to.

        The time alone does not show that: a file begun in the same millisecond in which the
        previous one became full has the same time.
        """
        whole = header.index_count >= self.geometry.items
        return whole and header.end_timestamp <= checkpoint.index_msg_timestamp

    def _header(self, segment: SegmentFile) -> Header | None:
        """The header of a trustworthy file; None for any other."""
        try:
            header = IndexFile(segment, slots=self.geometry.slots, items=self.geometry.items).header
        except StoreError:
            return None
        return header if header.items and header.end_log_offset < self._log_end else None

    def remove_doubtful_files(self, changes: ChangeList) -> None:
        """Delete the files that may be torn, and those that a crash left without a header."""
        for file in self.doubtful + list_index_files(self._root / INDEX_DIR, too_short=True):
            changes.remove(file.path, file.size)
