"""Which of many records have a body, or all their bytes, that do not match the CRC beside it."""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import CRC_ITEM_SIZE, CRC_MASK
from rmq_store.format.crc import crc32_of_slices
from rmq_store.loops import checksums


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
