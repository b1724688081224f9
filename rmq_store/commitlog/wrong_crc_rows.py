"""CRC-32 checks of many bodies and records: finds the wrong rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.crc import crc32, crc32_of_one_length, crc32_of_slices
from rmq_store.format.layout import CRC_ITEM_SIZE, CRC_MASK, CRC_PROPERTY
from rmq_store.format.record import record_crc_of

_CRC_NAME = int.from_bytes(CRC_PROPERTY.encode(), "big")


def wrong_crc_rows(headers: Headers, copies: Bytes | None = None) -> Ints:
    """Rows whose stored body or whole record does not match its CRC.

    All rows must be valid. Empty bodies have no CRC. `copies`, for bodies of one length that fit the
    cells of `format.crc` alone, receives them end to end.
    """
    rows = np.flatnonzero(headers.body_length)
    wrong_records = _wrong_record_crc_rows(headers)
    if not len(rows):
        return wrong_records
    at, lengths = headers.body_at[rows], headers.body_length[rows]
    if copies is None:
        crcs = crc32_of_slices(headers.window, at, lengths)
    else:
        crcs = crc32_of_one_length(headers.window, at, int(lengths[0]), copies)
    computed = crcs & CRC_MASK
    wrong: Ints = rows[computed != headers.head["body_crc"][rows]]
    return np.union1d(wrong, wrong_records) if len(wrong_records) else wrong


def record_crc_rows(headers: Headers) -> Ints:
    """Rows whose properties end in a record CRC, right or wrong."""
    found = [row for row, stored, _ in _record_crcs(headers) if stored is not None]
    return np.array(found, dtype=np.int64)


def _wrong_record_crc_rows(headers: Headers) -> Ints:
    """Rows whose record CRC does not match the rest of the record."""
    window = headers.window
    wrong: list[int] = []
    for row, stored, end in _record_crcs(headers):
        covered = window.data[int(headers.at[row]) : end - CRC_ITEM_SIZE]
        if stored is not None and stored != crc32(covered) & CRC_MASK:
            wrong.append(row)
    return np.array(wrong, dtype=np.int64)


def _record_crcs(headers: Headers) -> Iterator[tuple[int, int | None, int]]:
    """Rows that may end in a record CRC: the row, the CRC or None, and where the row ends."""
    ends = headers.properties_at + headers.properties_length
    named = headers.integers_at(ends - CRC_ITEM_SIZE, ">i8") == _CRC_NAME
    for row in np.flatnonzero(named & (headers.properties_length >= CRC_ITEM_SIZE)).tolist():
        start, end = int(headers.properties_at[row]), int(ends[row])
        yield row, record_crc_of(headers.window[start:end].tobytes()), end
