"""CRC-32 as the broker computes it: of one body, and of many slices of the log."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from zlib_ng import zlib_ng

from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import CRC_MASK
from rmq_store.loops import checksums

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def _in_c() -> int:
    try:
        found = ctypes.CDLL(zlib_ng.__file__).zng_crc32_z
    except (OSError, AttributeError):
        return 0
    found.argtypes, found.restype = (
        (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t),
        ctypes.c_uint32,
    )
    is_it = found(0, _CHECKED, len(_CHECKED)) == crc32(_CHECKED)
    return (ctypes.cast(found, ctypes.c_void_p).value or 0) if is_it else 0


_CHECKED = b"123456789"
CRC32_IN_C = _in_c()
"""The address of zlib-ng's function for the loops: `uint32_t (before, at, size)`; 0 if it is not exported."""


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(data: Bytes, starts: Ints, lengths: Ints) -> Ints:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64."""
    found = np.empty(len(starts), dtype=np.int64)
    at, length = (np.ascontiguousarray(n, dtype=np.int64).data for n in (starts, lengths))
    checksums.of_slices(crc32, CRC32_IN_C, data.data, at, length, found.data)
    return found
