"""Starting after a crash: the log cut to its last whole record, queues and index made to agree with it.

`strict` is ours. `broker` does what DefaultMessageStore#load does, and has what that has of defects;
docs/recovery.md sets one against the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rmq_store.config.abort import remove_abort
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import refuse_foreign_log, require_store
from rmq_store.config.lock import StoreLock
from rmq_store.errors import InvalidArgumentError
from rmq_store.format.releases import Dialect, dialect
from rmq_store.recovery.broker import recover_as_broker
from rmq_store.recovery.report import RecoveryReport
from rmq_store.recovery.strict import StrictRecovery

MODES = ("strict", "broker")


def recover(
    path: str | os.PathLike[str],
    config: StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    mode: str = "strict",
    release: str | None = None,
) -> RecoveryReport:
    """Bring a store that was not closed cleanly into the state a clean stop leaves.

    `mode`: "strict" or "broker" (with the ways of `release`). Holds the store's lock meanwhile; a
    crash during it leaves a store that can be recovered again. A store that was closed cleanly is
    only looked at. Raises NotAStoreError, StoreLockedError, AccessError, ForeignLogError where the
    log is that of another store, and in mode "broker" UnrecoverableStoreError where the broker
    would not start.
    """
    check_mode(mode)
    given, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, given)
    refuse_foreign_log(root, given)
    lock = StoreLock(root)
    try:
        report = recover_locked(root, given, traits, mode)
        remove_abort(root)
    finally:
        lock.release()
    return report


def check_mode(mode: str, *, others: tuple[str, ...] = ()) -> None:
    """Raises InvalidArgumentError for a mode that is none."""
    if mode not in (*MODES, *others):
        raise InvalidArgumentError(
            None,
            reason=f"recovery {mode!r} is not one",
            expected=" or ".join((*MODES, *others)),
        )


def recover_locked(
    root: Path,
    config: StoreConfig,
    traits: Dialect,
    mode: str,
    *,
    until: int | None = None,
    flushed_until: int = 0,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """As `recover`, under the caller's lock; `abort` is there afterwards where it was needed.

    `flushed_until` (ms): what was stored up to then had been on the disk, though the store's own
    checkpoint does not say so; damage before such records does not end the log.
    `progress` is told bytes of the log, each of which is gone through twice. `until`: of a store
    that was not closed cleanly cut the log there, though whole records follow. Raises
    InvalidArgumentError where no record ends there.
    """
    begun = time.monotonic()
    if mode == "broker":
        report = recover_as_broker(root, config, traits)
    else:
        report = StrictRecovery(root, config, traits, until, flushed_until, progress).run()
    report.seconds = time.monotonic() - begun
    return report
