"""Warnings about a store: what reads of it cannot give, and what may be lost or is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from rmq_store.commitlog.compare_doubled_files import doubled_names
from rmq_store.config.tiered import tiered_queues
from rmq_store.text.sizes import counted

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView

_LISTS_THEM = "rmqstore rebuild STORE --to NEW lists its messages, and source=commitlog reads them"
_NAMED = 3  # queues in a warning


def warnings(view: QueueView) -> Iterator[str]:
    """What reads of this store cannot give, and notes on what may be elsewhere."""
    yield from losses(view)
    yield from notes(view)


def notes(view: QueueView, *, listed: bool = True) -> Iterator[str]:
    """What may be lost, or is elsewhere. `listed`: with the files of the log that `info` names too."""
    doubled = doubled_names(view.log) if listed else None
    if doubled is not None:
        yield f"{doubled}. rmqstore verify compares them"
    yield from islice(view.health.log_end.lines(), None if listed else 1)
    yield from _tiered(view)
    for topic, count in sorted(view.topics.queueless.items()):
        yield (
            f"{counted(count, 'record')} of topic {topic} in the log, and no queue of it: without "
            f"topics.json it is not known whether it was deleted. {_LISTS_THEM}"
        )
    unread = view.unread_database
    tails = [state.tail for state in view.snapshot.queues.values() if state.tail is not None]
    if unread is not None and tails:
        yield (
            f"{sum(map(len, tails))} records are in the log and in no queue file: they are listed as "
            f"a broker's dispatch lists them. A RocksDB database may have their entries: {unread}"
        )
    for queue, lost in view.health.lost_queues.items():
        if not lost.records:
            yield (
                f"queue {queue.name} {lost}. rmqstore verify says whether the log has records of it. If not, "
                "they expired, or a slave has not copied them yet"
            )


def has_losses(view: QueueView) -> bool:
    """Whether messages are lost or cannot be read, so that a count of the store's lacks some."""
    return any(True for _ in losses(view))


def losses(view: QueueView, *, listed: bool = True) -> Iterator[str]:
    """Messages that are lost or cannot be read: parts of the log and of queues without files, the log's
    lost end, lost queues. `listed`: with the missing files, which `info` names too."""
    for start, stop in view.log.chain.holes if listed else ():
        if start > view.snapshot.log_end and not view.health.log_end.is_listed_beyond(start):
            continue  # between files that were made ahead
        yield (
            f"log offset {start} to {stop} is in no file, so its messages cannot be read: a file is "
            "missing, empty or cut. rmqstore verify shows what is lost"
        )
    lost_end = view.health.log_end.lost_end
    if lost_end is not None:
        yield (
            f"{lost_end.reason}. It ends at log offset {view.snapshot.log_end}, and messages that queues "
            f"count behind it cannot be read. {lost_end.advice}; rmqstore verify shows what is lost"
        )
    for error in view.health.queue_holes() if listed else ():
        yield f"{error.reason}. {_LISTS_THEM}"
    for queue, lost in view.health.lost_queues.items():
        if lost.records:
            yield f"queue {queue.name} {lost}. {_LISTS_THEM}"


def _tiered(view: QueueView) -> Iterator[str]:
    tiered = tiered_queues(view.root)
    if tiered is None:
        return
    begins = {queue: state.min_offset for queue, state in view.snapshot.queues.items()}
    older = tiered.with_older(begins)
    if older or tiered.first is None:
        some = ", ".join(queue.name for queue in older[:_NAMED])
        some += ", ..." if len(older) > _NAMED else ""
        which = f"{counted(len(older), 'queue')} ({some})" if older else "queues"
        yield f"{tiered}. There {which} may begin with older messages, which consumers get"
