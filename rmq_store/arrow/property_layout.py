"""Property strings of one layout: in every row the same names, with values of equal lengths.

Most messages of one producer look like that, because ids, numbers and flags have fixed widths. Such
a batch is a table of bytes: each value is a range of its columns, and no separator search is
needed. `property_columns` handles all other strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.layout import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

Table = npt.NDArray[np.uint8]  # of shape (rows, bytes of a string)


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of every row, and the columns of their values."""

    names: tuple[bytes, ...]
    values: tuple[slice, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Bytes of each value."""
        return tuple(place.stop - place.start for place in self.values)


def layout_of(table: Table) -> Layout | None:
    """The layout that all rows share; None if they differ or are not regular.

    Regular means name, 0x01, value, 0x02, without empty parts and without repeated names.
    """
    layout = _layout_of_row(table[0])
    if layout is None:
        return None
    separators = 2 * len(layout.names)
    if np.count_nonzero(table <= PROPERTY_SEPARATOR) != separators * len(table):
        return None
    stop = 0
    for place in layout.values:  # the name with the separators around it
        if not _same_in_all_rows(table, stop, place.start):
            return None
        stop = place.stop
    return layout if _same_in_all_rows(table, stop, table.shape[1]) else None


def _layout_of_row(row: Table) -> Layout | None:
    names: list[bytes] = []
    values: list[slice] = []
    at = 0
    marks = np.flatnonzero(row <= PROPERTY_SEPARATOR).tolist()
    if len(marks) % 2:
        return None
    for name_end, item_end in zip(marks[0::2], marks[1::2], strict=True):
        regular = row[name_end] == NAME_VALUE_SEPARATOR and row[item_end] == PROPERTY_SEPARATOR
        if not regular or name_end == at or item_end == name_end + 1:
            return None
        names.append(row[at:name_end].tobytes())
        values.append(slice(name_end + 1, item_end))
        at = item_end + 1
    if at != len(row) or len(set(names)) != len(names):
        return None
    return Layout(tuple(names), tuple(values))


def _same_in_all_rows(table: Table, start: int, stop: int) -> bool:
    """Whether columns `start` to `stop` are equal in all rows; compares word by word."""
    word = largest_word(stop - start)
    for at in (*range(start, stop - word, word), stop - word):
        column = _columns(table, at, np.dtype(f"u{word}"))
        if (column != column[0]).any():
            return False
    return True


def largest_word(length: int) -> int:
    """Bytes of the largest number that fits in `length` bytes, at least one."""
    return next(size for size in (8, 4, 2, 1) if size <= length)


def _columns(table: Table, at: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """One item of `kind` per row, from column `at` on."""
    column: npt.NDArray[Any] = np.ndarray(
        (len(table),), kind, table, offset=at, strides=table.strides[:1]
    )
    return column


def value_column(table: Table, place: slice) -> pa.Array:
    """The value at `place` of every row, as strings."""
    width = place.stop - place.start
    data = np.ascontiguousarray(_columns(table, place.start, np.dtype(f"V{width}")))
    return _strings(len(table), (width,), data)


def all_values(table: Table, layout: Layout) -> pa.Array:
    """The values of all rows, row after row, as strings."""
    widths = layout.widths
    data = np.empty((len(table), sum(widths)), dtype=np.uint8)
    at = 0
    for place, width in zip(layout.values, widths, strict=True):
        kind = np.dtype(f"V{width}")
        _columns(data, at, kind)[:] = _columns(table, place.start, kind)
        at += width
    return _strings(len(table), widths, data)


def _strings(rows: int, widths: tuple[int, ...], data: npt.NDArray[Any]) -> pa.Array:
    offsets = _offsets(rows, widths)
    return pa.Array.from_buffers(
        pa.string(), rows * len(widths), [None, offsets, pa.py_buffer(data)]
    )


# Cached, because most batches have one size and producers use few layouts.
_KEPT = 16


@lru_cache(maxsize=_KEPT)
def _offsets(rows: int, widths: tuple[int, ...]) -> pa.Buffer:
    """Start and end offsets of strings of these widths, row after row."""
    ends = np.cumsum(widths)
    offsets = np.zeros(rows * len(widths) + 1, dtype=np.int32)
    offsets[1:] = (np.arange(rows)[:, None] * ends[-1] + ends).reshape(-1)
    return pa.py_buffer(offsets)


@lru_cache(maxsize=_KEPT)
def repeated_names(names: tuple[bytes, ...], rows: int) -> pa.Array:
    """The names of one row, repeated `rows` times, as strings."""
    widths = tuple(len(name) for name in names)
    data = np.frombuffer(b"".join(names) * rows, dtype=np.uint8)
    return _strings(rows, widths, data)
