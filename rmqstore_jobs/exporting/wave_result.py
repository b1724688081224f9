"""A wave of an export: what it put into the target, as objects and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rmq_store import StoreError
from rmq_store.errors import CorruptConfigError
from rmq_store.files.durable_files import LARGEST_JSON, read_file
from rmq_store.files.safe_paths import is_plain_name
from rmq_store.format.queues import QueueId, QueueSlice
from spark_source.options.secret import without_secrets

FORMAT = 1
PARQUET, CSV, JSONL, DELTA = "parquet", "csv", "jsonl", "delta"
FORMATS = (PARQUET, CSV, JSONL, DELTA)


class ManifestError(StoreError):
    """The manifest of a target does not allow the requested export."""

    code = "RMQSTORE_MANIFEST"


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """Queue offsets [start, stop) of a queue. `last_log_offset` identifies its last message."""

    topic: str
    queue_id: int
    start: int
    stop: int
    last_log_offset: int

    def __post_init__(self) -> None:
        """Raise ValueError for other numbers than integers."""
        _require_integers(self.queue_id, self.start, self.stop, self.last_log_offset)

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
        """Raise ValueError for a path that leaves the target, and other numbers than integers."""
        _require_integers(self.rows, self.size)
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

    def __post_init__(self) -> None:
        """Raise ValueError for other numbers than integers."""
        _require_integers(self.number, self.rows, *self.log_range)


def refuse_outside(path: str) -> None:
    """Raise ValueError unless `path`, with "/" between its names, stays in the folder it starts in."""
    if not all(map(is_plain_name, path.split("/"))):
        raise ValueError(f"{path!r} is not a path inside the target")


def _require_integers(*numbers: object) -> None:
    for number in numbers:
        if type(number) is not int:
            raise ValueError(f"{number!r} is not an integer")


def to_json(wave: Wave) -> str:
    """A wave as one line of JSON."""
    return json.dumps({"format": FORMAT, **asdict(wave)}, ensure_ascii=False)


def from_json(path: Path, text: str) -> Wave:
    """The wave from the output of `to_json`. `path` is for the ManifestError."""
    content = content_of(path, text)
    try:
        content["ranges"] = tuple(ExportedRange(**one) for one in content["ranges"])
        content["files"] = tuple(ExportedFile(**one) for one in content["files"])
        content["asked"] = without_secrets(content["asked"])  # earlier versions kept them
        start, stop = content["log_range"]
        return Wave(**{**content, "log_range": (start, stop)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, error) from error


def content_of(path: Path, text: str) -> dict[str, Any]:
    """The fields of a manifest file. Raises ManifestError."""
    try:
        content: dict[str, Any] = json.loads(text)
        if content.pop("format") != FORMAT:
            raise ValueError("written by another version")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(path, error) from error
    return content


def text_of(path: Path) -> str:
    """The text of a manifest file. Raises ManifestError for a FIFO, a device, or too large a file."""
    try:
        return read_file(path, LARGEST_JSON).decode("utf-8")
    except (CorruptConfigError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ManifestError:
    """The error for a manifest file that cannot be read."""
    return ManifestError(
        path,
        reason=f"cannot be read as a manifest file: {error!r}",
        advice="If it is _sum.json, delete it, and the next run rebuilds it. Else export into a "
        "new folder",
    )


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
