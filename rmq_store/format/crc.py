"""CRC-32 as the broker computes it: of one body, and of many slices of the log."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from rmq_store.format.layout import CRC_MASK

_COPIED = 768  # bytes; a longer slice takes more time to copy than to slice
_IN_VIEW = 12  # bytes; Arrow's views hold the bytes of shorter strings themselves
_FEW = 64  # slices; below, to prepare the copies takes longer than they save
_COPIES_AT_A_TIME = 512  # so that they stay in the processor's cache
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<i4"), ("buffer", "<i4"), ("start", "<i4")])

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
    slice. If all slices are short, Arrow makes their objects faster than Python does.
    """
    many = len(starts) >= _FEW
    if many and int(lengths.min()) > _IN_VIEW and int(lengths.max()) <= _COPIED:
        return _crc32_of_copies(data, starts, lengths)
    view = data.data
    ends = (starts + lengths).tolist()
    crcs = [crc32(view[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.fromiter(crcs, np.int64, len(crcs))


def _crc32_of_copies(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """As `crc32_of_slices`, for slices that are longer than those that a view itself holds."""
    import pyarrow as pa  # what only looks at the files of a store does without

    views = np.zeros(len(starts), dtype=_VIEW)
    views["length"], views["start"] = lengths, starts
    slices = pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(data)]
    )
    crcs = np.empty(len(starts), dtype=np.int64)
    for at in range(0, len(starts), _COPIES_AT_A_TIME):
        copies = slices.slice(at, _COPIES_AT_A_TIME).to_numpy(zero_copy_only=False)
        crcs[at : at + len(copies)] = np.fromiter(map(crc32, copies), np.int64, len(copies))
    return crcs
