"""The store that a replay writes to: opened where nothing can be doubled, refused otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from jobs.ledger import Ledger, LedgerError, Run
from rmq_store import MessageStore
from rmq_store.consumequeue import QueueId
from rmq_store.errors import InvalidMessageError, StoreError, StoreLockedError
from rmq_store.layout import MULTI_DISPATCH_SEPARATOR, Property, SysFlag
from rmq_store.topics import LMQ_PREFIX

if TYPE_CHECKING:
    from rmq_store.writer import StoreWriter


def open_target(
    path: str, run: Run, ledger: Ledger, *, resumed: bool, conf: str | None, release: str | None
) -> StoreWriter:
    """The target store of `run`, open to append.

    A store that the run is to create and that is not there yet is created. One that is there must
    end exactly where the ledger says the run left it. Raises LedgerError otherwise.
    """
    if run.created and not has_content(path):
        if run.target_end:
            raise LedgerError(
                path,
                reason="the target of a replay that was cut short is gone",
                advice=f"Put it back, or delete {ledger.path} to replay from the beginning",
            )
        return MessageStore.create(path, conf, release=release)
    try:
        store = MessageStore.append_to(path, conf, release=release)
    except StoreError as error:
        if isinstance(error, StoreLockedError) or not resumed:
            raise
        raise _cannot_go_on(path, ledger, run, str(error)) from error
    end = store.log_range()[1]
    if end != run.target_end:
        store.close()
        reason = f"its log ends at {end}, and the ledger says {run.target_end}"
        raise _cannot_go_on(path, ledger, run, reason)
    return store


def has_content(path: str) -> bool:
    """Whether something is there: a file, or a folder that is not empty."""
    target = Path(path)
    return target.exists() and (not target.is_dir() or any(target.iterdir()))


def _cannot_go_on(path: str, ledger: Ledger, run: Run, reason: str) -> LedgerError:
    if run.created:
        advice = (
            f"Give --restart to delete {path} and replay from the beginning: "
            "nothing but this replay has written to it"
        )
    else:
        advice = (
            f"Messages were in {path} before. Restore it from a copy made before "
            f"{run.started}, delete the last run from {ledger.path}, and run this again"
        )
    return LedgerError(
        path,
        reason="a replay into this target was cut short, and what arrived cannot be told: "
        + reason,
        advice=advice,
    )


def discard_unfinished(path: str | None, parquet: str | None, ledger: Ledger) -> None:
    """Delete what an unfinished run has created, and its entry; other runs are a LedgerError."""
    run = ledger.unfinished
    if run is None:
        return
    if path is not None and not run.created:
        raise LedgerError(
            path,
            reason="the unfinished replay did not create this store; it is not deleted",
            advice=f"Restore it from a copy, and delete the last run from {ledger.path}",
        )
    for created in (path, parquet if run.parquet else None):
        if created is not None and Path(created).exists():
            shutil.rmtree(created)
    ledger.forget_last()


def append_rows(store: StoreWriter, batch: pa.RecordBatch) -> Iterator[InvalidMessageError]:
    """Append all rows that the store takes, in order; yields the reason for each of the others.

    A batch with a message that cannot be is refused as a whole before a byte is written, so it is
    halved until the message stands alone.
    """
    if batch.num_rows == 0:
        return
    try:
        store.append_batch(with_places(store, batch))
    except InvalidMessageError as error:
        if batch.num_rows == 1:
            yield error
            return
        middle = batch.num_rows // 2
        yield from append_rows(store, batch.slice(0, middle))
        yield from append_rows(store, batch.slice(middle))


def with_places(store: StoreWriter, batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with those properties set anew that repeat a queue offset, as a broker does.

    INNER_BASE of an inner batch is its queue offset; INNER_MULTI_QUEUE_OFFSET are the offsets in
    the light queues that list the record as well.
    """
    flags = batch.column("sysFlag").to_numpy()
    names = batch.column("properties").keys
    light = pc.any(pc.equal(names, Property.INNER_MULTI_QUEUE_OFFSET)).as_py()
    if not light and not (flags & SysFlag.INNER_BATCH).any():
        return batch
    ends: dict[QueueId, int] = {}

    def take(queue: QueueId, count: int) -> str:
        at = ends.get(queue, store.max_offset(*queue))
        ends[queue] = at + count
        return str(at)

    rows = []
    columns = (batch.column(name).to_pylist() for name in ("topic", "queueId", "properties"))
    for flag, topic, queue_id, pairs in zip(flags.tolist(), *columns, strict=True):
        found = dict(pairs)
        inner = bool(flag & SysFlag.INNER_BATCH)
        number = found.get(Property.INNER_NUM, "") if inner else "1"
        base = take(QueueId(topic, queue_id), int(number) if number.isdigit() else 1)
        if inner:
            found[Property.INNER_BASE] = base
        if Property.INNER_MULTI_QUEUE_OFFSET in found:
            further = found.get(Property.INNER_MULTI_DISPATCH, "").split(MULTI_DISPATCH_SEPARATOR)
            places = [take(_further(name, queue_id), 1) for name in further]
            found[Property.INNER_MULTI_QUEUE_OFFSET] = MULTI_DISPATCH_SEPARATOR.join(places)
        rows.append(list(found.items()))
    at = batch.schema.get_field_index("properties")
    field = batch.schema.field(at)
    return batch.set_column(at, field, pa.array(rows, field.type))


def _further(name: str, queue_id: int) -> QueueId:
    return QueueId(name, 0 if name.startswith(LMQ_PREFIX) else queue_id)


def queue_ends(store: MessageStore | StoreWriter) -> dict[QueueId, int]:
    """The max offset of every queue of `store`."""
    return {queue: store.max_offset(*queue) for queue in store.queues()}
