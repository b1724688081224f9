"""Bodies as stored, copied while their CRCs are checked."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from types import TracebackType

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import stored_bodies
from rmq_store.arrow.string_slices import OFFSETS_END
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.wrong_crc_rows import wrong_crc_rows
from rmq_store.format.array_types import Ints
from rmq_store.format.crc import fit_cells

_WORTH_A_THREAD = 2 << 20  # bytes; to copy fewer takes no longer than to start a thread


def checked_copies(headers: Headers) -> tuple[Ints, pa.Array] | None:
    """Rows with a wrong CRC and the bodies of all rows, from one pass over them.

    None if the bodies have several lengths, or are so long that a CRC is best computed in place.
    """
    lengths = headers.body_length
    if not fit_cells(lengths) or len(lengths) * int(lengths[0]) >= OFFSETS_END:
        return None
    count, length = len(lengths), int(lengths[0])
    data = pa.allocate_buffer(count * length)
    wrong = wrong_crc_rows(headers, np.frombuffer(data, dtype=np.uint8))
    ends = pa.py_buffer(np.arange(0, count * length + 1, length, dtype=np.int32))
    return wrong, pa.Array.from_buffers(pa.binary(), count, [None, ends, data])


class CopiedBodies:
    """The bodies of some records, copied inside of a `with` block by a thread if they are large.

    A CRC is a call per body, so its loop holds the interpreter's lock and one core; Arrow copies
    without the lock. The block ends when the copy has. Where no thread can be started, as in a
    container at its limit of processes, nothing is copied.
    """

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._found: pa.Array | None = None
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> CopiedBodies:
        if int(self._headers.body_length.sum()) >= _WORTH_A_THREAD:
            thread = Thread(target=self._copy, name="rmqstore-bodies", daemon=True)
            with suppress(RuntimeError):  # what `start` raises where the system refuses
                thread.start()
                self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._thread.join()

    def _copy(self) -> None:
        try:
            self._found = stored_bodies(self._headers)
        except BaseException as error:
            self._error = error

    def bodies(self) -> pa.Array | None:
        """The bodies, in order; None if no thread copied them. Raises what the copy raised."""
        if self._error is not None:
            raise self._error
        return self._found
