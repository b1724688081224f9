"""Handle damage that a task meets: raise it, return a row about it, or count it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.commitlog.other_store_at_path import IF_OTHER_STORE
from rmq_store.errors import DataLossError, MissingFileError, StoreError
from rmq_store.format.queues import QueueId
from rmq_store.reading.query import DamageTaker
from spark_source.options.definitions import FAILFAST
from spark_source.options.parse import SourceOptions


class DamageHandler(DamageTaker):
    """Handles the errors of one task. `mode` decides about damage, `failOnDataLoss` about expired
    messages."""

    def __init__(self, store: MessageStore, asked: SourceOptions) -> None:
        super().__init__(asked.mode)
        self._store = store
        self._asked = asked
        self.damaged = 0  # errors that are not about expired messages

    def __call__(self, error: StoreError) -> None:
        if self._is_expired(error):
            if self._asked.fail_on_data_loss:
                raise _data_loss(error) from error
            self.count(DataLossError.code, error)
        else:
            self.take_damage(error)

    def take_damage(self, error: StoreError) -> None:
        """Take an error that is not about expired messages."""
        if self._asked.mode == FAILFAST:
            raise error
        self.damaged += 1
        super().__call__(error)

    def _is_expired(self, error: StoreError) -> bool:
        """Whether a missing file is before all files that exist: the broker deletes from the front, or all
        of a topic."""
        entry = error.entry
        if entry is not None and entry.size <= 0:  # no queue file has the entry
            queue = QueueId(entry.topic, entry.queue_id)
            if self._asked.sees_compacted and self._store.served.compacted(queue) is not None:
                return False  # its own files keep messages that have expired from the queue
            if isinstance(error, MissingFileError):
                return True  # the topic was deleted
            files = self._store.view.files(queue)
            return not files.batch and entry.queue_offset < files.first_unit
        if not isinstance(error, MissingFileError):
            return False
        return error.offset is not None and error.offset < self._store.log.starts_now()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `waiting_rows`."""
        return self.waiting_rows(self._store.broker_name, columns)

    def log(self) -> None:
        """Log one line about what the task left out or found damaged, if anything."""
        self.log_counts(f"{self._store.broker_name} ({self._store.path})")


def _data_loss(error: StoreError) -> DataLossError:
    return DataLossError(
        error.path,
        offset=error.offset,
        reason=f"messages expired or were deleted during the read: {error.reason}",
        advice=f"Read the remaining messages again, or set failOnDataLoss=false. {IF_OTHER_STORE}",
    )
