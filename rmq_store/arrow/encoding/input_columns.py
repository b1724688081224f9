"""Columns of a batch to be written: their types, their sizes, and errors for wrong values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.arrow.string_slices import buffers
from rmq_store.errors import InvalidMessageError
from rmq_store.format.array_types import Ints


def lengths(strings: pa.Array) -> Ints:
    """Bytes of every value."""
    return np.diff(buffers(strings)[0]).astype(np.int64)


def invalid(row: int, reason: str, **sides: Any) -> InvalidMessageError:
    """An InvalidMessageError for message `row` of a batch."""
    sides.setdefault("advice", "Nothing of the batch was written")
    return InvalidMessageError(None, reason=f"message {row} of the batch: {reason}", **sides)


def cast_to(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """The column cast to another type.

    Raises InvalidMessageError for an unrelated type, and for a value that does not fit, with its
    row and Arrow's message.
    """
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise InvalidMessageError(
            None, reason=f"column {name} has the wrong type", expected=kind, actual=array.type
        ) from error
    except pa.ArrowInvalid as of_column:
        row, why = _first_unfit(array, kind), of_column
        try:
            # Arrow's message for a whole column is not always about its first wrong value.
            array.slice(row, 1).cast(kind)
        except pa.ArrowInvalid as of_row:
            why = of_row
        raise invalid(
            row, f"column {name} does not fit: {why}", expected=kind, actual=array.type
        ) from why


def _first_unfit(array: pa.Array, kind: pa.DataType) -> int:
    """The first row whose value cannot be cast; the caller knows that there is one."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            array.slice(start, middle - start).cast(kind)
            start = middle
        except pa.ArrowInvalid:
            stop = middle
    return start
