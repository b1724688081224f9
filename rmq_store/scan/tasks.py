"""What a scan reads of one store as it was, its tasks, and the read of one.

Tasks are picklable data: shares for one process each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rmq_store.arrow.column_definitions import column_names, needs_log
from rmq_store.commitlog.log import IF_OTHER_STORE
from rmq_store.errors import DataLossError, LogOffset, MissingFileError, StoreError
from rmq_store.format.byte_layout import MIN_RECORD_SIZE
from rmq_store.format.queues import Entry, EntryAt, QueueId, QueueSlice
from rmq_store.reading.log_reader import Limits
from rmq_store.reading.query import BODIES, FAILFAST, FIRST_BATCH_ROWS, DamageTaker, ReadOptions
from rmq_store.reading.store_reader import PinnedStore, StoreReader
from rmq_store.scan.options import BY_QUEUE
from rmq_store.scan.parse_options import ScanOptions
from rmq_store.search.condition import Condition
from rmq_store.search.find_messages import KeyPlan, plan_keys
from rmq_store.search.log_partitions import (
    bins_of_ranges,
    cut_to_entries,
    even_slices,
    log_slices_of_ranges,
    prefetched_entry_at,
    prefetched_offset_at_log,
    stretches_of_range,
)
from rmq_store.search.selection import WantedQueues
from rmq_store.snapshot.compacted_view import QueueSource
from rmq_store.snapshot.ranges import LogSlice, parts_in_log_slice
from rmq_store.verify.verify_store import errors_of_part, log_parts

EXACT_PIECES = 50_000
"""Up to this number of queues times slices, entries per slice are counted; above it, estimated."""


HITS_PER_SHARE = 2_000
BYTES_AN_ENTRY = 160
"""The weight in bytes of a message whose record is not read: its entry, and about its row."""

OPENING_BYTES = 4 << 20
"""The weight in bytes of opening a store, as spark.sql.files.openCostInBytes is that of a file."""
PARALLEL_TASKS = 64
"""Stores share tasks as long as about this number of tasks is left, which a cluster runs at a time."""
_SMALL_STORES_A_TASK = 8
"""So many small stores share a task in any case: they are opened in the time that its start takes."""
_BYTES_A_RECORD = 1 << 10


@dataclass(frozen=True, slots=True)
class StoreScan:
    """What is read from one store: `limits` if the log is the source, else `ranges`; nothing without both.

    `words` come from filters: a message must have one of them in KEYS or as UNIQ_KEY. Unlike the
    option `keys`, they only narrow where to look.
    """

    store: PinnedStore
    ranges: tuple[QueueSlice, ...]
    options: ScanOptions
    limits: Limits | None = None
    words: frozenset[str] | None = None
    may_have_errors: bool = True  # opening the store saw something to be missing at ends of queues
    is_wave: bool = False  # a job reads the rest of the selection by other scans

    @property
    def indexed_keys(self) -> frozenset[str] | None:
        """The keys to look up in the index; None to read the ranges whole."""
        return self.words if self.options.keys is None else frozenset(self.options.keys)

    def key_plan(self, store: StoreReader) -> KeyPlan | None:
        """Where the index leads for the keys, in `store`; None to read the ranges whole."""
        if self.indexed_keys is None:
            return None
        view = store.ranges_for(self.options.sees_compacted)
        return plan_keys(store, self.ranges, self.indexed_keys, view=view)

    def reads_log(self, columns: Sequence[str] | None = None) -> bool:
        """Whether a read of `columns` (default: those of the option) opens the commitLog."""
        options = self.options
        if self.limits is not None or options.verify_queue:
            return True
        if options.tags is not None or options.keys is not None:
            return True
        return needs_log(column_names(options.columns) if columns is None else columns)

    def narrowed(self, condition: Condition) -> StoreScan:
        """What can match a filter. Rows about damage, whose values are null, match none."""
        tags = self.options.tags
        if condition.tags is not None:
            tags = tuple(tag for tag in condition.tags if tags is None or tag in tags)
        excluded = tags == () or condition.words == frozenset()
        if excluded or not condition.may_match(self.store.broker_name):
            return replace(self, ranges=(), limits=None)
        ranges = self.ranges
        if ranges:
            with self.store.open() as store:
                view = store.ranges_for(self.options.sees_compacted)
                ranges = tuple(condition.narrowed(store, ranges, view))
        words = condition.words if self.words is None else self.words
        return replace(self, ranges=ranges, words=words, options=replace(self.options, tags=tags))


@dataclass(frozen=True, slots=True)
class Share:
    """A part of what a scan reads from store number `store`: a slice of the log, or some queue ranges.

    `in_turn`: read queue after queue, each in order; else all of them in log order. Or it has no
    message, and reports what is missing: what is `lost` already, or what `verify` finds in the part of the
    log that it `verifies`. Without any of them it stands for all of the store, of which a table has rows.
    """

    store: int
    slice: LogSlice | None = None
    ranges: tuple[QueueSlice, ...] | None = None
    in_turn: bool = False
    lost: tuple[StoreError, ...] = ()
    verifies: tuple[int, int] | None = None
    log_bytes: int = 0  # of all of the store

    @property
    def reports(self) -> bool:
        """Whether it reports what is missing, instead of messages."""
        return bool(self.lost) or self.verifies is not None

    @property
    def weight(self) -> int:
        """About the bytes that it reads."""
        if self.verifies is not None:
            return self.verifies[1] - self.verifies[0]
        if self.slice is not None:
            return self.slice.selected_bytes
        return self.log_bytes + sum(map(len, self.ranges or ())) * _BYTES_A_RECORD


Task = tuple[Share, ...]


def tasks_of(stores: Sequence[StoreScan], shares: Sequence[Share]) -> list[Task]:
    """The shares in their order, some together in one task: those of small stores, of which each takes less
    time than the start of a task. Two shares of one store are in different tasks."""
    options = stores[0].options if stores else None
    if options is None or options.max_records_per_partition is not None:
        return [(share,) for share in shares]
    weights = [share.weight + OPENING_BYTES for share in shares]
    most = min(
        max(sum(weights) // PARALLEL_TASKS, _SMALL_STORES_A_TASK * OPENING_BYTES),
        sum(weights) // options.min_partitions,
        options.max_bytes_per_partition,
    )
    tasks: list[list[Share]] = []
    filled = 0
    for share, weight in zip(shares, weights, strict=True):
        if tasks and tasks[-1][-1].store != share.store and filled + weight <= most:
            tasks[-1].append(share)
            filled += weight
        else:
            tasks.append([share])
            filled = weight
    return [tuple(task) for task in tasks]


def shares_of(stores: Sequence[StoreScan], columns: Sequence[str] | None = None) -> list[Share]:
    """The shares of all stores. Reads some queue entries of each store, and the index for keys.

    `columns`: the columns to read (default: those of the option). If the queues have all of them,
    shares are measured by queue entries, not by records.
    """
    least = stores[0].options.min_partitions if stores else 1
    least = min(least, sum(map(_most_shares, stores)))
    shares = [
        share for n, of_store in enumerate(stores) for share in _shares(n, of_store, columns, 1)
    ]
    if len(shares) >= least:
        return shares
    # Each store gets more shares in proportion to those it has now.
    again: list[Share] = []
    for number, own in Counter(share.store for share in shares).items():
        again += _shares(number, stores[number], columns, -(-own * least // len(shares)))
    return again


def reporting_shares(stores: Sequence[StoreScan], *, verify: bool | None = None) -> list[Share]:
    """Shares that report what is missing, none for a sound store: one with what opening a store saw, and with
    `verify`, by default that of verifyQueue, one for each part of the log."""
    shares: list[Share] = []
    for number, of_store in enumerate(stores):
        verifies = of_store.options.verify_queue if verify is None else verify
        if not of_store.ranges or not (of_store.may_have_errors or verifies):
            continue
        with of_store.store.open() as store:
            opening = store.opening
            lost = tuple(opening.errors(opening.ends_in(of_store.ranges)))
            parts = log_parts(store) if verifies else []
        shares += [Share(number, lost=lost)] if lost else []
        shares += [Share(number, verifies=part) for part in parts]
    return shares


def reported_errors(scan: StoreScan, share: Share, store: StoreReader) -> Iterable[StoreError]:
    """What a share of `reporting_shares` reports."""
    if share.verifies is None:
        return share.lost
    return errors_of_part(store, *share.verifies, WantedQueues.of(store, scan.options))


def _most_shares(scan: StoreScan) -> int:
    """How many partitions can have a message: more of them would cost memory and hold nothing."""
    if scan.limits is None:
        return sum(map(len, scan.ranges))
    snapshot = scan.store.snapshot
    return (snapshot.log_end - snapshot.log_start) // MIN_RECORD_SIZE


def _shares(number: int, scan: StoreScan, columns: Sequence[str] | None, least: int) -> list[Share]:
    if scan.limits is not None:
        snapshot = scan.store.snapshot
        target = scan.options.max_bytes_per_partition
        slices = even_slices(snapshot.log_start, snapshot.log_end, target, least)
        return [Share(number, piece) for piece in slices]
    if not scan.ranges:
        return []
    with scan.store.open() as store:
        plan, view = scan.key_plan(store), store.ranges_for(scan.options.sees_compacted)
        if plan is None:
            return _shares_of_ranges(number, scan, store, columns, scan.ranges, least)
        # Index hits, then log ranges that no index covers, and queues that are not in the index.
        most = scan.options.max_records_per_partition or HITS_PER_SHARE
        starts = range(0, len(plan.hits), most)
        shares = [Share(number, ranges=plan.hits[start : start + most]) for start in starts]
        rest = plan.ranges_beside_hits(view.offset_at_log)
        if rest:
            shares += _shares_of_ranges(number, scan, store, columns, rest, 1)
        return shares


def _by_entries(look: EntryAt) -> EntryAt:
    """The same entries, each measured by its own size instead of its record's."""

    def counted(queue: QueueId, offset: int) -> Entry | None:
        entry = look(queue, offset)
        return None if entry is None else Entry(entry.log_offset, BYTES_AN_ENTRY)

    return counted


def _shares_of_ranges(
    number: int,
    scan: StoreScan,
    store: StoreReader,
    columns: Sequence[str] | None,
    ranges: Sequence[QueueSlice],
    least: int,
) -> list[Share]:
    """Slices of the log with the parts of `ranges` in them, or ranges of whole queues."""
    options, view = scan.options, store.ranges_for(scan.options.sees_compacted)
    target, most = options.max_bytes_per_partition, options.max_records_per_partition
    size_at = prefetched_entry_at(store, ranges, view)
    if not scan.reads_log(columns):
        size_at = _by_entries(size_at)
    if options.split_by == BY_QUEUE:
        sized = [
            (part, sum(s.selected_bytes for s in stretches_of_range(part, len(ranges), size_at)))
            for part in ranges
        ]
        bins = bins_of_ranges(sized, target, least, most)
        return [Share(number, ranges=bin_, in_turn=True) for bin_ in bins]
    slices = cut_into_slices(store, ranges, target, least, most, size_at=size_at, view=view)
    if tuple(ranges) == scan.ranges:
        return [Share(number, piece) for piece in slices]
    # There are usually few parts of the ranges, so the share contains them.
    return [
        Share(number, ranges=tuple(pieces))
        for piece in slices
        if (pieces := parts_in_log_slice(ranges, piece, view.offset_at_log))
    ]


def cut_into_slices(
    store: StoreReader,
    ranges: Sequence[QueueSlice],
    target_bytes: int,
    min_slices: int = 1,
    max_entries: int | None = None,
    *,
    size_at: EntryAt | None = None,
    selected_bytes: int | None = None,
    view: QueueSource | None = None,
) -> list[LogSlice]:
    """Adjacent slices of the log that contain `ranges`, each with about `target_bytes` of them.

    With `max_entries`, no slice has more entries; if counting is expensive (see EXACT_PIECES), by
    estimate. `size_at` measures entries in another way than by their records. `selected_bytes`: an
    estimate of all of them by an earlier plan, so that this one looks at less. `view`: what the ranges
    are of, by default the queues themselves.
    """
    view = view or store.view
    look = size_at or prefetched_entry_at(store, ranges, view)
    start, stop = store.log_range()
    slices = log_slices_of_ranges(
        ranges,
        look,
        target_bytes,
        min_slices,
        max_entries,
        log_bytes=stop - start,
        selected_bytes=selected_bytes,
    )
    if max_entries is None or len(slices) * len(ranges) > EXACT_PIECES:
        return slices
    return cut_to_entries(slices, max_entries, ranges, view)


TO_PASS_DAMAGE = "mode=PERMISSIVE returns a row about it, mode=DROPMALFORMED leaves it out"


class DamageHandler(DamageTaker):
    """Takes the errors of one task: `mode` decides about damage, `failOnDataLoss` about expired messages."""

    def __init__(
        self, store: StoreReader, options: ScanOptions, *, advises_modes: bool = False
    ) -> None:
        """`advises_modes`: an error that is raised says by which modes a read passes its place."""
        super().__init__(options.mode)
        self._store = store
        self._options, self._advises_modes = options, advises_modes
        self.damaged = 0  # errors that are not about expired messages

    def __call__(self, error: StoreError) -> None:
        if not self._is_expired(error):
            self.take_damage(error)
        elif self._options.fail_on_data_loss:
            raise DataLossError(
                error.path,
                offset=error.offset,
                reason=f"messages expired or were deleted during the read: {error.reason}",
                advice="Read the remaining messages again, or set failOnDataLoss=false. "
                f"{IF_OTHER_STORE}",
            ) from error
        else:
            self.count(DataLossError.code, error)

    def take_damage(self, error: StoreError) -> None:
        """Take an error that is not about expired messages."""
        if self._options.mode == FAILFAST:
            raise _with_modes(error) if self._advises_modes else error
        self.damaged += 1
        super().__call__(error)

    def _is_expired(self, error: StoreError) -> bool:
        """Whether a missing file is before all files that exist: the broker deletes from the front, or all
        of a topic."""
        entry = error.entry
        if entry is not None and entry.size <= 0:  # no queue file has the entry
            queue = QueueId(entry.topic, entry.queue_id)
            if not self._store.ranges_for(self._options.sees_compacted).is_in_log(queue):
                return False  # its own files keep messages that have expired from the queue
            if isinstance(error, MissingFileError):
                return True  # the topic was deleted
            files = self._store.view.files(queue)
            return not files.batch and entry.queue_offset < files.first_unit
        if not isinstance(error, MissingFileError):
            return False
        return error.offset is not None and error.offset < self._store.log.current_start()

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `waiting_rows`."""
        return self.waiting_rows(self._store.broker_name, columns)

    def log(self) -> None:
        """Log one line about what the task left out or found damaged, if anything."""
        self.log_counts(f"{self._store.broker_name} ({self._store.path})")


def _with_modes(error: StoreError) -> StoreError:
    advice = error.advice or ""
    if TO_PASS_DAMAGE in advice:
        return error
    return error.with_advice(f"{advice}. {TO_PASS_DAMAGE}" if advice else TO_PASS_DAMAGE)


def read_share(
    scan: StoreScan,
    share: Share,
    store: StoreReader,
    columns: Sequence[str],
    damage: DamageHandler,
    *,
    log_order: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Batches of `columns` of one share, in log order or queue after queue; none is empty.

    `log_order`: as in CommonReadOptions. `store` is the scan's store, opened. Rows about damage follow the
    batch they belong to; in them every column can be null. Raises what `damage` raises, and OtherStoreError
    if another store took the place of the scan's meanwhile.
    """
    with store.refusing_replacement():
        if share.reports:
            for error in reported_errors(scan, share, store):
                damage.take_damage(error)
            yield from damage.rows(columns)
            return
        batches = read_messages(
            scan, share, store, columns, {"log_order": log_order, "on_damage": damage}
        )
        for batch in batches:
            if batch.num_rows:
                yield batch
            yield from damage.rows(columns)
        yield from damage.rows(columns)


def read_messages(
    scan: StoreScan, share: Share, store: StoreReader, columns: Sequence[str], how: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The messages of one share, as the options of the scan say, or else `how`; batches may be empty.

    What opening the store saw to be missing at ends of queues is not reported, unless `check_ends`: a share
    of its own does.
    """
    options = scan.options
    of_scan: ReadOptions = {
        "columns": columns,
        "tags": options.tags,
        "keys": options.keys,
        "first_batch_rows": None if scan.is_wave else FIRST_BATCH_ROWS,  # a wave is read whole
        "check_crc": not BODIES.isdisjoint(columns),
        "max_body_bytes": options.max_body_bytes,
        "unwrap_batches": options.unwrap_batches,
    }
    if scan.limits is not None:
        on_damage = how.get("on_damage")
        assert share.slice is not None
        assert callable(on_damage)
        unqueued, in_log = options.include_unqueued, share.slice
        # A reader notices itself that no file is left.
        if in_log.start is not None and store.log.chain.segments and in_log.start < store.log.start:
            on_damage(_expired_files(store, in_log.start))
        how = {**of_scan, **how}
        yield from store.read_log(
            in_log.start, in_log.stop, limits=scan.limits, include_unqueued=unqueued, **how
        )
        return
    how = {**of_scan, "check_ends": False, "compacted": options.sees_compacted, **how}
    for slices in pieces_of_share(scan, share, store):
        yield from store.read_slices(slices, verify_queue=options.verify_queue, **how)


def _expired_files(store: StoreReader, start: int) -> MissingFileError:
    """The error for files that were there when the read was planned."""
    return MissingFileError(
        str(store.path),
        offset=LogOffset(start),
        reason="files of the log that the plan of this read has are gone",
        expected=f"the log from {start} on",
        actual=f"from {store.log.start} on",
    )


def pieces_of_share(
    scan: StoreScan, share: Share, store: StoreReader
) -> Iterator[Sequence[QueueSlice]]:
    """The ranges of a share, as lists. Each list is read in log order."""
    if share.ranges is None:
        assert share.slice is not None
        edges = (share.slice.start, share.slice.stop)
        view = store.ranges_for(scan.options.sees_compacted)
        yield parts_in_log_slice(
            scan.ranges, share.slice, prefetched_offset_at_log(store, scan.ranges, edges, view)
        )
    elif share.in_turn:
        for part in share.ranges:
            yield [part]
    else:
        yield share.ranges
