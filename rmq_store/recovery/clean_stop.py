"""Whether a store is as a clean stop leaves it, and if not, what tells."""

from __future__ import annotations

from pathlib import Path

from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.folders import QueueFolders
from rmq_store.errors import UncleanStoreError
from rmq_store.format.layout import ABORT_FILE, BLANK_HEAD, BLANK_SIZE, MAGIC_BLANK
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_state import QueueState
from rmq_store.snapshot.snapshot import StoreSnapshot, take_snapshot

_ADVICE = 'Open it with recovery="strict", or let a broker start on it and stop it in order'


def refuse_abort(root: Path) -> None:
    """Raises UncleanStoreError where `abort` is there."""
    if (root / ABORT_FILE).exists():
        raise UncleanStoreError(
            root / ABORT_FILE,
            reason="the store was not closed cleanly, or a broker has it open",
            advice=_ADVICE,
        )


def refuse_unclean(
    root: Path, log: CommitLog, folders: QueueFolders, snapshot: StoreSnapshot
) -> None:
    """Raises UncleanStoreError where the log has a torn tail, or it and a queue do not end together."""
    _refuse_tail(log, snapshot.log_end)
    for queue, state in snapshot.queues.items():
        if state.tail is not None or _left_behind(folders, queue, state):
            raise UncleanStoreError(
                root,
                reason=f"queue {queue.topic}/{queue.queue_id} and the log do not end together",
                expected=f"its last entry to be unit {state.file_stop - 1}",
                advice=_ADVICE,
            )


def why_unclean(root: Path, log: CommitLog, config: StoreConfig) -> UncleanStoreError | None:
    """What a store without `abort` has that a clean stop does not leave; None where nothing."""
    folders = QueueFolders(root, config)
    try:
        refuse_abort(root)
        refuse_unclean(root, log, folders, take_snapshot(root, log, folders, config))
    except UncleanStoreError as error:
        return error
    finally:
        folders.close()
    return None


def _refuse_tail(log: CommitLog, log_end: int) -> None:
    """Behind the last record there may be a blank, or zeros, and nothing else."""
    segment = log.chain.segment_at(log_end)
    if segment is None:
        return
    window = log.chain.window(log_end, log.chain.segment_end(segment))
    if (
        len(window) >= BLANK_SIZE
        and window[:BLANK_SIZE].view(BLANK_HEAD)[0]["magic"] == MAGIC_BLANK
    ):
        return
    if window.any():
        raise UncleanStoreError(
            segment.path,
            offset=log_end,
            reason="bytes that are no record stand behind the last record",
            expected="zeros",
            advice=_ADVICE,
        )


def _left_behind(folders: QueueFolders, queue: QueueId, state: QueueState) -> bool:
    """Whether units stand behind the last one that counts."""
    files = folders.files(queue, batch=state.batch)
    return files.find_stop() > state.file_stop
