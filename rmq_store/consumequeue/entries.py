"""Queue entries as columns: the content of a range of a ConsumeQueue or BatchConsumeQueue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_store.consumequeue.bisection import longest_ascending
from rmq_store.format.array_types import Columns, Ints, concatenated
from rmq_store.format.layout import FILLER_SIZE


@dataclass(slots=True)
class Entries(Columns):
    """n queue entries as int64 arrays of n in native byte order.

    `offset` is the queueOffset of the (first) message. `count` is the number of messages in the
    record.
    """

    offset: Ints
    log_offset: Ints
    size: Ints
    tags_code: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def points_to_record(self) -> npt.NDArray[np.bool_]:
        """Mask of the entries that point to a record; filler and zeros do not."""
        points: npt.NDArray[np.bool_] = (self.size > 0) & (self.size != FILLER_SIZE)
        return points & (self.log_offset >= 0)


def no_entries() -> Entries:
    """Entries of length 0."""
    return Entries(*(np.zeros(0, dtype=np.int64) for _ in range(5)))


def hole_at(at: int) -> Entries:
    """The entry that stands for the missing units from `at` on, which no file holds."""
    nothing = np.zeros(1, dtype=np.int64)
    return Entries(nothing + at, nothing, nothing, nothing, nothing + 1)


def is_in_order(entries: Entries) -> bool:
    """Whether each entry has messages, and their queue offsets follow those of the one before."""
    ends = entries.offset + entries.count
    return bool((entries.count > 0).all() and (entries.offset[1:] == ends[:-1]).all())


def in_order(entries: Entries) -> Entries:
    """The entries of a BatchConsumeQueue in ascending order of queue offsets.

    Of those with messages, the longest ascending sequence keeps its offsets. Each other entry gets
    the next offset at its place, and points to no record.
    """
    good = np.zeros(len(entries), dtype=bool)
    filled = np.flatnonzero(entries.points_to_record & (entries.count > 0))
    good[filled[longest_ascending(entries.offset[filled].tolist())]] = True
    nothing = np.zeros_like(entries.offset)
    mended = Entries(
        entries.offset.copy(),
        np.where(good, entries.log_offset, nothing - 1),
        np.where(good, entries.size, nothing),
        entries.tags_code,
        np.where(good, entries.count, nothing + 1),
    )
    following = np.flatnonzero(good)
    room = np.diff(mended.offset[following])  # up to the next entry; a count may be damaged as well
    mended.count[following[:-1]] = np.minimum(mended.count[following[:-1]], room)
    for row in np.flatnonzero(~good).tolist():
        at = int(np.searchsorted(following, row))
        end = int(mended.offset[row - 1] + mended.count[row - 1]) if row else 0
        if at < len(following):
            after = int(entries.offset[following[at]])
            end = min(end, after) if row else max(0, after - int(following[at]))
        mended.offset[row] = end
    return mended


def concat_entries(parts: Sequence[Entries]) -> Entries:
    """The entries of `parts` in one object, in order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_entries()
    return Entries(*concatenated(parts, Entries.__match_args__))
