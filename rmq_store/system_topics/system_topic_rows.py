"""Messages of the broker's own topics as rows, with the properties that say what they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage
from rmq_store.store import MessageStore

PLACE = ("queueId", "queueOffset", "commitLogOffset", "storeSize", "storeTimestamp")
ORIGIN = ("bornTimestamp", "tags", "keys", "uniqKey", "msgId", "reconsumeTimes")

Row = dict[str, Any]


def rows_of(
    store: MessageStore,
    part: QueueSlice,
    texts: Mapping[str, str],
    numbers: Mapping[str, str],
    small: Mapping[str, str],
    columns: tuple[str, ...] = (*PLACE, *ORIGIN),
    *,
    on_damage: OnDamage | None,
) -> Iterator[Row]:
    """The messages of a queue range, in order, with `columns` and properties; times in ms.

    `texts`, `numbers`, `small`: column -> property. A number that is none, or a small one of more than
    9 digits, is null. Raises the errors of `read_slices` for damage.
    """
    if not len(part) and store.min_offset(*part.queue) < store.max_offset(*part.queue):
        return  # of an empty queue the read says whether it is lost
    for batch in store.read_slices([part], columns=(*columns, "properties"), on_damage=on_damage):
        found = {name: _plain(batch[name]) for name in columns}
        found |= {column: property_of(batch, name) for column, name in texts.items()}
        for digits, named in ((18, numbers), (9, small)):
            found |= {
                column: whole_numbers(property_of(batch, name), digits)
                for column, name in named.items()
            }
        yield from pa.table(found).to_pylist()


def _plain(column: pa.Array) -> pa.Array:
    return column.cast("int64") if pa.types.is_timestamp(column.type) else column


def values_in(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns for each row; times in ms."""
    return zip(*(_plain(batch[name]).to_pylist() for name in columns), strict=True)


def property_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A property of each message; null without it."""
    return pc.map_lookup(batch["properties"], pa.scalar(name), "last")


def whole_numbers(texts: pa.Array, digits: int = 18) -> pa.Array:
    """Texts as int64; null for what is no whole number of at most so many digits."""
    fits = pc.match_substring_regex(texts, rf"^-?[0-9]{{1,{digits}}}$")
    return pc.if_else(fits, texts, None).cast("int64")


def all_of(store: MessageStore, topic: str) -> Iterator[QueueSlice]:
    """The whole queues of a topic; none if it has no queues."""
    for queue in store.queues(topic):
        yield QueueSlice(queue, store.min_offset(*queue), store.max_offset(*queue))


def is_whole(store: MessageStore, topic: str, queue_id: int | None) -> bool:
    """Whether no file between others lacks of a queue, so that what it does not list was never there;
    without an id, of no queue of the topic."""
    chosen = [queue for queue in store.queues(topic) if queue_id in (None, queue.queue_id)]
    return bool(chosen) and not any(store.view.state(queue).has_hole for queue in chosen)
