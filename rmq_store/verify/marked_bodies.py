"""Bodies that are marked as compressed and that no client opens: its consumer stops there.

A broker that puts a half message back, after it asked the producer, leaves the mark on an opened body.
"""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.errors import BodyError
from rmq_store.format.array_types import Ints
from rmq_store.format.compression import begins_compressed, decompress
from rmq_store.format.sys_flag import SysFlag

_FRONT = 4  # bytes that show a compression


def unopened_bodies(headers: Headers, *, whole: bool) -> Ints:
    """The rows of marked bodies that do not begin as their compression, or that do not open if `whole`."""
    rows = np.flatnonzero((headers.sys_flag & SysFlag.COMPRESSED) != 0)
    return np.array([row for row in rows.tolist() if not _opens(headers, row, whole)], np.int64)


def _opens(headers: Headers, row: int, whole: bool) -> bool:
    at, flag = int(headers.body_at[row]), int(headers.sys_flag[row])
    length = int(headers.body_length[row])
    stored = headers.window[at : at + (length if whole else min(length, _FRONT))].tobytes()
    if not whole:
        return begins_compressed(stored, flag)
    try:
        decompress(stored, flag)
    except BodyError:
        return False
    return True
