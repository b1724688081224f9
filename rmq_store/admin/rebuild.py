"""Rebuild queues and index from the log, into a new store that a broker can start on.

The target gets the log (copied or linked file by file; that of a broker in DLedger mode without its
entries) and the configuration. Then a recovery
without queues and index writes the same files as a broker that dispatches the log, or for a broker with
storeType=defaultRocksDB the same database. After an interruption it continues where it was; a database
is begun again. The source is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.admin.carried_files import TopicKinds, copy_config, copy_state, write_config
from rmq_store.arrow import compute as pc
from rmq_store.arrow.column_values import stored_topics
from rmq_store.arrow.property_columns import buffers, slices
from rmq_store.commitlog.headers import Headers, rows_with_record_crc
from rmq_store.commitlog.log import CommitLog, LogAppender, refuse_misnamed
from rmq_store.commitlog.walk import Progress, RecordOrGap, SoundRun, walk
from rmq_store.config.broker_conf import STORE_TYPES, StoreConfig
from rmq_store.config.json_files import read_config, undecoded
from rmq_store.config.locate import require_apart
from rmq_store.config.rocksdb import KEPT_NAMES, data_version_counter, names_in_databases
from rmq_store.config.topics_json import TOPICS_FILE, topic_configs_to_change
from rmq_store.consumequeue.queue_database import require_writer
from rmq_store.consumequeue.queue_folders import EntriesAfterCopiedLog
from rmq_store.errors import InvalidArgumentError, OsErrorsOf, cannot_create
from rmq_store.files.durable_files import copy_stored, read_file, sync_folder
from rmq_store.files.journal import refuse_content
from rmq_store.files.remote.remote_store import refuse_remote
from rmq_store.files.segment_chain import OpenFiles, SegmentChain
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.format.byte_layout import (
    BATCH_CONSUMEQUEUE_DIR,
    BLANK_SIZE,
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    CRC_ITEM_SIZE,
    CRC_MASK,
    INDEX_DIR,
    V6_EXTRA,
    Bytes,
)
from rmq_store.format.compression import SysFlag
from rmq_store.format.hashes import crc32
from rmq_store.format.record import Gap, crc_item
from rmq_store.format.releases import Dialect, dialect
from rmq_store.format.topics import OP_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.markers import Checkpoint, StoreLock, remove_abort, write_abort
from rmq_store.reading.store_reader import StoreReader
from rmq_store.recovery.recover_store import recover_under_lock
from rmq_store.recovery.report import RecoveryReport
from rmq_store.snapshot.opening import refuse_unknown_size
from rmq_store.snapshot.snapshot import StoreSnapshot, snapshot_without_queues
from rmq_store.writing.encoded_records import set_fields
from rmq_store.writing.store_writer import without_log_paths

STATE_FILE = "rebuild.json"  # exists in an unfinished target
LOG_MODES = ("copy", "link")
FILES, DATABASE = STORE_TYPES
_DATABASE_SINCE = (5, 5, 0)  # the first release that is compared with what is written

# What names their messages: op messages, delayOffset.json and timercheck.
_NAMED_BY_OFFSET = (*OP_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC)
_ENTRIES_COMPARED = 1 << 16

_OF_RECOVERY = (
    *("log_start", "log_end", "records", "damage", "entries_rebuilt", "index_items_rebuilt"),
    *("records_cut", "old_records_cut", "entries_after_log", "left_out", "earlier_lives"),
    *("queues", "seconds", "default_sizes"),
)

Recover = Callable[..., RecoveryReport]
_DAMAGE_KEPT = 4096  # bytes of a damaged range that stand for it
_LOST = (Gap.DAMAGED, Gap.MISSING)
_HALVES = pa.array(list(OP_TOPICS))


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result of a rebuild. `resumed`: it continued an earlier run. `unserved`: topics with inner
    batches, whose messages no broker serves all from a RocksDB database."""

    source: str
    target: str
    log: str  # copy or link
    resumed: bool
    recovery: RecoveryReport
    kind_unknown: tuple[str, ...] = ()  # topics with plain queues because nothing says their kind
    default_delays: int = 0  # delayed messages that are due by the default levels: none were given
    store_type: str = FILES
    source_end: int = 0  # where the log of the source ends
    left_behind: tuple[str, ...] = ()  # files of the timer that do not fit the new log
    # Of topics of the broker: messages that its state names by another offset, as earlier ones are lost.
    renumbered: Mapping[str, int] = field(default_factory=dict)

    @property
    def unserved(self) -> tuple[str, ...]:
        """See above."""
        return tuple(sorted(self.recovery.inner_batches))

    @property
    def all_well(self) -> bool:
        """Whether the log has no damage, and the target and its queues have and serve all its records."""
        done = self.recovery
        lost = done.damage or done.records_cut or done.entries_after_log
        return not (lost or done.left_out or self.unserved)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values for JSON."""
        values = self.recovery.to_dict()
        return {
            "source": self.source,
            "target": self.target,
            "log": self.log,
            "store_type": self.store_type,
            "resumed": self.resumed,
            **{name: values[name] for name in _OF_RECOVERY},
            "kind_unknown": list(self.kind_unknown),
            "default_delays": self.default_delays,
            "unserved": list(self.unserved),
            "left_behind": list(self.left_behind),
            "renumbered": dict(self.renumbered),
        }


def bytes_to_rebuild(store: StoreReader) -> int:
    """The approximate total of bytes that `progress` receives."""
    start, end = store.log_range()
    return 3 * (end - start)


def rebuild(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    log: str = "copy",
    store_type: str = FILES,
    release: str | None = None,
    config: Any = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild queues and index of the store `source` into the new store `target`.

    `log`: "copy" the log files, or "link" the full ones (on the same file system; the last one is
    always copied). `store_type`: storeType of the broker that will start on it, "default" for queues in
    files or "defaultRocksDB" for a database. `release` and `config` are those of that broker; file sizes
    default to those of the source. Records after damage are dispatched too, and the report has the
    damage: a broker starts on the target, but cannot send damaged messages. Raises TargetExistsError
    if the target has content other than an unfinished rebuild of this source, CorruptConfigError for a
    topics.json that cannot be read, InvalidArgumentError, AccessError, UnsupportedStoreError without the
    extra `rocksdb`.
    """
    given_settings, traits, root = StoreConfig.of(config), dialect(release), Path(target)
    _check_options(root, log, store_type, traits)
    # Any snapshot will do, because the recovery finds the end of the log.
    unknown = StoreSnapshot(0, 0)
    of_source = given_settings.without_sizes_of_queues()
    with StoreReader.open(source, config=of_source, snapshot=unknown, queues=False) as store:
        refuse_remote(store.path)
        if store.log.has_dledger_files and log == "link":
            raise InvalidArgumentError(
                store.log.chain.folders[-1],
                reason="the files of a DLedger log cannot be linked: its records are written again, "
                "without entries",
                expected="copy",
                actual=log,
                advice="Nothing was written. Give --log copy",
            )
        require_apart([store.path, *store.log.chain.folders], root)
        refuse_unknown_size(store.log, given_settings)
        refuse_misnamed(store.log)
        settings = given_settings.with_defaults_of(store.geometry())
        # Damage does not end the log before records that were flushed.
        flushed = Checkpoint.read_or_zero(store.path / CHECKPOINT_FILE).physic_msg_timestamp
        state = {"source": str(store.path.absolute()), "log": log, "release": str(traits)}
        if store_type != FILES:
            state["storeType"] = store_type
        kinds, queues = (
            TopicKinds.of(store),
            EntriesAfterCopiedLog(store.path, store.config, store.log),
        )
        if TOPICS_FILE not in names_in_databases(store.path):
            topic_configs_to_change(store.path)  # refuses one that nobody could extend
        resumed, source_end = _begin(root, state), None
        with StoreLock(root), OsErrorsOf(root, "creating the target"):
            if store.log.has_dledger_files:  # its offsets are others than those of the target
                source_end = snapshot_without_queues(store.path, store.log).log_end
                newest = write_log_without_dledger(store.log, root / COMMITLOG_DIR, progress)
                flushed = max(flushed, newest)
                sync_folder(root / COMMITLOG_DIR)
            else:
                _take_log(store, root, log, progress)
            copy_config(store.path, root)
            left_behind = copy_state(
                store.path, root, same_log_offsets=not store.log.has_dledger_files
            )
    # The target has its whole log in one folder.
    settings = without_log_paths(replace(settings, storePathCommitLog=None))
    with StoreLock(root):
        write_abort(root, traits)
        # Nor, in the copy, before intact ones that a recovery in place would cut.
        recover = partial(
            recover_under_lock, root, settings, traits, flushed_until=flushed, keeps_intact=True
        )
        if store_type == DATABASE:
            _count_versions(root)
            _forget(root)  # an unfinished database has no last offsets
            report = recover(progress=progress, queue_database=root / CONSUMEQUEUE_DIR)
            kinds.add_batch_topics(report.batch_topics, report.queues)
        else:
            report = _into_files(root, recover, kinds, progress)
        kinds.declare_batch_topics(root, traits, report.queues)
        remove_abort(root)
        (root / STATE_FILE).unlink()
    source_end = report.log_end if source_end is None else source_end
    report.entries_after_log = queues.behind(source_end)
    unknown_kinds = kinds.unknown(report.queues)
    delayed = [ends for queue, ends in report.queues.items() if queue.topic == SCHEDULE_TOPIC]
    by_default = sum(stop - start for start, stop in delayed)
    if config is not None:
        by_default, report.default_sizes = 0, {}
    return RebuildReport(
        *(state["source"], str(root), log, resumed, report, unknown_kinds, by_default),
        *(store_type, source_end, left_behind),
        _renumbered(root, settings) if report.damage else {},
    )


def _renumbered(root: Path, settings: StoreConfig) -> dict[str, int]:
    """How many messages of each topic with state of the broker have another queue offset than was stored."""
    counts: Counter[str] = Counter()
    with StoreReader.open(root, config=settings) as store:
        for queue in (queue for topic in _NAMED_BY_OFFSET for queue in store.queues(topic)):
            start, stop = store.min_offset(*queue), store.max_offset(*queue)
            for first in range(start, stop, _ENTRIES_COMPARED):
                entries = store.entries(queue, first, min(first + _ENTRIES_COMPARED, stop))
                for rows, headers in store.log.whole_headers(entries.log_offset, entries.size):
                    counts[queue.topic] += int((headers.queue_offset != entries.offset[rows]).sum())
    return dict(+counts)


def _check_options(root: Path, log: str, store_type: str, release: Dialect) -> None:
    """Raise InvalidArgumentError or UnsupportedStoreError."""
    for value, choices, kind in (
        (log, LOG_MODES, "way to take the log"),
        (store_type, STORE_TYPES, "storeType that is written"),
    ):
        if value not in choices:
            raise InvalidArgumentError(
                reason=f"{value!r} is not a {kind}", expected=" or ".join(choices)
            )
    if store_type == FILES:
        return
    if release.release < _DATABASE_SINCE:
        raise InvalidArgumentError(
            reason=f"the queue database of release {release} is not written",
            expected=f"{Dialect(_DATABASE_SINCE)} or later",
            advice=f"Omit the release to use the newest, or write queue files: {FILES}",
        )
    require_writer(root / CONSUMEQUEUE_DIR)


def _into_files(
    root: Path, recover: Recover, kinds: TopicKinds, progress: Progress | None
) -> RecoveryReport:
    """Write queue files, again if the records show that a topic has batch queues."""
    kinds.make_batch_folders(root)
    report = recover(progress=progress)
    if kinds.add_batch_topics(report.batch_topics, report.queues):
        _forget(root)
        kinds.make_batch_folders(root)
        report = recover()
    return report


def _count_versions(root: Path) -> None:
    """Give the JSON files of the configuration a dataVersion that a broker with RocksDB takes in: its own
    new databases have the counter 0 (RocksDBConsumerOffsetManager#merge and the like)."""
    for name in KEPT_NAMES:
        file = read_config(root, name, undecoded)
        if file is not None and data_version_counter(file.content) < 1:
            before = file.content.get("dataVersion")
            version = {"stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}
            version |= before if isinstance(before, dict) else {}
            content = {**file.content, "dataVersion": {**version, "counter": 1}}
            write_config(root, name, file.path, content)


def _forget(root: Path) -> None:
    """Remove queues and index, and what says how far they are."""
    for name in (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, INDEX_DIR):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / CHECKPOINT_FILE).unlink(missing_ok=True)


def _begin(root: Path, state: dict[str, str]) -> bool:
    """Create the target. Returns whether it is an unfinished run of the same rebuild."""
    path = root / STATE_FILE
    try:
        if path.exists():
            before = json.loads(read_file(path))
            if before != state:
                raise InvalidArgumentError(
                    path,
                    reason="the target is an unfinished rebuild with other options",
                    expected=json.dumps(state),
                    actual=json.dumps(before),
                    advice="Give the same options to continue, or name a new folder",
                )
            return True
        refuse_content(root, "Name a new folder: a store is never rebuilt in place")
        for name in (COMMITLOG_DIR, CONSUMEQUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            (root / name).mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(state), "utf-8")
    except OSError as error:  # unlike for files that are read, nothing here can have expired
        raise cannot_create(root, "the target", error) from error
    return False


def _take_log(store: StoreReader, root: Path, mode: str, progress: Progress | None) -> None:
    """Copy or link all log files with bytes, without files that a broker created in advance.

    One that begins with very many zeros may be such a file, or have lost pages: the recovery looks at all of
    it. What the log may end in is copied.
    """
    chain, last = store.log.chain, store.log.last_file()
    for segment in chain.segments:
        if last is None or (segment.base > last.base and _is_zero_from(chain, segment)):
            continue
        path = root / COMMITLOG_DIR / Path(segment.path).name
        if not path.exists():
            if mode == "link" and segment.base < last.base and segment.size == chain.file_size:
                os.link(os.path.realpath(segment.path), path)  # not a link to the file
            else:
                _copy(segment, path, chain.file_size)
        if progress is not None:
            progress(segment.size)
    sync_folder(root / COMMITLOG_DIR)


def _is_zero_from(chain: SegmentChain, segment: SegmentFile) -> bool:
    """Whether a file of the log and those after it have nothing but zeros."""
    later = (file for file in chain.segments if file.base >= segment.base)
    return all(chain.is_zero(file.base, chain.segment_end(file)) for file in later)


def _copy(segment: SegmentFile, path: Path, size: int) -> None:
    """Copy a file without its holes. It gets its name when it is complete."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.unlink(missing_ok=True)
    copy_stored(segment.path, unfinished, segment.size, max(size, segment.size))
    unfinished.rename(path)


def write_log_without_dledger(
    log: CommitLog, folder: Path, progress: Progress | None = None
) -> int:
    """Write the records of a log, without its entries of DLedger, into files of the same size in `folder`.

    Each record keeps everything but its place. So what names a place is written again: physicalOffset, the
    half message of a committed transaction, and the CRC of a record that covers both. Files that an
    interrupted run has completed are left as they are: the same log gives the same bytes.

    A damaged range, or one that no file holds, gives bytes that are no record, at most 4,096, so that the
    new log is damaged there too. Returns the storeTimestamp (ms) of the newest record; 0 without one.
    """
    done = list_segments([folder])[:-1]  # the last one may not be whole
    files = _Resumed({Path(file.path) for file in done})
    writing = _PlainLog(log, LogAppender(files, [folder], log.chain.file_size, log.start))
    try:
        for piece in walk(log):
            writing.take(piece)
            if progress is not None:
                progress(piece.stop - piece.start)
    finally:
        files.close()
    return writing.newest


class _Resumed(OpenFiles):
    """Files of which some are whole."""

    def __init__(self, whole: set[Path]) -> None:
        super().__init__()
        self._whole = whole

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """As that of OpenFiles; what is whole is not written again."""
        if path not in self._whole:
            super().write(path, size, at, data)


class _PlainLog:
    """Where the log is that is being written."""

    def __init__(self, source: CommitLog, appender: LogAppender) -> None:
        self._source, self._appender = source, appender
        self._halves: dict[int, int] = {}  # old and new places of half messages
        self.newest = 0

    def take(self, piece: SoundRun | RecordOrGap) -> None:
        """Write the next piece of the source."""
        if isinstance(piece, SoundRun):
            self._write_records(piece.headers)
        elif piece.gap in _LOST:
            self._write_damage(piece)

    def _write_records(self, headers: Headers) -> None:
        first = 0
        while first < len(headers):
            fit = self._appender.fitting(headers.total[first:])
            if fit == 0:
                self._appender.end_file()
                continue
            self._appender.write(self._moved(headers.take(slice(first, first + fit))))
            first += fit
        self.newest = max(self.newest, int(headers.store_timestamp.max()))

    def _moved(self, headers: Headers) -> Bytes:
        """The bytes of records as they are at the end of the new log."""
        copied = slices(headers.window, headers.at, headers.total)
        at = np.cumsum(headers.total) - headers.total
        raw: Bytes = buffers(copied)[1][: int(headers.total.sum())].copy()
        set_fields(raw, at, "physical_offset", at + self._appender.end)
        self._move_halves(raw, headers, at)
        for row in rows_with_record_crc(headers).tolist():
            start, end = int(at[row]), int(at[row] + headers.total[row])
            value = crc32(raw[start : end - CRC_ITEM_SIZE].tobytes()) & CRC_MASK
            raw[end - CRC_ITEM_SIZE : end] = np.frombuffer(crc_item(value), dtype=np.uint8)
        return raw

    def _move_halves(self, raw: Bytes, headers: Headers, at: Any) -> None:
        halves = pc.is_in(stored_topics(headers), value_set=_HALVES)
        rows = np.flatnonzero(halves.to_numpy(zero_copy_only=False))
        before = (headers.at[rows] + headers.base).tolist()
        self._halves.update(zip(before, (at[rows] + self._appender.end).tolist(), strict=True))
        named = np.flatnonzero(headers.prepared_transaction_offset)
        old = headers.prepared_transaction_offset[named].tolist()
        # One that has expired stays where it was, before the log.
        new = np.array([self._halves.get(place, place) for place in old], dtype=np.int64)
        hosts = (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6)
        wide = sum(((headers.sys_flag[named] & bit) != 0).astype(np.int64) for bit in hosts)
        set_fields(raw, at[named] + wide * V6_EXTRA, "prepared_transaction_offset", new)

    def _write_damage(self, piece: RecordOrGap) -> None:
        if self._appender.room <= BLANK_SIZE:
            self._appender.end_file()
        size = min(piece.stop - piece.start, _DAMAGE_KEPT, self._appender.room - BLANK_SIZE)
        if piece.gap is Gap.MISSING:
            damage = np.zeros(size, dtype=np.uint8)
        else:
            damage = self._source.chain.read(piece.start, piece.start + size)
        self._appender.write(damage)
