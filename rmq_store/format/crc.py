"""CRC-32 as the broker computes it: of one body, and of many slices of the log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from zlib_ng import zlib_ng

from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.layout import CRC_MASK
from rmq_store.loops import checksums

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(data: Bytes, starts: Ints, lengths: Ints) -> Ints:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64."""
    found = np.empty(len(starts), dtype=np.int64)
    at, length = (np.ascontiguousarray(n, dtype=np.int64).data for n in (starts, lengths))
    checksums.of_slices(crc32, data.data, at, length, found.data)
    return found
