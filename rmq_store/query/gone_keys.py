"""Keys that the index still has of records which the log has no more."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from rmq_store.store import MessageStore


class GoneKey(NamedTuple):
    """Log offsets, ascending, to which index items of a key lead: before the log's start, where
    records expire, and at its end or behind it, where they were lost. Another key of the same hash
    (32 bits) would lead there too."""

    expired: tuple[int, ...]
    lost: tuple[int, ...]


def gone_key(store: MessageStore, key: str, topics: Collection[str] | None = None) -> GoneKey:
    """Where the index leads for `key` outside the log, in `topics` or in all that are known.

    The index is read, and not the log.
    """
    wanted = [(topic, key) for topic in topics or store.known_topics()]
    found = sorted(set().union(*store.key_index().indexed(wanted).values()))
    start, end = store.log_range()
    return GoneKey(
        tuple(offset for offset in found if offset < start),
        tuple(offset for offset in found if offset >= end),
    )
