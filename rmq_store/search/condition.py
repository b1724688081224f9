"""What a filter of messages says of a store: which parts of its queues to read, and where an index leads.

Filters of datasets, of SQL and of Spark become one expression of Arrow, and no expression is taken apart
here. Arrow simplifies a filter by what is guaranteed of a file; a dataset of files that nobody opens, each
with what is guaranteed of one part of a store, so says which parts can have a row. What the text of a filter
shows is only a hint, or more than what is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_definitions import TIMESTAMP
from rmq_store.errors import is_utf8
from rmq_store.files.parallel import looked_up_in_parallel
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import log_offsets_of_ids
from rmq_store.index.index_writer import indexed_word
from rmq_store.reading.query import is_plain_tag
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import joined_ranges, queue_offset_steps
from rmq_store.search.selection import CLOCK_SLACK_MS, slices_at_log_offsets
from rmq_store.snapshot.compacted_view import QueueSource

_IN_ORDER = {"queueOffset": pa.int64(), "commitLogOffset": pa.int64(), "storeTimestamp": TIMESTAMP}
"""Columns whose values ascend in a queue; the last one unless the broker's clock is set back."""

# Messages of a part: of the first ones that are looked at, where times that go back have to be seen; of those
# in them; and the least. To look for a time takes as long as to read a hundred.
_FIRST_STEP, _STEP, _LEAST_STEP, _LEAST_STEP_OF_TIMES = 1 << 11, 1 << 9, 1 << 5, 1 << 8
_MOST_PARTS = 1 << 13
_MOST_PARTS_FAR = 1 << 6  # where a look is a request
_MOST = (1 << 63) - 1  # of a value
_PIECES = 4  # of each part at least: a few messages may be in two of them


@dataclass(frozen=True, slots=True)
class Condition:
    """A filter of messages, and what each message that matches it has.

    One of `words` as a word of KEYS or as UNIQ_KEY, one of `tags`, its record at one of the log offsets
    `places`; None where the filter does not say it. Of none of them no message has one.
    """

    schema: pa.Schema
    expression: Any
    named: frozenset[str]  # columns that the filter may name, and that narrow
    words: frozenset[str] | None
    tags: tuple[str, ...] | None
    places: frozenset[int] | None

    @classmethod
    def of(cls, schema: pa.Schema, expression: Any, *, by_time: bool = False) -> Condition:
        """That of a filter over the columns of `schema`. Raises what Arrow raises for another one.

        `by_time`: a filter on storeTimestamp narrows too, and misses messages where the broker's clock was
        set back by more than CLOCK_SLACK_MS. Nothing shows where without a look at each record.
        """
        named = columns_in_expressions([expression], schema.names)

        def values(column: str) -> frozenset[str] | None:
            return values_of_all_matches(schema, expression, column) if column in named else None

        words: frozenset[str] | None = None
        for column, word in (("keys", indexed_word), ("uniqKey", str)):
            own = None if words else values(column)
            if own is not None and "" not in (those := frozenset(map(word, own))):
                words = those
        of_tags, ids = values("tags"), values("msgId")
        plain = of_tags and all(map(is_plain_tag, of_tags))
        places = None if ids is None else log_offsets_of_ids(ids)
        tags = tuple(sorted(of_tags or ())) if plain else None
        narrowing = named if by_time else named - {"storeTimestamp"}
        return cls(schema, expression, narrowing, words, tags, places)

    def may_match(self, broker_name: str) -> bool:
        """Whether a message of that broker can match."""
        if "brokerName" not in self.named:
            return True
        is_of_broker = pc.field("brokerName") == broker_name
        return bool(parts_that_may_match(self.schema, self.expression, [is_of_broker]))

    def narrowed(
        self, store: StoreReader, ranges: Sequence[QueueSlice], view: QueueSource
    ) -> list[QueueSlice]:
        """The parts of some ranges of `view` that can have a message that matches.

        Reads entries, and heads of records for times, at the ends of parts.
        """
        parts = joined_ranges(_Narrowing(self, store, view).of(ranges))
        return (
            parts if self.places is None else slices_at_log_offsets(store, parts, self.places, view)
        )


class _Narrowing:
    """Narrows ranges of queues of one store."""

    def __init__(self, condition: Condition, store: StoreReader, view: QueueSource) -> None:
        self._condition, self._store, self._view = condition, store, view
        self._ordered = [name for name in _IN_ORDER if name in condition.named]
        self._values: dict[tuple[str, QueueId, int], int | None] = {}

    def of(self, ranges: Sequence[QueueSlice]) -> list[QueueSlice]:
        """The parts of `ranges` that can have a message that matches, in their order."""
        slices = self._possible(ranges, ())
        if not self._ordered:
            return slices
        least = _LEAST_STEP_OF_TIMES if "storeTimestamp" in self._ordered else _LEAST_STEP
        most = _MOST_PARTS if self._store.log.chain.cost.looks_at_once == 1 else _MOST_PARTS_FAR
        messages, a_part = sum(map(len, slices)), _FIRST_STEP
        while messages:
            count = max(min(messages // a_part, most), _PIECES * len(slices))
            step = max(least, -(-messages // count))
            pieces = [piece for slice_ in slices for piece in self._steps(slice_, step)]
            slices = joined_ranges(self._possible(pieces, self._ordered))
            before, messages, a_part = messages, sum(map(len, slices)), _STEP
            if step == least or messages > before * 3 // 4:
                break
        return [slice_ for slice_ in slices if len(slice_)]

    def _steps(self, slice_: QueueSlice, step: int) -> Iterator[QueueSlice]:
        """The part cut at multiples of `step`; none for an empty one."""
        first = min(slice_.stop, slice_.start - slice_.start % step + step)
        cuts = queue_offset_steps(self._store, first, slice_.stop, step)
        for start, stop in pairwise([slice_.start, first, *cuts[1:], slice_.stop]):
            if start < stop:
                yield QueueSlice(slice_.queue, start, stop)

    def _possible(self, slices: Sequence[QueueSlice], ordered: Sequence[str]) -> list[QueueSlice]:
        if not slices:
            return []
        # The values of a part end with those of the next message, where a part follows; else with its last.
        starts = {(slice_.queue, slice_.start) for slice_ in slices}
        ends = [
            (slice_.queue, slice_.stop - ((slice_.queue, slice_.stop) not in starts))
            for slice_ in slices
        ]
        self._look([(name, *place) for place in (*starts, *ends) for name in ordered])
        of_queue = {slice_.queue: self._of_queue(slice_.queue) for slice_ in slices}
        facts_of_slices = (
            [*of_queue[slice_.queue], *self._of_part(slice_, end, ordered)]
            for slice_, (_, end) in zip(slices, ends, strict=True)
        )
        guarantees = [reduce(and_, facts, pc.scalar(True)) for facts in facts_of_slices]
        wanted = self._condition
        chosen = parts_that_may_match(wanted.schema, wanted.expression, guarantees)
        return [slices[number] for number in chosen]

    def _of_queue(self, queue: QueueId) -> list[Any]:
        """What is true of all messages of a queue."""
        same = (
            ("brokerName", self._store.broker_name),
            ("topic", queue.topic),
            ("queueId", queue.queue_id),
        )
        return [
            pc.field(name) == value
            for name, value in same
            if name in self._condition.named and is_utf8(str(value))
        ]

    def _of_part(self, slice_: QueueSlice, end: int, ordered: Sequence[str]) -> Iterator[Any]:
        """What is true of all messages of a part, by the columns that are in order. `end`: the queue offset
        of the last one or of the next."""
        for name in ordered:
            first, last = (self._values[name, slice_.queue, at] for at in (slice_.start, end))
            if first is not None and last is not None and first <= last:
                slack = CLOCK_SLACK_MS if name == "storeTimestamp" else 0
                low, high = max(first - slack, -_MOST - 1), min(last + slack, _MOST)
                yield pc.field(name) >= pa.scalar(low, _IN_ORDER[name])
                yield pc.field(name) <= pa.scalar(high, _IN_ORDER[name])

    def _look(self, places: Sequence[tuple[str, QueueId, int]]) -> None:
        """Note the values at some places: of a column, at a queue offset."""
        unknown = [place for place in dict.fromkeys(places) if place not in self._values]
        at_once = self._store.log.chain.cost.looks_at_once
        self._values |= looked_up_in_parallel(lambda place: self._value(*place), unknown, at_once)

    def _value(self, name: str, queue: QueueId, offset: int) -> int | None:
        if name == "queueOffset":
            return offset
        if name == "storeTimestamp":
            return self._view.store_time(queue, offset)
        entry = self._view.entry_at(queue, offset)
        return None if entry is None else entry.log_offset


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
MOST_VALUES = 1 << 10
LISTED_AT_ONCE = 20
"""So many values of `isin` its text names. Arrow narrows by longer lists if they are several of these."""


def parts_that_may_match(schema: pa.Schema, wanted: Any, guarantees: Sequence[Any]) -> list[int]:
    """Which of some parts can have a row that matches the filter `wanted`, by what is true of all rows
    of each: expressions over the columns of `schema`. Ascending numbers.

    Raises what Arrow raises for a filter that does not fit the schema.
    """
    parts = ds.FileSystemDataset.from_paths(
        [str(number) for number in range(len(guarantees))],
        schema=schema,
        format=ds.IpcFileFormat(),
        filesystem=fs.LocalFileSystem(),
        partitions=list(guarantees),
    )
    return sorted(int(part.path) for part in parts.get_fragments(filter=wanted))


def columns_in_expressions(expressions: Iterable[Any], names: Iterable[str]) -> frozenset[str]:
    """The columns of `names` that the expressions may refer to: all that their texts have as a word."""
    text = " ".join(map(str, expressions))
    if "FieldRef" in text or "FieldPath" in text:  # by number, or nested
        return frozenset(names)
    words = set(re.findall(r"\w+", text))
    return frozenset(name for name in names if name in words)


def quoted_texts(wanted: Any) -> frozenset[str]:
    """Texts between quotes in the filter; of a long list only the ends."""
    return frozenset(re.sub(r"\\(.)", r"\1", text) for text in _QUOTED.findall(str(wanted)))


def values_of_all_matches(schema: pa.Schema, wanted: Any, column: str) -> frozenset[str] | None:
    """Values of a column of text of which every row that matches the filter has one; None if unknown.

    It is proven: no other value, and no null, can match.
    """
    values = sorted(quoted_texts(wanted))
    if not values or len(values) > MOST_VALUES:
        return None
    field = pc.field(column)
    between = [(field > low) & (field < high) for low, high in pairwise(values)]
    others = [field < values[0], *between, field > values[-1], field.is_null()]
    if parts_that_may_match(schema, wanted, others):
        return None
    left = parts_that_may_match(schema, wanted, [field == value for value in values])
    return frozenset(values[number] for number in left)
