"""Checks whether a store is in the state of a clean stop, and why not."""

from __future__ import annotations

from pathlib import Path

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.walk import page_rest
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import CorruptIndexError, IndexGeometryError, LogOffset, UncleanStoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import ABORT_FILE, BLANK_HEAD, BLANK_SIZE, INDEX_DIR, MAGIC_BLANK
from rmq_store.index.index_file_reader import IndexFile, list_index_files
from rmq_store.recovery.as_broker_queues import refused_files
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot

_ADVICE = (
    "Repair it with rmqstore recover STORE --apply, or start a broker on it and stop it cleanly"
)


def refuse_abort(root: Path) -> None:
    """Raises UncleanStoreError if `abort` exists."""
    if (root / ABORT_FILE).exists():
        raise UncleanStoreError(
            root / ABORT_FILE,
            reason="the store was not closed cleanly, or a broker has it open",
            advice=_ADVICE,
        )


def refuse_unclean(log: CommitLog, folders: QueueFolders, snapshot: StoreSnapshot) -> None:
    """Raises UncleanStoreError if the log has a torn tail, or if log and queues do not end together."""
    _refuse_tail(log, snapshot.log_end)
    for queue, state in snapshot.queues.items():
        files = folders.files(queue, batch=state.batch)
        if state.tail is not None or files.find_stop() > state.file_stop:
            raise UncleanStoreError(
                folders.root,
                reason=f"queue {queue.name} and the log do not end together",
                expected=f"its last entry to be unit {state.file_stop - 1}",
                advice=_ADVICE,
            )


def why_unclean(root: Path, log: CommitLog, config: StoreConfig) -> UncleanStoreError | None:
    """The difference of a store without `abort` to a clean stop; None if there is none."""
    folders = QueueFolders(root, config)
    try:
        refuse_abort(root)
        _refuse_short_files(log)
        refuse_unclean(log, folders, take_snapshot(log, folders))
        _refuse_index(root, config)
    except UncleanStoreError as error:
        return error
    finally:
        folders.close()
    return None


def _refuse_short_files(log: CommitLog) -> None:
    """Raise UncleanStoreError for a short or empty file of the log, with which no broker starts."""
    folders, size = [Path(folder) for folder in log.chain.folders], log.chain.file_size
    for error in refused_files(folders, size, "mappedFileSizeCommitLog"):
        path = Path(error.path or "")
        if path.name.isdigit() and path.stat().st_size < size:
            raise UncleanStoreError(
                path,
                reason=error.reason,
                expected=error.expected,
                actual=error.actual,
                advice=_ADVICE,
            )


def _refuse_index(root: Path, config: StoreConfig) -> None:
    """Raise UncleanStoreError for an index file that fits neither its own items nor `config`."""
    for segment in list_index_files(root / INDEX_DIR):
        damage = _index_damage(segment, StoreConfig())
        if damage is not None and (config.maxHashSlotNum or config.maxIndexNum):
            damage = _index_damage(segment, config)
        if damage is not None:
            raise UncleanStoreError(
                segment.path,
                reason=f"an index file is damaged, or of an unknown geometry: {damage}",
                advice=_ADVICE,
            )


def _index_damage(segment: SegmentFile, config: StoreConfig) -> str | None:
    try:
        file = IndexFile(segment, slots=config.maxHashSlotNum, items=config.maxIndexNum)
    except (IndexGeometryError, CorruptIndexError) as error:
        return error.reason
    return "its header is damaged" if file.header.index_count < 0 else None


def _refuse_tail(log: CommitLog, log_end: int) -> None:
    """Raise UncleanStoreError unless a blank record, zeros or the rest of a page follow the last record.

    Only for a store without `abort`: in another one, such a rest may be of a record that was begun.
    """
    segment = log.chain.segment_at(log_end)
    if segment is None:
        return
    end = log.chain.segment_end(segment)
    front = log.chain.read(log_end, min(log_end + BLANK_SIZE, end))
    if len(front) == BLANK_SIZE and front.view(BLANK_HEAD)[0]["magic"] == MAGIC_BLANK:
        return
    if not log.chain.is_zero(log_end, end) and page_rest(log, log_end) is None:
        raise UncleanStoreError(
            segment.path,
            offset=LogOffset(log_end),
            reason="bytes that are not a record follow the last record",
            expected="zeros",
            advice=_ADVICE,
        )
