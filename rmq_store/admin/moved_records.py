"""Records that get other offsets in a new store, and the records that name their old ones.

An op message names half messages by queue offset (for transactions in RocksDB by log offset, in a property),
and a committed message names its half message by log offset. They get the new numbers. An op message loses
the numbers of half messages that are not in the new store; without any it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import InvalidArgumentError, InvalidMessageError
from rmq_store.format.byte_layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Ints, Mask
from rmq_store.format.queues import QueueId
from rmq_store.system_topics.open_state import (
    HALF,
    HALF_OF_OP,
    HALF_PLACE,
    OP,
    ORIGINAL,
    HalfName,
    OpenState,
    kind_of,
    numbers_of_op,
)
from rmq_store.writing.store_writer import AcceptedRows, StoreWriter, append_accepted

NAMES_NOTHING = "namesNothing"


@dataclass(slots=True)
class _Own:
    """A half or op message, or a committed one, of a batch: what it is called, and what it names."""

    row: int
    is_op: bool = False
    called: list[HalfName] = field(default_factory=list)
    names: list[HalfName] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # log offsets


@dataclass(frozen=True, slots=True)
class _Place:
    """The queue offset of a half message in the new store, and its log offset in the old one."""

    queue_offset: int
    old_log_offset: int


class MovedRecords:
    """Appends records in the order of their log. `left_out` counts those that are not open, by reason."""

    def __init__(self, state: OpenState, writer: StoreWriter) -> None:
        self._state, self._writer = state, writer
        self.left_out: Counter[str] = Counter()
        self._halves: dict[HalfName, _Place] = {}
        self._new_log_offset: dict[int, int] = {}

    def learn(self, name: HalfName, old: int, queue_offset: int, log_offset: int) -> None:
        """Note a half message of the new store: its name and log offset in the old one, and its place."""
        place = _Place(queue_offset, old)
        self._halves.update(dict.fromkeys((name, *self._state.also_called.get(old, ())), place))
        self._new_log_offset[old] = log_offset

    def append(
        self, batch: pa.RecordBatch, queue_offset: Ints, log_offset: Ints
    ) -> Iterator[AcceptedRows]:
        """Append rows with these old places: gives what was accepted and refused, in parts.

        Where the new store refuses a row, the places of half messages are not known before they are
        appended: then a part ends where a row names a half message of the same part.
        """
        kept = np.ones(batch.num_rows, np.bool_)
        owns = list(self._own_rows(batch, queue_offset, log_offset, kept))
        done = self._append_whole(batch, log_offset, kept, owns)
        if done is not None:
            yield done
            return
        start, called, places = 0, set[HalfName](), set[int]()
        part: list[_Own] = []
        for own in owns:
            if not (called.isdisjoint(own.names) and places.isdisjoint(own.places)):
                yield self._append_part(batch, log_offset, kept, part, start, own.row)
                start, part = own.row, []
                called.clear()
                places.clear()
            part.append(own)
            called.update(own.called)
            if own.called:
                places.add(int(log_offset[own.row]))
        yield self._append_part(batch, log_offset, kept, part, start, batch.num_rows)

    def _append_whole(
        self, batch: pa.RecordBatch, log_offset: Ints, kept: Mask, owns: list[_Own]
    ) -> AcceptedRows | None:
        """Append all rows, whose half messages get the next queue offsets; None if one is refused."""
        inside: dict[HalfName, _Place] = {}
        rows_of: dict[int, int] = {}
        ends: Counter[QueueId] = Counter()
        for own in owns:
            if own.called:
                queue, old = QueueId(*own.called[0][:2]), int(log_offset[own.row])
                offset = self._writer.max_offset(*queue) + ends[queue]
                inside.update(dict.fromkeys(own.called, _Place(offset, old)))
                ends[queue] += 1
                rows_of[old] = own.row
        if any(own.places and own.is_op and own.places[0] in rows_of for own in owns):
            return None  # a text that names a log offset of the same batch
        try:
            return self._append_part(
                batch, log_offset, kept.copy(), owns, 0, len(kept), inside, rows_of
            )
        except (InvalidArgumentError, InvalidMessageError):
            return None

    def _own_rows(
        self, batch: pa.RecordBatch, queue_offset: Ints, log_offset: Ints, kept: Mask
    ) -> Iterator[_Own]:
        """The rows that name half messages or are some. Takes the rows that are not open out of `kept`."""
        topics = batch["topic"].dictionary_encode()
        names = topics.dictionary.to_pylist()
        kinds, codes = [kind_of(name) for name in names], topics.indices.to_numpy()
        of_broker = np.array([kind is not None for kind in kinds], dtype=np.bool_)[codes]
        prepared = batch["preparedTransactionOffset"].to_numpy()
        for row in np.flatnonzero(of_broker | (prepared != 0)).tolist():
            kind, place = kinds[codes[row]], int(log_offset[row])
            if kind is None:
                yield _Own(row, places=[int(prepared[row])])
                continue
            if place in self._state.in_no_queue:
                continue
            queue_id, stored = batch["queueId"][row].as_py(), batch["rawProperties"][row].as_py()
            name = (names[codes[row]], queue_id, int(queue_offset[row]))
            why = self._state.why_left_out(kind, place, stored)
            if why is not None:
                self.left_out[why] += 1
                kept[row] = False
            elif kind == HALF:
                yield _Own(row, called=[name, *self._state.also_called.get(place, ())])
            elif kind == OP:
                half, half_place = HALF_OF_OP[name[0]], _number_in(stored, HALF_PLACE)
                if half_place is not None:
                    yield _Own(row, True, places=[half_place])
                else:
                    numbers = numbers_of_op(batch["body"][row].as_py())
                    names_of = [(half, queue_id, number) for number in numbers]
                    yield _Own(row, True, names=names_of)

    def _append_part(
        self,
        batch: pa.RecordBatch,
        log_offset: Ints,
        kept: Mask,
        owns: list[_Own],
        start: int,
        stop: int,
        inside: Mapping[HalfName, _Place] | None = None,
        rows_of: Mapping[int, int] | None = None,
    ) -> AcceptedRows:
        """Append the rows from `start` to `stop`.

        `inside` and `rows_of`: the names and the rows of half messages among them. With these, one refused
        row is an error, before a byte is written.
        """
        part = batch.slice(start, stop - start)
        bodies: dict[int, bytes] = {}
        properties: dict[int, bytes] = {}
        prepared = part["preparedTransactionOffset"].to_numpy().copy()
        halves = np.full(len(part), -1, dtype=np.int64)
        nothing = 0
        for own in owns:
            row = own.row - start
            stored = part["rawProperties"][row].as_py()
            if own.called:
                properties[row] = _with_number(stored, ORIGINAL, None)
            elif not own.is_op:
                prepared[row] = self._new_log_offset.get(own.places[0], 0)
                halves[row] = (rows_of or {}).get(own.places[0], -1)
            elif own.places:
                new = self._new_log_offset.get(own.places[0])
                properties[row] = _with_number(stored, HALF_PLACE, new)
                kept[own.row] = new is not None
            else:
                places = (self._halves.get(name) or (inside or {}).get(name) for name in own.names)
                numbers = [f"{place.queue_offset}," for place in places if place is not None]
                bodies[row] = "".join(numbers).encode()
                kept[own.row] = bool(numbers)
            nothing += not kept[own.row]
        part = _with_values(part, bodies, properties, prepared)
        rows = start + np.flatnonzero(kept[start:stop])
        some = part if len(rows) == len(part) else part.take(pa.array(rows - start))
        if inside is None:
            done = append_accepted(self._writer, some)
        else:
            number = np.cumsum(kept) - 1  # of each row among those that are kept
            named = np.where(halves >= 0, number[halves], -1)[rows]
            places_of = self._writer.append_batch(some, copied=True, halves=named)
            done = AcceptedRows(np.arange(len(rows)), places_of, [])
        self.left_out[NAMES_NOTHING] += nothing
        self._learn_of(log_offset, owns, rows, done)
        refused = [(int(rows[row]), error) for row, error in done.refused]
        return AcceptedRows(rows[done.rows], done.places, refused)

    def _learn_of(self, log_offset: Ints, owns: list[_Own], rows: Ints, done: AcceptedRows) -> None:
        """Note the new places of the half messages of a part, and forget those that it ended."""
        new = dict(zip(rows[done.rows].tolist(), range(len(done.rows)), strict=True))
        for own in owns:
            at = new.get(own.row)
            if own.called and at is not None:
                places = done.places
                new_places = int(places.queue_offset[at]), int(places.commit_log_offset[at])
                self.learn(own.called[0], int(log_offset[own.row]), *new_places)
        for name in (name for own in owns for name in own.names):
            place = self._halves.pop(name, None)
            if place is not None:
                self._new_log_offset.pop(place.old_log_offset, None)


def _with_values(
    batch: pa.RecordBatch, bodies: dict[int, bytes], properties: dict[int, bytes], prepared: Ints
) -> pa.RecordBatch:
    """A batch with other bodies and properties in some rows."""
    batch = _with_column(batch, "preparedTransactionOffset", pa.array(prepared))
    for name, values in (("body", bodies), ("rawProperties", properties)):
        if values:
            mask = np.zeros(batch.num_rows, np.bool_)
            mask[list(values)] = True
            column = batch[name]
            new = pa.array([values[row] for row in sorted(values)], column.type)
            batch = _with_column(batch, name, pc.replace_with_mask(column, pa.array(mask), new))
    return batch


def _with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def _number_in(stored: bytes, name: str) -> int | None:
    """The number in a property of a stored string; None without one."""
    for item in stored.split(bytes([PROPERTY_SEPARATOR])):
        key, _, value = item.partition(bytes([NAME_VALUE_SEPARATOR]))
        if key == name.encode() and value.isdigit():
            return int(value)
    return None


def _with_number(stored: bytes, name: str, number: int | None) -> bytes:
    """A stored property string with another number in a property, or without that property."""
    front = name.encode() + bytes([NAME_VALUE_SEPARATOR])
    items = stored.split(bytes([PROPERTY_SEPARATOR]))
    changed = [
        item if not item.startswith(front) else front + str(number).encode()
        for item in items
        if number is not None or not item.startswith(front)
    ]
    return bytes([PROPERTY_SEPARATOR]).join(changed)


def moved_offsets(offsets: Iterable[tuple[QueueId, int]]) -> dict[QueueId, MovedOffsets]:
    """By queue, what some offsets become in the new store."""
    wanted: dict[QueueId, set[int]] = {}
    for queue, offset in offsets:
        wanted.setdefault(queue, set()).add(offset)
    return {queue: MovedOffsets(sorted(some)) for queue, some in wanted.items()}


class MovedOffsets:
    """Finds where some offsets of a queue, sorted, lead in the new queue: each to the same message, or to the
    first one after it that is there.

    The messages come in the order of their log. Where queue offsets begin again, the queue was deleted and
    created again: offsets are those of its last life.
    """

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = np.array(offsets, dtype=np.int64)
        self._become = np.full(len(offsets), -1, dtype=np.int64)  # -1: not met yet
        self._last: tuple[int, int] | None = None  # old and new offset of the last message

    def note(self, old: Ints, new: Ints) -> None:
        """Note the next messages of the queue, at least one: their old and their new offsets."""
        if self._last is not None:
            old, new = np.append(self._last[0], old), np.append(self._last[1], new)
        back = np.flatnonzero(np.diff(old) <= 0)
        if len(back):  # an earlier life ends
            self._become[:] = -1
            old, new = old[back[-1] + 1 :], new[back[-1] + 1 :]
        self._last = int(old[-1]), int(new[-1])
        met = np.flatnonzero((self._become < 0) & (self._offsets < old[-1]))
        at = np.searchsorted(old, self._offsets[met], side="right") - 1
        # Within a batch of messages the distance from its first one stays; a lost message leaves no gap.
        inside = np.minimum(new[at] + self._offsets[met] - old[at], new[at + 1])
        self._become[met] = np.where(at < 0, new[0], inside)

    def new_of(self, offset: int, end: int) -> int:
        """The new offset for one of the old ones. `end`: the max offset of the new queue."""
        become = int(self._become[np.searchsorted(self._offsets, offset)])
        if become >= 0:
            return become
        return end if self._last is None else min(self._last[1] + offset - self._last[0], end)
