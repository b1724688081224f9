"""Records that get other offsets in a new store, and the records that name their old ones.

An op message names half messages by queue offset (for transactions in RocksDB by log offset, in a property),
and a committed message names its half message by log offset. They get the new numbers. An op message loses
the numbers of half messages that are not in the new store; without any it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.byte_layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
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
from rmq_store.writing.accepted_rows import AcceptedRows

NAMES_NOTHING = "namesNothing"

Append = Callable[[pa.RecordBatch], AcceptedRows]


@dataclass(slots=True)
class _Own:
    """A half or op message, or a committed one, of a batch: what it is called, and what it names."""

    row: int
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

    def __init__(self, state: OpenState, append: Append) -> None:
        self._state, self._append = state, append
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

        A part ends where a row names a half message of the same part, whose place is not known yet.
        """
        kept = np.ones(batch.num_rows, np.bool_)
        start, called, places = 0, set[HalfName](), set[int]()
        owns: list[_Own] = []
        for own in self._own_rows(batch, queue_offset, log_offset, kept):
            if not (called.isdisjoint(own.names) and places.isdisjoint(own.places)):
                yield self._append_part(batch, log_offset, kept, owns, start, own.row)
                start, owns = own.row, []
                called.clear()
                places.clear()
            owns.append(own)
            called.update(own.called)
            if own.called:
                places.add(int(log_offset[own.row]))
        yield self._append_part(batch, log_offset, kept, owns, start, batch.num_rows)

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
                    yield _Own(row, places=[half_place])
                else:
                    numbers = numbers_of_op(batch["body"][row].as_py())
                    yield _Own(row, names=[(half, queue_id, number) for number in numbers])

    def _append_part(
        self,
        batch: pa.RecordBatch,
        log_offset: Ints,
        kept: Mask,
        owns: list[_Own],
        start: int,
        stop: int,
    ) -> AcceptedRows:
        part = batch.slice(start, stop - start)
        bodies: dict[int, bytes] = {}
        properties: dict[int, bytes] = {}
        prepared = part["preparedTransactionOffset"].to_numpy().copy()
        for own in owns:
            row = own.row - start
            stored = part["rawProperties"][row].as_py()
            if own.called:
                properties[row] = _with_number(stored, ORIGINAL, None)
            elif kind_of(part["topic"][row].as_py()) is None:
                prepared[row] = self._new_log_offset.get(own.places[0], 0)
            elif own.places:
                new = self._new_log_offset.get(own.places[0])
                properties[row] = _with_number(stored, HALF_PLACE, new)
                kept[own.row] = new is not None
            else:
                numbers = [f"{place.queue_offset}," for place in self._end(own.names)]
                bodies[row] = "".join(numbers).encode()
                kept[own.row] = bool(numbers)
            self.left_out[NAMES_NOTHING] += not kept[own.row]
        part = _with_values(part, bodies, properties, prepared)
        rows = start + np.flatnonzero(kept[start:stop])
        done = self._append(part if len(rows) == len(part) else part.take(pa.array(rows - start)))
        self._learn_of(batch, log_offset, owns, rows, done)
        refused = [(int(rows[row]), error) for row, error in done.refused]
        return AcceptedRows(rows[done.rows], done.places, refused)

    def _end(self, names: list[HalfName]) -> Iterator[_Place]:
        """The places of the half messages that an op message names, which nothing names after it."""
        for name in names:
            place = self._halves.pop(name, None)
            if place is not None:
                self._new_log_offset.pop(place.old_log_offset, None)
                yield place

    def _learn_of(
        self,
        batch: pa.RecordBatch,
        log_offset: Ints,
        owns: list[_Own],
        rows: Ints,
        done: AcceptedRows,
    ) -> None:
        """Note the new places of the half messages of a part."""
        new = dict(zip(rows[done.rows].tolist(), range(len(done.rows)), strict=True))
        for own in owns:
            at = new.get(own.row)
            if own.called and at is not None:
                places = done.places
                new_places = int(places.queue_offset[at]), int(places.commit_log_offset[at])
                self.learn(own.called[0], int(log_offset[own.row]), *new_places)


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
