"""What is selected of a store: which queues, and which range of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from rmq_store.config.consumer_offsets import config_table
from rmq_store.config.json_files import read_config
from rmq_store.config.topics_json import queue_count
from rmq_store.errors import LOG, DataLossError, InvalidArgumentError, StoreError, nearest
from rmq_store.files.parallel import looked_up_in_parallel
from rmq_store.format.byte_layout import Mask
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import (
    DLQ_PREFIX,
    LMQ_PREFIX,
    RETRY_PREFIX,
    is_group_of_broker,
    is_system_topic,
    retry_origin,
)
from rmq_store.reading.log_reader import QueueLimits
from rmq_store.reading.query import CommonReadOptions, ignore_damage, written_text
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.log_partitions import joined_ranges
from rmq_store.snapshot.compacted_view import QueueSource
from rmq_store.snapshot.known_topics import unknown_topic
from rmq_store.text.times import RelativeTime, Time, shown_time


def require_topic(store: StoreReader, topic: str) -> None:
    """Raise UnknownQueueError for a topic that has no queue and is not in topics.json."""
    topics = store.view.topics.every
    if topic not in topics:
        raise unknown_topic(store.path, topic, topics)


def known_groups(store: StoreReader) -> set[str]:
    """The consumer groups that have settings, offsets, or a topic of retries or dead letters.

    Raises CorruptConfigError and AccessError.
    """
    settings = read_config(
        store.path,
        "subscriptionGroup.json",
        lambda path, content: config_table(path, content, "subscriptionGroupTable"),
    )
    return _groups_with_traces(store).union(() if settings is None else settings.value)


def _groups_with_traces(store: StoreReader) -> set[str]:
    """Those that have offsets, or a topic of retries or dead letters."""
    groups = set(store.consumer_offsets())
    for topic in store.view.topics.every:
        if topic.startswith(RETRY_PREFIX):
            groups.add(retry_origin(topic, {}, store.view.topics.known_names).group)
        elif topic.startswith(DLQ_PREFIX):
            groups.add(topic.removeprefix(DLQ_PREFIX))
    return groups


def users_groups(store: StoreReader) -> list[str]:
    """Sorted `known_groups`, but for those that each broker has. Raises as that."""
    return sorted(group for group in known_groups(store) if not is_group_of_broker(group))


def require_group(store: StoreReader, group: str, met: Iterable[str] = ()) -> None:
    """Raise InvalidArgumentError for a group that the store does not know; `met`: further known names."""
    if group in met or group in _groups_with_traces(store):
        return  # whether or not the settings can be read
    groups = known_groups(store).union(met)
    if group not in groups:
        raise InvalidArgumentError(
            store.path,
            reason=f"there is no group {group!r}",
            advice=nearest(group, groups, last=is_group_of_broker),
        )


EARLIEST = -2
LATEST = -1


QueueOfBroker = tuple[str | None, QueueId]
"""A queue on the broker of a name; None: on all brokers."""


@dataclass(frozen=True, slots=True)
class ByQueue:
    """A number for each of some queues."""

    numbers: Mapping[QueueOfBroker, int] = field(default_factory=dict)

    def of(self, broker_name: str, queue: QueueId) -> int | None:
        """The number of a queue of a broker; None if none was given."""
        return self.numbers.get((broker_name, queue), self.numbers.get((None, queue)))


def queues_on(broker_name: str, some: Iterable[QueueOfBroker]) -> list[QueueId]:
    """The queues of one broker among some, without repeats."""
    return list(dict.fromkeys(queue for broker, queue in some if broker in (None, broker_name)))


@dataclass(frozen=True, slots=True)
class Selection:
    """Which queues of a store, and which range of each; None is all.

    Of topics, a pattern and `assign` at most one is given. Offsets are queue offsets, EARLIEST or LATEST;
    times are ms, the first is included, the last is not. For a queue, a time for all queues takes
    precedence, then its own time, then its own offset, as in Kafka's source.
    """

    topics: Sequence[str] | None = None
    queue_ids: Collection[int] | None = None
    since: Time | None = None
    until: Time | None = None
    topic_pattern: str | None = None
    assign: tuple[QueueOfBroker, ...] | None = None
    include_system_topics: bool = False
    include_lmq: bool = True  # light message queues list records of other topics
    starting_offsets: ByQueue = field(default_factory=ByQueue)
    ending_offsets: ByQueue = field(default_factory=ByQueue)
    starting_timestamps: ByQueue = field(default_factory=ByQueue)
    ending_timestamps: ByQueue = field(default_factory=ByQueue)
    timestamp_strategy: str = "latest"  # "error": a queue without a message since then is one
    fail_on_data_loss: bool = True
    compacted: bool = False  # of a compaction topic, only what consumers are served

    @property
    def is_timed(self) -> bool:
        """Whether there is a range of times for all queues."""
        return self.since is not None or self.until is not None

    @property
    def times(self) -> tuple[int | None, int | None]:
        """The range [start, stop) of times for all queues (ms), as far as it is fixed."""
        start, stop = self.since, self.until
        return start if isinstance(start, int) else None, stop if isinstance(stop, int) else None

    @property
    def sees_compacted(self) -> bool:
        """Whether queues of compaction topics are read as consumers are served."""
        return self.compacted


@dataclass(frozen=True, slots=True)
class Search(Selection):
    """The conditions of a search. A message must match all given ones.

    `keys`: a message has one of these as a word of KEYS or as UNIQ_KEY, if there are any. `text`: bytes
    anywhere in the decompressed body.
    """

    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    text: bytes | None = None
    keys: Sequence[str] = ()
    unwrap_batches: bool = False  # match each message of an inner batch, not its record


def property_of_text(text: str) -> tuple[str, str]:
    """The name and the value that `NAME=VALUE` asks for. Raises InvalidArgumentError for another text."""
    name, separator, value = written_text("a property", text).partition("=")
    if not separator or not name:
        raise InvalidArgumentError(reason=f"{text!r} is not NAME=VALUE")
    return name, value


CLOCK_SLACK_MS = 5 * 60_000
"""A broker's clock may have been set back, so that store times are out of order. A range of times is
searched with this much more on both sides, and then its messages are compared with the times."""


def is_declared(store: StoreReader, queue: QueueId) -> bool:
    """Whether topics.json includes a queue. Before its first message it has no files."""
    return 0 <= queue.queue_id < queue_count(store.view.topics.declared.get(queue.topic))


def given_offsets_and_times(selection: Selection) -> tuple[tuple[str, ByQueue], ...]:
    """The options that give each queue a number of its own, and these numbers."""
    return (
        ("startingOffsets", selection.starting_offsets),
        ("endingOffsets", selection.ending_offsets),
        ("startingOffsetsByTimestamp", selection.starting_timestamps),
        ("endingOffsetsByTimestamp", selection.ending_timestamps),
    )


def select_ranges(
    store: StoreReader, selection: Selection, slack_ms: int = 0
) -> tuple[QueueSlice, ...]:
    """The range of every selected queue with files, maybe empty, in order of topic and queue.

    `slack_ms`: take the ranges of times by as much wider on both sides. Raises InvalidArgumentError for
    an offset that is not in its queue, DataLossError for one that expired.
    """
    queues = sorted(selected_queues(store, selection))
    view = store.ranges_for(selection.sees_compacted)
    # In an object store, finding a time takes some requests per queue.
    ranges = looked_up_in_parallel(
        lambda queue: _range_of(store, queue, selection, view, slack_ms),
        queues,
        store.log.chain.cost.looks_at_once,
    )
    return tuple(ranges[queue] for queue in queues if queue in store.snapshot().queues)


def extended_ranges(
    store: StoreReader, selection: Selection, ranges: Sequence[QueueSlice]
) -> tuple[QueueSlice, ...]:
    """The ranges of `select_ranges`, and those of messages beside them that the times for all queues select,
    as where the broker's clock was set back by up to CLOCK_SLACK_MS. Reads heads of records there. None where
    queues have offsets or times of their own."""
    if any(by_queue.numbers for _, by_queue in given_offsets_and_times(selection)):
        return tuple(ranges)
    beside: list[QueueSlice] = []
    for range_, wide in zip(ranges, select_ranges(store, selection, CLOCK_SLACK_MS), strict=True):
        beside += [wide.cut(wide.start, range_.start), wide.cut(range_.stop, wide.stop)]
    columns = ("topic", "queueId", "queueOffset", "storeTimestamp")
    how: CommonReadOptions = {
        "check_ends": False,
        "compacted": selection.sees_compacted,
        "unwrap_batches": True,
        "on_damage": ignore_damage,
    }
    in_time: list[QueueSlice] = []
    for batch in store.read_slices([part for part in beside if len(part)], columns=columns, **how):
        batch = batch.filter(pa.array(stored_in_time(batch, *selection.times)))
        places = zip(*(batch[name].to_pylist() for name in columns[:3]), strict=True)
        in_time += [QueueSlice(QueueId(*queue), at, at + 1) for *queue, at in places]
    return tuple(sorted((*ranges, *joined_ranges(in_time))))


def first_offsets(store: StoreReader, selection: Selection) -> dict[QueueId, int]:
    """The first wanted queue offset of every selected queue, also of those without a message.

    A stream reads the log, which has all messages of a compaction topic. Raises as `select_ranges`.
    """
    queues = selected_queues(store, selection)
    return {queue: _range_of(store, queue, selection, store.view).start for queue in queues}


def selected_queues(store: StoreReader, selection: Selection) -> list[QueueId]:
    """The selected queues that have files, and those of topics.json that an option names."""
    queues = store.snapshot().queues
    if selection.assign is not None:
        assigned = queues_on(store.broker_name, selection.assign)
        return [queue for queue in assigned if queue in queues or is_declared(store, queue)]
    wanted = WantedQueues.of(store, selection)
    named = {
        queue
        for _, by_queue in given_offsets_and_times(selection)
        for queue in queues_on(store.broker_name, by_queue.numbers)
        if queue not in queues and is_declared(store, queue)
    }
    return sorted(filter(wanted, {*queues, *named}))


@dataclass(frozen=True, slots=True)
class WantedQueues:
    """Says whether a queue of a store is selected. Plain data, so that executors can use it."""

    selection: Selection
    assigned: frozenset[QueueId] | None
    topics: frozenset[str] | None
    broker_name: str
    own_names: frozenset[str | None]  # of the broker and its cluster

    @classmethod
    def of(cls, store: StoreReader, selection: Selection) -> WantedQueues:
        """The queues selected in `store`."""
        name, assign, topics = store.broker_name, selection.assign, selection.topics
        return cls(
            selection,
            None if assign is None else frozenset(queues_on(name, assign)),
            None if topics is None else frozenset(topics),
            name,
            store.own_names,
        )

    def __call__(self, queue: QueueId) -> bool:
        selection, topic = self.selection, queue.topic
        if self.assigned is not None:
            return queue in self.assigned
        if selection.queue_ids is not None and queue.queue_id not in selection.queue_ids:
            return False
        if self.topics is not None:
            return topic in self.topics
        if not selection.include_lmq and topic.startswith(LMQ_PREFIX):
            return False
        if not selection.include_system_topics and is_system_topic(topic, self.own_names):
            return False
        pattern = selection.topic_pattern
        return pattern is None or re.fullmatch(pattern, topic) is not None


def _range_of(
    store: StoreReader, queue: QueueId, selection: Selection, view: QueueSource, slack_ms: int = 0
) -> QueueSlice:
    name = store.broker_name
    from_time = _first(selection.since, selection.starting_timestamps.of(name, queue))
    to_time = _first(selection.until, selection.ending_timestamps.of(name, queue))
    has_files = queue in store.snapshot().queues
    low, high = limits = view.limits(queue) if has_files else (0, 0)
    if from_time is None:
        start = _offset(store, queue, selection.starting_offsets.of(name, queue), limits, selection)
    else:
        start = view.first_since(queue, from_time - slack_ms) if has_files else 0
        if selection.timestamp_strategy == "error" and start >= high:
            raise InvalidArgumentError(
                store.path,
                reason=f"queue {queue.queue_id} of topic {queue.topic!r} has no message stored at "
                f"{shown_time(from_time)} or later",
                advice="Set startingOffsetsByTimestampStrategy=latest to skip the queue",
            )
    if to_time is None:
        stop = _offset(store, queue, selection.ending_offsets.of(name, queue), limits, selection)
    else:
        stop = (
            view.first_since(queue, to_time + slack_ms, unreadable_before=True) if has_files else 0
        )
    if from_time is None and to_time is None and start is not None and stop is not None:
        _refuse_end_before_latest(store, queue, start, stop, low)
    first, last = low if start is None else start, high if stop is None else stop
    first, last = (min(max(offset, low), high) for offset in (first, last))
    return QueueSlice(queue, first, max(first, last))


def _refuse_end_before_latest(
    store: StoreReader, queue: QueueId, start: int, stop: int, least: int
) -> None:
    """Raise InvalidArgumentError if -1 for the start makes a range end before it begins."""
    if start > stop >= least:  # an end before the first offset has expired
        raise InvalidArgumentError(
            store.path,
            reason=f"the offsets of queue {queue.queue_id} of topic {queue.topic!r} start at {start} and "
            f"end at {stop}",
            advice="Give an end that is not before the start; -2 is the earliest offset, -1 the latest",
        )


def _first(for_all: Time | None, of_queue: int | None) -> int | None:
    """The time for all queues if there is one, else that of the queue."""
    assert not isinstance(for_all, RelativeTime)  # Scan.of fixed it
    return of_queue if for_all is None else for_all


def _offset(
    store: StoreReader,
    queue: QueueId,
    offset: int | None,
    limits: tuple[int, int],
    selection: Selection,
) -> int | None:
    """The queue offset that an option gives; None without one. One that has expired may be outside."""
    if offset is None:
        return None
    offset = {EARLIEST: limits[0], LATEST: limits[1]}.get(offset, offset)
    if limits[0] <= offset <= limits[1]:
        return offset
    what = f"offset {offset} of queue {queue.queue_id} of topic {queue.topic!r}"
    if not selection.fail_on_data_loss:
        LOG.warning("%s is not in %s to %s; the remaining messages are read", what, *limits)
        return min(offset, limits[1])
    is_behind = offset > limits[1]
    kind = InvalidArgumentError if is_behind else DataLossError
    why = "The queue ends before it" if is_behind else "The messages may have expired"
    raise kind(
        store.path,
        reason=f"{what} is not in the queue",
        expected=f"{limits[0]} to {limits[1]}",
        actual=offset,
        advice=f"{why}; -2 is the earliest offset, -1 the latest; failOnDataLoss=false reads the remaining "
        "messages",
    )


@dataclass(frozen=True, slots=True)
class QueueLimitsInLog:
    """The limits of each queue if the log is the source, where only the records name the queues."""

    wanted: WantedQueues
    without: frozenset[QueueId] = frozenset()  # queues of which nothing is wanted

    def __call__(self, queue: QueueId) -> QueueLimits | None:
        selection, name = self.wanted.selection, self.wanted.broker_name
        if queue in self.without or not self.wanted(queue):
            return None
        from_time = _first(selection.since, selection.starting_timestamps.of(name, queue))
        to_time = _first(selection.until, selection.ending_timestamps.of(name, queue))
        start = None if from_time is not None else selection.starting_offsets.of(name, queue)
        stop = None if to_time is not None else selection.ending_offsets.of(name, queue)
        whole = QueueLimits()
        if start == LATEST or stop == EARLIEST:
            return None
        return QueueLimits(
            whole.first_offset if start is None or start == EARLIEST else start,
            whole.stop_offset if stop is None or stop == LATEST else stop,
            whole.first_time if from_time is None else from_time,
            whole.stop_time if to_time is None else to_time,
        )


def ranges_in_store(
    store: StoreReader, selection: Selection, slack_ms: int = 0
) -> list[QueueSlice]:
    """As `select_ranges`, of one store alone: raises UnknownQueueError for what it does not have."""
    topics = selection.topics or ()
    for topic in topics:
        require_topic(store, topic)
    if len(topics) == 1:
        store.view.require_queue_ids(topics[0], selection.queue_ids or ())
    return list(select_ranges(store, selection, slack_ms))


def slices_at_log_offsets(
    store: StoreReader, ranges: Iterable[QueueSlice], places: Collection[int], view: QueueSource
) -> list[QueueSlice]:
    """The entries of `ranges` that lead to these log offsets, and those that records there name, which the
    queue may have lost.

    A record that names an entry is in no other queue. Places of a compacted queue are those in its own log.
    """
    start, end = store.log_range()
    recorded = store.lookup.recorded_queue_offset
    entries = {at: recorded(at) if start <= at < end else None for at in sorted(places)}
    pieces: list[QueueSlice] = []
    for slice_ in ranges:
        in_log = view.is_in_log(slice_.queue)
        for place, of_record in entries.items():
            entry = of_record if in_log else None
            if entry is None or entry.queue == slice_.queue:
                first = view.offset_at_log(slice_.queue, place)
                pieces.append(slice_.cut(first, view.offset_at_log(slice_.queue, place + 1)))
                if entry is not None:
                    pieces.append(slice_.cut(entry.start, entry.stop))
    return joined_ranges(piece for piece in pieces if len(piece))


class DamageInRanges:
    """Which errors of a search with slack are inside of its queue ranges without slack; all without times.

    The time of what cannot be read is not known; its place in the queue, or in the log, decides.
    """

    def __init__(self, store: StoreReader, selection: Selection) -> None:
        self._store, self._selection = store, selection
        self._view = store.ranges_for(selection.sees_compacted)

    @cached_property
    def _ranges(self) -> dict[QueueId, QueueSlice]:
        """Only damage asks for them."""
        return {part.queue: part for part in ranges_in_store(self._store, self._selection)}

    @cached_property
    def _log_range(self) -> tuple[int, int]:
        """The range of the log from the first to behind the last selected message."""
        view = self._view
        some = [part for part in self._ranges.values() if len(part)]
        starts = (view.log_offset_of(part.queue, part.start) for part in some)
        ends = (view.log_offset_of(part.queue, part.stop) for part in some)
        return min(starts, default=0), max(ends, default=0)

    def __call__(self, error: StoreError) -> bool:
        """Whether one error is."""
        if not self._selection.is_timed:
            return True
        if error.entry is None:
            if error.log_offset is None:
                return True
            start, stop = self._log_range
            reaches_end = any(map(self._reaches_end, self._ranges.values()))
            return start <= error.log_offset < stop or (reaches_end and error.log_offset >= stop)
        slice_ = self._ranges.get(QueueId(error.entry.topic, error.entry.queue_id))
        if slice_ is None or error.entry.is_of_queue:
            return True
        # What the queue lacks at an end has an offset outside of the queue.
        if error.entry.queue_offset >= slice_.stop:
            return self._reaches_end(slice_)
        low, _ = self._view.limits(slice_.queue)
        return error.entry.queue_offset >= slice_.start or slice_.start <= low

    def _reaches_end(self, part: QueueSlice) -> bool:
        return part.stop >= self._view.limits(part.queue)[1]


def stored_in_time(batch: pa.RecordBatch, begin: int | None, end: int | None) -> Mask:
    """Which rows of a batch with storeTimestamp were stored in [begin, end), in ms; None: no limit.

    Ranges of queues do not say it, because a broker's clock may have been set back.
    """
    stored = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
    kept = np.ones(batch.num_rows, dtype=bool)
    if begin is not None:
        kept &= stored >= begin
    if end is not None:
        kept &= stored < end
    return kept
