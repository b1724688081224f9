"""Select queue ranges by topics, queues and times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from rmq_store.errors import StoreError
from rmq_store.format.byte_layout import Mask
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.search.known_names import require_topic
from rmq_store.search.log_partitions import joined
from rmq_store.snapshot.compacted_view import ConsumerQueues, QueueSource
from rmq_store.store import MessageStore


@dataclass(frozen=True, slots=True)
class Search:
    """The conditions of a search. A message must match all given ones.

    Times are ms; `begin` is included, `end` is not. `keys`: a message has one of these as a word of
    KEYS or as UNIQ_KEY, if there are any. `text`: bytes anywhere in the decompressed body.
    """

    topics: Sequence[str] | None = None
    queue_ids: Collection[int] | None = None
    begin: int | None = None
    end: int | None = None
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    text: bytes | None = None
    include_system_topics: bool = False
    keys: Sequence[str] = ()
    include_lmq: bool = True  # light message queues list records of other topics
    unwrap_batches: bool = False  # match each message of an inner batch, not its record
    compacted: bool = False  # of a compaction topic, only what consumers are served

    @property
    def is_timed(self) -> bool:
        """Whether there is a range of times."""
        return self.begin is not None or self.end is not None


CLOCK_SLACK_MS = 5 * 60_000
"""A broker's clock may have been set back, so that store times are out of order. A range of times is
searched with this much more on both sides, and then its messages are compared with the times."""


def selected_slices(store: MessageStore, search: Search, slack_ms: int = 0) -> list[QueueSlice]:
    """The queue ranges selected by topics, queues and times; some may be empty.

    `slack_ms`: take the ranges of times by as much wider on both sides.
    """
    slices = []
    view = store.ranges_for(search.compacted)
    topics = _topics(store, search)
    if len(topics) == 1:
        store.view.require_queue_ids(topics[0], search.queue_ids or ())
    for topic in topics:
        for queue in store.queues(topic):
            if search.queue_ids is not None and queue.queue_id not in search.queue_ids:
                continue
            start, stop = view.limits(queue)
            if search.begin is not None:
                start = max(start, view.first_since(queue, search.begin - slack_ms))
            if search.end is not None:
                late = search.end + slack_ms
                stop = min(stop, view.first_since(queue, late, unreadable_before=True))
            slices.append(QueueSlice(queue, start, stop))
    return slices


def at_log_offsets(
    store: MessageStore, ranges: Iterable[QueueSlice], places: Collection[int], view: QueueSource
) -> list[QueueSlice]:
    """The entries of `ranges` that lead to these log offsets, and those that records there name, which the
    queue may have lost.

    A record that names an entry is in no other queue. Places of a compacted queue are those in its own log.
    """
    start, end = store.log_range()
    recorded = store.lookup.recorded_queue_offset
    entries = {at: recorded(at) if start <= at < end else None for at in sorted(places)}
    pieces: list[QueueSlice] = []
    for part in ranges:
        is_compacted = isinstance(view, ConsumerQueues) and view.compacted(part.queue) is not None
        for place, of_record in entries.items():
            entry = None if is_compacted else of_record
            if entry is None or entry.queue == part.queue:
                first = view.offset_at_log(part.queue, place)
                pieces.append(part.cut(first, view.offset_at_log(part.queue, place + 1)))
                if entry is not None:
                    pieces.append(part.cut(entry.start, entry.stop))
    return joined(piece for piece in pieces if len(piece))


class DamageInTime:
    """Which errors of a search with slack are inside of its queue ranges without slack; all without times.

    The time of what cannot be read is not known; its place in the queue, or in the log, decides.
    """

    def __init__(self, store: MessageStore, search: Search) -> None:
        self._store, self._search = store, search
        self._view = store.ranges_for(search.compacted)

    @cached_property
    def _ranges(self) -> dict[QueueId, QueueSlice]:
        """Only damage asks for them."""
        return {part.queue: part for part in selected_slices(self._store, self._search)}

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
        if not self._search.is_timed:
            return True
        if error.entry is None:
            if error.log_offset is None:
                return True
            start, stop = self._log_range
            reaches_end = any(map(self._reaches_end, self._ranges.values()))
            return start <= error.log_offset < stop or (reaches_end and error.log_offset >= stop)
        part = self._ranges.get(QueueId(error.entry.topic, error.entry.queue_id))
        if part is None or error.entry.is_of_queue:
            return True
        # What the queue lacks at an end has an offset outside of the queue.
        if error.entry.queue_offset >= part.stop:
            return self._reaches_end(part)
        low, _ = self._view.limits(part.queue)
        return error.entry.queue_offset >= part.start or part.start <= low

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


def _topics(store: MessageStore, search: Search) -> list[str]:
    if search.topics is None:
        names = store.topics(search.include_system_topics)
        return [name for name in names if search.include_lmq or not name.startswith(LMQ_PREFIX)]
    for topic in search.topics:
        require_topic(store, topic)
    return list(search.topics)
