"""Appending entries to the files of queues (ConsumeQueue, BatchConsumeQueue)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.dispatch import DispatchRequests
from rmq_store.consumequeue.folders import queue_folder
from rmq_store.files.writer import OpenFiles, SegmentWriter
from rmq_store.format.array_types import Ints
from rmq_store.format.layout import (
    BATCH_CONSUMEQUEUE_DIR,
    BATCH_QUEUE_ENTRY,
    CONSUMEQUEUE_DIR,
    FILLER_SIZE,
    QUEUE_ENTRY,
)
from rmq_store.format.queues import QueueId

_NOT_COMPACTED = -1


class QueueWriter:
    """Writes entries of all queues of a store. `ends`: units each queue has already."""

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

    def end_of(self, queue: QueueId) -> int:
        """The queue offset behind the last unit of a ConsumeQueue; 0 of a BatchConsumeQueue."""
        return 0 if queue in self._batches else self._ends.get(queue, 0)

    def set_end(self, queue: QueueId, units: int | None, *, batch: bool) -> None:
        """How many units the queue has, by who looked; None: it has none and begins with the next."""
        if units is None:
            self._ends.pop(queue, None)
        else:
            self._ends[queue] = units
        if batch:
            self._batches.add(queue)

    def append(self, found: DispatchRequests) -> None:
        """Append the entries to their queues, each at the end of what it has.

        Records that a queue has already, by the place of the last one it was given, are passed over:
        after a failure the same entries can be given again.
        """
        order = np.argsort(found.queue, kind="stable")
        edges = np.flatnonzero(np.diff(found.queue[order])) + 1
        for rows in np.split(order, edges):
            if len(rows):
                self._append_to(found.queues[int(found.queue[rows[0]])], found, rows)

    def _append_to(self, queue: QueueId, found: DispatchRequests, rows: Ints) -> None:
        rows = rows[found.log_offset[rows] > self._last_log_offsets.get(queue, -1)]
        if not len(rows):
            return
        batch = bool(found.batch[rows[0]])
        if batch:
            self._batches.add(queue)
        end = self._ends.get(queue)
        if end is None:
            # A new queue begins at its first offset; a BatchConsumeQueue always at its first unit.
            end = 0 if batch else self._fill_front(queue, int(found.offset[rows[0]]))
        dtype = BATCH_QUEUE_ENTRY if batch else QUEUE_ENTRY
        units = np.zeros(len(rows), dtype=dtype)
        units["log_offset"] = found.log_offset[rows]
        units["size"] = found.size[rows]
        units["tags_code"] = found.tags_code[rows]
        if batch:
            units["store_timestamp"] = found.store_timestamp[rows]
            units["base_offset"] = found.offset[rows]
            units["batch_size"] = found.count[rows]
            units["compacted_offset"] = _NOT_COMPACTED
        self._stream(queue, batch).write(end * dtype.itemsize, units.view(np.uint8))
        self._ends[queue] = end + len(rows)
        self._last_log_offsets[queue] = int(found.log_offset[rows[-1]])

    def _fill_front(self, queue: QueueId, first: int) -> int:
        """Filler from the first file's start to the first offset (ConsumeQueue#fillPreBlank)."""
        per_file = self._config.queue_file_size // QUEUE_ENTRY.itemsize
        count = first % per_file
        if count:
            filler = np.zeros(count, dtype=QUEUE_ENTRY)
            filler["size"] = FILLER_SIZE
            at = (first - count) * QUEUE_ENTRY.itemsize
            self._stream(queue, False).write(at, filler.view(np.uint8))
        return first

    def _stream(self, queue: QueueId, batch: bool) -> SegmentWriter:
        stream = self._streams.get((queue, batch))
        if stream is None:
            stream = self._streams[queue, batch] = self._new_stream(queue, batch)
        return stream

    def _new_stream(self, queue: QueueId, batch: bool) -> SegmentWriter:
        kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
        folder = Path(queue_folder(self._root, kind, queue))
        size = self._config.batch_queue_file_size if batch else self._config.queue_file_size
        return SegmentWriter(self._files, lambda base: folder, size)
