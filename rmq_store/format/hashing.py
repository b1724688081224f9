"""The broker's Java hashes: of one value, and of whole columns without a loop per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from rmq_store.format.layout import CRC_MASK

_MASK32 = 0xFFFFFFFF
_SHORT_SLICE = 512  # bytes
_SIGN32 = 0x80000000

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def java_string_hash(text: str) -> int:
    """`String.hashCode`: a signed 32-bit hash of the UTF-16 code units."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & _MASK32
    else:
        raw = text.encode("utf-16-le", "surrogatepass")
        for at in range(0, len(raw), 2):
            value = (31 * value + (raw[at] | raw[at + 1] << 8)) & _MASK32
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


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64.

    This is the only loop per message in the fast paths, because a CRC has no vector form. The CRC
    runs at memory speed; the cost is one call and one object per slice. Short slices of equal
    length are cheaper as items of one array.
    """
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    length = int(lengths[0])
    if 0 < length <= _SHORT_SLICE and (lengths == length).all():
        every = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
        return np.array(list(map(crc32, every[starts].tolist())), dtype=np.int64)
    view = data.data
    ends = (starts + lengths).tolist()
    crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.array(crcs, dtype=np.int64)


def java_string_hashes(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int32]:
    """`String.hashCode` of n UTF-8 strings, as n int32: string i is `data[offsets[i]:offsets[i + 1]]`.

    `data` must be valid UTF-8. The loop runs over character positions, with rows sorted by length,
    so its number of steps is the length of the longest string and not the number of rows.
    """
    starts = np.asarray(offsets[:-1], dtype=np.int64)
    lengths = np.asarray(offsets[1:], dtype=np.int64) - starts
    used = data[int(offsets[0]) : int(offsets[-1])] if len(lengths) else data[:0]
    units: npt.NDArray[Any] = data
    if used.size and int(used.max()) >= 0x80:
        units, starts, lengths = _utf16_units(data, starts, lengths)
    return _hash_units(units, starts, lengths)


def _hash_units(
    units: npt.NDArray[Any], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """h = sum of unit[j] * 31**(n-1-j) modulo 2**32, for every row at once."""
    count = len(lengths)
    hashes = np.zeros(count, dtype=np.uint32)
    if not count:
        return hashes.view(np.int32)
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        for step in range(longest):
            hashes *= np.uint32(31)
            hashes += units[starts + step]
        return hashes.view(np.int32)
    order = np.argsort(-lengths, kind="stable")
    by_length = starts[order]
    # alive[s]: number of rows longer than s characters; they come first in `order`.
    alive = count - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    work = np.zeros(count, dtype=np.uint32)
    for step in range(longest):
        n = int(alive[step])
        front = work[:n]
        front *= np.uint32(31)
        front += units[by_length[:n] + step]
    hashes[order] = work
    return hashes.view(np.int32)


def _utf16_units(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same rows as UTF-16 code units, with their starts and lengths in units."""
    if len(starts) == 0:
        return np.zeros(0, np.uint16), starts, lengths
    base = int(starts[0])
    raw = data[base : int(starts[-1] + lengths[-1])]
    # Every byte except a continuation byte starts one unit; a four-byte lead starts two.
    per_byte = ((raw & 0xC0) != 0x80).astype(np.int64) + (raw >= 0xF0)
    before = np.zeros(len(raw) + 1, dtype=np.int64)
    np.cumsum(per_byte, out=before[1:])
    units = np.frombuffer(raw.tobytes().decode("utf-8").encode("utf-16-le"), dtype="<u2")
    first = before[starts - base]
    return units, first, before[starts - base + lengths] - first


def index_key_hashes(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`index_key_hash` of a column of `String.hashCode` values."""
    positive = np.abs(hashes.astype(np.int64))
    return np.where(positive == _SIGN32, 0, positive).astype(np.int32)
