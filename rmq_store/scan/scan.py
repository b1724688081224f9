"""What is read of which stores, resolved once: an immutable value that plans tasks and reads them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from uuid import uuid4

import pyarrow as pa

from rmq_store.arrow.column_definitions import column_names
from rmq_store.config.locate import broker_names_of_paths, matching_folders
from rmq_store.errors import (
    LOG,
    InvalidArgumentError,
    StoreError,
    UnknownQueueError,
    nearest,
    shown_path,
)
from rmq_store.files.remote.uri_filesystem import absolute_path
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.reading.query import warn_of_tags
from rmq_store.reading.store_reader import StoreReader
from rmq_store.scan.option_values import texts_by_name
from rmq_store.scan.options import COMMITLOG
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.scan.tasks import (
    DamageHandler,
    StoreScan,
    Task,
    read_share,
    reporting_shares,
    shares_of,
    tasks_of,
)
from rmq_store.search.condition import Condition
from rmq_store.search.log_partitions import newest_time
from rmq_store.search.selection import (
    QueueLimitsInLog,
    WantedQueues,
    extended_ranges,
    given_offsets_and_times,
    is_declared,
    queues_on,
    select_ranges,
    selected_queues,
)
from rmq_store.snapshot.known_topics import unknown_topic
from rmq_store.snapshot.snapshot import collector_paused


class TopicWithoutQueueError(UnknownQueueError):
    """A named topic has no queue: it has no message yet, or its queues are lost."""

    code = "RMQSTORE_TOPIC_WITHOUT_QUEUE"


def require_known_names(stores: Sequence[StoreReader], options: ScanOptions) -> None:
    """Check that every named topic and queue exists in at least one store.

    Raises UnknownQueueError or InvalidArgumentError, with the nearest name. TopicWithoutQueueError
    comes last: nothing else is wrong with the names then.
    """
    all_topics = {topic for store in stores for topic in store.view.topics.every}
    where = ", ".join(shown_path(str(store.path)) for store in stores)
    assign = options.assign or ()
    assigned = [queue for store in stores for queue in queues_on(store.broker_name, assign)]
    topics = dict.fromkeys([*(options.topics or ()), *(queue.topic for queue in assigned)])
    for topic in topics:
        if topic not in all_topics:
            raise unknown_topic(where, topic, all_topics)
    for queue in assigned:
        _check_queue(stores, queue, where)
    _check_all_selected(stores, options)
    for topic in topics:
        if not any(store.queues(topic) for store in stores):
            raise TopicWithoutQueueError(
                where,
                reason=f"topic {topic!r} has no queue, although topics.json has the topic: no message "
                "was dispatched to it, or its queues are lost",
                advice="source=commitlog reads what the log has of it, readStream waits for its first "
                "message",
            )


def require_named_brokers(stores: Sequence[StoreReader], options: ScanOptions) -> None:
    """Check that every named broker is one of the stores. Raises InvalidArgumentError."""
    brokers = {store.broker_name for store in stores}
    numbers = (by_queue.numbers for _, by_queue in given_offsets_and_times(options))
    queues = chain(options.assign or (), *numbers)
    named = {broker for broker, _ in queues if broker is not None}
    for broker in sorted(named - brokers):
        raise InvalidArgumentError(
            reason=f"no broker {broker!r} among the stores", advice=nearest(broker, brokers)
        )


def _check_queue(stores: Sequence[StoreReader], queue: QueueId, where: str) -> None:
    """Raise UnknownQueueError for a queue that has no files and that no topics.json includes."""
    if any(queue in store.queues(queue.topic) or is_declared(store, queue) for store in stores):
        return
    numbers = {q.queue_id for store in stores for q in store.queues(queue.topic)}
    raise UnknownQueueError(
        where,
        reason=f"topic {queue.topic!r} has no queue {queue.queue_id}",
        expected=f"one of {sorted(numbers)}",
        actual=queue.queue_id,
    )


def _check_all_selected(stores: Sequence[StoreReader], options: ScanOptions) -> None:
    """Check that every queue with its own offset or time is selected in at least one store."""
    if not any(by_queue.numbers for _, by_queue in given_offsets_and_times(options)):
        return
    chosen = {store.broker_name: set(selected_queues(store, options)) for store in stores}
    anywhere: set[QueueId] = set().union(*chosen.values())
    for option, by_queue in given_offsets_and_times(options):
        for broker, queue in by_queue.numbers:
            if queue not in (anywhere if broker is None else chosen[broker]):
                raise InvalidArgumentError(
                    reason=f"{option} names queue {queue.queue_id} of topic {queue.topic!r}, "
                    "which is not selected",
                    advice="Select it with 'subscribe' or 'assign', or leave out its offset",
                )


@dataclass(frozen=True, slots=True)
class StoreToOpen:
    """A store to open: its path, and the broker's name and configuration if given."""

    path: str
    broker_name: str | None = None
    broker_conf: str | None = None


@dataclass(frozen=True, slots=True)
class UnavailableStore:
    """A store that could not be opened and was left out (unavailableStores=skip)."""

    path: str
    broker_name: str | None
    reason: str


def stores_to_open(options: ScanOptions) -> list[StoreToOpen]:
    """The stores to open, by absolute paths, because executors have a working folder of their own. Raises
    InvalidArgumentError if a pattern matches none."""
    return [
        StoreToOpen(
            absolute_path(target.path),
            target.broker_name,
            target.broker_conf and absolute_path(target.broker_conf),
        )
        for target in _as_given(options)
    ]


def _as_given(options: ScanOptions) -> list[StoreToOpen]:
    if options.stores is not None:
        confs = _confs_by_name(options.broker_conf, options.stores)
        return [StoreToOpen(path, name, confs.get(name)) for name, path in options.stores.items()]
    found = (matching_folders(pattern, options.storage_options) for pattern in options.paths)
    paths = list(dict.fromkeys(chain.from_iterable(found)))
    if len(paths) > 1 and options.broker_name is not None:
        raise InvalidArgumentError(
            reason=f"one brokerName was given for {len(paths)} stores",
            actual=options.broker_name,
            advice=_stores_advice(paths),
        )
    if options.broker_conf is not None and options.broker_conf.lstrip().startswith("{"):
        raise InvalidArgumentError(
            reason="brokerConf is by broker name, but the stores have only paths",
            advice=_stores_advice(paths),
        )
    if len(paths) > 1 and options.broker_conf is not None:
        raise InvalidArgumentError(
            reason=f"one brokerConf was given for {len(paths)} stores",
            actual=options.broker_conf,
            advice=_stores_advice(paths) + ", and brokerConf as JSON by the same names",
        )
    if len(paths) == 1:
        return [StoreToOpen(paths[0], options.broker_name, options.broker_conf)]
    return [
        StoreToOpen(path, name)
        for path, name in zip(paths, broker_names_of_paths(paths), strict=True)
    ]


def _confs_by_name(value: str | None, names: Mapping[str, str]) -> dict[str, str]:
    if value is None:
        return {}
    if not value.lstrip().startswith("{"):
        if len(names) == 1:
            return dict.fromkeys(names, value)
        raise InvalidArgumentError(
            reason="one brokerConf was given for several stores",
            actual=value,
            advice='Give JSON by broker name: {"broker-a": "/data/a/broker.conf"}',
        )
    try:
        confs = texts_by_name(value, '{"broker-a": "/data/a/broker.conf"}')
    except ValueError as error:
        raise InvalidArgumentError(reason=f"option 'brokerConf' {error}", actual=value) from None
    for name in confs:
        if name not in names:
            raise InvalidArgumentError(
                reason=f"brokerConf names {name!r}, which is not one of the stores",
                advice=nearest(name, names),
            )
    return confs


def open_all(
    options: ScanOptions, stack: ExitStack
) -> tuple[list[StoreReader], list[UnavailableStore]]:
    """Open every store, to be closed with `stack`. Returns the opened stores, and those left out.

    Raises the error of a store that cannot be opened unless unavailableStores is `skip`, and
    InvalidArgumentError if two stores have the same name or none is left.
    """
    opened: list[StoreReader] = []
    paths: list[str] = []
    left_out: list[UnavailableStore] = []
    last: StoreError | None = None
    for target in stores_to_open(options):
        try:
            store = StoreReader.open(
                target.path,
                broker_name=target.broker_name,
                broker_conf=target.broker_conf,
                queues=options.source != COMMITLOG,
                storage_options=options.storage_options,
            )
            opened.append(stack.enter_context(store))
            paths.append(target.path)
            store.release_files()
        except StoreError as error:
            if options.unavailable_stores == "fail":
                raise
            LOG.warning("left out a store that cannot be opened: %s", error)
            left_out.append(UnavailableStore(target.path, target.broker_name, str(error)))
            last = error
    names = [store.broker_name for store in opened]
    require_one_name_each(list(zip(names, paths, strict=True)))
    if not opened and last is not None:
        raise last
    return opened, left_out


def require_one_name_each(named: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidArgumentError if two of some (broker name, path) have one name."""
    by_name: dict[str, str] = {}
    for name, path in named:
        if name in by_name:
            raise InvalidArgumentError(
                path,
                reason=f"two stores have the broker name {name!r}; the other is {by_name[name]}",
                advice=_stores_advice([path for _, path in named]),
            )
        by_name[name] = path


def _stores_advice(paths: Sequence[str]) -> str:
    example = {f"broker-{letter}": path for letter, path in zip("ab", paths, strict=False)}
    return f"Name them: option stores = {json.dumps(example)}"


def _in_turn(opened: Iterable[StoreReader]) -> Iterator[StoreReader]:
    """The opened stores, of which only the one in use has files open: there may be thousands."""
    for store in opened:
        yield store
        store.release_files()


def _store_scan(store: StoreReader, options: ScanOptions, *, extended: bool) -> StoreScan:
    limits = None
    ranges: tuple[QueueSlice, ...] = ()
    snapshot = store.snapshot()
    if options.source == COMMITLOG:
        limits = QueueLimitsInLog(WantedQueues.of(store, options))
    else:
        selected = select_ranges(store, options)
        if extended and options.is_timed:
            selected = extended_ranges(store, options, selected)
        ranges = tuple(slice_ for slice_ in selected if len(slice_))
        # A table, and verifyQueue, compare the log with all queues.
        if options.table is None and not options.verify_queue:
            snapshot = store.opening.only(slice_.queue for slice_ in selected)
    pinned = store.pinned(snapshot)
    errors = store.opening.errors(store.snapshot().queues) if limits is None else ()
    return StoreScan(pinned, ranges, options, limits, may_have_errors=any(True for _ in errors))


@dataclass(frozen=True, slots=True)
class Scan:
    """What is read of some stores, as they were when the scan was made: messages by the options of the Spark
    source.

    `left_out`: stores that could not be opened. `load`: a name of its own, also of narrowed ones. A task may
    be read in another process, and reads few stores: so what the scan says of each store is pickled for
    itself, and unpickled when it is used. 1,000 stores take 1 ms then, not 160.
    """

    stores: Sequence[StoreScan]
    left_out: tuple[UnavailableStore, ...] = ()
    load: str = field(default_factory=lambda: uuid4().hex, compare=False)

    @classmethod
    @collector_paused()
    def of(cls, options: ScanOptions, *, extended: bool = False) -> Scan:
        """The scan by what `parse_options` gives, of the stores as they are now. Raises StoreError.

        `extended`: ranges of times have all of their messages where a clock was set back a little.
        A warning goes to the log for what opening a store sees, and for stores that are left out.
        """
        warn_of_tags(options.tags)
        with ExitStack() as stack:
            opened, left_out = open_all(options, stack)
            options = options.with_fixed_times(lambda: newest_time(_in_turn(opened)))
            require_named_brokers(opened, options)
            if options.source != COMMITLOG:
                for store in _in_turn(opened):
                    for warning in (*store.opening.losses(), *store.opening.notes()):
                        LOG.warning("%s: %s", store.broker_name, warning)
                require_known_names(opened, options)
            stores = tuple(
                _store_scan(store, options, extended=extended) for store in _in_turn(opened)
            )
        return cls(stores, tuple(left_out))

    def is_far(self, task: Task) -> bool:
        """Whether a task reads from an object store, where each look is a request."""
        return any(self.stores[share.store].store.listing is not None for share in task)

    def with_options(self, **changed: Any) -> Scan:
        """The scan with some options changed that select nothing."""
        stores = (
            replace(store, options=replace(store.options, **changed)) for store in self.stores
        )
        return replace(self, stores=tuple(stores))

    def narrowed(self, condition: Condition) -> Scan:
        """The scan of what can match a filter, which whoever reads it applies again."""
        # Stores keep their positions, because shares refer to them.
        return replace(self, stores=tuple(store.narrowed(condition) for store in self.stores))

    def plan(self, columns: Sequence[str] | None = None) -> list[Task]:
        """The tasks, each for one process: about `maxBytesPerPartition` of selected records, or small stores.

        The last ones give no message and raise what is missing. `columns`: those that will be read, by
        default those of the options. Raises the errors of opening a store.
        """
        shares = [*shares_of(self.stores, columns), *reporting_shares(self.stores)]
        return tasks_of(self.stores, shares)

    def read(
        self, task: Task, columns: Sequence[str] | None = None, *, log_order: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a task in Arrow batches, in the order of the log with `log_order`.

        `columns`: by default those of the options. Raises StoreError for damage with mode=FAILFAST, for
        messages that have expired since with failOnDataLoss, and if another store took the place of one.
        """
        for share in task:
            scan = self.stores[share.store]
            names = column_names(scan.options.columns) if columns is None else columns
            with scan.store.open() as store:
                damage = DamageHandler(store, scan.options, advises_modes=True)
                yield from read_share(scan, share, store, names, damage, log_order=log_order)
                damage.log()
                LOG.debug("%s: %s", scan.store.broker_name, store.reads())

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (
            [pickle.dumps(store) for store in self.stores],
            self.left_out,
            self.load,
        )


def _unpickled(stores: list[bytes], left_out: tuple[UnavailableStore, ...], load: str) -> Scan:
    return Scan(_PickledStores(stores), left_out, load)


class _PickledStores(Sequence[StoreScan]):
    """Stores that are unpickled one by one."""

    def __init__(self, pickled: list[bytes]) -> None:
        self._stores: list[bytes | StoreScan] = [*pickled]

    def __len__(self) -> int:
        return len(self._stores)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return [self[number] for number in range(len(self))[which]]
        store = self._stores[which]
        if isinstance(store, bytes):
            self._stores[which] = store = pickle.loads(store)
        return store


def pinned_scan(options: ScanOptions) -> StoreScan:
    """The scan of the one store that these options name, with all messages of its times."""
    (scan,) = Scan.of(options, extended=True).stores
    return scan
