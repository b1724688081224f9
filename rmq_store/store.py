"""MessageStore: a store's messages by queue, by key, by time and by place in the log."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rmq_store.commitlog.log import CommitLog, Extent
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.consumer_offsets import ConsumerOffsets, read_consumer_offsets
from rmq_store.config.locate import commitlog_folders, require_store
from rmq_store.config.topics_json import declared_batch_topics
from rmq_store.consumequeue.entries import Entries
from rmq_store.consumequeue.folders import QueueFolders
from rmq_store.errors import (
    ReadOnlyStoreError,
    shown_path,
)
from rmq_store.files.mapping import ReadCounts
from rmq_store.files.remote.filesystem import is_uri
from rmq_store.files.remote.object_store import Listing, Shadow, open_shadow
from rmq_store.format.layout import (
    ABORT_BACKUP_FILE,
    PROPERTY_SEPARATOR,
)
from rmq_store.format.message import Message
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.format.releases import Dialect, dialect
from rmq_store.format.topics import is_system_topic
from rmq_store.index.query import KeyIndex
from rmq_store.reading.get_message import GetMessageResult, MessageGetter
from rmq_store.reading.log_reader import Limits, LogReader, QueueLimits, log_end_without_queues
from rmq_store.reading.message_lookup import MessageLookup
from rmq_store.reading.options import (
    OnDamage,
    ReadHow,
    ReadManner,
    ReadOptions,
    parse_tags,
    positive,
)
from rmq_store.reading.slice_reader import SliceReader
from rmq_store.snapshot.file_sizes import geometry_found
from rmq_store.snapshot.queue_view import QueueView
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rmq_store.writing.store_writer import StoreWriter

ConfigLike = StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None


class StoreReads(NamedTuple):
    """What was read of a store; bytes of the log without bodies that were not asked for."""

    log: ReadCounts
    queues: ReadCounts

    def __str__(self) -> str:
        return (
            f"read {self.log.bytes} bytes of {len(self.log.files)} files of the log and "
            f"{self.queues.bytes} bytes of {len(self.queues.files)} files of queues: "
            + ", ".join(map(shown_path, (*self.log.files, *self.queues.files)))
        )


class MessageStore:
    """A store opened to read: no file is opened with a write flag, and none is left behind.

    What it holds is resolved once, at `open`, and does not change afterwards though a broker may go
    on writing. A context manager; not for several threads at once; not picklable (its snapshot is).
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
        self.path = root
        self.config = config
        self.broker_name = broker_name
        self._log = CommitLog(
            commitlog_folders(root, config), file_size=config.mappedFileSizeCommitLog
        )
        self._folders = QueueFolders(root, config)
        if snapshot is None and queues:
            snapshot = take_snapshot(root, self._log, self._folders, config)
        self._snapshot = snapshot or StoreSnapshot(
            self._log.start, log_end_without_queues(self._log)
        )
        self._key_index: KeyIndex | None = None
        self.view = QueueView(root, self._open_log, self._folders, self._snapshot)
        self.lookup = MessageLookup(self.view, self._open_log, broker_name, self.key_index)
        self._release = release
        self._closed = False
        self._shadow: Shadow | None = None

    # --- opening and closing -----------------------------------------------------------------------

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
    ) -> MessageStore:
        """Open the store in the folder `path` (storePathRootDir) to read.

        The files record neither the broker's name nor their geometry. The name is `broker_name`,
        else that of `broker_conf`, else the folder's. Sizes are found from the files; `broker_conf`
        (a file) and `config` (the broker's own names; it has precedence) overrule that.
        With a `snapshot` the store shows what it held when that was taken. `release` is asked for
        only where `as_broker` answers differ between releases; by default it is guessed.
        Without `queues` these are not looked at, and there are none: for `read_log` on a store
        whose queues are missing, damaged or in RocksDB.
        `path` may be a URI of a file system that pyarrow.fs knows (s3://bucket/store): ranges are
        read from it. `storage_options` are what that is opened with, else the environment says;
        with a `listing` (see `listing()`) the files are those that were there then.

        Raises NotAStoreError, UnsupportedStoreError, AccessError, UndispatchedError where the
        queues are lost, or InvalidArgumentError for an unknown name in `config`.
        """
        known = StoreConfig.of(config)
        if broker_conf is not None:
            known = known.with_defaults_of(StoreConfig.read(broker_conf))
        if not is_uri(path) or os.fspath(path).startswith("file://"):
            local = os.fspath(path).removeprefix("file://")
            root = require_store(local, known, queues=queues)
            name = broker_name or known.brokerName or root.absolute().name
            return cls(root, known, name, snapshot, release, queues)
        uri = os.fspath(path).rstrip("/")
        shadow = open_shadow(uri, storage_options, listing)
        try:
            root = require_store(shadow.folder, known, queues=queues)
            name = broker_name or known.brokerName or uri.rpartition("/")[2]
            store = cls(root, known, name, snapshot, release, queues)
        except BaseException:
            shadow.close()
            raise
        store._shadow = shadow
        return store

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        config: ConfigLike = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
    ) -> StoreWriter:
        """Make a new store in `path` (a folder that is not there yet, or empty) and write to it.

        See `rmq_store.writing.store_writer.StoreWriter`. `release`: write as that release of the broker does.
        """
        from rmq_store.writing.store_writer import StoreWriter

        return StoreWriter.create(path, config, release=release, broker_name=broker_name)

    @staticmethod
    def append_to(
        path: str | os.PathLike[str],
        config: ConfigLike = None,
        *,
        release: str | None = None,
        broker_name: str | None = None,
        recovery: str = "strict",
        until: int | None = None,
    ) -> StoreWriter:
        """Open a store to write behind what it holds; one that was not closed cleanly is recovered.

        `recovery`: "strict", "broker" or "refuse"; `until`: where a recovery is to cut the log.
        See `rmq_store.writing.store_writer.StoreWriter`.
        """
        from rmq_store.writing.store_writer import StoreWriter

        return StoreWriter.append_to(
            path,
            config,
            release=release,
            broker_name=broker_name,
            recovery=recovery,
            until=until,
        )

    def close(self) -> None:
        """Give up all files. Closing twice is fine."""
        self._closed = True
        self._log.chain.close()
        self._folders.close()
        self._key_index = None
        if self._shadow is not None:
            self._shadow.close()

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MessageStore({str(self.path)!r}, broker_name={self.broker_name!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a MessageStore is not picklable: send its path and snapshot() instead")

    def _open_log(self) -> CommitLog:
        if self._closed:
            raise ReadOnlyStoreError(
                self.path, reason="the store was closed", advice="Open it anew"
            )
        return self._log

    @property
    def log(self) -> CommitLog:
        """The CommitLog, for whoever looks at places and not at messages."""
        return self._open_log()

    def geometry(self) -> StoreConfig:
        """The sizes that the files were made with, as settings; those that cannot be told are None."""
        log = self._open_log()
        return geometry_found(self.path, log, self._folders, self.config, damaged_index=True)

    @property
    def dialect(self) -> Dialect:
        """How the broker of this store writes and answers, by the release given or a guess.

        No file names the release. 5.x leaves abort.bak behind; of 4.x those up to 4.9.0 end the
        last property with 0x02 and later ones do not.
        """
        if self._release is None and not (self.path / ABORT_BACKUP_FILE).exists():
            self._release = _guess_old_release(self._open_log())
        return dialect(self._release)

    # --- what is there -----------------------------------------------------------------------------

    def snapshot(self) -> StoreSnapshot:
        """What this store shows: frozen and picklable."""
        return self._snapshot

    def listing(self) -> Listing | None:
        """The files of a store in an object store, for `open` elsewhere; None of a local one."""
        return None if self._shadow is None else self._shadow.listing

    @property
    def is_remote(self) -> bool:
        """Whether the store is in an object store, where each look is a request."""
        return self._shadow is not None

    def remote_reads(self) -> tuple[int, int]:
        """Requests made to an object store so far, and bytes that they brought."""
        return (0, 0) if self._shadow is None else (self._shadow.requests, self._shadow.fetched)

    def log_range(self) -> tuple[int, int]:
        """CommitLog offsets: where the first file begins and where the last record ends."""
        return self._snapshot.log_start, self._snapshot.log_end

    def reads(self) -> StoreReads:
        """Files opened and bytes asked for so far, of the log and of the queues."""
        return StoreReads(self._log.chain.counts, self._folders.counts)

    def topics(self, include_system: bool = True) -> list[str]:
        """Names of all topics that have a queue, sorted; without the system's own if so asked."""
        names = sorted({queue.topic for queue in self._snapshot.queues})
        return [name for name in names if include_system or not self.is_system_topic(name)]

    def is_system_topic(self, topic: str) -> bool:
        """Whether a topic is the broker's own: `rmq_store.is_system_topic` with this broker's names."""
        return is_system_topic(topic, self.config.brokerClusterName, self.broker_name)

    def queues(self, topic: str | None = None) -> list[QueueId]:
        """All queues, or those of one topic, sorted."""
        return [queue for queue in self._snapshot.queues if topic in (None, queue.topic)]

    def min_offset(self, topic: str, queue_id: int, *, as_broker: bool = False) -> int:
        """The first queue offset that still has a message; max_offset if there is none.

        `as_broker`: what a broker says right after its start, which can be too low. Raises
        UnknownQueueError.
        """
        queue = QueueId(topic, queue_id)
        state = self.view.state(queue)
        return self.view.broker_min(queue, state) if as_broker else state.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last message. Raises UnknownQueueError."""
        return self.view.state(QueueId(topic, queue_id)).max_offset

    def consumer_offsets(self) -> ConsumerOffsets:
        """Committed offsets, group -> topic -> queueId -> next offset, as of now.

        Raises CorruptConfigError where the file and its .bak are both damaged.
        """
        return read_consumer_offsets(self.path)

    # --- entries -----------------------------------------------------------------------------------

    def entries(self, queue: QueueId, start: int, stop: int) -> Entries:
        """The entries of queue offsets [start, stop): from its files, and of undispatched records.

        An inner batch is one entry, given where any of its messages is in the range.
        """
        return self.view.entries(queue, start, stop)

    def log_offset_of(self, queue: QueueId, queue_offset: int) -> int:
        """Where the entry at `queue_offset` points in the log; the log's end for max_offset."""
        return self.view.log_offset_of(queue, queue_offset)

    # --- reading -----------------------------------------------------------------------------------

    def read_slices(
        self,
        slices: Sequence[QueueSlice],
        *,
        verify_queue: bool = False,
        **how: Unpack[ReadHow],
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of queue slices, all of them together in the order of the log.

        The other keywords are those of `ReadHow`; the schema of the batches is
        `schema.arrow_schema(columns)`. Columns that stand in the queue entry are taken from there,
        and with no other asked for the CommitLog is not opened, unless `verify_queue` wants every
        entry held against its record.

        An entry that does not lead to a sound record of its queue is handed to `on_damage` and left
        out (batches may then be empty); by default its error is raised: CorruptRecordError,
        CorruptQueueError, MissingFileError, BodyError; a file that is cut meanwhile is a
        TruncatedFileError in any case.
        """
        self._open_log()
        options = ReadOptions.of(verify_queue, **how)
        if self.is_remote:
            self.view.fetch_ahead(slices)
        reader = SliceReader(
            self._log, self.view, self.broker_name, self._snapshot.log_end, options
        )
        return reader.read(slices)

    def read_log(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        limits: Limits | None = None,
        include_unqueued: bool = False,
        **how: Unpack[ReadHow],
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the records that start in [start, stop) of the log, without any queue.

        The rows are those that the queues would give: topic, queue and offset are worked out from
        the records. `limits` says what of a queue is wanted, by default all of every one.
        `include_unqueued`: also prepared and rolled-back records, queueOffset null. The other
        keywords are those of `ReadHow`; damage is every stretch of the range that is neither record
        nor filler.
        """
        self._open_log()
        options = ReadOptions.of(verify_queue=True, **how)
        end = self._snapshot.log_end
        rows_reader = SliceReader(self._log, self.view, self.broker_name, end, options)
        reader = LogReader(
            self._log,
            end,
            rows_reader,
            limits or (lambda queue: QueueLimits()),
            self.config.delay_levels_ms,
            frozenset(declared_batch_topics(self.path)),
            include_unqueued,
            options.unwrap,
            options.on_damage,
        )
        return reader.read(start, stop)

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
        **how: Unpack[ReadManner],
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches of the messages of `topics` (a name, several, or all user topics).

        `start` and `stop`: queue offsets, half-open, cut to what each queue has. `tags`, `columns`
        and the other keywords as in `read_slices`. Raises UnknownQueueError for a topic that is not
        there.
        """
        slices = [
            QueueSlice(queue, max(low, start or 0), high if stop is None else min(high, stop))
            for queue, low, high in self._selected(topics, queue_ids, include_system_topics)
        ]
        return self.read_slices(slices, tags=tags, columns=columns, **how)

    def _selected(
        self,
        topics: str | Sequence[str] | None,
        queue_ids: Collection[int] | None,
        include_system: bool,
    ) -> Iterator[tuple[QueueId, int, int]]:
        named = [topics] if isinstance(topics, str) else topics
        there = set(self.topics())
        for name in named or ():
            if name not in there:
                self.view.state(QueueId(name, 0))  # raises
        wanted = set(self.topics(include_system) if named is None else named)
        for queue, state in self._snapshot.queues.items():
            if queue.topic in wanted and (queue_ids is None or queue.queue_id in queue_ids):
                yield queue, state.min_offset, state.max_offset

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        tags: str | Sequence[str] | None = None,
        as_broker: bool = False,
    ) -> GetMessageResult:
        """Messages of a queue from `offset` on.

        On to `max_messages`, tags compared as text, with the first offset that has a message as
        min. `as_broker`: as DefaultMessageStore#getMessage answers: at most 32 messages and 256 KiB,
        no further than the end of a queue file, tags by hash alone, its own min offset.

        Raises CorruptRecordError, with its place, for a record in the way that is damaged; by
        `as_broker` that too is left to the reader.
        """
        getter = MessageGetter(self.view, self._open_log(), self.lookup)
        queue, wanted = QueueId(topic, queue_id), parse_tags(tags)
        if as_broker:
            overflow_to_min = self.dialect.has("overflow_to_min")
            return getter.as_broker(queue, offset, max_messages, wanted, overflow_to_min)
        return getter.exact(queue, offset, positive("max_messages", max_messages), wanted)

    # --- single messages ---------------------------------------------------------------------------

    def message_at(self, commit_log_offset: int) -> Message:
        """The message whose record starts at a log offset; queue_offset is null if no queue lists it.

        Raises CorruptRecordError where none starts there, MissingFileError where no file holds it.
        """
        return self.lookup.message_at(commit_log_offset)

    def message_by_id(self, message_id: str) -> Message | None:
        """The message with an offsetMsgId (32 or 56 hex digits) or a UNIQ_KEY; None where none has it.

        Of several with one UNIQ_KEY the one stored first, as the broker's admin tools show it.
        """
        return next(iter(self.messages_by_id(message_id)), None)

    def messages_by_id(self, message_id: str, on_damage: OnDamage | None = None) -> list[Message]:
        """Messages by offsetMsgId (32 or 56 hex digits) or by UNIQ_KEY, in the order of the log.

        A UNIQ_KEY may name several: retries, and members of one batch. Empty where there is none.
        Raises CorruptRecordError or MissingFileError where the id leads to a place of the log that
        cannot be read; `on_damage` is told instead, and the place passed over.
        """
        return self.lookup.messages_by_id(message_id, on_damage)

    # --- keys and time -----------------------------------------------------------------------------

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = 64,
        begin: int = 0,
        end: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> list[Message]:
        """Messages of a topic by one word of KEYS or by UNIQ_KEY, stored in [begin, end] (ms).

        The newest `max_messages` of them, oldest first. Every one was held against its record: no
        hash collisions, no duplicates; what is behind the index or in a gap of it is found too.
        What the index leads to and cannot be read is passed over, as by the broker; `on_damage` is
        told of it, and of damage where no index covers the log.
        """
        return self.lookup.query_message(topic, key, max_messages, begin, end, on_damage)

    def key_index(self) -> KeyIndex:
        """The index files, and what of the log they do not cover."""
        log = self._open_log()
        if self._key_index is None:
            self._key_index = KeyIndex(self.path, log, self._snapshot.log_end, self.config)
        return self._key_index

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: str = "LOWER"
    ) -> int:
        """The queue offset for a point in time (ms since the epoch).

        LOWER: the first message stored then or later, else max_offset. UPPER: the last one stored
        then or earlier; without one the offset before the first, if the queue still has an entry
        there, else the first. In a queue of inner batches an offset is that of a batch, and beyond
        the last one it is the last one's. All as the broker answers since 5.1.1. Raises
        UnknownQueueError.
        """
        return self.view.offset_by_time(topic, queue_id, timestamp, boundary)

    def first_since(
        self, queue: QueueId, timestamp: int, *, unreadable_before: bool = False
    ) -> int:
        """The first queue offset whose message was stored at `timestamp` (ms) or later; max_offset
        without one.

        Messages right before it whose time cannot be read are taken in as well, so that what begins
        here misses none of its own; with `unreadable_before` they are left before it, for what ends
        here. Exact in queues of inner batches too, where `offset_by_time` is not. Raises
        UnknownQueueError.
        """
        return self.view.first_since(queue, timestamp, unreadable_before=unreadable_before)

    def scan(self, start: int | None = None) -> Iterator[Extent]:
        """The log from `start` (default: its first byte) to the end of its last file.

        Every byte is in exactly one Extent: a whole record, or a gap with the name of how the bytes
        end (filler, unwritten, torn, ghost, stale, damaged, missing).
        """
        return self._open_log().extents(start)


def _guess_old_release(log: CommitLog) -> str | None:
    for extent in log.extents():
        if extent.record is not None and extent.record.properties:
            ends = extent.record.properties[-1] == PROPERTY_SEPARATOR
            return "4.9.0" if ends else "4.9.7"
    return None
