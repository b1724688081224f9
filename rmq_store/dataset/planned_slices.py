"""The parts of queues that a filter needs, by what is proven of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.dataset.lazy_dataset import possible
from rmq_store.errors import StoreError
from rmq_store.escaping import is_utf8
from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.search.log_partitions import joined, offset_steps
from rmq_store.store import MessageStore

STEP = 1 << 14  # messages of a queue whose places and times are proven first
_FINE_STEP = 1 << 9
_FINE_STEP_OF_VALUES = 1 << 11  # to plan a part takes as long as to read some hundred messages
_AT_ONCE = 1 << 18  # messages whose values are read at a time
_MOST_PARTS = 1 << 13
_PROVEN = {"commitLogOffset": pa.int64(), "storeTimestamp": TIMESTAMP}
_Limits = tuple[int, int]


@dataclass(slots=True)
class ProvenLimits:
    """The least and the greatest value of a column in parts of the queues of one store.

    Nothing else proves them: a broker's clock may have been set back, and a damaged entry leads
    anywhere. So they are read, by the reader of the rows themselves, and kept. `storeTimestamp`
    takes a look at each record's head. None: not known, because of damage, an inner batch, or a log
    in an object store, where such looks cost as much as the records.
    """

    _known: dict[tuple[str, QueueSlice], _Limits | None] = field(default_factory=dict)

    def of(self, column: str, part: QueueSlice) -> _Limits | None:
        """The limits in `part`, which `read` was given, or in a fine step of one."""
        return self._known[column, part]

    def read(
        self, store: MessageStore, column: str, parts: Sequence[QueueSlice], *, compacted: bool
    ) -> None:
        """Find the limits in `parts`, which are from `steps` in their order, and in their fine ones.

        `compacted`: as in the read of the rows, which is the same for all parts.
        """
        unknown = [part for part in parts if (column, part) not in self._known]
        if column == "storeTimestamp" and store.log.chain.cost.looks_at_once > 1:
            for part in unknown:
                of_part = (part, *steps(store, part, _FINE_STEP_OF_VALUES))
                self._known |= dict.fromkeys(((column, one) for one in of_part), None)
            return
        for together in _neighbours(unknown):
            if not self._read(store, column, together, compacted):
                for part in together:
                    self._read(store, column, [part], compacted, damaged=True)

    def _read(
        self,
        store: MessageStore,
        column: str,
        parts: Sequence[QueueSlice],
        compacted: bool,
        *,
        damaged: bool = False,
    ) -> bool:
        """Read adjacent parts. Returns whether there was no damage; with it, notes only if `damaged`."""
        damage: list[StoreError] = []
        batches = store.read_slices(
            [QueueSlice(parts[0].queue, parts[0].start, parts[-1].stop)],
            columns=["queueOffset", column],
            check_crc=False,
            check_ends=False,
            compacted=compacted,
            on_damage=damage.append,
        )
        found = batches.read_all()
        if damage and not damaged:
            return False
        offsets = found.column("queueOffset").to_numpy()
        values = found.column(column).cast(pa.int64()).to_numpy()
        if len(offsets) and (offsets[1:] < offsets[:-1]).any():
            order = np.argsort(offsets, kind="stable")
            offsets, values = offsets[order], values[order]
        for part in parts:
            fine = list(steps(store, part, _FINE_STEP_OF_VALUES))
            limits = [None] * len(fine) if damage else _limits(offsets, values, fine)
            self._known |= {(column, one): of for one, of in zip(fine, limits, strict=True)}
            some = [one for one in limits if one is not None]
            whole = len(some) == len(fine) > 0
            self._known[column, part] = (
                (min(low for low, _ in some), max(high for _, high in some)) if whole else None
            )
        return not damage


def _neighbours(parts: Sequence[QueueSlice]) -> Iterator[list[QueueSlice]]:
    """Parts in their order, those that follow each other in a queue together, up to `_AT_ONCE` messages."""
    some: list[QueueSlice] = []
    for part in parts:
        near = some and some[-1].queue == part.queue and some[-1].stop == part.start
        if some and not (near and part.stop - some[0].start <= _AT_ONCE):
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _limits(offsets: Ints, values: Ints, parts: Sequence[QueueSlice]) -> list[_Limits | None]:
    """The limits of the values of each part, None if it lacks one; `offsets` ascend."""
    edges = np.array([[part.start, part.stop] for part in parts], dtype=np.int64)
    rows = np.searchsorted(offsets, edges)
    found: list[_Limits | None] = []
    for part, (first, last) in zip(parts, rows.tolist(), strict=True):
        mine = values[first:last]
        whole = len(mine) == len(part) > 0
        found.append((int(mine.min()), int(mine.max())) if whole else None)
    return found


def steps(store: MessageStore, part: QueueSlice, step: int) -> Iterator[QueueSlice]:
    """The part cut into steps, at multiples of `step`."""
    first = min(part.stop, part.start - part.start % step + step)
    yield QueueSlice(part.queue, part.start, first)
    cuts = offset_steps(store, first, part.stop, step)
    for at in cuts:
        yield QueueSlice(part.queue, at, min(at + cuts.step, part.stop))


@dataclass(frozen=True, slots=True)
class SlicePlanner:
    """Narrows queue ranges of one store by a filter. `named`: the columns that the filter may name."""

    store: MessageStore
    schema: pa.Schema
    wanted: Any
    named: frozenset[str]
    proven: ProvenLimits
    compacted: bool

    def narrowed(self, ranges: Sequence[QueueSlice]) -> list[QueueSlice]:
        """The parts of `ranges` that can have a message that matches."""
        queues = {part.queue: self._of_queue(part.queue) for part in ranges}
        known = [reduce(and_, queues[part.queue] or [pc.scalar(True)]) for part in ranges]
        numbers = possible(self.schema, self.wanted, known) if ranges else []
        chosen = [ranges[number] for number in numbers]
        return joined(self._parts(chosen))

    def _parts(self, ranges: Sequence[QueueSlice]) -> list[QueueSlice]:
        kept = self._possible(ranges, ()) if "queueOffset" in self.named else ranges
        ordered = [name for name in _PROVEN if name in self.named]
        if not ordered and "queueOffset" not in self.named:
            return list(kept)
        parts = [part for part in kept if len(part)]
        first = 0 if "queueOffset" in self.named else 1
        for step in (STEP, _FINE_STEP_OF_VALUES if ordered else _FINE_STEP):
            # Too many parts take longer to plan than to read.
            if sum(-(-len(part) // step) for part in parts) > _MOST_PARTS:
                break
            parts = [one for part in parts for one in steps(self.store, part, step) if len(one)]
            for count in range(first, len(ordered) + 1):
                parts = self._possible(parts, ordered[:count])
        return parts

    def _possible(self, parts: Sequence[QueueSlice], proven: Sequence[str]) -> list[QueueSlice]:
        if not parts:
            return []
        for name in proven:
            self.proven.read(self.store, name, parts, compacted=self.compacted)
        of_queue = {part.queue: self._of_queue(part.queue) for part in parts}
        guarantees = [self._guarantee(part, of_queue[part.queue], proven) for part in parts]
        return [parts[number] for number in possible(self.schema, self.wanted, guarantees)]

    def _guarantee(self, part: QueueSlice, known: list[Any], proven: Sequence[str]) -> Any:
        """What is true of all messages of a part, of the columns that the filter names.

        `known`: what is true of its queue.
        """
        found = list(known)
        if "queueOffset" in self.named and len(part):
            offset = pc.field("queueOffset")
            found += [offset >= part.start, offset <= part.stop - 1]
        for name in proven:
            limits = self.proven.of(name, part)
            if limits is not None:
                low, high = (pa.scalar(value, _PROVEN[name]) for value in limits)
                found += [pc.field(name) >= low, pc.field(name) <= high]
        return reduce(and_, found) if found else pc.scalar(True)

    def _of_queue(self, queue: QueueId) -> list[Any]:
        same = [
            pc.field(name) == value
            for name, value in self._same(queue)
            if name in self.named and is_utf8(str(value))
        ]
        return [reduce(and_, same)] if same else []

    def _same(self, queue: QueueId) -> Iterator[tuple[str, str | int]]:
        yield "brokerName", self.store.broker_name
        yield "topic", queue.topic
        yield "queueId", queue.queue_id
