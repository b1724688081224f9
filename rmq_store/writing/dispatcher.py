"""Dispatches appended records to queues and index, in pieces of a few megabytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import WITHIN_THE_LOG, SoundRun, walk
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import batch_topics, topic_configs_to_change
from rmq_store.consumequeue.entry_of_record import DispatchRequests, entries_to_write
from rmq_store.consumequeue.queue_files import QueueWriter
from rmq_store.errors import CorruptRecordError, LogOffset, StoreError
from rmq_store.files.segment_chain import OpenFiles
from rmq_store.format.byte_layout import INDEX_DIR, Bytes, Ints
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import Geometry, IndexFile, list_index_files
from rmq_store.index.index_writer import IndexWriter, Items
from rmq_store.snapshot.snapshot import StoreSnapshot
from rmq_store.writing.encoded_records import ListedRecords

_BYTES_TAKEN = 8 << 20  # bytes appended before queue and index entries are written
_RUNS_TAKEN = 1024  # appends whose queue and index entries are written together
_NO_BYTES = np.zeros(0, dtype=np.uint8)


class Dispatcher:
    """Writes the queues and the index of one store. Not thread-safe.

    If a writer dies, brokers and readers derive missing entries from the log again.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        release: Dialect,
        snapshot: StoreSnapshot,
        queue_files: OpenFiles,
        listed: Callable[[Mapping[QueueId, int]], None],
    ) -> None:
        """`listed`: callback that receives the new queue ends after each write."""
        self._config = config
        self._listed = listed
        self.batch_topics = batch_topics(topic_configs_to_change(root)) | snapshot.batch_topics
        ends = {queue: state.file_stop for queue, state in snapshot.queues.items()}
        self._queues = QueueWriter(root, config, queue_files, ends)
        self._index = _open_index(root, config, release)
        self._taken: list[tuple[Bytes, Ints, ListedRecords | None]] = []
        self.bytes_taken = 0
        self._broke_off = False
        self.last_record = 0  # log offset of the last record whose entries are written
        self.last_timestamp = 0  # when it was stored, ms

    def collect(self, data: Bytes, places: Ints, listing: ListedRecords | None = None) -> None:
        """Queue records at the log offsets `places`, after those of earlier calls; write if they are many.

        `listing`: what lists them, where it is known; otherwise it is derived from `data`.
        """
        if listing is not None and not self.batch_topics.isdisjoint(listing.topics):
            listing = None  # the entries of a BatchConsumeQueue depend on properties
        self.bytes_taken += len(data)
        self._taken.append((data if listing is None else _NO_BYTES, places, listing))
        if self.bytes_taken >= _BYTES_TAKEN or len(self._taken) >= _RUNS_TAKEN:
            self.write_pieces()

    def write_pieces(self) -> None:
        """Write the entries of all queued records."""
        if not self._taken:
            return
        runs, self._taken, self.bytes_taken = self._taken, [], 0
        for known, group in groupby(runs, lambda run: run[2] is not None):
            if known:
                self._write_listing(ListedRecords.concat([listing for _, _, listing in group]))
                continue
            for some in _adjacent((data, places) for data, places, _ in group):
                base = int(some[0][1][0])
                data, places = (np.concatenate(columns) for columns in zip(*some, strict=True))
                self.write_entries(Headers(data, places - base, base))

    def write_entries(self, headers: Headers) -> None:
        """Write queue entries before index entries: a reader may briefly miss a key, never a message.

        The same records can be passed again after a failure: queues and index skip those that they have.
        """
        records = DecodedRecords.of(headers)
        self._write(
            entries_to_write(records, self._config, self.batch_topics),
            lambda index: index.add_records(records),
            int(headers.at[-1]) + headers.base,
            int(headers.store_timestamp[-1]),
        )

    def _write_listing(self, listing: ListedRecords) -> None:
        items = Items(listing.item_counts, listing.hashes)
        self._write(
            listing.entries(),
            lambda index: index.add_items(listing.log_offset, listing.store_timestamp, items),
            int(listing.log_offset[-1]),
            int(listing.store_timestamp[-1]),
        )

    def _write(
        self,
        requests: DispatchRequests,
        add_items: Callable[[IndexWriter], None],
        last_record: int,
        last_timestamp: int,
    ) -> None:
        if self._broke_off and self._index is not None:
            self._index.resume()
        self._broke_off = True
        self._queues.add_entries(requests)
        if self._index is not None:
            add_items(self._index)
        self._broke_off = False
        self.last_record, self.last_timestamp = last_record, last_timestamp
        stops = requests.offset + requests.count
        self._listed({queue: int(stops[rows[-1]]) for queue, rows in requests.by_queue()})

    # --- the index ----------------------------------------------------------------------------------

    @property
    def newest_time_of_full_index_files(self) -> int:
        """Store time (ms) of the last message in full index files; 0 without any."""
        return 0 if self._index is None else self._index.full_until

    def flush_index(self) -> None:
        """Flush the index to the disk."""
        if self._index is not None:
            self._index.flush()

    def close(self) -> None:
        """Close the index; the caller closes the queue files."""
        if self._index is not None:
            self._index.close()


def _adjacent(runs: Iterable[tuple[Bytes, Ints]]) -> Iterator[list[tuple[Bytes, Ints]]]:
    """Runs of records together that follow each other in one file of the log."""
    some: list[tuple[Bytes, Ints]] = []
    for data, places in runs:
        if some and int(some[-1][1][0]) + len(some[-1][0]) != int(places[0]):
            yield some
            some = []
        some.append((data, places))
    yield some


def _open_index(root: Path, config: StoreConfig, release: Dialect) -> IndexWriter | None:
    if config.messageIndexEnable is False:
        return None
    geometry = Geometry(config.index_slots, config.index_items)
    files = list_index_files(root / INDEX_DIR)
    # A file without items does not show its geometry. One of another size is not continued.
    while files and files[-1].size != geometry.file_size:
        if IndexFile(files[-1], assumed=geometry).header.items > 0:
            break
        files.pop()
    if not files:
        return IndexWriter(root, geometry, release, None, None)
    header = IndexFile(files[-1], slots=geometry.slots, items=geometry.items).header
    return IndexWriter(root, geometry, release, Path(files[-1].path), header)


_BYTES_AT_A_TIME = 4 << 20
RETRIES = 30  # ConsumeQueue#putMessagePositionInfoWrapper


@dataclass(eq=False, repr=False)
class Reput:
    """A thread that reads the log from `position` on and passes its records on, in order.

    `open_log` opens the log as it is now, because files come and go. `log_range` returns its start
    and its readable end. `sink` receives records; if it raises, it is called again with the same
    records and must skip those it has already processed. After `retries` failures, `failed` is
    called and dispatching stops.
    """

    position: int
    open_log: Callable[[], CommitLog]
    log_range: Callable[[], tuple[int, int]]
    sink: Callable[[Headers], None]
    failed: Callable[[BaseException], None]
    retries: int = RETRIES
    retry_seconds: float = 1.0

    def __post_init__(self) -> None:
        self._log: CommitLog | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._done = threading.Condition()
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="rmqstore-reput", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Notify the thread that the log has grown."""
        self._wake.set()

    def catch_up(self) -> None:
        """Return once all current records of the log are dispatched, or cannot be."""
        end = self.log_range()[1]
        self.wake()
        with self._done:
            while self.position < end and not self._broken and self._thread.is_alive():
                self._done.wait(0.1)

    def stop(self) -> None:
        """Dispatch the remaining records and stop the thread."""
        if self._thread.is_alive():
            self.catch_up()
            self._closing.set()
            self._wake.set()
            self._thread.join()
        if self._log is not None:
            self._log.chain.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                while not self._closing.is_set() and self.dispatch_some():
                    pass
            except Exception as error:  # any error: otherwise callers would wait for a dead thread
                self.failed(error)
                self._broken = True
                with self._done:
                    self._done.notify_all()
                return

    def dispatch_some(self) -> bool:
        """Dispatch a few megabytes; returns whether there were any. Works with or without the thread."""
        start, end = self.log_range()
        if self.position < start:
            self.position = start  # earlier files were deleted, dispatched or not
        if self.position >= end:
            return False
        log, upto = self._log_with(self.position), min(end, self.position + _BYTES_AT_A_TIME)
        piece = next(walk(log, self.position, upto, check_crc=False))
        if isinstance(piece, SoundRun):
            self._hand_on(piece.headers)
        elif piece.gap not in WITHIN_THE_LOG:
            raise CorruptRecordError(
                log.path_at(self.position),
                offset=LogOffset(self.position),
                reason="the log cannot be dispatched further"
                + (f": {piece.gap.value}" if piece.gap else ""),
                advice="Close the store and open it again, which recovers it",
            )
        with self._done:
            self.position = piece.stop
            self._done.notify_all()
        return True

    def _log_with(self, offset: int) -> CommitLog:
        """The log, reopened if a file was added."""
        if self._log is None or self._log.chain.segment_at(offset) is None:
            if self._log is not None:
                self._log.chain.close()
            self._log = self.open_log()
        return self._log

    def _hand_on(self, headers: Headers) -> None:
        for left in range(self.retries, -1, -1):
            try:
                self.sink(headers)
            except StoreError:
                if not left or self._closing.wait(self.retry_seconds):
                    raise
            else:
                return
