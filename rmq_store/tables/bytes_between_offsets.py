"""Bytes of the records between two queue offsets."""

from __future__ import annotations

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.search.log_slices import stretches_of
from rmq_store.search.queue_offset_steps import offset_steps
from rmq_store.store import MessageStore

COUNTED = 1_000_000
"""Up to this number of messages, sizes are added up; above it, estimated from samples."""

_AT_ONCE = 1 << 16


def bytes_between(
    store: MessageStore, queue: QueueId, start: int, stop: int, counted: int = COUNTED
) -> int:
    """Bytes of the records at queue offsets [start, stop), estimated from samples for a range of more
    than `counted` messages."""
    if stop - start <= counted:
        return exact_bytes(store, queue, start, stop)

    part = QueueSlice(queue, start, stop)
    return round(
        sum(stretch.selected_bytes for stretch in stretches_of(part, 1, store.view.entry_at))
    )


def exact_bytes(store: MessageStore, queue: QueueId, start: int, stop: int) -> int:
    """The exact bytes of the records. An inner batch counts at its first message."""
    total = 0
    steps = offset_steps(store, start, stop, _AT_ONCE)
    for at in steps:
        entries = store.entries(queue, at, min(at + steps.step, stop))
        mine = entries.points_to_record & (entries.offset >= at)
        total += int(entries.size[mine].sum())
    return total
