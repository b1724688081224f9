"""Bodies that are marked as compressed and that no client opens: its consumer stops there.

A broker that puts a half message back, after it asked the producer, leaves the mark on an opened body.
"""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.errors import BodyError
from rmq_store.format.array_types import Ints
from rmq_store.format.compression import begin_compressed, decompress
from rmq_store.format.sys_flag import SysFlag

_FRONT = 4  # bytes that show a compression


def unopened_bodies(headers: Headers, *, whole: bool) -> Ints:
    """The rows of marked bodies that do not begin as their compression, or that do not open if `whole`."""
    rows: Ints = np.flatnonzero((headers.sys_flag & SysFlag.COMPRESSED) != 0)
    if whole:
        return np.array([row for row in rows.tolist() if not _opens(headers, row)], np.int64)
    # After the body is the topic, so that a short body has bytes behind it.
    at = headers.body_at[rows, np.newaxis] + np.arange(_FRONT)
    fronts = headers.window[np.minimum(at, len(headers.window) - 1)]
    begins = begin_compressed(fronts, headers.sys_flag[rows]) & (headers.body_length[rows] > 1)
    unopened: Ints = rows[~begins]
    return unopened


def _opens(headers: Headers, row: int) -> bool:
    at, length = int(headers.body_at[row]), int(headers.body_length[row])
    try:
        decompress(headers.window[at : at + length].tobytes(), int(headers.sys_flag[row]))
    except BodyError:
        return False
    return True
