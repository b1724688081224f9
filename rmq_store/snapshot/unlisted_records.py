"""Records of the log that their queue does not list: before, after or among its entries.

The rule by which a record counts as listed is `compare`, which `verify` uses too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmq_store.arrow.column_values import numbered_topics
from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.record_or_gap import Extent, SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.consumequeue.entry_of_record import DispatchRequests, numbered_queues
from rmq_store.errors import ListedAt, MissingFileError, StoreError
from rmq_store.files.cost import LOCAL
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.byte_layout import RECORD_HEAD
from rmq_store.format.queue_entries import (
    QUEUE_ENTRY,
    Entries,
    ListedEntries,
    Queues,
    concat_entries,
    no_entries,
)
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.record import Gap
from rmq_store.snapshot.files_of_other_queues import (
    FilesOfOtherQueues,
    are_of_others,
    edges_of_files,
)
from rmq_store.snapshot.queue_range import EMPTY_QUEUE

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView

MOST_LISTED = 250_000
"""Entries of all queues, up to which a read that reaches a queue's end compares them with the whole log.

Their places and sizes say which bytes no queue lists, and only these are looked at: 10 to 20 ms for so
many, once a snapshot. In a larger store it would take longer than many a read.
"""

_DAMAGE = (Gap.DAMAGED, Gap.TORN, Gap.STALE)
_MOST_GAPS = 10  # damaged ranges that are compared with what queues list there
MOST_NAMED = 10_000  # records inside of queues that are reported one by one
_KEPT = 1 << 22  # entries kept in the order of the log, of all queues; 16 bytes each
_ENTRIES_TRIED = 64  # last entries of a queue, for one that points to a record


@dataclass(frozen=True, slots=True)
class Missing:
    """Records of one queue that the queue does not list: their number, and the first of them."""

    count: int
    offset: int  # queue offset
    log_offset: int
    size: int
    stop: int = 0  # queue offset after the last of them


class Unlisted(NamedTuple):
    """A record inside of its queue that is in no entry.

    `skipped`: an earlier record has its queueOffset, so that a broker does not list it.
    """

    at: ListedAt
    skipped: bool


@dataclass(slots=True)
class MissingRecords:
    """What ranges of the log have and queues lack: at their `ends`, and `inside` of them.

    `between`: by queue, those inside that no broker skips, also where a damaged entry stands for them;
    `covered_up`: those of them for which an entry stands that leads to another place of the log.
    `further`: the number of more records inside of a queue, where there are too many to name. `damage`:
    the start and the length of damaged bytes that no entry lists, and the reason. `gaps`: the first damage
    of a range that was searched for what its queues lack, whatever they list there. `queueless`: records of
    queues without messages, of bytes that no entry lists.
    """

    ends: dict[QueueId, Missing] = field(default_factory=dict)
    between: dict[QueueId, Missing] = field(default_factory=dict)
    covered_up: dict[QueueId, Missing] = field(default_factory=dict)
    inside: list[Unlisted] = field(default_factory=list)
    further: Counter[QueueId] = field(default_factory=Counter)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    gaps: list[Extent] = field(default_factory=list)
    queueless: list[DispatchRequests] = field(default_factory=list)

    def add_inside(self, unlisted: Iterable[Unlisted]) -> None:
        """Add records inside of queues."""
        for one in unlisted:
            if len(self.inside) < MOST_NAMED:
                self.inside.append(one)
            else:
                self.further[QueueId(one.at.topic, one.at.queue_id)] += 1


@dataclass(frozen=True, slots=True)
class Compared:
    """Records of one queue beside the entries of the queue. Arrays of n, one element a record.

    Without an entry at the record's queueOffset, `listed`, `taken` and `reused` are false. A broker skips
    a record that is `taken`; so it does if the earlier one has the queueOffset 0, which it always lists.
    No damaged entry stands for a `displaced` one: that entry leads to a record of the queue that is
    listed only there, or a queue of batches has no such entry.
    """

    listed: Mask  # the entry at its queueOffset leads to it
    place: Ints  # of a record that is not `listed`: where the queue lists it; -1 if nowhere
    taken: Mask  # that entry leads to an earlier record with that queueOffset
    reused: Mask  # that entry leads to a later record with that queueOffset: a topic created again
    displaced: Mask
    covered_up: Mask  # that entry leads into the log, to no record of the queue
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


class UnlistedRecords:
    """Looks for such records in ranges of the log of one snapshot."""

    def __init__(self, view: QueueView) -> None:
        self._view, self._log, self._snapshot = view, view.log, view.snapshot
        self._listings: dict[QueueId, ListedPlaces] = {}

    @property
    def most_listed(self) -> int:
        """MOST_LISTED, or fewer where entries cost requests."""
        return min(MOST_LISTED, self._log.chain.cost.spare // QUEUE_ENTRY.itemsize)

    @cached_property
    def all_listed(self) -> ListedEntries | None:
        """All entries that lead into the log, in log order; None if they are many, or a queue is damaged.

        Without those of files of other queues.
        """
        if self._all_entries is None:
            return None
        listed, _, of_others = self._all_entries
        listed = listed.take(~of_others)
        return listed.take(np.argsort(listed.log_offset, kind="stable"))

    @cached_property
    def of_other_queues(self) -> FilesOfOtherQueues:
        """The files of other queues. Where the entries are many, of as many as are looked at quickly."""
        found, is_all = self._all_entries, True
        if found is None and self._log.chain.cost is LOCAL:
            edges, is_all = edges_of_files(self._view, self._snapshot.queues)
            found = self._listed_in(edges)
        if found is None:
            return FilesOfOtherQueues(is_all=False)
        listed, file, of_others = found
        return FilesOfOtherQueues.among(listed, of_others, file, self._view, is_all=is_all)

    @cached_property
    def _all_entries(self) -> tuple[ListedEntries, Ints, Mask] | None:
        states = self._snapshot.queues
        slices = [QueueSlice(q, one.min_offset, one.max_offset) for q, one in states.items()]
        count = sum(one.max_offset - one.min_offset for one in states.values())
        if self._snapshot.part or not 0 < count <= self.most_listed:
            return None
        return self._listed_in(slices)

    def _listed_in(self, slices: Sequence[QueueSlice]) -> tuple[ListedEntries, Ints, Mask] | None:
        """The entries of some slices that lead into the log, the number of each one's file in its queue, and
        a mask of those of other queues. None if a queue is damaged: who reads it reports it."""
        queues, end = Queues(self._snapshot.queues), self._snapshot.log_end
        numbers = {queue: number for number, queue in enumerate(queues)}
        try:
            per_file = np.array([self._view.units_per_file(one) for one in queues], dtype=np.int64)
            self._view.fetch_ahead(slices)
            found = [self._view.entries(one.queue, one.start, one.stop) for one in slices]
        except StoreError:
            return None
        counts = [len(one.offset) for one in found]
        number = np.repeat([numbers[one.queue] for one in slices], counts)
        listed = concat_entries(found).extended(
            ListedEntries, queues=queues, queue=number.astype(np.int64)
        )
        listed = listed.take(listed.points_to_record & (listed.log_offset <= end - listed.size))
        file = listed.offset // per_file[listed.queue]
        return listed, file, are_of_others(self._log, listed, file)

    def search(self, queues: Collection[QueueId], start: int, stop: int) -> MissingRecords:
        """What the log has in [start, stop) for `queues`, and they do not list."""
        missing = MissingRecords()
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                self._note_missing(queues, self._requests_of(piece.headers), missing)
            elif len(missing.gaps) < _MOST_GAPS and self.is_damage(piece):
                missing.gaps.append(piece)
        return missing

    def search_at(self, places: Ints) -> MissingRecords:
        """As `search`, for all queues and the whole records that start at some log offsets."""
        missing, chain = MissingRecords(), self._log.chain
        for file in chain.segments:
            within = (places >= file.base) & (places < chain.segment_end(file))
            try:
                for _, headers in self._log.whole_headers(places[within]):
                    requests = self._requests_of(headers)
                    self._note_missing(self._snapshot.queues.keys(), requests, missing)
            except MissingFileError:
                continue  # it has expired since the store was opened
        return missing

    def fronts(self, places: Ints) -> Ints:
        """Where the bytes that belong to the records at some log offsets begin."""
        return self._log.fronts(places)

    def record_end(self, place: int) -> int:
        """Where the record at a log offset ends; -1 if there is none."""
        try:
            return place + self._log.record_at(place).total_size if place >= 0 else -1
        except StoreError:
            return -1

    def end_before(self, place: int) -> int:
        """Where the last whole record that a queue lists before a log offset ends, or the log begins."""
        listed, step = self.all_listed, 64
        if listed is None:
            return place
        stop = int(np.searchsorted(listed.log_offset, place))
        while stop:
            some = listed.take(slice(max(0, stop - step), stop))
            whole = self._log.whole_records(some.log_offset, some.size)
            if whole.any():
                return min(place, int((some.log_offset + some.size)[whole][-1]))
            stop, step = stop - len(some), 2 * step
        return self._snapshot.log_start

    def look_at(
        self, queues: Collection[QueueId], start: int, stop: int, missing: MissingRecords
    ) -> Iterator[Extent]:
        """As `search`, added to `missing`. Yields the damage in the range."""
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                requests = self._requests_of(piece.headers)
                self._note_missing(queues, requests, missing)
                missing.queueless.append(requests.take(self._queueless(requests)))
            elif self.is_damage(piece):
                yield piece

    def _queueless(self, requests: DispatchRequests) -> Mask:
        """Mask of the records whose queue has no messages."""
        there = self._snapshot.queues
        states = (there.get(queue, EMPTY_QUEUE) for queue in requests.queues)
        empty = np.array([one.min_offset >= one.max_offset for one in states], dtype=bool)
        found: Mask = empty[requests.queue]
        return found

    def _note_missing(
        self, queues: Collection[QueueId], requests: DispatchRequests, missing: MissingRecords
    ) -> None:
        asked = np.array([queue in queues for queue in requests.queues], dtype=bool)
        rows = np.flatnonzero(asked[requests.queue] & ~self._is_listed(requests))
        if not len(rows):
            return
        states = self._snapshot.queues
        there = [states[q] if q in queues else EMPTY_QUEUE for q in requests.queues]
        low = np.array([state.min_offset for state in there], dtype=np.int64)
        high = np.array([state.max_offset for state in there], dtype=np.int64)
        outside = requests.offset < low[requests.queue]
        outside |= requests.offset >= high[requests.queue]
        for queue, mine in requests.by_queue(rows):
            before_or_after = outside[mine]
            lost = mine[before_or_after]
            if len(lost):
                lost = self._lost(queue, requests, lost)
            if len(lost):
                missing.ends[queue] = _added(missing.ends.get(queue), requests, lost)
            missing.add_inside(self._inside(queue, requests, mine[~before_or_after], missing))

    def _is_listed(self, requests: DispatchRequests) -> Mask:
        """Mask of the records that their queue lists, of those that no other lists; where that is known."""
        listed = self.all_listed
        if listed is None or not len(listed):
            return np.zeros(len(requests), dtype=bool)
        number, last = self._number_of_listed, len(listed.offset) - 1
        queue = np.array([number.get(one, -1) for one in requests.queues], dtype=np.int64)
        at = np.minimum(np.searchsorted(listed.log_offset, requests.log_offset), last)
        same: Mask = listed.log_offset[at] == requests.log_offset
        same &= listed.queue[at] == queue[requests.queue]
        same &= (listed.offset[at] == requests.offset) & (listed.size[at] == requests.size)
        return same

    @cached_property
    def _number_of_listed(self) -> dict[QueueId, int]:
        return {queue: number for number, queue in enumerate(self._snapshot.queues)}

    def _inside(
        self, queue: QueueId, requests: DispatchRequests, rows: Ints, missing: MissingRecords
    ) -> Iterator[Unlisted]:
        """The rows that the queue lists nowhere, although it has others in their place.

        An entry that leads to no record of the queue is damage that its reader reports; it is noted as
        `between` for who reads no entry.
        """
        for part in requests.near_rows(rows):
            entries = self._view.entries(queue, *requests.offsets_of(part))
            found = self.compare(queue, requests, part, entries)
            lost = part[found.lost]
            for known, some in (
                (missing.between, lost),
                (missing.covered_up, part[found.lost & found.covered_up]),
            ):
                if len(some):
                    known[queue] = _added(known.get(queue), requests, some)
            gone = np.flatnonzero((found.taken | found.displaced) & (found.place < 0))
            for row, skipped in zip(part[gone].tolist(), found.taken[gone].tolist(), strict=True):
                yield Unlisted(requests.listed_at(queue, row), skipped)

    def compare(
        self, queue: QueueId, requests: DispatchRequests, rows: Ints, entries: Entries
    ) -> Compared:
        """Rows of one queue, in ascending order of queue offsets, beside the `entries` of that range."""
        offset, log_offset = requests.offset[rows], requests.log_offset[rows]
        nothing = np.zeros(len(rows), dtype=bool)
        batch = requests.batch[rows]
        if not len(entries):
            places = self._places(queue, log_offset)
            return Compared(
                nothing, places, nothing, nothing, batch, nothing, np.zeros_like(places)
            )
        # Of two entries of one queue offset in a BatchConsumeQueue, the first leads to no record.
        at = np.maximum(np.searchsorted(entries.offset, offset, side="right") - 1, 0)
        there = entries.offset[at] == offset
        listed = there & (entries.log_offset[at] == log_offset)
        listed &= entries.size[at] == requests.size[rows]
        place = np.full(len(rows), -1, dtype=np.int64)
        taken, reused, displaced = nothing.copy(), nothing.copy(), batch & ~there
        covered_up = nothing.copy()
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
            once = self._listed_once(queue, listing.log_offset)
            displaced[others] = (own >= 0) & once & ~taken[others] & ~reused[others]
            in_log = listing.log_offset <= self._snapshot.log_end - listing.size
            covered_up[others] = (own < 0) & listing.points_to_record & in_log
        codes = entries.tags_code[at]
        return Compared(listed, place, taken, reused, displaced, covered_up, codes)

    def _own_offsets(self, queue: QueueId, entries: Entries) -> Ints:
        """The queueOffset of the record that each entry leads to; -1 if it is no record of the queue."""
        own = np.full(len(entries), -1, dtype=np.int64)
        try:
            for rows, headers in self._log.whole_headers(entries.log_offset, entries.size):
                found = self._requests_of(headers)
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

    def _listed_once(self, queue: QueueId, log_offsets: Ints) -> Mask:
        """Whether a queue lists the record at each log offset once, of those that it lists."""
        listed = self._listing_of(queue, log_offsets).log_offset
        first = np.searchsorted(listed, log_offsets)
        once: Mask = np.searchsorted(listed, log_offsets, side="right") <= first + 1
        return once

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

    def requests(self, start: int, stop: int) -> Iterator[DispatchRequests]:
        """What the whole records that start in [start, stop) of the log give the queues."""
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                yield self._requests_of(piece.headers)

    def queues_named(self, start: int, stop: int) -> set[QueueId]:
        """The topics and queueIds of the whole records that start in [start, stop) of the log.

        Reads no properties, which may name further queues.
        """
        found: set[QueueId] = set()
        for piece in self.pieces(start, stop):
            if isinstance(piece, SoundRun):
                ids = piece.headers.queue_id.astype(np.int64)
                found.update(numbered_queues(*numbered_topics(piece.headers), ids)[0])
        return found

    def pieces(self, start: int, stop: int) -> Iterator[SoundRun | Extent]:
        """The records and gaps of [start, stop). Passes over a file that expired since the store was
        opened."""
        at, chain = start, self._log.chain
        while at < stop:
            try:
                for piece in walk(self._log, at, stop, check_crc=False):
                    yield piece
                    at = piece.stop
                return
            except MissingFileError:
                gone = chain.segment_at(at)
                at = stop if gone is None else chain.segment_end(gone)

    def _requests_of(self, headers: Headers) -> DispatchRequests:
        return self._view.requests_of(DecodedRecords.of(headers))

    def is_damage(self, piece: Extent) -> bool:
        """Whether a gap is damage. A ghost is, if it is no copy of the record that it names."""
        if piece.gap is not Gap.GHOST:
            return piece.gap in _DAMAGE
        chain, size = self._log.chain, piece.stop - piece.start
        ghost = chain.read(piece.start, piece.stop)
        named = int(ghost[: RECORD_HEAD.itemsize].view(RECORD_HEAD)[0]["physical_offset"])
        if named < self._snapshot.log_start:
            return False  # expired
        if not self._log.is_record(named, size):
            return True
        return not np.array_equal(ghost, chain.read(named, named + size))

    def _lost(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> Ints:
        """The rows that belong before the first entry, or after the last one, also by log offset.

        Other records are of an earlier topic of that name, which was deleted.
        """
        state = self._snapshot.queues[queue]
        places, misplaced = requests.log_offset[rows], self._snapshot.misplaced
        if state.min_offset < state.max_offset:
            before = requests.offset[rows] < state.min_offset
            first = self._listed_at(queue, state.min_offset, lost_log=True)
            kept = (before & (places < (first[0] if len(first) else 0))) | (
                ~before & (places > self.last_listed(queue))
            )
            rows, places = rows[kept], places[kept]
        reported = [error.entry.log_offset for error in misplaced if error.entry is not None]
        lost: Ints = rows[~np.isin(places, reported)]
        return lost

    def last_listed(self, queue: QueueId) -> int:
        """The log offset of the last entry that leads to a record of the queue; -1 without one."""
        stop = self._snapshot.queues[queue].max_offset
        places = self._listed_at(queue, max(0, stop - _ENTRIES_TRIED))
        return int(places[-1]) if len(places) else -1

    def _listed_at(self, queue: QueueId, start: int, *, lost_log: bool = False) -> Ints:
        """The log offsets of the queue's records that some entries lead to; with `lost_log`, of those too
        that would be after the log's end."""
        state = self._snapshot.queues[queue]
        stop = min(start + _ENTRIES_TRIED, state.max_offset)
        entries = self._view.entries(queue, max(start, state.min_offset), stop)
        listed = self._own_offsets(queue, entries) >= 0
        if lost_log:
            listed |= entries.points_to_record & (entries.log_offset >= self._snapshot.log_end)
        found: Ints = entries.log_offset[listed]
        return found


def _added(known: Missing | None, requests: DispatchRequests, rows: Ints) -> Missing:
    """Those known, and the ones of some more rows; the first has the lowest queue offset."""
    first = rows[int(np.argmin(requests.offset[rows]))]
    offset, log_offset = int(requests.offset[first]), int(requests.log_offset[first])
    count, stop = len(rows), int((requests.offset[rows] + requests.count[rows]).max())
    if known is not None:
        count, stop = count + known.count, max(stop, known.stop)
        if known.offset <= offset:
            return replace(known, count=count, stop=stop)
    return Missing(count, offset, log_offset, int(requests.size[first]), stop)
