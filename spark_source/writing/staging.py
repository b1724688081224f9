"""Prepared rows in files beside the target, until the driver appends them.

`.NAME.write` beside a store NAME holds the journal, the lock, and a folder for each write with one
file for each task: an Arrow IPC stream for each batch. Size and CRC of each are known to the driver.
Nothing in the folder is followed through a link.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store.errors import LOG, MissingFileError, StoreError, UnsafeNameError
from rmq_store.files.journal import as_access_error
from rmq_store.files.safe_paths import path_inside
from rmq_store.format.hashes import crc32

_COMMITTING = "committing"  # an empty file in the folder, written under the lock of the target
_REMOVED = "removed-"  # the begin of a folder's name
_ABANDONED_AFTER = 24 * 3600.0  # seconds without a change


class StagingError(StoreError):
    """Prepared rows of a write are not as its tasks left them."""

    code = "RMQSTORE_STAGING"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task has prepared. `name`: its file, None without rows.

    `batches`: bytes and CRC-32 of each batch in the file.
    """

    partition: int
    name: str | None = None
    rows: int = 0
    batches: tuple[tuple[int, int], ...] = ()


def folder_beside(target: str) -> Path:
    """The folder of all writes into `target`."""
    path = Path(target)
    return path.with_name(f".{path.name}.write")


class Staging:
    """The folder of one write. Plain data, so that executors can use it."""

    def __init__(self, target: str, write_id: str) -> None:
        self.parent = folder_beside(target)
        self.path = Path(path_inside(self.parent, write_id))

    @property
    def new_store(self) -> Path:
        """Where a store is built that takes the target's place."""
        return self.path / "new"

    @property
    def old_store(self) -> Path:
        """Where the target waits until the new store is in its place, without an exchange."""
        return self.path / "old"

    def begin(self, *, commit: bool = False) -> None:
        """Create the folder. `commit`: the commit has begun, by the process with the target's lock."""
        with as_access_error(self.path):
            self.parent.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.parent, self.path):
                folder.mkdir(exist_ok=True)
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise UnsafeNameError(
                        folder,
                        reason="a link is where the folder of a write belongs",
                        advice="Remove it, if nothing else uses it",
                    )
            if commit:
                (self.path / _COMMITTING).touch()

    def write(
        self, partition: int, batches: Iterator[pa.RecordBatch], *, begin: bool = False
    ) -> StagedPart:
        """Write the batches of a task. Another attempt of the same task has a file of its own.

        `begin`: the driver has not created the folder. Otherwise a task that is slow to end after
        an abort must not create it again.
        """
        first = next(batches, None)
        if first is None:
            return StagedPart(partition)
        if begin:
            self.begin()
        name, rows = f"part-{partition:05}-{uuid.uuid4().hex}.arrow", 0
        written = []
        with as_access_error(self.path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.fdopen(os.open(self.path / name, flags, 0o644), "wb", buffering=0)
        with file:
            for batch in chain((first,), batches):
                with as_access_error(self.path):
                    written.append(_written(batch, file))
                rows += batch.num_rows
        return StagedPart(partition, name, rows, tuple(written))

    def take(self, parts: Sequence[StagedPart]) -> Iterator[pa.RecordBatch]:
        """The batches of all parts in order of partition and row, one at a time.

        Deletes each file behind its last batch, so that its memory and disk serve what the batches
        are written to: a write that is interrupted has no use for its files. Reads and does not map: a
        file that is cut fails the write and not the process, and the thread that reads frees it.
        Raises MissingFileError if driver and executors do not share the folder, StagingError if a
        file does not have the bytes that its task wrote.
        """
        for part in sorted(parts, key=lambda part: part.partition):
            if part.name is not None:
                yield from self._read(Path(path_inside(self.path, part.name)), part)

    def _read(self, path: Path, part: StagedPart) -> Iterator[pa.RecordBatch]:
        at = 0
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MissingFileError(
                path,
                reason="rows that a task prepared are not there",
                advice="Driver and executors must see the same folder: write to a mount that they "
                "share",
            ) from None
        except OSError as error:
            raise StagingError(path, reason=f"cannot be opened: {error.strerror}") from error
        try:
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                held = os.fstat(descriptor).st_size
                _refuse_other(path, "bytes", sum(size for size, _ in part.batches), held)
                for size, crc in part.batches:
                    raw = file.read(size)
                    _refuse_other(path, f"CRC of the batch at {at}", crc, crc32(raw))
                    (batch,) = pa.ipc.open_stream(raw)
                    at += size
                    yield batch
                with _gone_or_logged(path):
                    path.unlink()  # before the file is closed, which then also frees its memory
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            raise StagingError(path, reason=f"cannot be read: {error}") from error

    def remove(self) -> None:
        """Delete the folder, and the one around it if nothing is left there. Logs what fails."""
        with _gone_or_logged(self.path):
            _remove(self.path)
        remove_if_empty(self.parent)


def remove_if_empty(folder: Path) -> None:
    """Delete the folder of all writes if it has neither a journal nor another write."""
    try:
        folder.rmdir()
    except OSError:
        LOG.debug("%s is still used", folder)


def remove_abandoned(target: str, *, but: str, of: str | None = None) -> None:
    """Delete what killed writes have left; the caller holds the lock of the target. Logs what may
    belong to a write that still runs.

    `but`: the write that is being committed. `of`: the begin of the names of writes that cannot run
    any more, because this one belongs to the same query.
    """
    parent = folder_beside(target)
    for folder in sorted(parent.iterdir()):
        if folder.name == but:
            continue
        with _gone_or_logged(folder):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                continue
            if (of is not None and folder.name.startswith(of)) or _abandoned(folder):
                LOG.warning("removing what a killed write left: %s", folder)
                _remove(folder)
            else:
                LOG.warning(
                    "%s has the rows of another write; if none runs, it was killed: delete the folder",
                    folder,
                )


def _abandoned(folder: Path) -> bool:
    """Whether a write was killed in its commit or its removal, or has changed nothing for a day."""
    if folder.name.startswith(_REMOVED) or (folder / _COMMITTING).exists():
        return True
    changed = max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    return time.time() - changed > _ABANDONED_AFTER


@contextmanager
def _gone_or_logged(folder: Path) -> Iterator[None]:
    """For the removal of a folder: it may be gone, and what cannot be removed fails no write."""
    try:
        yield
    except FileNotFoundError:
        LOG.debug("%s is gone", folder)
    except OSError as error:
        LOG.warning("%s cannot be removed; a later write tries it again: %s", folder, error)


def _remove(folder: Path) -> None:
    """Delete a folder. One that is deleted halfway has a name that says so, and that is new."""
    going = folder.with_name(_REMOVED + uuid.uuid4().hex)
    shutil.rmtree(folder.rename(going))


class _Summed:
    """A file to which Arrow writes, with size and CRC-32 of what was written."""

    closed = False

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self.size = self.crc = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.size += len(view)
        self.crc = crc32(view, self.crc)
        while len(view):
            view = view[self._file.write(view) or 0 :]
        return self.size

    def flush(self) -> None:
        """Nothing is held back."""


def _written(batch: pa.RecordBatch, file: RawIOBase) -> tuple[int, int]:
    """Write a batch as a stream of its own; returns its bytes and their CRC-32."""
    summed = _Summed(file)
    with pa.ipc.new_stream(summed, batch.schema) as writer:
        writer.write_batch(batch)
    return summed.size, summed.crc


def _refuse_other(path: Path, what: str, expected: int, actual: int) -> None:
    if actual != expected:
        raise StagingError(
            path,
            reason=f"the file does not have the {what} that its task wrote",
            expected=expected,
            actual=actual,
            advice="Run the write again",
        )
