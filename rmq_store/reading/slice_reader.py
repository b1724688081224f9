"""Read queue ranges as Arrow batches, mostly in log order, in one pass for any selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rmq_store import loops
from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import column_names, needs_log
from rmq_store.arrow.column_values import BatchBuilder, opened_bodies, stored_bodies
from rmq_store.arrow.property_columns import (
    PropertyColumns,
    buffers,
    decode_property_columns,
    slices,
)
from rmq_store.commitlog.headers import Headers
from rmq_store.errors import (
    BodyError,
    DataLossError,
    ListedAt,
    LogOffset,
    MissingFileError,
    StoreError,
)
from rmq_store.files.source import Window
from rmq_store.format.byte_layout import Bytes, Columns, Ints, Mask, Numbers
from rmq_store.format.compression import SysFlag
from rmq_store.format.queues import ListedEntries, QueueId, QueueSlice
from rmq_store.index.index_writer import rows_with_key
from rmq_store.loops.members import count_members, split_members
from rmq_store.reading.query import BODIES, DamageMode, Query
from rmq_store.reading.slice_entries import (
    CompactedEntries,
    EntriesOfQueues,
    EntryCheck,
    WantedEntries,
)
from rmq_store.snapshot.compacted_view import ConsumerQueues
from rmq_store.snapshot.opening import Opening

RangesOf = Callable[[QueueId], Sequence[tuple[int, int]]]
"""Gives the wanted queue offsets of a queue as half-open ranges."""

_ROWS = 1 << 16  # most messages of a batch: an inner batch may hold millions


MOST_MEMBERS = 2**15 - 1
"""A queue counts the messages of a batch in two bytes (BatchConsumeQueue, batchSize)."""
_MOST_BEFORE_RAISED = 1000  # errors; with fewer the read first gives the messages before them
_PLACE = "commitLogOffset"
_NOWHERE = -1


@dataclass(slots=True)
class BatchMembers(Columns):
    """n members of the bodies of some records, in order within each record.

    `row` is the index of the body, `number` the index of the member in it. Positions count in
    the data of the `stored` bodies.
    """

    stored: pa.Array
    row: Ints
    number: Ints
    flag: Numbers
    body_at: Ints
    body_length: Ints
    properties_at: Ints
    properties_length: Ints

    def __len__(self) -> int:
        return len(self.row)

    def bodies(self) -> pa.Array:
        """The members' bodies."""
        return slices(buffers(self.stored)[1], self.body_at, self.body_length)

    def properties(self) -> pa.Array:
        """The members' properties as stored."""
        return slices(buffers(self.stored)[1], self.properties_at, self.properties_length)


def members_of_bodies(bodies: pa.Array) -> tuple[BatchMembers, Ints]:
    """The members of all `bodies` (binary, without nulls), and the rows that do not add up.

    A body with more than MOST_MEMBERS does not add up.
    """
    ends, data = buffers(bodies)
    counts = np.empty(len(bodies), dtype=np.int64)
    count_members(data.data, ends.data, MOST_MEMBERS, counts.data)
    broken = np.flatnonzero(counts < 0)
    counts[broken] = 0
    places = np.empty((6, int(counts.sum())), dtype=np.int64)
    flags = np.empty(places.shape[1], dtype=np.int32)
    row, number, *rest = places
    split_members(
        *(data.data, ends.data, counts.data, row.data, number.data, flags.data),
        *(column.data for column in rest),
    )
    return BatchMembers(bodies, row, number, flags, *rest), broken


class SliceReader:
    """Reads slices of queues whose entries are in `view`, and their records in its log."""

    def __init__(
        self,
        view: EntriesOfQueues,
        broker_name: str,
        query: Query,
        ranges_of: RangesOf,
        opening: Opening | None = None,
    ) -> None:
        """`ranges_of`: the wanted messages of inner batches, which a range may begin or end inside of.
        `opening` says what is missing at ends, if that is to be reported."""
        self._view, self._opening, self._ranges_of = view, opening, ranges_of
        self._broker_name = broker_name
        self._damages = 0
        # To be reported once it is certain that all bytes were there.
        self._errors: list[StoreError] = []
        self._first: StoreError | None = None  # of those that end the read
        self.log, self.log_end = view.log, view.log_end
        self.query = query
        self._selected = column_names(query.columns)
        # Members of batches are sorted in log order by the position of their record.
        ordered = query.unwrap_batches and _PLACE not in self._selected
        self._builder = BatchBuilder(
            broker_name,
            (*self._selected, _PLACE) if ordered else self._selected,
            encoded=query.encoded,
        )
        self._hides_place = ordered
        self._filters = query.tags is not None or query.keys is not None
        self._reads_log = needs_log(self._builder.names) or self._filters or query.verify_queue
        self._entries = WantedEntries(view, query, self._damaged, reads_log=self._reads_log)
        self._check = EntryCheck(
            view,
            self._damaged,
            reads_bodies=query.check_crc or bool(BODIES.intersection(self._builder.names)),
            check_crc=query.check_crc,
            copy_bodies="body" in self._builder.names and not self._filters,
        )

    def read(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of all slices, rows in the order of the log (see `log_order` in CommonReadOptions).

        After damage a batch may be empty, so that a caller of `on_damage` can pass the errors on.
        What opening saw to be missing at the ends of queues is reported after the last batch.
        """
        return self._in_mode(self._batches_of_slices(slices))

    def report(self, error: StoreError, entry: ListedAt | None) -> Iterator[pa.RecordBatch]:
        """The answer for messages that cannot be read at all: the error, as the query wants it."""

        def batches() -> Iterator[pa.RecordBatch]:
            self._damaged(error, entry)
            self._report()
            yield self._builder.empty().select(self._selected)

        return self._in_mode(batches())

    def _batches_of_slices(self, slices: Sequence[QueueSlice]) -> Iterator[pa.RecordBatch]:
        yield from self._sound_batches(count_rows_read(self._entries.wanted(slices)))
        if self.query.check_ends and self._opening is not None:
            for error in self._opening.errors(self._opening.ends_in(slices)):
                self._damaged(error, error.entry)
        lost = self._view.replaced()
        if lost is not None:
            self._damaged(lost, None)
        self._report()

    def batches_of(self, pieces: Iterable[ListedEntries]) -> Iterator[pa.RecordBatch]:
        """Arrow batches of rows, in their order; rows about damage if the mode has them."""
        return self._in_mode(self._sound_batches(count_rows_read(pieces)))

    def _in_mode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taker = self.query.on_damage
        if isinstance(taker, DamageMode):
            return taker.applied(batches, self._broker_name, self._selected)
        return batches

    def _sound_batches(self, pieces: Iterable[ListedEntries]) -> Iterator[pa.RecordBatch]:
        rows_next = self.query.first_batch_rows or self.query.batch_rows
        reported = 0
        for piece in pieces:
            rows, at, errors_before = self._before_damage(piece), 0, len(self._errors)
            while at < len(rows):
                upto = self._batch_end(rows, at, rows_next)
                for batch in self._batches(rows.take(slice(at, upto))):
                    self._pass_on()
                    if batch.num_rows or self._damages != reported:
                        rows_next = self.query.batch_rows
                        reported = self._damages
                        yield batch.select(self._selected) if self._hides_place else batch
                at = upto
                if (
                    len(self._errors) > errors_before
                ):  # of this batch, whatever is known of later ones
                    self._report()
            self._report()
        self._report()

    def _batch_end(self, rows: ListedEntries, at: int, most: int) -> int:
        """The end of a batch: rows and bytes within limits, all in one log file."""
        upto = min(at + most, len(rows))
        if not self._reads_log:
            return upto  # the records are not loaded, so their sizes do not matter
        if int(rows.size[at:upto].sum()) > self.query.batch_bytes:
            sizes = np.cumsum(rows.size[at:upto])
            fit = int(np.searchsorted(sizes, self.query.batch_bytes, side="right"))
            upto = at + max(1, fit)
        file_size = max(1, self.log.chain.file_size)  # 0 if all files are gone
        if int(rows.log_offset[at]) // file_size != int(rows.log_offset[upto - 1]) // file_size:
            file = rows.log_offset[at:upto] // file_size
            upto = at + int(np.argmax(file != file[0]))
        return upto

    # --- one batch ---------------------------------------------------------------------------------

    def _batches(self, rows: ListedEntries) -> Iterator[pa.RecordBatch]:
        """The rows as a batch, or as several if their bodies are large when opened."""
        if not self._reads_log:
            yield self._builder.build(rows, None)
            return
        first = int(rows.log_offset[0])
        window = self._window(rows, first)
        if window is None:
            self._check.report_bad_rows(rows, np.arange(len(rows)))
            yield self._builder.empty()
            return
        with window:
            yield from window.checked(self._batches_in(window.bytes, first, rows))

    def _batches_in(
        self, window: Bytes, first: int, rows: ListedEntries
    ) -> Iterator[pa.RecordBatch]:
        """The batches of rows whose records are in the bytes of the log from offset `first` on."""
        rows, headers, stored = self._check.sound_rows(window, first, rows)
        before = self._before_damage(rows)
        if before is not rows:
            rows, headers, stored = before, headers.take(slice(len(before))), None
        inner = np.zeros(len(rows), dtype=bool)
        if self.query.unwrap_batches:
            inner |= (headers.sys_flag & SysFlag.INNER_BATCH) != 0
        properties: PropertyColumns | None = None
        if self._filters and len(rows):  # members of an inner batch have tags and keys of their own
            properties = self._builder.properties(headers)
            kept = inner | self._matches(properties)
            if not kept.all():
                places = np.flatnonzero(kept)
                rows, headers, inner = rows.take(places), headers.take(places), inner[places]
                properties = stored = None
        if not len(rows):
            yield self._builder.empty()
        elif inner.any() or "body" in self._builder.names:
            yield from self._with_bodies(rows, headers, inner, properties, stored)
        else:
            yield self._builder.build(rows, headers, properties)

    def _matches(self, properties: PropertyColumns) -> Mask:
        hits = np.ones(len(properties), dtype=bool)
        if self.query.tags is not None:
            tags = pc.is_in(properties.tags, pa.array(sorted(self.query.tags)))
            hits &= tags.to_numpy(zero_copy_only=False)
        if self.query.keys is not None:
            hits &= rows_with_key(properties.keys, properties.uniq_key, self.query.keys)
        return hits

    def _with_bodies(
        self,
        rows: ListedEntries,
        headers: Headers,
        inner: Mask,
        properties: PropertyColumns | None,
        stored: pa.Array | None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of a limited number of opened bytes; `stored`: the bodies as stored, if known."""
        for kept, bodies in opened_bodies(
            headers,
            stored_bodies(headers) if stored is None else stored,
            inner | ("body" in self._builder.names),
            max_body_bytes=self.query.max_body_bytes,
            path=self.log.chain.folders[0],
            failed=lambda row, error: self._damaged(error, rows.entry(row)),
        ):
            if len(kept) == len(rows):
                some, their, joined = rows, headers, inner
            else:
                some, their, joined = rows.take(kept), headers.take(kept), inner[kept]
                properties = None
            if not len(kept):
                yield self._builder.empty()
            elif joined.any():
                yield from self._with_members(some, their, joined, bodies)
            else:
                yield self._builder.build(some, their, properties, bodies)

    def _with_members(
        self, rows: ListedEntries, headers: Headers, inner: Mask, bodies: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """A row for each message of inner batches, and one for each other record."""
        batched, plain = np.flatnonzero(inner), np.flatnonzero(~inner)
        members = self._batches_of_members(
            rows.take(batched), headers.take(batched), bodies.take(pa.array(batched))
        )
        if not len(plain):
            yield from members
            return
        own = bodies.take(pa.array(plain))
        first = self._builder.build(rows.take(plain), headers.take(plain), bodies=own)
        both = pa.Table.from_batches([first, *members])
        order = np.argsort(both.column(_PLACE).to_numpy(), kind="stable")
        yield both.take(pa.array(order)).combine_chunks().to_batches()[0]

    def _window(self, rows: ListedEntries, first: int) -> Window | None:
        """The bytes of the rows' records from log offset `first` on; None if their file is gone."""
        segment = self.log.chain.segment_at(first)
        if segment is None:
            return None
        stop = min(self.log.chain.segment_end(segment), int((rows.log_offset + rows.size).max()))
        try:
            window = self.log.chain.window(first, stop, fetch=False)
        except MissingFileError:
            return None  # it has expired since the store was opened
        window.fetch(rows.log_offset - first, rows.log_offset + rows.size - first)
        return window

    # --- members of inner batches ------------------------------------------------------------------

    def _batches_of_members(
        self, rows: ListedEntries, headers: Headers, bodies: pa.Array
    ) -> Iterator[pa.RecordBatch]:
        """A row for each wanted message. `rows` are records of inner batches, `bodies` their bodies."""
        members, broken = members_of_bodies(bodies)
        for row in broken.tolist():
            where = int(rows.log_offset[row])
            error = BodyError(
                self.log.path_at(where),
                offset=LogOffset(where),
                reason="the body of an inner batch cannot be split into messages",
                advice="Read with unwrapBatches=false and rawBody to get the stored bytes",
            )
            self._damaged(error, rows.entry(row))
        members = members.take(np.flatnonzero(self._in_ranges(rows, members)))
        for start in range(0, len(members), _ROWS):
            some = members.take(np.arange(start, min(start + _ROWS, len(members))))
            if self._filters:
                properties = decode_property_columns(some.properties(), with_map=False)
                some = some.take(np.flatnonzero(self._matches(properties)))
            yield (
                self._batch_of_members(rows, headers, some) if len(some) else self._builder.empty()
            )

    def _in_ranges(self, rows: ListedEntries, members: BatchMembers) -> Mask:
        """Which members have a wanted queue offset. A range may start inside a batch."""
        offset = rows.offset[members.row] + members.number
        inside = np.ones(len(members), dtype=bool)
        for number in np.unique(rows.queue).tolist():
            mine = (rows.queue == number)[members.row]
            wanted = np.zeros(len(members), dtype=bool)
            for start, stop in self._ranges_of(rows.queues[number]):
                wanted |= (offset >= start) & (offset < stop)
            inside &= ~mine | wanted
        return inside

    def _batch_of_members(
        self, rows: ListedEntries, headers: Headers, members: BatchMembers
    ) -> pa.RecordBatch:
        names = self._builder.names
        stored = members.properties()
        properties = decode_property_columns(stored, with_map="properties" in names)
        bodies = members.bodies() if BODIES.intersection(names) else None
        own = {
            "queueOffset": pa.array(rows.offset[members.row] + members.number),
            "flag": pa.array(members.flag),
            "body": bodies,
            "rawBody": bodies,
            "tags": properties.tags,
            "keys": properties.keys,
            "uniqKey": properties.uniq_key,
            "properties": properties.properties,
            "rawProperties": stored,
        }
        used, row = np.unique(members.row, return_inverse=True)
        records = self._builder.build(
            rows.take(used), headers.take(used), bodies=pa.nulls(len(used), pa.binary())
        )
        # Only the columns that members share: a body a record would be copied for each member.
        shared = records.select([name for name in names if name not in own]).take(pa.array(row))
        columns = [own[name] if name in own else shared.column(name) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=self._builder.schema)

    # --- damage ------------------------------------------------------------------------------------

    def _damaged(self, error: StoreError, entry: ListedAt | None) -> None:
        error = self._view.replaced() or error
        error.entry = entry
        self._damages += 1
        if self.query.concerns is None or self.query.concerns(error):
            self._errors.append(error)
        if self.query.on_damage is None and len(self._errors) > _MOST_BEFORE_RAISED:
            raise self._errors[0]

    def _before_damage(self, rows: ListedEntries) -> ListedEntries:
        """The rows before the message whose error ends the read; all without one."""
        if self.query.on_damage is not None or not self._errors or not len(rows):
            return rows
        place = len(rows)
        for error, behind in self._places_of_damage(rows):
            at = int(behind.argmax()) if behind.any() else len(rows)
            if self._first is None or at < place:
                place, self._first = at, error
        return rows.take(slice(place))

    def _places_of_damage(self, rows: ListedEntries) -> Iterator[tuple[StoreError, Mask]]:
        """Errors, and which rows are at or after the message of each: the first by the place in the log,
        and the first of each queue, for entries that lead nowhere."""
        errors = [(error.entry, error) for error in self._errors if error.entry is not None]
        places = [(entry.log_offset, error) for entry, error in errors if entry.size > 0]
        if places:
            at, error = min(places, key=lambda place: place[0])
            yield error, rows.log_offset >= at
        firsts: dict[QueueId, tuple[int, StoreError]] = {}
        for entry, error in errors:
            queue = QueueId(entry.topic, entry.queue_id)
            if queue not in firsts or entry.queue_offset < firsts[queue][0]:
                firsts[queue] = entry.queue_offset, error
        for number, queue in enumerate(rows.queues):
            if queue in firsts:
                at, error = firsts[queue]
                yield error, (rows.queue == number) & (rows.offset > at)

    def _pass_on(self) -> None:
        """Hand the errors to who takes them, before the batch that lacks their messages."""
        if self.query.on_damage is not None:
            errors, self._errors = self._errors, []
            for error in errors:
                self.query.on_damage(error)

    def _report(self) -> None:
        """As `_pass_on`; raise the first error if nothing takes them, after the batch of those before."""
        self._pass_on()
        if self._errors:
            raise self._first or self._errors[0]


def ranges_of_slices(slices: Sequence[QueueSlice]) -> RangesOf:
    """The wanted queue offsets of each queue in some slices."""
    ranges: dict[QueueId, list[tuple[int, int]]] = {}
    for part in slices:
        ranges.setdefault(part.queue, []).append((part.start, part.stop))
    return lambda queue: ranges.get(queue, [])


def count_rows_read(pieces: Iterable[ListedEntries]) -> Iterator[ListedEntries]:
    """The rows of a read."""
    for rows in pieces:
        loops.count(len(rows))
        yield rows


def compacted_batches(
    served: ConsumerQueues,
    parts: Mapping[QueueId, Sequence[QueueSlice]],
    broker_name: str,
    query: Query,
    report: Callable[[StoreError, ListedAt], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """The batches of compacted queues, queue after queue, each in the order of its compaction log.

    Every entry is checked against its record, because these files are all that says which messages there
    are. `report` answers for a queue whose files are damaged as a whole.
    """
    checked = replace(query, verify_queue=True, check_ends=False)
    for queue, of_queue in parts.items():
        files = served.compacted_or_error(queue)
        assert files is not None  # ConsumerQueues.split chose it
        if isinstance(files, StoreError):
            yield from report(files, ListedAt(*queue, of_queue[0].start, _NOWHERE, 0, 0))
            continue
        ranges = ranges_of_slices(of_queue)
        reader = SliceReader(CompactedEntries(files), broker_name, checked, ranges)
        try:
            yield from reader.read(of_queue)
        except DataLossError as lost:  # of the entries, which the reader does not open itself
            yield from report(lost, ListedAt(*queue, of_queue[0].start, _NOWHERE, 0, 0))
