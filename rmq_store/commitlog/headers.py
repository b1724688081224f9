"""The fields of many records, as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Bytes, Ints, Mask, Numbers
from rmq_store.format.byte_layout import CRC_ITEM_SIZE, CRC_MASK
from rmq_store.format.hashes import crc32_of_slices
from rmq_store.loops import checksums, record_fields

# Columns of a batch of 8,192 rows would all begin at the same place of the processor's cache.
_APART = 24


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


def record_crc_rows(headers: Headers) -> Ints:
    """Rows whose properties end in a record CRC, right or wrong."""
    return np.flatnonzero(_record_crcs(headers) >= 0)


def _record_crcs(headers: Headers) -> Ints:
    """The CRC that each record has at its end; -1 without one."""
    stored = np.empty(len(headers), dtype=np.int64)
    places = (headers.properties_at.data, headers.properties_length.data)
    checksums.stored_in_records(headers.window.data, *places, stored.data)
    return stored
