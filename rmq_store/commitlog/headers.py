"""The fields of many records, as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store import loops
from rmq_store.files.source import Window
from rmq_store.format.byte_layout import (
    CRC_ITEM_SIZE,
    CRC_MASK,
    MAGIC_V1,
    MIN_RECORD_SIZE,
    Bytes,
    Ints,
    Mask,
    Numbers,
)
from rmq_store.format.hashes import crc32_of_slices
from rmq_store.loops import checksums, record_fields

# Columns of a batch of 8,192 rows would all begin at the same place of the processor's cache.
_APART = 24
MAGIC_FRONT = MAGIC_V1.to_bytes(4, "big")[:3]  # common to both magics
_MAGIC_AT = 4
_FRONT = 36  # bytes that show whether a record starts

_ROWS = 1 << 16  # positions at a time
_LARGEST_PIECE = 16 << 20
_SEARCH = 8 << 10  # bytes of the first piece that is searched for a record

StoredFrom = Callable[[int], int]


class Headers:
    """n records of one window: `at` is the start of each; all positions count in the window.

    `valid` marks the rows that are whole records at their physicalOffset. `fault` says what other rows
    were refused for, as a place in FAULTS (loops/record_fields.py); their fields from there on are
    zero. Body and record CRCs are not checked. Lengths are of the bytes as stored; times are in ms.
    """

    total: Ints
    queue_offset: Ints
    physical_offset: Ints
    born_timestamp: Ints
    store_timestamp: Ints
    prepared_transaction_offset: Ints
    born_host: Ints  # address and port as one number; of an IPv6 address only its first half
    store_host: Ints
    body_at: Ints
    body_length: Ints
    topic_at: Ints
    topic_length: Ints
    properties_at: Ints
    properties_length: Ints
    magic: Numbers  # signed
    body_crc: Numbers
    queue_id: Numbers
    flag: Numbers
    sys_flag: Numbers
    reconsume_times: Numbers
    fault: Numbers

    def __init__(self, window: Bytes, at: Ints, base: int) -> None:
        """`window`: bytes of the log from offset `base` on. `at`: int64 positions in it."""
        at = np.ascontiguousarray(at)
        longs = np.empty((len(record_fields.LONG_FIELDS), len(at) + _APART), dtype=np.int64)
        ints = np.empty((len(record_fields.INT_FIELDS), len(at) + _APART), dtype=np.int32)
        if len(at):
            record_fields.split(window.data, base, at.data, longs.data, ints.data)
        self._set(window, base, at, longs[:, : len(at)], ints[:, : len(at)])

    def _set(
        self, window: Bytes, base: int, at: Ints, longs: npt.NDArray[Any], ints: npt.NDArray[Any]
    ) -> None:
        self.window, self.base, self.at = window, base, at
        self._longs, self._ints = longs, ints
        for row, name in enumerate(record_fields.LONG_FIELDS):
            setattr(self, name, longs[row])
        for row, name in enumerate(record_fields.INT_FIELDS):
            setattr(self, name, ints[row])
        self.valid: Mask = self.fault == 0

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Ints | Mask | slice) -> Headers:
        """The headers of some rows, without splitting them again."""
        some: Any = rows
        if not isinstance(rows, slice) and rows.dtype == np.bool_:
            some = np.flatnonzero(rows)
        taken = Headers.__new__(Headers)
        longs, ints = _taken(self._longs, some), _taken(self._ints, some)
        taken._set(self.window, self.base, self.at[some], longs, ints)
        return taken


def _taken(table: npt.NDArray[Any], rows: Ints | slice) -> npt.NDArray[Any]:
    """Some columns of a table; each row stays contiguous."""
    return table[:, rows] if isinstance(rows, slice) else np.take(table, rows, axis=1)


def wrong_crc_rows(
    headers: Headers, of_bodies: Ints | None = None, *, copied: bool = False
) -> Ints:
    """Rows whose stored body or whole record does not match its CRC.

    All rows must be valid. Empty bodies have no CRC. `of_bodies`: the CRC-32 of the bodies, if known.
    `copied`: only the bodies are compared (`decode_record`).
    """
    if of_bodies is None:
        of_bodies = crc32_of_slices(headers.window, headers.body_at, headers.body_length)
    wrong = (of_bodies & CRC_MASK != headers.body_crc) & (headers.body_length > 0)
    if copied:
        return np.flatnonzero(wrong)
    stored = _record_crcs(headers)
    rows = np.flatnonzero(stored >= 0)
    if len(rows):
        covered = headers.total[rows] - CRC_ITEM_SIZE
        of_records = crc32_of_slices(headers.window, headers.at[rows], covered) & CRC_MASK
        wrong[rows] |= of_records != stored[rows]
    return np.flatnonzero(wrong)


def rows_with_record_crc(headers: Headers) -> Ints:
    """Rows whose properties end in a record CRC, right or wrong."""
    return np.flatnonzero(_record_crcs(headers) >= 0)


def _record_crcs(headers: Headers) -> Ints:
    """The CRC that each record has at its end; -1 without one."""
    stored = np.empty(len(headers), dtype=np.int64)
    places = (headers.properties_at.data, headers.properties_length.data)
    checksums.stored_in_records(headers.window.data, *places, stored.data)
    return stored


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Consecutive records: the place of each in the window, and where the run stops."""

    at: Ints
    stop: int


def follow_records(window: Bytes, base: int, start: int, stop: int, frame: int = 0) -> RecordRun:
    """The run of records from `start` up to `stop`, or up to the first bytes that are not a record.

    A record counts if it has a magic, a possible size, and its physicalOffset equals its place. With a
    `frame`, `start`, `stop` and the end of the run are those of entries of a DLedger log.
    """
    pieces: list[Ints] = []
    raw = window.data
    loop = record_fields.follow_entries if frame else record_fields.follow
    while True:
        most = min(_ROWS, max(0, stop - start) // MIN_RECORD_SIZE + 1)
        places: Ints = np.empty(most, dtype=np.int64)
        count, start = loop(raw, base, start, stop, places.data)
        pieces.append(places[:count])
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
        if len(follow_records(window, base, place, place + 1).at):
            return place
        at = raw.find(MAGIC_FRONT, at + 1)
    return None
