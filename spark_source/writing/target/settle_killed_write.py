"""Undo or finish a write that was killed.

A writer signs the store's lock file before it appends. A process that opens the store to write takes
the mark away. So a mark that is still there proves that what follows in the log is of that writer.
"""

from __future__ import annotations

from pathlib import Path

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import refuse_foreign_log
from rmq_store.config.topics_json import update_topics
from rmq_store.escaping import LOG
from rmq_store.files.durable_files import sync_one_folder
from rmq_store.files.journal import JournalError, has_content, refusals
from rmq_store.format.byte_layout import ABORT_FILE, LOCK_FILE
from rmq_store.format.releases import dialect
from rmq_store.markers.lock_file import StoreLock, remove_abort
from rmq_store.recovery.recover_store import recover_locked
from spark_source.writing.target.staging import Staging
from spark_source.writing.target.write_journal import APPENDING, Begun, WriteJournal
from spark_source.writing.target.write_options import WriteOptions


def settle(journal: WriteJournal, asked: WriteOptions) -> bool:
    """Undo the write that the journal has as begun, or finish it if all its rows are in the target.

    Returns whether there was such a write and it is finished. Raises JournalError if that is
    not known any more, because another process has opened the store since.
    """
    begun = journal.begun
    if begun is None:
        return False
    how = "undone" if begun.end is None else "finished"
    LOG.warning("%s: the write begun at %s was interrupted; it is %s", asked.path, begun.at, how)
    if begun.kind == APPENDING:
        settle_append(begun, asked, journal.path)
        journal.forget()
        return begun.end is not None
    return _settle_replacement(journal, begun, asked)


def _settle_replacement(journal: WriteJournal, begun: Begun, asked: WriteOptions) -> bool:
    staging, placed = Staging(asked.path, begun.write_id), False
    if signature(staging.new_store / LOCK_FILE) == begun.mark:  # it is still to be put in place
        _put_back(staging.old_store, Path(asked.path), begun)
        journal.forget()
    elif not has_content(asked.path):
        journal.forget()  # the store was deleted since
    else:
        _refuse_unknown(staging, begun, asked, journal.path)
        sync_one_folder(Path(asked.path).parent)  # the journal must not be ahead of the disk
        journal.finish(end_of_log(asked), closed=True, replaced=True)
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
            raise JournalError(
                target,
                reason=f"a write that began at {begun.at} was interrupted while it replaced the "
                "store, and another folder has appeared in its place since",
                advice=f"The store is at {aside}. Move one of the two away",
            )
        aside.rename(target)


def _refuse_unknown(staging: Staging, begun: Begun, asked: WriteOptions, journal: Path) -> None:
    """Raise JournalError if nothing shows whether the new store is in its place."""
    # Its folder without the new store shows it, as does the mark in the target.
    marked = signature(Path(asked.path) / LOCK_FILE) == begun.mark
    if not marked and not staging.path.exists():
        raise JournalError(
            asked.path,
            reason=f"a write that began at {begun.at} was interrupted, and its folder was deleted "
            "since; whether this store is the old one or the new one is unknown",
            expected=staging.path,
            advice=f"Compare the store with what was written, and then delete {journal}",
        )


# --- an append -----------------------------------------------------------------------------------


def settle_append(begun: Begun, asked: WriteOptions, journal: Path) -> None:
    """Finish or undo an interrupted append.

    `journal`: the file that says so. Raises JournalError if another process has opened the store
    since, so that nobody knows which messages are of that write.
    """
    root, config = Path(asked.path), asked.config_of_target()
    if not has_content(asked.path):
        return  # the store was deleted since
    unclean = (root / ABORT_FILE).exists()
    nobody_since = signature(root / LOCK_FILE) == begun.mark
    if begun.signed and unclean and nobody_since:
        _recover(begun, root, config, asked.release)
        return
    if begun.end is not None:
        return  # it was done, and the store was closed, or opened by another since
    end = end_of_log(asked)
    if end == begun.start:
        if unclean and not begun.signed:
            _recover(begun, root, config, asked.release)  # killed while it opened the store
        return
    if begun.signed:
        raise JournalError(
            root,
            reason=f"a write that began at {begun.at} was interrupted, and another process has "
            "opened the store since; which messages are of that write is unknown",
            expected=f"a log that ends at {begun.start}",
            actual=end,
            advice="Compare the messages from there on with what was written. To keep them, delete "
            f"{journal}",
        )


def end_of_log(asked: WriteOptions) -> int:
    """Where the log of the target ends; 0 without a target."""
    if not has_content(asked.path):
        return 0
    with MessageStore.open(asked.path, config=asked.config_of_target(), queues=False) as store:
        return store.log_range()[1]


def signature(lock: Path) -> bytes:
    """The 4 bytes that the last writer of a store left in its lock file; empty without a file."""
    with refusals(lock):
        return lock.read_bytes()[:4] if lock.exists() else b""


def _recover(begun: Begun, root: Path, config: StoreConfig, release: str | None) -> None:
    """Recover the store to where the log ends with the write, or without it."""
    refuse_foreign_log(root, config)
    until = begun.start if begun.end is None else begun.end
    with StoreLock(root, begun.mark):  # a second attempt sees that it was this one
        report = recover_locked(root, config, dialect(release), until=until)
        if begun.end is not None:
            update_topics(root, dialect(release), list(report.queues), {})
        remove_abort(root)
