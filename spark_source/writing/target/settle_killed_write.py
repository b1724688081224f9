"""Undo or finish a write that was killed."""

from __future__ import annotations

import logging
from pathlib import Path

from rmq_store import MessageStore
from rmq_store.files.durable_files import sync_one_folder
from rmq_store.format.layout import LOCK_FILE
from spark_source.writing.target.lock import has_content, refusals
from spark_source.writing.target.staging import Staging, folder_beside
from spark_source.writing.target.undo_killed_append import settle_append, signature
from spark_source.writing.target.write_ledger import APPENDING, Begun, WriteLedger, WriteLedgerError
from spark_source.writing.target.write_options import WriteOptions

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
        settle_append(begun, asked, ledger.path)
        ledger.forget()
        return begun.end is not None
    return _settle_replacement(ledger, begun, asked)


def _settle_replacement(ledger: WriteLedger, begun: Begun, asked: WriteOptions) -> bool:
    staging, placed = Staging(asked.path, begun.write_id), False
    if signature(staging.new_store / LOCK_FILE) == begun.mark:  # it is still to be put in place
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
    marked = signature(Path(asked.path) / LOCK_FILE) == begun.mark
    if not marked and not staging.path.exists():
        raise WriteLedgerError(
            asked.path,
            reason=f"a write that began at {begun.at} was interrupted, and its folder was deleted "
            "since; whether this store is the old one or the new one is unknown",
            expected=staging.path,
            advice="Compare the store with what was written, and then delete "
            f"{folder_beside(asked.path) / 'ledger.json'}",
        )
