"""rebuild: queues and index made anew from the log, in a new store that a broker can start on.

The target gets the log (copied, or linked file by file), the configuration, and then what a
recovery without queues and index makes of it: the same files as a broker that dispatches the log.
Killed half-way it goes on where it was. The source is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rmq_store.config.abort import remove_abort, write_abort
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.checkpoint import Checkpoint
from rmq_store.config.json_files import is_there
from rmq_store.config.lock import StoreLock
from rmq_store.config.topics_json import declared_topics, update_topics
from rmq_store.errors import (
    AccessError,
    InvalidArgumentError,
    NotAStoreError,
    from_os_error,
)
from rmq_store.files.durable import sync_folder
from rmq_store.files.mapping import stored_from
from rmq_store.files.segments import SegmentFile
from rmq_store.format.layout import (
    CHECKPOINT_FILE,
    COMMITLOG_DIR,
    CONFIG_DIR,
    CONSUMEQUEUE_DIR,
    INDEX_DIR,
)
from rmq_store.format.releases import dialect
from rmq_store.recovery.recover_store import recover_locked
from rmq_store.recovery.report import RecoveryReport
from rmq_store.store import MessageStore

STATE_FILE = "rebuild.json"  # in a target that is not finished
LOG_MODES = ("copy", "link")
_PIECE = 8 << 20

Progress = Callable[[int], None]  # told how many bytes more were copied or gone through


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild made. `resumed`: the target was begun before."""

    source: str
    target: str
    log: str  # copy or link
    resumed: bool
    recovery: RecoveryReport

    @property
    def all_well(self) -> bool:
        """Whether the log had no damage in it."""
        return not self.recovery.damage

    def to_dict(self) -> dict[str, Any]:
        """As plain values, to be written as JSON."""
        found = self.recovery.to_dict()
        return {
            "source": self.source,
            "target": self.target,
            "log": self.log,
            "resumed": self.resumed,
            **{
                name: found[name]
                for name in (
                    "log_start",
                    "log_end",
                    "records",
                    "damage",
                    "entries_rebuilt",
                    "index_items_rebuilt",
                    "queues",
                    "seconds",
                )
            },
        }


def work_of(store: MessageStore) -> int:
    """How many bytes `progress` will be told of in all, about."""
    start, end = store.log_range()
    return 3 * (end - start)


def rebuild(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    log: str = "copy",
    release: str | None = None,
    config: Any = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Make queues and index of the store `source` anew, in the new store `target`.

    `log`: "copy" the files of the log, or "link" those that a broker writes no more (on the same
    file system; the last one is copied in any case). `release` and `config` as the broker that is to
    start on it has them; sizes are by default those of the source. Records behind damage are
    dispatched too, and the damage is in the report: a broker starts on it, and cannot send what is
    damaged. Raises NotAStoreError where the target has content that is no unfinished rebuild of
    this source, InvalidArgumentError, AccessError.
    """
    if log not in LOG_MODES:
        raise InvalidArgumentError(
            None, reason=f"the log cannot be taken by {log!r}", expected=" or ".join(LOG_MODES)
        )
    known, how, root = StoreConfig.of(config), dialect(release), Path(target)
    with MessageStore.open(source, config=known, queues=False) as store:
        settings = known.with_defaults_of(store.geometry())
        # What was on the disk once is not ended by damage before it.
        flushed = Checkpoint.read_or_zero(store.path / CHECKPOINT_FILE).physic_msg_timestamp
        state = {"source": str(store.path.absolute()), "log": log, "release": str(how)}
        resumed = _begin(root, state)
        lock = StoreLock(root)
        try:
            _take_log(store, root, log, progress)
            _take_config(store.path, root)
        except OSError as error:
            raise from_os_error(root, error, "making the target") from error
        finally:
            lock.release()
    # The target keeps all of its log in one folder.
    settings = replace(settings, storePathCommitLog=None, readOnlyCommitLogStorePaths=None)
    lock = StoreLock(root)
    try:
        write_abort(root, how)
        report = recover_locked(
            root, settings, how, "strict", flushed_until=flushed, progress=progress
        )
        if not _has_topics(root):
            update_topics(root, how, list(report.queues), {})
        remove_abort(root)
        (root / STATE_FILE).unlink()
    finally:
        lock.release()
    return RebuildReport(state["source"], str(root), log, resumed, report)


def _begin(root: Path, state: dict[str, str]) -> bool:
    """Make the target, or see that it is this very rebuild, begun before; whether it is."""
    path = root / STATE_FILE
    try:
        if path.exists():
            before = json.loads(path.read_text("utf-8"))
            if before != state:
                raise InvalidArgumentError(
                    path,
                    reason="the target is the unfinished rebuild of something else",
                    expected=json.dumps(state),
                    actual=json.dumps(before),
                    advice="Say the same as then to go on, or name a new folder",
                )
            return True
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise NotAStoreError(
                root,
                reason="there is something here already",
                advice="Name a folder that is not there yet: a store is never rebuilt in place",
            )
        for name in (COMMITLOG_DIR, CONSUMEQUEUE_DIR, INDEX_DIR, CONFIG_DIR):
            (root / name).mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(state), "utf-8")
    except OSError as error:  # not as of files that are read: nothing here has expired
        raise AccessError(
            root,
            reason=f"making the target: {error.strerror or error}",
            advice="Name a folder that can be made here",
        ) from error
    return False


def _take_log(store: MessageStore, root: Path, mode: str, progress: Progress | None) -> None:
    """All files of the log that hold records; what a broker made ahead is left."""
    chain = store.log.chain
    last = store.log.last_record_file()
    for segment in chain.segments:
        if last is None or segment.base > last.base:
            continue
        path = root / COMMITLOG_DIR / Path(segment.path).name
        if not path.exists():
            whole = segment.base < last.base and segment.size == chain.file_size
            if mode == "link" and whole:
                os.link(segment.path, path)
            else:
                _copy(segment, path, chain.file_size)
        if progress is not None:
            progress(segment.size)
    sync_folder(root / COMMITLOG_DIR)


def _copy(segment: SegmentFile, path: Path, size: int) -> None:
    """Copy a file without its holes; it gets its name when it is whole."""
    part = path.with_name(path.name + ".part")
    at = 0
    with open(segment.path, "rb", buffering=0) as origin, part.open("wb") as copy:
        while (at := stored_from(origin.fileno(), at, segment.size)) < segment.size:
            origin.seek(at)
            piece = origin.read(_PIECE)
            if not piece:
                break
            if np.frombuffer(piece, dtype=np.uint8).any():  # zeros may be stored, too
                copy.seek(at)
                copy.write(piece)
            at += len(piece)
        copy.truncate(max(size, segment.size))
        os.fsync(copy.fileno())
    part.rename(path)


def _take_config(source: Path, root: Path) -> None:
    """config/ with everything in it; a source without one has none to give.

    Raises AccessError for what is there and cannot be read: a target without it would start with
    other topics and without the groups' offsets.
    """
    origin = source / CONFIG_DIR
    if not is_there(origin):
        return

    def refused(error: OSError) -> None:
        raise from_os_error(error.filename or origin, error, "taking the configuration") from error

    for folder, _, names in os.walk(origin, onerror=refused):
        copies = root / CONFIG_DIR / Path(folder).relative_to(origin)
        copies.mkdir(exist_ok=True)
        for name in names:
            path = Path(folder) / name
            if not path.is_file():
                continue
            try:
                shutil.copy2(path, copies / name)
            except PermissionError as error:
                refused(error)


def _has_topics(root: Path) -> bool:
    return bool(declared_topics(root))
