"""Look up entries of many queues, in parallel if each is a request to an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from rmq_store.files.parallel import side_by_side
from rmq_store.format.queues import EntryAt, QueueId, QueueSlice
from rmq_store.search.log_partitions import looked_at, sample_offsets
from rmq_store.snapshot.compacted_view import ServedQueues
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.store import MessageStore

_Found = TypeVar("_Found")
_Look = Callable[[QueueId, int], _Found]


def entry_at(
    store: MessageStore, ranges: Sequence[QueueSlice], view: QueueView | ServedQueues
) -> EntryAt:
    """`view.entry_at`, with the entries that a plan of `ranges` needs fetched in advance."""

    def places() -> Iterator[tuple[QueueId, int]]:
        for part, _ in looked_at([part for part in ranges if len(part)]):
            for offset in dict.fromkeys((*sample_offsets(part, len(ranges)), part.stop - 1)):
                yield part.queue, offset

    return _prefetched(store, view.entry_at, places())


def offset_at_log(
    store: MessageStore,
    ranges: Sequence[QueueSlice],
    places: Sequence[int | None],
    view: QueueView | ServedQueues,
) -> _Look[int]:
    """`view.offset_at_log`, with the answers for these log offsets fetched in advance."""
    wanted = ((part.queue, place) for part in ranges for place in places if place is not None)
    return _prefetched(store, view.offset_at_log, wanted)


def _prefetched(
    store: MessageStore, look: _Look[_Found], places: Iterable[tuple[QueueId, int]]
) -> _Look[_Found]:
    """`look`, which has the answers for some places where looks are worth making side by side."""
    at_once = store.log.chain.cost.looks_at_once
    if at_once == 1:
        return look
    known: dict[tuple[QueueId, int], _Found] = {}

    def note(place: tuple[QueueId, int]) -> None:
        known[place] = look(*place)

    side_by_side(note, list(places), at_once)
    return lambda queue, number: (
        known[queue, number] if (queue, number) in known else look(queue, number)
    )
