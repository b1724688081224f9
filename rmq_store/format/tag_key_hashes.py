"""The broker's Java hashes: of one value, and of whole columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_store.loops.hashes import hash_texts

_MASK32 = 0xFFFFFFFF
_SIGN32 = 0x80000000


def java_string_hash(text: str) -> int:
    """`String.hashCode`: a signed 32-bit hash of the UTF-16 code units."""
    value = 0
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
    """`String.hashCode` of n UTF-8 strings, as n int32: string i is `data[offsets[i]:offsets[i + 1]]`."""
    found = np.empty(len(offsets) - 1, dtype=np.int32)
    hash_texts(data.data, np.ascontiguousarray(offsets, dtype=np.int64).data, found.data)
    return found
