"""The checkpoint: how far the broker has flushed, according to itself (StoreCheckpoint)."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass

import numpy as np

from rmq_store.errors import CorruptConfigError, OsErrorsOf
from rmq_store.files.durable_files import read_file
from rmq_store.files.safe_paths import refuse_special
from rmq_store.format.byte_layout import CHECKPOINT, CHECKPOINT_FILE_SIZE, CHECKPOINT_SIZE_BEFORE_48
from rmq_store.format.releases import Dialect


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Timestamps in ms and CommitLog offsets; 0 if the broker wrote none.

    Do not use it as the end of the log: every field lags, and outside controller mode
    `confirm_phy_offset` holds the start of a record or an arbitrary value.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def newest_timestamp(self) -> int:
        """Up to when messages were on the disk, by the latest of the three times."""
        return max(self.physic_msg_timestamp, self.logics_msg_timestamp, self.index_msg_timestamp)

    @classmethod
    def decode(cls, raw: bytes, path: str | None = None) -> Checkpoint:
        """The checkpoint from the bytes of the file: 4096, of which 40 or 48 are used.

        Raises CorruptConfigError if there are fewer than 40.
        """
        if len(raw) < CHECKPOINT_SIZE_BEFORE_48:
            raise CorruptConfigError(
                path,
                reason="the checkpoint is too short",
                expected=f"at least {CHECKPOINT_SIZE_BEFORE_48} bytes",
                actual=f"{len(raw)} bytes",
                advice="Move it away; the broker can start without it",
            )
        values = np.frombuffer(
            raw[: CHECKPOINT.itemsize].ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT
        )
        return cls(*(int(value) for value in values[0]))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Checkpoint | None:
        """The checkpoint in a file; None if the file does not exist."""
        if not os.path.exists(path):
            return None
        return cls.decode(read_file(path), os.fspath(path))

    @classmethod
    def read_or_zero(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint in a file; all zeros if it is missing or torn, as for the broker."""
        try:
            return cls.read(path) or cls()
        except CorruptConfigError:
            return cls()

    def write(self, path: str | os.PathLike[str], *, used: int = CHECKPOINT.itemsize) -> None:
        """Write the first `used` bytes in place and flush them, as the broker does.

        It is one write of less than a sector, so after a crash the file is the old or the new one.
        Before 5.5.0 the bytes from 40 on are not changed.
        """
        refuse_special(path)
        with OsErrorsOf(path, "writing"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if os.fstat(fd).st_size < CHECKPOINT_FILE_SIZE:
                    os.ftruncate(fd, CHECKPOINT_FILE_SIZE)
                os.pwrite(fd, self.encode(used=used)[:used], 0)
                os.fsync(fd)
            finally:
                os.close(fd)

    def encode(self, *, used: int = CHECKPOINT.itemsize) -> bytes:
        """The bytes of the file; the first `used` bytes are filled (40 before 5.5.0)."""
        head = np.array([astuple(self)], dtype=CHECKPOINT).tobytes()[:used]
        return head.ljust(CHECKPOINT_FILE_SIZE, b"\0")


def checkpoint_size(release: Dialect) -> int:
    """Bytes of the checkpoint that this release uses."""
    return CHECKPOINT.itemsize if release.has("checkpoint_48") else CHECKPOINT_SIZE_BEFORE_48
