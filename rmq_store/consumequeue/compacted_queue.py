"""The files that a broker answers pulls of a compaction topic from (CompactionLog, SparseConsumeQueue).

A file of `compactionLog` and the file of `compactionCq` with the same name, the place of the first record
in that log, belong together. The records are copies of those in the CommitLog, with their place here as
physicalOffset. The entries are those of a BatchConsumeQueue, one for each record. Their queue offsets
ascend with gaps, because of the messages with one key only the last is kept; so do the names of files.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.commitlog.log import CommitLog
from rmq_store.consumequeue.queue_files import queue_folder
from rmq_store.consumequeue.queue_folders import queue_folders_in
from rmq_store.errors import (
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    MissingFileError,
    StoreError,
)
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile, again_if_expired
from rmq_store.files.source import Sources
from rmq_store.format.byte_layout import (
    COMPACTION_DIR,
    COMPACTION_LOG_DIR,
    COMPACTION_QUEUE_DIR,
    segment_name,
)
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, Entries, Entry, QueueId
from rmq_store.markers import was_closed

_WIDTH = BATCH_QUEUE_ENTRY.itemsize
_AT_A_TIME = 1 << 16  # units; a file of the usual size has more, and most of them are zeros
_END = np.array([(-1, 0, 0, 0, 0, 0, -1, 0)], BATCH_QUEUE_ENTRY).tobytes()
"""The unit behind the last entry of a full file (SparseConsumeQueue#putEndPositionInfo)."""

_FILES_KEPT = 16
_REPLACED, _NEW_FILES = ".delete", "compacting"  # files and folder of a compaction
# At files that a broker may be exchanging or writing; it may have to wait for a processor.
_LOOKS, _SAME_LOOKS, _PAUSE_S = 40, 10, 0.05
_BEHIND_ALL = 2**63 - 1
_LAST = 2**62  # queue offset and place; a larger one is damage
ADVICE = (
    "The CommitLog has the messages of the topic that have not expired: read them with source=commitlog in "
    "Spark, compacted=False in Python or rmqstore find. Restore the file from a replica or a copy, or open "
    "the store again if its broker is running"
)


class QueueSighting(NamedTuple):
    """What a look at a queue found: how far it went, how many messages it had, a checksum of their offsets.

    A later look at the same messages finds the same, unless a broker has compacted the queue meanwhile.
    """

    stop: int
    messages: int
    checksum: int


class CompactionFolders:
    """The queues of a store that have files for compaction, opened on demand."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources = Sources(_FILES_KEPT)
        self._open: dict[QueueId, CompactedQueue | None] = {}
        self._waits = 0

    def has_compacted(self, topic: str | None = None) -> bool:
        """Whether a broker with compaction has used the store; with `topic`, has compacted that."""
        if topic is None:
            return os.path.isdir(self._root / COMPACTION_DIR)
        return os.path.isdir(self._root / COMPACTION_LOG_DIR / topic)

    def queues(self) -> list[QueueId]:
        """The queues that have a folder here, sorted."""
        folders = (self._root / name for name in (COMPACTION_LOG_DIR, COMPACTION_QUEUE_DIR))
        return sorted({queue for folder in folders for queue in queue_folders_in(folder)})

    def queue(self, queue: QueueId, seen: QueueSighting | None = None) -> CompactedQueue | None:
        """The files of a queue as they were when it was first asked for; None without any.

        `seen`: show what that look found. Raises MissingFileError, CorruptQueueError, DataLossError where
        `seen` is no longer there, and the errors of SegmentChain.
        """
        if queue not in self._open:
            self._open[queue] = self._settled(queue, seen)
        return self._open[queue]

    def _settled(self, queue: QueueId, seen: QueueSighting | None) -> CompactedQueue | None:
        """The files of a queue, looked at again while a running broker exchanges them.

        It does so after a compaction, first those of the log (CompactionLog#replaceFiles). An exchange that
        was interrupted, and damage, stay: all queues of a store together are waited for once.
        """
        while self._may_grow() and self._waits < _LOOKS:
            before = compaction_files_in(*self._folders_of(queue))
            with suppress(CorruptQueueError, CorruptRecordError, MissingFileError):
                files = again_if_expired(lambda: self._opened(queue, seen))
                if (
                    not before.in_exchange
                    and compaction_files_in(*self._folders_of(queue)) == before
                ):
                    return files
            self._sources.clear()
            self._waits += 1
            time.sleep(_PAUSE_S)
        return again_if_expired(lambda: self._opened(queue, seen))

    def _may_grow(self) -> bool:
        """Whether a broker writes the store now, or was killed when it did."""
        return not was_closed(self._root)

    def _folders_of(self, queue: QueueId) -> tuple[str, str]:
        return (
            queue_folder(self._root, COMPACTION_LOG_DIR, queue),
            queue_folder(self._root, COMPACTION_QUEUE_DIR, queue),
        )

    def _opened(self, queue: QueueId, seen: QueueSighting | None) -> CompactedQueue | None:
        log, entries = self._folders_of(queue)
        files = CompactedQueue(log, entries, self._sources, seen, grows=self._may_grow())
        # A broker that starts passes over a queue without one of its folders (CompactionStore#load).
        return files if os.path.isdir(log) and os.path.isdir(entries) else None

    def release(self) -> None:
        """Close the files of a local store; the next read opens them again."""
        self._sources.release()

    def close(self) -> None:
        """Close all files."""
        self._sources.clear()
        self._open.clear()


class CompactionFiles(NamedTuple):
    """The files of a queue, by folder, name and inode. `in_exchange`: some that a compaction has replaced are
    still there under other names, or those of the log were exchanged and the entries not yet."""

    files: frozenset[tuple[str, str, int]]
    in_exchange: bool


def compaction_files_in(log_folder: str, entries_folder: str) -> CompactionFiles:
    """What is in the folders of a queue now."""
    log, entries = _names_in(log_folder), _names_in(entries_folder)
    replaced = any(name.endswith(_REPLACED) for _, name, _ in (*log, *entries))
    waiting = [
        _names_in(os.path.join(folder, _NEW_FILES)) for folder in (log_folder, entries_folder)
    ]
    return CompactionFiles(log | entries, replaced or bool(waiting[1] and not waiting[0]))


def _names_in(folder: str) -> frozenset[tuple[str, str, int]]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(
                (folder, entry.name, entry.inode()) for entry in entries if entry.is_file()
            )
    except OSError:  # there is none, or what opens the files says why
        return frozenset()


class _Held(NamedTuple):
    """A file of entries, with the queue offsets of its first and after its last message, and where in the
    compaction log the last one ends."""

    file: SegmentFile
    first: int
    stop: int
    log_stop: int


class CompactedQueue:
    """The entries and records of one queue of a compaction topic."""

    def __init__(
        self,
        log_folder: str,
        entries_folder: str,
        sources: Sources,
        seen: QueueSighting | None = None,
        *,
        grows: bool = False,
    ) -> None:
        """Reads the entries of all files once. Raises as `CompactionFolders.queue`.

        `grows`: the last message may be half-written.
        """
        self.grows = grows  # a broker writes the store now, or was killed when it did
        self.folder, self._log_folder = entries_folder, log_folder
        self._listing = compaction_files_in(log_folder, entries_folder).files
        self._is_open = False
        self._until = _BEHIND_ALL if seen is None else seen.stop
        self._count = self._checksum = 0
        self.log = CommitLog([log_folder], sources=sources, copied=True)
        self._chain = SegmentChain(
            [entries_folder], sources=sources, setting="compactionCqMappedFileSize"
        )
        self._refuse_lone_files(log_folder, entries_folder)
        self._kept: tuple[SegmentFile, Entries] | None = None
        self.min_offset, self.max_offset, self.log_end = -1, 0, self.log.chain.stop
        self._files: list[_Held] = []
        for file in self._chain.segments:
            self._add(file)
        if self._files:
            self._refuse_wrong_end(self._files[0].file, 0)
            self._refuse_wrong_end(self._files[-1].file, -1)
        if seen is not None and self.seen != seen:
            raise self._compacted_since(
                f"{seen.messages} messages before queue offset {seen.stop}",
                f"{self._count} messages, or others",
            )
        self._is_open = True

    def replaced(self) -> StoreError | None:
        """The error of a queue whose files a broker has replaced since they were opened."""
        if self._listing <= compaction_files_in(self._log_folder, self.folder).files:
            return None
        return self._compacted_since("the same files", "others in their place")

    def _compacted_since(self, expected: str, actual: str) -> DataLossError:
        return DataLossError(
            self.folder,
            reason="the broker has compacted the queue since the read began",
            expected=expected,
            actual=actual,
            advice="Read again. A copy of the store does not change",
        )

    @property
    def has_messages(self) -> bool:
        """Whether there is a message: a broker makes the folders and files for one, then writes it, and a
        compaction leaves one."""
        return bool(self._files)

    @property
    def seen(self) -> QueueSighting:
        """What this look found."""
        return QueueSighting(self.max_offset, self._count, self._checksum)

    def _refuse_lone_files(self, log_folder: str, entries_folder: str) -> None:
        """A broker does not start with such (CompactionLog.TopicPartitionLog#sanityCheck)."""
        of_log, of_entries = (
            {file.base for file in chain.segments} for chain in (self.log.chain, self._chain)
        )
        for folder, other, lacking in (
            (entries_folder, log_folder, of_log - of_entries),
            (log_folder, entries_folder, of_entries - of_log),
        ):
            if lacking:
                name = segment_name(min(lacking))
                raise MissingFileError(
                    os.path.join(folder, name),
                    reason="the file is missing or empty, and the one that belongs to it is there: "
                    + os.path.join(other, name),
                    advice=ADVICE,
                )

    def _add(self, file: SegmentFile) -> None:
        entries = self._entries_of(file)
        if not len(entries):
            if file is self._chain.segments[-1]:
                return  # made for the next message, which did not come
            raise self._corrupt(file, 0, "the file has no entry, and others follow")
        first, stop = int(entries.offset[0]), int(entries.offset[-1] + entries.count[-1])
        if first < self.max_offset:
            what = "the queue offset does not follow those of the file before"
            raise self._corrupt(file, 0, what, f"{self.max_offset} or more", first)
        if file is self._chain.segments[-1]:
            self.log_end = _end_of(file, entries)
        shown = entries.take(entries.offset < self._until)
        if not len(shown):
            return
        if not self._files:
            self.min_offset = first
        self.max_offset = min(stop, self._until)
        self._count += len(shown)
        self._checksum = zlib.crc32(shown.offset.tobytes(), self._checksum)
        self._files.append(_Held(file, first, self.max_offset, _end_of(file, shown)))

    def _refuse_wrong_end(self, file: SegmentFile, row: int) -> None:
        """Raise if the first or last entry has another queue offset than its record, if that is whole.

        The range of the queue rests on them. Other entries are compared when they are read.
        """
        entries = self._entries_of(file)
        at, offset = row % len(entries), int(entries.offset[row])
        entry = entries.take(slice(at, at + 1))
        for _, headers in self.log.whole_headers(entry.log_offset, entry.size):
            last_offset = int(headers.queue_offset[0])
            if last_offset != offset:
                what = "the queue offset of the entry is not that of its record"
                raise self._corrupt(file, at, what, str(last_offset), offset)

    def entries_from(self, offset: int) -> Entries:
        """The entries from a queue offset on, or from the next one there is, of one file.

        The file is the first with such an entry. Empty from `max_offset` on.
        """
        for held in self._files:
            if offset < held.stop:
                return self._entries_in(held, offset, held.stop)
        return Entries.none()

    def entries(self, start: int, stop: int) -> Entries:
        """The entries of queue offsets [start, stop): of those that are there."""
        return Entries.concat(
            [
                self._entries_in(held, start, stop)
                for held in self._files
                if start < held.stop and held.first < stop
            ]
        )

    def _entries_in(self, held: _Held, start: int, stop: int) -> Entries:
        entries = self._entries_of(held.file)
        low, high = np.searchsorted(entries.offset, (start, min(stop, held.stop)))
        return entries.take(slice(int(low), int(high)))

    def by_file(self) -> Iterator[tuple[int, Entries]]:
        """The entries of each file, and the place of its first byte."""
        for held in self._files:
            yield held.file.base, self._entries_in(held, held.first, held.stop)

    def units(self) -> Iterator[npt.NDArray[Any]]:
        """The entries of each file as stored."""
        for held in self._files:
            stop = held.file.base + len(self._entries_in(held, held.first, held.stop)) * _WIDTH
            yield self._chain.read(held.file.base, stop).view(BATCH_QUEUE_ENTRY)

    def offset_at_log(self, place: int) -> int:
        """The first queue offset whose record is at a place of the compaction log or after it; else
        `max_offset`."""
        for held in self._files:
            if place < held.log_stop:
                entries = self._entries_in(held, held.first, held.stop)
                row = int(np.searchsorted(entries.log_offset, place))
                return int(entries.offset[row]) if row < len(entries) else held.stop
        return self.max_offset

    def first_from(self, offset: int) -> Entry | None:
        """Place and size of the message at a queue offset, or of the next one there is."""
        entries = self.entries_from(offset)
        return Entry(int(entries.log_offset[0]), int(entries.size[0])) if len(entries) else None

    def place_of(self, offset: int) -> tuple[str, int]:
        """The file of the entry of a queue offset, and its byte there, for messages."""
        held = next(held for held in self._files if offset < held.stop)
        row = int(np.searchsorted(self._entries_of(held.file).offset, offset))
        return held.file.path, row * _WIDTH

    def _entries_of(self, file: SegmentFile) -> Entries:
        if self._kept is None or self._kept[0] is not file:
            self._kept = file, self._read_again(file) if self._is_open else self._read(file)
        return self._kept[1]

    def _read_again(self, file: SegmentFile) -> Entries:
        """The entries of a file that was read before. Raises DataLossError if it is another one now."""
        try:
            entries = self._read(file)
        except StoreError as error:
            raise self.replaced() or error from error
        if (replaced := self.replaced()) is not None:
            raise replaced
        return entries

    def _read(self, file: SegmentFile) -> Entries:
        """The entries of a file, checked. Raises CorruptQueueError, CorruptRecordError."""
        full = self._chain.file_size
        if file.size < full or file.size % _WIDTH:
            size = f"{full} bytes" if file.size < full else f"a multiple of {_WIDTH} bytes"
            raise self._corrupt(file, file.size, "the file was cut", size, f"{file.size} bytes")
        while True:
            entries = self._filled(file)
            self._refuse_disorder(file, entries)
            what = self._wrong_behind(file, entries)
            if what is None:
                return entries
            # A broker writes a record and then its entry: it may have done so after the look.
            if all(len(self._filled(file)) == len(entries) for _ in range(_SAME_LOOKS)):
                if self._is_unfinished(file, entries):
                    return entries
                raise self._corrupt(file, len(entries), what)

    def _is_unfinished(self, file: SegmentFile, entries: Entries) -> bool:
        """Whether only one record, and its entry or a part of it, follow the entries of the last file.

        A broker that is at it, or was killed there, leaves that; it ends the queue before it too.
        """
        at, stop = file.base + (len(entries) + 1) * _WIDTH, file.base + file.size
        is_last = self.grows and file is self._chain.segments[-1]
        if not is_last or not self._chain.is_zero(min(at, stop), stop):
            return False
        end = _end_of(file, entries)
        if not self._is_record_in(file, end):
            return True
        return not self._is_record_in(file, end + self.log.record_at(end).total_size)

    def _is_record_in(self, file: SegmentFile, place: int) -> bool:
        """Whether a record starts at a place of the log, in the file that belongs to one of entries."""
        is_inside = self.log.chain.segment_at(place) is self.log.chain.segment_at(file.base)
        return is_inside and self.log.is_record(place)

    def _filled(self, file: SegmentFile) -> Entries:
        """The units of a file up to the first that is no entry (SparseConsumeQueue#recover)."""
        parts: list[Entries] = []
        count = file.size // _WIDTH
        for first in range(0, count, _AT_A_TIME):
            last = min(first + _AT_A_TIME, count)
            span = file.base + first * _WIDTH, file.base + last * _WIDTH
            with self._chain.window(*span) as window:
                units: npt.NDArray[Any] = np.array(window.bytes).view(BATCH_QUEUE_ENTRY)
            self._chain.count_read(file, span[1] - span[0])
            no_entry = (
                (units["log_offset"] < 0)
                | (units["size"] <= 0)
                | (units["base_offset"] < 0)
                | (units["batch_size"] <= 0)
            )
            filled = int(no_entry.argmax()) if no_entry.any() else len(units)
            names = "base_offset", "log_offset", "size", "tags_code", "batch_size"
            parts.append(Entries(*(units[name][:filled].astype(np.int64) for name in names)))
            if filled < len(units):
                break
        return Entries.concat(parts)

    def _refuse_disorder(self, file: SegmentFile, entries: Entries) -> None:
        """Raise for an entry that is not of one message, or does not follow those before it."""
        several = np.flatnonzero(entries.count != 1)
        if len(several):
            row = int(several[0])
            what = "the entry has another number of messages"
            raise self._corrupt(file, row, what, "1", int(entries.count[row]))
        beyond = np.flatnonzero((entries.offset > _LAST) | (entries.log_offset > _LAST))
        if len(beyond):  # sums with it would overflow
            row = int(beyond[0])
            what = "the entry is of no message that a queue can have"
            said = max(int(entries.offset[row]), int(entries.log_offset[row]))
            raise self._corrupt(file, row, what, f"at most {_LAST}", said)
        for name, low, value in (
            ("queue offset", entries.offset + entries.count, entries.offset),
            ("place", entries.log_offset + entries.size, entries.log_offset),
        ):
            least = np.concatenate(([file.base if name == "place" else 0], low[:-1]))
            wrong = np.flatnonzero(value < least)
            if len(wrong):
                row = int(wrong[0])
                what = f"the {name} of the entry does not follow"
                raise self._corrupt(file, row, what, f"{least[row]} or more", int(value[row]))
        self._refuse_cut_log(file, entries)

    def _refuse_cut_log(self, file: SegmentFile, entries: Entries) -> None:
        """Raise if the file of the log that belongs to this one ends before what is listed."""
        log_file = self.log.chain.segment_at(file.base)
        assert log_file is not None  # each has its counterpart
        ends = entries.log_offset + entries.size
        beyond = np.flatnonzero(ends > log_file.base + log_file.size)
        if len(beyond):
            row = int(beyond[0])
            raise CorruptRecordError(
                log_file.path,
                offset=int(entries.log_offset[row]),
                reason=f"the file ends before the record that {file.path} lists",
                expected=f"{int(ends[row]) - log_file.base} bytes or more",
                actual=f"{log_file.size} bytes",
                advice=ADVICE,
            )

    def _wrong_behind(self, file: SegmentFile, entries: Entries) -> str | None:
        """What is wrong, unless only the mark of a full file, and zeros, follow the entries, and no record
        follows the last one that is listed."""
        at, stop = file.base + len(entries) * _WIDTH, file.base + file.size
        if at < stop and self._chain.read(at, at + _WIDTH).tobytes() == _END:
            at += _WIDTH
        if not self._chain.is_zero(at, stop):
            return "the bytes behind the entries are neither an entry nor zeros"
        if self._is_record_in(file, _end_of(file, entries)):
            return "the compaction log has a record that no entry lists"
        return None

    @staticmethod
    def _corrupt(
        file: SegmentFile, row: int, what: str, expected: str | None = None, actual: object = None
    ) -> CorruptQueueError:
        """The error for the unit `row` of a file."""
        return CorruptQueueError(
            file.path,
            offset=min(row * _WIDTH, file.size),
            reason=what,
            expected=expected,
            actual=actual,
            advice=ADVICE,
        )


def _end_of(file: SegmentFile, entries: Entries) -> int:
    """Where in the compaction log the last record of a file ends."""
    return int(entries.log_offset[-1] + entries.size[-1]) if len(entries) else file.base
