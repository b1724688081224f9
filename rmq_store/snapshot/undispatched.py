"""Undispatched records: records in the log that no queue lists yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.topics_json import declared_batch_topics
from rmq_store.consumequeue.dispatch import DispatchRequests, dispatch
from rmq_store.consumequeue.entries import Entries, concat_entries
from rmq_store.errors import UndispatchedError
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_state import ListedQueue

MOST_UNDISPATCHED = 30_000_000
"""Maximum number of undispatched records in memory, at about 40 bytes each."""


_LOOK_BACK = 64 << 20  # bytes before the dispatched end to search for strays in an unclean store


def find_undispatched(
    root: Path,
    log: CommitLog,
    listed: Mapping[QueueId, ListedQueue],
    config: StoreConfig,
    dispatched: int,
    log_end: int,
    unclean: bool,
) -> dict[QueueId, Entries]:
    """The entries of records after the last entry of their queue.

    The broker dispatches in log order, so in its own store they are all after the place that the
    queues have reached. In a copy made while it ran, the files of one queue may be older than those
    of another. So an unclean store is also searched backwards, until a range adds nothing.
    """
    batch = _batch_topics(root, listed)
    start = dispatched
    found = _strays_in(log, start, log_end, listed, config, batch)
    while unclean and start > log.start:
        before = _record_start_near(log, start - _LOOK_BACK, start)
        more = _strays_in(log, before, start, listed, config, batch)
        start = before
        if not more:
            break
        for queue, entries in found.items():
            more[queue] = concat_entries([more[queue], entries]) if queue in more else entries
        found = more
    return {queue: _placed(entries, listed.get(queue)) for queue, entries in found.items()}


def _batch_topics(root: Path, listed: Mapping[QueueId, ListedQueue]) -> set[str]:
    return declared_batch_topics(root) | {
        q.topic for q, listed_queue in listed.items() if listed_queue.batch
    }


def _record_start_near(log: CommitLog, wanted: int, otherwise: int) -> int:
    """A log offset at or after `wanted` where a record starts; at most `otherwise`."""
    at = max(wanted, log.start)
    for segment in log.chain.segments_from(at):
        if segment.base >= otherwise:
            break
        first = max(at, segment.base)
        stop = min(log.chain.segment_end(segment), otherwise)
        log.chain.need([first], [stop])
        place = log.next_record(segment, first, stop)
        if place is not None:
            return place
    return otherwise


def _strays_in(
    log: CommitLog,
    start: int,
    stop: int,
    listed: Mapping[QueueId, ListedQueue],
    config: StoreConfig,
    batch: Collection[str],
) -> dict[QueueId, Entries]:
    """Entries of the records in [start, stop) that are after the last entry of their queue."""
    parts: dict[QueueId, list[Entries]] = {}
    count = 0
    if start >= stop:
        return {}
    for segment, window, at in log.runs_from(start):
        at = at[at + segment.base < stop]
        if not len(at):
            break
        found = dispatch(
            DecodedRecords.of(Headers(window, at, segment.base)),
            delay_levels_ms=config.delay_levels_ms,
            batch_topics=batch,
        )
        for queue, entries in _by_queue(found, listed):
            parts.setdefault(queue, []).append(entries)
            count += len(entries)
        if count > MOST_UNDISPATCHED:
            raise UndispatchedError(
                segment.path,
                offset=int(at[-1]) + segment.base,
                reason=f"over {MOST_UNDISPATCHED:,} records are in the log and in no queue",
                advice="The queues are lost or far behind the log. Rebuild them in another store with "
                "rmqstore rebuild, or read the log itself with source=commitlog",
            )
    return {queue: concat_entries(entries) for queue, entries in parts.items()}


def _by_queue(
    requests: DispatchRequests, listed: Mapping[QueueId, ListedQueue]
) -> Iterable[tuple[QueueId, Entries]]:
    known = np.array(
        [listed[queue].last_log_offset if queue in listed else -1 for queue in requests.queues],
        dtype=np.int64,
    )
    rows = (
        np.flatnonzero(requests.log_offset > known[requests.queue])
        if len(requests)
        else requests.queue
    )
    for number in np.unique(requests.queue[rows]).tolist():
        mine = rows[requests.queue[rows] == number]
        yield (
            requests.queues[number],
            Entries(
                requests.offset[mine],
                requests.log_offset[mine],
                requests.size[mine],
                requests.tags_code[mine],
                requests.count[mine],
            ),
        )


def _placed(entries: Entries, listed_queue: ListedQueue | None) -> Entries:
    """The entries with their queueOffsets, which continue from the queue's end.

    An entry whose record has a queueOffset before that end is skipped, as in the broker: it belongs
    to a deleted and recreated topic. A later queueOffset is kept as a continuation.
    """
    end = int(entries.offset[0])
    if listed_queue is not None and listed_queue.stop > listed_queue.first:
        end = end_offset(listed_queue)
    entries = entries.take(entries.offset >= end)
    behind = np.cumsum(entries.count)
    return replace(entries, offset=end + behind - entries.count)


def end_offset(listed_queue: ListedQueue) -> int:
    """The queue offset after the last unit."""
    if not listed_queue.batch:
        return listed_queue.stop
    last = listed_queue.files.entries(listed_queue.stop - 1, listed_queue.stop)
    return int(last.offset[0] + last.count[0])
