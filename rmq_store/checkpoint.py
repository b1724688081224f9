"""The checkpoint: how far the broker had flushed, by its own account (StoreCheckpoint)."""

from __future__ import annotations

import os
from dataclasses import astuple, dataclass

import numpy as np

from rmq_store.errors import CorruptConfigError
from rmq_store.files import read_file
from rmq_store.layout import CHECKPOINT, CHECKPOINT_FILE_SIZE

_SHORT = 40  # bytes in use before 5.5.0


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
        if len(raw) < _SHORT:
            raise CorruptConfigError(
                path,
                reason="the checkpoint is too short",
                expected=f"at least {_SHORT} bytes",
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

    def encode(self, *, used: int = CHECKPOINT.itemsize) -> bytes:
        """The bytes of the file, of which the first `used` are filled (40 before 5.5.0)."""
        head = np.array([astuple(self)], dtype=CHECKPOINT).tobytes()[:used]
        return head.ljust(CHECKPOINT_FILE_SIZE, b"\0")
