"""The rows of the table `stream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.next_intact_record import next_start
from rmq_store.errors import StoreError
from rmq_store.files.segments import again_if_expired
from rmq_store.reading.growing_log import check_place
from rmq_store.tables.table import Row
from spark_source.options.parse import SourceOptions
from spark_source.planning.stores import Target
from spark_source.streaming.checkpoint_folder import QueryProgress, read_progress
from spark_source.streaming.micro_batch_ends import Follower
from spark_source.streaming.offsets import StorePlace
from spark_source.streaming.stream_options import StreamOptions


def progress_rows(asked: SourceOptions) -> Iterator[Row]:
    """How far the query of a checkpoint folder is in each store. Reads no queue of a live store.

    Raises as `read_progress`, and the errors of opening a store.
    """
    assert asked.checkpoint is not None
    progress = read_progress(asked.checkpoint)
    follower = Follower(asked, StreamOptions())
    stores = follower.targets()
    for places in progress.places or ({},):
        for name in sorted({*stores, *places}):
            look = partial(_of_store, follower, name, stores.get(name), places, progress)
            yield {
                "brokerName": name,
                "batchId": progress.committed,
                "plannedBatchId": progress.planned,
                **again_if_expired(look),
            }


def _of_store(
    follower: Follower,
    name: str,
    target: Target | None,
    places: Mapping[str, StorePlace],
    progress: QueryProgress,
) -> Row:
    known = places.get(name)
    given = None if known is None else known.place.offset
    if target is None:
        return {"logOffset": given, "problem": "the store is gone"}
    with follower.open(name, target) as store:
        row: dict[str, object] = {"path": target.path, "logOffset": given}
        if known is not None:
            try:
                check_place(store.log, known.place, target.path)
            except StoreError as error:
                row["problem"] = str(error)
        start = store.log.start if known is None or "problem" in row else known.place.offset
        end = follower.follower_of(name, target).end(store.log, start)
        row["logEnd"] = end
        if "problem" in row or (known is None and progress.committed is None):
            return row  # nothing says where a query begins that has committed nothing yet
        row["bytesBehind"] = end - start
        if known is not None:
            row["storeTimestamp"] = time_before(store.log, start)
        return row


def time_before(log: CommitLog, offset: int) -> int | None:
    """When the record that ends at a log offset was stored (ms); None if it has expired."""
    segment = log.chain.segment_at(offset - 1)
    if segment is None:
        return None
    _, start = next_start(log, segment, offset - 1)
    return None if start is None else log.store_time_at(start)
