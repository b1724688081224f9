"""The queues of a store by queueOffset: entries, the records they point to, and times."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import batch_topics, declared_topics, lists_all_topics
from rmq_store.consumequeue.bisection import (
    bisect_first,
    find_boundary,
    offset_by_time,
    recheck_neighbours,
)
from rmq_store.consumequeue.entry_of_record import DispatchRequests, dispatch
from rmq_store.consumequeue.queue_files import QueueExt, QueueFiles, queue_folder
from rmq_store.consumequeue.queue_folders import QueueFolders, entries_after_log
from rmq_store.errors import InvalidArgumentError, ReadOnlyStoreError, StoreError, UnknownQueueError
from rmq_store.files.segments import LOCAL
from rmq_store.files.source import Ranges, fetch_all
from rmq_store.format.byte_layout import CHECKPOINT_FILE, CONSUMEQUEUE_EXT_DIR
from rmq_store.format.queues import (
    EXT_MAX_ADDRESS,
    FILLER_SIZE,
    Entries,
    Entry,
    QueueId,
    QueueSlice,
)
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.markers import Checkpoint, was_closed
from rmq_store.snapshot.known_topics import KnownTopics, unknown_topic
from rmq_store.snapshot.ranges import EMPTY_QUEUE, QueueState
from rmq_store.snapshot.snapshot import StoreSnapshot

_FETCHED_AHEAD = 16 << 20  # bytes of queues to fetch before the first is read
_MOST_AHEAD = 512  # queue ranges, so that the first ones are still cached when they are read


class QueueView:
    """The queues of one snapshot.

    `is_system`: whether a topic is the broker's own. `is_closed`: set when the store is closed.
    """

    def __init__(
        self,
        log: CommitLog,
        folders: QueueFolders,
        snapshot: StoreSnapshot,
        is_system: Callable[[str], bool],
    ) -> None:
        self.root, self.is_system = folders.root, is_system
        self._log, self.is_closed = log, False
        self._folders = folders
        self.snapshot = snapshot
        self.topics = KnownTopics(snapshot, folders)
        self._exts: dict[QueueId, QueueExt] = {}

    @property
    def log(self) -> CommitLog:
        """The log. Raises ReadOnlyStoreError if the store is closed."""
        if not self.is_closed:
            return self._log
        raise ReadOnlyStoreError(self.root, reason="the store was closed", advice="Reopen it")

    @property
    def log_end(self) -> int:
        """Where the log ends."""
        return self.snapshot.log_end

    def replaced(self) -> StoreError | None:
        """None: a broker does not replace these files."""
        return None

    @property
    def config(self) -> StoreConfig:
        """The settings of the store's broker, as far as they are known."""
        return self._folders.config

    def requests_of(self, records: DecodedRecords) -> DispatchRequests:
        """What records give the queues: see `dispatch`."""
        return dispatch(records, self.config.delay_levels_ms, self._batch_topics)

    @cached_property
    def _batch_topics(self) -> set[str]:
        return self.snapshot.batch_topics | batch_topics(self.topics.declared)

    @property
    def unread_database(self) -> StoreError | None:
        """Why the database with the queues was not read, if there are queue files beside it."""
        return self._folders.unread

    def closed_end(self) -> int:
        """The end of the log of a store that was closed after its last record; else 0."""
        snapshot = self.snapshot
        # A broker makes the file `abort` before it takes the first message.
        if snapshot.last_record is None or not snapshot.closed or not was_closed(self.root):
            return 0
        flushed = Checkpoint.read_or_zero(self.root / CHECKPOINT_FILE).physic_msg_timestamp
        stored = self.log.store_time_at(snapshot.last_record)
        return 0 if stored is None or stored > flushed else snapshot.log_end

    def state(self, queue: QueueId) -> QueueState:
        """The state of a queue. A queue without files in an existing topic is empty, as in the broker.

        Raises UnknownQueueError for an unknown topic.
        """
        state = self.snapshot.queues.get(queue)
        if state is not None:
            return state
        topics = self.topics.with_queues
        if queue.topic in topics:
            number: Any = queue.queue_id
            if isinstance(number, Integral):
                return EMPTY_QUEUE
            raise InvalidArgumentError(
                self.root, reason="a queue has a whole number", actual=repr(number)
            )
        raise unknown_topic(self.root, queue.topic, topics)

    def queues_of(self, topic: str) -> Sequence[QueueId]:
        """The queues of one topic, sorted; empty for an unknown one."""
        return self._by_topic.get(topic, ())

    @cached_property
    def _by_topic(self) -> dict[str, list[QueueId]]:
        queues: dict[str, list[QueueId]] = {}
        for queue in self.snapshot.queues:
            queues.setdefault(queue.topic, []).append(queue)
        return queues

    def is_in_log(self, queue: QueueId) -> bool:
        """Whether a read takes the messages of a queue from the log; a `ConsumerQueues` says of which not."""
        return True

    def ranges_of(
        self, topics: Sequence[str], queue_ids: Collection[int] | None = None
    ) -> list[QueueSlice]:
        """All messages of the queues of `topics`.

        Raises UnknownQueueError for an unknown topic, and for a queue that an only topic does not have.
        """
        queues = [queue for topic in sorted(set(topics)) for queue in self.queues_of(topic)]
        for topic in set(topics).difference(queue.topic for queue in queues):
            self.state(QueueId(topic, 0))  # raises
        if len(set(topics)) == 1:
            self.require_queue_ids(topics[0], queue_ids or ())
        return [
            QueueSlice(queue, *self.limits(queue))
            for queue in queues
            if queue_ids is None or queue.queue_id in queue_ids
        ]

    def require_queue_ids(self, topic: str, queue_ids: Iterable[int]) -> None:
        """Raise UnknownQueueError for a queue id without files that topics.json does not include.

        A queue that topics.json includes but that never had a message has no files, and is valid.
        """
        numbers = {queue.queue_id for queue in self.queues_of(topic)}
        unknown = sorted(set(queue_ids) - numbers)
        if not numbers or not unknown:
            return  # who names a topic reports an unknown one
        count = self.topics.queue_counts.get(topic, 0)
        unknown = [queue_id for queue_id in unknown if not 0 <= queue_id < count]
        if unknown:
            raise UnknownQueueError(
                self.root,
                reason=f"topic {topic!r} has no queue {unknown[0]}",
                advice=f"Queues with messages are {', '.join(map(str, sorted(numbers)))}",
            )

    def is_batch(self, queue: QueueId) -> bool:
        """Whether a queue is a BatchConsumeQueue. Raises UnknownQueueError."""
        return self.state(queue).batch

    def is_dense(self, queue: QueueId) -> bool:
        """Whether each queue offset has an entry of its own. Raises UnknownQueueError."""
        return not self.is_batch(queue)

    def has_tag_hashes(self, queue: QueueId) -> bool:
        """Whether tagsCode is a hash of tags. That of a delayed message is a time."""
        return queue.topic != SCHEDULE_TOPIC

    def why_offsets_missing(self, queue: QueueId) -> str:
        """Why a queue offset between others may have no entry."""
        return "it is lost, or its entry is out of order"

    def offsets_without_file(self, queue: QueueId) -> Sequence[tuple[int, int, bool]]:
        """Ranges of queue offsets between others that no file holds, and whether more than one would.

        None of a BatchConsumeQueue.
        """
        files = self.files(queue)
        width, size = files.dtype.itemsize, files.chain.file_size
        holes = () if files.batch or not files.has_holes else files.chain.holes
        return [(-(-start // width), stop // width, stop - start > size) for start, stop in holes]

    def was_deleted(self, queue: QueueId) -> bool:
        """Whether the topic of a queue was deleted after the snapshot, as topics.json says now."""
        state = self.state(queue)
        if state.file_start >= state.file_stop or self.files(queue).chain.segments:
            return False
        return lists_all_topics(self.root) and queue.topic not in declared_topics(self.root)

    def offsets_without_entry(self, queue: QueueId) -> Iterator[tuple[int, int]]:
        """Ranges of queue offsets between others that no file holds: one is missing, empty or cut."""
        state = self.state(queue)
        if not state.has_hole:
            return
        files = self.files(queue)
        width = files.dtype.itemsize
        for start, stop in files.chain.holes:
            first = max(-(-start // width), state.file_start)
            last = min(stop // width, state.file_stop)
            if not state.batch and first < last:
                yield first, last
            elif state.file_start < first < last < state.file_stop:
                around = Entries.concat([files.entries(n, n + 1) for n in (first - 1, last)])
                yield int(around.offset[0] + around.count[0]), int(around.offset[1])

    def offsets_without_log(self, queue: QueueId) -> Iterator[tuple[int, int]]:
        """Ranges of queue offsets whose records would be in a hole of the log, or after its end."""
        state, end = self.state(queue), self.snapshot.log_end
        for start, stop in self.log.chain.holes:
            if start < end:
                yield self.offset_at_log(queue, start), self.offset_at_log(queue, min(stop, end))
        if self.log_offset_of(queue, state.max_offset - 1) >= end:
            yield self.offset_at_log(queue, end), state.max_offset

    def count_entries_after_log(
        self, log: CommitLog, stops: Mapping[QueueId, int]
    ) -> dict[QueueId, int]:
        """How many units before `stops` lead after the log of the snapshot, and to no record of `log`."""
        return entries_after_log(self._folders, log, self.snapshot.log_end, stops)

    def limits(self, queue: QueueId) -> tuple[int, int]:
        """The first queue offset with a message, and the one after the last. Raises UnknownQueueError."""
        state = self.state(queue)
        return state.min_offset, state.max_offset

    def files(self, queue: QueueId) -> QueueFiles:
        """The files of a queue. Raises UnknownQueueError."""
        return self._folders.files(queue, batch=self.is_batch(queue))

    def folder(self, queue: QueueId) -> str:
        """The folder of a queue's files, or of the database that the queue is in."""
        return self.files(queue).folder

    def folders(self) -> dict[QueueId, bool]:
        """Every queue that has a folder now -> whether it is a BatchConsumeQueue."""
        return self._folders.queues_in_folders()

    def entries(self, queue: QueueId, start: int, stop: int) -> Entries:
        """The entries of queue offsets [start, stop): from its files, and of undispatched records.

        An inner batch is one entry, returned if any of its messages is in the range.
        """
        _ = self.log  # raises if the store is closed
        state = self.state(queue)
        first, last = max(start, state.file_start), min(stop, state.file_stop)
        if state.batch:
            listed = self._batch_entries(queue, state, start, stop)
        elif first < last:
            files = self._folders.files(queue)
            files.keep_few_units(state.file_start, state.file_stop)
            listed = files.entries(first, last)
        else:
            listed = Entries.none()
        if state.tail is None or stop <= int(state.tail.offset[0]):
            return listed
        tail = state.tail
        inside = (tail.offset + tail.count > start) & (tail.offset < stop)
        return Entries.concat([listed, tail.take(inside)])

    def fetch_ahead(self, slices: Sequence[QueueSlice]) -> None:
        """Fetch the first entries of each range in parallel, where they have to be fetched."""
        wanted: list[Ranges] = []
        least = max(1, _FETCHED_AHEAD // max(1, len(slices)))
        for slice_ in slices[:_MOST_AHEAD]:
            state = self.state(slice_.queue)
            if state.batch:
                continue
            files = self._folders.files(slice_.queue)
            if files.chain.cost is LOCAL:
                return
            width = files.dtype.itemsize
            start = max(slice_.start, state.file_start) * width
            stop = min(min(slice_.stop, state.file_stop) * width, start + least)
            if start < stop:
                wanted += files.chain.ranges_in_files([(start, stop)])
        fetch_all(wanted)

    def entries_with_ext(self, queue: QueueId, start: int, stop: int) -> Entries:
        """As `entries`, with addresses replaced by the tagsCode in the queue's extension."""
        return self.with_ext_tags(queue, self.entries(queue, start, stop))

    def _batch_entries(self, queue: QueueId, state: QueueState, start: int, stop: int) -> Entries:
        files = self._folders.files(queue, batch=True)
        low, high = state.file_start, state.file_stop
        cheap = files.entries_if_cheap(low, high)

        def behind(unit: int, offset: int) -> bool:
            if cheap is not None:
                return int(cheap.offset[unit - low] + cheap.count[unit - low]) > offset
            entry = files.entries(unit, unit + 1)
            return int(entry.offset[0] + entry.count[0]) > offset

        first = bisect_first(low, high, lambda unit: behind(unit, start))
        last = bisect_first(first, high, lambda unit: behind(unit, stop - 1))
        entries = files.entries(first, min(last + 1, high))
        return entries.take(entries.offset < stop)

    def entry_at(self, queue: QueueId, offset: int) -> Entry | None:
        """Place and size of the message at a queue offset; None if the entry points to no record."""
        state = self.state(queue)
        if not state.batch and state.file_start <= offset < state.file_stop:
            entry = self._folders.files(queue).unit_or_none(offset)
            if entry is None or entry[1] <= 0 or entry[1] == FILLER_SIZE or entry[0] < 0:
                return None
            return Entry(*entry)
        entries = self.entries(queue, offset, offset + 1)
        if not len(entries) or not entries.points_to_record[0]:
            return None
        share = int(entries.size[0]) / max(1, int(entries.count[0]))
        return Entry(int(entries.log_offset[0]), share)

    def log_offset_of(self, queue: QueueId, queue_offset: int) -> int:
        """The log offset that the entry at `queue_offset` points to; the log's end for max_offset."""
        if queue_offset >= self.state(queue).max_offset:
            return self.snapshot.log_end
        entries = self.entries(queue, queue_offset, queue_offset + 1)
        return int(entries.log_offset[0]) if len(entries) else self.snapshot.log_end

    def offset_at_log(self, queue: QueueId, commit_log_offset: int) -> int:
        """The first queue offset whose record is at that log offset or after it; else max_offset."""
        state = self.state(queue)
        start, stop = state.min_offset, state.max_offset
        if not state.batch and state.tail is None and start < stop:
            files = self._folders.files(queue)
            if files.first_unit <= start and not files.has_holes:
                return files.first_pointing_at_or_after(commit_log_offset, start, stop)
        unit = bisect_first(
            start, stop, lambda offset: self.log_offset_of(queue, offset) >= commit_log_offset
        )

        def value_at(offset: int) -> int | None:
            entry = self.entry_at(queue, offset) if start <= offset < stop else None
            return None if entry is None else entry.log_offset

        return recheck_neighbours(unit, start, stop, value_at, commit_log_offset)

    def entries_starting_in(self, queue: QueueId, start: int, stop: int) -> Entries:
        """Entries whose first message is in the range, so that no record is returned twice."""
        entries = self.entries(queue, start, stop)
        if len(entries) and int(entries.offset[0]) < start:
            entries = entries.take(entries.offset >= start)
        return self.with_ext_tags(queue, entries)

    def with_ext_tags(self, queue: QueueId, entries: Entries) -> Entries:
        """The entries with addresses replaced by the tagsCode in the queue's extension."""
        if not len(entries) or entries.tags_code.min() > EXT_MAX_ADDRESS:
            return entries  # without a look for the folder, of which there may be many thousands
        ext = self._exts.get(queue)
        if ext is None:
            folder = queue_folder(self.root, CONSUMEQUEUE_EXT_DIR, queue)
            if not os.path.isdir(folder):
                return entries
            ext = self._exts[queue] = QueueExt(folder)
        return replace(entries, tags_code=ext.tags_codes(entries.tags_code))

    def broker_min_offset(self, queue: QueueId, state: QueueState) -> int:
        """minLogicOffset after a broker start (ConsumeQueue#correctMinOffset): checks only the
        first file.
        """
        files = self.files(queue)
        first, stop = files.first_unit, state.file_stop
        if state.batch:
            return state.min_offset
        if first >= stop:
            return state.max_offset if state.tail is None else state.min_offset
        if state.tail is None and files.unit(stop - 1)[0] < self.snapshot.log_start:
            return state.max_offset
        in_file = min(stop, (files.chain.start + files.chain.file_size) // files.dtype.itemsize)
        offset = bisect_first(
            first, in_file, lambda unit: files.unit(unit)[0] >= self.snapshot.log_start
        )
        return offset if offset < in_file else 0

    def entries_to_file_end(
        self, queue: QueueId, state: QueueState, start: int, stop: int
    ) -> Entries:
        """Entries from `start` to the end of the queue file that holds it."""
        files = self.files(queue)
        per_file = files.units_per_file or stop
        if not state.batch:  # also those before min_offset, which the broker may read
            upto = min(stop, start - start % per_file + per_file)
            first, last = max(start, files.first_unit), min(upto, state.file_stop)
            listed = files.entries(first, last) if first < last else Entries.none()
            if state.tail is None:
                return listed
            inside = (state.tail.offset >= start) & (state.tail.offset < upto)
            return Entries.concat([listed, state.tail.take(inside)])
        entries = self.entries(queue, start, stop)
        if not len(entries):
            return entries
        first = int(entries.offset[0])
        unit = bisect_first(
            state.file_start,
            state.file_stop,
            lambda unit: int(files.entries(unit, unit + 1).offset[0]) >= first,
        )
        return entries.take(slice(0, per_file - unit % per_file))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: str = "LOWER"
    ) -> int:
        """The queue offset for a point in time (ms since the epoch, UTC), as the broker since 5.1.1.

        LOWER: the first message stored at that time or later, else max_offset. UPPER: the last
        message stored at that time or earlier. If there is none, UPPER is the offset before the
        first message if the queue still has an entry there, else the first. In a queue of inner
        batches the result is the offset of a batch, and after the last batch that of the last one.
        Raises UnknownQueueError.
        """
        queue = QueueId(topic, queue_id)
        state = self.state(queue)
        if state.batch:
            return self._batch_by_time(queue, state, timestamp, boundary)
        low = self.broker_min_offset(queue, state) if boundary == "UPPER" else state.min_offset
        store_time = partial(self.store_time, queue)
        return offset_by_time(low, state.max_offset, timestamp, boundary, store_time)

    def first_since(
        self, queue: QueueId, timestamp: int, *, unreadable_before: bool = False
    ) -> int:
        """The first queue offset stored at `timestamp` (ms) or later; max_offset without one.

        Includes messages directly before it whose time is unreadable, so that a range that starts
        here misses none of its messages. With `unreadable_before` they are excluded, for a range
        that ends here. Also exact in queues of inner batches, unlike `offset_by_time`. Raises
        UnknownQueueError.
        """
        store_time = partial(self.store_time, queue)
        boundary = find_boundary(*self.limits(queue), store_time, lambda time: time >= timestamp)
        return boundary.behind if unreadable_before else boundary.first

    def _batch_by_time(
        self, queue: QueueId, state: QueueState, timestamp: int, boundary: str
    ) -> int:
        """The same if an entry holds many messages: searches entries instead of offsets.

        Source: BatchConsumeQueue#getOffsetInQueueByTime. Its UPPER differs from LOWER only among
        batches stored at exactly that time.
        """
        entries = self.entries(queue, state.min_offset, state.max_offset)
        if not len(entries):
            return state.max_offset

        def time_at(row: int) -> int | None:
            return self.store_time(queue, int(entries.offset[row]))

        unit = offset_by_time(0, len(entries), timestamp, "LOWER", time_at)
        if boundary == "UPPER" and unit < len(entries) and time_at(unit) == timestamp:
            unit = offset_by_time(0, len(entries), timestamp, boundary, time_at)
        return int(entries.offset[min(unit, len(entries) - 1)])

    def store_time(self, queue: QueueId, offset: int) -> int | None:
        """The store time (ms) of the message at a queue offset; None if the entry leads to no record of it.

        The CRC is not checked.
        """
        entries = self.entries(queue, offset, offset + 1)
        if not len(entries) or not entries.points_to_record[0]:
            return None
        where, size = int(entries.log_offset[0]), int(entries.size[0])
        return self.log.store_time_at(where, size, queue)
