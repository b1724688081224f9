"""Queues of a new store that go into a RocksDB database, while a recovery walks the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.consumequeue.queue_database_writer import QueueDatabaseWriter
from rmq_store.consumequeue.queue_lives import LastLives
from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery.report import LeftOut, note_left_out
from rmq_store.recovery.strict_log_end import LogWalk
from rmq_store.recovery.strict_queues import LookFurther


class DatabaseQueues:
    """Takes the entries of all records of the log, as `QueueRecovery` does for queue files."""

    cut = 0  # entries: a new database has none before
    may_look_further = False

    def __init__(self, folder: Path, log_start: int, walk: LogWalk) -> None:
        """Raises AccessError, and LookFurther unless the walk has all records."""
        if walk.start > log_start:
            raise LookFurther
        self.rebuilt = self.delayed = 0
        self.left_out: dict[QueueId, LeftOut] = {}
        self.inner_batches: set[str] = set()  # topics of entries that stand for several messages
        self._log_end = walk.stop or 0
        self._writer = QueueDatabaseWriter(folder, self._note)

    def ends_before(self) -> dict[QueueId, int]:
        """No queue has entries before the scan."""
        return {}

    def begin_again(self, lives: LastLives) -> None:
        """Does nothing: no queue has entries yet."""

    def take(self, requests: DispatchRequests, upto: int) -> None:
        """Add the entries of records that follow those of earlier calls. Raises AccessError."""
        self._writer.add_entries(requests)
        several = np.flatnonzero(requests.count > 1)
        self.inner_batches |= {queue.topic for queue, _ in requests.by_queue(several)}
        self.rebuilt += len(requests)
        self.delayed += int(requests.is_of((SCHEDULE_TOPIC,)).sum())

    def finish(self) -> None:
        """Finish the database. Raises AccessError."""
        self._writer.finish(self._log_end)

    def discard(self) -> None:
        """Close the database, which is not finished."""
        self._writer.discard()

    def ranges(self) -> dict[QueueId, tuple[int, int]]:
        """Min and max offset of each queue."""
        return self._writer.ranges()

    def _note(self, queue: QueueId, offset: Ints, log_offset: Ints) -> None:
        note_left_out(self.left_out, queue, offset, log_offset, replaced=True)
        self.rebuilt -= len(offset)
