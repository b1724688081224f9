"""The entries of many queues: merged in log order, span by span of the log, or queue after queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from rmq_store.format.byte_layout import Ints
from rmq_store.format.queues import Entries, ListedEntries, QueueId, Queues, QueueSlice
from rmq_store.loops import queue_entries

_FIRST_SPAN = 2 << 20  # first span: log bytes whose entries are sorted together
_WIDEST_SPAN = 256 << 20
_SPAN_ENTRIES = 1 << 16  # approximate number of entries sorted together
_SPAN_ENTRIES_A_QUEUE = 64  # minimum per queue, because a step costs the same for few entries
_ENTRIES_HELD = 1 << 20  # entries read ahead, in all queues together
_MOST_ENTRIES_READ = 1 << 14  # entries of a queue read at a time
_LEAST_ENTRIES_READ = 1 << 6
_FIRST_ENTRIES_READ = 1 << 10  # small, so that a reader of a few rows does not wait for many
_DONE = np.iinfo(np.int64).max

EntriesOf = Callable[[QueueId, int, int], Entries]
Keep = Callable[[int, Entries], Entries]


def in_log_order(
    slices: Sequence[QueueSlice],
    entries_of: EntriesOf,
    keep: Keep,
    *,
    batch_queues: Collection[QueueId],
    least_rows: int,
    first_rows: int | None,
) -> Iterator[ListedEntries]:
    """The entries of queue ranges sorted by log offset, span by span of the log.

    `keep` receives the number of a part and some of its entries, in order, and returns the wanted
    ones. Each result has at least `least_rows` rows, except the first (`first_rows`) and the last.
    No part may be empty. `batch_queues`: the queues that are BatchConsumeQueues.
    """
    queues = Queues(slice_.queue for slice_ in slices)
    step = _ENTRIES_HELD // max(1, len(slices))
    step = min(max(step, _LEAST_ENTRIES_READ), _MOST_ENTRIES_READ)
    cursors = [
        _Cursor(slice_, entries_of, step, batch=slice_.queue in batch_queues) for slice_ in slices
    ]
    waiting: list[tuple[int, Entries]] = []
    pending, enough = 0, first_rows or least_rows
    heads = np.array([cursor.next_log_offset for cursor in cursors], dtype=np.int64)
    span, aim = _FIRST_SPAN, max(_SPAN_ENTRIES, _SPAN_ENTRIES_A_QUEUE * len(slices))
    while (heads < _DONE).any():
        span_end, before = int(heads.min()) + span, pending
        for number in np.flatnonzero(heads < span_end).tolist():
            wanted = keep(number, cursors[number].take_until(span_end))
            heads[number] = cursors[number].next_log_offset
            waiting.append((number, wanted))
            pending += len(wanted)
        # The density of entries varies along the log, so the span adapts.
        if pending - before < aim // 2:
            span = min(span * 2, _WIDEST_SPAN)
        elif pending - before > 2 * aim and span > 1:
            span //= 2
        # A sparse selection is collected over several spans to avoid tiny batches.
        if pending >= enough or not (heads < _DONE).any():
            yield _rows_in_log_order(queues, waiting)
            waiting, pending, enough = [], 0, least_rows


def queue_after_queue(
    slices: Sequence[QueueSlice],
    entries_of: EntriesOf,
    keep: Keep,
    *,
    batch_queues: Collection[QueueId],
    least_rows: int,
    first_rows: int | None,
) -> Iterator[ListedEntries]:
    """As `in_log_order`, but the entries of a part follow those of the part before, unsorted.

    One queue is read at a time, so that the first rows of ten thousand queues do not wait for all.
    """
    queues = Queues(slice_.queue for slice_ in slices)
    waiting: list[tuple[int, Entries]] = []
    pending, enough = 0, first_rows or least_rows
    for number, slice_ in enumerate(slices):
        cursor = _Cursor(slice_, entries_of, _MOST_ENTRIES_READ, batch=slice_.queue in batch_queues)
        for block in cursor.blocks():
            wanted = keep(number, block)
            waiting.append((number, wanted))
            pending += len(wanted)
            if pending >= enough:
                yield _rows(queues, waiting)
                waiting, pending, enough = [], 0, least_rows
    if waiting:
        yield _rows(queues, waiting)


class _Cursor:
    """Reads a queue range in blocks of up to `most` entries, in queue order."""

    def __init__(
        self, slice_: QueueSlice, entries_of: EntriesOf, most: int, *, batch: bool
    ) -> None:
        self.part = slice_
        self._batch = batch
        self._entries_of = entries_of
        self._most = most
        self._step = min(most, _FIRST_ENTRIES_READ)
        self._at = slice_.start
        self._row = 0  # of the block: the next entry
        self._block = self._next_block()

    def _next_block(self) -> Entries | None:
        step, self._step = self._step, min(2 * self._step, self._most)
        while self._at < self.part.stop:
            upto = min(self.part.stop, self._at + step)
            block = self._entries_of(self.part.queue, self._at, upto)
            if self._at > self.part.start and len(block) and int(block.offset[0]) < self._at:
                # The last block returned that batch.
                block = block.take(block.offset >= self._at)
            behind = upto
            if not self._batch and 0 < len(block) < upto - self._at:
                if not block.size[-1]:  # a hole that may go on far behind the block
                    behind = max(upto, int(block.offset[-1] + block.count[-1]))
                block = _without_holes(block, self._at, upto)
            self._at = behind
            if len(block):
                return block
            step *= 2  # in a batch queue, offsets may be far apart
        return None

    def blocks(self) -> Iterator[Entries]:
        """All entries that are left, block after block."""
        while self._block is not None:
            yield self._block
            self._block = self._next_block()

    @property
    def next_log_offset(self) -> int:
        """The log offset of the next entry; _DONE at the end."""
        return _DONE if self._block is None else int(self._block.log_offset[self._row])

    def take_until(self, log_offset: int) -> Entries:
        """The entries before the first one that points to `log_offset` or later."""
        parts: list[Entries] = []
        while self._block is not None:
            start = self._row
            places = self._block.log_offset.data
            self._row = queue_entries.first_behind(places, start, log_offset)
            if self._row < len(places):
                parts.append(self._block.take(slice(start, self._row)))
                break
            parts.append(self._block.take(slice(start, None)) if start else self._block)
            self._block, self._row = self._next_block(), 0
        return Entries.concat(parts)


def _rows(queues: Queues, read: Sequence[tuple[int, Entries]]) -> ListedEntries:
    """The entries of parts, by number, one behind the other. `queues`: the queue of each part."""
    numbers, counts = [number for number, _ in read], [len(part.offset) for _, part in read]
    entries = Entries.concat([entries for _, entries in read])
    queue = np.repeat(np.array(numbers, dtype=np.int64), counts)
    return entries.extended(ListedEntries, queues=queues, queue=queue)


def _rows_in_log_order(queues: Queues, read: Sequence[tuple[int, Entries]]) -> ListedEntries:
    """As `_rows`, in log order."""
    ranks = _ranks_of(np.concatenate([entries.log_offset for _, entries in read]))
    # An array each: a column of a batch may keep one of them.
    merged = Entries(*(np.empty(len(ranks), dtype=np.int64) for _ in range(5)))
    queue = np.empty(len(ranks), dtype=np.int64)
    room = [column.data for column in (*merged.columns(), queue)]
    at = 0
    for number, entries in read:
        first, at = at, at + len(entries)
        places = ranks[first:at].data
        given = (np.ascontiguousarray(column).data for column in entries.columns())
        queue_entries.spread(places, number, *given, *room)
    return merged.extended(ListedEntries, queues=queues, queue=queue)


def _ranks_of(log_offset: Ints) -> Ints:
    """The place of each row among all in the order of the log; those of one place in their order."""
    rows, ranks = (np.empty(len(log_offset), dtype=np.int64) for _ in range(2))
    buckets = np.zeros(len(log_offset) + 1, dtype=np.int32)
    if not queue_entries.order(log_offset.data, buckets.data, rows.data, ranks.data):
        ranks[np.argsort(log_offset, kind="stable")] = np.arange(len(log_offset))
    return ranks


def _without_holes(block: Entries, start: int, stop: int) -> Entries:
    """The block with one entry per queue offset, where one entry represented a missing file.

    So each missing message is counted, not the file as one. Blocks are short.
    """
    if (block.points_to_record | (block.size != 0)).all():
        return block
    whole = Entries(
        np.arange(start, stop), *(np.zeros(stop - start, dtype=np.int64) for _ in range(4))
    )
    at = block.offset - start
    whole.log_offset[at], whole.size[at] = block.log_offset, block.size
    whole.tags_code[at], whole.count[:] = block.tags_code, 1
    return whole
