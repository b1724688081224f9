"""The messages of stores as a `pyarrow.dataset.Dataset`: what others push down decides what is read."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from numbers import Integral
from operator import and_
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.arrow.column_definitions import TIMESTAMP, arrow_schema
from rmq_store.dataset.lazy_dataset import (
    Fragment,
    LazyDataset,
    implied_values,
    named_columns,
    named_texts,
    possible,
)
from rmq_store.errors import LOG, InvalidArgumentError, StoreError, is_utf8, nearest
from rmq_store.format.byte_layout import Ints
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import log_offsets_of_ids
from rmq_store.format.topics import is_system_topic
from rmq_store.index.index_writer import indexed_word
from rmq_store.reading.query import (
    PERMISSIVE,
    DamageMode,
    Query,
    ReadHow,
    handler_of,
    is_plain_tag,
    number,
    several,
)
from rmq_store.search.log_by_time import newest_time
from rmq_store.search.log_partitions import joined, offset_steps, parts_along_log
from rmq_store.search.plan_key_search import KeyPlan, plan_keys
from rmq_store.search.queue_selection import (
    CLOCK_SLACK_MS,
    DamageInTime,
    Search,
    at_log_offsets,
    selected_slices,
)
from rmq_store.store import MessageStore
from rmq_store.text.times import NotATimeError, Time, fixed_range, parse_time

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rmq_store.reading.query import ReadManner

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
                self._known |= dict.fromkeys(((column, value) for value in of_part), None)
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
        table = batches.read_all()
        if damage and not damaged:
            return False
        offsets = table.column("queueOffset").to_numpy()
        values = table.column(column).cast(pa.int64()).to_numpy()
        if len(offsets) and (offsets[1:] < offsets[:-1]).any():
            order = np.argsort(offsets, kind="stable")
            offsets, values = offsets[order], values[order]
        for part in parts:
            fine = list(steps(store, part, _FINE_STEP_OF_VALUES))
            limits = [None] * len(fine) if damage else _limits(offsets, values, fine)
            self._known |= {(column, value): of for value, of in zip(fine, limits, strict=True)}
            some = [limit for limit in limits if limit is not None]
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
    limits: list[_Limits | None] = []
    for part, (first, last) in zip(parts, rows.tolist(), strict=True):
        mine = values[first:last]
        whole = len(mine) == len(part) > 0
        limits.append((int(mine.min()), int(mine.max())) if whole else None)
    return limits


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
            parts = [
                piece for part in parts for piece in steps(self.store, part, step) if len(piece)
            ]
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


_FRAGMENT_BYTES = 64 << 20
_BODIES = frozenset({"body", "rawBody"})
_FIRST_BATCH_ROWS = 256  # a query with a limit does not wait for more


@dataclass(frozen=True, slots=True)
class StorePart:
    """What a scan reads of one store.

    `slices`: ranges of its queues. `words`: None, or words of which each row has one in KEYS or as
    UNIQ_KEY, so that the index leads to the rows. `tags`: None, or tags of which each row has one.
    `wanted`: the filter that the rows must match.
    """

    store: MessageStore
    slices: tuple[QueueSlice, ...]
    words: frozenset[str] | None = None
    tags: tuple[str, ...] | None = None
    wanted: Any = None


class MessageDataset(LazyDataset):
    """Messages of stores, as of one moment each. Reads what a query needs, and nothing before.

    - Only columns that the query or its filter names are read. If the queue entries have all of them
      (see `read_slices`), the log is not opened; `count_rows()` reads the queues alone.
    - A filter on brokerName, topic, queueId and queueOffset chooses the ranges of queues to read. One
      on commitLogOffset or storeTimestamp does too, by limits that are proven of each range: reading
      them takes the entries, or a look at each record's head, once a dataset. Other filters,
      whatever their form, read all messages.
    - A filter that only some values of `tags` can match reads the records of these tags, by the hashes in the
      entries; one that only some values of `msgId` can match, the records at their log offsets.
    - A filter that only some values of `keys` or `uniqKey` can match (up to 20 in a list) uses the
      index, as `keys` does, and reads the log where no index covers it. If the index has none of them
      and the log is short (256 MiB), the queues are read whole: a damaged index hides messages.
    - The filter is applied to every row that is read.
    - Damage raises the error of `read_slices` while rows are read, unless `on_damage` was given. Parts
      that a filter excludes are not read, and their damage is not seen; what a queue lost at an end is
      reported if the filter may match it. Bodies are read, and held
      against their CRC, only where a query names `body` or `rawBody`; `check_crc` decides otherwise.

    Rows have no promised order. Several threads may scan at a time: each scan opens the stores again.
    Not picklable; not to be joined or sorted by Arrow, which are tasks of the query engine or of the table.
    """

    def __init__(
        self,
        parts: Sequence[StorePart],
        schema: pa.Schema,
        how: ReadHow,
        search: Search,
        wanted: Any = None,
    ) -> None:
        """Use `MessageStore.messages` or `messages_of`."""
        place = schema.get_field_index("storeTimestamp")
        every = arrow_schema(["storeTimestamp"]) if place < 0 else []
        super().__init__(schema, pa.schema([*schema, *every]))
        self._parts, self._how = tuple(parts), how
        self._search, self._filter = search, wanted
        given = how.get("keys")  # of an empty list no row has one
        self._given: frozenset[str] | None = None if given is None else frozenset(given)
        self._proven = [ProvenLimits() for _ in parts]
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        messages = sum(len(piece) for part in self._parts for piece in part.slices)
        stores = ", ".join(repr(part.store.broker_name) for part in self._parts)
        kind = "" if self._filter is None else f", filter={self._filter}"
        return f"MessageDataset({stores}, up to {messages} messages{kind})"

    def _counted_by(self) -> pa.Field:
        damage = self._how.get("on_damage")
        return Query.of(False, columns=["queueId"], on_damage=damage).schema.field(0)

    def with_columns(self, columns: Sequence[str]) -> MessageDataset:
        """The same messages with other columns. Raises InvalidArgumentError for an unknown one."""
        schema = arrow_schema(columns)
        return MessageDataset(self._parts, schema, self._how, self._search, self._filter)

    def filter(self, expression: Any) -> MessageDataset:
        """The dataset with only the rows that match; see the class for what is read."""
        return self._with(self._wanted(expression))

    def _with(self, wanted: Any) -> MessageDataset:
        made = MessageDataset(self._parts, self._columns, self._how, self._search, wanted)
        made._proven, made._lock = self._proven, self._lock
        return made

    def _wanted(self, wanted: Any) -> Any:
        if self._filter is None or wanted is None:
            return self._filter if wanted is None else wanted
        return self._filter & wanted

    def plan(self, filter: Any = None) -> list[StorePart]:
        """What a scan with this filter reads of each store: ranges of queues, and words of the index.

        Reads queue entries and heads of records, where the filter needs their limits.
        """
        wanted = self._wanted(filter)
        if self._given is not None and not self._given:
            return [replace(part, slices=()) for part in self._parts]
        if wanted is None or _has_rows_about_damage(self._how):  # whose values are null
            return [replace(part, words=self._given) for part in self._parts]
        words: frozenset[str] | None = self._given
        for column in sorted(self._named(wanted) & {"keys", "uniqKey"}):
            words = words or self._words(wanted, column)
        if words is not None and not words:
            return [replace(part, slices=()) for part in self._parts]  # no value can match
        self._warn_of_unread_topics(wanted)
        self._warn_of_unknown_topics(wanted)
        tags, places = self._tags(wanted), self._places(wanted)
        parts = []
        for part, proven in zip(self._parts, self._proven, strict=True):
            with self._lock, part.store.reopen() as store:
                slices = self._planner(store, wanted, proven).narrowed(part.slices)
                if places is not None:
                    view = store.ranges_for(_sees_compacted(self._how))
                    slices = at_log_offsets(store, slices, places, view)
                narrowed = replace(part, slices=tuple(slices), words=words, tags=tags)
                parts.append(replace(narrowed, wanted=wanted))
        return parts

    def _named(self, wanted: Any) -> frozenset[str]:
        return named_columns([wanted], self._readable.names)

    def _planner(self, store: MessageStore, wanted: Any, proven: ProvenLimits) -> SlicePlanner:
        named, compacted = self._named(wanted), _sees_compacted(self._how)
        return SlicePlanner(store, self._readable, wanted, named, proven, compacted)

    def _words(self, wanted: Any, column: str) -> frozenset[str] | None:
        """Words of KEYS, or UNIQ_KEYs, of which each row that matches has one; None if unknown."""
        values = implied_values(self._readable, wanted, column)
        if values is None:
            return None
        words = [indexed_word(value) if column == "keys" else value for value in values]
        return None if "" in words else frozenset(words)

    def _tags(self, wanted: Any) -> tuple[str, ...] | None:
        """Tags of which each row that matches has one; None if unknown."""
        values = self._values(wanted, "tags")
        return None if not values or not all(map(is_plain_tag, values)) else tuple(sorted(values))

    def _places(self, wanted: Any) -> frozenset[int] | None:
        """Log offsets at which each row that matches has its record; None if unknown."""
        values = self._values(wanted, "msgId")
        return None if values is None else log_offsets_of_ids(values)

    def _values(self, wanted: Any, column: str) -> frozenset[str] | None:
        if column not in self._named(wanted):
            return None
        return implied_values(self._readable, wanted, column)

    def _warn_of_unread_topics(self, wanted: Any) -> None:
        """A filter may name a topic of the broker, which is not among the topics that are read."""
        if self._search.topics is not None or self._search.include_system_topics:
            return
        for part in self._parts:
            topics = set(part.store.topics()) - {piece.queue.topic for piece in part.slices}
            for topic in sorted(topics & named_texts(wanted)):
                LOG.warning("%s is a topic of the broker, which this query does not read", topic)

    def _warn_of_unknown_topics(self, wanted: Any) -> None:
        """A misspelt topic is no error in a query, and has no rows."""
        named = implied_values(self._readable, wanted, "topic") or frozenset()
        views = [part.store.view for part in self._parts]
        if all(any(view.queues_of(topic) for view in views) for topic in named):
            return
        topics = set[str]().union(*(view.topics.every for view in views))
        for topic in sorted(named - topics):
            LOG.warning(
                "there is no topic %r. %s", topic, nearest(topic, topics, last=is_system_topic)
            )

    def _batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        return self._read_all(self.plan(wanted), columns)

    @property
    def may_be_encoded(self) -> bool:
        """Whether `encoded_batches` has dictionaries; not in a mode of damage."""
        return not isinstance(handler_of(self._how.get("on_damage")), DamageMode)

    def encoded_batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        """As the batches of a scan, but brokerName and topic are dictionaries."""
        return self._read_all(self.plan(self._wanted(wanted)), columns, encoded=True)

    def _read_all(
        self, parts: Iterable[StorePart], columns: Sequence[str], *, encoded: bool = False
    ) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from self._read(part, columns, encoded=encoded)

    def _read(
        self, part: StorePart, columns: Sequence[str], *, encoded: bool = False
    ) -> Iterator[pa.RecordBatch]:
        if not part.slices:
            return
        with part.store.reopen() as store, store.refusing_replacement():
            how = self._how.copy()
            how["columns"] = columns
            if encoded:
                how["encoded"] = True
            how.setdefault("check_crc", not _BODIES.isdisjoint(columns))
            if not isinstance(how.get("on_damage"), str):
                how["concerns"] = DamageInTime(store, self._search)
            how["keys"], how["tags"] = part.words, part.tags
            slices: Sequence[QueueSlice] = part.slices
            if part.words:
                compacted = _sees_compacted(how)
                plan = plan_keys(store, slices, part.words, compacted=compacted)
                if plan is not None:  # else nearly every message has one of the words
                    slices = _places(store, plan, compacted)
                    how["check_ends"] = False
            for batch in store.read_slices(slices, **how):
                if batch.num_rows:
                    yield batch

    def get_fragments(self, filter: Any = None) -> Iterator[MessageFragment]:
        """The parts of the log that have rows which match, each to be scanned by itself."""
        for part in self.plan(filter):
            for piece in _pieces(part, _sees_compacted(self._how)):
                yield MessageFragment(self, piece)


class MessageFragment(Fragment):
    """A part of a dataset: a slice of the log of one store."""

    def __init__(self, dataset: MessageDataset, part: StorePart) -> None:
        """Use `MessageDataset.get_fragments`."""
        super().__init__(dataset)
        self._messages, self.part = dataset, part

    def __repr__(self) -> str:
        return f"MessageFragment({self.part.store.broker_name!r}, {len(self.part.slices)} slices)"

    def _batches(self, columns: Sequence[str], wanted: Any) -> Iterator[pa.RecordBatch]:
        return self._messages._read(self.part, columns)


def messages_of(
    stores: Sequence[MessageStore],
    topics: str | Sequence[str] | None = None,
    queue_ids: Collection[int] | None = None,
    *,
    since: int | str | None = None,
    until: int | str | None = None,
    columns: Sequence[str] | None = None,
    include_system_topics: bool = False,
    **how: Unpack[ReadManner],
) -> MessageDataset:
    """The messages of several stores as one dataset; a filter on brokerName chooses among them.

    The arguments are those of `MessageStore.messages`.
    """
    how.setdefault("unwrap_batches", True)
    named, words = several("topics", topics), several("keys", how.get("keys"))
    times = _time("since", since), _time("until", until)
    since, until = fixed_range(*times, partial(newest_time, stores), names=("since", "until"))
    if words is not None:
        how["keys"] = words
    first: ReadManner = {"first_batch_rows": _FIRST_BATCH_ROWS, "log_order": False}
    asked = cast("ReadHow", {**first, **how})
    search = Search(
        named,
        several("queue_ids", queue_ids, Integral),
        since,
        until,
        include_system_topics=include_system_topics,
        keys=words or (),
        compacted=_sees_compacted(asked),
    )
    schema = Query.of(False, columns=columns, **how).schema
    wanted = None
    for limit, is_first in ((since, True), (until, False)):
        if limit is not None:
            time, stored = pa.scalar(limit, pa.int64()).cast(TIMESTAMP), pc.field("storeTimestamp")
            condition = stored >= time if is_first else stored < time
            wanted = condition if wanted is None else wanted & condition
    if wanted is not None and _has_rows_about_damage(asked):
        wanted |= pc.field("storeTimestamp").is_null()
    parts = [
        StorePart(store, tuple(selected_slices(store, search, CLOCK_SLACK_MS))) for store in stores
    ]
    return MessageDataset(parts, schema, asked, search, wanted)


def _time(name: str, given: int | str | None) -> Time | None:
    """The value of an argument that takes a time. Raises InvalidArgumentError for another."""
    if not isinstance(given, str):
        moment: int | None = number(name, given)
        return moment
    try:
        return parse_time(given)
    except NotATimeError as error:
        raise InvalidArgumentError(reason=f"{name}={given!r} {error}") from None


def _has_rows_about_damage(how: ReadHow) -> bool:
    taker = handler_of(how.get("on_damage"))
    return isinstance(taker, DamageMode) and taker.mode == PERMISSIVE


def _sees_compacted(how: ReadHow) -> bool:
    return how.get("compacted", True)


def _places(store: MessageStore, plan: KeyPlan, compacted: bool) -> list[QueueSlice]:
    at = store.ranges_for(compacted).offset_at_log
    return joined((*plan.hits, *plan.beside_hits(at)))


def _pieces(part: StorePart, compacted: bool) -> Iterator[StorePart]:
    """The part cut into slices of the log."""
    if part.words is not None:
        yield part
        return
    with part.store.reopen() as store:
        view = store.ranges_for(compacted)
        for slices in parts_along_log(store, part.slices, _FRAGMENT_BYTES, view):
            yield replace(part, slices=slices)
