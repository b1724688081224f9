"""What a scan reads of one store: its pinned state, and which parts of it. Plain picklable data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rmq_store import MessageStore, StoreSnapshot
from rmq_store.arrow.column_definitions import column_names, needs_log
from rmq_store.dataset.condition import Condition
from rmq_store.files.remote.remote_store import Listing
from rmq_store.files.remote.uri_filesystem import StorageOptions
from rmq_store.format.queues import QueueSlice
from rmq_store.reading.log_reader import Limits
from rmq_store.scan.parse_options import ScanOptions


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """A store and the offsets it had when the scan was made. Small and picklable."""

    path: str
    broker_conf: str | None
    snapshot: StoreSnapshot
    broker_name: str
    storage_options: StorageOptions | None = None
    listing: Listing | None = None  # the files at that time, for a store in an object store

    def open(self) -> MessageStore:
        """Open the store with the pinned offsets. Raises OtherStoreError for another store."""
        return MessageStore.open(
            self.path,
            broker_name=self.broker_name,
            broker_conf=self.broker_conf,
            snapshot=self.snapshot,
            queues=bool(self.snapshot.queues),
            storage_options=self.storage_options,
            listing=self.listing,
        )


@dataclass(frozen=True, slots=True)
class StoreScan:
    """What is read from one store: `limits` if the log is the source, else `ranges`.

    `words` come from filters: a message must have one of them in KEYS or as UNIQ_KEY. Unlike the
    option `keys`, they only narrow where to look.
    """

    store: PinnedStore
    ranges: tuple[QueueSlice, ...]
    options: ScanOptions
    limits: Limits | None = None
    words: frozenset[str] | None = None
    nothing: bool = False  # the filters exclude everything
    may_have_errors: bool = True  # opening the store saw something to be missing at ends of queues
    is_wave: bool = False  # a job reads the rest of the selection by other scans

    @property
    def indexed_keys(self) -> frozenset[str] | None:
        """The keys to look up in the index; None to read the ranges whole."""
        return self.words if self.options.keys is None else frozenset(self.options.keys)

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
            return replace(self, ranges=(), nothing=True)
        ranges = self.ranges
        if ranges:
            with self.store.open() as store:
                view = store.ranges_for(self.options.sees_compacted)
                ranges = tuple(
                    part for part in condition.narrowed(store, ranges, view) if len(part)
                )
        words = condition.words if self.words is None else self.words
        return replace(self, ranges=ranges, words=words, options=replace(self.options, tags=tags))
