"""Delete expired files like the broker: from the start of the log, then of queues and index.

Source: CleanCommitLogService, CleanConsumeQueueService, IndexService#deleteExpiredFile, and section
"What a broker deletes" of docs/format.md. A plan comes first: the files to delete, and the groups
that would lose messages.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rmq_store.commitlog.log import refuse_misnamed_or_unreadable
from rmq_store.commitlog.walk import sound_headers
from rmq_store.config.broker_conf import RetentionPolicy as RetentionPolicy
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.dledger import refuse_members_log, refuse_to_change
from rmq_store.config.locate import commitlog_folders, refuse_foreign_log, refuse_linked_queues
from rmq_store.config.rocksdb import refuse_rocksdb
from rmq_store.errors import InvalidArgumentError, MissingFileError, OsErrorsOf
from rmq_store.files.durable_files import Change
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import CONSUMEQUEUE_DIR
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import TRANSACTION_GROUP
from rmq_store.index.index_file_reader import open_index_files
from rmq_store.markers import StoreLock
from rmq_store.reading.store_reader import StoreReader
from rmq_store.system_topics.open_state import UnfinishedRecord, unfinished_before
from rmq_store.text.sizes import counted

_HOUR_MS = 3_600_000
LAST_FILE = "last file"
# deleteFileBatchMax files go in a round. A round is each 10 seconds (cleanResourceInterval) of an hour of
# deleteWhen; the admin command asks for 20 (CleanCommitLogService). Files of any age go in the first alone:
# after it the disk may be full no more.
_ROUNDS = {"time": 360, "manual": 20}


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file to delete, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupAtRisk:
    """A consumer group that would lose `messages` unconsumed messages of a queue."""

    group: str
    topic: str
    queue_id: int
    consumer_offset: int
    min_offset: int  # after the deletion
    messages: int


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The files to delete, in this order: log, queues, index; and who loses messages: groups that have not
    consumed them, and the broker itself, which has not delivered them or knows no end of their transaction.

    `trigger`: time, disk, forced or manual; None if the broker would delete nothing now.
    """

    path: str
    trigger: str | None
    disk_used_percent: float
    log_start: int
    log_start_after: int
    log: tuple[ExpiredFile, ...]
    queues: tuple[ExpiredFile, ...]
    index: tuple[ExpiredFile, ...]
    risks: tuple[GroupAtRisk, ...]
    unfinished: tuple[UnfinishedRecord, ...]
    config: StoreConfig = field(repr=False)  # of the store; says where its log is

    @property
    def bytes(self) -> int:
        """The total size of the files."""
        return sum(file.size for file in (*self.log, *self.queues, *self.index))

    @property
    def unread(self) -> int:
        """How many messages somebody loses; one that several groups lose counts for each."""
        unread = sum(risk.messages for risk in self.risks)
        return unread + sum(loss.messages for loss in self.unfinished)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON."""
        plain = asdict(self)
        del plain["config"]
        return {**plain, "bytes": self.bytes}


def plan_retention(
    store: StoreReader,
    policy: RetentionPolicy | None = None,
    *,
    manual: bool = False,
    keep_from: int | None = None,
    now_ms: int | None = None,
    disk_used_percent: float | None = None,
) -> RetentionPlan:
    """The plan of what the broker would delete now: in the rounds of an hour of deleteWhen or of the admin
    command, and in one round because of the disk.

    `manual`: ignore deleteWhen, like the broker's admin command. `keep_from` (ms): delete every log
    file whose messages are all older, at any age of the file. `now_ms` and `disk_used_percent`
    default to the clock and the disk. Raises UnsupportedStoreError for a store in DLedger mode.
    """
    rules, now, used = _rules_time_and_disk(store, policy, now_ms, disk_used_percent)
    trigger: str | None = None
    if manual or keep_from is not None:
        trigger = "manual"
    elif time.localtime(now / 1000).tm_hour in rules.hours():
        trigger = "time"
    elif used > rules.due_above_percent:
        trigger = "disk"
    log: list[ExpiredFile] = []
    if keep_from is not None:
        log = list(_before(store, keep_from))
    elif trigger is not None:
        forced = rules.cleanFileForciblyEnable and used > rules.forced_above_percent
        any_age = rules.deleteFileBatchMax if forced else 0
        most = rules.deleteFileBatchMax * _ROUNDS.get(trigger, 1)
        trigger = "forced" if forced else trigger
        log = list(islice(_too_old(store, rules, now, any_age), most))
    if log:
        refuse_misnamed_or_unreadable(store.log)
    start = store.log.start
    after = store.log.chain.segments[len(log)].base if log else start
    return RetentionPlan(
        str(store.path),
        trigger,
        used,
        start,
        after,
        tuple(log),
        tuple(_expired_queue_files(store, after)) if log else (),
        tuple(_expired_index_files(store, after)) if log else (),
        tuple(_risks(store, after)) if log else (),
        tuple(unfinished_before(store, after)) if log else (),
        store.config,
    )


@dataclass(frozen=True, slots=True)
class OldestFile:
    """Why the oldest log file is still there, and when it may go. Times are ms.

    `kept_by`: the setting that keeps it; LAST_FILE, because a broker never deletes that one; None if
    the broker deletes it in its next round. `goes_at`: None if no setting ever makes it due.
    """

    path: str
    written: int
    old_enough_at: int
    disk_used_percent: float
    kept_by: str | None
    goes_at: int | None


def why_oldest_file_is_kept(
    store: StoreReader,
    policy: RetentionPolicy | None = None,
    *,
    now_ms: int | None = None,
    disk_used_percent: float | None = None,
) -> OldestFile | None:
    """Why the broker has not deleted the oldest file of the log; None for a log without files.

    `goes_at` holds while nobody writes to the file and the disk stays as full as it is. Raises as
    `plan_retention`.
    """
    rules, now, used = _rules_time_and_disk(store, policy, now_ms, disk_used_percent)
    segments = store.log.chain.segments
    if not segments:
        return None
    written = _modified(segments[0])
    old_enough = rules.expires_at(written)
    kept_by: str | None = "fileReservedTime" if old_enough > now else None
    goes_at: int | None = max(now, old_enough)
    if not store.log.files_that_may_go(store.log_range()[1]):
        kept_by, goes_at = LAST_FILE, None
    elif rules.cleanFileForciblyEnable and used > rules.forced_above_percent:
        kept_by, goes_at = None, now
    elif used <= rules.due_above_percent:
        at = rules.goes_at(written, now)
        if kept_by is None and (at is None or at > now):
            kept_by = "deleteWhen"
        goes_at = at
    return OldestFile(segments[0].path, written, old_enough, used, kept_by, goes_at)


def _rules_time_and_disk(
    store: StoreReader, policy: RetentionPolicy | None, now_ms: int | None, used: float | None
) -> tuple[RetentionPolicy, int, float]:
    """The rules, the time (ms) and how full the disk is, where they are not given those of now."""
    refuse_members_log(store.path, store.config)  # its members delete by other rules
    return (
        policy or RetentionPolicy.of(store.config),
        time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        _used_percent(store) if used is None else used,
    )


def _used_percent(store: StoreReader) -> float:
    """How full the emptiest disk of storePathCommitLog is, or the disk of the queues if that is fuller.

    Source: CleanCommitLogService#isSpaceToDelete.
    """
    queues = Path(store.path, CONSUMEQUEUE_DIR)
    folders = commitlog_folders(store.path, replace(store.config, readOnlyCommitLogStorePaths=None))
    emptiest = min(map(disk_used_percent, folders), default=0)
    return max(emptiest, disk_used_percent(queues)) if queues.exists() else emptiest


def _too_old(
    store: StoreReader, policy: RetentionPolicy, now: int, any_age: int
) -> Iterator[ExpiredFile]:
    """Files from the start of the log, as long as they are old enough, without the last one; the first
    `any_age` of them at any age."""
    for number, segment in enumerate(store.log.files_that_may_go(store.log_range()[1])):
        hours = (now - _modified(segment)) / _HOUR_MS
        is_old = hours >= policy.fileReservedTime
        if not is_old and number >= any_age:
            return
        why = f"last written {hours:.0f} hours ago" if is_old else "the disk is full"
        yield ExpiredFile(segment.path, segment.size, why)


def _before(store: StoreReader, keep_from: int) -> Iterator[ExpiredFile]:
    """Files from the start of the log, as long as all their messages are older; without the last one.

    Each record is looked at, because a clock that is set back stores newer ones before older ones.
    """
    for segment in store.log.files_that_may_go(store.log_range()[1]):
        stop = store.log.chain.segment_end(segment)
        times = (
            int(headers.store_timestamp.max())
            for headers in sound_headers(store.log, segment.base, stop, check_crc=False)
        )
        # Without a record, the age of the file is not known.
        if max(times, default=keep_from) >= keep_from:
            return
        yield ExpiredFile(segment.path, segment.size, "all its messages are older")


def _modified(segment: SegmentFile) -> int:
    with OsErrorsOf(segment.path, "reading the time of"):
        return os.stat(segment.path).st_mtime_ns // 1_000_000


def _expired_queue_files(store: StoreReader, log_start: int) -> Iterator[ExpiredFile]:
    for queue in store.queues():
        files = store.view.files(queue)
        for segment in files.chain.segments[:-1]:
            stop = files.chain.segment_end(segment) // files.dtype.itemsize
            if files.unit(stop - 1)[0] >= log_start:
                break
            yield ExpiredFile(segment.path, segment.size, "its last entry leads before the log")


def _expired_index_files(store: StoreReader, log_start: int) -> Iterator[ExpiredFile]:
    for file in open_index_files(store.path, store.config)[:-1]:
        if file.header.end_log_offset >= log_start:
            return
        yield ExpiredFile(
            file.path, os.path.getsize(file.path), "its last item leads before the log"
        )


def _risks(store: StoreReader, log_start: int) -> Iterator[GroupAtRisk]:
    states = store.snapshot().queues
    for group, topics in sorted(store.consumer_offsets().items()):
        if group == TRANSACTION_GROUP:
            continue  # most of what it has not passed has ended: `unfinished_before` counts the others
        for topic, offsets in sorted(topics.items()):
            for queue_id, offset in sorted(offsets.items()):
                queue = QueueId(topic, queue_id)
                if queue not in states:
                    continue
                first = store.view.offset_at_log(queue, log_start)
                lost = first - max(offset, states[queue].min_offset)
                if lost > 0:
                    yield GroupAtRisk(group, topic, queue_id, offset, first, lost)


def apply_retention(plan: RetentionPlan, *, lose_unread: bool = False) -> int:
    """Delete the planned files, the log first. Returns the number of deleted bytes.

    Holds the store's lock. Raises UnsupportedStoreError for a store beside a RocksDB database,
    ForeignLogError if the log belongs to another store, InvalidArgumentError if somebody has not read
    all of the files, unless `lose_unread`, StoreLockedError while a broker has the store open, and
    MissingFileError if a file is missing or changed since the plan.
    """
    root = Path(plan.path)
    refuse_rocksdb(root)
    refuse_to_change(root, plan.config, ())
    refuse_foreign_log(root, plan.config)
    refuse_linked_queues(root)
    if plan.unread and not lose_unread:
        raise InvalidArgumentError(
            root,
            reason=f"the files have {counted(plan.unread, 'message')} that somebody has not read",
            expected="--lose-unread, to delete them all the same",
            advice="Nothing was deleted. Keep the files until they are read, or copy the messages: rmqstore "
            "export or replay",
        )
    with StoreLock(root):
        return sum(map(_delete, (*plan.log, *plan.queues, *plan.index)))


def _delete(file: ExpiredFile) -> int:
    with OsErrorsOf(file.path, "deleting"):
        size = os.path.getsize(file.path)
        if size != file.size:
            raise MissingFileError(
                file.path,
                reason="the file changed since the plan",
                expected=f"{file.size} bytes",
                actual=f"{size} bytes",
                advice="Make a new plan",
            )
    Change(file.path, "removed", size).make()
    return size


def disk_used_percent(folder: str | os.PathLike[str]) -> int:
    """The used share of the disk of a folder, in percent, rounded up.

    Space that is reserved for root counts as neither used nor free.
    Source: UtilAll#getDiskPartitionSpaceUsedPercent.
    """
    usage = shutil.disk_usage(folder)
    whole = usage.used + usage.free
    return -(-100 * usage.used // whole) if whole else 0
