"""Read one share of a query: the same for a Spark task, and for a job in one process.

Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.errors import LogOffset, MissingFileError
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage, ReadHow
from rmq_store.search.log_partitions import offset_at_log
from rmq_store.snapshot.ranges import pieces_of
from spark_source.planning.partitions import Share, reported_errors
from spark_source.planning.pinned_plan import ReadPlan
from spark_source.task_damage import DamageHandler

_FIRST_BATCH_ROWS = 256
"""Of a query: `show()` needs only twenty rows and should not wait for more. A wave is read whole."""

_BODIES = frozenset(("body", "rawBody"))


def read_share(
    plan: ReadPlan,
    share: Share,
    store: MessageStore,
    columns: Sequence[str],
    damage: DamageHandler,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of `columns` of one share, in log order or queue after queue; none is empty.

    `log_order`: see ReadManner; a query has no order of its own.
    Rows about damage follow the batch they belong to; in them every column can be null. `store` is
    the plan's store, opened. Raises what `damage` raises, and OtherStoreError
    if another store took the place of the plan's meanwhile.
    """
    with store.of_one_store():
        if share.reports:
            for error in reported_errors(plan, share, store):
                damage.take_damage(error)
            yield from damage.rows(columns)
            return
        batches = read_messages(plan, share, store, columns, damage, log_order=log_order)
        for batch in batches:
            if batch.num_rows:
                yield batch
            yield from damage.rows(columns)
        yield from damage.rows(columns)


def read_messages(
    plan: ReadPlan,
    share: Share,
    store: MessageStore,
    columns: Sequence[str],
    damage: OnDamage,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The messages of one share; batches may be empty. `damage` takes the errors of the others."""
    asked = plan.asked
    checks_bodies = bool(_BODIES.intersection(columns))
    first_rows = None if plan.is_wave else _FIRST_BATCH_ROWS
    how: ReadHow = {
        "columns": columns,
        "tags": asked.tags,
        "keys": asked.keys,
        "first_batch_rows": first_rows,
        "check_crc": checks_bodies,
        "max_body_bytes": asked.max_body_bytes,
        "unwrap_batches": asked.unwrap_batches,
        "on_damage": damage,
    }
    if plan.limits is not None:
        assert share.slice is not None
        unqueued, part = asked.include_unqueued, share.slice
        # A reader notices itself that no file is left.
        if part.start is not None and store.log.chain.segments and part.start < store.log.start:
            damage(_expired_files(store, part.start))
        yield from store.read_log(
            part.start, part.stop, limits=plan.limits, include_unqueued=unqueued, **how
        )
        return
    how |= {
        "check_ends": False,
        "log_order": log_order,
        "compacted": asked.sees_compacted,
    }  # a share of its own reports what is missing there
    for slices in pieces_of_share(plan, share, store):
        yield from store.read_slices(slices, verify_queue=asked.verify_queue, **how)


def _expired_files(store: MessageStore, start: int) -> MissingFileError:
    """The error for files that were there when the read was planned."""
    return MissingFileError(
        str(store.path),
        offset=LogOffset(start),
        reason="files of the log that the plan of this read has are gone",
        expected=f"the log from {start} on",
        actual=f"from {store.log.start} on",
    )


def pieces_of_share(
    plan: ReadPlan, share: Share, store: MessageStore
) -> Iterator[Sequence[QueueSlice]]:
    """The ranges of a share, as lists. Each list is read in log order."""
    if share.ranges is None:
        assert share.slice is not None
        edges = (share.slice.start, share.slice.stop)
        view = store.ranges_for(plan.asked.sees_compacted)
        yield pieces_of(plan.ranges, share.slice, offset_at_log(store, plan.ranges, edges, view))
    elif share.in_turn:
        for part in share.ranges:
            yield [part]
    else:
        yield share.ranges
