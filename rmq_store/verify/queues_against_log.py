"""Check the queues against the log: each record must be listed at its queueOffset, as the broker
lists it."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.config.without_file import limit_of_dispatch
from rmq_store.consumequeue.entry_of_record import DispatchRequests
from rmq_store.errors import MissingFileError, StoreError
from rmq_store.format.byte_layout import BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_DIR, Ints, Mask
from rmq_store.format.queues import QUEUE_ENTRY, Entries, QueueId, QueueSlice
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.reading.slice_entries import NOT_OF_QUEUE, OTHER_OFFSET
from rmq_store.reading.store_reader import StoreReader
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.ranges import QueueState
from rmq_store.text.sizes import counted
from rmq_store.verify.findings import Finding, Findings, Severity, a_warning, an_error

Range = tuple[int, int]
_KEPT = 1 << 22  # entries kept in the order of the log, of all queues; 16 bytes each
_WAITS = "Normal after a crash and in a copy of a running store"


@dataclass(frozen=True, slots=True)
class ComparedEntries:
    """Records of one queue beside the entries of the queue. Arrays of n, one element a record.

    Without an entry at the record's queueOffset, `listed`, `taken` and `reused` are false. A broker skips
    a record that is `taken`; so it does if the earlier one has the queueOffset 0, which it always lists.
    """

    listed: Mask  # the entry at its queueOffset leads to it
    place: Ints  # of a record that is not `listed`: where the queue lists it; -1 if nowhere
    taken: Mask  # that entry leads to an earlier record with that queueOffset
    reused: Mask  # that entry leads to a later record with that queueOffset: a topic created again
    tags_code: Ints  # of that entry


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
    ) -> ComparedEntries:
        """Rows of one queue, in ascending order of queue offsets, beside the `entries` of that range."""
        offset, log_offset = requests.offset[rows], requests.log_offset[rows]
        nothing = np.zeros(len(rows), dtype=bool)
        if not len(entries):
            places = self._places(queue, log_offset)
            return ComparedEntries(nothing, places, nothing, nothing, np.zeros_like(places))
        if not np.array_equal(entries.offset, offset) or (np.diff(offset) == 0).any():
            # Of two entries of one queue offset in a BatchConsumeQueue, the first leads to no record.
            at = np.searchsorted(entries.offset, offset, side="right") - 1
            entries = entries.take(np.maximum(at, 0))
        is_listed = entries.offset == offset
        listed = is_listed & (entries.log_offset == log_offset)
        listed &= entries.size == requests.size[rows]
        place = np.full(len(rows), -1, dtype=np.int64)
        taken, reused = nothing.copy(), nothing.copy()
        others = np.flatnonzero(~listed)
        if len(others):
            place[others] = self._places(queue, log_offset[others])
            others = others[is_listed[others] & (entries.log_offset[others] != log_offset[others])]
            listing = entries.take(others)
            own = self._own_offsets(queue, listing)
            earlier = listing.log_offset < log_offset[others]
            # A broker lists each record with the queueOffset 0, whatever the queue has by then.
            taken[others] = earlier & ((own == offset[others]) | (own == 0))
            reused[others] = ~earlier & (own == offset[others])
        return ComparedEntries(listed, place, taken, reused, entries.tags_code)

    def _own_offsets(self, queue: QueueId, entries: Entries) -> Ints:
        """The queueOffset of the record that each entry leads to; -1 if it is no record of the queue."""
        own = np.full(len(entries), -1, dtype=np.int64)
        with suppress(MissingFileError):  # it has expired since the store was opened
            for rows, headers in self._log.whole_headers(entries.log_offset, entries.size):
                requests = self._view.requests_of(DecodedRecords.of(headers))
                is_queue = np.array([listed == queue for listed in requests.queues], dtype=bool)
                mine = is_queue[requests.queue]
                places, offsets = requests.log_offset[mine].tolist(), requests.offset[mine].tolist()
                offset_at = dict(zip(places, offsets, strict=True))
                own[rows] = [offset_at.get(at, -1) for at in entries.log_offset[rows].tolist()]
        return own

    def _places(self, queue: QueueId, log_offsets: Ints) -> Ints:
        """The queue offset at which a queue lists the record at each log offset; -1 if at none."""
        listed = self._listing_of(queue, log_offsets)
        at = np.minimum(np.searchsorted(listed.log_offset, log_offsets), len(listed.offset) - 1)
        return np.where(listed.log_offset[at] == log_offsets, listed.offset[at], -1)

    def _listing_of(self, queue: QueueId, log_offsets: Ints) -> ListedPlaces:
        """What a queue lists, at least what leads from the first to the last of these places.

        A damaged queue may list a record anywhere. So all entries are read and kept, unless they are
        so many that only those where the record would be are looked at. A damaged queue that cannot
        be read lists nothing: its reader reports it.
        """
        if len(log_offsets):
            with suppress(StoreError):
                return self._read_listing(queue, int(log_offsets.min()), int(log_offsets.max()) + 1)
        return ListedPlaces.of(Entries.none())

    def _read_listing(self, queue: QueueId, start: int, stop: int) -> ListedPlaces:
        if queue in self._listings:
            return self._listings[queue]
        state = self._snapshot.queues[queue]
        low, high = state.min_offset, state.max_offset
        units = state.file_stop - state.file_start + (0 if state.tail is None else len(state.tail))
        if min(high - low, units) > min(_KEPT, self._log.chain.cost.spare // QUEUE_ENTRY.itemsize):
            low, high = (self._view.offset_at_log(queue, place) for place in (start, stop))
            return ListedPlaces.of(self._view.entries(queue, low, high))
        kept = ListedPlaces.of(self._view.entries(queue, low, high))
        if sum(len(listing.offset) for listing in (*self._listings.values(), kept)) > _KEPT:
            self._listings = {}
        self._listings[queue] = kept
        return kept


_TO_NEW = "rmqstore rebuild STORE --to NEW"
_REBUILD = f"Rebuild queues and index from the log into a new store: {_TO_NEW}"
_SKIPPED = (
    "rmqstore rebuild skips them too. Read them with source=commitlog, or copy all intact messages "
    "into a new store, where they get queue offsets of their own: rmqstore salvage"
)
_MISSING, _TAKEN, _FIRST, _AGAIN, _EARLIER = "missing", "taken", "first", "again", "earlier"
_LOW, _HIGH = "low", "high"
LOST = (_MISSING, _TAKEN, _FIRST)
"""Why no consumer gets records that a queue does not list."""
_IN_NO_ENTRY = (
    "{records} of queue {queue}, intact and in no entry, {offsets}; the first: log offset "
    "{log_offset}. "
)
_MOVED = (
    "{records} of queue {queue}, {offsets}, listed at another queue offset, {places}; the "
    "first: log offset {log_offset}. Consumers get them there"
)
_MISSES = Severity.ERROR, "queue-misses-record"
_UNLISTED = {
    _MISSING: (*_MISSES, _IN_NO_ENTRY + "No consumer gets them", _REBUILD),
    _LOW: (
        Severity.ERROR,
        "queue-lists-too-low",
        _MOVED,
        "Normal after a rebuild of a log that had lost records: later ones get smaller queue offsets. "
        "Committed offsets of consumers mean other messages then: rmqstore offsets --reset-to-time. Of one "
        "record alone, very far off, bits of the queueOffset have changed",
    ),
    _HIGH: (
        Severity.ERROR,
        "queue-lists-too-high",
        _MOVED,
        "The queue repeats an entry, has one too many, or lists two records of one queue offset, of which a "
        f"rebuild lists the first alone. {_REBUILD}",
    ),
    _TAKEN: (
        *_MISSES,
        _IN_NO_ENTRY + "An earlier record has that queue offset, so that a broker skips them",
        _SKIPPED,
    ),
    _FIRST: (
        *_MISSES,
        _IN_NO_ENTRY + "An earlier record has that queue offset, and no consumer gets them",
        f"If the topic was created again, a rebuild lists them, and not the earlier ones. {_REBUILD}",
    ),
    _AGAIN: (
        Severity.NOTE,
        "queue-offset-used-again",
        "{records} of queue {queue} with queue offsets that later records have too",
        "Normal if a topic was deleted and created again; the older records are in no queue",
    ),
    _EARLIER: (
        Severity.NOTE,
        "queue-earlier-life",
        "{records} of an earlier queue {queue}, {offsets}: its topic was deleted and created again",
        "Normal: no broker lists them any more, nor does rmqstore rebuild; source=commitlog reads them",
    ),
}
_OF_TWO_LIVES = (
    "The topic was deleted and created again, and a broker dispatched its log once more: it lists the "
    "messages of before, then the first of the new ones, and skips the rest. rmqstore rebuild lists the new "
    f"ones, as consumers had them: {_TO_NEW}"
)
_RANGES_KEPT, _RANGES_NAMED = 100, 8  # of queue offsets; the others are counted
_ENTRIES_AT_A_TIME = 1 << 16
_ENTRIES_A_QUEUE = 64  # on average, where there are many queues
_MOST_ENTRIES = 1 << 20  # some 60 bytes each


class WhyUnlisted(NamedTuple):
    """Why a queue does not list records at their queue offsets."""

    queue: QueueId
    batch: bool
    why: str  # _MISSING, _TAKEN, _FIRST, _AGAIN, _EARLIER, _LOW, _HIGH


@dataclass(slots=True)
class UnlistedRun:
    """The number of such records, their queue offsets as [first, last], and the first log offset.

    `places`: how far from their own queue offsets the queue lists them, the least and the most.
    """

    count: int
    ranges: list[Range]  # ascending; a few of many are joined with what is between them
    log_offset: int
    places: Range = (0, 0)
    joined: bool = False

    def add(self, other: UnlistedRun) -> None:
        """Add those of another part of the log."""
        self.count += other.count
        self.log_offset = min(self.log_offset, other.log_offset)
        self.places = min(self.places[0], other.places[0]), max(self.places[1], other.places[1])
        self.joined |= other.joined
        merged: list[Range] = []
        for first, last in sorted([*self.ranges, *other.ranges]):
            if merged and (first <= merged[-1][1] + 1 or len(merged) == _RANGES_KEPT):
                self.joined |= first > merged[-1][1] + 1
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first, last))
        self.ranges = merged

    @property
    def offsets(self) -> str:
        """The queue offsets as text."""
        low, high = self.ranges[0][0], self.ranges[-1][1]
        if low == high or self.joined or len(self.ranges) > _RANGES_NAMED:
            return _offsets(low, high)
        named = (str(a) if a == b else f"{a} to {b}" for a, b in self.ranges)
        return f"queue offsets {', '.join(named)}"


class QueuelessPart(NamedTuple):
    """Records of a queue without files, in a part of the log."""

    log_offset: int  # of the first
    last: int  # log offset
    records: int
    begins: bool  # whether one has queue offset 0
    from_zero: int  # the number of records from the last of those on


def _queueless_part(requests: DispatchRequests, rows: Ints) -> QueuelessPart:
    rows = rows[np.argsort(requests.log_offset[rows])]
    zeros = np.flatnonzero(requests.offset[rows] == 0)
    last = len(rows) - int(zeros[-1]) if len(zeros) else 0
    places = requests.log_offset[rows]
    return QueuelessPart(int(places[0]), int(places[-1]), len(rows), bool(len(zeros)), last)


@dataclass(slots=True)
class QueueTally:
    """The queue counts of a part of the log. Parts add up. Picklable."""

    listed: Counter[QueueId] = field(default_factory=Counter)  # records found in their place
    waiting: Counter[QueueId] = field(default_factory=Counter)  # not dispatched yet
    first_waiting: dict[QueueId, int] = field(default_factory=dict)  # log offset
    queueless: dict[QueueId, list[QueuelessPart]] = field(default_factory=dict)
    unlisted: dict[WhyUnlisted, UnlistedRun] = field(default_factory=dict)

    def add(self, other: QueueTally) -> None:
        """Add the counts of another part."""
        self.listed.update(other.listed)
        self.waiting.update(other.waiting)
        for queue, parts in other.queueless.items():
            self.queueless.setdefault(queue, []).extend(parts)
        for queue, at in other.first_waiting.items():
            self.first_waiting[queue] = min(at, self.first_waiting.get(queue, at))
        for why, run in other.unlisted.items():
            self.note(why, run)

    def note(self, why: WhyUnlisted, run: UnlistedRun) -> None:
        """Count records that a queue does not list at their queue offsets."""
        if why in self.unlisted:
            self.unlisted[why].add(run)
        else:
            self.unlisted[why] = run

    @property
    def queues(self) -> set[QueueId]:
        """The queues of which a record was found, or waits."""
        return set(self.listed + self.waiting)

    def missing(self, queue: QueueId) -> int:
        """How many intact records a queue does not list at all."""
        of_queue = ((why.why, run) for why, run in self.unlisted.items() if why.queue == queue)
        return sum(run.count for why, run in of_queue if why not in (_LOW, _HIGH, _EARLIER))

    def moved(self, queue: QueueId) -> int:
        """How many records a queue lists at other queue offsets than theirs."""
        of_queue = ((why.why, run) for why, run in self.unlisted.items() if why.queue == queue)
        return sum(run.count for why, run in of_queue if why in (_LOW, _HIGH))


class ListedCheck:
    """Checks that the queues have the entries of the log's records.

    It checks many records at a time. A look-up in a queue costs the same for a few entries as for
    many, and a log range may have a few records of each of ten thousand queues.
    """

    def __init__(self, store: StoreReader, tally: QueueTally, findings: Findings) -> None:
        self._store, self._tally, self._findings = store, tally, findings
        self._comparison = RecordComparison(store.view)
        self._waiting: list[DispatchRequests] = []
        self._queues: set[QueueId] = set()
        self._beginning_of = cache(partial(_beginning_of, store.view))
        self._entries = 0

    def add(self, requests: DispatchRequests) -> None:
        """Check `requests` now or later: `finish` has checked everything."""
        self._waiting.append(requests)
        self._queues.update(requests.queues)
        self._entries += len(requests)
        enough = max(_ENTRIES_AT_A_TIME, _ENTRIES_A_QUEUE * len(self._queues))
        if self._entries >= min(enough, _MOST_ENTRIES):
            self.finish()

    def finish(self) -> None:
        """Check the records not checked yet."""
        if self._entries:
            requests = DispatchRequests.concat(self._waiting)
            for queue, rows in requests.by_queue():
                self._check_queue(queue, requests, rows)
        self._waiting, self._queues, self._entries = [], set(), 0

    def _check_queue(self, queue: QueueId, requests: DispatchRequests, rows: Ints) -> None:
        tally, state = self._tally, self._store.snapshot().queues.get(queue)
        if state is None:
            tally.queueless.setdefault(queue, []).append(_queueless_part(requests, rows))
            return
        undispatched = np.zeros(len(rows), dtype=bool)
        if state.tail is not None:
            undispatched = np.isin(requests.log_offset[rows], state.tail.log_offset)
        waiting = rows[undispatched]
        if len(waiting):
            tally.waiting[queue] += len(waiting)
            tally.first_waiting.setdefault(queue, int(requests.log_offset[waiting].min()))
        for part in requests.pieces_of_near_rows(rows[~undispatched]):
            self._compare(queue, state.batch, requests, part)

    def _compare(self, queue: QueueId, batch: bool, requests: DispatchRequests, rows: Ints) -> None:
        """Compare rows of one queue, in ascending order, with the entries at their offsets."""
        entries = self._store.view.entries_with_ext(queue, *requests.offsets_of(rows))
        compared = self._comparison.compare(queue, requests, rows, entries)
        same = compared.listed
        self._check_tags(queue, requests, rows[same], compared.tags_code[same])
        self._tally.listed[queue] += int(same.sum())
        if same.all():
            return
        earlier = ~same & (requests.log_offset[rows] < self._beginning_of(queue))
        moved = ~same & (compared.place >= 0)
        gone = ~same & ~moved & ~earlier
        shift = requests.offset[rows] - compared.place
        zero = requests.offset[rows] == 0
        for those, why in (
            (moved & (shift > 0), _LOW),
            (moved & (shift < 0), _HIGH),  # 0: an entry of another size, which its reader reports
            (gone & compared.taken & ~zero, _TAKEN),
            (gone & compared.taken & zero, _FIRST),
            (gone & compared.reused, _AGAIN),
            (earlier, _EARLIER),
            (gone & ~compared.taken & ~compared.reused, _MISSING),
        ):
            if those.any():
                run = _run_of(requests, rows[those], np.abs(shift[those]))
                self._tally.note(WhyUnlisted(queue, batch, why), run)

    def _check_tags(
        self, queue: QueueId, requests: DispatchRequests, rows: Ints, codes: Ints
    ) -> None:
        """Compare the tagsCode of entries with the records' tags. Times in the delay topic are not
        checked, because they depend on the broker's delay levels."""
        wrong = np.flatnonzero(codes != requests.tags_code[rows])
        if not len(wrong) or queue.topic == SCHEDULE_TOPIC:
            return
        self._findings.add(
            a_warning(
                "queue-wrong-tags-code",
                queue_folder(self._store, queue),
                f"{counted(len(wrong), 'entry')} of queue {queue.name} lacking the hash of the record's tag; "
                f"the first: queue offset {int(requests.offset[rows[wrong[0]]])}. A consumer that filters by "
                "tag misses them",
                _REBUILD,
                count=len(wrong),
            )
        )


def _beginning_of(view: QueueView, queue: QueueId) -> int:
    """Where in the log a queue that begins with queue offset 0 begins: records of it before that place are of
    an earlier topic of that name. 0 for other queues."""
    if view.snapshot.queues[queue].min_offset > 0:
        return 0
    first = view.entries(queue, 0, 1)
    for _, headers in view.log.whole_headers(first.log_offset, first.size):
        requests = view.requests_of(DecodedRecords.of(headers))
        for its, rows in requests.by_queue():
            if its == queue and not requests.offset[rows[0]]:
                return int(requests.log_offset[rows[0]])
    return 0


def _run_of(requests: DispatchRequests, rows: Ints, places: Ints) -> UnlistedRun:
    """`rows`: in ascending order of queue offsets."""
    first, last = requests.offset[rows], requests.offset[rows] + requests.count[rows] - 1
    cuts = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
    starts, stops = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(rows)]]) - 1
    ranges = list(zip(first[starts].tolist(), last[stops].tolist(), strict=True))
    run = UnlistedRun(
        len(rows), [], int(requests.log_offset[rows].min()), (int(places.min()), int(places.max()))
    )
    run.add(UnlistedRun(0, ranges, run.log_offset, run.places))
    return run


def _unlisted(store: StoreReader, tally: QueueTally) -> Iterator[Finding]:
    """Findings for records that their queue does not list at their queue offsets."""
    order, runs = list(_UNLISTED), tally.unlisted.items()
    # A broker that dispatches two lives lists the first record of the later one behind the earlier.
    of_two_lives = {
        why.queue for why, run in runs if why.why in (_HIGH, _FIRST) and run.ranges[0] == (0, 0)
    }
    for why, run in sorted(runs, key=lambda item: (item[0].queue, order.index(item[0].why))):
        severity, code, meaning, advice = _UNLISTED[why.why]
        if why.queue in of_two_lives and why.why in (_HIGH, _FIRST, _TAKEN):
            advice = _OF_TWO_LIVES
        least, most = run.places
        places = f"{least} to {most}" if least < most else str(most)
        yield Finding(
            severity,
            code,
            queue_folder(store, why.queue, why.batch),
            meaning.format(
                records=counted(run.count, "record"),
                queue=why.queue.name,
                offsets=run.offsets,
                log_offset=run.log_offset,
                places=f"{places} places too {why.why}",
            ),
            advice,
            count=run.count,
        )


def check_entries(
    store: StoreReader, tally: QueueTally, damage: Sequence[Range], lost: Counter[QueueId]
) -> Iterator[Finding]:
    """Findings for entries without a record, and for messages lost before a queue file listed them. Searches
    only queues with more entries than records. `damage`: the log offsets of what the log lost, in any order.
    Adds the lost messages of each queue to `lost`."""
    for queue, state in store.snapshot().queues.items():
        yield from _lost_before_dispatch(store, queue, state, lost)
        if _entries_of(state) > tally.listed[queue] + tally.moved(queue):
            missing = tally.missing(queue) if tally.listed[queue] else sys.maxsize
            yield from _dangling(store, queue, sorted(damage), lost, missing)


def _lost_before_dispatch(
    store: StoreReader, queue: QueueId, state: QueueState, lost: Counter[QueueId]
) -> Iterator[Finding]:
    """The finding for messages that the log lost before a queue file listed them. Adds them to `lost`."""
    entries = state.lost_from_tail
    messages = int(entries.count.sum())
    if messages:
        lost[queue] += messages
        offsets = _offsets(int(entries.offset[0]), int(entries.offset[-1]))
        yield an_error(
            "undispatched-lost",
            queue_folder(store, queue, state.batch),
            f"queue {queue.name}: {counted(messages, 'message')} lost, {offsets}, before a queue file listed "
            "them",
            "Search a replica or a copy for them. A broker that starts gives their queue offsets to the "
            "messages after them",
            count=messages,
        )


def _entries_of(state: QueueState) -> int:
    """The minimum number of entries in a queue's files; for a BatchConsumeQueue, of its units."""
    if state.batch:
        return state.file_stop - state.file_start
    stop = min(state.tail_start, state.file_stop)
    return stop - max(state.min_offset, state.file_start)


def _dangling(
    store: StoreReader,
    queue: QueueId,
    damage: Sequence[Range],
    lost: Counter[QueueId],
    missing: int,
) -> Iterator[Finding]:
    """One finding for entries that lead into `damage`, and one for other entries without a record: of more
    than the queue has `missing` records, messages are lost."""
    state = store.snapshot().queues[queue]
    first: dict[Range | None, StoreError] = {}
    counts: Counter[bool] = Counter()
    of_others = 0  # entries that lead to records of other queues
    unexplained = 0  # entries that lead to no record, and into no damage
    messages, low, high = 0, sys.maxsize, -1  # that are lost in damage, and their queue offsets

    def take(error: StoreError) -> None:
        nonlocal of_others, unexplained, messages, low, high
        if error.reason.endswith(OTHER_OFFSET):
            return  # its record is reported as listed elsewhere
        place = None if error.entry is None else _around(damage, error.entry.log_offset)
        units = 1 if error.entry is None or state.batch else error.entry.messages
        counts[place is not None] += units
        of_others += units if place is None and error.reason.endswith(NOT_OF_QUEUE) else 0
        if place is not None or isinstance(error, MissingFileError):
            lost[queue] += 1 if error.entry is None else error.entry.messages
        else:
            unexplained += units
        if place is not None and error.entry is not None:
            messages += error.entry.messages
            low = min(low, error.entry.queue_offset)
            high = max(high, error.entry.queue_offset + error.entry.messages - 1)
        first.setdefault(place, error)

    for _ in store.read_slices(
        [QueueSlice(queue, state.min_offset, state.tail_start)],
        columns=("flag",),
        check_crc=bool(damage),  # it may be of a body alone
        check_ends=False,
        compacted=False,
        on_damage=take,
    ):
        pass
    name, folder = queue.name, queue_folder(store, queue, state.batch)
    are_of_others = 1 < of_others == counts[False]
    if not state.batch and not are_of_others:
        lost[queue] += max(0, unexplained - missing)
    if counts[True]:
        places = sorted(place[0] for place in first if place is not None)
        more = f" and {len(places) - 1} more places" if len(places) > 1 else ""
        where = f"in the damage at log offset {places[0]}{more}"
        todo = "Repair the damage of the log"
        if places == [store.log_range()[1]]:
            where = f"after the log's end at log offset {places[0]}"
            todo = "Look for the lost end of the log"
        yield an_error(
            "queue-dangling-entry",
            folder,
            f"queue {name}: {counted(messages, 'message')} lost, {_offsets(low, high)}, {where}",
            f"Readers skip them; a consumer stops or skips there. {todo} first",
            count=counts[True],
        )
    if counts[False]:
        meaning, todo = _without_record(first[None], are_of_others=are_of_others)
        yield an_error(
            "queue-dangling-entry",
            folder,
            f"{counted(counts[False], 'entry')} of queue {name} {meaning}",
            f"Readers skip them; a consumer stops or skips there. {todo}",
            count=counts[False],
        )


def _offsets(low: int, high: int) -> str:
    return f"queue offset {low}" if low == high else f"queue offsets from {low} to {high}"


def _without_record(first: StoreError, *, are_of_others: bool) -> tuple[str, str]:
    """What entries without a record of the queue are, by the first, and what to do."""
    if are_of_others:
        return (
            f"leading to records of other queues, the first to one of {first.actual}: its folder, or a file "
            "in it, was copied, renamed or exchanged",
            f"Move it away if it is a copy. {_REBUILD}",
        )
    todo = _REBUILD
    if first.entry is not None and first.entry.log_offset < 0:
        todo += (
            ". It cannot mend the queue if two records of the log claim one queue offset: then copy all "
            "intact messages into a new store, where they get queue offsets of their own: rmqstore salvage"
        )
    return f"pointing to no record of the queue; the first: {first}", todo


def _around(damage: Sequence[Range], log_offset: int) -> Range | None:
    """The damaged range that a log offset is in."""
    at = bisect_right(damage, log_offset, key=lambda place: place[0]) - 1
    return damage[at] if at >= 0 and log_offset < damage[at][1] else None


def findings_of_unlisted(store: StoreReader, tally: QueueTally) -> Iterator[Finding]:
    """Findings for records that queues do not list, by what was counted in the whole log."""
    yield from _waiting(store, tally)
    yield from _queueless(store, tally)
    yield from _unlisted(store, tally)


def _waiting(store: StoreReader, tally: QueueTally) -> Iterator[Finding]:
    """Findings for records that a queue does not list yet. The broker lists them when it starts.

    A broker that stops removes the file `abort` only after it has listed all.
    """
    is_lost = store.opening.is_closed
    bases = [segment.base for segment in store.log.chain.segments]
    for queue, count in sorted(tally.waiting.items()):
        first = tally.first_waiting[queue]
        but = limit_of_dispatch(bases, first)
        yield Finding(
            Severity.WARNING if is_lost else Severity.NOTE,
            "not-dispatched",
            queue_folder(store, queue),
            f"{counted(count, 'record')} of queue {queue.name}, from log offset {first} on, being in the log "
            "but not yet in the queue",
            ("The store was closed, so files of queues are lost" if is_lost else _WAITS)
            + f"; the broker lists them when it starts{but}, and readers of rmq_store find them in the log",
            count=count,
        )


def _queueless(store: StoreReader, tally: QueueTally) -> Iterator[Finding]:
    """Findings for records whose queue has no files.

    topics.json shows whether the topic exists. If it does, the queue lost its files, or somebody deleted and
    created the topic again, and the queue has no message yet. The files are lost for certain if another queue
    of the topic lists an older message. Without topics.json, nobody knows whether the topic exists.
    """
    shows_deletions = store.view.topics.lists_all
    for queue, parts in sorted(tally.queueless.items()):
        most = store.view.topics.most_queues(queue.topic)
        kept = most > 0 and _begins_before(store, queue.topic, max(part.last for part in parts))
        is_deleted = shows_deletions and queue.queue_id >= most
        count, last = sum(part.records for part in parts), _of_last_life(parts)
        back = "brings them back"
        if last < count:
            back = (
                f"brings back the last {last:,}, from when the topic was created for the last time"
            )
        if kept:
            severity, state = Severity.ERROR, "has no files, and its topic exists"
            advice = _REBUILD
        elif is_deleted:
            fewer = ", which has fewer queues now" if most else ""
            severity, state = Severity.NOTE, f"is gone with its topic{fewer}"
            advice = f"Normal after a topic was deleted; a rebuild {back}"
        else:
            severity = Severity.WARNING
            state = "has no files, and topics.json cannot show whether the topic exists"
            if most:
                state = (
                    "has no files, and its topic exists: either the files are lost, or somebody deleted and "
                    "created the topic again. No file shows which"
                )
            advice = f"Normal if the topic was deleted; if not, a rebuild {back}: {_TO_NEW}"
        yield Finding(
            severity,
            "queue-deleted" if is_deleted and not kept else "queue-missing",
            queue_folder(store, queue),
            f"the log has {counted(count, 'record')} of queue {queue.name}; the queue {state}",
            advice,
            count=count,
        )


def _begins_before(store: StoreReader, topic: str, log_offset: int) -> bool:
    """Whether a queue of a topic begins before a place in the log: the topic was not created since."""
    for queue, state in store.snapshot().queues.items():
        if queue.topic == topic and state.min_offset < state.max_offset:
            first = store.view.entries(queue, state.min_offset, state.min_offset + 1)
            if len(first) and first.points_to_record[0] and first.log_offset[0] < log_offset:
                return True
    return False


def _of_last_life(parts: list[QueuelessPart]) -> int:
    """The number of records from the last one with queue offset 0 on, in all parts of a log."""
    count = 0
    for part in sorted(parts):
        count = part.from_zero if part.begins else count + part.records
    return count


def queue_folder(store: StoreReader, queue: QueueId, batch: bool = False) -> str:
    """The folder of a queue's files, or of the database that it is in."""
    if queue in store.snapshot().queues:
        return store.view.folder(queue)
    kind = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
    return f"{store.path}/{kind}/{queue.topic}/{queue.queue_id}"
