"""Compare records of the log with the entries of their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.errors import MissingFileError, StoreError
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.queue_entries import QUEUE_ENTRY, Entries, no_entries
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_view import QueueView

_KEPT = 1 << 22  # entries kept in the order of the log, of all queues; 16 bytes each


@dataclass(frozen=True, slots=True)
class Compared:
    """Records of one queue beside the entries of the queue. Arrays of n, one element a record.

    Without an entry at the record's queueOffset, `listed`, `taken` and `reused` are false. A broker skips
    a record that is `taken`; so it does if the earlier one has the queueOffset 0, which it always lists.
    """

    listed: Mask  # the entry at its queueOffset leads to it
    place: Ints  # of a record that is not `listed`: where the queue lists it; -1 if nowhere
    taken: Mask  # that entry leads to an earlier record with that queueOffset
    reused: Mask  # that entry leads to a later record with that queueOffset: a topic created again
    tags_code: Ints  # of that entry

    @property
    def lost(self) -> Mask:
        """Those that a broker would list, and the queue does nowhere."""
        found: Mask = ~self.listed & (self.place < 0) & ~self.taken & ~self.reused
        return found


class ListedPlaces(NamedTuple):
    """The entries of a queue that point to a record, in log order; one of -1 if there is none.

    Arrays of n.
    """

    log_offset: Ints
    offset: Ints  # queue offset

    @classmethod
    def of(cls, entries: Entries) -> ListedPlaces:
        """That of some entries."""
        entries = entries.take(entries.points_to_record)
        entries = entries.take(np.argsort(entries.log_offset, kind="stable"))
        if len(entries):
            return cls(entries.log_offset, entries.offset)
        return cls(*(np.full(1, -1, dtype=np.int64) for _ in range(2)))


class RecordComparison:
    """Compares records with the entries of the queues of one view."""

    def __init__(self, view: QueueView) -> None:
        self._view, self._log, self._snapshot = view, view.log, view.snapshot
        self._listings: dict[QueueId, ListedPlaces] = {}

    def compare(
        self, queue: QueueId, requests: DispatchRequests, rows: Ints, entries: Entries
    ) -> Compared:
        """Rows of one queue, in ascending order of queue offsets, beside the `entries` of that range."""
        offset, log_offset = requests.offset[rows], requests.log_offset[rows]
        nothing = np.zeros(len(rows), dtype=bool)
        if not len(entries):
            places = self._places(queue, log_offset)
            return Compared(nothing, places, nothing, nothing, np.zeros_like(places))
        # Of two entries of one queue offset in a BatchConsumeQueue, the first leads to no record.
        at = np.maximum(np.searchsorted(entries.offset, offset, side="right") - 1, 0)
        there = entries.offset[at] == offset
        listed = there & (entries.log_offset[at] == log_offset)
        listed &= entries.size[at] == requests.size[rows]
        place = np.full(len(rows), -1, dtype=np.int64)
        taken, reused = nothing.copy(), nothing.copy()
        others = np.flatnonzero(~listed)
        if len(others):
            place[others] = self._places(queue, log_offset[others])
            others = others[there[others] & (entries.log_offset[at[others]] != log_offset[others])]
            listing = entries.take(at[others])
            own = self._own_offsets(queue, listing)
            earlier = listing.log_offset < log_offset[others]
            # A broker lists each record with the queueOffset 0, whatever the queue has by then.
            taken[others] = earlier & ((own == offset[others]) | (own == 0))
            reused[others] = ~earlier & (own == offset[others])
        return Compared(listed, place, taken, reused, entries.tags_code[at])

    def _own_offsets(self, queue: QueueId, entries: Entries) -> Ints:
        """The queueOffset of the record that each entry leads to; -1 if it is no record of the queue."""
        own = np.full(len(entries), -1, dtype=np.int64)
        try:
            for rows, headers in self._log.whole_headers(entries.log_offset, entries.size):
                found = self._view.requests_of(DecodedRecords.of(headers))
                mine = np.array([one == queue for one in found.queues], dtype=bool)[found.queue]
                places, offsets = found.log_offset[mine].tolist(), found.offset[mine].tolist()
                known = dict(zip(places, offsets, strict=True))
                own[rows] = [known.get(where, -1) for where in entries.log_offset[rows].tolist()]
        except MissingFileError:
            pass  # it has expired since the store was opened
        return own

    def _places(self, queue: QueueId, log_offsets: Ints) -> Ints:
        """The queue offset at which a queue lists the record at each log offset; -1 if at none."""
        listed = self._listing_of(queue, log_offsets)
        at = np.minimum(np.searchsorted(listed.log_offset, log_offsets), len(listed.offset) - 1)
        found: Ints = np.where(listed.log_offset[at] == log_offsets, listed.offset[at], -1)
        return found

    def _listing_of(self, queue: QueueId, log_offsets: Ints) -> ListedPlaces:
        """What a queue lists, at least what leads from the first to the last of these places.

        A damaged queue may list a record anywhere. So all entries are read and kept, unless they are
        so many that only those where the record would be are looked at. A damaged queue that cannot
        be read lists nothing: its reader reports it.
        """
        if not len(log_offsets):
            return ListedPlaces.of(no_entries())
        try:
            return self._read_listing(queue, int(log_offsets.min()), int(log_offsets.max()) + 1)
        except StoreError:
            return ListedPlaces.of(no_entries())

    def _read_listing(self, queue: QueueId, start: int, stop: int) -> ListedPlaces:
        if queue in self._listings:
            return self._listings[queue]
        state = self._snapshot.queues[queue]
        low, high = state.min_offset, state.max_offset
        units = state.file_stop - state.file_start + (0 if state.tail is None else len(state.tail))
        if min(high - low, units) > min(_KEPT, self._log.chain.cost.spare // QUEUE_ENTRY.itemsize):
            low, high = (
                self._view.offset_at_log(queue, start),
                self._view.offset_at_log(queue, stop),
            )
            return ListedPlaces.of(self._view.entries(queue, low, high))
        kept = ListedPlaces.of(self._view.entries(queue, low, high))
        if sum(len(one.offset) for one in self._listings.values()) + len(kept.offset) > _KEPT:
            self._listings = {}
        self._listings[queue] = kept
        return kept
