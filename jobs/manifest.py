"""What an export has put into its target: a file for each wave, and nothing that it does not name.

`TARGET/_manifest/000001.json` is written, whole and flushed, when all Parquet of wave 1 stands in
`_staging`; only then are its files moved to where readers see them. So a process killed at any point
leaves either a wave that is not in the manifest, which is thrown away, or one whose moves are finished
by the next run. Names with an underscore are hidden from readers of Parquet.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs.lock import TargetLock, flush_folder, write_whole
from rmq_store import StoreError
from rmq_store.consumequeue import QueueId
from rmq_store.planning import QueueSlice

FORMAT = 1
FOLDER, STAGING, LOCK = "_manifest", "_staging", "_lock"
SUM = "_sum.json"


class ManifestError(StoreError):
    """What the manifest of a target says forbids what was asked for."""

    code = "RMQSTORE_MANIFEST"


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """Queue offsets [start, stop) of a queue; `last_log_offset` tells its last message from others."""

    topic: str
    queue_id: int
    start: int
    stop: int
    last_log_offset: int

    @property
    def slice(self) -> QueueSlice:
        """As the planner has it."""
        return QueueSlice(QueueId(self.topic, self.queue_id), self.start, self.stop)


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A Parquet file: where it is under the target, what is in it, and its SHA-256."""

    path: str
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Wave:
    """What one wave put into the target."""

    number: int
    store: str
    broker_name: str
    asked: Mapping[str, str]  # options that determine rows and columns: one target, one answer
    log_range: tuple[int, int]
    ranges: tuple[ExportedRange, ...]
    rows: int
    files: tuple[ExportedFile, ...]
    version: str
    written: str  # ISO 8601


@dataclass(slots=True)
class _Sum:
    """All waves up to `number` added up: what the next export has to know of them."""

    number: int = 0
    asked: Mapping[str, str] | None = None  # None before the first wave
    totals: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[ExportedRange]] = field(default_factory=dict)  # by broker

    def add(self, wave: Wave) -> None:
        """Add the next wave."""
        self.number, self.asked = wave.number, wave.asked
        more = {
            "waves": 1,
            "files": len(wave.files),
            "rows": sum(file.rows for file in wave.files),
            "bytes": sum(file.size for file in wave.files),
        }
        self.totals = {name: self.totals.get(name, 0) + count for name, count in more.items()}
        before = self.ranges.get(wave.broker_name, [])
        self.ranges[wave.broker_name] = joined([*before, *wave.ranges])


class Manifest:
    """What is in a target. A context manager: inside, no other process has it.

    The waves are not held in memory, nor all read: `_sum.json` has what they come to, as far as
    it was written, and can be made anew from them.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(target).absolute()
        self.folder = self.target / FOLDER
        self._sum = _Sum()
        self._lock: TargetLock | None = None

    def __enter__(self) -> Manifest:
        self._refuse_other_content()
        self._lock = TargetLock(self.target / LOCK)
        try:
            self.folder.mkdir(exist_ok=True)
            self._read()
            shutil.rmtree(self.target / STAGING, ignore_errors=True)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def _refuse_other_content(self) -> None:
        if not self.target.exists() or self.folder.is_dir():
            return
        if not self.target.is_dir() or any(one.name != LOCK for one in self.target.iterdir()):
            raise ManifestError(
                self.target,
                reason="there is something here already that no export has made",
                advice="Name a new folder, or one that an export made",
            )

    def _read(self) -> None:
        self._sum = _load_sum(self.folder / SUM)
        paths = _wave_files(self.folder)
        for path in paths:
            if int(path.stem) > self._sum.number:
                self._sum.add(_load(path))
        if paths:
            self._move(_load(paths[-1]))

    def waves(self) -> Iterator[Wave]:
        """The waves, oldest first, each read when it is asked for."""
        yield from map(_load, _wave_files(self.folder))

    @property
    def staging(self) -> Path:
        """Where the next wave is written."""
        return self.target / STAGING / f"{self.next_number:06d}"

    @property
    def next_number(self) -> int:
        """The number of the next wave."""
        return self._sum.number + 1

    @property
    def asked(self) -> Mapping[str, str] | None:
        """The options of what is there; None where nothing is."""
        return self._sum.asked

    @property
    def totals(self) -> Mapping[str, int]:
        """Waves, files, rows and bytes in the target."""
        return {**dict.fromkeys(("waves", "files", "rows", "bytes"), 0), **self._sum.totals}

    def finished(self, broker_name: str) -> dict[QueueId, list[ExportedRange]]:
        """The ranges of a broker's queues that are in the target, in order."""
        found: dict[QueueId, list[ExportedRange]] = {}
        for part in self._sum.ranges.get(broker_name, ()):
            found.setdefault(part.slice.queue, []).append(part)
        return found

    def commit(self, wave: Wave) -> None:
        """Name a wave whose files are all in `staging`, and move them to where readers see them."""
        text = json.dumps({"format": FORMAT, **asdict(wave)}, ensure_ascii=False)
        write_whole(self.folder / f"{wave.number:06d}.json", text + "\n")
        self._sum.add(wave)
        self._move(wave)
        write_whole(self.folder / SUM, json.dumps({"format": FORMAT, **asdict(self._sum)}))
        shutil.rmtree(self.target / STAGING, ignore_errors=True)

    def _move(self, wave: Wave) -> None:
        """Move what is not moved yet; a file that is nowhere is an error."""
        staged = self.target / STAGING / f"{wave.number:06d}"
        folders = set()
        for file in wave.files:
            final = self.target / file.path
            if final.exists():
                continue
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                (staged / file.path).rename(final)
            except FileNotFoundError:
                raise ManifestError(
                    final,
                    reason=f"wave {wave.number} of the export names this file, and it is gone",
                    advice="Put it back, or export into a new folder",
                ) from None
            folders.add(final.parent)
        for folder in folders:
            flush_folder(folder)


def joined(parts: Iterable[ExportedRange]) -> list[ExportedRange]:
    """In order, those that touch made one."""
    found: list[ExportedRange] = []
    for part in sorted(parts, key=lambda p: (p.topic, p.queue_id, p.start)):
        last = found[-1] if found else None
        if last is not None and last.slice.queue == part.slice.queue and last.stop == part.start:
            found[-1] = replace(part, start=last.start)
        else:
            found.append(part)
    return found


def without(wanted: Iterable[QueueSlice], done: Iterable[QueueSlice]) -> Iterator[QueueSlice]:
    """What of the ranges `wanted` is not in `done`."""
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


def _wave_files(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.json") if p.stem.isdigit()), key=lambda p: int(p.stem))


def _load(path: Path) -> Wave:
    content = _content(path)
    try:
        content["ranges"] = tuple(ExportedRange(**one) for one in content["ranges"])
        content["files"] = tuple(ExportedFile(**one) for one in content["files"])
        start, stop = content["log_range"]
        return Wave(**{**content, "log_range": (start, stop)})
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def _load_sum(path: Path) -> _Sum:
    if not path.exists():
        return _Sum()
    content = _content(path)
    try:
        content["ranges"] = {
            broker: [ExportedRange(**one) for one in parts]
            for broker, parts in content["ranges"].items()
        }
        return _Sum(**content)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def _content(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError("written by another version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error
    return content


def _unreadable(path: Path, error: Exception) -> ManifestError:
    return ManifestError(
        path,
        reason=f"cannot be read as a part of a manifest: {error!r}",
        advice=f"If it is {SUM}, delete it: it is made anew. Else export into a new folder",
    )
