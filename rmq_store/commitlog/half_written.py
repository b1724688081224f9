"""Which records are half-written although they add up: no CRC covers the properties."""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.format.array_types import Ints

_SECTOR = 512  # bytes of the smallest disk write


def half_written_rows(headers: Headers, flushed_until: int = 0) -> Ints:
    """Rows of which a whole sector of the properties did not reach the disk: it is zero.

    All rows must be valid. Records stored up to `flushed_until` (ms) are known to have been flushed. They
    are not looked at, because a property may hold zeros itself.
    """
    window, start = headers.window, headers.properties_at
    end = start + headers.properties_length
    torn = np.zeros(len(headers), dtype=bool)
    fresh = headers.store_timestamp > flushed_until
    sector = -(-start // _SECTOR) * _SECTOR
    while (inside := np.flatnonzero(fresh & (sector < end))).size:
        for row in inside[window[sector[inside]] == 0].tolist():
            piece = window[int(sector[row]) : min(int(sector[row]) + _SECTOR, int(end[row]))]
            torn[row] |= not piece.any()
        sector = sector + _SECTOR
    return np.flatnonzero(torn)
