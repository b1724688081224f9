"""Finds the range of the log that a selection covers: it has every message of users' topics there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.uncovered_bytes import WholeRange

_MOST_OTHERS = 1000  # queues that a read looks at beside those that it returns


class _Place(NamedTuple):
    start: int
    stop: int


def covered_range(
    view: QueueView, parts: Iterable[QueueSlice], is_system: Callable[[str], bool]
) -> WholeRange | None:
    """The log range of which `parts` are all messages of users' topics; None if there is none.

    A selection of all messages between two places of the log has one: all messages, a wave of a job,
    what has come since an earlier run. The range then begins after the last message before the
    selection, and ends after the selection's last one.

    Also None for a snapshot of some queues, and for more than 1,000 other queues, whose entries would
    take longer to read than the messages.
    """
    if view.snapshot.part:
        return None
    states = view.snapshot.queues
    there = [part for part in parts if part.queue in states]
    chosen = {part.queue: part for part in there}
    topics = {queue.topic for queue in chosen}
    users = [queue for queue in states if queue.topic in topics or not is_system(queue.topic)]
    queues = frozenset(users)
    rest = [queue for queue in states if queue not in queues]
    if not chosen or len(chosen) < len(there) or len(rest) > _MOST_OTHERS:
        return None
    edges = _edges(view, chosen, users)
    if edges is None:
        return None
    slices = (QueueSlice(q, states[q].min_offset, states[q].max_offset) for q in sorted(rest))
    return WholeRange(queues, tuple(part for part in slices if len(part)), *edges)


def _edges(
    view: QueueView, chosen: dict[QueueId, QueueSlice], users: Sequence[QueueId]
) -> tuple[int | None, int | None] | None:
    """Start and stop of the log range in which only `chosen` parts of the users' queues lie."""
    states = view.snapshot.queues
    full = {
        queue
        for queue, part in chosen.items()
        if part.start <= states[queue].min_offset and part.stop >= states[queue].max_offset
    }
    if len(full) == len(users):
        return None, None
    own = [part for part in chosen.values() if len(part)]
    first = [_place(view, part.queue, part.start) for part in own]
    last = [_place(view, part.queue, part.stop - 1) for part in own]
    if not own or None in first or None in last:
        return None  # a damaged entry does not say where the range begins or ends
    start = min(place.start for place in first if place is not None)
    stop = max(place.stop for place in last if place is not None)
    before: int | None = None
    is_last = True
    for queue in users:
        if queue in full:
            continue
        state, part = states[queue], chosen.get(queue)
        if part is None or not len(part):
            at = view.offset_at_log(queue, start)
            part = QueueSlice(queue, at, at)
        if part.start > state.min_offset:
            left = _place(view, queue, part.start - 1)
            if left is None or left.stop > start:
                return None
            before = max(left.stop, before or 0)
        if part.stop < state.max_offset:
            right = _place(view, queue, part.stop)
            if right is None or right.start < stop:
                return None
            is_last = False
    return before, None if is_last else stop


def _place(view: QueueView, queue: QueueId, offset: int) -> _Place | None:
    """The log offsets of the record at a queue offset; None if its entry points to no record."""
    if not view.is_batch(queue):
        entry = view.entry_at(queue, offset)
        return (
            None if entry is None else _Place(entry.log_offset, entry.log_offset + int(entry.size))
        )
    found = view.entries(queue, offset, offset + 1)
    if not len(found) or not found.points_to_record[0]:
        return None
    start = int(found.log_offset[0])
    return _Place(start, start + int(found.size[0]))
