"""The manifest of an export: one file per wave that lists all its files in the target.

`TARGET/_manifest/000001.json` is written and flushed when all files of wave 1 are in
`_staging`. Then its files are moved to where readers see them. So an interrupted process leaves
either a wave that is not in the manifest, which the next run deletes, or a wave whose moves the
next run completes. Readers of Parquet and Delta ignore names with an underscore.

A Delta table changes only by its own log. Its waves are added here after their commit.
`_begun.json` has the version after which a commit may be missing here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmq_store.files.durable_files import sync_folder, write_whole
from rmq_store.files.journal import refusals
from rmq_store.files.safe_paths import refuse_links
from rmq_store.format.queues import QueueId
from rmqstore_jobs.exporting.wave_result import (
    DELTA,
    FORMAT,
    PARQUET,
    ExportedRange,
    ManifestError,
    Wave,
    content_of,
    from_json,
    joined,
    text_of,
    to_json,
    unreadable,
)
from spark_source.options.secret import without_secrets
from spark_source.writing.target.lock import TargetLock

FOLDER, STAGING, LOCK = "_manifest", "_staging", "_lock"
SUM, BEGUN = "_sum.json", "_begun.json"


@dataclass(slots=True)
class _Sum:
    """The sum of all waves up to `number`, which the next export needs."""

    number: int = 0
    asked: Mapping[str, str] | None = None  # None before the first wave
    table: str = PARQUET
    delta_version: int | None = None
    totals: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[ExportedRange]] = field(default_factory=dict)  # by broker

    def add(self, wave: Wave) -> None:
        """Add the next wave."""
        self.number, self.asked, self.table = wave.number, wave.asked, wave.table
        self.delta_version = wave.delta_version
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
    """The content of a target. A context manager that locks the target against other processes.

    It neither keeps nor reads all waves: `_sum.json` has their sum up to some wave, and can be
    rebuilt from them.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(target).absolute()
        self.folder = self.target / FOLDER
        self._sum = _Sum()
        self._lock: TargetLock | None = None

    def __enter__(self) -> Manifest:
        with refusals(self.target):
            self._refuse_other_content()
        for name in (FOLDER, STAGING, LOCK):
            refuse_links(self.target, name)
        self._lock = TargetLock(self.target / LOCK)
        try:
            with refusals(self.target):
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
                reason="the folder has content that no export wrote",
                advice="Name a new folder, or the target of an export",
            )

    def _read(self) -> None:
        self._sum = _load_sum(self.folder / SUM)
        paths = _wave_files(self.folder)
        for path in paths:
            if int(path.stem) > self._sum.number:
                self._sum.add(_load(path))
        if paths and self._sum.table != DELTA:
            self._move(_load(paths[-1]))

    def waves(self) -> Iterator[Wave]:
        """The waves, oldest first, read one at a time."""
        yield from map(_load, _wave_files(self.folder))

    @property
    def staging(self) -> Path:
        """The folder where the next wave is written."""
        return self.target / STAGING / f"{self.next_number:06d}"

    @property
    def next_number(self) -> int:
        """The number of the next wave."""
        return self._sum.number + 1

    @property
    def asked(self) -> Mapping[str, str] | None:
        """The options of the export in the target; None if it is empty."""
        return self._sum.asked

    @property
    def table(self) -> str | None:
        """The format of the target, one of FORMATS; None if it is empty."""
        if self._sum.asked is not None:
            return self._sum.table
        return None if self.begun is None else DELTA

    @property
    def delta_version(self) -> int | None:
        """The version of the Delta table with the last wave."""
        return self._sum.delta_version

    @property
    def begun(self) -> tuple[int, int] | None:
        """The wave that was started last in a Delta table, and the table's version before it."""
        path = self.folder / BEGUN
        if not path.exists():
            return None
        content = content_of(path, text_of(path))
        return content["wave"], content["delta_version"]

    def begin(self, delta_version: int) -> None:
        """Record that the next wave comes into the table after this version."""
        known = {"format": FORMAT, "wave": self.next_number, "delta_version": delta_version}
        write_whole(self.folder / BEGUN, json.dumps(known) + "\n")

    @property
    def totals(self) -> Mapping[str, int]:
        """The numbers of waves, files, rows and bytes in the target."""
        return {**dict.fromkeys(("waves", "files", "rows", "bytes"), 0), **self._sum.totals}

    def finished(self, broker_name: str) -> dict[QueueId, list[ExportedRange]]:
        """The ranges of a broker's queues that are in the target, in order."""
        found: dict[QueueId, list[ExportedRange]] = {}
        for part in self._sum.ranges.get(broker_name, ()):
            found.setdefault(part.slice.queue, []).append(part)
        return found

    def commit(self, wave: Wave) -> None:
        """Add a wave to the manifest. Its files, except those of Delta, must be in `staging`;
        they are moved to where readers see them."""
        write_whole(self.folder / f"{wave.number:06d}.json", to_json(wave) + "\n")
        self._sum.add(wave)
        if wave.table != DELTA:
            self._move(wave)
        write_whole(self.folder / SUM, json.dumps({"format": FORMAT, **asdict(self._sum)}))
        shutil.rmtree(self.target / STAGING, ignore_errors=True)

    def _move(self, wave: Wave) -> None:
        """Move the files not moved yet. A missing file is an error."""
        staged = self.target / STAGING / f"{wave.number:06d}"
        folders = set()
        for file in wave.files:
            refuse_links(self.target, *file.path.split("/"))
            final = self.target / file.path
            if final.exists():
                continue
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                (staged / file.path).rename(final)
            except FileNotFoundError:
                raise ManifestError(
                    final,
                    reason=f"the file is missing, but wave {wave.number} of the export lists it",
                    advice="Restore it, or export into a new folder",
                ) from None
            folders.add(final.parent)
        for folder in folders:
            sync_folder(folder)


def _wave_files(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.json") if p.stem.isdigit()), key=lambda p: int(p.stem))


def _load(path: Path) -> Wave:
    return from_json(path, text_of(path))


def _load_sum(path: Path) -> _Sum:
    if not path.exists():
        return _Sum()
    content = content_of(path, text_of(path))
    try:
        content["ranges"] = {
            broker: [ExportedRange(**one) for one in parts]
            for broker, parts in content["ranges"].items()
        }
        if content["asked"] is not None:
            content["asked"] = without_secrets(content["asked"])
        return _Sum(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(path, error) from error
