"""The log after a crash: where the scan starts, and where the log ends.

A record counts if it is whole, at its physicalOffset, and has the right CRC. Anything else ends the
log, unless it is known to have been flushed before as a whole record. Then it is damage: it remains
unchanged, and the log continues after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from rmq_store.commitlog.headers import Headers, wrong_crc_rows
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_runs import follow
from rmq_store.errors import CorruptRecordError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import PROPERTIES_LENGTH_SIZE
from rmq_store.format.record import Gap, Record, decode_record
from rmq_store.markers.checkpoint import Checkpoint

_BYTES_AT_A_TIME = 32 << 20
_SECTOR = 512  # bytes of the smallest disk write
TIMESTAMP_SLACK_MS = 3000  # StoreCheckpoint#getMinTimestamp


def first_record(log: CommitLog, segment: SegmentFile) -> Record | None:
    """The fully checked record at the start of a log file; None without one."""
    try:
        found = log.decoded_at(segment, segment.base)
    except CorruptRecordError:
        return None
    return found if isinstance(found, Record) else None


def careful_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """The scan start: the newest file before which log and queues were flushed completely.

    Uses the checkpoint's offset (5.5.0 and later) and its times (all releases), whichever is
    earlier. Without a checkpoint it is the log's first file.
    """
    times = (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    until = min(times) - TIMESTAMP_SLACK_MS
    dispatched = checkpoint.logics_physical_offset
    for segment in reversed(log.chain.segments):
        record = first_record(log, segment)
        if record is None or not 0 < record.store_timestamp <= until:
            continue
        if dispatched <= 0 or segment.base <= dispatched:
            return segment.base
    return log.start


@dataclass
class LogWalk:
    """One pass over the log from `start`; `end` and the other results are valid after the pass.

    `flushed_until`: records stored up to that time (ms) were on the disk. `stop`: the known end
    from an earlier pass, with the damage found then; CRCs are not computed again.
    """

    log: CommitLog
    start: int
    flushed_until: int = 0
    stop: int | None = None
    end: int = 0
    records: int = 0
    last_record: int = -1
    last_timestamp: int = 0  # when that was stored, ms
    newest_timestamp: int = 0  # the latest of all: a clock may have been set back
    damage: list[tuple[int, int]] = field(default_factory=list)

    last_base: int = -1  # of the last file with a record; by default looked for

    def __post_init__(self) -> None:
        self.end = self.start
        if self.last_base < 0:
            last = self.log.last_record_file()
            self.last_base = self.log.start if last is None else last.base

    def again(self, start: int) -> LogWalk:
        """The walk over the same records, or from another start, that has nothing to find."""
        return LogWalk(self.log, start, stop=self.end, damage=self.damage, last_base=self.last_base)

    def to_the_end(self, progress: Callable[[int], None] | None = None) -> LogWalk:
        """Walk without using the records. `progress`: callback that receives byte counts of records."""
        for headers in self.pieces():
            if progress is not None:
                progress(int(headers.total.sum()))
        return self

    def pieces(self) -> Iterator[Headers]:
        """The records in order, some tens of megabytes at a time."""
        at: int | None = self.start
        known = dict(self.damage)
        while at is not None and (self.stop is None or at < self.stop):
            segment = self.log.chain.segment_at(at)
            if at in known:
                at = known[at]
            elif segment is None:
                at = self._after_hole(at)
            else:
                with self.log.window_of(segment) as window:
                    at = yield from self._pieces_in(window.bytes, segment, at, known)

    def _pieces_in(
        self, window: Bytes, segment: SegmentFile, start: int, known: Mapping[int, int]
    ) -> Generator[Headers, None, int | None]:
        """The records of one file. Returns where the log continues; None if it does not."""
        at: int | None = start
        stop = segment.base + len(window)
        if self.stop is not None:
            stop = min(stop, self.stop)
        while at is not None and at < stop and at not in known:
            headers = self._sound(window, segment, at)
            if len(headers):
                self._note(headers)
                at = self.end
                yield headers
            else:
                at = self._continues_at(window, segment, at)
        return at

    def _sound(self, window: Bytes, segment: SegmentFile, at: int) -> Headers:
        """The records from `at` up to the first one that does not count."""
        base = segment.base
        ends = [start for start, _ in self.damage if start > at]
        limit = min([base + len(window), *ends, *([] if self.stop is None else [self.stop])])
        run = follow(window, base, at - base, min(limit - base, at - base + _BYTES_AT_A_TIME))
        places = run.at[run.at + base < limit]
        headers = Headers(window, places, base)
        whole = headers.valid & (places + headers.total <= segment.size)
        bad = np.flatnonzero(~whole)
        upto = int(bad[0]) if len(bad) else len(places)
        if self.stop is None:
            sound = headers if upto == len(places) else headers.take(slice(0, upto))
            wrong = np.union1d(wrong_crc_rows(sound), self._half_written(sound))
            upto = int(wrong[0]) if len(wrong) else upto
        return headers if upto == len(places) else headers.take(slice(0, upto))

    def _half_written(self, headers: Headers) -> Ints:
        """Rows that add up and are still torn: the body CRC does not cover topic and properties.

        Bytes that did not reach the disk are zero, to the record's end or for a whole sector.
        Records known to have been flushed skip the sector check, because a property may hold zeros
        itself.
        """
        window, start = headers.window, headers.properties_at
        end = start + headers.properties_length
        torn = window[start - PROPERTIES_LENGTH_SIZE - 1] == 0  # the last byte of the topic
        torn |= (headers.properties_length > 0) & (window[end - 1] == 0)
        fresh = headers.store_timestamp > self.flushed_until
        sector = -(-start // _SECTOR) * _SECTOR
        while (inside := np.flatnonzero(fresh & (sector < end))).size:
            for row in inside[window[sector[inside]] == 0].tolist():
                piece = window[int(sector[row]) : min(int(sector[row]) + _SECTOR, int(end[row]))]
                torn[row] |= not piece.any()
            sector = sector + _SECTOR
        return np.flatnonzero(torn)

    def _note(self, headers: Headers) -> None:
        last = int(headers.at[-1]) + headers.base
        self.records += len(headers)
        self.last_record = last
        self.end = last + int(headers.total[-1])
        stamps: Ints = headers.store_timestamp
        self.last_timestamp = int(stamps[-1])
        self.newest_timestamp = max(self.newest_timestamp, int(stamps.max()))

    def _continues_at(self, window: Bytes, segment: SegmentFile, at: int) -> int | None:
        """The place where the log continues after bytes that are not a record; None if it does not."""
        file_end = segment.base + self.log.chain.file_size
        if at >= file_end:
            return file_end
        try:
            found = decode_record(window.data, at - segment.base, at, segment.path)
        except CorruptRecordError:
            found = Gap.DAMAGED
        if found is Gap.FILLER:
            return file_end  # keeps `end`: the log continues after the blank only with a record
        if found is Gap.GHOST:  # some brokers leave such records between others, and at the end
            return at + int.from_bytes(window[at - segment.base :][:4].tobytes(), "big")
        return self._after_damage(window, segment, at)

    def _after_damage(self, window: Bytes, segment: SegmentFile, at: int) -> int | None:
        behind = self._next_sound(window, segment, at + 1)
        if segment.base < self.last_base:
            after = segment.base + self.log.chain.file_size if behind is None else behind
        elif behind is not None and self._was_flushed(window, segment, behind):
            after = behind
        else:
            return None
        self.damage.append((at, after))
        return after

    def _after_hole(self, at: int) -> int | None:
        """The file after a missing one, if the log continues there."""
        for segment in self.log.chain.segments_from(at):
            if segment.base > at and segment.base <= self.last_base:
                self.damage.append((at, segment.base))
                return segment.base
        return None

    def _was_flushed(self, window: Bytes, segment: SegmentFile, at: int) -> bool:
        headers = Headers(window, np.array([at - segment.base]), segment.base)
        stored = int(headers.store_timestamp[0])
        # A record older than its predecessors remains from before the log was truncated.
        if max(1, self.newest_timestamp) <= stored <= self.flushed_until:
            return True
        if self.newest_timestamp <= self.flushed_until:
            return False
        # Times went back, or this was not flushed. The checkpoint of a store that was closed has the
        # time of its last record.
        return self._last_time_of_run(window, segment, at) == self.flushed_until

    def _last_time_of_run(self, window: Bytes, segment: SegmentFile, at: int) -> int:
        """When the last of the adjacent records at a log offset of a file was stored (ms)."""
        run = follow(window, segment.base, at - segment.base, len(window))
        headers = Headers(window, run.at[-1:], segment.base)
        return int(headers.store_timestamp[0]) if len(run.at) else 0

    def _next_sound(self, window: Bytes, segment: SegmentFile, at: int) -> int | None:
        """The next place in the file with a record whose lengths add up."""
        base, end = segment.base, segment.base + len(window)
        while (found := self.log.next_record(segment, at, end)) is not None:
            if Headers(window, np.array([found - base]), base).valid[0]:
                return found
            at = found + 1
        return None
