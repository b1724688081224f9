"""StoreReader: the messages of a store by queue, key, time and log offset."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import pyarrow as pa

from rmq_store.commitlog.log import CommitLog, marks_of_files, open_log, refuse_other_store
from rmq_store.commitlog.walk import RecordOrGap, guess_release_4, records_and_gaps
from rmq_store.config.broker_conf import ConfigLike, StoreConfig
from rmq_store.config.consumer_offsets import ConsumerOffsets, read_consumer_offsets
from rmq_store.config.dledger import unread_dledger
from rmq_store.config.locate import require_store
from rmq_store.consumequeue.compacted_queue import CompactionFolders
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import AccessError, StoreError, is_utf8, printable
from rmq_store.files.remote.remote_store import Listing, Shadow, open_shadow
from rmq_store.files.remote.uri_filesystem import is_uri, local_path
from rmq_store.files.segments import again_if_expired
from rmq_store.files.source import ReadCounts, StoreReads
from rmq_store.format.byte_layout import ABORT_BACKUP_FILE
from rmq_store.format.queues import Entries, QueueId, QueueSlice
from rmq_store.format.record import Message
from rmq_store.format.releases import Dialect, dialect
from rmq_store.format.topics import cluster_and_broker_names, is_system_topic, topic_of_broker
from rmq_store.index.query_message import KeyIndex
from rmq_store.reading.get_message import (
    CompactedGetter,
    GetMessageResult,
    GetMessageStatus,
    MessageGetter,
)
from rmq_store.reading.log_reader import Limits, LogReader, no_limits, ranges_of_limits
from rmq_store.reading.message_lookup import MessageLookup
from rmq_store.reading.query import (
    CommonReadOptions,
    OnDamage,
    Query,
    ReadOptions,
    number,
    several_values,
    text,
    written_text,
)
from rmq_store.reading.slice_reader import (
    RangesOf,
    SliceReader,
    compacted_batches,
    ranges_of_slices,
)
from rmq_store.snapshot.compacted_view import ConsumerQueues, QueueSource
from rmq_store.snapshot.opening import Opening, geometry_from_files
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.snapshot import StoreSnapshot, snapshot_without_queues, take_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


_Store = TypeVar("_Store", bound="StoreReader")


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """A store as it was when it was opened: small and picklable, to open it once more, in any process.

    `config`: the broker's settings; `listing`: the files at that time, of a store in an object store.
    """

    path: str
    broker_name: str
    config: StoreConfig
    snapshot: StoreSnapshot
    release: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)  # may hold secrets
    listing: Listing | None = None

    def open(self) -> StoreReader:
        """The store with the pinned offsets. Raises as `StoreReader.open`."""
        return self.open_as(StoreReader)

    def open_as(self, kind: type[_Store]) -> _Store:
        """As `open`, a store of this class."""
        return kind.open(
            self.path,
            broker_name=self.broker_name,
            config=self.config,
            snapshot=self.snapshot,
            release=self.release,
            queues=bool(self.snapshot.queues),
            storage_options=self.storage_options,
            listing=self.listing,
        )


class StoreReader:
    """A store opened to read. Reading writes nothing. What a user opens is a `MessageStore`.

    `open` takes a snapshot; what a broker writes later is not seen. A context manager; one thread at
    a time; not picklable (its snapshot is). The project's own rooms also use `view` (queues by
    queue offset), `served` (the same as consumers see them), `opening` (what opening has seen to be lost),
    `log` (the CommitLog), `lookup` (single messages) and `key_index`.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        broker_name: str,
        snapshot: StoreSnapshot | None,
        release: str | None = None,
        queues: bool = True,
    ) -> None:
        """Use `open`."""
        self.path, self.config, self.broker_name = root, config, broker_name
        self._log = open_log(root, config)
        self._folders = QueueFolders(root, config, self._log)
        self._compaction = CompactionFolders(root)
        if snapshot is None:
            snapshot = (
                take_snapshot(self._log, self._folders, past_damage=True)
                if queues
                else snapshot_without_queues(root, self._log)
            )
            snapshot = replace(snapshot, marks=marks_of_files(self._log, snapshot.unchanging_end))
        self._snapshot = snapshot
        self._key_index: KeyIndex | None = None
        self.view = QueueView(self._log, self._folders, self._snapshot, self.is_system_topic)
        self.served = ConsumerQueues(self.view, self._compaction)
        self.opening = Opening(self.view)
        self.lookup = MessageLookup(self.view, self.opening, broker_name, self.key_index)
        self._release = release
        self._shadow: Shadow | None = None
        self._opened_again: list[ref[StoreReader]] = []
        self._storage_options: Mapping[str, str] | None = None
        self.own_topic = topic_of_broker(broker_name, str(root.absolute()))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        broker_name: str | None = None,
        broker_conf: str | os.PathLike[str] | None = None,
        config: ConfigLike = None,
        snapshot: StoreSnapshot | None = None,
        release: str | None = None,
        queues: bool = True,
        storage_options: Mapping[str, str] | None = None,
        listing: Listing | None = None,
    ) -> Self:
        """Open the store in `path`: the folder storePathRootDir, or a URI such as s3://bucket/store.

        - `broker_name`: by default brokerName of `broker_conf`, else the folder's name. No file of
          a store records it.
        - `broker_conf`, `config`: the broker's settings, as a file and as values; values win. By
          default file sizes are inferred from the files.
        - `snapshot`: show what the store held when this was taken.
        - `release`: only `as_broker` answers depend on it; by default it is guessed.
        - `queues`: False ignores the queues, for `read_log` on a store whose queues are missing or
          damaged.
        - `storage_options`: for the object store; by default the environment configures it.
        - `listing`: the files of an object store at an earlier `listing()`.

        Raises NotAStoreError, UnsupportedStoreError, AccessError, UndispatchedError where the
        queues are lost, OtherStoreError if the snapshot is of another store, InvalidArgumentError for an
        unknown name in `config`.
        """
        settings = StoreConfig.of(config)
        if broker_conf is not None:
            settings = settings.with_defaults_of(StoreConfig.read(broker_conf))
        where, shadow = local_path(os.fspath(path)), None
        with ExitStack() as on_failure:
            if is_uri(where):
                where = where.rstrip("/")
                shadow = on_failure.enter_context(
                    closing(open_shadow(where, storage_options, listing))
                )
            root = require_store(
                where if shadow is None else shadow.folder, settings, queues=queues, to_read=True
            )
            folder = root.absolute().name if shadow is None else where.rpartition("/")[2]
            name = broker_name or settings.brokerName or folder
            if not is_utf8(name):  # a folder's; columns of text have no room for it
                name = printable(name)
            store = again_if_expired(lambda: cls(root, settings, name, snapshot, release, queues))
            if snapshot is not None:
                store.refuse_other()
            on_failure.pop_all()
        if shadow is not None:
            store._shadow, store.own_topic = shadow, topic_of_broker(name, where)
            store._storage_options = storage_options
        return store

    def reopen(self) -> Self:
        """The same state of the store, opened once more: for another thread, or to outlive this one.

        Raises as `open`.
        """
        store = self.pinned().open_as(type(self))
        self._opened_again = [opened for opened in self._opened_again if opened() is not None] + [
            ref(store)
        ]
        return store

    def pinned(self, snapshot: StoreSnapshot | None = None) -> PinnedStore:
        """What opens the store with these offsets, by default the same."""
        return PinnedStore(
            self._address(),
            self.broker_name,
            self.config,
            snapshot or self._snapshot,
            self._release,
            self._storage_options,
            self.listing(),
        )

    def end_reads(self) -> None:
        """End what other threads read of this store, and of those that it was opened `again` as: their next
        look at the log raises ReadOnlyStoreError. Each still has to be closed."""
        self.view.is_closed = True
        for opened in self._opened_again:
            store = opened()
            if store is not None:
                store.end_reads()

    def close(self) -> None:
        """Close all files. Closing twice is fine.

        Reads that were begun raise ReadOnlyStoreError for their next batch; batches that were read stay.
        Datasets (`messages`) open the store again.
        """
        self.view.is_closed = True
        self._log.chain.close()
        self._folders.close()
        self._compaction.close()
        self._key_index = None
        if self._shadow is not None:
            self._shadow.close()

    def refuse_other(self) -> None:
        """Raise OtherStoreError if another store is at the path now, not that of the snapshot.

        Opening with a snapshot does so; what is read later may be of a store that came meanwhile.
        """
        refuse_other_store(self._log, self._snapshot.marks, str(self.path))

    @contextmanager
    def refusing_replacement(self) -> Iterator[None]:
        """Raise OtherStoreError after a read, or in place of its error, as `refuse_other` does."""
        try:
            yield
        except StoreError:
            self.refuse_other()
            raise
        self.refuse_other()

    def release_files(self) -> None:
        """Close the files of a local store, for a caller with many open stores. The next read opens
        them again."""
        if self._shadow is None:
            self._log.chain.close()
            self._folders.release()
            self._compaction.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        start, end = self.log_range()
        return (
            f"{type(self).__name__}({self._address()!r}, broker_name={self.broker_name!r}, "
            f"{len(self._snapshot.queues)} queues, log {start} to {end})"
        )

    def _address(self) -> str:
        return str(self.path) if self._shadow is None else self._shadow.uri

    def __reduce__(self) -> Any:
        raise TypeError("a MessageStore is not picklable: send its path and snapshot() instead")

    @property
    def log(self) -> CommitLog:
        """The CommitLog, by log offset. Raises ReadOnlyStoreError after `close`."""
        return self.view.log

    def geometry(self) -> StoreConfig:
        """The file sizes of this store, as settings; None where the files do not show one."""
        return geometry_from_files(self.log, self._folders, damaged_index=True)

    @property
    def dialect(self) -> Dialect:
        """How the broker of this store writes and answers, by the given release or a guess.

        No file names the release. 5.x leaves abort.bak; see `guess_release_4` for 4.x.
        """
        if self._release is None and not (self.path / ABORT_BACKUP_FILE).exists():
            self._release = guess_release_4(self.log)
        return dialect(self._release)

    def snapshot(self) -> StoreSnapshot:
        """The ranges of the log and of all queues: frozen and picklable."""
        return self._snapshot

    def listing(self) -> Listing | None:
        """The files of a store in an object store, for `open`; None for a local store."""
        return None if self._shadow is None else self._shadow.listing

    def log_range(self) -> tuple[int, int]:
        """CommitLog offsets: where the first file begins and where the last record ends."""
        return self._snapshot.log_start, self._snapshot.log_end

    def reads(self) -> StoreReads:
        """Files opened, bytes read and requests made so far."""
        shadow = self._shadow
        fetched = (0, 0) if shadow is None else (shadow.requests, shadow.fetched)
        index = ReadCounts() if self._key_index is None else self._key_index.counts
        return StoreReads(self._log.chain.counts, self._folders.counts, index, *fetched)

    def topics(self, include_system: bool = True) -> list[str]:
        """Names of all topics that have a queue, sorted; optionally without system topics."""
        return [
            name
            for name in self.view.topics.with_queues
            if include_system or not self.is_system_topic(name)
        ]

    def is_system_topic(self, topic: str) -> bool:
        """Whether a topic is the broker's own, given this broker's and cluster's names."""
        return is_system_topic(topic, self.own_names)

    @cached_property
    def own_names(self) -> frozenset[str | None]:
        """The names of the broker and its cluster, after which it names topics, as far as they are known.

        Not what only the path gives; but what topics.json, if it can be read, shows of them.
        """
        declared: Iterable[str] = ()
        with suppress(AccessError):
            declared = self.view.topics.declared
        given = self.config.brokerClusterName, self.own_topic
        return cluster_and_broker_names(declared).union(given)

    def is_undeclared(self, topic: str) -> bool:
        """Whether topics.json does not have a topic, and a broker that starts neither knows nor creates it.

        False if there is no topics.json, or one that cannot be read. Raises AccessError.
        """
        return self.view.topics.is_undeclared(topic) and not self.is_system_topic(topic)

    def queues(self, topic: str | None = None) -> list[QueueId]:
        """All queues, or those of one topic, sorted."""
        if topic is None:
            return list(self._snapshot.queues)
        return list(self.view.queues_of(text("topic", topic)))

    def min_offset(self, topic: str, queue_id: int, *, as_broker: bool = False) -> int:
        """The first queue offset that still has a message; max_offset if there is none.

        `as_broker`: what a broker answers right after its start. Raises UnknownQueueError.
        """
        queue = QueueId(topic, queue_id)
        state = self.view.state(queue)
        return self.view.broker_min_offset(queue, state) if as_broker else state.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message. Raises UnknownQueueError."""
        return self.view.state(QueueId(topic, queue_id)).max_offset

    def consumer_offsets(self) -> ConsumerOffsets:
        """Committed offsets, group -> topic -> queueId -> next offset, as of now.

        Raises CorruptConfigError where the file and its .bak are both damaged.
        """
        return read_consumer_offsets(self.path, self.config.enableLmq)

    def entries(self, queue: QueueId, start: int, stop: int) -> Entries:
        """The entries of queue offsets [start, stop), undispatched records included.

        An inner batch is one entry; it is included if any of its messages is in the range.
        """
        return self.view.entries(queue, start, stop)

    def log_offset_of(self, queue: QueueId, queue_offset: int) -> int:
        """The log offset that the entry at `queue_offset` points to; the log's end for max_offset."""
        return self.view.log_offset_of(queue, queue_offset)

    def ranges_for(self, compacted: bool) -> QueueSource:
        """What says the ranges of queues, and their places and times, for a read with `compacted`."""
        return self.served if compacted else self.view

    def read_slices(
        self,
        slices: Sequence[QueueSlice],
        *,
        verify_queue: bool = False,
        **how: Unpack[ReadOptions],
    ) -> pa.RecordBatchReader:
        """Arrow batches of all `slices` together, in the order of the log, read as they are asked for.

        The other keywords are those of `ReadOptions`; the schema of the batches is
        `arrow_schema(columns)`. Columns that stand in the queue entry come from there; if no other
        column is asked for, no record of a slice is read unless `verify_queue` holds every entry
        against its record.

        Queues of compaction topics come first, one after the other, and are read from `compaction/`: see
        `compacted`. Their commitLogOffset is the place there, as the broker answers.

        Raises CorruptRecordError, CorruptQueueError, MissingFileError or BodyError for an entry
        that does not lead to a sound record of its queue. With `on_damage` the error goes there,
        the entry is left out, and batches may be empty. A file that is cut during the read is a
        DataLossError in any case.
        """
        query = Query.of(verify_queue, **how)
        own, compacted = self.served.split(slices) if query.compacted else (slices, {})
        reader = self._reader(query, ranges_of_slices(own))
        self.view.fetch_ahead(own)
        batches = reader.read(own)
        if compacted:
            served, name = self.served, self.broker_name
            first = compacted_batches(served, compacted, name, query, reader.report)
            batches = chain(first, batches)
        return pa.RecordBatchReader.from_batches(query.schema, self._while_open(batches))

    def read_log(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        limits: Limits | None = None,
        include_unqueued: bool = False,
        **how: Unpack[ReadOptions],
    ) -> pa.RecordBatchReader:
        """Arrow batches of the records that start in [start, stop) of the log; queues stay closed.

        The rows equal those that the queues would give: topic, queue and offset are derived from
        the records. `limits`: what to read of each queue, by default everything.
        `include_unqueued`: also prepared and rolled-back records, with queueOffset null. The other
        keywords are those of `ReadOptions`; every stretch that is neither record nor filler is damage, and
        so are a DLedger log after this one and a lost end, for a read that reaches the end.
        """
        query = Query.of(verify_queue=True, **how)
        limits = limits or no_limits
        rows = self._reader(query, ranges_of_limits(limits))
        unread = partial(self._after_log, query.check_ends)
        reader = LogReader(rows, limits, self.view.requests_of, include_unqueued, unread)
        batches = reader.read(number("start", start), number("stop", stop))
        return pa.RecordBatchReader.from_batches(query.schema, self._while_open(batches))

    def _after_log(self, check_ends: bool) -> Iterator[StoreError]:
        """The errors about what the store has, or had, after the end of the log."""
        missing = unread_dledger(self.path, self.config, self.log.chain.segments)
        if missing is not None:
            yield missing
        elif check_ends:
            yield from self.opening.errors_of_log()

    def _while_open(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches; raises ReadOnlyStoreError for the next one after `close`, and OtherStoreError after
        the last one if files that were opened meanwhile may be of another store."""
        _ = self.log
        for batch in batches:
            yield batch
            _ = self.log
        self.refuse_other()

    def _reader(self, query: Query, ranges_of: RangesOf) -> SliceReader:
        return SliceReader(self.view, self.broker_name, query, ranges_of, self.opening)

    def read_batches(
        self,
        topics: str | Sequence[str] | None = None,
        queue_ids: Collection[int] | None = None,
        start: int | None = None,
        stop: int | None = None,
        tags: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        *,
        include_system_topics: bool = False,
        **how: Unpack[CommonReadOptions],
    ) -> pa.RecordBatchReader:
        """Arrow batches of the messages of `topics`: one name, several, or by default all user topics.

        DuckDB, Polars, DataFusion and others take the reader as it is, without a copy.

        `start` and `stop`: queue offsets, half-open, clipped to each queue. `tags`, `columns` and
        the other keywords as in `read_slices`. Raises UnknownQueueError for an unknown topic.
        """
        named, start, stop = (
            several_values("topics", topics),
            number("start", start),
            number("stop", stop),
        )
        names = self.topics(include_system_topics) if named is None else named
        queue_ids = several_values("queue_ids", queue_ids, Integral)
        slices = [
            QueueSlice(
                slice_.queue,
                max(slice_.start, start or 0),
                slice_.stop if stop is None else min(slice_.stop, stop),
            )
            for slice_ in self.ranges_for(how.get("compacted", True)).ranges_of(names, queue_ids)
        ]
        return self.read_slices(slices, tags=tags, columns=columns, **how)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows of `messages` of all user topics, for what takes Arrow streams (PyCapsule)."""
        return self.read_batches(unwrap_batches=True).__arrow_c_stream__(requested_schema)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | Sequence[str] | None = None,
        as_broker: bool = False,
    ) -> GetMessageResult:
        """Up to `max_messages` messages of a queue from `offset` on; tags are compared as text.

        `as_broker`: as DefaultMessageStore#getMessage answers. That is at most 32 messages and
        256 KiB, up to the end of one queue file, tags by hash alone, with the broker's min offset.

        A topic with cleanup.policy=COMPACTION is answered from `compaction/`, as the broker does
        (CompactionLog#getMessage): with the last message of each key, as far as it has been compacted,
        at its place in the compaction log as commit_log_offset, and with the offsets of that queue,
        min_offset -1 if it is empty. No offset is too small there, and `as_broker` compares no tags.

        Raises the errors of `read_slices` for damage on the way, and DataLossError where no message is
        before the queue's end and the log lost its own; `as_broker` answers as the broker. In
        `compaction/` both raise CorruptRecordError, CorruptQueueError or MissingFileError.
        """
        queue = QueueId(text("topic", topic), number("queue_id", queue_id))
        _ = self.log  # raises if the store is closed
        offset = number("offset", offset)
        if self.served.is_answered(topic):
            files = self.served.files(queue)
            if files is None:
                # As of a broker that has just started.
                return GetMessageResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
            compacted = CompactedGetter(queue, files, self.broker_name)
            if as_broker:
                return compacted.as_broker(offset, max_messages)
            return compacted.exact(offset, max_messages, tags)
        getter = MessageGetter(self.view, self.opening, self.lookup)
        if as_broker:
            overflow_to_min = self.dialect.has("overflow_to_min")
            return getter.as_broker(queue, offset, max_messages, tags, overflow_to_min)
        return getter.exact(queue, offset, max_messages, tags)

    def message_at(self, commit_log_offset: int) -> Message:
        """The message whose record starts at a log offset; queue_offset is None if no queue lists it.

        Raises CorruptRecordError if no record starts there, MissingFileError if no file holds it.
        """
        return self.lookup.message_at(number("commit_log_offset", commit_log_offset))

    def message_by_id(self, message_id: str) -> Message | None:
        """The first message with an offsetMsgId (32 or 56 hex digits) or a UNIQ_KEY, or None."""
        return next(iter(self.messages_by_id(message_id)), None)

    def messages_by_id(
        self, message_id: str, on_damage: OnDamage | str | None = None
    ) -> list[Message]:
        """Messages with an offsetMsgId (32 or 56 hex digits) or a UNIQ_KEY, in the order of the log.

        Several share a UNIQ_KEY if they are retries of one message. Raises CorruptRecordError or
        MissingFileError if the id leads to a log offset that cannot be read; with `on_damage` the
        error goes there and the search continues.
        """
        return self.lookup.messages_by_id(written_text("message_id", message_id), on_damage)

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = 64,
        begin: int = 0,
        end: int | None = None,
        on_damage: OnDamage | str | None = None,
    ) -> list[Message]:
        """Messages of a topic by one word of KEYS or by UNIQ_KEY, stored in [begin, end] (ms).

        Returns the newest `max_messages`, oldest first. Each is checked against its record, so there
        are no hash collisions and no duplicates; the parts of the log that the index does not cover
        and queues of inner batches are searched too. Unreadable records are skipped, as by the
        broker; `on_damage` gets their errors, and those of damage where no index covers the log.
        """
        named = text("topic", topic), written_text("key", key)
        return self.lookup.query_message(*named, max_messages, begin, end, on_damage)

    def key_index(self) -> KeyIndex:
        """The index files, and the ranges of the log that they do not cover."""
        log = self.log
        if self._key_index is None:
            self._key_index = KeyIndex(self.path, log, self._snapshot.log_end, self.config)
        return self._key_index

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: str = "LOWER"
    ) -> int:
        """The queue offset for a time (ms since the epoch), as the broker answers since 5.1.1.

        LOWER: the first message stored at that time or later, else max_offset. UPPER: the last one
        stored at that time or earlier; if there is none, the offset before the first one if the
        queue still has an entry there, else the first one. In a queue of inner batches the offset
        is that of a batch, at most the last one's. Raises UnknownQueueError.
        """
        return self.view.offset_by_time(topic, queue_id, number("timestamp", timestamp), boundary)

    def first_since(
        self, queue: QueueId, timestamp: int, *, unreadable_before: bool = False
    ) -> int:
        """The first queue offset whose message was stored at `timestamp` (ms) or later, else max_offset.

        Messages directly before it whose time is unreadable count as after it, so a range that
        starts here misses nothing; `unreadable_before` counts them as before it, for a range that
        ends here. Exact for inner batches, unlike `offset_by_time`. Raises UnknownQueueError.
        """
        return self.view.first_since(queue, timestamp, unreadable_before=unreadable_before)

    def scan(self, start: int | None = None) -> Iterator[RecordOrGap]:
        """Every byte of the log from `start` (default: its first) on, as whole records and gaps, each
        with its kind: filler, unwritten, torn, ghost, stale, damaged or missing."""
        return records_and_gaps(self.log, start)
