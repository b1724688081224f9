"""What a job selects in a store: pinned stores, and queue ranges as options of the source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.scan.parse_options import parse_options
from rmq_store.scan.scan import pinned_scan
from rmq_store.scan.tasks import PinnedStore, StoreScan
from rmq_store.snapshot.ranges import LogSlice, pieces_of


def scan_of(store: str, options: Mapping[str, str]) -> StoreScan:
    """The scan of what the source's options select in a store as it is now. Raises StoreError.

    Jobs take queues as they are, with every message of a compaction topic.
    """
    return pinned_scan(parse_options({"path": store, **options, "compacted": "false"}))


def pinned_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store as it is now, with all queues, including system queues. Raises StoreError."""
    # A table is about the whole store. A scan of messages would pin only the selected queues.
    return scan_of(store, {**options, "table": "queues"}).store


def log_of_store(store: str, options: Mapping[str, str]) -> PinnedStore:
    """A store with only its log; its queues are not read. Raises StoreError."""
    return scan_of(store, {**options, "source": "commitlog"}).store


def pieces_in(scan: StoreScan, wave: LogSlice) -> list[QueueSlice]:
    """The parts of the ranges of a scan in a range of the log."""
    with scan.store.open() as store:
        return list(pieces_of(scan.ranges, wave, store.view.offset_at_log))


def range_options(ranges: Sequence[QueueSlice]) -> dict[str, str]:
    """The options that select `ranges`: at least one range, and at most one per queue."""
    return options_of_queues((), {part.queue: (part.start, part.stop) for part in ranges})


def options_of_queues(
    queues: Iterable[QueueId], offsets: Mapping[QueueId, tuple[int, int]]
) -> dict[str, str]:
    """The options of the source that select single queues, and those with ranges of offsets."""
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for topic, queue_id in dict.fromkeys((*queues, *offsets)):
        assigned.setdefault(topic, []).append(queue_id)
    for (topic, queue_id), (start, stop) in offsets.items():
        starts.setdefault(topic, {})[str(queue_id)] = start
        stops.setdefault(topic, {})[str(queue_id)] = stop
    found = {"assign": assigned, "startingOffsets": starts, "endingOffsets": stops}
    return {name: json.dumps(by_topic) for name, by_topic in found.items() if by_topic}
