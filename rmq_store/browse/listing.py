"""The newest messages of some queues, or those before a place in the log: only they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rmq_store.format.queues import QueueSlice
from rmq_store.reading.query import OnDamage, leave_out
from rmq_store.store import MessageStore

_PLACE = "commitLogOffset"  # the queue entries have it
_WIDER = 8  # times, where few entries of a window have the tag


def newest_slices(
    store: MessageStore, slices: Sequence[QueueSlice], count: int, tags: str | None = None
) -> list[QueueSlice]:
    """The ends of queue ranges with the newest `count` messages of all, or some more of an inner batch."""
    width = count
    while True:
        windows = [replace(piece, start=max(piece.start, piece.stop - width)) for piece in slices]
        cut = [w for w, piece in zip(windows, slices, strict=True) if w.start > piece.start]
        # Before this place, messages of other windows may be missing.
        sure = max((store.log_offset_of(piece.queue, piece.start) for piece in cut), default=0)
        places = _places(store, windows, tags)
        places = places[places >= sure]
        if len(places) > count or (cut and len(places) == count):
            return _from(store, slices, int(np.partition(places, -count)[-count]))
        if not cut:
            return windows
        width *= _WIDER


def _places(store: MessageStore, windows: Sequence[QueueSlice], tags: str | None) -> np.ndarray:
    batches = store.read_slices(
        windows,
        columns=[_PLACE],
        tags=tags,
        unwrap_batches=True,
        check_ends=False,
        compacted=False,
        on_damage=leave_out,  # the read of the messages says it
    )
    columns = [batch.column(_PLACE).to_numpy() for batch in batches]
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def _from(store: MessageStore, slices: Sequence[QueueSlice], place: int) -> list[QueueSlice]:
    starts = (store.view.offset_at_log(piece.queue, place) for piece in slices)
    return [piece.cut(start, piece.stop) for piece, start in zip(slices, starts, strict=True)]


def before(store: MessageStore, slices: Sequence[QueueSlice], place: int) -> list[QueueSlice]:
    """The queue ranges up to the messages at a log offset."""
    stops = (store.view.offset_at_log(piece.queue, place) for piece in slices)
    return [piece.cut(piece.start, stop) for piece, stop in zip(slices, stops, strict=True)]


def messages_in(
    store: MessageStore,
    slices: Sequence[QueueSlice],
    columns: Sequence[str],
    tags: str | None,
    on_damage: OnDamage,
) -> pa.Table:
    """The messages of queue ranges, newest first."""
    batches = store.read_slices(
        slices,
        columns=columns,
        tags=tags,
        unwrap_batches=True,
        compacted=False,
        on_damage=on_damage,
    )
    rows = batches.read_all()
    return rows.take(np.arange(len(rows))[::-1])
