"""Bodies as producers sent them, opened a limited number of bytes at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from rmq_store.commitlog.headers import Headers
from rmq_store.errors import BodyError
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.compression import decompress
from rmq_store.format.sys_flag import SysFlag

OPENED_BYTES = 16 << 20
"""Decompressed bytes in one batch, beside the stored ones. Only a single body may have more."""


def opened_bodies(
    headers: Headers,
    stored: pa.Array,
    needed: Mask,
    *,
    max_body_bytes: int,
    path: str | None,
    failed: Callable[[int, BodyError], None],
) -> Iterator[tuple[Ints, pa.Array]]:
    """Consecutive rows, as row numbers, and their bodies, in steps of up to OPENED_BYTES.

    `stored`: the bodies of all rows as stored. A body is decompressed according to sysFlag where
    `needed`; a frame need not say how large its content is, so each is opened to find out. A row
    that does not open goes to `failed`, and is left out if that returns.
    """
    step = _Step(stored, 0)
    compressed = (headers.sys_flag & SysFlag.COMPRESSED) != 0
    for row in np.flatnonzero(compressed & needed).tolist():
        try:
            body = decompress(
                step.stored[row].as_py(),
                int(headers.sys_flag[row]),
                max_body_bytes=max_body_bytes,
                path=path,
                log_offset=headers.base + int(headers.at[row]),
            )
        except BodyError as error:
            failed(row, error)
            step.failed.append(row)
            continue
        if step.bytes and step.bytes + len(body) > OPENED_BYTES:
            yield step.rows_until(row)
            step = _Step(step.stored, row)
        step.add(row, body)
        del body
    yield step.rows_until(len(headers))


class _Step:
    """Opened bodies of the rows from `start` on."""

    def __init__(self, stored: pa.Array, start: int) -> None:
        self.stored, self.start = stored, start
        self.failed: list[int] = []
        self.bytes = 0
        self._rows: list[int] = []
        self._bodies: list[bytes] = []

    def add(self, row: int, body: bytes) -> None:
        self._rows.append(row)
        self._bodies.append(body)
        self.bytes += len(body)

    def rows_until(self, stop: int) -> tuple[Ints, pa.Array]:
        """The rows up to `stop` that did not fail, and their bodies."""
        rows = np.arange(self.start, stop, dtype=np.int64)
        if self.failed:
            rows = np.setdiff1d(rows, self.failed)
        stored = self.stored.slice(self.start, stop - self.start)
        if not self._rows and not self.failed:
            return rows, stored
        opened = pa.array(self._bodies, pa.binary())
        self._bodies.clear()
        at = rows - self.start
        at[np.searchsorted(rows, self._rows)] = len(stored) + np.arange(len(self._rows))
        return rows, pa.concat_arrays([stored, opened]).take(pa.array(at))
