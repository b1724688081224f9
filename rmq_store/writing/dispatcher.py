"""What is appended to a log goes to its queues and its index, in pieces of some megabytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import batch_topics, read_topic_configs
from rmq_store.consumequeue.dispatch import DispatchRequests, entries_of
from rmq_store.consumequeue.writer import QueueWriter
from rmq_store.files.writer import OpenFiles
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import INDEX_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect
from rmq_store.index.file import IndexFile, list_index_files
from rmq_store.index.geometry import Geometry, Header
from rmq_store.index.writer import IndexWriter
from rmq_store.snapshot.snapshot import StoreSnapshot

_BYTES_TAKEN = 8 << 20  # appended before queue and index entries are written
_RUNS_TAKEN = 1024  # appends whose queue and index entries are written together


class Dispatcher:
    """Writes the queues and the index of one store.

    What is not there yet when a writer dies is found again from the log, by a broker and by a
    reader alike. Not for several threads at once.
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
        """`listed` is told how far queues have come, each time that they were written."""
        self._config = config
        self._listed = listed
        self.batch_topics = batch_topics(read_topic_configs(root)) | {
            queue.topic for queue, state in snapshot.queues.items() if state.batch
        }
        ends = {queue: state.file_stop for queue, state in snapshot.queues.items()}
        self._queues = QueueWriter(root, config, queue_files, ends)
        self._index = _open_index(root, config, release)
        self._taken: list[tuple[Bytes, Ints]] = []
        self.bytes_taken = 0
        self._broke_off = False
        self.last_record = 0  # log offset of the last record whose entries are written
        self.last_timestamp = 0  # when it was stored, ms

    def take(self, data: Bytes, places: Ints) -> bool:
        """Take down records that stand at `places` in the log, behind those taken before.

        Returns whether so much is waiting that it should be written.
        """
        self._taken.append((data, places))
        self.bytes_taken += len(data)
        return self.bytes_taken >= _BYTES_TAKEN or len(self._taken) >= _RUNS_TAKEN

    def dispatch_taken(self) -> None:
        """Write the entries of all that was taken down."""
        if not self._taken:
            return
        runs, self._taken, self.bytes_taken = self._taken, [], 0
        base = int(runs[0][1][0])
        data = runs[0][0] if len(runs) == 1 else np.concatenate([run for run, _ in runs])
        places = np.concatenate([places for _, places in runs])
        self.dispatch(Headers(data, places - base, base))

    def dispatch(self, headers: Headers) -> None:
        """Queue before index: a reader may miss a key for a moment, never a message.

        The same records can be given again after a failure: both know what they have of them.
        """
        found, topics, properties = entries_of(headers, self._config, self.batch_topics)
        if self._broke_off and self._index is not None:
            self._index.resume()
        self._broke_off = True
        self._queues.append(found)
        if self._index is not None:
            self._index.append(headers, topics, properties)
        self._broke_off = False
        self.last_record = int(headers.at[-1]) + headers.base
        self.last_timestamp = int(headers.field("store_timestamp", np.int64).max())
        self._listed(self._ends_of(found))

    def _ends_of(self, found: DispatchRequests) -> dict[QueueId, int]:
        """Behind the last message of each queue that got one."""
        ends = {}
        for number, queue in enumerate(found.queues):
            rows = np.flatnonzero(found.queue == number)
            if len(rows):
                end = int(found.offset[rows[-1]] + found.count[rows[-1]])
                ends[queue] = max(end, self._queues.end_of(queue))
        return ends

    # --- the index ----------------------------------------------------------------------------------

    @property
    def index_full_until(self) -> int:
        """Store time (ms) of the last message in index files that are full; 0 without any."""
        return 0 if self._index is None else self._index.full_until

    def flush_index(self) -> None:
        """Put the index on the disk."""
        if self._index is not None:
            self._index.flush()

    def close(self) -> None:
        """Close the index; the queues' files belong to whoever opened them."""
        if self._index is not None:
            self._index.close()


def _open_index(root: Path, config: StoreConfig, release: Dialect) -> IndexWriter | None:
    if config.messageIndexEnable is False:
        return None
    geometry = Geometry(config.index_slots, config.index_items)
    files = list_index_files(root / INDEX_DIR)
    header: Header | None = None
    if files:
        header = IndexFile(files[-1], slots=geometry.slots, items=geometry.items).header
    last = Path(files[-1].path) if files else None
    return IndexWriter(root, geometry, release, last, header)
