"""The order of the entries of a BatchConsumeQueue, whose queue offsets may be damaged."""

from __future__ import annotations

import numpy as np

from rmq_store.consumequeue.bisection import longest_ascending
from rmq_store.format.queue_entries import Entries


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
