"""What a broker does to a store when it starts (DefaultMessageStore#load and #recover), with its defects.

It is a plan, and changes nothing. What the broker drops stays on the disk: it zeroes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.misnamed_files import refuse_unsure_files
from rmq_store.commitlog.record_runs import follow
from rmq_store.commitlog.walk import intact_records_behind
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.config.topics_json import batch_topics, declared_topics
from rmq_store.consumequeue.entries_after_log import entries_after
from rmq_store.consumequeue.entry_of_record import DispatchRequests, entries_to_write
from rmq_store.consumequeue.queue_folders import QueueFolders, queue_folder
from rmq_store.files.changes import Change
from rmq_store.files.source import Window
from rmq_store.format.array_types import Bytes, Mask
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    BLANK_HEAD,
    BLANK_SIZE,
    CHECKPOINT_FILE,
    CONSUMEQUEUE_DIR,
    CRC_MASK,
    INDEX_DIR,
    MAGIC_BLANK,
)
from rmq_store.format.hashes import crc32
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.index.index_file_reader import list_index_files
from rmq_store.loops.record_fields import FAULTS
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.markers.lock_file import was_closed
from rmq_store.recovery.as_broker_queues import BrokerBatchQueue, BrokerQueue, load_files
from rmq_store.recovery.report import ChangeList, RecoveryReport, note_left_out
from rmq_store.recovery.strict_log_end import TIMESTAMP_SLACK_MS, index_geometry, last_index_writer
from rmq_store.snapshot.file_sizes import queue_sizes, refuse_unknown_size

_MOST_FILES = 10  # commitLogRecoverMaxNum, from 5.4.0 on
_BYTES_AT_A_TIME = 32 << 20
_PHYSICAL_AT = 28


class BrokerRecovery:
    """The plan of a recovery as a broker of that release."""

    def __init__(self, root: Path, config: StoreConfig, release: Dialect) -> None:
        self.root = root
        self.release = release
        self._folders = folders = QueueFolders(root, config)
        log = CommitLog(commitlog_folders(root, config), file_size=config.mappedFileSizeCommitLog)
        refuse_unsure_files(log)
        self.config = config.with_defaults_of(queue_sizes(folders))
        self.changes = ChangeList(planned=True, read_back=True)
        self.report = RecoveryReport(str(root), "broker", was_closed(root), applied=False)
        self.checkpoint = Checkpoint.read_or_zero(root / CHECKPOINT_FILE)
        self.batch_topics = batch_topics(declared_topics(root))
        self.queues: dict[QueueId, BrokerQueue] = {}
        self._listed = folders.listed()
        self._size = log.chain.file_size
        refuse_unknown_size(log, config)
        folders_of_log = [Path(folder) for folder in log.chain.folders]
        self.files = load_files(folders_of_log, self._size, "mappedFileSizeCommitLog", self.changes)
        self.log = log
        self.index = list_index_files(root / INDEX_DIR)

    def run(self) -> RecoveryReport:
        """The report of what the broker would do."""
        begun = time.monotonic()
        for queue, batch in self._listed.items():
            broker_queue = self._queue(queue, batch)
            broker_queue.load(
                "mapperFileSizeBatchConsumeQueue" if batch else "mappedFileSizeConsumeQueue"
            )
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
                broker_queue.destroy()
        start = self.files[0][0] if self.files else 0
        for broker_queue in self.queues.values():
            broker_queue.correct_min(start)
        report = self._reported(start, end)
        report.files, report.seconds = self.changes.net, time.monotonic() - begun
        return report

    def _queue(self, queue: QueueId, batch: bool) -> BrokerQueue:
        broker_queue = self.queues.get(queue)
        if broker_queue is None:
            kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            folder = Path(queue_folder(self.root, kind, queue))
            if batch:
                size = self.config.batch_queue_file_size
                broker_queue = BrokerBatchQueue(folder, size, self.changes)
            else:
                broker_queue = BrokerQueue(folder, self.config.queue_file_size, self.changes)
            self.queues[queue] = broker_queue
        return broker_queue

    def _drop_index_files(self) -> None:
        """Delete every index file that ends later than the checkpoint's time (IndexService#load)."""
        for segment in list(self.index):
            raw = np.fromfile(segment.path, dtype=">i8", count=2)
            if int(raw[1]) > self.checkpoint.index_msg_timestamp:
                self.changes.remove(segment.path, segment.size)
                self.index.remove(segment)

    # --- the log ------------------------------------------------------------------------------------

    def _recover_log(self) -> int:
        reached = max((q.max_physic_offset for q in self.queues.values()), default=-1)
        number = self._first_file(reached)
        self.report.scanned_from = self.files[number][0]
        end = self._find_end(number)
        self.report.damage = [hole for hole in self.log.chain.holes if hole[1] <= end]
        self.report.entries_after_log = entries_after(
            self._folders, self.log, end, self._folders.stops()
        )
        behind = intact_records_behind(self.log, end, self._newest)
        self.report.intact_cut = sum(len(run.headers) for run in behind)
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
        number = len(self.files) - 1
        while number > 0:
            left -= 1
            if self._matches(number, reached) or left <= 0:
                break
            number -= 1
        return number

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

    def _find_end(self, number: int) -> int:
        """The log's end, by a walk of its own: queues are as the crash left them until it is known."""
        for headers in self._walk(number):
            self.report.records += len(headers)
            self._newest = int(headers.store_timestamp[-1])
        return self._walked_to

    def _dispatch_from(self, number: int, only_behind: int | None) -> None:
        """Dispatch the records of the log, those after offset `only_behind`."""
        indexer = None
        if self.config.messageIndexEnable is not False:
            geometry = index_geometry(self.index, self.config)
            self._stretch_index_files(geometry.file_size)
            indexer = last_index_writer(
                *(self.root, self.index, geometry, self.release), planned=True
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
                        indexer.add_items(records)
                    elif len(fresh):
                        indexer.add_items(DecodedRecords.of(headers.take(fresh)))
        finally:
            if indexer is not None:
                self.report.index_items_rebuilt = indexer.items_written
                indexer.close()

    def _stretch_index_files(self, size: int) -> None:
        """Extend short index files: opening one in the broker maps its full size (IndexFile)."""
        for segment in self.index:
            if segment.size < size:
                missing = size - segment.size
                self.changes.add(Change(segment.path, "extended", missing, segment.size))

    def _put(self, requests: DispatchRequests) -> None:
        for queue, rows in requests.by_queue():
            if "/" in queue.topic or "\0" in queue.topic:
                continue  # not a possible folder name
            broker_queue = self._queue(queue, queue.topic in self.batch_topics)
            added, left = broker_queue.put(requests.take(rows))
            self.report.entries_rebuilt += added
            self.report.delayed_rebuilt += added if queue.topic == SCHEDULE_TOPIC else 0
            if len(left):
                left = rows[left]
                note_left_out(
                    self.report.left_out, queue, requests.offset[left], requests.log_offset[left]
                )

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
        run = follow(window, base, at, min(len(window), at + _BYTES_AT_A_TIME))
        headers = Headers(window, run.at, base)
        sound = _adds_up(headers) & _right_crc(headers)
        wrong = np.flatnonzero(~sound)
        if not len(run.at) or (len(wrong) and not int(wrong[0])):
            odd = _one_record(window, at)
            return Headers(window, run.at[:0], base) if odd is None else odd
        return headers if not len(wrong) else headers.take(slice(0, int(wrong[0])))

    # --- afterwards -----------------------------------------------------------------------------------

    def _reported(self, start: int, end: int) -> RecoveryReport:
        report = self.report
        report.log_start, report.log_end = start, end
        for queue, broker_queue in sorted(self.queues.items()):
            report.queues[queue] = (broker_queue.min_offset, broker_queue.max_offset)
            left = broker_queue.count_left(end)
            if left:
                report.entries_left[queue] = left
        self.log.chain.close()
        return report


def _is_blank(window: Bytes, at: int) -> bool:
    if at + BLANK_SIZE > len(window):
        return False
    head = window[at : at + BLANK_SIZE].view(BLANK_HEAD)[0]
    return int(head["magic"]) == MAGIC_BLANK and int(head["size"]) <= len(window) - at


def _one_record(window: Bytes, at: int) -> Headers | None:
    """The record at a position as the broker checks it: its physicalOffset may be another place.

    The headers cover only its bytes and use its own physicalOffset as base.
    """
    if at + _PHYSICAL_AT + 8 > len(window):
        return None
    total = int.from_bytes(window[at : at + 4].tobytes(), "big", signed=True)
    if total <= 0 or at + total > len(window):
        return None
    says = window[at + _PHYSICAL_AT : at + _PHYSICAL_AT + 8].tobytes()
    where = int.from_bytes(says, "big", signed=True)
    headers = Headers(window[at : at + total], np.zeros(1, dtype=np.int64), where)
    return headers if _adds_up(headers)[0] and _right_crc(headers)[0] else None


def _adds_up(headers: Headers) -> Mask:
    """Mask of the records that a broker takes: it does not see that the end of one was not written."""
    adds_up: Mask = headers.valid | (headers.fault == FAULTS.index("unwritten"))
    return adds_up


def _right_crc(headers: Headers) -> Mask:
    """Mask of the bodies with a matching CRC; does not check record CRCs."""
    view = headers.window.data
    stored = headers.body_crc.astype(np.int64)
    right = np.ones(len(headers), dtype=bool)
    for row in np.flatnonzero(_adds_up(headers) & (headers.body_length > 0)).tolist():
        first = int(headers.body_at[row])
        body = view[first : first + int(headers.body_length[row])]
        right[row] = crc32(body) & CRC_MASK == stored[row]
    return right
