"""Undo or finish a write that was killed."""

from __future__ import annotations

import logging
from pathlib import Path

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import refuse_foreign_log
from rmq_store.config.topics_json import update_topics
from rmq_store.files.durable import sync_one_folder
from rmq_store.format.layout import ABORT_FILE, LOCK_FILE
from rmq_store.format.releases import dialect
from rmq_store.markers.abort_file import remove_abort
from rmq_store.markers.lock_file import StoreLock
from rmq_store.recovery.recover_store import recover_locked
from spark_source.writing.ledger import APPENDING, Begun, WriteLedger, WriteLedgerError
from spark_source.writing.staging import Staging, folder_beside
from spark_source.writing.target_lock import has_content, refusals
from spark_source.writing.write_options import WriteOptions

LOG = logging.getLogger("rmqstore")


def settle(ledger: WriteLedger, asked: WriteOptions) -> bool:
    """Undo the write that the ledger has as begun, or finish it if all its rows are in the target.

    Returns whether there was such a write and it is finished. Raises WriteLedgerError if that is
    not known any more, because another process has opened the store since.
    """
    begun = ledger.begun
    if begun is None:
        return False
    how = "undone" if begun.end is None else "finished"
    LOG.warning("%s: the write begun at %s was interrupted; it is %s", asked.path, begun.at, how)
    if begun.kind == APPENDING:
        _settle_append(begun, asked)
        ledger.forget()
        return begun.end is not None
    return _settle_replacement(ledger, begun, asked)


def _settle_append(begun: Begun, asked: WriteOptions) -> None:
    root, config = Path(asked.path), asked.config_of_target()
    if not has_content(asked.path):
        return  # the store was deleted since
    unclean = (root / ABORT_FILE).exists()
    nobody_since = _signature(root / LOCK_FILE) == begun.mark
    if begun.signed and unclean and nobody_since:
        _recover(begun, root, config, asked.release)
        return
    if begun.end is not None:
        return  # it was done, and the store was closed, or opened by another since
    with MessageStore.open(root, config=config, queues=False) as store:
        end = store.log_range()[1]
    if end == begun.start:
        if unclean and not begun.signed:
            _recover(begun, root, config, asked.release)  # killed while it opened the store
        return
    if begun.signed:
        raise WriteLedgerError(
            root,
            reason=f"a write that began at {begun.at} was interrupted, and another process has "
            "opened the store since; which messages are of that write is unknown",
            expected=f"a log that ends at {begun.start}",
            actual=end,
            advice="Compare the messages from there on with what was written. To keep them, delete "
            f"{folder_beside(asked.path) / 'ledger.json'}",
        )


def _signature(lock: Path) -> bytes:
    with refusals(lock):
        return lock.read_bytes()[:4] if lock.exists() else b""


def _recover(begun: Begun, root: Path, config: StoreConfig, release: str | None) -> None:
    """Recover the store to where the log ends with the write, or without it."""
    refuse_foreign_log(root, config)
    until = begun.start if begun.end is None else begun.end
    lock = StoreLock(root, begun.mark)  # a second attempt sees that it was this one
    try:
        report = recover_locked(root, config, dialect(release), "strict", until=until)
        if begun.end is not None and report.snapshot is not None:
            update_topics(root, dialect(release), list(report.snapshot.queues), {})
        remove_abort(root)
    finally:
        lock.release()


def _settle_replacement(ledger: WriteLedger, begun: Begun, asked: WriteOptions) -> bool:
    staging, placed = Staging(asked.path, begun.write_id), False
    if _signature(staging.new_store / LOCK_FILE) == begun.mark:  # it is still to be put in place
        _put_back(staging.old_store, Path(asked.path), begun)
        ledger.forget()
    elif not has_content(asked.path):
        ledger.forget()  # the store was deleted since
    else:
        _refuse_unknown(staging, begun, asked)
        with MessageStore.open(asked.path, config=asked.config_of_target(), queues=False) as store:
            end = store.log_range()[1]
        sync_one_folder(Path(asked.path).parent)  # the ledger must not be ahead of the disk
        ledger.finish(end, closed=True, replaced=True)
        placed = True
    if staging.path.exists():
        staging.remove()
    return placed


def _put_back(aside: Path, target: Path, begun: Begun) -> None:
    """Undo the first of the two steps that replace a store where there is no exchange."""
    with refusals(target):
        if not aside.exists():
            return
        if has_content(str(target)):
            raise WriteLedgerError(
                target,
                reason=f"a write that began at {begun.at} was interrupted while it replaced the "
                "store, and another folder has appeared in its place since",
                advice=f"The store is at {aside}. Move one of the two away",
            )
        aside.rename(target)


def _refuse_unknown(staging: Staging, begun: Begun, asked: WriteOptions) -> None:
    """Raise WriteLedgerError if nothing shows whether the new store is in its place."""
    # Its folder without the new store shows it, as does the mark in the target.
    marked = _signature(Path(asked.path) / LOCK_FILE) == begun.mark
    if not marked and not staging.path.exists():
        raise WriteLedgerError(
            asked.path,
            reason=f"a write that began at {begun.at} was interrupted, and its folder was deleted "
            "since; whether this store is the old one or the new one is unknown",
            expected=staging.path,
            advice="Compare the store with what was written, and then delete "
            f"{folder_beside(asked.path) / 'ledger.json'}",
        )
