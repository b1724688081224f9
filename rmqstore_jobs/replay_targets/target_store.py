"""Open the store that a replay writes to. Refuses if messages could be written twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import (
    ForeignLogError,
    InvalidMessageError,
    StoreError,
    StoreLockedError,
)
from rmq_store.format.queues import QueueId
from rmq_store.writing.open_for_writing import with_log_of_its_own
from rmqstore_jobs.replaying.ledger import Ledger, LedgerError, ReplayRun
from spark_source.writing.target_lock import has_content

if TYPE_CHECKING:
    from rmq_store.writing.store_writer import StoreWriter


def open_target(
    path: str,
    run: ReplayRun,
    ledger: Ledger,
    *,
    resumed: bool,
    conf: str | None,
    release: str | None,
) -> StoreWriter:
    """The target store of `run`, opened for appending.

    Creates the store if the run creates it and it does not exist. An existing store must end
    exactly where the ledger says. A store that an interrupted run created, and that nobody closed
    since, is cut to that position. Raises LedgerError otherwise.
    """
    if run.created and not has_content(path):
        if run.target_end:
            raise LedgerError(
                path,
                reason="the target of an interrupted replay is missing",
                advice=f"Restore it, or delete {ledger.path} to replay from the start",
            )
        return MessageStore.create(path, conf, release=release)
    try:
        # If this replay created the store, messages after the ledger's position come from the
        # interrupted wave, which is replayed again.
        store = (
            MessageStore.append_to(
                path,
                with_log_of_its_own(StoreConfig.of(conf)),  # as at its creation
                release=release,
                until=run.target_end,
            )
            if run.created and resumed
            else MessageStore.append_to(path, conf, release=release, recovery="refuse")
        )
    except StoreError as error:
        if isinstance(error, (StoreLockedError, ForeignLogError)) or not resumed:
            raise
        raise _cannot_go_on(path, ledger, run, str(error)) from error
    end = store.log_range()[1]
    if end != run.target_end:
        store.close()
        reason = f"its log ends at {end}, but the ledger says {run.target_end}"
        raise _cannot_go_on(path, ledger, run, reason)
    return store


def _cannot_go_on(path: str, ledger: Ledger, run: ReplayRun, reason: str) -> LedgerError:
    if run.created:
        advice = (
            f"Give --restart to delete {path} and replay from the start, which is refused if "
            "others have written to it"
        )
    else:
        advice = (
            f"Messages were in {path} before. Restore it from a copy made before "
            f"{run.started}, delete the last run from {ledger.path}, and run this again"
        )
    return LedgerError(
        path,
        reason="a replay into this target was interrupted, and what arrived is unknown: " + reason,
        advice=advice,
    )


def append_rows(store: StoreWriter, batch: pa.RecordBatch) -> Iterator[InvalidMessageError]:
    """Append all rows that the store accepts, in order. Yields the reason for each refused row."""
    for _, error in refused_rows(batch, store.append_batch):
        yield error


def refused_rows(
    batch: pa.RecordBatch, take: Callable[[pa.RecordBatch], Any]
) -> Iterator[tuple[int, InvalidMessageError]]:
    """Pass all rows to `take`, in order. Yields each refused row with the reason.

    `take` refuses a whole batch if one message is invalid, before it writes a byte. So the batch is
    halved until the message is alone.
    """
    if batch.num_rows == 0:
        return
    try:
        take(batch)
    except InvalidMessageError as error:
        if batch.num_rows == 1:
            yield 0, error
            return
        middle = batch.num_rows // 2
        yield from refused_rows(batch.slice(0, middle), take)
        for row, why in refused_rows(batch.slice(middle), take):
            yield middle + row, why


def queue_ends(store: MessageStore | StoreWriter) -> dict[QueueId, int]:
    """The max offset of every queue of `store`."""
    return {queue: store.max_offset(*queue) for queue in store.queues()}
