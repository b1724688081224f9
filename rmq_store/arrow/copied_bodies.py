"""Bodies as stored, copied in a thread beside other work on the same records."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from types import TracebackType

import pyarrow as pa

from rmq_store.arrow.column_values import stored_bodies
from rmq_store.commitlog.headers import Headers

_WORTH_A_THREAD = 2 << 20  # bytes; to copy fewer takes no longer than to start a thread


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
