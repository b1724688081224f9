"""CRC-32 as the broker computes it: of one body, and of many slices of the log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from rmq_store.format.layout import CRC_MASK

_COPIED = 768  # bytes; a longer slice takes more time to copy than to slice
_FEW = 64  # slices; below, to prepare the copies takes longer than they save
_COPIES_AT_A_TIME = 512  # so that they stay in the processor's cache
_LONGEST_IN_CELL = 2048  # bytes; the CRC of a longer slice takes much longer than its call
_CELL_BYTES = 256 << 10  # of all cells, which stay in the cache too

crc32: Callable[..., int] = zlib_ng.crc32
"""zlib's CRC-32 of any buffer; uses the processor's carry-less multiply if available."""


def body_crc(body: bytes | memoryview) -> int:
    """bodyCRC of a record: CRC-32 without bit 31; 0 for an empty body."""
    return crc32(body) & CRC_MASK


def crc32_of_slices(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """CRC-32 of every `data[starts[i]:starts[i] + lengths[i]]`, as n int64.

    `data` must be smaller than 2 GiB. This is the only loop per message in the fast paths, because
    a CRC has no vector form. The CRC runs at memory speed; the cost is one call and one object per
    slice. Slices of one length need no objects of their own. If all slices are short, Arrow makes
    their objects faster than Python does.
    """
    if fit_cells(lengths):
        return crc32_of_one_length(data, starts, int(lengths[0]))
    if len(starts) >= _FEW and int(lengths.max()) <= _COPIED:
        of_copies = _crc32_of_copies(data, starts, lengths)
        if of_copies is not None:
            return of_copies
    view = data.data
    ends = (starts + lengths).tolist()
    crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.fromiter(crcs, np.int64, len(crcs))


def fit_cells(lengths: npt.NDArray[np.int64]) -> bool:
    """Whether slices of these lengths are many, of one length, and not long."""
    if len(lengths) < _FEW or not 0 < lengths[0] <= _LONGEST_IN_CELL:
        return False
    return bool((lengths == lengths[0]).all())


def crc32_of_one_length(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    length: int,
    copies: npt.NDArray[np.uint8] | None = None,
) -> npt.NDArray[np.int64]:
    """As `crc32_of_slices`, for slices of one length, which must be positive.

    Copies some slices at a time into the same cells, whose memory has its Python objects already.
    `copies`, of n * length bytes, receives all slices, end to end.
    """
    every = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    count = min(len(starts), _COPIES_AT_A_TIME, _CELL_BYTES // length)
    memory = np.empty(count, every.dtype)
    view = memory.view(np.uint8).data
    cells = [view[at : at + length] for at in range(0, count * length, length)]
    crcs = np.empty(len(starts), dtype=np.int64)
    target = None if copies is None else copies.view(every.dtype)
    for at in range(0, len(starts), count):
        some = starts[at : at + count]
        memory[: len(some)] = every[some]
        crcs[at : at + count] = np.fromiter(map(crc32, cells[: len(some)]), np.int64, len(some))
        if target is not None:
            target[at : at + count] = memory[: len(some)]
    return crcs


def _crc32_of_copies(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | None:
    """As `crc32_of_slices`; None if a slice is too short to be outside its view."""
    # What only looks at the files of a store does without Arrow, so it is not loaded with this.
    import pyarrow as pa

    from rmq_store.format.slice_views import LONGEST_IN_VIEW, slice_views

    if int(lengths.min()) <= LONGEST_IN_VIEW:
        return None
    slices = slice_views(data, starts, lengths, pa.binary_view())
    crcs = np.empty(len(starts), dtype=np.int64)
    for at in range(0, len(starts), _COPIES_AT_A_TIME):
        copies = slices.slice(at, _COPIES_AT_A_TIME).to_numpy(zero_copy_only=False)
        crcs[at : at + len(copies)] = np.fromiter(map(crc32, copies), np.int64, len(copies))
    return crcs
