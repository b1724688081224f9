"""All queues of a store, in folders or in a RocksDB database, and which of their entries lead nowhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.commitlog.headers import wrong_crc_rows
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.rocksdb import has_queue_files, rocksdb_queues
from rmq_store.config.topics_json import TopicConfigs, batch_topics, topics_or_problem
from rmq_store.consumequeue.queue_database import QueueDatabase, QueueRange
from rmq_store.consumequeue.queue_files import QueueFiles, is_at_or_after, queue_folder
from rmq_store.errors import (
    LOG,
    CorruptQueueError,
    StoreError,
    UnsupportedStoreError,
    is_utf8,
    printable,
    warn_once,
)
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import folder_entries
from rmq_store.files.source import ReadCounts, Sources
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
)
from rmq_store.format.queues import FILLER_SIZE, QueueId
from rmq_store.text.sizes import counted

_LAST_ID, _DIGITS = 2**31 - 1, 10  # a Java int
_QUEUE_FILES_KEPT = 16  # open; to open one again costs some microseconds
_REMOTE_BLOCK = 16 << 10  # small, because the search for a queue's end reads a few distant places
_NAMED = 5  # queues in a sentence


class QueueFolders:
    """The queues of a store on disk, and their files, opened on demand.

    `unread`: why the database with the queues was not read, if there are queue files beside it.
    """

    def __init__(self, root: Path, config: StoreConfig, log: CommitLog | None = None) -> None:
        """`log`: says how many messages an entry of a database stands for."""
        self.root = root
        self._log = log
        self.config = config
        self.unread: StoreError | None = None
        self._sources = Sources(_QUEUE_FILES_KEPT, block=_REMOTE_BLOCK)
        self._open: dict[QueueId, QueueFiles] = {}

    @property
    def counts(self) -> ReadCounts:
        """What was read from all queues."""
        return self._sources.counts

    def listed(self) -> dict[QueueId, bool]:
        """Every queue -> whether it is a BatchConsumeQueue. Sorted.

        Raises UnsupportedStoreError or CorruptQueueError if the queues are in a database alone, and
        that cannot be read.
        """
        queues = self.queues_in_folders()
        if self._database is None:
            return queues
        listed = {queue: queue.topic in self._batch_topics for queue in self._database.ranges}
        return dict(sorted((listed | queues).items()))

    @cached_property
    def _batch_topics(self) -> set[str]:
        """Topics whose queues in a database are read as BatchConsumeQueues; only the log can say how."""
        return batch_topics(self.declared[0]) if self._log is not None else set()

    @cached_property
    def declared(self) -> tuple[TopicConfigs, StoreError | None]:
        """topics.json, read once: topic -> its settings, and why it cannot be read.

        Raises AccessError.
        """
        return topics_or_problem(self.root)

    def queues_in_folders(self) -> dict[QueueId, bool]:
        """Every queue that has a folder -> whether it is a BatchConsumeQueue. Sorted."""
        queues: dict[QueueId, bool] = {}
        for name, batch in ((CONSUMEQUEUE_DIR, False), (BATCH_CONSUMEQUEUE_DIR, True)):
            for queue in queue_folders_in(self.root / name):
                queues.setdefault(queue, batch)
        return dict(sorted(queues.items()))  # a file system has an order of its own

    @cached_property
    def _database(self) -> QueueDatabase | None:
        folder = rocksdb_queues(self.root)
        if folder is None:
            return None
        try:
            database = QueueDatabase(folder)
            _ = database.ranges  # a damaged database shows here
        except (UnsupportedStoreError, CorruptQueueError) as error:
            if not has_queue_files(self.root):
                raise
            self.unread = error
            return None
        return database

    def files(self, queue: QueueId, *, batch: bool = False) -> QueueFiles:
        """The files of a queue, or its part of the database in the form of files."""
        files = self._open.get(queue)
        if files is None:
            if self._database is None or queue not in self._database.ranges:
                files = self.files_in_folder(queue, batch=batch)
            elif batch:
                files = self._batch_of_database(queue)
            else:
                files = self._of_database(queue)
            self._open[queue] = files
        return files

    def _batch_of_database(self, queue: QueueId) -> QueueFiles:
        """The BatchConsumeQueue, or what a database alone has of it."""
        assert self._database is not None
        log = self._log
        if log is None or os.path.isdir(queue_folder(self.root, BATCH_CONSUMEQUEUE_DIR, queue)):
            return self.files_in_folder(queue, batch=True)
        # It brings Arrow, which `info` of a usual store does not need.
        from rmq_store.consumequeue.entry_of_record import message_counts

        return self._database.batch_files(queue, partial(message_counts, log), self._sources)

    def files_in_folder(self, queue: QueueId, *, batch: bool = False) -> QueueFiles:
        """The files of a queue that has a folder."""
        folder = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
        size = self.config.mappedFileSizeConsumeQueue and self.config.queue_file_size
        if batch:
            size = self.config.mapperFileSizeBatchConsumeQueue
        path = queue_folder(self.root, folder, queue)
        return QueueFiles(path, batch=batch, file_size=size, sources=self._sources)

    def extensions(self) -> list[SegmentChain]:
        """The files of each queue's extension, as large as the largest that their names or sizes show."""
        queues = queue_folders_in(self.root / CONSUMEQUEUE_EXT_DIR)
        folders = [queue_folder(self.root, CONSUMEQUEUE_EXT_DIR, queue) for queue in queues]
        size = max((SegmentChain([folder]).file_size for folder in folders), default=0)
        return [SegmentChain([folder], file_size=size) for folder in folders]

    def _of_database(self, queue: QueueId) -> QueueFiles:
        """The queue in the database, or its files if they list as much, or both if neither does.

        A broker may have begun to write one of them later, or have ceased to write it. If entries
        between the two are in neither, it is the one that begins first: the log has the others.
        """
        assert self._database is not None
        range_ = self._database.ranges[queue]
        if not os.path.isdir(queue_folder(self.root, CONSUMEQUEUE_DIR, queue)):
            return self._database.files(queue, range_, self._sources)
        files = self.files_in_folder(queue)
        listed = _range_of(files)
        if listed.holds(range_) or (listed.stop < range_.first and listed.first < listed.stop):
            return files
        if range_.holds(listed) or range_.stop < listed.first:
            return self._database.files(queue, range_, self._sources)
        both = QueueRange(min(listed.first, range_.first), max(listed.stop, range_.stop))
        return self._database.files(queue, both, self._sources, beside=files)

    def every(self) -> list[tuple[QueueId, QueueFiles]]:
        """Every queue with its files. Sorted."""
        return [(queue, self.files(queue, batch=batch)) for queue, batch in self.listed().items()]

    def stops(self) -> dict[QueueId, int]:
        """The unit after the last one of each queue."""
        return {queue: files.find_end_unit() for queue, files in self.every()}

    def release(self) -> None:
        """Close the files of a local store; the next read opens them again."""
        self._sources.release()

    def close(self) -> None:
        """Close all files."""
        self._sources.clear()
        self._open.clear()
        database = self.__dict__.pop("_database", None)
        if database is not None:
            database.close()


def _range_of(files: QueueFiles) -> QueueRange:
    """The queue offsets from the first entry of the files, after filler and holes, to the last."""
    ends = files.ends()
    stop = files.find_end_unit() if ends is None else ends.stop
    first = files.first_unit
    if ends is None or not is_at_or_after(*ends.first, 0):
        upto = min(stop, first + files.units_per_file)
        sizes = files.raw(first, upto)["size"] if first < upto else np.zeros(0)
        real = np.flatnonzero((sizes > 0) & (sizes != FILLER_SIZE))
        first = first + int(real[0]) if len(real) else upto
    return QueueRange(first, stop)


def queue_folders_in(folder: Path) -> Iterable[QueueId]:
    for topic in _folders_in(folder):
        if not is_utf8(topic.name):  # a broker takes the name from a topic, which is UTF-8
            warn_once("passed over %s, whose name is not UTF-8", printable(topic.path))
            continue
        for queue in _folders_in(topic.path):
            if is_queue_id(queue.name):
                yield QueueId(topic.name, int(queue.name))
            elif queue.name.isdigit():
                warn_once("passed over %s: no queue has this id", printable(queue.path))


def is_queue_id(name: str) -> bool:
    """Whether a folder's name is a queue id: a Java int, in ASCII digits."""
    return name.isascii() and name.isdigit() and len(name) <= _DIGITS and int(name) <= _LAST_ID


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link that leads to itself
        warn_once("passed over %s: %s", printable(entry.path), error.strerror)
        return False


def _folders_in(folder: str | Path) -> list[os.DirEntry[str]]:
    """The folders that exist now; a missing or deleted parent counts as empty."""
    entries = folder_entries(folder, "listing queues", NotADirectoryError)
    return [entry for entry in entries if _is_folder(entry)]


def entries_after_log(
    folders: QueueFolders, log: CommitLog, log_end: int, stops: Mapping[QueueId, int]
) -> dict[QueueId, int]:
    """How many units before these `stops` lead after the end of the log, and to no intact record there.

    Of each queue with such ones.
    """
    listed, counts = folders.listed(), {}
    for queue, stop in stops.items():
        files = folders.files(queue, batch=listed[queue]) if queue in listed else None
        start = stop if files is None else files.stop_before_log(log_end, stop)
        if files is not None and start < stop:
            entries = files.entries(start, stop)
            found = log.whole_headers(entries.log_offset, entries.size)
            intact = sum(len(rows) - len(wrong_crc_rows(headers)) for rows, headers in found)
            counts[queue] = len(entries) - intact
    return {queue: count for queue, count in counts.items() if count}


def entries_into_ranges(
    folders: QueueFolders, ranges: Collection[tuple[int, int]]
) -> dict[QueueId, int]:
    """How many units of each queue lead into ranges of the log, or to a record that reaches into one."""
    counts: Counter[QueueId] = Counter()
    for queue, batch in folders.listed().items() if ranges else ():
        files = folders.files(queue, batch=batch)
        first, stop = files.first_unit, files.find_end_unit()
        for begin, end in ranges:
            low, high = files.stop_before_log(begin, stop), files.find_unit_at_log(end, first, stop)
            counts[queue] += max(0, high - low)
    return dict(+counts)


def line_of_lost_end(after_log: Mapping[QueueId, int], log_end: int) -> str:
    """A sentence about entries that lead after the end of the log, and to no record, by queue."""
    return (
        f"{entries_by_queue(after_log)} leading after the log's end at log offset {log_end}: normal after a "
        "crash and in a copy of a running store. Else a file of the log is missing, cut or damaged: a copy "
        "or a replica may have it"
    )


def entries_by_queue(counts: Mapping[QueueId, int]) -> str:
    """A phrase about the numbers of entries of some queues, the largest first."""
    most = sorted(counts.items(), key=lambda item: -item[1])[:_NAMED]
    named = ", ".join(f"{queue.name}: {count}" for queue, count in most)
    more = ", ..." if len(counts) > _NAMED else ""
    entries, queues = counted(sum(counts.values()), "entry"), counted(len(counts), "queue")
    return printable(f"{entries} in {queues} ({named}{more})")


class EntriesAfterCopiedLog:
    """Those of a store whose log is copied: the ends of its queues are as of now.

    A broker that writes meanwhile lists what the log has already. Nothing else in a copy of the log needs
    the queues, so damaged ones only leave this unknown.
    """

    def __init__(self, root: Path, config: StoreConfig, log: CommitLog) -> None:
        self._folders = QueueFolders(root, config, log)
        self._log = log.with_files_of_now()
        try:
            self._stops = self._folders.stops()
        except StoreError as error:
            self._stops = self._unknown(error)

    def behind(self, log_end: int) -> dict[QueueId, int]:
        """How many entries of each queue lead after `log_end` to no record. To be called once."""
        try:
            return entries_after_log(self._folders, self._log, log_end, self._stops)
        except StoreError as error:
            return self._unknown(error)
        finally:
            self._folders.close()
            self._log.chain.close()

    @staticmethod
    def _unknown(error: StoreError) -> dict[QueueId, int]:
        LOG.warning("whether queues list messages that the log lacks is not known: %s", error)
        return {}


def rows_of_entry_counts(entries: Mapping[QueueId, int]) -> list[dict[str, Any]]:
    """Numbers of entries by queue as plain values for JSON."""
    return [{**queue._asdict(), "entries": count} for queue, count in entries.items()]
