"""Recovery after a crash: truncates the log after its last whole record and repairs queues and index.

`strict` is this package's own mode. `broker` reproduces DefaultMessageStore#load, including its
defects. docs/recovery.md compares the two. A private copy shows what a recovery would do, without
changing the store.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_store.config.broker_conf import PATH_SPLITTER, StoreConfig
from rmq_store.config.locate import (
    commitlog_folders,
    refuse_foreign_log,
    refuse_linked_queues,
    require_store,
)
from rmq_store.errors import SHOWN_AS, InvalidArgumentError, from_os_error, shown_path
from rmq_store.files.durable_files import is_small_file
from rmq_store.files.truncate import PRIVATE
from rmq_store.format.layout import (
    BATCH_CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_EXT_DIR,
    INDEX_DIR,
    LOCK_FILE,
)
from rmq_store.format.releases import Dialect, dialect
from rmq_store.markers.lock_file import StoreLock, refuse_locked, remove_abort
from rmq_store.recovery.as_broker import recover_as_broker
from rmq_store.recovery.report import RecoveryReport
from rmq_store.recovery.strict_recovery import StrictRecovery

MODES = ("strict", "broker")


def recover(
    path: str | os.PathLike[str],
    config: StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    mode: str = "strict",
    release: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """Bring a store that was not closed cleanly into the state of a clean stop.

    `mode`: "strict", or "broker" (as `release` does it). Holds the store's lock meanwhile. If it
    crashes, the store can be recovered again. A store that was closed cleanly is only checked.
    `progress`: in mode "strict" it receives byte counts of the log, which is read twice.
    Raises NotAStoreError, StoreLockedError, AccessError, ForeignLogError if the log belongs to
    another store, and in mode "broker" UnrecoverableStoreError if the broker would not start.
    """
    check_mode(mode)
    given, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, given)
    refuse_foreign_log(root, given)
    refuse_linked_queues(root)
    lock = StoreLock(root)
    try:
        report = recover_locked(root, given, traits, mode, progress=progress)
        remove_abort(root)
    finally:
        lock.release()
    return report


def plan_recovery(
    path: str | os.PathLike[str],
    config: StoreConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    mode: str = "strict",
    release: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """What `recover` would do to the store now. Changes nothing, and takes no lock.

    Recovers a private copy whose files are links until they change. So it takes as long as the
    recovery, and room in the folder of TMPDIR for the files that change. Raises what `recover`
    raises, also StoreLockedError while a process holds the lock, because then the files change.
    """
    check_mode(mode)
    given, traits = StoreConfig.of(config), dialect(release)
    root = require_store(path, given)
    refuse_foreign_log(root, given)
    refuse_linked_queues(root)
    refuse_locked(root)
    with private_copy(root, given) as (copy, moved):
        report = recover_locked(copy, moved, traits, mode, progress=progress)
        files = [replace(file, path=shown_path(file.path)) for file in report.files]
    return replace(report, path=str(root), applied=False, files=files, snapshot=None)


def check_mode(mode: str, *, others: tuple[str, ...] = ()) -> None:
    """Raises InvalidArgumentError for an unknown mode."""
    if mode not in (*MODES, *others):
        raise InvalidArgumentError(
            None,
            reason=f"unknown recovery mode {mode!r}",
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
    cuts_intact: bool = True,
    progress: Callable[[int], None] | None = None,
) -> RecoveryReport:
    """As `recover`, under the caller's lock; afterwards `abort` exists if a recovery was needed.

    `flushed_until` (ms): the caller knows that records stored up to then were on the disk, although
    the checkpoint does not show it; damage before such records does not end the log. `progress`:
    callback that receives byte counts of the log, which is read twice. `until`: truncate the log of
    an unclean store at this offset, even if whole records follow. Raises InvalidArgumentError if no
    record ends there, and without `cuts_intact` UnrecoverableStoreError before a strict recovery cuts
    intact records.
    """
    begun = time.monotonic()
    if mode == "broker":
        report = recover_as_broker(root, config, traits)
    else:
        recovery = StrictRecovery(
            root, config, traits, until, flushed_until, progress, cuts_intact=cuts_intact
        )
        report = recovery.run()
    report.seconds = time.monotonic() - begun
    return report


_LINKED = (CONSUMEQUEUE_DIR, BATCH_CONSUMEQUEUE_DIR, CONSUMEQUEUE_EXT_DIR, INDEX_DIR)


@contextmanager
def private_copy(root: Path, config: StoreConfig) -> Iterator[tuple[Path, StoreConfig]]:
    """A folder with the content of the store `root`, and `config` for it. It is deleted at the end.

    Segment files are links until the first write to one makes it a copy without holes
    (`rmq_store.files.truncate.own`). So it needs room for the files that change: about the last
    file of the log and of the index. It lies in the folder of TMPDIR. Errors name the files of the
    store. Raises AccessError.
    """
    folder = Path(tempfile.mkdtemp(prefix="rmqstore-plan-"))
    logs = commitlog_folders(root, config)
    places = {folder / f"log-{number}": log for number, log in enumerate(logs)}
    # The folders of the log come first, because the first folder that fits is shown.
    shown = {str(place): str(source) for place, source in (*places.items(), (folder, root))}
    PRIVATE.add(folder)
    SHOWN_AS.update(shown)
    try:
        for place, log in places.items():
            _link(log, place)
        for part in _LINKED:
            _link(root / part, folder / part)
        _copy_small(root, folder, set(map(os.path.realpath, places.values())))
        paths = PATH_SPLITTER.join(place.name for place in places)
        yield folder, replace(config, storePathCommitLog=paths, readOnlyCommitLogStorePaths=None)
    except OSError as error:
        raise from_os_error(folder, error, "making a private copy of the store") from error
    finally:
        PRIVATE.discard(folder)
        for name in shown:
            SHOWN_AS.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Make folders like those in `source`, with a link to each file."""
    if not source.is_dir():
        return
    for inside, _, names in os.walk(source):
        here = target / Path(inside).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in filter(lambda one: os.path.isfile(os.path.join(inside, one)), names):
            (here / name).symlink_to(os.path.abspath(os.path.join(inside, name)))


def _copy_small(root: Path, folder: Path, logs: set[str]) -> None:
    """Copy config/ and the marker files, which are written without `own`."""
    for child in root.iterdir():
        if is_small_file(child) and child.name != LOCK_FILE:
            shutil.copy2(child, folder / child.name)
    config = root / "config"
    if config.is_dir() and os.path.realpath(config) not in logs:
        shutil.copytree(config, folder / "config", ignore=_no_files)


def _no_files(folder: str, names: list[str]) -> list[str]:
    """What is neither a small file nor a folder, and links to folders: they may lead to themselves."""
    paths = {name: Path(folder, name) for name in names}
    return [
        name
        for name, path in paths.items()
        if not is_small_file(path) and (path.is_symlink() or not path.is_dir())
    ]
