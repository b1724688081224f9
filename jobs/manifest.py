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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.lock import TargetLock, flush_folder, write_whole
from rmq_store import StoreError
from rmq_store.consumequeue import QueueId
from rmq_store.planning import QueueSlice

FORMAT = 1
FOLDER, STAGING, LOCK = "_manifest", "_staging", "_lock"


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


class Manifest:
    """The waves in a target, oldest first. A context manager: inside, no other process has it."""

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(target).absolute()
        self.folder = self.target / FOLDER
        self.waves: list[Wave] = []
        self._lock: TargetLock | None = None

    def __enter__(self) -> Manifest:
        self._refuse_other_content()
        self._lock = TargetLock(self.target / LOCK)
        try:
            self.folder.mkdir(exist_ok=True)
            self.waves = [_load(path) for path in sorted(self.folder.glob("*.json"))]
            if self.waves:
                self._move(self.waves[-1])
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

    @property
    def staging(self) -> Path:
        """Where the next wave is written."""
        return self.target / STAGING / f"{self.next_number:06d}"

    @property
    def next_number(self) -> int:
        """The number of the next wave."""
        return self.waves[-1].number + 1 if self.waves else 1

    def finished(self, broker_name: str) -> dict[QueueId, list[ExportedRange]]:
        """The ranges of a broker's queues that are in the target, in order, those that touch joined."""
        found: dict[QueueId, list[ExportedRange]] = {}
        parts = [p for wave in self.waves if wave.broker_name == broker_name for p in wave.ranges]
        for part in sorted(parts, key=lambda p: (p.topic, p.queue_id, p.start)):
            of_queue = found.setdefault(part.slice.queue, [])
            if of_queue and of_queue[-1].stop == part.start:
                before = of_queue.pop()
                part = ExportedRange(
                    part.topic, part.queue_id, before.start, part.stop, part.last_log_offset
                )
            of_queue.append(part)
        return found

    def commit(self, wave: Wave) -> None:
        """Name a wave whose files are all in `staging`, and move them to where readers see them."""
        text = json.dumps({"format": FORMAT, **asdict(wave)}, ensure_ascii=False)
        write_whole(self.folder / f"{wave.number:06d}.json", text + "\n")
        self.waves.append(wave)
        self._move(wave)
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

    def totals(self) -> Counter[str]:
        """Waves, files, rows and bytes in the target."""
        files = [file for wave in self.waves for file in wave.files]
        return Counter(
            waves=len(self.waves),
            files=len(files),
            rows=sum(file.rows for file in files),
            bytes=sum(file.size for file in files),
        )


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


def _load(path: Path) -> Wave:
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError("written by another version")
        content["ranges"] = tuple(ExportedRange(**one) for one in content["ranges"])
        content["files"] = tuple(ExportedFile(**one) for one in content["files"])
        start, stop = content["log_range"]
        return Wave(**{**content, "log_range": (start, stop)})
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(
            path,
            reason=f"cannot be read as a part of a manifest: {error!r}",
            advice="Export into a new folder; what is in this one cannot be told from here",
        ) from error
