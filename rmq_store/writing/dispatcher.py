"""Dispatches appended records to queues and index, in pieces of a few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import batch_topics, topics_to_extend
from rmq_store.consumequeue.entry_of_record import DispatchRequests, entries_to_write
from rmq_store.consumequeue.queue_writer import QueueWriter
from rmq_store.files.segment_writer import OpenFiles
from rmq_store.files.segments import SegmentFile
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import INDEX_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import Geometry, Header, IndexFile, list_index_files
from rmq_store.index.index_writer import IndexWriter
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
        self.batch_topics = batch_topics(topics_to_extend(root)) | snapshot.batch_topics
        ends = {queue: state.file_stop for queue, state in snapshot.queues.items()}
        self._queues = QueueWriter(root, config, queue_files, ends)
        self._index = _open_index(root, config, release)
        self._taken: list[tuple[Bytes, Ints, ListedRecords | None]] = []
        self.bytes_taken = 0
        self._broke_off = False
        self.last_record = 0  # log offset of the last record whose entries are written
        self.last_timestamp = 0  # when it was stored, ms

    def take(self, data: Bytes, places: Ints, listing: ListedRecords | None = None) -> None:
        """Queue records at the log offsets `places`, after those of earlier calls; write if they are many.

        `listing`: what lists them, where it is known; otherwise it is derived from `data`.
        """
        if listing is not None and not self.batch_topics.isdisjoint(listing.topics):
            listing = None  # the entries of a BatchConsumeQueue depend on properties
        self.bytes_taken += len(data)
        self._taken.append((data if listing is None else _NO_BYTES, places, listing))
        if self.bytes_taken >= _BYTES_TAKEN or len(self._taken) >= _RUNS_TAKEN:
            self.write_taken()

    def write_taken(self) -> None:
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

        The same records can be passed again after a failure: queues and index skip those that they
        have.
        """
        records = DecodedRecords.of(headers)
        requests = entries_to_write(records, self._config, self.batch_topics)
        self._write(requests, lambda index: index.add_items(records))
        self.last_record = int(headers.at[-1]) + headers.base
        self.last_timestamp = int(headers.store_timestamp[-1])
        self._listed(self._ends_of(requests))

    def _write_listing(self, listing: ListedRecords) -> None:
        requests = listing.entries()
        self._write(requests, lambda index: index.add_hashes(*listing.items()))
        self.last_record = int(listing.log_offset[-1])
        self.last_timestamp = int(listing.store_timestamp[-1])
        self._listed(self._ends_of(requests))

    def _write(self, requests: DispatchRequests, add_items: Callable[[IndexWriter], None]) -> None:
        if self._broke_off and self._index is not None:
            self._index.resume()
        self._broke_off = True
        self._queues.add_entries(requests)
        if self._index is not None:
            add_items(self._index)
        self._broke_off = False

    def _ends_of(self, requests: DispatchRequests) -> dict[QueueId, int]:
        """The queueOffset after the last message of each queue that received one."""
        stops = requests.offset + requests.count
        return {queue: int(stops[rows[-1]]) for queue, rows in requests.by_queue()}

    # --- the index ----------------------------------------------------------------------------------

    @property
    def index_full_until(self) -> int:
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
    header: Header | None = None
    # A file without items does not show its geometry. One of another size is not continued.
    while files and files[-1].size != geometry.file_size and not _has_items(files[-1], geometry):
        files.pop()
    if files:
        header = IndexFile(files[-1], slots=geometry.slots, items=geometry.items).header
    last = Path(files[-1].path) if files else None
    return IndexWriter(root, geometry, release, last, header)


def _has_items(segment: SegmentFile, geometry: Geometry) -> bool:
    return IndexFile.assumed(segment, geometry).header.items > 0
