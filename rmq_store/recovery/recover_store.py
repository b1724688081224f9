"""Recovery after a crash, and what a broker does when it starts on a store: whether it refuses, what it cuts.

A recovery truncates the log after its last whole record and repairs queues and index. A plan computes the
same changes, and makes none. What a broker of a release would do when it starts (DefaultMessageStore#load,
with its defects) is a plan only: to have it done, start the broker. docs/recovery.md compares the two.

The preconditions of a start were tried with brokers of 5.5.0: each ends it with exit code 253. The broker
loads its configuration first (BrokerController#initializeMetadata), then the files of log and queues
(DefaultMessageStore#load) and of the timer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_store.commitlog.log import open_log
from rmq_store.config.broker_conf import ConfigLike, StoreConfig
from rmq_store.config.consumer_offsets import (
    CONSUMER_FILES,
    DELAY_FILE,
    ORDER_FILE,
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_order_info,
)
from rmq_store.config.json_files import Decode, read_config, undecoded, why_broker_refuses
from rmq_store.config.locate import refuse_foreign_log, refuse_linked_queues, require_store
from rmq_store.config.rocksdb import GROUPS_FILE, names_in_databases
from rmq_store.config.topics_json import TOPICS_FILE, batch_topics, decode_topics
from rmq_store.config.without_file import LEAVES_EMPTY
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import CorruptConfigError, InvalidArgumentError, StoreError
from rmq_store.format.byte_layout import CONFIG_DIR, TIMER_LOG, TIMER_WHEEL, TIMER_WHEEL_SIZE
from rmq_store.format.queues import QueueId
from rmq_store.format.releases import Dialect, dialect
from rmq_store.markers import StoreLock, refuse_locked, remove_abort
from rmq_store.recovery.as_broker import (
    BATCH_QUEUE_SIZE,
    LOG_SIZE,
    QUEUE_SIZE,
    TIMER_LOG_SIZE,
    BrokerRecovery,
    refused_files,
)
from rmq_store.recovery.report import ChangeList, RecoveryReport
from rmq_store.recovery.strict_recovery import StrictRecovery
from rmq_store.snapshot.opening import queue_file_sizes, refuse_unknown_size

METHODS = ("strict", "broker")


def recover(
    path: str | os.PathLike[str],
    config: ConfigLike = None,
    *,
    release: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """Bring a store that was not closed cleanly into the state of a clean stop.

    `release`: that of the broker that starts on it. Holds the store's lock meanwhile. If it crashes, the
    store can be recovered again. A store that was closed cleanly is only checked. `progress` receives byte
    counts of the log, which is read twice. Raises NotAStoreError, StoreLockedError, AccessError,
    ForeignLogError if the log belongs to another store, and UnrecoverableStoreError if the log has no file
    and a queue has entries.
    """
    root, settings, traits = _opened(path, config, release)
    with StoreLock(root):
        report = recover_under_lock(root, settings, traits, progress=progress)
        _note_defaults(report, config)
        remove_abort(root)
    return report


def plan_recovery(
    path: str | os.PathLike[str],
    config: ConfigLike = None,
    *,
    method: str = "strict",
    release: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """What `recover` would do to the store now, or with method "broker" a broker that starts on it.

    Changes nothing, and takes no lock. Takes as long as the recovery. Raises what `recover` raises, also
    StoreLockedError while a process holds the lock, because then the files change, and with method "broker"
    UnrecoverableStoreError if the broker would not start.
    """
    if method not in METHODS:
        raise InvalidArgumentError(
            reason=f"unknown method of recovery {method!r}", expected=" or ".join(METHODS)
        )
    root, settings, traits = _opened(path, config, release)
    refuse_locked(root)
    if method == "broker":
        report = BrokerRecovery(root, settings, traits).run()
    else:
        report = recover_under_lock(root, settings, traits, progress=progress, planned=True)
    _note_defaults(report, config)
    return report


def _opened(
    path: str | os.PathLike[str], config: ConfigLike, release: str | None
) -> tuple[Path, StoreConfig, Dialect]:
    settings, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, settings)
    refuse_foreign_log(root, settings)
    refuse_linked_queues(root)
    return root, settings, traits


def _note_defaults(report: RecoveryReport, config: ConfigLike) -> None:
    """A configuration without messageDelayLevel or a size says that the broker has the default."""
    report.default_delays = report.delayed_rebuilt if config is None else 0
    if config is not None:
        report.default_sizes = {}


def recover_under_lock(
    root: Path,
    config: StoreConfig,
    traits: Dialect,
    *,
    until: int | None = None,
    flushed_until: int = 0,
    keeps_intact: bool = False,
    cuts_intact: bool = True,
    progress: Callable[[int], None] | None = None,
    planned: bool = False,
    queue_database: Path | None = None,
) -> RecoveryReport:
    """As `recover`, under the caller's lock; afterwards `abort` exists if a recovery was needed.

    `flushed_until` (ms): the caller knows that records stored up to then were on the disk, although
    the checkpoint does not show it; damage before such records does not end the log. `keeps_intact`:
    nor before other intact ones, unless they are older than the record before it. `progress`:
    callback that receives byte counts of the log, which is read twice. `until`: truncate the log of
    an unclean store at this offset, even if whole records follow. `planned`: change nothing.
    `queue_database`: the folder of a new RocksDB database for the queues of a store that has none. Raises
    InvalidArgumentError if no record ends there, and without `cuts_intact` UnrecoverableStoreError
    before a strict recovery cuts intact records, or entries of a closed store whose log lost its end.
    """
    begun = time.monotonic()
    changes = ChangeList(planned=planned)
    try:
        report = StrictRecovery(
            *(root, config, traits, changes, until, flushed_until, keeps_intact, cuts_intact),
            *(progress, queue_database),
        ).run()
    finally:
        changes.close()
    report.files = changes.net_changes
    report.seconds = time.monotonic() - begun
    return report


DECODED: dict[str, Decode[Any]] = {
    TOPICS_FILE: decode_topics,
    DELAY_FILE: decode_delay_offsets,
    ORDER_FILE: decode_order_info,
    **dict.fromkeys(CONSUMER_FILES, decode_consumer_offsets),
}
"""How files of `config/` are decoded; others are read as they are."""
_LOADED = {*DECODED, GROUPS_FILE, "consumerFilter.json"} - {CONSUMER_FILES[1]}
LOG_FILE, QUEUE_FILE, OTHER = "log", "queue", "other"


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file with which no broker starts. `kind`: of the log, of a queue, or another one."""

    kind: str
    path: str
    reason: str
    remedy: str  # what lets it start


@dataclass(frozen=True, slots=True)
class BrokerStart:
    """What a broker does with a store when it starts. `plan`: its recovery; None if it refuses."""

    refusals: tuple[RefusedFile, ...]
    plan: RecoveryReport | None


def broker_start(path: Path, config: StoreConfig) -> BrokerStart:
    """What a broker of 5.5.0 would do with a store that nobody has open. Changes nothing."""
    refusals = tuple(_refusals(path, config))
    plan = None if refusals else plan_recovery(path, config, method="broker")
    return BrokerStart(refusals, plan)


def _refusals(path: Path, config: StoreConfig) -> Iterator[RefusedFile]:
    yield from _config(path)
    yield from _files(path, config)
    if config.timerWheelEnable is not False:
        yield from _timer(path, config)


def _timer(path: Path, config: StoreConfig) -> Iterator[RefusedFile]:
    configured, remedy = config.mappedFileSizeTimerLog or 0, "restore it from a copy"
    if configured:
        remedy += f", or give it its size, without what it lost: truncate -s {configured} FILE"
    for refused in refused_files([path / TIMER_LOG], configured, TIMER_LOG_SIZE):
        yield _of_chain(OTHER, refused, remedy)
    wheel = path / TIMER_WHEEL
    if wheel.exists():
        size = wheel.stat().st_size
        if size != TIMER_WHEEL_SIZE:
            yield RefusedFile(
                OTHER,
                str(wheel),
                f"it has {size} bytes, and a timer wheel has {TIMER_WHEEL_SIZE}",
                "move it away: the broker makes it again of timerlog/",
            )


def _config(path: Path) -> Iterator[RefusedFile]:
    for name in _LOADED.difference(names_in_databases(path)):
        why = why_broker_refuses(path, name, DECODED.get(name, undecoded))
        if why is not None:
            backup = str(path / CONFIG_DIR / f"{name}.bak")
            remedy = f"restore one of them from a copy before a broker is started: {LEAVES_EMPTY}"
            yield RefusedFile(OTHER, backup, why, remedy)


def _files(path: Path, config: StoreConfig) -> Iterator[RefusedFile]:
    try:
        log = open_log(path, config)
        log.chain.close()
    except InvalidArgumentError as error:  # a file is larger than the configured size
        yield _of_chain(LOG_FILE, error)
        return
    try:
        refuse_unknown_size(log, config)
    except InvalidArgumentError as error:
        yield RefusedFile(LOG_FILE, str(error.path), f"{error.reason}; --broker-conf gives it", "")
    for refused in refused_files(log.chain.folders, log.chain.file_size, LOG_SIZE):
        yield _of_chain(LOG_FILE, refused)
    with closing(QueueFolders(path, StoreConfig())) as folders:
        sizes = queue_file_sizes(folders)  # no broker has two
    queues, batch = QueueFolders(path, config.with_defaults_of(sizes)), _batch_topics(path)
    for queue, is_batch in queues.queues_in_folders().items():
        yield from _queue_files(queues, queue, config, is_batch)
        if is_batch != (queue.topic in batch):
            declared_kind, found_kind = ("plain", "batch") if is_batch else ("batch", "plain")
            file = path / CONFIG_DIR / TOPICS_FILE
            by = "by this file" if file.exists() else "without this file, which is missing"
            yield RefusedFile(
                OTHER,
                str(file),
                f"topic {queue.topic} has {found_kind} queues, and {declared_kind} ones {by}",
                "declare the topic as its queues are (attribute queue.type)",
            )
            batch ^= {queue.topic}  # said once
    queues.close()


def _queue_files(
    queues: QueueFolders, queue: QueueId, config: StoreConfig, is_batch: bool
) -> Iterator[RefusedFile]:
    setting = BATCH_QUEUE_SIZE if is_batch else QUEUE_SIZE
    try:
        files = queues.files_in_folder(queue, batch=is_batch)
    except InvalidArgumentError as error:
        yield _of_chain(QUEUE_FILE, error)
        return
    # A broker takes the size of batch queues as it is configured, and rounds that of others.
    unit = 1 if getattr(config, setting) else files.dtype.itemsize
    for refused in refused_files(files.chain.folders, files.chain.file_size, setting, unit):
        yield _of_chain(QUEUE_FILE, refused)


def _of_chain(kind: str, error: StoreError, remedy: str = "") -> RefusedFile:
    path = Path(str(error.path))
    if not path.name.isdigit():
        return RefusedFile(
            kind, str(path), "its name is not a number", "move it away: it is none of these files"
        )
    return RefusedFile(kind, str(path), f"it has {error.actual}, expected {error.expected}", remedy)


def _batch_topics(path: Path) -> set[str]:
    """The topics that a broker knows to have batch queues: none if no file can be read."""
    try:
        file = read_config(path, TOPICS_FILE, decode_topics)
    except CorruptConfigError:
        return set()
    return set() if file is None else batch_topics(file.value)
