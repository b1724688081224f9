"""What a store holds at one moment: the log's range, and of every queue where it begins and ends.

Resolved once when a store is opened, in a time that does not grow with its messages; a snapshot is
plain data and goes to other processes, so that all of them see the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.entries import Entries
from rmq_store.consumequeue.files import QueueFiles, is_behind
from rmq_store.consumequeue.folders import QueueFolders
from rmq_store.files.remote.parallel import LOOKS_IN_FLIGHT, side_by_side
from rmq_store.format.layout import (
    ABORT_FILE,
    FILLER_SIZE,
)
from rmq_store.format.queues import QueueId
from rmq_store.snapshot.queue_state import ListedQueue, QueueState
from rmq_store.snapshot.undispatched import end_offset, find_undispatched

_RECORDS_TRIED = 64  # last entries of queues that are held against the log to find its end


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Log range [log_start, log_end) and the state of every queue. Picklable."""

    log_start: int
    log_end: int
    queues: Mapping[QueueId, QueueState] = field(default_factory=dict)

    def only(self, queues: Iterable[QueueId]) -> StoreSnapshot:
        """The same with no more than `queues`: what a part of a job needs to carry along."""
        return replace(self, queues={queue: self.queues[queue] for queue in queues})


def take_snapshot(
    root: Path, log: CommitLog, folders: QueueFolders, config: StoreConfig
) -> StoreSnapshot:
    """Resolve a store as its files are now. Reads no more of the log than its undispatched end.

    Raises UndispatchedError where too many records are in no queue.
    """
    listed = _look_at_all(log, folders)
    dispatched, log_end = _find_log_end(log, listed.values())
    for one in listed.values():
        _cut_to_log(one, log_end)
    unclean = (root / ABORT_FILE).exists()
    tails = find_undispatched(root, log, listed, config, dispatched, log_end, unclean)
    states = {queue: _state(one, tails.pop(queue, None)) for queue, one in listed.items()}
    states.update({queue: _state_of_tail(tail) for queue, tail in tails.items()})
    return StoreSnapshot(log.start, log_end, dict(sorted(states.items())))


def _look_at_all(log: CommitLog, folders: QueueFolders) -> dict[QueueId, ListedQueue]:
    """Every queue; in an object store, where each look is a request, some of them at a time."""
    queues = [(q, batch, folders.files(q, batch=batch)) for q, batch in folders.listed().items()]
    found: dict[QueueId, ListedQueue] = {}

    def look(one: tuple[QueueId, bool, QueueFiles]) -> None:
        queue, batch, files = one
        found[queue] = _look_at(files, batch, log.start)

    side_by_side(look, queues, LOOKS_IN_FLIGHT if log.chain.is_remote else 1)
    return {queue: found[queue] for queue, _, _ in queues}


def _look_at(files: QueueFiles, batch: bool, log_start: int) -> ListedQueue:
    """All that is to be seen in a queue's files, at once: of many queues none stays mapped."""
    seen = files.glance()
    if seen is not None and is_behind(*seen.first, log_start):
        one = ListedQueue(files, batch, files.first_unit, seen.stop, files.first_unit)
        _note(one, *seen.last)
        return one
    first, stop = files.first_unit, files.find_stop()
    min_unit = files.find_unit_at_log(log_start, first, stop)
    one = ListedQueue(files, batch, first, stop, min_unit)
    _note_last(one)
    return one


def _note_last(one: ListedQueue) -> None:
    """Take down the end of the record that the last entry leads to; filler leads to none."""
    one.log_stop = one.last_log_offset = -1
    if one.stop > one.first:
        _note(one, *one.files.unit(one.stop - 1))


def _note(one: ListedQueue, where: int, size: int) -> None:
    if size != FILLER_SIZE:
        one.log_stop, one.last_log_offset = where + size, where


def _find_log_end(log: CommitLog, listed: Iterable[ListedQueue]) -> tuple[int, int]:
    """How far the queues have come in the log, and where the log ends.

    The records behind the last entry of all queues are walked one by one. Where none of the last
    entries leads to a record (the queues were copied after the log) the walk sets out from the last
    file of the log.
    """
    newest = sorted({(one.last_log_offset, one.log_stop) for one in listed}, reverse=True)
    for where, stop in newest[:_RECORDS_TRIED]:
        if where >= log.start and log.is_record(where, stop - where):
            return stop, log.end_from(stop)
    last = log.last_record_file()
    if last is None:
        return log.start, log.start
    end = log.end_from(last.base)
    known = [one.log_stop for one in listed if log.start < one.log_stop <= end]
    return max(known, default=log.start), end


def _cut_to_log(one: ListedQueue, log_end: int) -> None:
    if one.log_stop > log_end:
        one.stop = one.files.stop_before_log(log_end, one.stop)
        _note_last(one)


# --- records that no queue lists yet --------------------------------------------------------------


# --- from units to offsets ------------------------------------------------------------------------


def _state(one: ListedQueue, tail: Entries | None) -> QueueState:
    first = min(one.min_unit, one.stop)
    end = end_offset(one) if one.stop > one.first else one.stop
    if tail is not None and len(tail):
        begin_of_tail = int(tail.offset[0])
        last = int(tail.offset[-1] + tail.count[-1])
    else:
        begin_of_tail = last = end
        tail = None
    start = begin_of_tail
    if first < one.stop:
        start = int(one.files.entries(first, first + 1).offset[0]) if one.batch else first
    # Offsets of a damaged queue of batches may run backwards.
    return QueueState(min(start, last), max(start, last), first, one.stop, one.batch, tail)


def _state_of_tail(tail: Entries) -> QueueState:
    """A queue that has no files yet."""
    if not len(tail):
        return QueueState(0, 0, 0, 0)
    first = int(tail.offset[0])
    return QueueState(first, int(tail.offset[-1] + tail.count[-1]), first, first, False, tail)
