"""Which records are half-written although they add up: no CRC covers topic and properties."""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import PROPERTIES_LENGTH_SIZE

_SECTOR = 512  # bytes of the smallest disk write


def half_written_rows(headers: Headers, flushed_until: int = 0) -> Ints:
    """Rows that add up and are still torn: bytes that did not reach the disk are zero, to the record's end
    or for a whole sector.

    Records stored up to `flushed_until` (ms) are known to have been flushed. They skip the sector check,
    because a property may hold zeros itself.
    """
    window, start = headers.window, headers.properties_at
    end = start + headers.properties_length
    torn = window[start - PROPERTIES_LENGTH_SIZE - 1] == 0  # the last byte of the topic
    torn |= (headers.properties_length > 0) & (window[end - 1] == 0)
    fresh = headers.store_timestamp > flushed_until
    sector = -(-start // _SECTOR) * _SECTOR
    while (inside := np.flatnonzero(fresh & (sector < end))).size:
        for row in inside[window[sector[inside]] == 0].tolist():
            piece = window[int(sector[row]) : min(int(sector[row]) + _SECTOR, int(end[row]))]
            torn[row] |= not piece.any()
        sector = sector + _SECTOR
    return np.flatnonzero(torn)
