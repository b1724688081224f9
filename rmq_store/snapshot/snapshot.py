"""The state of a store at one moment: the log's range, and the range of every queue.

It is determined once when a store is opened, in a time that does not depend on the number of
messages. A snapshot is plain data and is sent to other processes, so that all of them see the same
offsets.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from rmq_store.commitlog.log import CommitLog, Mark
from rmq_store.commitlog.walk import intact_records_behind, last_record_and_end
from rmq_store.consumequeue.queue_files import QueueFiles, is_at_or_after
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import StoreError
from rmq_store.files.parallel import looked_up_in_parallel
from rmq_store.format.queues import Entries, QueueId
from rmq_store.markers import was_closed
from rmq_store.snapshot.ranges import EMPTY_QUEUE, QueueState, UnsettledQueue
from rmq_store.snapshot.undispatched_records import find_undispatched

_T = TypeVar("_T")
_RECORDS_TRIED = 64  # last entries of queues that are checked against the log to find its end


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Log range [log_start, log_end) and the state of every queue. Picklable."""

    log_start: int
    log_end: int
    queues: Mapping[QueueId, QueueState] = field(default_factory=dict)
    last_record: int | None = None  # log offset of the last record before log_end, if known
    closed: bool = False  # there was no file `abort`: the last stop was clean
    misplaced: tuple[StoreError, ...] = ()  # undispatched records that are not in `queues`
    last_listed: int = -1  # the furthest log offset that the last entry of a queue leads to
    marks: tuple[Mark, ...] = field(
        default=(), compare=False
    )  # by which `open` notices another store
    # What Opening has found, each when something first asked; other processes get it too.
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def unchanging_end(self) -> int:
        """Up to where the bytes of the log stay as they are: its last record may be written right now."""
        if self.closed:
            return self.log_end
        return self.log_start if self.last_record is None else self.last_record

    @property
    def batch_topics(self) -> set[str]:
        """The topics whose queues are BatchConsumeQueues."""
        return {queue.topic for queue, state in self.queues.items() if state.batch}


class _OfSnapshot(Protocol):
    snapshot: StoreSnapshot


class SharedProperty(Generic[_T]):
    """A property of what looks at a snapshot, computed once for it and sent to other processes with it."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __get__(self, looker: _OfSnapshot, owner: type[_OfSnapshot]) -> _T:
        facts, name = looker.snapshot.facts, self._compute.__name__
        if name not in facts:
            facts[name] = self._compute(looker)
        value: _T = facts[name]
        return value


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection inside the block, which creates many objects that all stay alive.

    A collection looks at every object there is, and the more are created, the more often it comes:
    a fifth of the time in which a store with 100,000 queues is opened, and it finds nothing.
    """
    if not gc.isenabled():  # also if another thread has paused it, which then ends the pause
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@collector_paused()
def take_snapshot(
    log: CommitLog, folders: QueueFolders, *, past_damage: bool = False
) -> StoreSnapshot:
    """Determine the state of a store from its current files. Reads only the undispatched end of the log.

    By default the log ends at the first damage after the newest listed record, where a writer
    continues. With `past_damage`, for readers, it ends after the last intact record; in a store that
    was closed, or lacks a file there, entries that point after the end still count. Raises
    UndispatchedError if too many records are in no queue.
    """
    closed = was_closed(folders.root)
    listed = _look_at_all(log, folders)
    end = _find_log_end(log, listed.values(), past_damage)
    # After a crash the log may end before its queues; a file that is gone from the middle is a loss.
    lost_file = any(stop > end.stop for _, stop in log.chain.holes)
    if not (past_damage and (closed or lost_file)):
        for queue in listed.values():
            queue.cut_at_log_end(end.stop)
    back_from = None if closed else end.dispatched
    tails, misplaced = find_undispatched(log, folders, listed, end.dispatched, end.stop, back_from)
    states = {name: _state(queue, tails.pop(name, None)) for name, queue in listed.items()}
    states.update({name: _state_of_tail(tail) for name, tail in tails.items()})
    return StoreSnapshot(
        log.start,
        end.stop,
        dict(sorted(states.items())),
        end.last,
        closed,
        tuple(misplaced),
        last_listed=max((int(queue.last_log_offset) for queue in listed.values()), default=-1),
    )


def snapshot_without_queues(root: Path, log: CommitLog) -> StoreSnapshot:
    """The range of the log alone: up to the end of the last record of its last file.

    Damage in that file, or at its start, does not end the log if valid records follow.
    """
    closed, file = was_closed(root), log.last_file()
    if file is None:
        return StoreSnapshot(log.start, log.start, closed=closed)
    (last, end), file_end = last_record_and_end(log, file.base), log.chain.segment_end(file)
    looked_at = end
    while (behind := log.next_record(file, looked_at + 1, file_end)) is not None:
        newer, stop = last_record_and_end(log, behind)
        if newer is None:
            looked_at = behind
        else:
            last, end, looked_at = newer, stop, stop
    return StoreSnapshot(log.start, end, last_record=last, closed=closed)


def _look_at_all(log: CommitLog, folders: QueueFolders) -> dict[QueueId, UnsettledQueue]:
    """Every queue; in an object store, several queues in parallel, because each read is a request."""
    files, log_start = dict(folders.every()), log.start
    ranges = looked_up_in_parallel(
        lambda queue: _look_at(files[queue], log_start), list(files), log.chain.cost.looks_at_once
    )
    folders.release()
    return {queue: ranges[queue] for queue in files}


def _look_at(files: QueueFiles, log_start: int) -> UnsettledQueue:
    """Everything needed from a queue's files, read at once, so that none stays open."""
    seen, first = files.ends(), files.first_unit
    if seen is not None and is_at_or_after(*seen.first, log_start):
        queue = UnsettledQueue(files, first, seen.stop, first)
        queue.set_last_entry(*seen.last)
        return queue
    stop = files.find_end_unit()
    queue = UnsettledQueue(files, first, stop, files.find_unit_at_log(log_start, first, stop))
    if stop > first:
        queue.set_last_entry(*files.unit(stop - 1))
    return queue


class _LogEnd(NamedTuple):
    """The log offset that the queues have reached, the start of the last record, and the log's end."""

    dispatched: int
    last: int | None
    stop: int


def _find_log_end(log: CommitLog, listed: Collection[UnsettledQueue], past_damage: bool) -> _LogEnd:
    """The end of the log.

    Walks the records after the last entry of all queues. If no last entry points to a record (the
    queues were copied after the log), the walk starts at the last file of the log.
    """
    newest = sorted({(queue.last_log_offset, queue.log_stop) for queue in listed}, reverse=True)
    for where, stop in newest[:_RECORDS_TRIED]:
        if where >= log.start and log.is_record(where, stop - where):
            last, end = last_record_and_end(log, stop)
            listed_end = _LogEnd(stop, where if last is None else last, end)
            break
    else:
        listed_end = _end_without_entries(log, listed)
    return (
        _behind_damage(log, _after_damage(log, listed, listed_end)) if past_damage else listed_end
    )


def _end_without_entries(log: CommitLog, listed: Collection[UnsettledQueue]) -> _LogEnd:
    file = log.last_file()
    if file is None:
        return _LogEnd(log.start, None, log.start)
    last, end = last_record_and_end(log, file.base)
    known = [queue.log_stop for queue in listed if log.start < queue.log_stop <= end]
    return _LogEnd(max(known, default=log.start), last, end)


def _after_damage(
    log: CommitLog, listed: Collection[UnsettledQueue], listed_end: _LogEnd
) -> _LogEnd:
    """The end after the last whole record that an entry lists beyond the end `listed_end`.

    A record that is older than the last one before the damage is left from before the log was cut.
    """
    beyond = Entries.concat(
        [
            queue.files.entries(
                queue.files.stop_before_log(listed_end.stop, queue.stop), queue.stop
            )
            for queue in listed
            if queue.log_stop > listed_end.stop
        ]
    )
    rows = np.flatnonzero(log.whole_records(beyond.log_offset, beyond.size))
    stored = None if listed_end.last is None else log.store_time_at(listed_end.last)
    for row in rows[np.argsort(-beyond.log_offset[rows])].tolist():
        where, size = int(beyond.log_offset[row]), int(beyond.size[row])
        time = log.store_time_at(where, size)
        if time is not None and (stored is None or time >= stored):
            last, end = last_record_and_end(log, where + size)
            return _LogEnd(where + size, where if last is None else last, end)
    return listed_end


def _behind_damage(log: CommitLog, listed_end: _LogEnd) -> _LogEnd:
    """The end after the last intact record behind the end `listed_end`, whether a queue lists it or not."""
    last, stop = listed_end.last, listed_end.stop
    newest = None if last is None else log.store_time_at(last)
    for run in intact_records_behind(log, stop, newest):
        last, stop = run.segment.base + int(run.headers.at[-1]), run.stop
    return _LogEnd(listed_end.dispatched, last, stop)


def _state(queue: UnsettledQueue, tail: Entries | None) -> QueueState:
    files, first, stop = queue.files, min(queue.min_unit, queue.stop), queue.stop
    start = last = queue.end_offset() if stop > queue.first else stop
    if tail is not None and len(tail):
        start, last = int(tail.offset[0]), int(tail.offset[-1] + tail.count[-1])
    else:
        tail = None
    if first < stop:
        start = int(files.entries(first, first + 1).offset[0]) if files.batch else first
    # Offsets of a damaged BatchConsumeQueue may descend.
    low, high, has_hole = min(start, last), max(start, last), bool(files.chain.holes)
    return QueueState(low, high, first, stop, files.batch, tail, queue.after_log, has_hole)


def _state_of_tail(tail: Entries) -> QueueState:
    """The state of a queue that has no files yet."""
    if not len(tail):
        return EMPTY_QUEUE
    first, stop = int(tail.offset[0]), int(tail.offset[-1] + tail.count[-1])
    batch = bool((tail.count[tail.points_to_record] > 1).any())
    return QueueState(first, stop, first, first, batch, tail)
