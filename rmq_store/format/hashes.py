"""The broker's hashes: CRC-32 of a body or of slices of the log, and Java's of a text or of columns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from rmq_store.format.byte_layout import CRC_MASK, Bytes, Ints, Numbers
from rmq_store.loops import checksums
from rmq_store.loops.hashes import hash_texts

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def _in_c() -> int:
    try:
        function = ctypes.CDLL(zlib_ng.__file__).zng_crc32_z
    except (OSError, AttributeError):
        return 0
    function.argtypes = ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t
    function.restype = ctypes.c_uint32
    is_it = function(0, _CHECKED, len(_CHECKED)) == crc32(_CHECKED)
    return (ctypes.cast(function, ctypes.c_void_p).value or 0) if is_it else 0


_CHECKED = b"123456789"
CRC32_IN_C = _in_c()
"""The address of zlib-ng's function for the loops: `uint32_t (before, at, size)`; 0 if it is not exported."""


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(data: Bytes, starts: Ints, lengths: Ints) -> Ints:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64."""
    crcs = np.empty(len(starts), dtype=np.int64)
    at, length = (np.ascontiguousarray(n, dtype=np.int64).data for n in (starts, lengths))
    checksums.of_slices(crc32, CRC32_IN_C, data.data, at, length, crcs.data)
    return crcs


def crc32_of_strings(data: Bytes, offsets: Numbers) -> Ints:
    """CRC-32 of every `data[offsets[i]:offsets[i + 1]]`, as n int64."""
    ends = offsets.astype(np.int64)
    return crc32_of_slices(data, ends[:-1], np.diff(ends))


_SIGN32 = 0x80000000


def java_string_hash(text: str) -> int:
    """`String.hashCode`: a signed 32-bit hash of the UTF-16 code units."""
    value = 0
    raw = text.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + (raw[at] | raw[at + 1] << 8)) & 0xFFFFFFFF
    return value - (1 << 32) if value & _SIGN32 else value


def index_key(topic: str, key: str) -> str:
    """The text that an index item hashes (IndexService#buildKey)."""
    return f"{topic}#{key}"


def index_key_hash(key: str) -> int:
    """Hash of an index key (IndexFile#indexKeyHashMethod): |hashCode|, and 0 for the smallest int."""
    value = abs(java_string_hash(key))
    return 0 if value == _SIGN32 else value


def tags_code(tags: str | None) -> int:
    """tagsCode of a queue entry (MessageExtBrokerInner#tagsString2tagsCode): 0 without tags."""
    return java_string_hash(tags) if tags else 0


def java_string_hashes(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int32]:
    """`String.hashCode` of n UTF-8 strings, as n int32: string i is `data[offsets[i]:offsets[i + 1]]`."""
    hashes = np.empty(len(offsets) - 1, dtype=np.int32)
    hash_texts(data.data, np.ascontiguousarray(offsets, dtype=np.int64).data, hashes.data)
    return hashes
