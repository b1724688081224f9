"""Many substrings of one buffer as one Arrow string column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import InvalidArgumentError
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.properties import decode_utf8
from rmq_store.format.slice_views import LONGEST_IN_VIEW, slice_views

OFFSETS_END = 2**31 - 1
"""Bytes; a column of more has no 32-bit offsets."""

_SHORT = 256  # bytes
_SMALL = 4 << 20  # bytes
_VIEWS = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


def slices(source: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """An Arrow array (string or binary) of the slices `source[starts[i]:starts[i] + lengths[i]]`.

    The slices ascend. The bytes are copied, so nothing keeps `source` alive. `source` must be smaller
    than 2 GiB. Raises InvalidArgumentError if all slices together are not.
    """
    count = len(starts)
    length = int(lengths[0]) if count else 0
    if 0 < length <= _SHORT and length * count <= _SMALL and (lengths == length).all():
        return _slices_of_one_length(source, starts, length, kind)
    if int(lengths.sum()) >= OFFSETS_END:  # not every release of Arrow notices
        raise InvalidArgumentError(
            None,
            reason="a column of one batch has 2 GiB or more",
            advice="Read with smaller batches: batch_bytes and batch_rows limit them",
        )
    if count and int(lengths.min()) > LONGEST_IN_VIEW:
        return slice_views(source, starts, lengths, _VIEWS[kind]).cast(kind)
    return every_second(alternating(source, starts, lengths, kind))


def alternating(source: Bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """Slice i of `source` as element 2 * i, without a copy; only these elements may be taken.

    The others are the bytes between slices. If slices do not ascend, they have negative lengths.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + lengths
    offsets[-1] = offsets[-2] if count else 0
    return pa.Array.from_buffers(
        kind, 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(source)]
    )


def every_second(array: pa.Array) -> pa.Array:
    """A copy of elements 0, 2, 4 and so on."""
    return array.take(pa.array(np.arange(0, len(array), 2, dtype=np.int32)))


def _slices_of_one_length(source: Bytes, starts: Ints, length: int, kind: pa.DataType) -> pa.Array:
    """Slices of equal length, such as ids: one fancy index over items of that length.

    Only for short slices: numpy requests memory from the system each time, Arrow's pool does not.
    """
    every = np.ndarray((len(source) - length + 1,), dtype=f"V{length}", buffer=source, strides=(1,))
    offsets = np.arange(0, len(starts) * length + 1, length, dtype=np.int32)
    data = pa.py_buffer(every[starts].view(np.uint8))
    return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(offsets), data])


def buffers(array: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Offsets and data of a string or binary array that starts at 0, as numpy views."""
    _, offsets, data = array.buffers()
    first = array.offset
    ends = np.frombuffer(offsets, dtype=np.int32)[first : first + len(array) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    return ends, raw


def as_java_reads(strings: pa.Array) -> pa.Array:
    """A binary array as strings; replaces malformed UTF-8 as `new String(raw, UTF_8)` does."""
    ends, raw = buffers(strings)
    used = raw[int(ends[0]) : int(ends[-1])]
    if not used.size or int(used.max()) < 0x80:
        return strings.view(pa.string())
    try:
        return strings.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode_utf8(raw) for raw in strings.to_pylist()], pa.string())
