"""Arrow views of many slices of one buffer, without a copy of their bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmq_store.format.array_types import Bytes, Ints

LONGEST_IN_VIEW = 12
"""Bytes; a view holds the bytes of a string of up to this length itself."""

_LENGTH, _START = 0, 3  # of four 32-bit words; between them a prefix and the buffer's number


def slice_views(data: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """`data[starts[i]:starts[i] + lengths[i]]` as n values of a view type.

    `data` must be smaller than 2 GiB, and each slice longer than LONGEST_IN_VIEW. The prefixes are
    zero, so the values may be copied (cast, to_numpy) but not compared. A cast to a type with 32-bit
    offsets is right for less than 2 GiB in all.
    """
    words = np.zeros((len(starts), 4), dtype=np.int32)
    words[:, _LENGTH], words[:, _START] = lengths, starts
    return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(words), pa.py_buffer(data)])
