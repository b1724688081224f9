"""The checkpoint: how far the broker had flushed, by its own account (StoreCheckpoint)."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass

import numpy as np

from rmq_store.errors import CorruptConfigError, from_os_error
from rmq_store.files.durable import read_file
from rmq_store.format.layout import CHECKPOINT, CHECKPOINT_FILE_SIZE, CHECKPOINT_SIZE_BEFORE_48
from rmq_store.format.releases import Dialect


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Timestamps in ms, offsets in the CommitLog; 0 where the broker wrote none.

    Not to be taken for the end of the log: every field lags, and `confirm_phy_offset` holds the
    start of a record, or anything, outside controller mode.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @classmethod
    def decode(cls, raw: bytes, path: str | None = None) -> Checkpoint:
        """From the bytes of the file: 4096, of which 40 or 48 are in use.

        Raises CorruptConfigError where there are fewer than 40.
        """
        if len(raw) < CHECKPOINT_SIZE_BEFORE_48:
            raise CorruptConfigError(
                path,
                reason="the checkpoint is too short",
                expected=f"at least {CHECKPOINT_SIZE_BEFORE_48} bytes",
                actual=f"{len(raw)} bytes",
                advice="The broker does without it; move it away",
            )
        values = np.frombuffer(
            raw[: CHECKPOINT.itemsize].ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT
        )
        return cls(*(int(value) for value in values[0]))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Checkpoint | None:
        """The checkpoint in a file; None where there is no file."""
        if not os.path.exists(path):
            return None
        return cls.decode(read_file(path), os.fspath(path))

    @classmethod
    def read_or_zero(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint in a file; all zero where there is none or it is torn, as for the broker."""
        try:
            return cls.read(path) or cls()
        except CorruptConfigError:
            return cls()

    def write(self, path: str | os.PathLike[str], *, used: int = CHECKPOINT.itemsize) -> None:
        """Write the first `used` bytes in place and put them on the disk, as the broker does.

        One write of less than a sector: a crash leaves the old or the new one. Before 5.5.0 the
        bytes from 40 on are left as they are.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size < CHECKPOINT_FILE_SIZE:
                    os.ftruncate(fd, CHECKPOINT_FILE_SIZE)
                os.pwrite(fd, self.encode(used=used)[:used], 0)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise from_os_error(path, error, "writing") from error

    def encode(self, *, used: int = CHECKPOINT.itemsize) -> bytes:
        """The bytes of the file, of which the first `used` are filled (40 before 5.5.0)."""
        head = np.array([astuple(self)], dtype=CHECKPOINT).tobytes()[:used]
        return head.ljust(CHECKPOINT_FILE_SIZE, b"\0")


def checkpoint_size(release: Dialect) -> int:
    """Bytes of the checkpoint that a release writes."""
    return CHECKPOINT.itemsize if release.has("checkpoint_48") else CHECKPOINT_SIZE_BEFORE_48
