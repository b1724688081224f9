"""Ranges of queues as Arrow batches, in the order of the log: one pass, whatever is selected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.bodies import DEFAULT_MAX_BODY_BYTES
from rmq_store.columns import BatchBuilder, Rows, needs_log, other_topic_rows, stored_topics
from rmq_store.commitlog import CommitLog
from rmq_store.consumequeue import Entries, QueueId, concat_entries
from rmq_store.errors import BodyError, CorruptQueueError, StoreError
from rmq_store.hashing import tags_code
from rmq_store.headers import Headers, Ints, wrong_crc_rows
from rmq_store.layout import EXT_MAX_ADDRESS, FILLER_SIZE, MULTI_DISPATCH_SEPARATOR, Property
from rmq_store.planning import QueueSlice
from rmq_store.properties import PropertyColumns
from rmq_store.strings import decode_properties
from rmq_store.topics import SCHEDULE_TOPIC

BATCH_ROWS = 8192
BATCH_BYTES = 16 << 20
_FIRST_SPAN = 32 << 20  # bytes of the log whose entries are put in order at a time
_WIDEST_SPAN = 256 << 20
_SPAN_ENTRIES = 1 << 16  # so many are put in order at a time, about
_SPAN_ENTRIES_A_QUEUE = 16  # and at least so many of each queue, for a step costs as much with few
_ENTRIES_HELD = 1 << 20  # of all queues together, read ahead
_MOST_ENTRIES_READ = 1 << 14  # of a queue at a time
_LEAST_ENTRIES_READ = 1 << 6
_MASK32 = 0xFFFFFFFF

EntriesOf = Callable[[QueueId, int, int], Entries]
OnDamage = Callable[[StoreError], None]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a read is done; `tags` are compared as text, None takes all."""

    columns: Sequence[str] | None = None
    tags: frozenset[str] | None = None
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    first_batch_rows: int | None = None
    check_crc: bool = True
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    on_damage: OnDamage | None = None  # takes the error of what is left out; None: it is raised


class _Cursor:
    """A queue range being read: its entries come in blocks, in queue order."""

    def __init__(self, part: QueueSlice, entries_of: EntriesOf, step: int) -> None:
        self.part = part
        self._entries_of = entries_of
        self._step = step
        self._at = part.start
        self._block = self._next_block()

    def _next_block(self) -> Entries | None:
        step = self._step
        while self._at < self.part.stop:
            upto = min(self.part.stop, self._at + step)
            block = self._entries_of(self.part.queue, self._at, upto)
            self._at = upto
            if len(block):
                return block
            step *= 2  # a queue of batches may have offsets far apart
        return None

    @property
    def next_log_offset(self) -> int | None:
        """Where the next entry points; None at the end."""
        return None if self._block is None else int(self._block.log_offset[0])

    def take_until(self, log_offset: int) -> Entries:
        """The entries up to the first that points to `log_offset` or behind it."""
        parts: list[Entries] = []
        while self._block is not None:
            behind = self._block.log_offset >= log_offset
            count = int(behind.argmax())
            if behind[count]:
                parts.append(self._block.take(slice(0, count)))
                self._block = self._block.take(slice(count, None))
                break
            parts.append(self._block)
            self._block = self._next_block()
        return concat_entries(parts)


class SliceReader:
    """Reads queue slices of one store. The entries come from `entries_of`, the records from `log`."""

    def __init__(
        self,
        log: CommitLog,
        entries_of: EntriesOf,
        broker_name: str,
        log_end: int,
        options: ReadOptions,
    ) -> None:
        self._log = log
        self._entries_of = entries_of
        self._log_end = log_end
        self._options = options
        self._builder = BatchBuilder(
            broker_name,
            options.columns,
            max_body_bytes=options.max_body_bytes,
            path=log.chain.folders[0],
        )
        self._reads_log = needs_log(self._builder.names) or options.tags is not None
        self._hashes = (
            None
            if options.tags is None
            else np.array([tags_code(tag) & _MASK32 for tag in options.tags], dtype=np.int64)
        )

    def read(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of all slices, rows in the order of the log."""
        rows_next = self._options.first_batch_rows or self._options.batch_rows
        for rows in self._in_log_order(slices):
            at = 0
            while at < len(rows):
                upto = self._batch_end(rows, at, rows_next)
                batch = self._batch(rows.take(slice(at, upto)))
                if batch.num_rows:
                    rows_next = self._options.batch_rows
                    yield batch
                at = upto

    def _batch_end(self, rows: Rows, at: int, most: int) -> int:
        """How far a batch goes: rows and bytes within limits, all in one file of the log."""
        upto = min(at + most, len(rows))
        sizes = np.cumsum(rows.size[at:upto])
        upto = at + max(1, int(np.searchsorted(sizes, self._options.batch_bytes, side="right")))
        file = rows.log_offset[at:upto] // self._log.chain.file_size if self._reads_log else None
        if file is not None and file[0] != file[-1]:
            upto = at + int(np.argmax(file != file[0]))
        return upto

    def _in_log_order(self, slices: Sequence[QueueSlice]) -> Iterator[Rows]:
        """All entries that lead to records, sorted by log offset, span by span."""
        topics = sorted({part.queue.topic for part in slices})
        code = {topic: number for number, topic in enumerate(topics)}
        parts = [part for part in slices if part.start < part.stop]
        step = _ENTRIES_HELD // max(1, len(parts))
        step = min(max(step, _LEAST_ENTRIES_READ), _MOST_ENTRIES_READ)
        cursors = [_Cursor(part, self._entries_of, step) for part in parts]
        topic_codes = np.array([code[part.queue.topic] for part in parts], dtype=np.int32)
        queue_ids = np.array([part.queue.queue_id for part in parts], dtype=np.int32)
        waiting: list[tuple[int, Entries]] = []
        pending = 0
        heads = _heads(cursors)
        span, aim = _FIRST_SPAN, max(_SPAN_ENTRIES, _SPAN_ENTRIES_A_QUEUE * len(parts))
        while (heads < _DONE).any():
            span_end, before = int(heads.min()) + span, pending
            for number in np.flatnonzero(heads < span_end).tolist():
                entries = cursors[number].take_until(span_end)
                heads[number] = _head(cursors[number])
                waiting.append((number, self._wanted(parts[number].queue, entries)))
                pending += len(waiting[-1][1])
            # Densities differ between parts of a log: the span follows them.
            span = _next_span(span, pending - before, aim)
            # A thin selection gathers over several spans, so that batches do not get tiny.
            if pending >= self._options.batch_rows or not (heads < _DONE).any():
                yield _merged(waiting, topics, topic_codes, queue_ids)
                waiting, pending = [], 0

    def _wanted(self, queue: QueueId, entries: Entries) -> Entries:
        """Without entries that lead nowhere, or whose tag hash rules them out."""
        leads = entries.points_to_record & (entries.log_offset <= self._log_end - entries.size)
        if not leads.all():
            self._report_dead_ends(queue, entries.take(~leads))
            entries = entries.take(leads)
        if self._hashes is None or queue.topic == SCHEDULE_TOPIC:  # there tagsCode is a time
            return entries
        may_match = np.isin(entries.tags_code & _MASK32, self._hashes)
        return entries.take(may_match | (entries.tags_code <= EXT_MAX_ADDRESS))

    def _report_dead_ends(self, queue: QueueId, entries: Entries) -> None:
        for row in range(len(entries)):
            size = int(entries.size[row])
            what = "filler" if size == FILLER_SIZE else "an entry that leads to no place in the log"
            self._damaged(
                CorruptQueueError(
                    None,
                    offset=int(entries.offset[row]),
                    reason=f"{what} in queue {queue.topic}/{queue.queue_id}",
                    expected=f"a record before log offset {self._log_end}",
                    actual=f"log offset {int(entries.log_offset[row])}, size {size}",
                    advice="The offset is the queue offset. Read with on_damage to pass it over",
                )
            )

    # --- one batch ---------------------------------------------------------------------------------

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        if not self._reads_log:
            return self._builder.build(rows, None)
        rows, headers = self._located(rows)
        if not len(rows):
            return _empty(self._builder)
        properties: PropertyColumns | None = None
        if self._options.tags is not None:
            properties = self._builder.properties(headers)
            hits = pc.is_in(properties.tags, pa.array(sorted(self._options.tags)))
            kept = np.flatnonzero(hits.to_numpy(zero_copy_only=False))
            if len(kept) < len(rows):
                rows, headers, properties = rows.take(kept), _take(headers, kept), None
                if not len(rows):
                    return _empty(self._builder)
        return self._built(rows, headers, properties)

    def _built(
        self, rows: Rows, headers: Headers, properties: PropertyColumns | None
    ) -> pa.RecordBatch:
        try:
            return self._builder.build(rows, headers, properties)
        except BodyError:
            if self._options.on_damage is None:
                raise
        bad = self._builder.unopenable(rows, headers)
        for error in bad.values():
            self._damaged(error)
        keep = np.setdiff1d(np.arange(len(rows)), list(bad))
        if not len(keep):
            return _empty(self._builder)
        return self._builder.build(rows.take(keep), _take(headers, keep))

    def _located(self, rows: Rows) -> tuple[Rows, Headers]:
        """The rows whose records are there and sound, with their headers; others are damage."""
        first = int(rows.log_offset[0])
        segment = self._log.chain.segment_at(first)
        if segment is None:
            self._explain(rows, np.arange(len(rows)))
            return rows.take(slice(0, 0)), Headers(_NO_BYTES, rows.log_offset[:0], 0)
        stop = min(self._log.chain.segment_end(segment), int((rows.log_offset + rows.size).max()))
        window = self._log.chain.window(first, stop)
        headers = Headers(window, rows.log_offset - first, first)
        good = headers.valid & (headers.total == rows.size)
        if not good.all():
            self._explain(rows, np.flatnonzero(~good))
            rows, headers = rows.take(good), _take(headers, np.flatnonzero(good))
        return self._believed(rows, headers)

    def _believed(self, rows: Rows, headers: Headers) -> tuple[Rows, Headers]:
        """Without records of another queue, and without bodies that do not have their CRC."""
        other = other_topic_rows(rows, headers) if len(rows) else np.zeros(0, dtype=bool)
        strangers = [
            row for row in np.flatnonzero(other).tolist() if not _lists(rows, headers, row)
        ]
        wrong: Ints = np.array(strangers, dtype=np.int64)
        for row in strangers:
            self._damaged(self._stranger(rows, headers, row))
        if self._options.check_crc and len(rows):
            bad_crc = wrong_crc_rows(headers)
            self._explain(rows, np.setdiff1d(bad_crc, wrong))
            wrong = np.union1d(wrong, bad_crc)
        if not len(wrong):
            return rows, headers
        keep = np.setdiff1d(np.arange(len(rows)), wrong)
        return rows.take(keep), _take(headers, keep)

    def _explain(self, rows: Rows, bad: Ints) -> None:
        """Each bad row read again by the readable decoder, which says what is wrong with it."""
        for row in bad.tolist():
            where, size = int(rows.log_offset[row]), int(rows.size[row])
            try:
                found = self._log.record_at(where)
            except StoreError as error:
                self._damaged(error)
                continue
            self._damaged(
                CorruptQueueError(
                    self._log.path_at(where),
                    offset=where,
                    reason=f"queue {_name(rows, row)} lists a record of another size",
                    expected=size,
                    actual=found.total_size,
                    advice="The entry is left from before the log was cut, or damaged",
                )
            )

    def _stranger(self, rows: Rows, headers: Headers, row: int) -> CorruptQueueError:
        topic = stored_topics(_take(headers, np.array([row])))[0].as_py()
        return CorruptQueueError(
            self._log.path_at(int(rows.log_offset[row])),
            offset=int(rows.log_offset[row]),
            reason=f"queue {_name(rows, row)} lists a record of another queue",
            expected=_name(rows, row),
            actual=f"{topic}/{int(headers.head['queue_id'][row])}",
            advice="The entry is left from before the log was cut, or damaged",
        )

    def _damaged(self, error: StoreError) -> None:
        if self._options.on_damage is None:
            raise error
        self._options.on_damage(error)
        return


_NO_BYTES = np.zeros(0, dtype=np.uint8)
_DONE = np.iinfo(np.int64).max


def _next_span(span: int, found: int, aim: int) -> int:
    """Twice as wide where `found` entries are few, half as wide where they are many."""
    if found < aim // 2:
        return min(span * 2, _WIDEST_SPAN)
    return span // 2 if found > 2 * aim and span > 1 else span


def _head(cursor: _Cursor) -> int:
    head = cursor.next_log_offset
    return int(_DONE) if head is None else head


def _heads(cursors: Sequence[_Cursor]) -> npt.NDArray[np.int64]:
    return np.array([_head(cursor) for cursor in cursors], dtype=np.int64)


def _merged(
    waiting: Sequence[tuple[int, Entries]],
    topics: Sequence[str],
    topic_codes: npt.NDArray[np.int32],
    queue_ids: npt.NDArray[np.int32],
) -> Rows:
    entries = concat_entries([part for _, part in waiting])
    part = np.repeat([number for number, _ in waiting], [len(one) for _, one in waiting])
    order = np.argsort(entries.log_offset, kind="stable")
    entries, part = entries.take(order), part[order]
    return Rows(
        topics,
        topic_codes[part],
        queue_ids[part],
        entries.offset,
        entries.log_offset,
        entries.size,
        entries.tags_code,
    )


def _take(headers: Headers, rows: Ints) -> Headers:
    return Headers(headers.window, headers.at[rows], headers.base)


def _name(rows: Rows, row: int) -> str:
    return f"{rows.topics[int(rows.topic_code[row])]}/{int(rows.queue_id[row])}"


def _lists(rows: Rows, headers: Headers, row: int) -> bool:
    """Whether a record names the queue it was found by among its further queues (LMQ)."""
    at, length = int(headers.properties_at[row]), int(headers.properties_length[row])
    found = decode_properties(headers.window[at : at + length].tobytes())
    names = found.get(Property.INNER_MULTI_DISPATCH, "").split(MULTI_DISPATCH_SEPARATOR)
    return rows.topics[int(rows.topic_code[row])] in names


def _empty(builder: BatchBuilder) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(0, field.type) for field in builder.schema], schema=builder.schema
    )
