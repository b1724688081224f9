"""What `verify` finds lost in a part of the log, as the errors of a read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmq_store.errors import CorruptQueueError, CorruptRecordError, ListedAt, LogOffset, StoreError
from rmq_store.format.queues import QueueId
from rmq_store.store import MessageStore
from rmq_store.text.sizes import counted
from rmq_store.verify.queues_against_log import LOST, queue_folder
from rmq_store.verify.verify_store import check_log

_ADVICE = "Read with source=commitlog, or rebuild the queues: rmqstore rebuild STORE --to NEW"


def errors_of_part(
    store: MessageStore, start: int, stop: int, wanted: Callable[[QueueId], bool]
) -> Iterator[StoreError]:
    """An error for each damaged range in a part of `log_parts` to which no `wanted` queue leads a reader,
    and one for each that does not list records of it, or has no files although topics.json has its topic."""
    part = check_log(store, start, stop)
    queues = [queue for queue in store.queues() if wanted(queue)]
    for first, behind in part.damage:
        if any(_leads_into(store, queue, first, behind) for queue in queues):
            continue
        yield CorruptRecordError(
            store.log.path_at(first),
            offset=LogOffset(first),
            reason=f"{behind - first} bytes of the log are damaged, or in no file",
            advice="The messages there are lost, of any queue. rmqstore verify says more",
        )
    for why, run in part.tally.unlisted.items():
        if why.why in LOST and wanted(why.queue):
            yield _not_listed(store, why.queue, run.count, run.ranges[0][0], run.log_offset)
    for queue, parts in part.tally.queueless.items():
        if wanted(queue) and queue.queue_id < store.view.topics.most_queues(queue.topic):
            count = sum(one.records for one in parts)
            yield _not_listed(store, queue, count, -1, min(one.log_offset for one in parts))


def _leads_into(store: MessageStore, queue: QueueId, start: int, stop: int) -> bool:
    at = store.view.offset_at_log(queue, start)
    return at < store.max_offset(*queue) and start <= store.log_offset_of(queue, at) < stop


def _not_listed(
    store: MessageStore, queue: QueueId, count: int, queue_offset: int, log_offset: int
) -> StoreError:
    lists = "does not list" if queue in store.snapshot().queues else "has no files to list"
    return CorruptQueueError(
        queue_folder(store, queue),
        reason=f"queue {queue.name} {lists} {counted(count, 'record')} of it in the log; the first has log "
        f"offset {log_offset}",
        advice=_ADVICE,
        entry=ListedAt(*queue, queue_offset, log_offset, 0, count),
    )
