"""Progress of a search through the log, by the place in the log that it has reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from rmq_store.errors import StoreError
from rmq_store.format.queues import QueueSlice
from rmq_store.store import MessageStore
from rmq_store.text.progress import Progress

PLACE = "commitLogOffset"
_MOST_LOOKED_UP = 1000  # slices whose places are looked up


def with_place(columns: Sequence[str]) -> list[str]:
    """The columns with the one that `watched` needs."""
    return [*columns] if PLACE in columns else [*columns, PLACE]


def watched(
    store: MessageStore,
    slices: Sequence[QueueSlice],
    batches: Iterable[pa.RecordBatch],
    progress: Progress,
    *,
    compacted: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The batches that `read_slices` returns for `slices`, with progress in bytes of the log.

    They must have the column PLACE. Without a terminal the batches are passed on as they are.
    `compacted`: as in that read.
    """
    if not progress.active:
        yield from batches
        return
    place, end = log_span(store, slices, compacted=compacted)
    progress.expect(max(0, end - place))
    for batch in batches:
        if batch.num_rows:
            reached = batch.column(PLACE)[-1].as_py()
            progress(max(0, reached - place))
            place = max(place, reached)
        yield batch
    progress(max(0, end - place))


def log_span(
    store: MessageStore, slices: Sequence[QueueSlice], *, compacted: bool = False
) -> tuple[int, int]:
    """About where in the log the entries of some slices begin and end; the whole log for many."""
    (start, end), view = store.log_range(), store.ranges_for(compacted)
    some = [part for part in slices if len(part)]
    if not some:
        return end, end
    if len(some) > _MOST_LOOKED_UP:
        return start, end
    try:
        first = min(view.log_offset_of(part.queue, part.start) for part in some)
        last = max(view.log_offset_of(part.queue, part.stop - 1) for part in some)
    except StoreError:
        return start, end  # the read says what is wrong there
    return max(start, first), min(end, last)
