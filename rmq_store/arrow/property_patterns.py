"""Property strings of few patterns. A pattern is the names of a row, in their order.

Producers use few of them, whatever the lengths of their values. So names are compared as words of
eight bytes, and looked up once for each pattern instead of once for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.arrow.string_slices import buffers
from rmq_store.format.array_types import Bytes, Ints

_WORD = 8  # bytes
_LONGEST_NAME = 4 * _WORD
_MOST_NAMES = 256  # a code is a byte
_MOST_PATTERNS = 1024
# Keeps the first n bytes of a word.
_FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Patterns:
    """The patterns of a batch of rows.

    `names`: those of each pattern. `of_row`: the pattern of each row. `name_lengths`: bytes of the
    name of each item, row after row.
    """

    names: Sequence[tuple[bytes, ...]]
    of_row: pa.Array
    name_lengths: Ints

    def places_of(self, name: bytes) -> Ints:
        """The place of a name among the items of each row; -1 in rows without it."""
        places = [names.index(name) if name in names else -1 for names in self.names]
        of_row: Ints = np.array(places, dtype=np.int64)[self.of_row.to_numpy()]
        return of_row

    def all_names(self) -> pa.Array:
        """The names of all items, row after row, as strings."""
        joined = pa.array([b"".join(names) for names in self.names], pa.binary())
        _, data = buffers(joined.take(self.of_row))
        ends = np.zeros(len(self.name_lengths) + 1, dtype=np.int32)
        np.cumsum(self.name_lengths, out=ends[1:])
        return pa.Array.from_buffers(
            pa.string(), len(self.name_lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)]
        )


def patterns_of(raw: Bytes, name_at: Ints, name_length: Ints, per_row: Ints) -> Patterns | None:
    """The patterns of rows with `per_row` items, whose names have no bytes of 0.

    None for many patterns, long names, or a name that is repeated in a row.
    """
    keys = _words_of(raw, name_at, name_length)
    if keys is None:
        return None
    found = keys.dictionary_encode()
    if len(found.dictionary) > _MOST_NAMES:
        return None
    spelled = [_bytes_of(key) for key in found.dictionary.to_pylist()]
    codes = found.indices.to_numpy().astype(np.uint8)
    ends = np.zeros(len(per_row) + 1, dtype=np.int32)
    np.cumsum(per_row, out=ends[1:])
    rows = pa.Array.from_buffers(
        pa.binary(), len(per_row), [None, pa.py_buffer(ends), pa.py_buffer(codes)]
    ).dictionary_encode()
    patterns: list[bytes] = rows.dictionary.to_pylist()
    if len(patterns) > _MOST_PATTERNS or any(len(set(one)) < len(one) for one in patterns):
        return None
    names = [tuple(spelled[code] for code in pattern) for pattern in patterns]
    return Patterns(names, rows.indices, name_length)


def words_of_names(raw: Bytes, at: Ints, length: Ints) -> npt.NDArray[np.uint64] | None:
    """The first eight bytes of each name, filled with zeros; None if `raw` has fewer.

    The names ascend and have no bytes of 0.
    """
    return _masked_words(raw, at, length) if len(raw) >= _WORD else None


def _words_of(raw: Bytes, at: Ints, length: Ints) -> pa.Array | None:
    """Each name as words of eight bytes, filled with zeros; None if it needs too many."""
    longest = int(length.max(initial=0))
    if not longest or longest > _LONGEST_NAME or len(raw) < _WORD:
        return None
    count = -(-longest // _WORD)
    words: npt.NDArray[np.uint64] = np.zeros((len(at), count), dtype="<u8")
    words[:, 0] = _masked_words(raw, at, length)
    for number in range(1, count):
        rows = np.flatnonzero(length > number * _WORD)  # few names are that long
        done = number * _WORD
        words[rows, number] = _masked_words(raw, at[rows] + done, length[rows] - done)
    if count == 1:
        return pa.array(words.reshape(-1))
    kind = pa.binary(count * _WORD)
    return pa.Array.from_buffers(kind, len(at), [None, pa.py_buffer(words)])


def _masked_words(raw: Bytes, at: Ints, length: Ints) -> npt.NDArray[np.uint64]:
    """Eight bytes from each position on, ascending; zeros from `length` on."""
    every = np.ndarray((len(raw) - _WORD + 1,), dtype="<u8", buffer=raw, strides=(1,))
    words: npt.NDArray[np.uint64] = np.empty(len(at), dtype="<u8")
    whole = int(np.searchsorted(at, len(every)))  # the others are in the last word of the buffer
    words[:whole] = every[at[:whole]]
    words[whole:] = every[-1] >> (8 * (at[whole:] - len(every) + 1)).astype(np.uint64)
    words &= _FIRST_BYTES[np.minimum(length, _WORD)]
    return words


def _bytes_of(key: int | bytes) -> bytes:
    raw = key.to_bytes(_WORD, "little") if isinstance(key, int) else key
    return raw.rstrip(b"\0")
