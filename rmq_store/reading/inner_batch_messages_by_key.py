"""Find messages in inner batches by key. The index has only the keys of the batch's record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa

from rmq_store.arrow.column_definitions import COLUMNS
from rmq_store.commitlog.log import CommitLog
from rmq_store.errors import StoreError
from rmq_store.format.message import Message
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.read_options import ReadOptions
from rmq_store.reading.slice_reader import SliceReader
from rmq_store.snapshot.queue_view import QueueView

_NAMES = tuple(column.name for column in COLUMNS)  # the fields of a Message, in its order


def messages_in_batch_queues(
    log: CommitLog,
    view: QueueView,
    broker_name: str,
    topics: Collection[str],
    key: str,
    begin: int,
    end: int | None,
    on_damage: Callable[[StoreError], None],
) -> Iterator[Message]:
    """The messages of queues of inner batches that have `key` as a word of KEYS or as UNIQ_KEY.

    Those stored in [begin, end] (ms), in the order of the log. Reads these queues, because no index
    has the keys of the members. `on_damage` receives the errors of what is left out.
    """
    slices = [
        _in_time(view, QueueSlice(queue, state.min_offset, state.max_offset), begin, end)
        for queue, state in view.snapshot.queues.items()
        if state.batch and queue.topic in topics
    ]
    slices = [part for part in slices if part.start < part.stop]
    if not slices:
        return
    options = ReadOptions.of(
        verify_queue=False, columns=_NAMES, keys={key}, unwrap_batches=True, on_damage=on_damage
    )
    reader = SliceReader(log, view, broker_name, view.snapshot.log_end, options)
    for batch in reader.read(slices):
        for message in _messages(batch):
            if begin <= message.store_timestamp and (end is None or message.store_timestamp <= end):
                yield message


def _in_time(view: QueueView, part: QueueSlice, begin: int, end: int | None) -> QueueSlice:
    start, stop = part.start, part.stop
    if begin > 0:
        start = max(start, view.first_since(part.queue, begin))
    if end is not None:
        stop = min(stop, view.first_since(part.queue, end + 1, unreadable_before=True))
    return QueueSlice(part.queue, start, stop)


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    columns = []
    for name in _NAMES:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    place = _NAMES.index("properties")
    for values in zip(*columns, strict=True):
        row: list[Any] = list(values)
        row[place] = dict(row[place])
        yield Message(*row)
