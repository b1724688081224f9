"""Log range fully covered by the selection: it has every message of users' topics there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.topics import LMQ_PREFIX

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView

_MOST_OTHERS = 1000  # queues whose entries are read beside those of the selection


@dataclass(frozen=True, slots=True)
class LogRange:
    """Log range [start, stop) of which a selection has all messages of `queues`.

    None means the log's start or end. `alone`: another read reports what is missing elsewhere.
    """

    start: int | None
    stop: int | None
    queues: frozenset[QueueId]
    alone: bool = False

    @property
    def is_log(self) -> bool:
        """Whether it is the whole log."""
        return self.start is None and self.stop is None

    def covers(self, log_offset: int | None) -> bool:
        """Whether a log offset is in the range."""
        if log_offset is None:
            return False
        after = self.start is None or log_offset >= self.start
        return after and (self.stop is None or log_offset < self.stop)


def covered_range(view: QueueView, parts: Iterable[QueueSlice]) -> LogRange | None:
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
    # Of several parts of a queue one will do, and one that only stands for an end of it does not.
    chosen = {part.queue: part for part in sorted(there, key=len)}
    queues = users_queues(view, {queue.topic for queue in chosen})
    others = len(states) - len(queues)
    if not chosen or len(chosen) < len(there) or others > _MOST_OTHERS:
        return None
    edges = _edges(view, chosen, queues)
    return None if edges is None else LogRange(*edges, queues)


def users_queues(view: QueueView, topics: Collection[str]) -> frozenset[QueueId]:
    """The queues of users' topics, and those of `topics`."""
    own = {queue.topic for queue in view.snapshot.queues}
    users = {topic for topic in own if topic in topics or not view.is_system(topic)}
    return frozenset(queue for queue in view.snapshot.queues if queue.topic in users)


def light_queues(queues: Collection[QueueId]) -> set[QueueId]:
    """The light queues among some."""
    return {queue for queue in queues if queue.topic.startswith(LMQ_PREFIX)}


def _edges(
    view: QueueView, chosen: dict[QueueId, QueueSlice], users: frozenset[QueueId]
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

    def cost(queue: QueueId) -> tuple[bool, bool, QueueId]:
        """Without a part, to find its place takes a bisection; in a queue of batches, one of bisections."""
        return not chosen.get(queue), states[queue].batch, queue

    for queue in sorted(users - full, key=cost):
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


def _place(view: QueueView, queue: QueueId, offset: int) -> range | None:
    """The log offsets of the record at a queue offset; None if its entry points to no record."""
    if not view.is_batch(queue):
        entry = view.entry_at(queue, offset)
        return (
            None if entry is None else range(entry.log_offset, entry.log_offset + int(entry.size))
        )
    found = view.entries(queue, offset, offset + 1)
    if not len(found) or not found.points_to_record[0]:
        return None
    start = int(found.log_offset[0])
    return range(start, start + int(found.size[0]))
