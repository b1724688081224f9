"""Which entries of a DLedger log are its own, and which are left from before it was cut.

A member whose last entries no majority has cuts them off when a leader of a later term says so. Their
bytes stay, until others are written over them. A damaged head must not make the entries after it look
like such.
"""

from __future__ import annotations

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.record_runs import RecordRun
from rmq_store.files.checked_window import Window
from rmq_store.format.dledger import ENTRY_HEAD_SIZE, EntryHead


class EntryOrder:
    """Compares each run of entries with those before it in one walk."""

    def __init__(self) -> None:
        self._last: EntryHead | None = None

    def is_left_over(self, window: Window, base: int, run: RecordRun) -> bool:
        """Whether the entries of a run, in a window of a file that begins at `base`, are left over."""
        raw, known = window.bytes, self._last
        first, last = (
            EntryHead.of(raw[at - ENTRY_HEAD_SIZE : at].tobytes())
            for at in run.at[[0, -1]].tolist()
        )
        window.fetch([run.stop], [run.stop + 2 * ENTRY_HEAD_SIZE])
        after = EntryHead.of(raw[run.stop : run.stop + ENTRY_HEAD_SIZE].tobytes())
        alone = len(run.at) == 1 and after.fault_at(base + run.stop) is None
        in_order = known is None or (first.index > known.index and first.term >= known.term)
        if in_order:
            goes_on = after.index > first.index and after.term >= first.term
            if not alone or goes_on or _is_newer(window, base, run):
                self._last = last
            return False
        damaged = known is not None and after.index == known.index + 2 and after.term >= known.term
        return not (alone and damaged)


def _is_newer(window: Window, base: int, run: RecordRun) -> bool:
    """Whether the only record of a run was stored later than the one behind it in the file."""
    places = np.array([run.at[0], run.stop + ENTRY_HEAD_SIZE], dtype=np.int64)
    stored = Headers(window.bytes, places, base).store_timestamp
    return bool(stored[1] and stored[0] > stored[1])
