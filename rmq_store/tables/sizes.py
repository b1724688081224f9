"""Bytes of the records between two queue offsets."""

from __future__ import annotations

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.query.log_slices import stretches_of
from rmq_store.store import MessageStore

COUNTED = 1_000_000
"""So many messages are added up one by one; beyond that samples do."""

_AT_ONCE = 1 << 16


def bytes_between(store: MessageStore, queue: QueueId, start: int, stop: int) -> int:
    """Bytes of the records at queue offsets [start, stop); by samples where these are very many."""
    if stop - start <= COUNTED:
        return exact_bytes(store, queue, start, stop)

    part = QueueSlice(queue, start, stop)
    return round(
        sum(stretch.selected_bytes for stretch in stretches_of(part, 1, store.view.entry_at))
    )


def exact_bytes(store: MessageStore, queue: QueueId, start: int, stop: int) -> int:
    """The same added up; an inner batch counts where its first message is."""
    total = 0
    for at in range(start, stop, _AT_ONCE):
        entries = store.entries(queue, at, min(at + _AT_ONCE, stop))
        mine = entries.points_to_record & (entries.offset >= at)
        total += int(entries.size[mine].sum())
    return total
