"""The CommitLog: one stream of records in files of one size (CommitLog, MappedFileQueue).

In files of a DLedger log each record is the body of an entry, whose head is its `frame`: the record at P
takes the bytes from P - frame to the end of the record. All offsets that lead to a record are P; pieces
of the log and ranges that are walked begin and end where entries do. In other files the frame is 0.
"""

from __future__ import annotations

import errno
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmq_store.commitlog.headers import Headers, RecordRun, follow_records, next_record
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.dledger import entries_folders, refuse_entries
from rmq_store.config.locate import commitlog_folders
from rmq_store.errors import (
    CorruptRecordError,
    LogOffset,
    MissingFileError,
    OtherStoreError,
    UnrecoverableStoreError,
    from_os_error,
    shown_path,
)
from rmq_store.files.segment_chain import OpenFiles, SegmentChain, SegmentWriter
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.files.source import Sources, Window
from rmq_store.format.byte_layout import (
    BLANK_HEAD,
    BLANK_SIZE,
    HEAD_SIZE,
    MAGIC_BLANK,
    RECORD_HEAD,
    Bytes,
    Ints,
    Mask,
    Property,
    segment_name,
)
from rmq_store.format.queues import QueueId
from rmq_store.format.record import (
    ENTRY_HEAD_SIZE,
    DLedgerEntryHead,
    Gap,
    Record,
    decode_record,
    decode_utf8,
)

_SIZE_FIELD = 4
_LEAST_LOOK = 64 << 10
_LARGEST_RECORD = 32 << 20

_FIRST: Ints = np.zeros(1, dtype=np.int64)
# A record begins with four bytes of size. At most the first three of them are zeros, so a
# record may begin up to three bytes before the first stored byte.
_ZEROS_OF_A_SIZE = 3
_ZEROS_OF_A_FILE_AHEAD = 1 << 20  # bytes at the start of a file that show one made ahead
_BYTES_AT_A_TIME = 4 << 20
_ROWS_LOOKED_AT = 1 << 20
_LOOKED_AT = 64  # files at either end of the log; each is a place of the disk
_RENAME = "Give it that name before anything else: its messages are then read again"
_TAKEN = (
    "Another file has that name: keep the one with the messages, and move the other one away first"
)
_BOTH = (
    "The file with that name has a wrong one too: move that one aside first, then give each its own name "
    "before anything else: their messages are then read again"
)


def _may_be_of(queue: QueueId, headers: Headers) -> bool:
    """Whether a queue can list the first of some records: one of its own, or one of several queues."""

    def stored(at: Ints, length: Ints) -> bytes:
        return headers.window[int(at[0]) : int(at[0] + length[0])].tobytes()

    topic = decode_utf8(stored(headers.topic_at, headers.topic_length))
    if int(headers.queue_id[0]) == queue.queue_id and topic == queue.topic:
        return True
    properties = stored(headers.properties_at, headers.properties_length)
    return Property.INNER_MULTI_DISPATCH.encode() in properties


class CommitLog:
    """The records of a store by log offset. Opens files only for reading."""

    def __init__(
        self,
        folders: Sequence[str | Path],
        *,
        file_size: int | None = None,
        sources: Sources | None = None,
        entries: Sequence[str | Path] = (),
        copied: bool = False,
        from_empty: bool = True,
    ) -> None:
        """`copied`: its records are copies, which were given another physicalOffset (`decode_record`).

        `entries`: those of `folders` with the files of a DLedger log, which follow all others.

        `from_empty`: empty files before all others are a hole, as what they held is lost; else none are.
        """
        self.chain = SegmentChain(
            folders,
            file_size=file_size,
            segments=_listed(folders, entries),
            sources=sources,
            setting="mappedFileSizeCommitLog",
            place=LogOffset,
            from_empty=from_empty,
        )
        self._file_size, self._entries, self.copied = file_size, entries, copied
        framed = {os.fspath(folder) for folder in entries}
        files = self.chain.segments if framed else ()
        bases = (file.base for file in files if os.path.dirname(file.path) in framed)
        self._entries_from = next(bases, None)

    @property
    def has_dledger_files(self) -> bool:
        """Whether files of a DLedger log are among its files."""
        return self._entries_from is not None

    def frame_size_at(self, offset: int) -> int:
        """Bytes before each record of the file that holds a log offset."""
        framed = self._entries_from is not None and offset >= self._entries_from
        return ENTRY_HEAD_SIZE if framed else 0

    def entry_start(self, offset: int) -> int:
        """Where the DLedger entry around a record starts; `offset` itself in a plain log."""
        frame = self.frame_size_at(offset)
        segment = self.chain.segment_at(offset) if frame else None
        if segment is None or offset - segment.base < frame:
            return offset
        end = self.chain.segment_end(segment)
        head = DLedgerEntryHead.of(self.chain.read(offset - frame, offset).tobytes())
        here = DLedgerEntryHead.of(self.chain.read(offset, min(offset + frame, end)).tobytes())
        leads_here = head.fault_at(offset - frame) is None and head.body_length > 0
        if here.fault_at(offset) is None or not (leads_here or self.is_record(offset)):
            return offset
        return offset - frame

    @property
    def start(self) -> int:
        """minPhyOffset: where the first file begins."""
        return self.chain.start

    @property
    def first_record_offset(self) -> int:
        """Where the first record is, in a log that begins with one."""
        return self.start + self.frame_size_at(self.start)

    def path_at(self, offset: int) -> str:
        """The file that holds `offset`, for messages; the folder if no file does."""
        segment = self.chain.segment_at(offset)
        return self.chain.folders[0] if segment is None else segment.path

    def record_at(self, offset: int) -> Record:
        """The record at `offset`, fully checked.

        Raises MissingFileError if no file holds the offset, CorruptRecordError if no record starts
        there.
        """
        segment = self.chain.segment_at(offset)
        if segment is None:
            raise self._in_no_file(offset)
        decoded = self.record_or_gap_at(segment, offset)
        if isinstance(decoded, Record):
            return decoded
        raise CorruptRecordError(
            segment.path,
            offset=LogOffset(offset),
            reason=f"no record starts here: {decoded.value}",
            advice="rmqstore verify lists the gaps",
        )

    def _in_no_file(self, offset: int) -> MissingFileError:
        for start, stop in self.chain.holes:
            if start <= offset < stop:
                return MissingFileError(
                    self.chain.folders[0],
                    offset=LogOffset(offset),
                    reason=f"the files of the CommitLog from {start} to {stop} are missing or empty, "
                    "including the record",
                    advice="Files after them are there, so they did not expire. Restore "
                    "them from a replica or a copy; rmqstore salvage saves the rest",
                )
        return MissingFileError(
            self.chain.folders[0],
            offset=LogOffset(offset),
            reason="no file of the CommitLog holds this offset",
            expected=f"{self.start} to {self.chain.stop}",
            advice="It expired and was deleted, or was never written",
        )

    def intact_record_at(self, offset: int) -> Record | None:
        """The record at `offset`, fully checked; None without one."""
        try:
            return self.record_at(offset)
        except (CorruptRecordError, MissingFileError):
            return None

    def record_or_gap_at(self, segment: SegmentFile, offset: int) -> Record | Gap:
        """What starts at a log offset of a file. Raises CorruptRecordError for any other bytes."""
        with self._from(offset, segment) as window:
            decoded = decode_record(window.bytes.data, 0, offset, segment.path, copied=self.copied)
        stop = segment.base + segment.size
        # A truncated file reads as if zeros followed, so the record may seem whole.
        if isinstance(decoded, Record) and offset + decoded.total_size > stop:
            raise CorruptRecordError(
                segment.path,
                offset=LogOffset(offset),
                reason="the file ends inside the record",
                expected=f"{decoded.total_size} bytes",
                actual=f"{stop - offset} bytes",
                advice="The file was truncated or copied in part; the whole file holds the rest",
            )
        return decoded

    def entry_at(self, segment: SegmentFile, offset: int) -> DLedgerEntryHead | None:
        """The head of the entry at a log offset of a file; None for a file without entries."""
        frame = self.frame_size_at(offset)
        if not frame:
            return None
        stop = min(offset + frame, self.chain.segment_end(segment))
        return DLedgerEntryHead.of(self.chain.read(offset, stop).tobytes())

    def _from(self, offset: int, segment: SegmentFile) -> Window:
        """The file from `offset` on, as far as the record there declares its size."""
        window = self.chain.window_of(segment, offset)
        window.fetch([0], [_LEAST_LOOK])
        declared = int.from_bytes(window.bytes[:_SIZE_FIELD].tobytes(), "big", signed=True)
        if declared > _LEAST_LOOK:
            window.fetch([0], [min(declared, _LARGEST_RECORD)])
        return window

    def files_that_may_go(self, end: int) -> list[SegmentFile]:
        """The files before the last one, in which the log ends at `end`."""
        return [file for file in self.chain.segments if self.may_go(file, end)]

    def may_go(self, file: SegmentFile, end: int) -> bool:
        """Whether retention may delete a file of a log that ends at `end`: not the last one. Files behind
        that were created in advance, and are not among those of the broker (AllocateMappedFileService)."""
        return file != self.chain.segments[-1] and self.chain.segment_end(file) <= end

    def with_files_of_now(self) -> CommitLog:
        """The log of the files that are there now; the caller closes it."""
        return CommitLog(
            self.chain.folders, file_size=self._file_size, entries=self._entries, copied=self.copied
        )

    def current_start(self) -> int:
        """The log offset of the first file that exists now; everything before it has expired."""
        segments = list_segments(self.chain.folders)
        return self.chain.start_with_empty_files(segments[0]) if segments else 0

    def is_record(self, offset: int, size: int | None = None) -> bool:
        """Whether a whole record of `size` bytes is at `offset`; its CRC is not checked."""
        return self._headers_at(offset, size) is not None

    def whole_records(self, offsets: Ints, sizes: Ints) -> Mask:
        """Which of these places hold a whole record of that size; CRCs are not checked."""
        whole = np.zeros(len(offsets), dtype=bool)
        for rows, _ in self.whole_headers(offsets, sizes):
            whole[rows] = True
        return whole

    def whole_headers(self, offsets: Ints, sizes: Ints) -> Iterator[tuple[Ints, Headers]]:
        """Those of these places that hold a whole record of that size, and their fields, file by file. CRCs
        are not checked."""
        for segment in self.chain.segments:
            stop = segment.base + segment.size
            rows = np.flatnonzero((offsets >= segment.base) & (offsets + sizes <= stop))
            if len(rows):
                places = offsets[rows] - segment.base
                with self.chain.window_of(segment) as window:
                    window.fetch(places, places + sizes[rows])
                    headers = Headers(window.bytes, places, segment.base)
                    whole = headers.valid & (headers.total == sizes[rows])
                    if whole.any():
                        yield rows[whole], headers.take(np.flatnonzero(whole))

    def store_time_at(
        self, offset: int, size: int | None = None, queue: QueueId | None = None
    ) -> int | None:
        """The storeTimestamp (ms) of the whole record of `size` bytes at `offset`; None without one.

        None too if the record is of another queue than `queue`, if that is given. The CRC is not checked.
        """
        headers = self._headers_at(offset, size, queue)
        return None if headers is None else int(headers.store_timestamp[0])

    def _headers_at(
        self, offset: int, size: int | None, queue: QueueId | None = None
    ) -> Headers | None:
        segment = self.chain.segment_at(offset)
        if segment is None or offset < 0:
            return None
        with self._from(offset, segment) as window:
            headers = Headers(window.bytes, _FIRST, offset)
            total = int(headers.total[0])
            whole = bool(headers.valid[0]) and offset + total <= segment.base + segment.size
            whole = whole and (queue is None or _may_be_of(queue, headers))
        return headers if whole and (size is None or total == size) else None

    def run_in(self, window: Window, segment: SegmentFile, at: int, upto: int) -> RecordRun:
        """The run of records of a file that start in [at, upto), log offsets.

        `window`: the one of the file. The bytes of these records are available in it then. With entries,
        these are the starts of entries, all of one term and with consecutive indexes.
        """
        start, stop, frame = (
            at - segment.base,
            upto - segment.base,
            self.frame_size_at(segment.base),
        )
        fetched = stop + frame + HEAD_SIZE
        window.fetch([start], [fetched])
        run = follow_records(window.bytes, segment.base, start, stop, frame)
        if run.stop > fetched:  # the last record extends past `upto`
            window.fetch([start], [run.stop])
        return run

    def last_file(self) -> SegmentFile | None:
        """The last file with a record (or a blank at its start), in which the log ends; without one
        the first file, None without files.

        It may begin with damage. At most one file follows: one that the broker made ahead, with zeros or
        with a first record that it is writing. Raises UnsupportedStoreError for files with entries of a
        DLedger log that are not among those of one.
        """
        for segment in reversed(self.chain.segments):
            if self._begins_with_record(segment) or self._has_record_behind_damage(segment):
                return segment
        return next(iter(self.chain.segments), None)

    def _begins_with_record(self, segment: SegmentFile) -> bool:
        """Whether a file begins with a record, a blank, or an entry that has no record."""
        frame = self.frame_size_at(segment.base)
        with self._from(segment.base, segment) as window:
            raw = window.bytes[:ENTRY_HEAD_SIZE].tobytes()
            if frame:
                head = DLedgerEntryHead.of(raw)
                window.fetch([0], [min(max(head.size, frame), _LARGEST_RECORD)])
                other = head.is_blank(self.chain.file_size) or head.fault_at(segment.base) is None
            else:
                other = int.from_bytes(raw[4:BLANK_SIZE], "big") == MAGIC_BLANK
            if other or Headers(window.bytes, _FIRST + frame, segment.base).valid[0]:
                return True
            if not frame:
                refuse_entries(segment, raw)
        return False

    def _has_record_behind_damage(self, segment: SegmentFile) -> bool:
        """Whether an intact record follows the start of a file that begins with other bytes."""
        chain, at, end = self.chain, segment.base, self.chain.segment_end(segment)
        looked_at = min(_ZEROS_OF_A_FILE_AHEAD, chain.cost.spare)
        if chain.is_zero(at, min(end, chain.stored_from(at) + looked_at)):
            return False
        start = self.next_record(segment, at + 1, end)
        while start is not None:
            if self.intact_record_at(start + self.frame_size_at(start)) is not None:
                return True
            start = self.next_record(segment, start + 1, end)
        return False

    def next_record(self, segment: SegmentFile, start: int, stop: int) -> int | None:
        """The first log offset in [start, stop), within one file, where a record seems to start.

        With entries, where the entry of one does.
        """
        base, frame = segment.base, self.frame_size_at(segment.base)
        behind = min(stop + frame, self.chain.segment_end(segment))

        def stored_from(position: int) -> int:
            return max(position, self.chain.stored_from(base + position) - base - _ZEROS_OF_A_SIZE)

        with self.chain.window_of(segment) as window:
            place = next_record(window, base, start + frame - base, behind - base, stored_from)
        return None if place is None else base + place - frame


def _listed(folders: Sequence[str | Path], entries: Sequence[str | Path]) -> list[SegmentFile]:
    """The files of the log. A DLedger log that overlaps the other one is refused later, by its name."""
    framed = {os.fspath(folder) for folder in entries}
    plain = [folder for folder in folders if os.fspath(folder) not in framed]
    files = {
        file.base: file for file in (*list_segments(entries), *list_segments(plain, unique=True))
    }
    return [files[base] for base in sorted(files)]


def open_log(root: Path, config: StoreConfig) -> CommitLog:
    """The log of a store, whichever kind of files it has. Raises as `commitlog_folders`."""
    return CommitLog(
        commitlog_folders(root, config),
        file_size=config.mappedFileSizeCommitLog,
        entries=entries_folders(root, config),
    )


def files_without_a_byte(log: CommitLog) -> list[Path]:
    """The files of a local log without a byte, before its last file: no broker starts with one."""
    last = max((segment.base for segment in log.chain.segments), default=-1)
    paths = (path for folder in log.chain.folders for path in Path(folder).glob("[0-9]" * 20))
    return sorted(path for path in paths if int(path.name) < last and not path.stat().st_size)


class LogAppender:
    """Appends whole records at `end`, the log offset after the last one."""

    def __init__(self, files: OpenFiles, folders: Sequence[Path], file_size: int, end: int) -> None:
        """New files alternate between `folders`, as with several paths of a commitlog."""
        self._files = files
        self._stream = SegmentWriter(
            files, lambda base: folders[base // file_size % len(folders)], file_size
        )
        self._file_size = file_size
        self.end = end

    @property
    def room(self) -> int:
        """Bytes from the end of the log to the end of its current file."""
        return self._file_size - self.end % self._file_size

    def fitting(self, sizes: Ints, *, together: bool = False) -> int:
        """How many of the next records fit into the current file, limited to a few megabytes.

        A record fits if space for a blank record remains after it
        (DefaultAppendMessageCallback#doAppend). `together`: all or none.
        """
        ends = np.cumsum(sizes[:_ROWS_LOOKED_AT])
        fit = int(np.searchsorted(ends, self.room - BLANK_SIZE, side="right"))
        if together:
            return fit if fit == len(sizes) else 0
        return min(fit, max(1, int(np.searchsorted(ends, _BYTES_AT_A_TIME, side="right"))))

    def write(self, data: Bytes) -> None:
        """Write whole records; the caller has checked that they fit."""
        self._stream.write(self.end, data)
        self.end += len(data)

    def end_file(self) -> None:
        """Write a blank record up to the end of the file; the log continues in the next file."""
        left = self.room
        blank = np.array([(left, MAGIC_BLANK)], dtype=BLANK_HEAD)
        self._stream.write(self.end, blank.view(np.uint8))
        self.end += left
        # After this sync a crash can tear only the last file, and recovery cuts nowhere else.
        self._files.sync()


@dataclass(frozen=True, slots=True)
class MisnamedFile:
    """A log file without a record that belongs there, whose first one names the start of another file."""

    file: SegmentFile
    base: int
    """The log offset that its name should be."""
    advice: str
    """What to do with the file, so that no other one is overwritten."""

    def __str__(self) -> str:
        """A sentence with both names."""
        return (
            f"{shown_path(self.file.path)} has a wrong name: by the physicalOffset of its first record it is "
            f"the file {segment_name(self.base)}"
        )


def misnamed_files(
    log: CommitLog, files: Iterable[SegmentFile] | None = None
) -> Iterator[MisnamedFile]:
    """Those among some files; by default among the first and last ones of the log."""
    every = log.chain.segments
    if files is None:
        files = (
            every if len(every) <= 2 * _LOOKED_AT else [*every[:_LOOKED_AT], *every[-_LOOKED_AT:]]
        )
    for file in files:
        base = _other_base(log, file)
        if base is not None:
            others = [other for other in log.chain.segments_from(base) if other.base == base]
            taken = any(_other_base(log, other) is None for other in others)
            yield MisnamedFile(file, base, _TAKEN if taken else _BOTH if others else _RENAME)


def _other_base(log: CommitLog, file: SegmentFile) -> int | None:
    """The start of another file that the first record of a file names, if none of its own is in it.

    None for copies of records, and for a file with entries.
    """
    if log.copied or log.frame_size_at(file.base) or file.size < HEAD_SIZE:
        return None
    with log.chain.window_of(file) as window:
        window.fetch([0], [HEAD_SIZE])
        head = window.bytes[:HEAD_SIZE].view(RECORD_HEAD)[0]
        said, total = int(head["physical_offset"]), int(head["total_size"])
        if said == file.base or said % log.chain.file_size or not 0 < total <= file.size:
            return None
        window.fetch([0], [total])
        if not Headers(window.bytes, np.zeros(1, dtype=np.int64), said).valid[0]:
            return None
    own = log.next_record(file, file.base + 1, log.chain.segment_end(file))
    return None if own is not None else said


def refuse_misnamed_or_unreadable(log: CommitLog) -> None:
    """Raise UnrecoverableStoreError for log files of a wrong name: a writer would cut them.

    Raises AccessError for one that may not be read.
    """
    for file in log.chain.segments if log.chain.cost.grows else ():
        if not os.access(file.path, os.R_OK):  # few readers open all of them
            denied = OSError(errno.EACCES, os.strerror(errno.EACCES))
            raise from_os_error(file.path, denied, "opening")
    refuse_misnamed(log)


def refuse_misnamed(log: CommitLog) -> None:
    """Raise UnrecoverableStoreError for a log file with a wrong name."""
    for misnamed in misnamed_files(log):
        raise UnrecoverableStoreError(
            misnamed.file.path,
            offset=LogOffset(misnamed.file.base),
            reason=str(misnamed),
            advice=f"{misnamed.advice}. Nothing was changed",
        )


MARK_BYTES = 4096
_ADVICE = "Put the store back, or start again; a stream then needs another checkpoint"
IF_OTHER_STORE = (
    "If another store is at the path now, start again: nothing of the one before is there"
)
"""Advice where all that was known of a log is gone: it may have expired."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The digest of the bytes [start, stop) of a log."""

    start: int
    stop: int
    digest: str

    @classmethod
    def of(cls, log: CommitLog, start: int, stop: int) -> Mark | None:
        """The mark of a range within one file; None if the log does not have all of it."""
        segment = log.chain.segment_at(start)
        if segment is None or not start < stop <= log.chain.segment_end(segment):
            return None
        return cls.of_bytes(start, stop, log.chain.read(start, stop).tobytes())

    @classmethod
    def of_bytes(cls, start: int, stop: int, raw: bytes) -> Mark:
        """The mark of a range with these bytes."""
        return cls(start, stop, hashlib.blake2b(raw, digest_size=8).hexdigest())


def refuse_other_bytes(before: Mark, now: Mark | None, path: str) -> None:
    """Raise OtherStoreError if a range of a log has other bytes than before. None: it is not there now."""
    if now is not None and now != before:
        raise OtherStoreError(
            path,
            offset=LogOffset(before.start),
            reason="another store is at this path: its log has other bytes",
            expected=before.digest,
            actual=now.digest,
            advice=_ADVICE,
        )


def marks_of_files(log: CommitLog, stop: int) -> tuple[Mark, ...]:
    """Marks of a log whose bytes before `stop` do not change: of the first bytes of its first and of its
    last file, and of the last ones before `stop`. None in an object store, where each would be a request."""
    if log.chain.cost.looks_at_once > 1:
        return ()
    first, last = log.chain.segments[:1], log.chain.segment_at(stop - 1)
    places = [(file, file.base) for file in first]
    if last is not None:
        places += [(last, last.base), (last, max(last.base, stop - MARK_BYTES))]
    marks = (
        _mark_now(file, start, min(start + MARK_BYTES, stop))
        for file, start in dict.fromkeys(places)
    )
    return tuple(mark for mark in marks if mark is not None)


def refuse_other_store(log: CommitLog, marks: Iterable[Mark], path: str) -> None:
    """Raise OtherStoreError if a log has other bytes than at `marks`, or ends before one.

    Files at its front that are gone have expired. Reads the files that are at their paths now, also if
    others are open.
    """
    marks_seen = tuple(marks)
    if _has_all(marks_seen, log.chain.segments, path):
        return
    files = list_segments(log.chain.folders)
    if _has_all(marks_seen, files, path) or not files:
        return
    end = files[-1].base + files[-1].size
    for mark in marks_seen:
        if mark.start >= end:
            raise OtherStoreError(
                path,
                offset=LogOffset(mark.start),
                reason="another store is at this path, or the last files of its log are gone",
                expected=f"a file of the log with offset {mark.start}",
                actual=f"a log that ends at {end}",
                advice=_ADVICE,
            )


def _has_all(marks: Iterable[Mark], files: Sequence[SegmentFile], path: str) -> bool:
    """Whether files of a log have the bytes of all marks. Raises OtherStoreError for other bytes."""
    every = True
    for mark in marks:
        at = bisect_right(files, mark.start, key=lambda file: file.base) - 1
        now = _mark_now(files[at], mark.start, mark.stop) if at >= 0 else None
        refuse_other_bytes(mark, now, path)
        every = every and now is not None
    return every


def _mark_now(file: SegmentFile, start: int, stop: int) -> Mark | None:
    """The mark of a range of a file as it is now; None if it is gone or shorter, or cannot be read."""
    length = stop - start
    try:
        with open(file.path, "rb", buffering=0) as opened:
            raw = os.pread(opened.fileno(), max(length, 0), start - file.base)
    except OSError:  # who reads the file reports it
        return None
    return Mark.of_bytes(start, stop, raw) if 0 < length == len(raw) else None
