"""The manifest of an export: one file per wave that lists all its files, and a journal with the sum.

`TARGET/_manifest/000001.json` is written and flushed when all files of wave 1 are in `_staging`. Then its
files are moved to where readers see them, and the journal has the wave as done. So an interrupted process
leaves either a wave that is not in the manifest, which the next run deletes, or one whose moves the next run
completes. Readers ignore names with an underscore.

A Delta table changes only by its own log. Its waves are added here after their commit. The journal has
as begun the version after which a commit may be missing here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from rmq_store.files import journal
from rmq_store.files.durable_files import sync_folder
from rmq_store.files.journal import Journal, JournalError
from rmq_store.files.safe_paths import is_plain_name, refuse_links
from rmq_store.format.queues import QueueId, QueueSlice
from rmq_store.scan.parse_options import without_secrets

PARQUET, CSV, JSONL, DELTA = "parquet", "csv", "jsonl", "delta"
FORMATS = (PARQUET, CSV, JSONL, DELTA)
FOLDER, STAGING, LOCK, JOURNAL = "_manifest", "_staging", "_lock", "journal.json"
_WAVE = "a wave of an export"
_NO_WAVE = "Restore the file, or export into a new folder"


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """Queue offsets [start, stop) of a queue. `last_log_offset` and `last_digest` identify its last message,
    by the first bytes of its record; None where it could not be read."""

    topic: str
    queue_id: int
    start: int
    stop: int
    last_log_offset: int
    last_digest: str | None = None

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
class LeftOutMessages:
    """Messages of a queue inside of a wave's ranges that are not in its files, or only as damage.

    Without a queue it is unknown which one had them, and `count` is the number of damaged places.
    """

    count: int
    topic: str | None = None
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class Wave:
    """What one wave put into the target."""

    number: int
    store: str
    broker_name: str
    asked: Mapping[str, str]  # determines rows and columns; the same for the whole target
    log_range: tuple[int, int]
    ranges: tuple[ExportedRange, ...]
    rows: int
    files: tuple[ExportedFile, ...]
    version: str
    written: str  # ISO 8601
    table: str = PARQUET
    delta_version: int | None = None  # version of the Delta table with this wave
    left_out: tuple[LeftOutMessages, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOutOfWave:
    """What a wave left out, the wave's broker, and when it was written."""

    wave: int
    broker_name: str
    written: str
    left_out: tuple[LeftOutMessages, ...]

    def sentences(self) -> Iterator[str]:
        """A few words for each queue."""
        for one in self.left_out:
            queue = f" of {one.topic}/{one.queue_id}" if one.topic is not None else ""
            yield f"{one.count:,}{queue} of broker {self.broker_name!r} in wave {self.wave} of {self.written}"


@dataclass(frozen=True, slots=True)
class WaveBegun:
    """The wave that was started last in a Delta table, and the table's version before it."""

    wave: int
    delta_version: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The sum of all waves up to `number`, which the next export needs."""

    number: int = 0
    asked: Mapping[str, str] | None = None  # None before the first wave
    table: str = PARQUET
    delta_version: int | None = None
    files: int = 0
    rows: int = 0
    bytes: int = 0
    ranges: Mapping[str, tuple[ExportedRange, ...]] = field(default_factory=dict)  # by broker
    left_out: tuple[LeftOutOfWave, ...] = ()

    @property
    def selected(self) -> int:
        """The number of queue offsets in the ranges."""
        return sum(len(part.slice) for of_broker in self.ranges.values() for part in of_broker)

    def with_left_out(self, wave: Wave) -> Exported:
        """The sum with what a wave of it left out."""
        noted = LeftOutOfWave(wave.number, wave.broker_name, wave.written, wave.left_out)
        return replace(self, left_out=(*self.left_out, noted)) if wave.left_out else self

    def plus(self, wave: Wave) -> Exported:
        """The sum with the next wave."""
        before = self.ranges.get(wave.broker_name, ())
        exported = replace(
            self,
            number=wave.number,
            asked=wave.asked,
            table=wave.table,
            delta_version=wave.delta_version,
            files=self.files + len(wave.files),
            rows=self.rows + sum(file.rows for file in wave.files),
            bytes=self.bytes + sum(file.size for file in wave.files),
            ranges={**self.ranges, wave.broker_name: tuple(joined_ranges([*before, *wave.ranges]))},
        )
        return exported.with_left_out(wave)


class Manifest(Journal[WaveBegun, Exported]):
    """The content of a target. A context manager that locks the target against other processes.

    It neither keeps nor reads all waves: the journal has their sum up to some wave, and can be
    rebuilt from them.
    """

    of = "an export"
    types = (WaveBegun | None, tuple[Exported, ...])
    in_doubt = "Delete it, and the next run rebuilds it from the files of the waves"

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(target).absolute()
        self.folder = self.target / FOLDER
        super().__init__(self.folder / JOURNAL, self.target / LOCK)

    def __enter__(self) -> Manifest:
        with journal.as_access_error(self.target):
            self._refuse_other_content()
        for name in (FOLDER, STAGING, LOCK):
            refuse_links(self.target, name)
        return super().__enter__()

    def _refuse_other_content(self) -> None:
        if not self.target.exists() or self.folder.is_dir():
            return
        if not self.target.is_dir() or any(one.name != LOCK for one in self.target.iterdir()):
            advice = "No export wrote it. Name a new folder, or an export's target"
            journal.refuse_content(self.target, advice)

    def load(self) -> None:
        """Read the manifest, and complete what an interrupted process left."""
        with journal.as_access_error(self.target):
            self.folder.mkdir(exist_ok=True)
        super().load()
        paths = _wave_files(self.folder)
        for path in paths:
            if int(path.stem) > self.exported.number:
                self.done = (self.exported.plus(_load(path)),)
        if paths and self.exported.table != DELTA:
            self._move(_load(paths[-1]))
        shutil.rmtree(self.target / STAGING, ignore_errors=True)

    @property
    def exported(self) -> Exported:
        """The sum of the waves that are in the target."""
        return self.done[-1] if self.done else Exported()

    def waves(self) -> Iterator[Wave]:
        """The waves, oldest first, read one at a time."""
        yield from map(_load, _wave_files(self.folder))

    @property
    def staging(self) -> Path:
        """The folder where the next wave is written."""
        return self._staging_of(self.next_number)

    def _staging_of(self, number: int) -> Path:
        return self.target / STAGING / f"{number:06d}"

    @property
    def next_number(self) -> int:
        """The number of the next wave."""
        return self.exported.number + 1

    @property
    def asked(self) -> Mapping[str, str] | None:
        """The options of the export in the target; None if it is empty."""
        asked = self.exported.asked
        return None if asked is None else without_secrets(asked)

    @property
    def table(self) -> str | None:
        """The format of the target, one of FORMATS; None if it is empty."""
        if self.done:
            return self.exported.table
        return None if self.begun is None else DELTA

    def begin(self, delta_version: int) -> None:
        """Record that the next wave comes into the table after this version."""
        self.save(WaveBegun(self.next_number, delta_version), *self.done)

    def finished(self, broker_name: str) -> dict[QueueId, list[ExportedRange]]:
        """The ranges of a broker's queues that are in the target, in order."""
        ranges = self.exported.ranges.get(broker_name, ())
        return {q: list(parts) for q, parts in groupby(ranges, lambda part: part.slice.queue)}

    def commit(self, wave: Wave) -> None:
        """Add a wave. Its files, except those of Delta, are moved from `staging` to where readers are."""
        journal.write_entry(_wave_file(self.folder, wave.number), _WAVE, asdict(wave))
        if wave.table != DELTA:
            self._move(wave)
        self.save(None, self.exported.plus(wave))
        shutil.rmtree(self.target / STAGING, ignore_errors=True)

    def note_left_out(self, wave: Wave) -> None:
        """Add to the last wave what it left out, where that is known after it was committed."""
        journal.write_entry(_wave_file(self.folder, wave.number), _WAVE, asdict(wave))
        self.save(self.begun, self.exported.with_left_out(wave))

    def _move(self, wave: Wave) -> None:
        folders = set()
        for file in wave.files:
            refuse_links(self.target, *file.path.split("/"))
            final = self.target / file.path
            if final.exists():
                continue
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                (self._staging_of(wave.number) / file.path).rename(final)
            except FileNotFoundError:
                raise JournalError(
                    final,
                    reason=f"the file is missing, but wave {wave.number} of the export lists it",
                    advice="Restore it, or export into a new folder",
                ) from None
            folders.add(final.parent)
        for folder in folders:
            sync_folder(folder)


def _wave_file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _wave_files(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.json") if p.stem.isdigit()), key=lambda p: int(p.stem))


_decoded: Callable[[Mapping[str, Any]], Wave] = partial(journal.from_json_value, Wave)


def _load(path: Path) -> Wave:
    wave = journal.read_entry(path, _WAVE, _decoded, _NO_WAVE)
    assert wave is not None
    return wave


def to_json(wave: Wave) -> str:
    """A wave as one line of JSON."""
    return journal.entry_text(_WAVE, asdict(wave))


def from_json(path: Path, text: str) -> Wave:
    """The wave from the output of `to_json`. `path` is for the JournalError."""
    return journal.parse_entry(path, _WAVE, text, _decoded, _NO_WAVE)


def refuse_outside(path: str) -> None:
    """Raise ValueError unless `path`, with "/" between its names, stays in the folder it starts in."""
    if not all(map(is_plain_name, path.split("/"))):
        raise ValueError(f"{path!r} is not a path inside the target")


def joined_ranges(parts: Iterable[ExportedRange]) -> list[ExportedRange]:
    """The ranges in order, with adjacent ones merged."""
    joined: list[ExportedRange] = []
    for range_ in sorted(parts, key=lambda p: (p.topic, p.queue_id, p.start)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.slice.queue == range_.slice.queue
            and last.stop == range_.start
        ):
            joined[-1] = replace(range_, start=last.start)
        else:
            joined.append(range_)
    return joined


def ranges_without(
    wanted: Iterable[QueueSlice], done: Iterable[QueueSlice]
) -> Iterator[QueueSlice]:
    """The parts of the ranges `wanted` that are not in `done`."""
    by_queue = {q: list(parts) for q, parts in groupby(sorted(done), attrgetter("queue"))}
    for slice_ in wanted:
        start = slice_.start
        for gone in by_queue.get(slice_.queue, ()):
            if gone.stop <= start or gone.start >= slice_.stop:
                continue
            if start < gone.start:
                yield QueueSlice(slice_.queue, start, gone.start)
            start = gone.stop
        if start < slice_.stop:
            yield QueueSlice(slice_.queue, start, slice_.stop)
