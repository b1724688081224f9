"""Look up entries of many queues, in parallel if each is a request to an object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_store.files.parallel import side_by_side
from rmq_store.format.queues import Entry, EntryAt, QueueId, QueueSlice
from rmq_store.search.log_partitions import looked_at, sample_offsets
from rmq_store.snapshot.compacted_view import ServedQueues
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.store import MessageStore

OffsetAtLog = Callable[[QueueId, int], int]


def entry_at(
    store: MessageStore, ranges: Sequence[QueueSlice], view: QueueView | ServedQueues
) -> EntryAt:
    """`view.entry_at`, with the entries that a plan of `ranges` needs fetched in advance."""
    if store.log.chain.cost.looks_at_once == 1:
        return view.entry_at
    places = [
        (part.queue, offset)
        for part, _ in looked_at([part for part in ranges if len(part)])
        for offset in dict.fromkeys((*sample_offsets(part, len(ranges)), part.stop - 1))
    ]
    known: dict[tuple[QueueId, int], Entry | None] = {}

    def look(place: tuple[QueueId, int]) -> None:
        known[place] = view.entry_at(*place)

    side_by_side(look, places, store.log.chain.cost.looks_at_once)
    return lambda queue, offset: (
        known[queue, offset] if (queue, offset) in known else view.entry_at(queue, offset)
    )


def offset_at_log(
    store: MessageStore,
    ranges: Sequence[QueueSlice],
    places: Sequence[int | None],
    view: QueueView | ServedQueues,
) -> OffsetAtLog:
    """`view.offset_at_log`, with the answers for these log offsets fetched in advance."""
    wanted = [(part.queue, place) for part in ranges for place in places if place is not None]
    if store.log.chain.cost.looks_at_once == 1 or not wanted:
        return view.offset_at_log
    known: dict[tuple[QueueId, int], int] = {}

    def look(one: tuple[QueueId, int]) -> None:
        known[one] = view.offset_at_log(*one)

    side_by_side(look, wanted, store.log.chain.cost.looks_at_once)
    return lambda queue, place: known[queue, place]
