"""What a store holds at one moment: the log's range, and of every queue where it begins and ends.

Resolved once when a store is opened, in a time that does not grow with its messages; a snapshot is
plain data and goes to other processes, so that all of them see the same offsets.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.config.broker_conf import StoreConfig, batch_topics, declared_topics
from rmq_store.consumequeue.dispatch import Dispatched, dispatch
from rmq_store.consumequeue.entries import Entries, concat_entries
from rmq_store.consumequeue.files import QueueFiles, QueueId, is_behind
from rmq_store.errors import UndispatchedError, from_os_error
from rmq_store.files.mapping import MappingCache, ReadCounts
from rmq_store.files.remote.parallel import LOOKS_IN_FLIGHT, side_by_side
from rmq_store.format.layout import (
    ABORT_FILE,
    BATCH_CONSUMEQUEUE_DIR,
    CONSUMEQUEUE_DIR,
    FILLER_SIZE,
)

MOST_UNDISPATCHED = 30_000_000
"""Records that no queue lists are kept in memory, some 40 bytes each, up to so many."""
_QUEUE_FILES_MAPPED = 64
_REMOTE_BLOCK = 16 << 10  # the end of a queue is found by some looks far apart
_RECORDS_TRIED = 64  # last entries of queues that are held against the log to find its end
_LOOK_BACK = (
    64 << 20
)  # bytes before the dispatched end that an unclean store is searched for strays


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue: offsets [min_offset, max_offset) have messages.

    Those up to `file_stop` (a unit of its files) are listed by the queue; `tail` are the entries of
    records that the broker had not dispatched, found in the log.
    """

    min_offset: int
    max_offset: int
    file_start: int
    file_stop: int
    batch: bool = False
    tail: Entries | None = None


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Log range [log_start, log_end) and the state of every queue. Picklable."""

    log_start: int
    log_end: int
    queues: Mapping[QueueId, QueueState] = field(default_factory=dict)

    def only(self, queues: Iterable[QueueId]) -> StoreSnapshot:
        """The same with no more than `queues`: what a part of a job needs to carry along."""
        return replace(self, queues={queue: self.queues[queue] for queue in queues})


class QueueFolders:
    """The queues of a store on disk, and their files, opened as needed."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.root = root
        self.config = config
        self._mappings = MappingCache(_QUEUE_FILES_MAPPED, block=_REMOTE_BLOCK)
        self._open: dict[QueueId, QueueFiles] = {}

    @property
    def counts(self) -> ReadCounts:
        """What was read of all queues."""
        return self._mappings.counts

    def listed(self) -> dict[QueueId, bool]:
        """Every queue that has a folder -> whether it is a BatchConsumeQueue."""
        found: dict[QueueId, bool] = {}
        for name, batch in ((CONSUMEQUEUE_DIR, False), (BATCH_CONSUMEQUEUE_DIR, True)):
            for queue in _queue_folders(self.root / name):
                found.setdefault(queue, batch)
        return found

    def files(self, queue: QueueId, *, batch: bool = False) -> QueueFiles:
        """The files of a queue."""
        files = self._open.get(queue)
        if files is None:
            folder = BATCH_CONSUMEQUEUE_DIR if batch else CONSUMEQUEUE_DIR
            size = (
                self.config.mapperFileSizeBatchConsumeQueue
                if batch
                else self.config.mappedFileSizeConsumeQueue and self.config.queue_file_size
            )
            files = self._open[queue] = QueueFiles(
                os.path.join(self.root, folder, queue.topic, str(queue.queue_id)),
                batch=batch,
                file_size=size,
                mappings=self._mappings,
            )
        return files

    def close(self) -> None:
        """Give up all mapped files."""
        self._mappings.clear()
        self._open.clear()


def _queue_folders(folder: Path) -> Iterable[QueueId]:
    for topic in _folders_in(folder):
        for queue in _folders_in(topic.path):
            if queue.name.isascii() and queue.name.isdigit():
                yield QueueId(topic.name, int(queue.name))


def _folders_in(folder: str | Path) -> list[os.DirEntry[str]]:
    """What is there now; a folder that is not, or was deleted since it was listed, holds none."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise from_os_error(folder, error, "listing queues") from error


@dataclass(slots=True)
class _Listed:
    """A queue while it is being resolved: units [first, stop), and the end of the last record."""

    files: QueueFiles
    batch: bool
    first: int
    stop: int
    min_unit: int  # the first that still has its record
    log_stop: int = -1  # behind the record of the last entry; -1 without entries
    last_log_offset: int = -1


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
    tails = _find_strays(root, log, listed, config, dispatched, log_end, unclean)
    states = {queue: _state(one, tails.pop(queue, None)) for queue, one in listed.items()}
    states.update({queue: _state_of_tail(tail) for queue, tail in tails.items()})
    return StoreSnapshot(log.start, log_end, dict(sorted(states.items())))


def _look_at_all(log: CommitLog, folders: QueueFolders) -> dict[QueueId, _Listed]:
    """Every queue; in an object store, where each look is a request, some of them at a time."""
    queues = [(q, batch, folders.files(q, batch=batch)) for q, batch in folders.listed().items()]
    found: dict[QueueId, _Listed] = {}

    def look(one: tuple[QueueId, bool, QueueFiles]) -> None:
        queue, batch, files = one
        found[queue] = _look_at(files, batch, log.start)

    side_by_side(look, queues, LOOKS_IN_FLIGHT if log.chain.is_remote else 1)
    return {queue: found[queue] for queue, _, _ in queues}


def _look_at(files: QueueFiles, batch: bool, log_start: int) -> _Listed:
    """All that is to be seen in a queue's files, at once: of many queues none stays mapped."""
    seen = files.glance()
    if seen is not None and is_behind(*seen.first, log_start):
        one = _Listed(files, batch, files.first_unit, seen.stop, files.first_unit)
        _note(one, *seen.last)
        return one
    first, stop = files.first_unit, files.find_stop()
    min_unit = files.find_unit_at_log(log_start, first, stop)
    one = _Listed(files, batch, first, stop, min_unit)
    _note_last(one)
    return one


def _note_last(one: _Listed) -> None:
    """Take down the end of the record that the last entry leads to; filler leads to none."""
    one.log_stop = one.last_log_offset = -1
    if one.stop > one.first:
        _note(one, *one.files.unit(one.stop - 1))


def _note(one: _Listed, where: int, size: int) -> None:
    if size != FILLER_SIZE:
        one.log_stop, one.last_log_offset = where + size, where


def _find_log_end(log: CommitLog, listed: Iterable[_Listed]) -> tuple[int, int]:
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


def _cut_to_log(one: _Listed, log_end: int) -> None:
    if one.log_stop > log_end:
        one.stop = one.files.stop_before_log(log_end, one.stop)
        _note_last(one)


# --- records that no queue lists yet --------------------------------------------------------------


def _find_strays(
    root: Path,
    log: CommitLog,
    listed: Mapping[QueueId, _Listed],
    config: StoreConfig,
    dispatched: int,
    log_end: int,
    unclean: bool,
) -> dict[QueueId, Entries]:
    """The entries of records behind the last entry of their queue.

    The broker dispatches in log order, so they all lie behind what any queue has come to; but in a
    copy made while it ran, one queue's files may be older than another's. So an unclean store is
    searched backwards too, until a stretch of it brings nothing more.
    """
    batch = _batch_topics(root, listed)
    start = dispatched
    found = _strays_in(log, start, log_end, listed, config, batch)
    while unclean and start > log.start:
        before = _record_start_near(log, start - _LOOK_BACK, start)
        more = _strays_in(log, before, start, listed, config, batch)
        start = before
        if not more:
            break
        for queue, entries in found.items():
            more[queue] = concat_entries([more[queue], entries]) if queue in more else entries
        found = more
    return {queue: _placed(entries, listed.get(queue)) for queue, entries in found.items()}


def declared_batch_topics(root: Path) -> set[str]:
    """Topics that topics.json says have BatchConsumeQueues; none where it cannot be read."""
    return batch_topics(declared_topics(root))


def _batch_topics(root: Path, listed: Mapping[QueueId, _Listed]) -> set[str]:
    return declared_batch_topics(root) | {q.topic for q, one in listed.items() if one.batch}


def _record_start_near(log: CommitLog, wanted: int, otherwise: int) -> int:
    """A log offset at or behind `wanted` where a record starts; at most `otherwise`."""
    at = max(wanted, log.start)
    for segment in log.chain.segments_from(at):
        if segment.base >= otherwise:
            break
        first = max(at, segment.base)
        stop = min(log.chain.segment_end(segment), otherwise)
        log.chain.need([first], [stop])
        place = log.next_record(segment, first, stop)
        if place is not None:
            return place
    return otherwise


def _strays_in(
    log: CommitLog,
    start: int,
    stop: int,
    listed: Mapping[QueueId, _Listed],
    config: StoreConfig,
    batch: Collection[str],
) -> dict[QueueId, Entries]:
    """Entries of the records in [start, stop) that lie behind the last entry of their queue."""
    parts: dict[QueueId, list[Entries]] = {}
    count = 0
    if start >= stop:
        return {}
    for segment, window, at in log.runs_from(start):
        at = at[at + segment.base < stop]
        if not len(at):
            break
        found = dispatch(
            Headers(window, at, segment.base),
            delay_levels_ms=config.delay_levels_ms,
            batch_topics=batch,
        )
        for queue, entries in _by_queue(found, listed):
            parts.setdefault(queue, []).append(entries)
            count += len(entries)
        if count > MOST_UNDISPATCHED:
            raise UndispatchedError(
                segment.path,
                offset=int(at[-1]) + segment.base,
                reason=f"over {MOST_UNDISPATCHED:,} records are in the log and in no queue",
                advice="The queues are lost or far behind. Make them anew in another store with "
                "rmqstore rebuild, or read the log itself with source=commitlog",
            )
    return {queue: concat_entries(entries) for queue, entries in parts.items()}


def _by_queue(
    found: Dispatched, listed: Mapping[QueueId, _Listed]
) -> Iterable[tuple[QueueId, Entries]]:
    known = np.array(
        [listed[queue].last_log_offset if queue in listed else -1 for queue in found.queues],
        dtype=np.int64,
    )
    rows = np.flatnonzero(found.log_offset > known[found.queue]) if len(found) else found.queue
    for number in np.unique(found.queue[rows]).tolist():
        mine = rows[found.queue[rows] == number]
        yield (
            found.queues[number],
            Entries(
                found.offset[mine],
                found.log_offset[mine],
                found.size[mine],
                found.tags_code[mine],
                found.count[mine],
            ),
        )


def _placed(entries: Entries, one: _Listed | None) -> Entries:
    """The entries with the queue offsets they get: one behind the other from the queue's end on.

    A record that asks for an offset before that end was there before (its topic was deleted and
    made anew) and is passed over, as the broker does; one that asks for a later one is not.
    """
    end = int(entries.offset[0])
    if one is not None and one.stop > one.first:
        end = _end_offset(one)
    entries = entries.take(entries.offset >= end)
    behind = np.cumsum(entries.count)
    return replace(entries, offset=end + behind - entries.count)


def _end_offset(one: _Listed) -> int:
    """The queue offset behind the last unit."""
    if not one.batch:
        return one.stop
    last = one.files.entries(one.stop - 1, one.stop)
    return int(last.offset[0] + last.count[0])


# --- from units to offsets ------------------------------------------------------------------------


def _state(one: _Listed, tail: Entries | None) -> QueueState:
    first = min(one.min_unit, one.stop)
    end = _end_offset(one) if one.stop > one.first else one.stop
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
