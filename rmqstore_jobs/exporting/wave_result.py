"""A wave of an export: what it put into the target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.queues import QueueId, QueueSlice

PARQUET, CSV, JSONL, DELTA = "parquet", "csv", "jsonl", "delta"
FORMATS = (PARQUET, CSV, JSONL, DELTA)


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """Queue offsets [start, stop) of a queue. `last_log_offset` identifies its last message."""

    topic: str
    queue_id: int
    start: int
    stop: int
    last_log_offset: int

    @property
    def slice(self) -> QueueSlice:
        """The range in the planner's type."""
        return QueueSlice(QueueId(self.topic, self.queue_id), self.start, self.stop)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file of messages: its path in the target, its size and rows, and its SHA-256."""

    path: str
    rows: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        """Raise ValueError for a path that leaves the target."""
        refuse_outside(self.path)


@dataclass(frozen=True, slots=True)
class Wave:
    """What one wave put into the target."""

    number: int
    store: str
    broker_name: str
    asked: Mapping[
        str, str
    ]  # options that determine rows and columns; the same for the whole target
    log_range: tuple[int, int]
    ranges: tuple[ExportedRange, ...]
    rows: int
    files: tuple[ExportedFile, ...]
    version: str
    written: str  # ISO 8601
    table: str = PARQUET
    delta_version: int | None = None  # version of the Delta table with this wave


def refuse_outside(path: str) -> None:
    """Raise ValueError unless `path`, with "/" between its names, stays in the folder it starts in."""
    if not all(map(is_plain_name, path.split("/"))):
        raise ValueError(f"{path!r} is not a path inside the target")


def joined(parts: Iterable[ExportedRange]) -> list[ExportedRange]:
    """The ranges in order, with adjacent ones merged."""
    found: list[ExportedRange] = []
    for part in sorted(parts, key=lambda p: (p.topic, p.queue_id, p.start)):
        last = found[-1] if found else None
        if last is not None and last.slice.queue == part.slice.queue and last.stop == part.start:
            found[-1] = replace(part, start=last.start)
        else:
            found.append(part)
    return found


def without(wanted: Iterable[QueueSlice], done: Iterable[QueueSlice]) -> Iterator[QueueSlice]:
    """The parts of the ranges `wanted` that are not in `done`."""
    by_queue: dict[QueueId, list[QueueSlice]] = {}
    for part in sorted(done):
        by_queue.setdefault(part.queue, []).append(part)
    for part in wanted:
        start = part.start
        for gone in by_queue.get(part.queue, ()):
            if gone.stop <= start or gone.start >= part.stop:
                continue
            if start < gone.start:
                yield QueueSlice(part.queue, start, gone.start)
            start = gone.stop
        if start < part.stop:
            yield QueueSlice(part.queue, start, part.stop)
