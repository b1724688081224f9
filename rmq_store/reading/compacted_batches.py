"""Arrow batches of queues of compaction topics: what `get_compacted` gives one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from rmq_store.consumequeue.compacted_queue import CompactedQueue
from rmq_store.errors import DataLossError, ListedAt, StoreError
from rmq_store.format.queue_entries import Entries
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.query import Query
from rmq_store.reading.slice_reader import SliceReader, ranges_of_slices
from rmq_store.snapshot.compacted_view import ServedQueues

_NOWHERE = -1


class _EntriesOfFiles:
    """The entries of one queue as those of any queue."""

    def __init__(self, files: CompactedQueue) -> None:
        self._files, self.log, self.log_end, self.lost = files, files.log, files.log_end, files.lost

    def is_batch(self, queue: QueueId) -> bool:
        """No: a file with an entry of several messages is refused."""
        return False

    def is_dense(self, queue: QueueId) -> bool:
        """No: messages that were compacted away have no entry."""
        return False

    def has_tag_hashes(self, queue: QueueId) -> bool:
        """No: the broker compares no tags here (CompactionStore#getMessage), and nothing else proves them."""
        return False

    def slice_entries(self, queue: QueueId, start: int, stop: int) -> Entries:
        """The entries of a range of queue offsets."""
        return self._files.entries(start, stop)

    listed_entries = slice_entries

    def folder(self, queue: QueueId) -> str:
        """The folder of the entries."""
        return self._files.folder

    def why_missing(self, queue: QueueId) -> str:
        """Offsets between others are those of messages that were compacted away."""
        return "it was compacted away"

    def offsets_without_file(self, queue: QueueId) -> Sequence[tuple[int, int, bool]]:
        """None are known: a compaction leaves out offsets."""
        return ()

    def was_deleted(self, queue: QueueId) -> bool:
        """Never: the files are open."""
        return False


def compacted_batches(
    served: ServedQueues,
    parts: Mapping[QueueId, Sequence[QueueSlice]],
    broker_name: str,
    query: Query,
    report: Callable[[StoreError, ListedAt], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """The batches of compacted queues, queue after queue, each in the order of its compaction log.

    Every entry is checked against its record, because these files are all that says which messages there
    are. `report` answers for a queue whose files are damaged as a whole.
    """
    checked = replace(query, verify_queue=True, check_ends=False)
    for queue, of_queue in parts.items():
        files = served.compacted(queue)
        assert files is not None  # ServedQueues.split chose it
        if isinstance(files, StoreError):
            yield from report(files, ListedAt(*queue, of_queue[0].start, _NOWHERE, 0, 0))
            continue
        ranges = ranges_of_slices(of_queue)
        reader = SliceReader(_EntriesOfFiles(files), broker_name, checked, ranges)
        try:
            yield from reader.read(of_queue)
        except DataLossError as lost:  # of the entries, which the reader does not open itself
            yield from report(lost, ListedAt(*queue, of_queue[0].start, _NOWHERE, 0, 0))
