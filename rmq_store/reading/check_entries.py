"""Check the entries of a batch against their records: size, queue, queueOffset and CRC.

An entry that leads to no record, to one of another queue or at another queue offset, or to one with a wrong
CRC, becomes an error, and its row is left out. But one that moved up is sound: a broker that rebuilds a queue
of a log that lost records leaves no gap, and later messages get smaller queue offsets.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import bodies_with_crcs, stored_topics
from rmq_store.commitlog.check_crcs import wrong_crc_rows
from rmq_store.commitlog.headers import Headers
from rmq_store.consumequeue.entry_of_record import compare, is_also_in, other_queues, properties_of
from rmq_store.errors import CorruptQueueError, ListedAt, LogOffset, StoreError, shown_path
from rmq_store.escaping import LOG
from rmq_store.format.array_types import Bytes, Ints, Mask
from rmq_store.format.queue_entries import ListedEntries
from rmq_store.format.queues import QueueId
from rmq_store.loops.queue_entries import OTHER_QUEUE, OTHER_RECORD, SAME
from rmq_store.reading.queue_slice_entries import EntriesOfQueues

SoundRows = tuple[ListedEntries, Headers, pa.Array | None]
"""Rows, the headers of their records, and their bodies as stored if these are known."""

OTHER_OFFSET = "lists a record at another queue offset than its own"
"""The end of the reason for an entry whose record says another queueOffset."""
NOT_OF_QUEUE = "lists a record of another queue"
"""The end of the reason for an entry whose record names another queue."""

_SAID: set[str] = set()  # stores of which was said that messages moved up in their queues


class EntryCheck:
    """Checks entries of `view` against the records in its log. `damaged` takes the errors of the others."""

    def __init__(
        self,
        view: EntriesOfQueues,
        damaged: Callable[[StoreError, ListedAt | None], None],
        *,
        reads_bodies: bool,
        check_crc: bool,
        copy_bodies: bool,
    ) -> None:
        """`reads_bodies`: whether the caller reads the bytes of bodies. `check_crc`: compare the CRC of
        bodies; with `copy_bodies` the copies that this makes are returned."""
        self._view, self._log, self._damaged = view, view.log, damaged
        self._reads_bodies = reads_bodies
        self._check_crc, self._copy_bodies = check_crc, copy_bodies

    def sound_rows(self, window: Bytes, first: int, rows: ListedEntries) -> SoundRows:
        """The rows with intact records; other rows are damage."""
        headers = Headers(window, rows.log_offset - first, first)
        found = compare(rows, headers)
        if OTHER_RECORD in found:
            self.explain(rows, np.flatnonzero(found == OTHER_RECORD))
            whole = np.flatnonzero(found != OTHER_RECORD)
            rows, headers, found = rows.take(whole), headers.take(whole), found[whole]
        counts = self._log.chain.counts
        counts.checked += len(headers)
        counts.bytes += int(headers.total.sum())
        if not self._reads_bodies:
            counts.bytes -= int(headers.body_length.sum())
        wrong = self._disproved(rows, headers, found) if found.any() else found != SAME
        stored = None
        if self._check_crc and len(rows):
            bad_crc, stored = self._checked(headers)
            self.explain(rows, bad_crc[~wrong[bad_crc]])
            wrong[bad_crc] = True
        if not wrong.any():
            return rows, headers, stored
        keep = np.flatnonzero(~wrong)
        return rows.take(keep), headers.take(keep), None

    def _disproved(self, rows: ListedEntries, headers: Headers, found: Bytes) -> Mask:
        """The rows with records of another queue, or of another place in it, which are reported."""
        strangers, numbers = [], headers.queue_offset.copy()
        for row in np.flatnonzero(found == OTHER_QUEUE).tolist():
            own = _offset_in(rows, headers, row)
            if own is None:
                strangers.append(row)
            else:
                numbers[row] = own
        # Entries of records that no queue lists have the queue offset -1.
        renumbered: Mask = (numbers != rows.offset) & (rows.offset >= 0)
        renumbered[strangers] = False
        if renumbered.any():
            renumbered &= ~self._moved_up(rows, numbers)
        wrong: Mask = renumbered.copy()
        wrong[strangers] = True
        for row in np.flatnonzero(wrong).tolist():
            if renumbered[row]:
                error = self._renumbered(rows, row, int(numbers[row]))
            else:
                error = self._stranger(rows, headers, row)
            self._damaged(error, rows.entry(row))
        return wrong

    def _checked(self, headers: Headers) -> tuple[Ints, pa.Array | None]:
        """Rows with a wrong CRC, and the bodies of all rows if they come with the check."""
        copied = self._log.copied
        if not self._copy_bodies:
            return wrong_crc_rows(headers, copied=copied), None
        bodies, crcs = bodies_with_crcs(headers)
        return wrong_crc_rows(headers, crcs, copied=copied), bodies

    def explain(self, rows: ListedEntries, bad: Ints) -> None:
        """Report each bad row. The slower decoder reads it again, because it says what is wrong."""
        for row in bad.tolist():
            where, size = int(rows.log_offset[row]), int(rows.size[row])
            try:
                found = self._log.record_at(where)
            except StoreError as error:
                self._damaged(error, rows.entry(row))
                continue
            self._damaged(
                CorruptQueueError(
                    self._log.path_at(where),
                    offset=LogOffset(where),
                    reason=f"queue {rows.queue_of(row).name} lists a record of another size",
                    expected=size,
                    actual=found.total_size,
                    advice="The entry is left from before the log was cut, or damaged",
                ),
                rows.entry(row),
            )

    def _moved_up(self, rows: ListedEntries, numbers: Ints) -> Mask:
        """The rows whose records have larger queue offsets than their entries, in a queue that is in order.

        Such an entry leads behind the record of the entry before, and to before that of the next. A queue
        that lists a record at its own queue offset too is not moved: a file of it was overwritten.
        """
        moved = np.zeros(len(rows), dtype=bool)
        larger = (numbers > rows.offset) & (rows.offset >= 0)
        for number in np.unique(rows.queue[larger]).tolist():
            queue, mine = rows.queues[number], np.flatnonzero(larger & (rows.queue == number))
            if self._view.is_dense(queue):
                for near in rows.near_rows(mine):
                    ends = near[[0, -1]]
                    places = zip(
                        numbers[ends].tolist(), rows.log_offset[ends].tolist(), strict=True
                    )
                    if not any(self._lists(queue, *place) for place in places):
                        moved[near] = self._in_order(queue, rows.take(near))
        if moved.any():
            self._say_moved(rows, numbers, int(moved.argmax()))
        return moved

    def _lists(self, queue: QueueId, offset: int, place: int) -> bool:
        return place in self._view.slice_entries(queue, offset, offset + 1).log_offset

    def _in_order(self, queue: QueueId, rows: ListedEntries) -> Mask:
        """Which of some rows of one queue follow the entry before them in the log, and precede the next."""
        start, stop = int(rows.offset[0]) - 1, int(rows.offset[-1]) + 2
        near = self._view.slice_entries(queue, max(start, 0), stop)
        near = near.take(near.points_to_record)
        if not np.isin(rows.offset, near.offset).all():  # their file has expired meanwhile
            return np.zeros(len(rows), dtype=bool)
        at = np.searchsorted(near.offset, rows.offset)
        ends = np.append(near.log_offset + near.size, 0)  # none is before the first
        begins = np.append(near.log_offset, np.iinfo(np.int64).max)
        follows: Mask = ends[at - 1] <= rows.log_offset
        return follows & (rows.log_offset + rows.size <= begins[at + 1])

    def _say_moved(self, rows: ListedEntries, numbers: Ints, row: int) -> None:
        """Say once of a store that messages have other queue offsets than their records say."""
        store = os.fspath(self._log.chain.folders[0])
        if store in _SAID:
            return
        _SAID.add(store)
        LOG.warning(
            "%s: queue %s lists the record of queue offset %d at %d, as after a rebuild of a log that had "
            "lost records. Rows have the queue offsets by which consumers get messages. Other queues may "
            "have moved too: rmqstore verify names them",
            shown_path(self._view.folder(rows.queue_of(row))),
            rows.queue_of(row).name,
            int(numbers[row]),
            int(rows.offset[row]),
        )

    def _stranger(self, rows: ListedEntries, headers: Headers, row: int) -> CorruptQueueError:
        topic = stored_topics(headers.take(np.array([row])))[0].as_py()
        return CorruptQueueError(
            self._log.path_at(int(rows.log_offset[row])),
            offset=LogOffset(int(rows.log_offset[row])),
            reason=f"queue {rows.queue_of(row).name} {NOT_OF_QUEUE}",
            expected=rows.queue_of(row).name,
            actual=f"{topic}/{int(headers.queue_id[row])}",
            advice="The entry is damaged, left from before the log was cut, or in a file or folder that was "
            "renamed. Rebuild the queues: rmqstore rebuild STORE --to NEW",
        )

    def _renumbered(self, rows: ListedEntries, row: int, own: int) -> CorruptQueueError:
        return CorruptQueueError(
            self._log.path_at(int(rows.log_offset[row])),
            offset=LogOffset(int(rows.log_offset[row])),
            reason=f"queue {rows.queue_of(row).name} {OTHER_OFFSET}",
            expected=f"queue offset {int(rows.offset[row])}",
            actual=own,
            advice="The entry is damaged, or was written after a loss of entries. Read with "
            "source=commitlog, which numbers messages as their records say",
        )


def _offset_in(rows: ListedEntries, headers: Headers, row: int) -> int | None:
    """The queue offset that a record has in a queue other than its own (LMQ), as its properties say.

    None if it does not name the queue. One that gives no offset is believed to be in its place.
    """
    found = properties_of(headers, row)
    (topic, queue_id), listed_at = rows.queue_of(row), int(rows.offset[row])
    if not is_also_in(found, topic):
        return None
    queues = other_queues(found, queue_id)
    offsets = [offset for queue, offset in queues if queue.topic == topic]
    return listed_at if listed_at in offsets else next(iter(offsets), listed_at)
