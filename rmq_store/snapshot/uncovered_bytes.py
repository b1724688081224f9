"""The bytes of a log range that no queue entry lists, found while entries pass in log order.

A read of all queues knows every byte that an entry lists. What is left must be filler, a record that
belongs in no queue, or a record of a topic that was deleted. Everything else is a loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rmq_store.format.array_types import Ints
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.snapshot.unlisted_records import MissingRecords, UnlistedRecords

_JOINED = 1 << 16  # gaps with at most this number of bytes between them are scanned in one go


@dataclass(frozen=True, slots=True)
class WholeRange:
    """A log range [start, stop) of which a read has all entries of `queues`: of all users' topics.

    None means the log's start or end. `rest`: the parts of the other queues in the range. `beyond`:
    parts of any queue from `stop` to the next record, where `stop` is inside of damage.
    """

    queues: frozenset[QueueId]
    rest: tuple[QueueSlice, ...]
    start: int | None = None
    stop: int | None = None
    beyond: tuple[QueueSlice, ...] = ()

    @property
    def is_log(self) -> bool:
        """Whether it is the whole log."""
        return self.start is None and self.stop is None

    def covers(self, log_offset: int | None) -> bool:
        """Whether a log offset is in the range."""
        if log_offset is None:
            return False
        after = self.start is None or log_offset >= self.start
        return after and (self.stop is None or log_offset < self.stop)


class UncoveredBytes:
    """Collects them for one log range, which starts and stops at a record or at a file.

    `missing`: records of `queues` that their queue does not list. `damage`: the start and the length
    of damaged bytes that no entry lists, and the reason.
    """

    def __init__(
        self, records: UnlistedRecords, queues: Collection[QueueId], start: int, stop: int
    ) -> None:
        self._records, self._queues = records, queues
        self._reached, self._start, self._stop = start, start, stop
        self._last = -1  # log offset of the last entry
        self.missing = MissingRecords()
        self.damage: list[tuple[int, int, str]] = []

    def add(self, log_offset: Ints, size: Ints) -> None:
        """The next entries, sorted by log offset."""
        if not len(log_offset):
            return
        ends = np.empty(len(log_offset) + 1, dtype=np.int64)
        ends[0] = self._reached
        np.add(log_offset, size, out=ends[1:])
        reached = ends[:-1]
        if (log_offset != reached).any():
            np.maximum.accumulate(ends, out=ends)  # a record may be in several queues
            # A damaged entry may lead out of the range.
            open_ = np.flatnonzero((log_offset > reached) & (reached < self._stop))
            before = np.concatenate([[self._last], log_offset[:-1]])[open_]
            self._look_at(reached[open_], np.minimum(log_offset[open_], self._stop), before)
        self._reached, self._last = int(ends[-1]), int(log_offset[-1])

    def covers(self, log_offset: int) -> bool:
        """Whether a log offset is in the range."""
        return self._start <= log_offset < self._stop

    def close(self) -> None:
        """The range ends here."""
        if self._reached < self._stop:
            self._look_at(*(np.array([at]) for at in (self._reached, self._stop, self._last)))

    def _look_at(self, starts: Ints, stops: Ints, before: Ints) -> None:
        """Scan gaps of the log. `before`: the log offset of the entry before each gap."""
        for first, last in _groups(starts, stops):
            gaps = slice(first, last)
            start, stop = int(starts[first]), int(stops[last - 1])
            for piece in self._records.look_at(self._queues, start, stop, self.missing):
                # An entry may have a wrong size, so that a gap begins inside of its record.
                ends = np.array([self._records.record_end(at) for at in before[gaps].tolist()])
                low = np.maximum(np.maximum(starts[gaps], ends), piece.start)
                high = np.minimum(stops[gaps], piece.stop)
                unlisted = int((high - low).clip(0).sum())
                if unlisted:
                    why = piece.reason or "a record that names another place"
                    self.damage.append((piece.start, unlisted, why))


def _groups(starts: Ints, stops: Ints) -> Iterator[tuple[int, int]]:
    """First and last + 1 of neighbours among sorted gaps."""
    if not len(starts):
        return
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > _JOINED) + 1
    edges = [0, *cuts.tolist(), len(starts)]
    yield from pairwise(edges)
