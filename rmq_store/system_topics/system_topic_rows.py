"""Messages of the broker's own topics as rows, with the properties that say what they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import pyarrow as pa

from rmq_store.arrow import compute as pc
from rmq_store.errors import StoreError
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage, ReadOptions
from rmq_store.reading.store_reader import StoreReader
from rmq_store.search.find_messages import plan_keys

PLACE = ("queueId", "queueOffset", "commitLogOffset", "storeSize", "storeTimestamp")
ORIGIN = ("bornTimestamp", "tags", "keys", "uniqKey", "msgId", "reconsumeTimes")

Row = dict[str, Any]
_KEYS_AT_ONCE = 1 << 17  # without an index, each time reads the topics once
_COLUMNS = (  # as fields of a Copy
    *("topic", "queueId", "queueOffset", "commitLogOffset", "storeTimestamp"),
    *("uniqKey", "reconsumeTimes", "preparedTransactionOffset"),
)


def rows_with_properties(
    store: StoreReader,
    slice_: QueueSlice,
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
    if not len(slice_) and store.min_offset(*slice_.queue) < store.max_offset(*slice_.queue):
        return  # of an empty queue the read says whether it is lost
    for batch in store.read_slices([slice_], columns=(*columns, "properties"), on_damage=on_damage):
        values = {name: _plain(batch[name]) for name in columns}
        values |= {name: property_of(batch, of) for name, of in texts.items()}
        values |= {name: whole_numbers(property_of(batch, of)) for name, of in numbers.items()}
        values |= {name: whole_numbers(property_of(batch, of), 9) for name, of in small.items()}
        yield from pa.table(values).to_pylist()


def ignore_error(error: StoreError) -> None:
    """Leave out what is damaged, which verify reports."""


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


def whole_queues_of(store: StoreReader, topic: str) -> Iterator[QueueSlice]:
    """The whole queues of a topic; none if it has no queues."""
    for queue in store.queues(topic):
        yield QueueSlice(queue, store.min_offset(*queue), store.max_offset(*queue))


def has_every_file(store: StoreReader, topic: str, queue_id: int | None) -> bool:
    """Whether no file between others lacks of a queue, so that what it does not list was never there;
    without an id, of no queue of the topic."""
    chosen = [queue for queue in store.queues(topic) if queue_id in (None, queue.queue_id)]
    return bool(chosen) and not any(store.view.state(queue).has_hole for queue in chosen)


class MessageCopy(NamedTuple):
    """A stored message: its place, the time when it was stored (ms), and what it repeats.

    A delayed message is stored again when it is due, and a half message when its transaction is committed,
    each under another topic and with its UNIQ_KEY.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored: int
    uniq_key: str
    reconsume_times: int
    half_offset: int  # log offset of the half message of its transaction; 0 without one


def copies_with(
    store: StoreReader,
    topics: Collection[str],
    uniq_keys: Collection[str],
    on_damage: OnDamage | None,
) -> Iterator[MessageCopy]:
    """All messages of `topics` with one of the UNIQ_KEYs.

    Looks up the index, and reads what it does not cover. Topics without queues have none. Raises the
    errors of `read_slices` for damage.
    """
    held = [topic for topic in topics if store.view.queues_of(topic)]
    keys = iter(sorted(uniq_keys))
    while held and (some := list(islice(keys, _KEYS_AT_ONCE))):
        yield from _copies(store, held, some, on_damage)


def _copies(
    store: StoreReader, topics: Sequence[str], keys: Sequence[str], on_damage: OnDamage | None
) -> Iterator[MessageCopy]:
    ranges = store.view.ranges_of(topics)
    plan = plan_keys(store, ranges, keys)
    how: ReadOptions = {
        "columns": _COLUMNS,
        "keys": tuple(keys),
        "check_ends": False,
        "unwrap_batches": False,
        "compacted": False,
        "on_damage": on_damage,
    }
    if plan is None:
        batches = store.read_slices(ranges, **how)
    else:
        # A record that its queue has lost was stored all the same.
        slices = plan.ranges(store.view.offset_at_log)
        in_log = (store.read_log(place, place + 1, **how) for place in plan.unlisted)
        batches = chain(store.read_slices(slices, **how), chain.from_iterable(in_log))
    for batch in batches:
        for row in values_in(batch, _COLUMNS):
            if row[0] in topics:
                yield MessageCopy(*row)
