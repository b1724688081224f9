"""Find messages missing at the start or at the end of a queue.

Nothing in a queue file says where the queue ends, so a lost end looks like a shorter queue. The proof is
in other files: bytes after the last entry, offsets that consumers have reached, records near the ends of the
log, places that items of the index name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rmq_store.commitlog.walk import end_now
from rmq_store.config.consumer_offsets import read_consumer_offsets, read_delay_offsets
from rmq_store.consumequeue.entry_of_record import other_queues
from rmq_store.errors import StoreError
from rmq_store.escaping import LOG
from rmq_store.format.properties import decode_properties
from rmq_store.format.queues import QueueId
from rmq_store.format.topics import LMQ_PREFIX
from rmq_store.index.index_file_reader import open_index_files
from rmq_store.markers.lock_file import was_closed
from rmq_store.snapshot.covered_range import LogRange, light_queues
from rmq_store.snapshot.lost_queues import LOOKED_AT
from rmq_store.snapshot.queue_range import QueueState
from rmq_store.snapshot.snapshot import Fact
from rmq_store.snapshot.undispatched_records import guess_record
from rmq_store.snapshot.unlisted_records import Missing, MissingRecords, UnlistedRecords

if TYPE_CHECKING:
    from rmq_store.snapshot.queue_view import QueueView


_SEARCHED = 64 << 20  # bytes of the log searched for what a consumer's offset says was in a queue
_ITEMS_TRIED = 64  # of all index files; each is a place of the disk


class LostQueueEnds:
    """What queues of the snapshot of a view lack at their ends, as the rest of the store proves."""

    def __init__(self, view: QueueView, records: UnlistedRecords) -> None:
        self._view, self._log, self.snapshot = view, view.log, view.snapshot
        self._records = records
        self._searched: dict[QueueId, Missing | None] = {}

    @property
    def _states(self) -> Mapping[QueueId, QueueState]:
        return self.snapshot.queues

    def near(
        self,
        first: set[QueueId],
        last: set[QueueId],
        covered: LogRange | None,
        *,
        all_seen: bool,
        sound: bool,
    ) -> MissingRecords:
        """What queues lack near the ends of the log, but for what a look at the `covered` range finds.

        An entry of another queue, as of a light one or one that is not `sound`, may list the bytes of a
        record: then a look at those that none lists does not see that its queue lost it. `all_seen`: there
        is one at all of the log.
        """
        light = light_queues(self._states)
        if covered is not None and sound and not light and (covered.alone or all_seen):
            return MissingRecords()
        near = MissingRecords(self._ends_near(first, last, all_seen=all_seen))
        if covered is not None and sound:
            near.ends = {
                queue: lost
                for queue, lost in near.ends.items()
                if queue in light
                or (light and self._is_listed_elsewhere(lost))
                or not (covered.alone or covered.covers(lost.log_offset))
            }
        if last and (light or not all_seen):
            near.further = self.at_end.further
            near.inside = [
                one
                for one in self.at_end.inside
                if one.at.topic.startswith(LMQ_PREFIX)
                or not (all_seen or (covered and covered.covers(one.at.log_offset)))
            ]
        return near

    def _ends_near(
        self, first: set[QueueId], last: set[QueueId], *, all_seen: bool
    ) -> dict[QueueId, Missing]:
        missing: dict[QueueId, Missing] = {}
        if any(self.starts_late(queue) for queue in first):
            missing |= {queue: lost for queue, lost in self._at_start.items() if queue in first}
        if last and self.is_closed:
            missing |= {queue: lost for queue, lost in self.at_end.ends.items() if queue in last}
        if last - missing.keys() and self.is_closed and not all_seen:
            listed = self._at_items.items()
            missing |= {q: lost for q, lost in listed if q in last and q not in missing}
        for queue in sorted(last - missing.keys()):
            lost = self.short_of_consumers(queue)
            if lost is not None:
                missing[queue] = lost
        return missing

    def _is_listed_elsewhere(self, lost: Missing) -> bool:
        """Whether the first of these records is in an entry of one of its other queues; True if unknown."""
        try:
            record = self._log.record_at(lost.log_offset)
            others = other_queues(decode_properties(record.properties), record.queue_id)
            return any(self._lists(queue, at, lost.log_offset) for queue, at in others)
        except StoreError:
            return True

    def _lists(self, queue: QueueId, offset: int, log_offset: int) -> bool:
        state = self._states.get(queue)
        if state is None or not state.min_offset <= offset < state.max_offset:
            return False
        return log_offset in self._view.entries(queue, offset, offset + 1).log_offset.tolist()

    def starts_late(self, queue: QueueId) -> bool:
        """Whether all files before the queue's first are gone, and none of its records has expired."""
        state = self._states[queue]
        return not state.batch and 0 < state.file_start == state.min_offset < state.file_stop

    @Fact
    def _at_start(self) -> dict[QueueId, Missing]:
        start, end = self.snapshot.log_start, self.snapshot.log_end
        near = min(start + LOOKED_AT, end)
        return self._records.search(self.snapshot.queues.keys(), start, near).ends

    @Fact
    def at_end(self) -> MissingRecords:
        """What the last bytes of the log have, and queues lack."""
        return self._records.search(self.snapshot.queues.keys(), *self.last_bytes)

    @cached_property
    def reached(self) -> dict[QueueId, int]:
        """The queue offset up to which consumers, and the broker's delay service, have read."""
        reached: dict[QueueId, int] = {}
        try:
            groups = [
                *read_consumer_offsets(self._view.root).values(),
                read_delay_offsets(self._view.root),
            ]
        except StoreError as error:  # damaged: proves nothing
            LOG.warning("the ends of queues are not compared with consumer offsets: %s", error)
            return {}
        for topics in groups:
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    queue = QueueId(topic, queue_id)
                    reached[queue] = max(offset, reached.get(queue, 0))
        return reached

    def short_of_consumers(self, queue: QueueId) -> Missing | None:
        """Records after the last entry of a queue whose consumers have read more than it has.

        The offset alone proves nothing: the topic may have been deleted and created again.
        """
        state, end = self._states[queue], self.snapshot.log_end
        if self.reached.get(queue, 0) <= state.max_offset and not state.bytes_after:
            return None
        if queue not in self._searched:
            start = max(self._records.last_listed(queue), self.snapshot.log_start)
            stop = min(start + _SEARCHED, end)
            self._searched[queue] = self._records.search({queue}, start, stop).ends.get(queue)
            if self._searched[queue] is None and stop < end and not state.bytes_after:
                LOG.warning(
                    "queue %s has offsets up to %d, but a consumer is at %d: its end may be "
                    "lost, or the topic was created again. Read with verifyQueue=true to find out",
                    queue.name,
                    state.max_offset,
                    self.reached[queue],
                )
        return self._searched[queue]

    @Fact
    def _at_items(self) -> dict[QueueId, Missing]:
        """What some items of the index lead to; none where each of them costs a request."""
        snapshot = self.snapshot
        if self._log.chain.cost.looks_at_once > 1:
            return {}
        found: set[int] = set()
        try:
            files = open_index_files(self._view.root, self._view.config)
            for file in files:
                found.update(file.sampled_places(max(1, _ITEMS_TRIED // len(files))))
        except StoreError:
            return {}  # a damaged index proves nothing; verify reports it
        inside = [at for at in sorted(found) if snapshot.log_start <= at < snapshot.log_end]
        places = np.array(inside[:_ITEMS_TRIED], dtype=np.int64)
        return self._records.search_at(places).ends

    @cached_property
    def last_bytes(self) -> tuple[int, int]:
        end = self.snapshot.log_end
        return guess_record(self._log, end - LOOKED_AT, end), end

    @cached_property
    def is_closed(self) -> bool:
        """Whether nothing has written the store since its last clean stop, which ended it."""
        snapshot = self.snapshot
        if not snapshot.closed or not was_closed(self._view.root):
            return False
        return end_now(self._log, snapshot.log_end) == snapshot.log_end
