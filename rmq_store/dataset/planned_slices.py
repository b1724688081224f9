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
from rmq_store.dataset.arrow_planner import possible
from rmq_store.errors import StoreError
from rmq_store.escaping import is_utf8
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.search.log_partitions import joined, offset_steps
from rmq_store.store import MessageStore

STEP = 1 << 14  # messages of a queue whose places and times are proven by one read
_FINE_STEP = 1 << 9
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

    def of(
        self, store: MessageStore, column: str, part: QueueSlice, *, compacted: bool
    ) -> _Limits | None:
        """The limits in `part`, which is one of `steps`, or one of its fine ones.

        `compacted`: as in the read of the rows, which is the same for all parts.
        """
        if (column, part) not in self._known:
            self._read(store, column, part, compacted)
        return self._known[column, part]

    def _read(self, store: MessageStore, column: str, part: QueueSlice, compacted: bool) -> None:
        fine = list(steps(store, part, _FINE_STEP))
        if column == "storeTimestamp" and store.log.chain.cost.looks_at_once > 1:
            self._known |= dict.fromkeys(((column, one) for one in (part, *fine)), None)
            return
        damage: list[StoreError] = []
        batches = store.read_slices(
            [part],
            columns=["queueOffset", column],
            check_crc=False,
            check_ends=False,
            compacted=compacted,
            on_damage=damage.append,
        )
        found = batches.read_all()
        offsets = found.column("queueOffset").to_numpy()
        values = found.column(column).cast(pa.int64()).to_numpy()
        for one in (part, *fine):
            mine = values[(offsets >= one.start) & (offsets < one.stop)] if one != part else values
            whole = len(mine) == len(one) and len(mine) > 0 and not damage
            limits = (int(np.min(mine)), int(np.max(mine))) if whole else None
            self._known[column, one] = limits


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
        """The parts of `ranges` that can have a message that matches; a range without messages stays
        if one of its queue could."""
        kept = self._possible(ranges, ())
        ordered = [name for name in _PROVEN if name in self.named]
        if not ordered and "queueOffset" not in self.named:
            return joined(kept)
        empty, parts = (
            [part for part in kept if not len(part)],
            [part for part in kept if len(part)],
        )
        for step in (STEP, _FINE_STEP):
            # Too many parts take longer to plan than to read.
            if sum(-(-len(part) // step) for part in parts) > _MOST_PARTS:
                break
            parts = [one for part in parts for one in steps(self.store, part, step) if len(one)]
            for count in range(len(ordered) + 1):
                parts = self._possible(parts, ordered[:count])
        return joined((*empty, *parts))

    def _possible(self, parts: Sequence[QueueSlice], proven: Sequence[str]) -> list[QueueSlice]:
        if not parts:
            return []
        guarantees = [self._guarantee(part, proven) for part in parts]
        return [parts[number] for number in possible(self.schema, self.wanted, guarantees)]

    def _guarantee(self, part: QueueSlice, proven: Sequence[str]) -> Any:
        """What is true of all messages of a part, of the columns that the filter names."""
        known = [
            pc.field(name) == value
            for name, value in self._same(part.queue)
            if name in self.named and is_utf8(str(value))
        ]
        if "queueOffset" in self.named and len(part):
            offset = pc.field("queueOffset")
            known += [offset >= part.start, offset <= part.stop - 1]
        for name in proven:
            limits = self.proven.of(self.store, name, part, compacted=self.compacted)
            if limits is not None:
                low, high = (pa.scalar(value, pa.int64()).cast(_PROVEN[name]) for value in limits)
                known += [pc.field(name) >= low, pc.field(name) <= high]
        return reduce(and_, known) if known else pc.scalar(True)

    def _same(self, queue: QueueId) -> Iterator[tuple[str, str | int]]:
        yield "brokerName", self.store.broker_name
        yield "topic", queue.topic
        yield "queueId", queue.queue_id
