"""Find the bytes of a log range that no queue entry lists.

What entries do not list must be filler, a record that belongs in no queue, or a record of a topic that
was deleted. Everything else is a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmq_store.format.array_types import Columns, Ints
from rmq_store.format.queue_entries import ListedEntries
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.unlisted_records import MissingRecords, UnlistedRecords

_MOST_KEPT = 1 << 20  # places of entries, of 16 bytes each
_JOINED = 1 << 16  # gaps with at most this number of bytes between them are scanned in one go


@dataclass(slots=True)
class Places(Columns):
    """Entries by the places of their records: arrays of n, the log offset and the size in bytes."""

    log_offset: Ints
    size: Ints

    def by_log_offset(self) -> Places:
        """The places, sorted."""
        return self.take(np.argsort(self.log_offset, kind="stable"))


_NOTHING = Places(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


class SeenPlaces:
    """The places of all entries of some queues, noted while they are read.

    Records that follow each other without a gap take the room of two, so that of a sound log few are kept.
    """

    def __init__(self, fronts: Callable[[Ints], Ints]) -> None:
        """`fronts`: where the bytes begin that belong to the records at some log offsets."""
        self._fronts = fronts
        self._kept: list[Places] | None = []
        self._count = 0

    def noted(self, pieces: Iterable[ListedEntries]) -> Iterator[ListedEntries]:
        """The entries, each piece sorted by log offset."""
        for piece in pieces:
            if len(piece) and self._kept is not None:
                runs = self._runs(piece.log_offset, piece.size)
                self._kept.append(runs)
                self._count += len(runs.size)
                if self._count > _MOST_KEPT:
                    self._kept = None
            yield piece

    def places(self) -> Places | None:
        """Places without the gaps between any two records of a run; None if they were too many to keep.

        A run ends with the place of its last entry, and has one more for all before it.
        """
        return None if self._kept is None else Places.concat(self._kept or [_NOTHING])

    def _runs(self, log_offset: Ints, size: Ints) -> Places:
        front = self._fronts(log_offset)
        begins = np.flatnonzero(front[1:] != (log_offset + size)[:-1]) + 1
        first, last = np.append(0, begins), np.append(begins, len(size)) - 1
        long = last > first
        start = log_offset[first[long]]
        return Places(
            np.concatenate([start, log_offset[last]]),
            np.concatenate([front[last[long]] - start, size[last]]),
        )


class _Gaps(NamedTuple):
    """Ranges of the log between entries. Arrays of n, sorted."""

    start: Ints
    stop: Ints
    before: Ints  # log offset of the entry before each; -1 without one


def missing_in(
    records: UnlistedRecords,
    listed: Iterable[Places],
    queues: Collection[QueueId],
    start: int,
    stop: int,
) -> MissingRecords:
    """What `queues` lack of a log range that starts and stops at a record or at a file, and its damage.

    `listed`: all entries of the range, of any queue, sorted by log offset.
    """
    missing = MissingRecords()
    for gaps in _gaps_between(listed, records.fronts, start, stop):
        _look_at(records, queues, gaps, missing)
    return missing


def _gaps_between(
    listed: Iterable[Places], fronts: Callable[[Ints], Ints], start: int, stop: int
) -> Iterator[_Gaps]:
    reached, last = start, -1
    for log_offset, size in ((one.log_offset, one.size) for one in listed if len(one.size)):
        ends = np.concatenate([[reached], log_offset + size])
        np.maximum.accumulate(ends, out=ends)  # a record may be in several queues
        behind, front = ends[:-1], fronts(log_offset)
        # A damaged entry may lead out of the range.
        open_ = np.flatnonzero((front > behind) & (behind < stop))
        before = np.concatenate([[last], log_offset[:-1]])
        yield _Gaps(behind[open_], np.minimum(front[open_], stop), before[open_])
        reached, last = int(ends[-1]), int(log_offset[-1])
    if reached < stop:
        yield _Gaps(*(np.array([at]) for at in (reached, stop, last)))


def _look_at(
    records: UnlistedRecords, queues: Collection[QueueId], gaps: _Gaps, missing: MissingRecords
) -> None:
    cuts = np.flatnonzero(gaps.start[1:] - gaps.stop[:-1] > _JOINED) + 1
    edges = [0, *cuts.tolist(), len(gaps.start)] if len(gaps.start) else []
    for first, last in pairwise(edges):
        near = _Gaps(*(column[first:last] for column in gaps))
        # An entry may have a wrong size, so that a gap begins inside of its record, or behind it.
        end = records.record_end(int(near.before[0]))
        start = int(near.start[0]) if end < 0 else min(end, int(near.start[0]))
        for piece in records.look_at(queues, start, int(near.stop[-1]), missing):
            ends = np.array([records.record_end(at) for at in near.before.tolist()])
            low = np.maximum(np.maximum(near.start, ends), piece.start)
            unlisted = int((np.minimum(near.stop, piece.stop) - low).clip(0).sum())
            if unlisted:
                why = piece.reason or "a record that names another place"
                missing.damage.append((piece.start, unlisted, why))
