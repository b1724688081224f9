"""Appends entries to the files of queues (ConsumeQueue, BatchConsumeQueue)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.entry_of_record import DispatchRequests, appended_rows, units_of
from rmq_store.consumequeue.queue_folders import queue_folder
from rmq_store.errors import LOG
from rmq_store.files.segment_chain import OpenFiles, SegmentWriter
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_DIR, Ints
from rmq_store.format.queues import FILLER_SIZE, QUEUE_ENTRY, QueueId


class QueueWriter:
    """Writes entries of all queues of a store. `ends`: the number of existing units per queue."""

    def __init__(
        self, root: Path, config: StoreConfig, files: OpenFiles, ends: dict[QueueId, int]
    ) -> None:
        self._root = root
        self._config = config
        self._files = files
        self._ends = ends
        self._batches: set[QueueId] = set()
        self._streams: dict[tuple[QueueId, bool], SegmentWriter] = {}
        self._last_log_offsets: dict[QueueId, int] = {}

    def set_end(self, queue: QueueId, units: int | None, *, batch: bool) -> None:
        """Set the number of units that the caller found in the queue.

        None: the queue is empty and begins with its next entry.
        """
        if units is None:
            self._ends.pop(queue, None)
        else:
            self._ends[queue] = units
        if batch:
            self._batches.add(queue)

    def add_entries(self, requests: DispatchRequests) -> None:
        """Append the entries to their queues, each at the queue's end.

        Skips records at or before the last log offset given for a queue, so that the same entries
        can be passed again after a failure.
        """
        for queue, rows in requests.by_queue():
            self._write_queue(queue, requests, rows)

    def _write_queue(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> None:
        rows = rows[requests.log_offset[rows] > self._last_log_offsets.get(queue, -1)]
        if not len(rows):
            return
        batch = bool(requests.batch[rows[0]])
        if batch:
            self._batches.add(queue)
        end = self._ends.get(queue)
        if end is None:
            # A ConsumeQueue starts at its first queueOffset, a BatchConsumeQueue at unit 0.
            end = 0 if batch else self._fill_front(queue, int(requests.offset[rows[0]]))
        if not batch:
            taken = rows[appended_rows(requests.offset[rows], end)]
            if len(taken) < len(rows):
                LOG.warning(
                    "%d records of queue %s are in no queue: earlier records have their queue offsets",
                    len(rows) - len(taken),
                    queue.name,
                )
            rows = taken
            if not len(rows):
                return
        units = units_of(requests, rows, batch=batch)
        self._stream(queue, batch).write(end * units.itemsize, units.view(np.uint8))
        self._ends[queue] = end + len(rows)
        self._last_log_offsets[queue] = int(requests.log_offset[rows[-1]])

    def _fill_front(self, queue: QueueId, first: int) -> int:
        """Write filler from the first file's start to the first offset (ConsumeQueue#fillPreBlank)."""
        count = first % (self._config.queue_file_size // QUEUE_ENTRY.itemsize)
        if count:
            filler = np.zeros(count, dtype=QUEUE_ENTRY)
            filler["size"] = FILLER_SIZE
            at = (first - count) * QUEUE_ENTRY.itemsize
            self._stream(queue, False).write(at, filler.view(np.uint8))
        return first

    def _stream(self, queue: QueueId, batch: bool) -> SegmentWriter:
        stream = self._streams.get((queue, batch))
        if stream is None:
            kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            folder = Path(queue_folder(self._root, kind, queue))
            size = self._config.batch_queue_file_size if batch else self._config.queue_file_size
            stream = SegmentWriter(self._files, lambda base: folder, size)
            self._streams[queue, batch] = stream
        return stream
