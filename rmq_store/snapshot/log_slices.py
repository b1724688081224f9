"""Slices of the log, and the parts of queue ranges in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rmq_store.format.queues import QueueId, QueueSlice


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A range of the commitLog between two cuts. None means the end of the selection."""

    start: int | None  # commitLog offset, included
    stop: int | None  # commitLog offset, excluded
    selected_bytes: int  # an estimate


def pieces_of(
    wanted: Iterable[QueueSlice], piece: LogSlice, offset_at_log: Callable[[QueueId, int], int]
) -> list[QueueSlice]:
    """The part of every selected range whose records are in `piece`, without empty parts.

    `offset_at_log` returns the first queue offset whose record is at or after a log position. If
    its answers are always the same, every selected entry is in exactly one of the adjacent slices,
    even if a queue's log offsets are not in order.
    """
    pieces = []
    for part in wanted:
        start, stop = part.start, part.stop
        if piece.start is not None:
            start = min(max(start, offset_at_log(part.queue, piece.start)), part.stop)
        if piece.stop is not None:
            stop = max(min(stop, offset_at_log(part.queue, piece.stop)), start)
        if start < stop:
            pieces.append(QueueSlice(part.queue, start, stop))
    return pieces
