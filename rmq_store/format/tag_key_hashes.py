"""The broker's Java hashes: of one value, and of whole columns without a loop per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MASK32 = 0xFFFFFFFF
_NARROW = 8  # units of the narrowest table of strings; each next one is twice as wide
_CELLS = 1 << 16  # of a table
_SIGN32 = 0x80000000


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


def java_string_hashes(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.integer[Any]]
) -> npt.NDArray[np.int32]:
    """`String.hashCode` of n UTF-8 strings, as n int32: string i is `data[offsets[i]:offsets[i + 1]]`.

    `data` must be valid UTF-8. Strings of similar lengths are hashed together, as rows of a table.
    """
    ends = np.asarray(offsets, dtype=np.int64)
    units: npt.NDArray[Any] = data[int(ends[0]) : int(ends[-1])]
    ends = ends - ends[0]
    if units.size and int(units.max()) >= 0x80:
        units, ends = _utf16_units(units, ends)
    lengths = np.diff(ends)
    longest = int(lengths.max(initial=0))
    if (lengths == longest).all():
        return _hashes_of_rows(units.reshape(len(lengths), longest)).view(np.int32)
    hashes = np.zeros(len(lengths), dtype=np.uint32)
    padded = np.concatenate((np.zeros(longest, units.dtype), units))
    shorter = 0
    while shorter < longest:
        width = min(longest, max(_NARROW, 2 * shorter))
        rows = np.flatnonzero((lengths > shorter) & (lengths <= width))
        stops = ends[1:][rows] + longest
        for at in range(0, len(rows), _rows_of(width)):
            part = slice(at, at + _rows_of(width))
            table = _ending_at(padded, stops[part], lengths[rows[part]], width)
            hashes[rows[part]] = _hashes_of_rows(table)
        shorter = width
    return hashes.view(np.int32)


def _ending_at(
    units: npt.NDArray[Any], stops: npt.NDArray[Any], lengths: npt.NDArray[Any], width: int
) -> npt.NDArray[Any]:
    """The strings before `stops` as rows of `width` units, with zeros in front: they hash to 0."""
    kind = f"V{width * units.itemsize}"
    every = np.ndarray((len(units) - width + 1,), kind, units, strides=(units.itemsize,))
    table: npt.NDArray[Any] = every[stops - width].view(units.dtype).reshape(-1, width)
    table *= np.arange(width, dtype=np.int32) >= (width - lengths).astype(np.int32)[:, None]
    return table


def _hashes_of_rows(table: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The sum of unit[j] * 31**(n - 1 - j) modulo 2**32 of every row."""
    rows, width = table.shape
    powers = np.full(width, 31, dtype=np.uint32)
    powers[:1] = 1
    np.multiply.accumulate(powers, out=powers)
    hashes = np.empty(rows, dtype=np.uint32)
    for at in range(0, rows, _rows_of(width)):
        part = slice(at, at + _rows_of(width))
        hashes[part] = table[part].astype(np.uint32) @ powers[::-1]
    return hashes


def _rows_of(width: int) -> int:
    """Rows of a table that fits into the processor's cache."""
    return max(1, _CELLS // max(1, width))


def _utf16_units(
    raw: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """The same strings as UTF-16 code units, and their ends in units."""
    # Every byte except a continuation byte starts one unit; a four-byte lead starts two.
    per_byte = ((raw & 0xC0) != 0x80).astype(np.int64) + (raw >= 0xF0)
    before = np.zeros(len(raw) + 1, dtype=np.int64)
    np.cumsum(per_byte, out=before[1:])
    units = np.frombuffer(raw.tobytes().decode("utf-8").encode("utf-16-le"), dtype="<u2")
    return units, before[ends]


def index_key_hashes(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`index_key_hash` of a column of `String.hashCode` values."""
    positive = np.abs(hashes)
    positive[positive < 0] = 0  # the smallest int has no positive counterpart
    return positive
