"""Undo or finish an append that was killed.

A writer signs the store's lock file before it appends. A process that opens the store to write takes
the mark away. So a mark that is still there proves that what follows in the log is of that writer.
"""

from __future__ import annotations

from pathlib import Path

from rmq_store import MessageStore
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.config.locate import refuse_foreign_log
from rmq_store.config.topics_json import update_topics
from rmq_store.format.layout import ABORT_FILE, LOCK_FILE
from rmq_store.format.releases import dialect
from rmq_store.markers.lock_file import StoreLock, remove_abort
from rmq_store.recovery.recover_store import recover_locked
from spark_source.writing.target.lock import has_content, refusals
from spark_source.writing.target.write_ledger import Begun, WriteLedgerError
from spark_source.writing.target.write_options import WriteOptions


def settle_append(begun: Begun, asked: WriteOptions, ledger: Path) -> None:
    """Finish or undo an interrupted append.

    `ledger`: the file that says so. Raises WriteLedgerError if another process has opened the store
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
            f"{ledger}",
        )


def signature(lock: Path) -> bytes:
    """The 4 bytes that the last writer of a store left in its lock file; empty without a file."""
    with refusals(lock):
        return lock.read_bytes()[:4] if lock.exists() else b""


def _recover(begun: Begun, root: Path, config: StoreConfig, release: str | None) -> None:
    """Recover the store to where the log ends with the write, or without it."""
    refuse_foreign_log(root, config)
    until = begun.start if begun.end is None else begun.end
    lock = StoreLock(root, begun.mark)  # a second attempt sees that it was this one
    try:
        report = recover_locked(root, config, dialect(release), "strict", until=until)
        if begun.end is not None:
            update_topics(root, dialect(release), list(report.queues), {})
        remove_abort(root)
    finally:
        lock.release()
