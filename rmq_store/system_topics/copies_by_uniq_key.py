"""Copies of a message that the broker stored later under another topic, found by UNIQ_KEY.

A delayed message is stored again when it is due, and a half message when its transaction is committed.
Both copies keep UNIQ_KEY.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from rmq_store.reading.query import OnDamage, ReadHow
from rmq_store.search.plan_key_search import plan_keys
from rmq_store.snapshot.log_slices import LogSlice
from rmq_store.store import MessageStore
from rmq_store.system_topics.system_topic_rows import values_in

_KEYS_AT_ONCE = 1 << 17  # without an index, each time reads the topics once
_COLUMNS = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeTimestamp",
    "uniqKey",
    "reconsumeTimes",
    "preparedTransactionOffset",
)


class Copy(NamedTuple):
    """A stored message: its place, the time when it was stored (ms), and what it repeats."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored: int
    uniq_key: str
    reconsume_times: int
    half_offset: int  # log offset of the half message of its transaction; 0 without one


def copies_with(
    store: MessageStore,
    topics: Collection[str],
    uniq_keys: Collection[str],
    on_damage: OnDamage | None,
) -> Iterator[Copy]:
    """All messages of `topics` with one of the UNIQ_KEYs.

    Looks up the index, and reads what it does not cover. Topics without queues have none. Raises the
    errors of `read_slices` for damage.
    """
    there = [topic for topic in topics if store.view.queues_of(topic)]
    keys = iter(sorted(uniq_keys))
    while there and (some := list(islice(keys, _KEYS_AT_ONCE))):
        yield from _copies(store, there, some, on_damage)


def _copies(
    store: MessageStore, topics: Sequence[str], keys: Sequence[str], on_damage: OnDamage | None
) -> Iterator[Copy]:
    ranges = store.view.ranges_of(topics)
    plan = plan_keys(store, ranges, keys)
    how: ReadHow = {
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
        pieces = [LogSlice(place, place + 1, 1) for place in plan.unlisted]
        slices = [*plan.hits, *plan.beside_hits(store.view.offset_at_log)]
        in_log = (store.read_log(piece.start, piece.stop, **how) for piece in pieces)
        batches = chain(store.read_slices(slices, **how), chain.from_iterable(in_log))
    for batch in batches:
        for row in values_in(batch, _COLUMNS):
            if row[0] in topics:
                yield Copy(*row)
