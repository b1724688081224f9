"""The queues as consumers are served: those of compaction topics from `compaction/`, others as they are.

A read that gives the compacted view asks here for its ranges, and how to cut them. The places of a
compacted queue are those in its own compaction log. Whatever counts a queue as such (lag, usage, verify)
asks `QueueView`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property, partial

from rmq_store.config.topics_json import is_compacted
from rmq_store.consumequeue.bisection import find_boundary
from rmq_store.consumequeue.compacted_queue import CompactedQueue, CompactionFolders, QueueSighting
from rmq_store.errors import (
    LOG,
    CorruptConfigError,
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    MissingFileError,
    StoreError,
)
from rmq_store.format.queues import Entry, QueueId, QueueSlice
from rmq_store.snapshot.queue_view import QueueView

_DAMAGE = (
    CorruptConfigError,
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    MissingFileError,
)
_FACT = "compacted"
_UNKNOWN = QueueSighting(0, 0, 0)


class ConsumerQueues:
    """The ranges of all queues, and places and times in them, as a read of the compacted view sees them.

    A queue of a compaction topic without a message in files for compaction is seen as it is. So is one
    whose files are damaged, until it is read: then `compacted` has the error.
    """

    def __init__(self, view: QueueView, folders: CompactionFolders) -> None:
        self._view, self._folders = view, folders
        self._files_of: dict[QueueId, CompactedQueue | StoreError | None] = {}
        self._warned_of: set[str] = set()

    @cached_property
    def _is_there(self) -> bool:
        """Whether a broker with compaction has used the store; each makes that folder."""
        return self._view.config.enableCompaction is not False and self._folders.has_compacted()

    def is_answered(self, topic: str) -> bool:
        """Whether a broker answers pulls of a topic from `compaction/` (DefaultMessageStore#getMessage).

        Without that folder the CommitLog alone has the topic, and without topics.json it has every topic:
        then a warning goes to the log for one with files there. They may be left from a topic that was
        deleted (DefaultMessageStore#deleteTopics). Raises CorruptConfigError if topics.json is damaged and
        the topic has files there.
        """
        if not self._is_there:
            return False
        problem = self._view.topics.problem
        if problem is not None and self._folders.has_compacted(topic):
            raise CorruptConfigError(
                problem.path,
                reason=f"{problem.reason}. So nothing says whether consumers of {topic}, which has files in "
                "compaction/, get every message or the last one of each key",
                advice="Restore the file from a backup. compacted=False (Spark: compacted=false, cat and "
                "sql: --history) gives every message that has not expired",
            )
        if not self._view.topics.has_file:
            self._warn_of(topic)
        return is_compacted(self._view.topics.declared.get(topic))

    def _warn_of(self, topic: str) -> None:
        """Say once that a topic with files for compaction is read as any other."""
        if topic not in self._warned_of and self._folders.has_compacted(topic):
            self._warned_of.add(topic)
            LOG.warning(
                "there is no topics.json, so every message of %s that has not expired is read, as a broker "
                "without that file answers. The topic has files in compaction/: with "
                "cleanup.policy=COMPACTION in topics.json, consumers get the last message of each key",
                topic,
            )

    def files(self, queue: QueueId) -> CompactedQueue | None:
        """The files of a queue of a topic that `is_answered`; None without any.

        Other processes that read this snapshot see the same messages. Raises as `CompactionFolders.queue`.
        """
        files = self._folders.queue(queue, self._seen.get(queue))
        if files is not None:
            self._seen.setdefault(queue, files.seen)
        return files

    @property
    def _seen(self) -> dict[QueueId, QueueSighting | None]:
        """What the first look at each queue found; None for one that was read as it is."""
        seen: dict[QueueId, QueueSighting | None] = self._view.snapshot.facts.setdefault(_FACT, {})
        return seen

    def compacted_or_error(self, queue: QueueId) -> CompactedQueue | StoreError | None:
        """The files of a queue that is read from `compaction/`, or why they cannot be; None for others."""
        if not self._is_there:
            return None
        if queue not in self._files_of:
            try:
                self._files_of[queue] = self._looked_up(queue)
            except _DAMAGE as error:
                self._files_of[queue] = error
        return self._files_of[queue]

    def _looked_up(self, queue: QueueId) -> CompactedQueue | None:
        files = None
        if self._seen.get(queue, _UNKNOWN) is not None and self.is_answered(queue.topic):
            files = self.files(queue)
        if files is not None and files.has_messages:
            return files
        self._seen[queue] = None
        return None

    def compacted_queues(self) -> list[QueueId]:
        """The queues that have a folder for compaction, of topics that are answered from there; sorted."""
        if not self._is_there:
            return []
        topics = self._view.topics.declared
        return [queue for queue in self._folders.queues() if is_compacted(topics.get(queue.topic))]

    def _files(self, queue: QueueId) -> CompactedQueue | None:
        files = self.compacted_or_error(queue)
        return None if isinstance(files, StoreError) else files

    def is_in_log(self, queue: QueueId) -> bool:
        """Whether a read takes the messages of a queue from the log, and not from `compaction/`."""
        return self.compacted_or_error(queue) is None

    def split(
        self, slices: Sequence[QueueSlice]
    ) -> tuple[list[QueueSlice], dict[QueueId, list[QueueSlice]]]:
        """The slices of queues that are read as they are, and those of each queue that is not."""
        own: list[QueueSlice] = []
        others: dict[QueueId, list[QueueSlice]] = {}
        for part in slices:
            (own if self.is_in_log(part.queue) else others.setdefault(part.queue, [])).append(part)
        return own, others

    def limits(self, queue: QueueId) -> tuple[int, int]:
        """The first queue offset with a message, and the one after the last. Raises UnknownQueueError."""
        files = self._files(queue)
        if files is None:
            return self._view.limits(queue)
        return max(0, files.min_offset), files.max_offset

    def ranges_of(
        self, topics: Sequence[str], queue_ids: Collection[int] | None = None
    ) -> list[QueueSlice]:
        """As `QueueView.ranges_of`."""
        return [
            QueueSlice(part.queue, *self.limits(part.queue))
            for part in self._view.ranges_of(topics, queue_ids)
        ]

    def entry_at(self, queue: QueueId, offset: int) -> Entry | None:
        """As `QueueView.entry_at`; for an offset that was compacted away, the next message."""
        files = self._files(queue)
        return self._view.entry_at(queue, offset) if files is None else files.first_from(offset)

    def offset_at_log(self, queue: QueueId, log_offset: int) -> int:
        """As `QueueView.offset_at_log`."""
        files = self._files(queue)
        if files is None:
            return self._view.offset_at_log(queue, log_offset)
        return files.offset_at_log(log_offset)

    def log_offset_of(self, queue: QueueId, queue_offset: int) -> int:
        """As `QueueView.log_offset_of`."""
        files = self._files(queue)
        if files is None:
            return self._view.log_offset_of(queue, queue_offset)
        entry = files.first_from(queue_offset)
        return files.log_end if entry is None else entry.log_offset

    def store_time(self, queue: QueueId, offset: int) -> int | None:
        """As `QueueView.store_time`; for an offset that was compacted away, that of the next message."""
        files = self._files(queue)
        if files is None:
            return self._view.store_time(queue, offset)
        entry = files.first_from(offset)
        return None if entry is None else files.log.store_time_at(entry.log_offset)

    def first_since(
        self, queue: QueueId, timestamp: int, *, unreadable_before: bool = False
    ) -> int:
        """As `QueueView.first_since`."""
        store_time = partial(self.store_time, queue)
        boundary = find_boundary(*self.limits(queue), store_time, lambda time: time >= timestamp)
        return boundary.behind if unreadable_before else boundary.first


QueueSource = QueueView | ConsumerQueues
"""Queues to plan a read of: as they are, or as consumers see them. What they answer is the same for files, a
RocksDB database and compaction (tests/snapshot/test_sources_of_queues.py)."""
