"""What a broker does to a store when it starts (DefaultMessageStore#load and #recover), with its defects.

It is a plan, and changes nothing. What the broker drops stays on the disk: it zeroes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers, follow_records
from rmq_store.commitlog.log import CommitLog, refuse_misnamed_or_unreadable
from rmq_store.commitlog.walk import intact_records_behind
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.config.topics_json import batch_topics, declared_topics
from rmq_store.consumequeue.entry_of_record import (
    DispatchRequests,
    entries_to_write,
    rows_to_append,
    units_of,
)
from rmq_store.consumequeue.queue_files import queue_folder
from rmq_store.consumequeue.queue_folders import QueueFolders, entries_after_log
from rmq_store.errors import DataLossError, UnrecoverableStoreError
from rmq_store.files.durable_files import Change
from rmq_store.files.source import Window
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    BLANK_HEAD,
    BLANK_SIZE,
    CHECKPOINT_FILE,
    CONSUMEQUEUE_DIR,
    CRC_MASK,
    HEAD_SIZE,
    INDEX_DIR,
    MAGIC_BLANK,
    RECORD_HEAD,
    Bytes,
    Ints,
    Mask,
    segment_name,
)
from rmq_store.format.hashes import crc32_of_slices
from rmq_store.format.queues import BATCH_QUEUE_ENTRY, FILLER_SIZE, QUEUE_ENTRY, QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.index.index_file_reader import Geometry, index_geometry, list_index_files
from rmq_store.loops.record_fields import FAULTS
from rmq_store.markers import Checkpoint, was_closed
from rmq_store.recovery.report import ChangeList, RecoveryReport, add_unlisted_records
from rmq_store.recovery.strict_log_end import TIMESTAMP_SLACK_MS, writer_of_newest_index_file
from rmq_store.snapshot.opening import queue_file_sizes, refuse_unknown_size

LOG_SIZE, QUEUE_SIZE = "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"
BATCH_QUEUE_SIZE, TIMER_LOG_SIZE = "mapperFileSizeBatchConsumeQueue", "mappedFileSizeTimerLog"
"""The settings that say how large the files of the log, of queues and of the timer log are."""
_FILES_SCANNED = 3  # ConsumeQueue#recover
_LARGEST_OFFSET = 2**55  # a larger queueOffset is damage and has no valid file name
_MOST_FILES = 10  # commitLogRecoverMaxNum, from 5.4.0 on
_BYTES_AT_A_TIME = 32 << 20


def load_files(
    folders: Sequence[str | Path], size: int, setting: str, changes: ChangeList
) -> list[tuple[int, Path]]:
    """The files of a chain by offset, as MappedFileQueue#load accepts them.

    Deletes an empty last file. Raises UnrecoverableStoreError if the broker would not start: a file
    of another size, or with a name that is not a number.
    """
    for error in refused_files(folders, size, setting):
        raise error
    files = _files_in(folders)
    if files and not files[-1].stat().st_size:
        changes.remove(files.pop(), 0)
    return [(int(path.name), path) for path in files]


def refused_files(
    folders: Sequence[str | Path], size: int, setting: str, unit: int = 1
) -> Iterator[UnrecoverableStoreError]:
    """An error for each file of a chain that MappedFileQueue#load does not accept.

    `size`: 0 where no file showed it when the chain was opened, while a broker made the first one. `unit`:
    bytes of which the size that no setting gives is a multiple.
    """
    files = _files_in(folders)
    remedy = "rmqstore rebuild STORE --to NEW makes the queues from the log"
    if setting == LOG_SIZE:
        remedy = "A strict recovery gives a short file its size again, without what it lost"
    known = size or "more than 0"
    right = known if not size % unit else f"a multiple of {unit}"
    for path in files:
        try:
            actual = path.stat().st_size
        except FileNotFoundError:
            continue  # a broker has just deleted it
        if not actual and path == files[-1]:
            continue
        right_size = actual == (size or actual) and actual % unit == 0
        if not actual or not right_size or not path.name.isdigit():
            yield UnrecoverableStoreError(
                path,
                reason="the broker does not start on a store with this file",
                expected=f"a number as its name and {setting}={right} bytes",
                actual=f"{actual} bytes",
                advice=f"{remedy}. If the sizes are those of another broker, use the "
                "broker.conf of the one that created the files",
            )


def _files_in(folders: Sequence[str | Path]) -> list[Path]:
    there = [folder for folder in map(Path, folders) if folder.is_dir()]
    files = [path for folder in there for path in folder.iterdir()]
    return sorted((path for path in files if not path.is_dir()), key=lambda path: path.name)


class BrokerQueue:
    """A ConsumeQueue in the broker's memory."""

    dtype, setting = QUEUE_ENTRY, QUEUE_SIZE

    def __init__(self, folder: Path, size: int, changes: ChangeList) -> None:
        self.folder, self.size, self._changes = folder, size, changes
        self.files: list[tuple[int, Path]] = []
        self.position = size  # how far the last file is filled
        self.max_physic_offset = -1
        self.min_logic_offset = 0
        self.has_empty_entry = False  # the last unit is of zeros

    def load(self) -> None:
        """Load the existing files."""
        self.files = load_files([self.folder], self.size, self.setting, self._changes)

    @property
    def end_position(self) -> int:
        """The stream byte after the last unit."""
        return self.files[-1][0] + self.position if self.files else 0

    def _units(self, number: int) -> npt.NDArray[Any]:
        count = self.size // self.dtype.itemsize
        return self._changes.read(self.files[number][1], self.dtype, count)

    def _units_before(self, number: int, stop: int) -> npt.NDArray[Any]:
        """The units of a file before byte `stop`. Raises DataLossError if somebody cuts it meanwhile."""
        units = self._units(number)
        if units.nbytes < stop - stop % self.dtype.itemsize:
            raise DataLossError(
                self.files[number][1],
                offset=units.nbytes,
                reason="the file became shorter while it was being read",
                expected=f"{stop} bytes or more",
                actual=f"{units.nbytes} bytes",
                advice="Somebody else changes the store: try again when nobody does",
            )
        return units[: stop // self.dtype.itemsize]

    @staticmethod
    def _sound(units: npt.NDArray[Any]) -> Mask:
        return (units["log_offset"] >= 0) & (units["size"] > 0)

    def _reached(self, unit: Any) -> int:
        """The value that a unit contributes to maxPhysicOffset."""
        return int(unit["log_offset"]) + int(unit["size"])

    def recover(self) -> None:
        """Scan the last three files up to the first invalid unit, and drop everything after it."""
        if not self.files:
            return
        for number in range(max(0, len(self.files) - _FILES_SCANNED), len(self.files)):
            units = self._units(number)
            wrong = np.flatnonzero(~self._sound(units))
            count = int(wrong[0]) if len(wrong) else len(units)
            if count:
                self.max_physic_offset = self._reached(units[count - 1])
            filled = count * self.dtype.itemsize
            if filled < self.size:
                break
        self.remove_files_from(number + 1)
        self.position = filled

    def truncate(self, log_end: int) -> None:
        """Drop units of records after the log's end.

        As in the broker, a file's first unit is barely checked.
        """
        self.max_physic_offset = log_end
        while self.files:
            units = self._units(len(self.files) - 1)
            if not len(units) or int(units[0]["log_offset"]) >= log_end:
                self.remove_files_from(len(self.files) - 1)
                self.position = self.size
                continue
            stops = ~self._sound(units) | (units["log_offset"] >= log_end)
            self.has_empty_entry = not self._sound(units).any()
            stops[0] = False
            wrong = np.flatnonzero(stops)
            count = int(wrong[0]) if len(wrong) else len(units)
            self.position = count * self.dtype.itemsize
            self.max_physic_offset = self._reached(units[count - 1])
            break

    def remove_files_from(self, number: int) -> None:
        """Delete the files from a number on; all where the log has none."""
        for _, path in self.files[number:]:
            self._changes.remove(path, self.size)
        del self.files[number:]

    def put(self, requests: DispatchRequests) -> tuple[int, Ints]:
        """Add entries of records in log order, by the broker's rules.

        Returns the number added, and the rows of new records that it left out.
        """
        new = np.flatnonzero(requests.log_offset + requests.size > self.max_physic_offset)
        if not len(new):
            return 0, new
        if not self.files and not self._first_file(int(requests.offset[new[0]])):
            return 0, new[:0]  # no earlier record has the queueOffset: the number itself is damaged
        taken = rows_to_append(requests.offset[new], self.end_position // self.dtype.itemsize)
        if len(taken):
            units = units_of(requests, new[taken], batch=False)
            self._append(units)
            self.max_physic_offset = self._reached(units[-1])
        return len(taken), np.delete(new, taken)

    def _first_file(self, offset: int) -> bool:
        """Create the first file, with filler up to the first offset (ConsumeQueue#fillPreBlank)."""
        if not 0 <= offset < _LARGEST_OFFSET:
            return False
        begin = offset * self.dtype.itemsize
        base = begin - begin % self.size
        self._new_file(base)
        if offset:
            self.min_logic_offset = begin
            filler = np.zeros((begin - base) // self.dtype.itemsize, dtype=self.dtype)
            filler["size"] = FILLER_SIZE
            self._append(filler)
        return True

    def _new_file(self, base: int) -> None:
        self.files.append((base, self.folder / segment_name(base)))
        self.position = 0

    def _append(self, units: npt.NDArray[Any]) -> None:
        raw = units.view(np.uint8)
        while len(raw):
            if self.position + self.dtype.itemsize > self.size:
                self._new_file(self.files[-1][0] + self.size)
            count = min(len(raw), self.size - self.position)
            count -= count % self.dtype.itemsize
            self._changes.write(self.files[-1][1], self.size, self.position, raw[:count].data)
            self.position += count
            raw = raw[count:]

    def count_stale_units(self, log_end: int) -> int:
        """How many units of the last file are after the queue's end, or lead after the log's end."""
        if not self.files:
            return 0
        units = self._units(len(self.files) - 1)
        left = units["log_offset"] >= log_end
        left[self.position // self.dtype.itemsize :] = True
        return int(np.count_nonzero(left & (units["size"] > 0)))

    # --- values that a broker reports ---------------------------------------------------------------------

    def correct_min_offset(self, log_start: int) -> None:
        """Find the first unit whose record exists (ConsumeQueue#correctMinOffset)."""
        if self.min_logic_offset >= self.end_position or not self.files:
            return
        unit = self.dtype.itemsize
        if self.position >= unit:
            last = self._units_before(len(self.files) - 1, self.position)[-1]
            if int(last["log_offset"]) < log_start:
                self.min_logic_offset = self.end_position
                return
        base = self.files[0][0]
        readable = self.position if len(self.files) == 1 else self.size
        start = self.min_logic_offset - base
        intact, start = start >= 0, max(0, start)
        if start >= readable:
            return
        where = self._units_before(0, readable)["log_offset"][start // unit :].astype(np.int64)
        if intact and int(where[0]) >= log_start:
            return
        found = _search(where, log_start)
        if found is not None:
            self.min_logic_offset = base + start + found * unit

    @property
    def serves_empty_entry(self) -> bool:
        """Whether consumers meet an entry of zeros, or none of the entries before it. If all of them expired,
        only the next queue offset is one higher."""
        if not self.has_empty_entry:
            return False
        return len(self.files) > 1 or (not self.files[0][0] and self.min_offset < self.max_offset)

    @property
    def min_offset(self) -> int:
        """minOffsetInQueue."""
        return self.min_logic_offset // self.dtype.itemsize

    @property
    def max_offset(self) -> int:
        """maxOffsetInQueue."""
        return self.end_position // self.dtype.itemsize


def _search(where: Ints, log_start: int) -> int | None:
    """The broker's own bisection, with its results for unordered units."""
    low, high = 0, len(where) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if where[middle] > log_start:
            high = middle
        elif where[middle] == log_start:
            low = high = middle
        else:
            low = middle
    return next((at for at in range(low, high + 1) if where[at] >= log_start), None)


class BrokerBatchQueue(BrokerQueue):
    """A BatchConsumeQueue in the broker's memory."""

    dtype, setting = BATCH_QUEUE_ENTRY, BATCH_QUEUE_SIZE
    _min, _max = -1, 0

    @staticmethod
    def _sound(units: npt.NDArray[Any]) -> Mask:
        return BrokerQueue._sound(units) & (units["base_offset"] >= 0) & (units["batch_size"] > 0)

    def _reached(self, unit: Any) -> int:
        return int(unit["log_offset"])

    def recover(self) -> None:
        """As a ConsumeQueue; then reads max from the last unit."""
        super().recover()
        self._revise()

    def truncate(self, log_end: int) -> None:
        """As a ConsumeQueue; then reads max again."""
        super().truncate(log_end)
        if not self.files:
            self.max_physic_offset = log_end - 1
        self._revise()

    def _revise(self) -> None:
        unit = self.dtype.itemsize
        last = None
        if self.files and self.position >= unit:
            last = self._units(len(self.files) - 1)[self.position // unit - 1]
        elif len(self.files) > 1:
            last = self._units(len(self.files) - 2)[-1]
        self._max = 0 if last is None else int(last["base_offset"]) + int(last["batch_size"])

    def put(self, requests: DispatchRequests) -> tuple[int, Ints]:
        """As in a ConsumeQueue, but leaves no new record out."""
        rows = np.flatnonzero(requests.log_offset > self.max_physic_offset)
        if not len(rows):
            return 0, rows
        if not self.files:
            self._new_file(0)
        self._append(units_of(requests, rows, batch=True))
        self.max_physic_offset = int(requests.log_offset[rows[-1]])
        self._max = int(requests.offset[rows[-1]] + requests.count[rows[-1]])
        return len(rows), rows[:0]

    def correct_min_offset(self, log_start: int) -> None:
        """Find the first unit of the first file whose record exists."""
        if not self.files:
            self._max = 0
            return
        readable = self.position if len(self.files) == 1 else self.size
        units = self._units(0)[: readable // self.dtype.itemsize]
        self._min = int(units[0]["base_offset"]) if len(units) else -1
        gone = np.flatnonzero(units["log_offset"] >= log_start)
        count = int(gone[0]) if len(gone) else len(units)
        if count:
            last = units[count - 1]
            self._min = int(last["base_offset"]) + int(last["batch_size"])

    @property
    def min_offset(self) -> int:
        """minOffsetInQueue; -1 for an empty queue."""
        return self._min

    @property
    def max_offset(self) -> int:
        """maxOffsetInQueue."""
        return self._max


class BrokerRecovery:
    """The plan of a recovery as a broker of that release."""

    def __init__(self, root: Path, config: StoreConfig, release: Dialect) -> None:
        self.root = root
        self.release = release
        self._folders = folders = QueueFolders(root, config)
        log = CommitLog(commitlog_folders(root, config), file_size=config.mappedFileSizeCommitLog)
        refuse_misnamed_or_unreadable(log)
        self.config = config.with_defaults_of(queue_file_sizes(folders))
        self.changes = ChangeList(planned=True, read_back=True)
        self.report = RecoveryReport(str(root), "broker", was_closed(root), applied=False)
        self.checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)
        self.batch_topics = batch_topics(declared_topics(root))
        self.queues: dict[QueueId, BrokerQueue] = {}
        self._listed = folders.listed()
        self._size = log.chain.file_size
        refuse_unknown_size(log, config)
        self.files = load_files(log.chain.folders, self._size, LOG_SIZE, self.changes)
        self.log = log
        self.index = list_index_files(root / INDEX_DIR)

    def run(self) -> RecoveryReport:
        """The report of what the broker would do."""
        begun = time.monotonic()
        for queue, batch in self._listed.items():
            self._queue(queue, batch).load()
        self.changes.hold()  # until the entries that they delete are counted
        if not self.report.clean:
            self._drop_index_files()
        for broker_queue in self.queues.values():
            broker_queue.recover()
        if self.files:
            end = self._recover_log()
        else:
            end = 0
            self.changes.release()
            for broker_queue in self.queues.values():
                broker_queue.remove_files_from(0)
        report = self.report
        report.log_start, report.log_end = self.files[0][0] if self.files else 0, end
        for queue, broker_queue in sorted(self.queues.items()):
            broker_queue.correct_min_offset(report.log_start)
            report.queues[queue] = (broker_queue.min_offset, broker_queue.max_offset)
            left = broker_queue.count_stale_units(end)
            if left:
                report.entries_left[queue] = left
            if broker_queue.serves_empty_entry:
                report.empty_entries.append(queue)
        self.log.chain.close()
        report.files, report.seconds = self.changes.net_changes, time.monotonic() - begun
        return report

    def _queue(self, queue: QueueId, batch: bool) -> BrokerQueue:
        if queue not in self.queues:
            config = self.config
            kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            folder = Path(queue_folder(self.root, kind, queue))
            size = config.batch_queue_file_size if batch else config.queue_file_size
            made = BrokerBatchQueue if batch else BrokerQueue
            self.queues[queue] = made(folder, size, self.changes)
        return self.queues[queue]

    def _drop_index_files(self) -> None:
        """Delete every index file that ends later than the checkpoint's time (IndexService#load)."""
        for segment in list(self.index):
            raw = np.fromfile(segment.path, dtype=">i8", count=2)
            if int(raw[1]) > self.checkpoint.index_msg_timestamp:
                self.changes.remove(segment.path, segment.size)
                self.index.remove(segment)

    def _recover_log(self) -> int:
        reached = max((q.max_physic_offset for q in self.queues.values()), default=-1)
        number = self._first_file(reached)
        self.report.scanned_from = self.files[number][0]
        # A walk of its own: queues are as the crash left them until the end is known.
        for headers in self._walk(number):
            self.report.records += len(headers)
            self._newest = int(headers.store_timestamp[-1])
        end = self._walked_to
        self.report.damage = [hole for hole in self.log.chain.holes if hole[1] <= end]
        stops = self._folders.stops()
        self.report.entries_after_log = entries_after_log(self._folders, self.log, end, stops)
        behind = intact_records_behind(self.log, end, self._newest)
        self.report.records_cut = sum(len(run.headers) for run in behind)
        self.changes.release()
        self._dispatch_from(number, reached if self.report.clean else None)
        if max((q.max_physic_offset for q in self.queues.values()), default=-1) >= end:
            for broker_queue in self.queues.values():
                broker_queue.truncate(end)
        for base, path in [file for file in self.files if file[0] > end]:
            self.changes.remove(path, self._size)
            self.files.remove((base, path))
        return end

    def _first_file(self, reached: int) -> int:
        """The file to start with (CommitLog#recoverNormally and #recoverAbnormally)."""
        left = _MOST_FILES if self.release.has("recovery_file_limit") else len(self.files) + 1
        for number in range(len(self.files) - 1, 0, -1):
            left -= 1
            if self._matches(number, reached) or left <= 0:
                return number
        return 0

    def _matches(self, number: int, reached: int) -> bool:
        with self._window(number) as window:
            headers = _one_record(window.bytes, 0)
            if headers is None:
                return False
            stored = int(headers.store_timestamp[0])
            says = int(headers.physical_offset[0])
        if not stored:
            return False
        if self.report.clean:
            return says <= reached
        if not self.release.has("checkpoint_48"):
            known = self.checkpoint
            times = min(known.physic_msg_timestamp, known.logics_msg_timestamp)
            return stored <= max(0, times - TIMESTAMP_SLACK_MS)
        if self.checkpoint.logics_physical_offset > 0:
            return says <= self.checkpoint.logics_physical_offset
        return stored <= self.checkpoint.logics_msg_timestamp

    def _window(self, number: int) -> Window:
        base = self.files[number][0]
        return self.log.chain.window(base, base + self._size)

    def _dispatch_from(self, number: int, only_behind: int | None) -> None:
        """Dispatch the records of the log, those after offset `only_behind`."""
        indexer = None
        if self.config.messageIndexEnable is not False:
            shown = index_geometry(self.index, self.config)
            geometry = shown or Geometry(self.config.index_slots, self.config.index_items)
            # Opening one in the broker maps its full size (IndexFile), which may not be the default one.
            for segment in self.index if shown is not None else ():
                missing = geometry.file_size - segment.size
                if missing > 0:
                    self.changes.add(Change(segment.path, "extended", missing, segment.size))
            indexer = writer_of_newest_index_file(
                self.root, self.index, geometry, self.release, planned=True
            )
        lmq = bool(self.config.enableLmq and self.config.enableMultiDispatch)
        try:
            for headers in self._walk(number):
                if only_behind is not None:
                    headers = headers.take(headers.physical_offset > only_behind)
                if not len(headers):
                    continue
                records = DecodedRecords.of(headers)
                self._put(entries_to_write(records, self.config, self.batch_topics, lmq=lmq))
                if indexer is not None:
                    fresh = np.flatnonzero(headers.at + headers.base >= indexer.end_log_offset)
                    if len(fresh) == len(headers):
                        indexer.add_records(records)
                    elif len(fresh):
                        indexer.add_records(DecodedRecords.of(headers.take(fresh)))
        finally:
            if indexer is not None:
                self.report.index_items_rebuilt = indexer.items_written
                indexer.close()

    def _put(self, requests: DispatchRequests) -> None:
        for queue, rows in requests.by_queue():
            if "/" in queue.topic or "\0" in queue.topic:
                continue  # not a possible folder name
            broker_queue = self._queue(queue, queue.topic in self.batch_topics)
            added, left = broker_queue.put(requests.take(rows))
            self.report.entries_rebuilt += added
            self.report.delayed_rebuilt += added if queue.topic == SCHEDULE_TOPIC else 0
            if len(left):
                places = (column[rows[left]] for column in (requests.offset, requests.log_offset))
                add_unlisted_records(self.report.left_out, queue, *places)

    _walked_to = 0
    _newest = 0  # when the last record was stored, ms

    def _walk(self, number: int) -> Iterator[Headers]:
        """Records up to the first invalid one; their physicalOffset is not checked."""
        at = 0
        while True:
            base = self.files[number][0]
            self._walked_to = base + at
            with self._window(number) as file:
                window = file.bytes
                headers = self._run(window, base, at)
                if len(headers):
                    own = headers.window is not window  # one whose physicalOffset is another place
                    at = int(headers.at[-1] + headers.total[-1]) + own * at
                    self._walked_to = base + at
                    yield headers
                    continue
                ends_file = _is_blank(window, at)
            if not ends_file or number + 1 >= len(self.files):
                return
            number, at = number + 1, 0

    def _run(self, window: Bytes, base: int, at: int) -> Headers:
        run = follow_records(window, base, at, min(len(window), at + _BYTES_AT_A_TIME))
        headers = Headers(window, run.at, base)
        wrong = np.flatnonzero(~(_adds_up(headers) & _right_crc(headers)))
        if not len(run.at) or (len(wrong) and not int(wrong[0])):
            odd = _one_record(window, at)
            return Headers(window, run.at[:0], base) if odd is None else odd
        return headers if not len(wrong) else headers.take(slice(0, int(wrong[0])))


def _is_blank(window: Bytes, at: int) -> bool:
    if at + BLANK_SIZE > len(window):
        return False
    head = window[at : at + BLANK_SIZE].view(BLANK_HEAD)[0]
    return int(head["magic"]) == MAGIC_BLANK and int(head["size"]) <= len(window) - at


def _one_record(window: Bytes, at: int) -> Headers | None:
    """The record at a position as the broker checks it: its physicalOffset may be another place.

    The headers cover only its bytes and use its own physicalOffset as base.
    """
    if at + HEAD_SIZE > len(window):
        return None
    head = window[at : at + HEAD_SIZE].view(RECORD_HEAD)[0]
    total, where = int(head["total_size"]), int(head["physical_offset"])
    if total <= 0 or at + total > len(window):
        return None
    headers = Headers(window[at : at + total], np.zeros(1, dtype=np.int64), where)
    return headers if _adds_up(headers)[0] and _right_crc(headers)[0] else None


def _adds_up(headers: Headers) -> Mask:
    """Mask of the records that a broker takes: it does not see that the end of one was not written."""
    adds_up: Mask = headers.valid | (headers.fault == FAULTS.index("unwritten"))
    return adds_up


def _right_crc(headers: Headers) -> Mask:
    """Mask of the bodies with a matching CRC; does not check record CRCs."""
    right = np.ones(len(headers), dtype=bool)
    rows = np.flatnonzero(_adds_up(headers) & (headers.body_length > 0))
    of_bodies = crc32_of_slices(headers.window, headers.body_at[rows], headers.body_length[rows])
    right[rows] = of_bodies & CRC_MASK == headers.body_crc[rows]
    return right
