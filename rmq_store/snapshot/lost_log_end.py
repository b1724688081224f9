"""The end of the log that is lost, and what lists messages after it.

A closed store whose log lost its end has a checkpoint with a later time than the last record, or queues and
an index that list messages after it. Of a store that was not closed, a crash may have lost them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_store.commitlog.misnamed_files import misnamed_files
from rmq_store.commitlog.record_or_gap import SoundRun
from rmq_store.consumequeue.entries_after_log import line_of_lost_end
from rmq_store.errors import DataLossError, LogOffset, StoreError, shown_path
from rmq_store.escaping import LOG
from rmq_store.format.byte_layout import CHECKPOINT_FILE
from rmq_store.format.queues import QueueId
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.snapshot.lost_queue_ends import LostQueueEnds
from rmq_store.snapshot.snapshot import Fact
from rmq_store.snapshot.unlisted_records import UnlistedRecords
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView

_SEARCHED = 64 << 20  # bytes of the log searched for the record of a queue's last entry
_SAID: set[Path] = set()  # stores of which was said what follows the end of their log


class LostLogEnd:
    """What the log of the snapshot of a view lacks at its end, as the rest of the store proves."""

    def __init__(self, view: QueueView, records: UnlistedRecords, ends: LostQueueEnds) -> None:
        self._view, self._log, self.snapshot = view, view.log, view.snapshot
        self._records, self._ends = records, ends

    def errors(self, last: Collection[QueueId] | None = None) -> Iterator[StoreError]:
        """The error of a log that lost its end, for a read that reaches the end of some queues; None: of
        the log.

        Says once of a store that these queues list messages after the log's end.
        """
        if (last is None or last) and self.lost_log is not None:
            yield self.lost_log
        if last is None and self.lost_log is None:  # else the entries that lead there are errors
            yield from self._listed_after_end()
        behind = self.entries_after_log.keys()
        if (behind if last is None else behind & last) and self._view.root not in _SAID:
            for line in self.lines():
                LOG.warning("%s: %s", shown_path(os.fspath(self._view.root)), line)

    def _listed_after_end(self) -> Iterator[StoreError]:
        """The errors of a log after whose end queues list messages, in a hole of it or in a closed store."""
        end = self.snapshot.log_end
        holes = [start for start, stop in self._log.chain.holes if stop > end]
        for start in filter(self.is_listed_beyond, holes):
            try:
                self._log.record_at(start)
            except StoreError as error:
                yield error
        if self.lost_end is not None:
            yield self.lost_end

    def errors_of_items(self, items: Sequence[int]) -> Iterator[StoreError]:
        """The error if items of the index lead to these log offsets after the log's end.

        Of a store that was not closed it is a warning: a crash lost the records, or a broker just wrote them.
        """
        count, first, end = counted(len(items), "message"), items[0], self.snapshot.log_end
        if self._ends.is_closed:
            yield DataLossError(
                self._log.path_at(end),
                offset=LogOffset(end),
                reason=f"the index lists {count}, the first at log offset {first}, after the log's end",
                advice=self._where_the_end_may_be,
            )
            return
        LOG.warning(
            "%s: the index lists %s after the log's end (%d), the first at log offset %d: a crash lost the "
            "end, or a broker just wrote it",
            shown_path(os.fspath(self._view.root)),
            *(count, end, first),
        )

    @Fact
    def lost_log(self) -> StoreError | None:
        """The error if the checkpoint of a closed store is later than the log's last record."""
        last = self.snapshot.last_record
        stored = 0 if last is None else self._log.store_time_at(last)
        if (
            stored is None
            or not self._ends.is_closed
            or (last is None and self._log.chain.segments)
        ):
            return None
        flushed = Checkpoint.read_or_zero(self._view.root / CHECKPOINT_FILE).newest_timestamp
        if flushed <= stored or flushed <= self._newest_near_end:
            return None
        # A clock that was set back leaves no entry without a record.
        proven = self.is_listed_after_end
        unless = "" if proven else ", unless a clock was set back"
        return DataLossError(
            self._log.path_at(self.snapshot.log_end),
            offset=LogOffset(self.snapshot.log_end),
            reason=f"the end of the log is lost{unless}: the checkpoint has a later time than the last record"
            + (", and queues list messages after it" if proven else ""),
            expected=f"a record stored at {shown_time(flushed)}",
            actual="no record" if last is None else f"the last one stored at {shown_time(stored)}",
            advice=self._where_the_end_may_be
            + ("" if proven else "; if a clock was set back, move the checkpoint away"),
        )

    @property
    def lost_end(self) -> StoreError | None:
        """The `lost_log`, or the error if queues of a closed store list messages after its log."""
        end = self.snapshot.log_end
        if self.lost_log is not None or not (self.is_listed_after_end and self._ends.is_closed):
            return self.lost_log
        if any(stop > end for _, stop in self._log.chain.holes):
            return None  # in a file that is missing
        return DataLossError(
            self._log.path_at(end),
            offset=LogOffset(end),
            reason="the end of the log is lost: queues list messages after it",
            advice=self._where_the_end_may_be,
        )

    @cached_property
    def _where_the_end_may_be(self) -> str:
        """Advice about a lost end of the log."""
        misnamed = [f"{file}. {file.advice}" for file in misnamed_files(self._log)]
        return misnamed[0] if misnamed else "Look for the rest in a replica or a copy"

    @Fact
    def entries_after_log(self) -> dict[QueueId, int]:
        """Of each queue, how many entries lead after the log's end, and to no record that is there now.

        Of a store that was not closed: the snapshot leaves them out, as a broker does at its next start. They
        are of messages that a crash lost, or of a log that lost its end, or was copied before the queues.
        """
        states = self.snapshot.queues.items()
        stops = {queue: one.file_stop + one.after_log for queue, one in states if one.after_log}
        if not stops:
            return {}
        log = self._log.listed_again()  # a broker may have begun a file since
        try:
            return self._view.entries_after(log, stops)
        finally:
            log.chain.close()

    def lines(self) -> Iterator[str]:
        """Sentences about the `entries_after_log`, and about the files of the log that may explain them.

        Who takes them says them: no read of the store does then.
        """
        if self.entries_after_log:
            _SAID.add(self._view.root)
            yield line_of_lost_end(self.entries_after_log, self.snapshot.log_end)
            yield from (f"{file}. {file.advice}" for file in misnamed_files(self._log))

    def is_listed_beyond(self, place: int) -> bool:
        """Whether the last entry of a queue leads to a log offset at or after `place`."""
        return self.snapshot.last_listed >= place

    @Fact
    def is_listed_after_end(self) -> bool:
        """Whether the last entry of a queue leads after the log's end, and is not just damaged: the log has
        no whole record for its queue offset."""
        end, states = self.snapshot.log_end, self.snapshot.queues
        beyond = (
            queue
            for queue, state in states.items()
            if state.min_offset < state.max_offset
            and self._view.log_offset_of(queue, state.max_offset - 1) >= end
        )
        return self.is_listed_beyond(end) and not all(map(self._has_last, beyond))

    def _has_last(self, queue: QueueId) -> bool:
        """Whether the log has a whole record of the last queue offset of a queue, near those before it."""
        start = max(self._records.last_listed(queue), self.snapshot.log_start)
        stop = min(start + _SEARCHED, self.snapshot.log_end)
        lost = self._records.search({queue}, start, stop).between.get(queue)
        return lost is not None and lost.stop >= self.snapshot.queues[queue].max_offset

    @property
    def _newest_near_end(self) -> int:
        """The latest store time (ms) of the last bytes: a clock may have been set back since."""
        runs = (p for p in self._records.pieces(*self._ends.last_bytes) if isinstance(p, SoundRun))
        stamps = (run.headers.store_timestamp.max() for run in runs)
        return max(map(int, stamps), default=0)
