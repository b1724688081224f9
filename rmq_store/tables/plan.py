"""Table `plan`, what a query would read, and `stream`, how far behind a streaming one is.

The query planner makes their rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.errors import shown_path
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.store_reader import StoreReader
from rmq_store.tables.table import FLAG, INT, LONG, TEXT, TEXTS, TIMESTAMP, Table, table_columns

PLAN = Table(
    "plan",
    "what a query with the same options (and filters) would read, partition by partition",
    table_columns(
        ("path", TEXT, "the store"),
        ("partition", INT, "its number; null for a store left out"),
        ("logStart", LONG, "log offset where its slice starts; null if open"),
        ("logStop", LONG, "log offset where it ends; null if open"),
        ("queues", INT, "queues with messages in it"),
        ("entries", LONG, "queue entries to read, before tags and keys select"),
        ("selectedBytes", LONG, "approximate bytes of their records"),
        ("readsLog", FLAG, "whether the query opens the log"),
        ("files", TEXTS, "files that it opens"),
        ("ranges", TEXT, 'queue offsets, as JSON: {"topic": {"0": [[start, stop]]}}'),
        ("leftOut", TEXT, "why a store was left out"),
    ),
)


def files_opened(store: StoreReader, slices: Sequence[QueueSlice], *, with_log: bool) -> list[str]:
    """The files that a read of `slices` opens: queue files and, if `with_log`, log files."""
    files_seen: dict[str, None] = {}
    for slice_ in slices:
        state = store.view.state(slice_.queue)
        files = store.view.files(slice_.queue)
        start, stop = slice_.start, min(slice_.stop, state.file_stop)
        if state.batch:  # queue offsets do not give positions in the files of a BatchConsumeQueue
            start, stop = state.file_start, state.file_stop
        width = files.dtype.itemsize
        for segment in files.chain.segments_from(start * width):
            if segment.base < stop * width:
                files_seen[shown_path(segment.path)] = None
        if with_log:
            first = store.log_offset_of(slice_.queue, slice_.start)
            last = store.log_offset_of(slice_.queue, slice_.stop - 1)
            files_seen |= dict.fromkeys(log_files_between(store, first, last + 1))
    return list(files_seen)


def log_files_between(store: StoreReader, start: int | None, stop: int | None) -> list[str]:
    """The log files with a part of [start, stop). None means the log's start or end."""
    log_start, log_end = store.log_range()
    last = log_end if stop is None else stop
    segments = store.log.chain.segments_from(log_start if start is None else start)
    return [shown_path(segment.path) for segment in segments if segment.base < last]


STREAM = Table(
    "stream",
    "how far behind a query of readStream is, by its checkpoint folder: one row for each store",
    table_columns(
        ("path", TEXT, "the store; null if it is gone"),
        ("batchId", LONG, "last micro-batch committed"),
        ("plannedBatchId", LONG, "last one planned"),
        ("logOffset", LONG, "log offset that these reach; null for a store not in them"),
        ("logEnd", LONG, "log offset where whole records end"),
        ("bytesBehind", LONG, "logEnd minus logOffset; the whole log if that is null"),
        ("storeTimestamp", TIMESTAMP, "when the last record before `logOffset` was stored"),
        ("problem", TEXT, "why the query cannot go on here"),
    ),
)
