"""The positions of a run of consecutive records in one window of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rmq_store import loops
from rmq_store.files.source import Window
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import MAGIC_V1, MIN_RECORD_SIZE
from rmq_store.loops import record_fields

MAGIC_FRONT = MAGIC_V1.to_bytes(4, "big")[:3]  # common to both magics
_MAGIC_AT = 4
_FRONT = 36  # bytes that show whether a record starts

_ROWS = 1 << 16  # positions at a time
_LARGEST_PIECE = 16 << 20
_SEARCH = 8 << 10  # bytes of the first piece that is searched for a record

StoredFrom = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records: the place of each in the window, and where the run stops."""

    at: Ints
    stop: int


def follow(window: Bytes, base: int, start: int, stop: int, frame: int = 0) -> RecordRun:
    """The run of records from `start` up to `stop`, or up to the first bytes that are not a record.

    A record counts if it has a magic, a possible size, and its physicalOffset equals its place. With a
    `frame`, `start`, `stop` and the end of the run are those of entries of a DLedger log.
    """
    pieces: list[Ints] = []
    raw = window.data
    loop = record_fields.follow_entries if frame else record_fields.follow
    while True:
        most = min(_ROWS, max(0, stop - start) // MIN_RECORD_SIZE + 1)
        found: Ints = np.empty(most, dtype=np.int64)
        count, start = loop(raw, base, start, stop, found.data)
        pieces.append(found[:count])
        loops.count(count)
        # The loop compares entries with those before them, so those of a DLedger log stay together.
        if frame or count < most or start >= stop:
            break
    return RecordRun(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), start)


def next_record(
    window: Window, base: int, start: int, stop: int, stored_from: StoredFrom | None = None
) -> int | None:
    """The first position in [start, stop) where a record with a matching physicalOffset seems to start.

    `stored_from` gives the first position at or after another that is not known to be zeros.
    """
    piece = _SEARCH  # most records are near; pieces overlap by the head of a record
    while start < stop:
        if stored_from is not None and (start := stored_from(start)) >= stop:
            return None
        upto = min(start + piece, stop)
        window.fetch([start], [upto + _FRONT])
        found = _next_in_piece(window.bytes, base, start, upto)
        if found is not None:
            return found
        start, piece = upto, min(2 * piece, _LARGEST_PIECE)
    return None


def _next_in_piece(window: Bytes, base: int, start: int, stop: int) -> int | None:
    raw = window[start : min(stop + _FRONT, len(window))].tobytes()
    at = raw.find(MAGIC_FRONT, _MAGIC_AT)
    while at >= 0:
        place = start + at - _MAGIC_AT
        if place >= stop:
            return None
        if len(follow(window, base, place, place + 1).at):
            return place
        at = raw.find(MAGIC_FRONT, at + 1)
    return None
