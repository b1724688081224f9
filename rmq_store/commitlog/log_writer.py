"""The end of a log that is being written: what fits into its file, and how a file ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rmq_store.files.segment_writer import OpenFiles, SegmentWriter
from rmq_store.format.array_types import Bytes, Ints
from rmq_store.format.byte_layout import BLANK_HEAD, BLANK_SIZE, MAGIC_BLANK

_BYTES_AT_A_TIME = 4 << 20
_ROWS_LOOKED_AT = 1 << 20


class LogAppender:
    """Appends whole records at `end`, the log offset after the last one."""

    def __init__(self, files: OpenFiles, folders: Sequence[Path], file_size: int, end: int) -> None:
        """New files alternate between `folders`, as with several paths of a commitlog."""
        self._files = files
        self._stream = SegmentWriter(
            files, lambda base: folders[base // file_size % len(folders)], file_size
        )
        self._file_size = file_size
        self.end = end

    @property
    def room(self) -> int:
        """Bytes from the end of the log to the end of its current file."""
        return self._file_size - self.end % self._file_size

    def fitting(self, sizes: Ints, *, together: bool = False) -> int:
        """How many of the next records fit into the current file, limited to a few megabytes.

        A record fits if space for a blank record remains after it
        (DefaultAppendMessageCallback#doAppend). `together`: all or none.
        """
        ends = np.cumsum(sizes[:_ROWS_LOOKED_AT])
        fit = int(np.searchsorted(ends, self.room - BLANK_SIZE, side="right"))
        if together:
            return fit if fit == len(sizes) else 0
        return min(fit, max(1, int(np.searchsorted(ends, _BYTES_AT_A_TIME, side="right"))))

    def write(self, data: Bytes) -> None:
        """Write whole records; the caller has checked that they fit."""
        self._stream.write(self.end, data)
        self.end += len(data)

    def end_file(self) -> None:
        """Write a blank record up to the end of the file; the log continues in the next file."""
        left = self.room
        blank = np.array([(left, MAGIC_BLANK)], dtype=BLANK_HEAD)
        self._stream.write(self.end, blank.view(np.uint8))
        self.end += left
        # After this sync a crash can tear only the last file, and recovery cuts nowhere else.
        self._files.sync()
