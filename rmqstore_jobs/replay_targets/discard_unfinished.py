"""Delete what an unfinished replay created, once it is certain that nobody else wrote there.

The ledger alone does not prove that: a broker may run on the store meanwhile, another replay may
have added to it, and a ledger may come with a copied folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import commitlog_folders
from rmq_store.errors import StoreError
from rmq_store.files.safe_paths import refuse_link
from rmq_store.markers.lock_file import StoreLock, refuse_locked
from rmq_store.writing.open_for_writing import with_log_of_its_own
from rmqstore_jobs.replaying.origin_properties import ORIGIN
from rmqstore_jobs.replaying.replay_ledger import Ledger, LedgerError, ReplayRun

_SEGMENT = r"\d{20}(\.part)?"
_OF_A_STORE = (
    r"abort|abort\.bak|checkpoint|lock",
    rf"(consumequeue|batchconsumequeue|consumequeue_ext)/[^/]+/\d+/{_SEGMENT}",
    r"index/\d{17}(\.part)?",
    r"config/topics\.json(\.bak|\.tmp)?",  # a broker writes more files here when it starts
)
_OF_PARQUET = (r"_SUCCESS", r"\.?part-\d{5}\.parquet")
_SHOWN = 5
_PROOF = next(iter(ORIGIN))  # a property that every message of a replay has


def discard_unfinished(path: str | None, parquet: str | None, ledger: Ledger) -> None:
    """Delete what an unfinished run created, and its ledger entry.

    Before the first deletion: the run created the store, its lock is free, no file in it is
    unknown, and its log has what this run wrote, up to where the ledger says. After a kill, more
    messages of a replay may follow. Raises LedgerError otherwise, StoreLockedError while a process
    holds the lock, and UnsafeNameError for a link.
    """
    run = ledger.unfinished
    if run is None:
        return
    if path is not None and not run.created:
        raise LedgerError(
            path,
            reason="the unfinished replay did not create this store, so it is not deleted",
            advice=f"Restore it from a copy, and delete the last run from {ledger.path}",
        )
    _refuse_other_targets(run, to_store=path, to_parquet=parquet)
    folders = [Path(one) for one in (path, parquet if run.parquet else None) if one is not None]
    there = [folder for folder in folders if os.path.lexists(folder)]
    for folder in there:
        if str(folder) == path:
            _refuse_a_store_of_others(folder, run)
        else:
            _refuse_unknown(folder, _OF_PARQUET)
    for folder in there:
        _delete(folder, run if str(folder) == path else None)
    ledger.forget_last()


def _refuse_other_targets(run: ReplayRun, **given: str | None) -> None:
    """Raise LedgerError if the unfinished run wrote to other targets than the given ones."""
    for name, target in given.items():
        before = run.asked.get(name)
        if target is None or before is None:
            continue
        if os.path.abspath(target) != os.path.abspath(str(before)):
            raise LedgerError(
                target,
                reason="the unfinished replay wrote to another folder, so this one is not deleted",
                expected=str(before),
                actual=target,
                advice="Name the targets of the unfinished replay with --restart",
            )


def _delete(folder: Path, of_store: ReplayRun | None) -> None:
    if of_store is None:
        shutil.rmtree(folder)
        return
    lock = StoreLock(folder)
    try:
        _refuse_a_store_of_others(folder, of_store, locked=True)  # what came before the lock
        shutil.rmtree(folder)
    finally:
        lock.release()


def _refuse_a_store_of_others(root: Path, run: ReplayRun, *, locked: bool = False) -> None:
    refuse_link(root)
    if not locked:
        refuse_locked(root)
    config = with_log_of_its_own(StoreConfig.of(run.asked.get("target_conf")))
    logs = _log_folders(root, config)
    patterns = (*_OF_A_STORE, *(f"{re.escape(log)}/{_SEGMENT}" for log in logs))
    _refuse_unknown(root, patterns)
    if not any(any((root / log).iterdir()) for log in logs if (root / log).is_dir()):
        if run.target_end:
            raise _refused(root, f"its log is empty, but the ledger says {run.target_end}")
        return
    try:
        with MessageStore.open(root, config=config, queues=False) as store:
            _refuse_another_log(root, store, run)
    except LedgerError:
        raise
    except StoreError as error:
        raise _refused(root, f"its log cannot be read: {error}") from error


def _log_folders(root: Path, config: StoreConfig) -> list[str]:
    try:
        folders = commitlog_folders(root, config)
    except StoreError:  # the replay ended before it created them
        folders = [root / "commitlog"]
    return [str(folder.relative_to(root)) for folder in folders]


def _refuse_another_log(root: Path, store: MessageStore, run: ReplayRun) -> None:
    end = store.log_range()[1]
    if end < run.target_end or (end > run.target_end and run.state != "writing"):
        raise _refused(root, f"its log ends at {end}, but the ledger says {run.target_end}")
    for batch in chain(islice(_rows(store, None, None), 1), _rows(store, run.target_end, end)):
        other = _first_of_others(batch)
        if other is not None:
            raise _refused(
                root,
                f"the message of topic {other['topic']!r} at log offset "
                f"{other['commitLogOffset']} was not written by a replay",
            )


def _rows(store: MessageStore, start: int | None, stop: int | None) -> Iterator[pa.RecordBatch]:
    yield from store.read_log(
        start, stop, include_unqueued=True, columns=["topic", "commitLogOffset", "properties"]
    )


def _first_of_others(batch: pa.RecordBatch) -> Mapping[str, Any] | None:
    """The first row without the properties of a replay."""
    if not batch.num_rows:
        return None
    found = pc.map_lookup(batch["properties"], pa.scalar(_PROOF), "first")
    missing = pc.indices_nonzero(pc.is_null(found))
    if not len(missing):
        return None
    row: Mapping[str, Any] = batch.slice(missing[0].as_py(), 1).to_pylist()[0]
    return row


def _refuse_unknown(root: Path, patterns: Iterable[str]) -> None:
    """Raise LedgerError for files that a replay does not create, and for links."""
    refuse_link(root)
    known = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    unknown = [name for name in _names_in(root) if not known.fullmatch(name)]
    if unknown:
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        raise _refused(root, f"there are other files: {', '.join(unknown[:_SHOWN])}{more}")


def _names_in(root: Path) -> list[str]:
    """Every file below `root`, by its path there; a link is listed as its path with " (a link)"."""
    found = []
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        for name in (*folders, *files):
            inside = os.path.relpath(os.path.join(folder, name), root)
            if os.path.islink(os.path.join(folder, name)):
                found.append(f"{inside} (a link)")
            elif name in files:
                found.append(inside)
    return sorted(found)


def _unreadable(error: OSError) -> None:
    raise _refused(Path(error.filename), f"cannot be listed: {error.strerror}") from error


def _refused(path: Path, reason: str) -> LedgerError:
    return LedgerError(
        path,
        reason=f"--restart deletes only what the unfinished replay wrote; nothing was deleted: {reason}",
        advice="Look who else writes there. Move what is still needed to another folder, "
        "or replay into a new target",
    )
