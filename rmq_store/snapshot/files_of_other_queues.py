"""Files of queues that list records of other queues: a folder or a file was copied, renamed or exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rmq_store.commitlog.log import CommitLog
from rmq_store.consumequeue.entry_of_record import compare, is_also_in, properties_of
from rmq_store.errors import MissingFileError
from rmq_store.format.array_types import Ints, Mask
from rmq_store.format.queue_entries import ListedEntries
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.loops.queue_entries import OTHER_QUEUE

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView

MOST_FILES = 500
"""Files of which two entries are compared with their records, where there are too many entries for all."""


class ForeignFiles(NamedTuple):
    """The entries [start, stop) of a queue, in files that are another queue's, and the place of the first."""

    start: int
    stop: int
    log_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FilesOfOtherQueues:
    """Such files by queue, in order. `is_all`: whether all files of the store were looked at."""

    by_queue: Mapping[QueueId, Sequence[ForeignFiles]] = field(default_factory=dict)
    is_all: bool = True

    @classmethod
    def among(
        cls, listed: ListedEntries, of_others: Mask, file: Ints, view: QueueView, *, is_all: bool
    ) -> FilesOfOtherQueues:
        """Those of entries that lead to a record, by the mask of `are_of_others`."""
        return cls(
            {
                queue: list(_runs(listed, rows, file, _WholeQueue.of(view, queue)))
                for queue, rows in listed.by_queue(np.flatnonzero(of_others))
            },
            is_all,
        )

    def count(self, queue: QueueId) -> int:
        """How many entries of a queue are in such files."""
        return sum(one.stop - one.start for one in self.by_queue[queue])


class _WholeQueue(NamedTuple):
    """The range of a queue, and how many entries a file of it has."""

    start: int
    stop: int
    per_file: int

    @classmethod
    def of(cls, view: QueueView, queue: QueueId) -> _WholeQueue:
        """Those of a queue of the view."""
        state = view.snapshot.queues[queue]
        return cls(state.min_offset, state.max_offset, view.units_per_file(queue))


def _runs(
    listed: ListedEntries, rows: Ints, file: Ints, whole: _WholeQueue
) -> Iterator[ForeignFiles]:
    """The files of some rows of one queue, those behind each other as one."""
    for run in np.split(rows, np.flatnonzero(np.diff(file[rows]) > 1) + 1):
        first, last = int(run[0]), int(run[-1])
        yield ForeignFiles(
            max(int(file[first]) * whole.per_file, whole.start),
            min(int(file[last] + 1) * whole.per_file, whole.stop),
            int(listed.log_offset[first]),
            int(listed.size[first]),
        )


def edges_of_files(view: QueueView, queues: Iterable[QueueId]) -> tuple[list[QueueSlice], bool]:
    """The first and the last entry of files with several, and whether these are all files.

    Else they are `MOST_FILES`, evenly among all.
    """
    files: list[QueueSlice] = []
    for queue in queues:
        start, stop, width = _WholeQueue.of(view, queue)
        at = start // width * width
        # A file that was renamed to a distant number leaves a very wide hole.
        for hole, behind in (*view.offsets_without_entry(queue), (stop, stop)):
            end = min(hole, stop)
            for first in range(at, end, width):
                files.append(QueueSlice(queue, max(start, first), min(first + width, end)))
            at = max(at, behind // width * width)
    files = [one for one in files if one.stop - one.start > 1]
    count = len(files)
    if count > MOST_FILES:
        files = [files[number * count // MOST_FILES] for number in range(MOST_FILES)]
    edges = [QueueSlice(one.queue, at, at + 1) for one in files for at in (one.start, one.stop - 1)]
    return edges, count <= MOST_FILES


def are_of_others(log: CommitLog, listed: ListedEntries, file: Ints) -> Mask:
    """Mask of the entries in files whose first and last one lead to records of other queues.

    `file`: the number of each entry's, in its queue. None of light queues and others of which the records
    say that these list them too.
    """
    first = np.diff(listed.queue, prepend=-1).astype(bool) | np.diff(file, prepend=-1).astype(bool)
    starts = np.flatnonzero(first)
    edges = np.concatenate([starts, np.append(starts[1:], len(listed))[: len(starts)] - 1])
    of_other = np.zeros(len(edges), dtype=bool)
    places = listed.log_offset[edges], listed.size[edges]
    try:
        for rows, headers in log.whole_headers(*places):
            some = listed.take(edges[rows])
            for row in np.flatnonzero(compare(some, headers) == OTHER_QUEUE).tolist():
                topic = some.queue_of(row).topic
                of_other[rows[row]] = not is_also_in(properties_of(headers, row), topic)
    except MissingFileError:
        of_other[:] = False  # it has expired since the store was opened
    strange = of_other[: len(starts)] & of_other[len(starts) :]
    found: Mask = strange[np.cumsum(first) - 1]
    return found
