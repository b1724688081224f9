"""CRC-32 as the broker computes it: of one body, and of many slices of the log."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from rmq_store.format.layout import CRC_MASK

_SHORT_SLICE = 512  # bytes
_SLICES_AT_A_TIME = 512
_CACHED = 1 << 18  # bytes that stay in the processor's cache

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64.

    This is the only loop per message in the fast paths, because a CRC has no vector form. The CRC
    runs at memory speed; the cost is one call and one object per slice. Short slices of equal
    length are cheapest as the items of a structure.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    length = int(lengths[0])
    if 0 < length <= _SHORT_SLICE and (lengths == length).all():
        return _crc32_of_short_slices(data, starts, length)
    view = data.data
    ends = (starts + lengths).tolist()
    crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.fromiter(crcs, np.int64, len(crcs))


def _crc32_of_short_slices(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.int64]:
    every = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    crcs = np.empty(len(starts), dtype=np.int64)
    step = min(_SLICES_AT_A_TIME, _CACHED // length)
    for at in range(0, len(starts), step):
        taken = every[starts[at : at + step]]
        items = _byte_strings(length, len(taken)).unpack(taken)
        crcs[at : at + step] = np.fromiter(map(crc32, items), np.int64, len(taken))
    return crcs


@lru_cache(maxsize=16)  # bodies of a topic often have one length
def _byte_strings(length: int, count: int) -> Struct:
    return Struct(f"{length}s" * count)
