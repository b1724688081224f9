"""Recovery after a crash: truncates the log after its last whole record and repairs queues and index.

A plan computes the same changes, and makes none. What a broker of a release would do when it starts
(DefaultMessageStore#load, with its defects) is a plan only: to have it done, start the broker.
docs/recovery.md compares the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rmq_store.config.broker_conf import ConfigLike, StoreConfig
from rmq_store.config.locate import refuse_foreign_log, refuse_linked_queues, require_store
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.releases import Dialect, dialect
from rmq_store.markers import StoreLock, refuse_locked, remove_abort
from rmq_store.recovery.as_broker import BrokerRecovery
from rmq_store.recovery.report import ChangeList, RecoveryReport
from rmq_store.recovery.strict_recovery import StrictRecovery

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
        report = recover_locked(root, settings, traits, progress=progress)
        _note_default_delays(report, config)
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
        why = f"unknown method of recovery {method!r}"
        raise InvalidArgumentError(reason=why, expected=" or ".join(METHODS))
    root, settings, traits = _opened(path, config, release)
    refuse_locked(root)
    if method == "broker":
        report = BrokerRecovery(root, settings, traits).run()
    else:
        report = recover_locked(root, settings, traits, progress=progress, planned=True)
    _note_default_delays(report, config)
    return report


def _opened(
    path: str | os.PathLike[str], config: ConfigLike, release: str | None
) -> tuple[Path, StoreConfig, Dialect]:
    settings, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, settings)
    refuse_foreign_log(root, settings)
    refuse_linked_queues(root)
    return root, settings, traits


def _note_default_delays(report: RecoveryReport, config: ConfigLike) -> None:
    """A configuration without messageDelayLevel says that the broker has the default levels."""
    report.default_delays = report.delayed_rebuilt if config is None else 0


def recover_locked(
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
    report.files = changes.net
    report.seconds = time.monotonic() - begun
    return report
