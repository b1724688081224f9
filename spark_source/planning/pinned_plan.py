"""What a query reads, resolved once: which stores, which parts, and how. Plain picklable data."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload
from uuid import uuid4

from rmq_store import MessageStore, StoreSnapshot
from rmq_store.arrow.column_definitions import column_names, needs_log
from rmq_store.escaping import LOG
from rmq_store.files.remote.remote_store import Listing
from rmq_store.files.remote.uri_filesystem import StorageOptions
from rmq_store.format.queues import QueueSlice
from rmq_store.index.items_of_messages import indexed_word
from rmq_store.reading.log_reader import Limits
from rmq_store.reading.query import warn_of_tags
from rmq_store.search.log_by_time import newest_time
from rmq_store.snapshot.snapshot import collector_paused
from spark_source.options.definitions import COMMITLOG
from spark_source.options.parse import SourceOptions
from spark_source.planning.selection import (
    LogLimits,
    WantedQueues,
    check_brokers,
    check_names,
    select_ranges,
)
from spark_source.planning.stores import LeftOut, Target, open_all


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """A store and the offsets it had when the source was created. Small and picklable."""

    path: str
    broker_conf: str | None
    snapshot: StoreSnapshot
    broker_name: str
    storage_options: StorageOptions | None = None
    listing: Listing | None = None  # the files at that time, for a store in an object store

    def open(self) -> MessageStore:
        """Open the store with the pinned offsets. Raises OtherStoreError for another store."""
        return MessageStore.open(
            self.path,
            broker_name=self.broker_name,
            broker_conf=self.broker_conf,
            snapshot=self.snapshot,
            queues=bool(self.snapshot.queues),
            storage_options=self.storage_options,
            listing=self.listing,
        )


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read from one store: `limits` if the log is the source, else `ranges`.

    `words` come from filters: a message must have one of them in KEYS or as UNIQ_KEY. Unlike the
    option `keys`, they only narrow where to look.
    """

    store: PinnedStore
    ranges: tuple[QueueSlice, ...]
    asked: SourceOptions
    limits: Limits | None = None
    words: frozenset[str] | None = None
    nothing: bool = False  # the filters exclude everything
    has_errors: bool = False  # opening the store saw something to be missing at the ends of queues
    is_wave: bool = False  # a job reads the rest of the selection by other plans

    @property
    def places(self) -> frozenset[str] | None:
        """The words to look up in the index."""
        return (
            self.words if self.asked.keys is None else frozenset(map(indexed_word, self.asked.keys))
        )

    def reads_log(self, columns: Sequence[str] | None = None) -> bool:
        """Whether a read of `columns` (default: those of the option) opens the commitLog."""
        asked = self.asked
        if self.limits is not None or asked.verify_queue:
            return True
        if asked.tags is not None or asked.keys is not None:
            return True
        return needs_log(column_names(asked.columns) if columns is None else columns)


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What is read from all stores, and the stores left out.

    Every task gets it and reads one store, so each plan is pickled for itself, and unpickled when it
    is used: those of 1,000 stores take 1 ms then, not 160. `load`: a name of its own, for all readers.
    """

    stores: Sequence[ReadPlan]
    left_out: tuple[LeftOut, ...] = ()
    load: str = field(default_factory=lambda: uuid4().hex, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, ([pickle.dumps(one) for one in self.stores], self.left_out, self.load)


def _unpickled(stores: list[bytes], left_out: tuple[LeftOut, ...], load: str) -> QueryPlan:
    return QueryPlan(_PickledPlans(stores), left_out, load)


class _PickledPlans(Sequence[ReadPlan]):
    """Plans that are unpickled one by one."""

    def __init__(self, pickled: list[bytes]) -> None:
        self._pickled = pickled
        self._plans: dict[int, ReadPlan] = {}

    def __len__(self) -> int:
        return len(self._pickled)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, which: int) -> ReadPlan: ...

    @overload
    def __getitem__(self, which: slice) -> list[ReadPlan]: ...

    def __getitem__(self, which: int | slice) -> ReadPlan | list[ReadPlan]:
        if isinstance(which, slice):
            return [self[number] for number in range(len(self))[which]]
        number = range(len(self))[which]
        if number not in self._plans:
            self._plans[number] = pickle.loads(self._pickled[number])
        return self._plans[number]


@collector_paused()
def pin_all(asked: SourceOptions) -> QueryPlan:
    """The plan for these options, with the stores as they are now."""
    warn_of_tags(asked.tags)
    opened, left_out = open_all(asked)
    try:
        asked = asked.with_fixed_times(lambda: newest_time(store for _, store in _in_turn(opened)))
        check_brokers([store for _, store in opened], asked)
        if asked.source != COMMITLOG:
            for _, store in _in_turn(opened):
                for warning in (*store.opening.losses(), *store.opening.notes()):
                    LOG.warning("%s: %s", store.broker_name, warning)
            check_names([store for _, store in opened], asked)
        plans = tuple(_plan_of(target, store, asked) for target, store in _in_turn(opened))
    finally:
        for _, store in opened:
            store.close()
    return QueryPlan(plans, tuple(left_out))


def _in_turn(
    opened: Iterable[tuple[Target, MessageStore]],
) -> Iterator[tuple[Target, MessageStore]]:
    """The opened stores, of which only the one in use has files open: there may be thousands."""
    for target, store in opened:
        yield target, store
        store.release_files()


def pin(asked: SourceOptions) -> ReadPlan:
    """The plan for these options if there is one store."""
    (plan,) = pin_all(asked).stores
    return plan


def _plan_of(target: Target, store: MessageStore, asked: SourceOptions) -> ReadPlan:
    limits = None
    ranges: tuple[QueueSlice, ...] = ()
    snapshot = store.snapshot()
    if asked.source == COMMITLOG:
        limits = LogLimits(WantedQueues.of(store, asked), asked)
    else:
        selected = select_ranges(store, asked)
        ranges = tuple(part for part in selected if len(part))
        if asked.table is None and not asked.verify_queue:  # these compare the log with all queues
            snapshot = store.opening.only(part.queue for part in selected)
    pinned = PinnedStore(
        target.path,
        target.broker_conf,
        snapshot,
        store.broker_name,
        asked.storage_options,
        store.listing(),
    )
    has_errors = limits is None and store.opening.has_errors
    return ReadPlan(pinned, ranges, asked, limits, has_errors=has_errors)


def replaced(plan: QueryPlan, **changed: Any) -> QueryPlan:
    """The plan with some options changed."""
    stores = (replace(one, asked=replace(one.asked, **changed)) for one in plan.stores)
    return replace(plan, stores=tuple(stores))
