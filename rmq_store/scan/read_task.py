"""Reads shares of a scan, and what becomes of damage in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rmq_store.commitlog.log import IF_OTHER_STORE
from rmq_store.errors import DataLossError, LogOffset, MissingFileError, StoreError
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.query import (
    BODIES,
    FAILFAST,
    FIRST_BATCH_ROWS,
    DamageTaker,
    OnDamage,
    ReadOptions,
)
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.tasks import Share, StoreScan, reported_errors
from rmq_store.search.log_partitions import prefetched_offset_at_log
from rmq_store.snapshot.ranges import pieces_of

TO_PASS_DAMAGE = "mode=PERMISSIVE returns a row about it, mode=DROPMALFORMED leaves it out"


class DamageHandler(DamageTaker):
    """Takes the errors of one task: `mode` decides about damage, `failOnDataLoss` about expired messages."""

    def __init__(
        self, store: StoreReader, options: ScanOptions, *, advises_modes: bool = False
    ) -> None:
        """`advises_modes`: an error that is raised says by which modes a read passes its place."""
        super().__init__(options.mode)
        self._store = store
        self._options, self._advises_modes = options, advises_modes
        self.damaged = 0  # errors that are not about expired messages

    def __call__(self, error: StoreError) -> None:
        if self._is_expired(error):
            if self._options.fail_on_data_loss:
                raise _data_loss(error) from error
            self.count(DataLossError.code, error)
        else:
            self.take_damage(error)

    def take_damage(self, error: StoreError) -> None:
        """Take an error that is not about expired messages."""
        if self._options.mode == FAILFAST:
            raise _with_modes(error) if self._advises_modes else error
        self.damaged += 1
        super().__call__(error)

    def _is_expired(self, error: StoreError) -> bool:
        """Whether a missing file is before all files that exist: the broker deletes from the front, or all
        of a topic."""
        entry = error.entry
        if entry is not None and entry.size <= 0:  # no queue file has the entry
            queue = QueueId(entry.topic, entry.queue_id)
            if (
                self._options.sees_compacted
                and self._store.served.compacted_or_error(queue) is not None
            ):
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


def _with_modes(error: StoreError) -> StoreError:
    advice = error.advice or ""
    if TO_PASS_DAMAGE in advice:
        return error
    return error.with_advice(f"{advice}. {TO_PASS_DAMAGE}" if advice else TO_PASS_DAMAGE)


def _data_loss(error: StoreError) -> DataLossError:
    return DataLossError(
        error.path,
        offset=error.offset,
        reason=f"messages expired or were deleted during the read: {error.reason}",
        advice=f"Read the remaining messages again, or set failOnDataLoss=false. {IF_OTHER_STORE}",
    )


def read_share(
    scan: StoreScan,
    share: Share,
    store: StoreReader,
    columns: Sequence[str],
    damage: DamageHandler,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of `columns` of one share, in log order or queue after queue; none is empty.

    `log_order`: as in CommonReadOptions. `store` is the scan's store, opened. Rows about damage follow the
    batch they belong to; in them every column can be null. Raises what `damage` raises, and OtherStoreError
    if another store took the place of the scan's meanwhile.
    """
    with store.refusing_replacement():
        if share.reports:
            for error in reported_errors(scan, share, store):
                damage.take_damage(error)
            yield from damage.rows(columns)
            return
        batches = read_messages(scan, share, store, columns, damage, log_order=log_order)
        for batch in batches:
            if batch.num_rows:
                yield batch
            yield from damage.rows(columns)
        yield from damage.rows(columns)


def read_messages(
    scan: StoreScan,
    share: Share,
    store: StoreReader,
    columns: Sequence[str],
    damage: OnDamage,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The messages of one share; batches may be empty. `damage` takes the errors of the others."""
    options = scan.options
    how: ReadOptions = {
        "columns": columns,
        "tags": options.tags,
        "keys": options.keys,
        "first_batch_rows": None if scan.is_wave else FIRST_BATCH_ROWS,  # a wave is read whole
        "check_crc": not BODIES.isdisjoint(columns),
        "max_body_bytes": options.max_body_bytes,
        "unwrap_batches": options.unwrap_batches,
        "on_damage": damage,
    }
    if scan.limits is not None:
        assert share.slice is not None
        unqueued, part = options.include_unqueued, share.slice
        # A reader notices itself that no file is left.
        if part.start is not None and store.log.chain.segments and part.start < store.log.start:
            damage(_expired_files(store, part.start))
        yield from store.read_log(
            part.start, part.stop, limits=scan.limits, include_unqueued=unqueued, **how
        )
        return
    # A share of its own reports what is missing at the ends.
    how |= {"check_ends": False, "log_order": log_order, "compacted": options.sees_compacted}
    for slices in pieces_of_share(scan, share, store):
        yield from store.read_slices(slices, verify_queue=options.verify_queue, **how)


def _expired_files(store: StoreReader, start: int) -> MissingFileError:
    """The error for files that were there when the read was planned."""
    return MissingFileError(
        str(store.path),
        offset=LogOffset(start),
        reason="files of the log that the plan of this read has are gone",
        expected=f"the log from {start} on",
        actual=f"from {store.log.start} on",
    )


def pieces_of_share(
    scan: StoreScan, share: Share, store: StoreReader
) -> Iterator[Sequence[QueueSlice]]:
    """The ranges of a share, as lists. Each list is read in log order."""
    if share.ranges is None:
        assert share.slice is not None
        edges = (share.slice.start, share.slice.stop)
        view = store.ranges_for(scan.options.sees_compacted)
        yield pieces_of(
            scan.ranges, share.slice, prefetched_offset_at_log(store, scan.ranges, edges, view)
        )
    elif share.in_turn:
        for part in share.ranges:
            yield [part]
    else:
        yield share.ranges
