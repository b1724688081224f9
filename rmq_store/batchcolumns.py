"""Columns of a batch that is to be written: their types, their sizes, and what is said of a wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.errors import InvalidMessageError
from rmq_store.headers import Ints
from rmq_store.properties import buffers


def lengths(strings: pa.Array) -> Ints:
    """Bytes of every value."""
    return np.diff(buffers(strings)[0]).astype(np.int64)


def invalid(row: int, reason: str, **sides: Any) -> InvalidMessageError:
    sides.setdefault("advice", "Nothing of the batch was written")
    return InvalidMessageError(None, reason=f"message {row} of the batch: {reason}", **sides)


def cast_to(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidMessageError(
            None, reason=f"column {name} has the wrong type", expected=kind, actual=array.type
        ) from error
