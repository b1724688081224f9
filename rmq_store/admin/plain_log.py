"""The records of a DLedger log written as a CommitLog without entries.

Each record keeps everything but its place. So what names a place is written again: physicalOffset, the half
message of a committed transaction, and the CRC of a record that covers both. Files that an interrupted run
has completed are left as they are: the same log gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_store.arrow.column_values import stored_topics
from rmq_store.arrow.string_slices import buffers, slices
from rmq_store.commitlog.check_crcs import record_crc_rows
from rmq_store.commitlog.headers import Headers
from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.log_writer import LogAppender
from rmq_store.commitlog.record_or_gap import Extent, SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.files.segment_writer import OpenFiles
from rmq_store.files.segments import list_segments
from rmq_store.format.array_types import Bytes
from rmq_store.format.byte_layout import BLANK_SIZE, CRC_ITEM_SIZE, CRC_MASK, V6_EXTRA
from rmq_store.format.crc import crc32
from rmq_store.format.record import Gap, crc_item
from rmq_store.format.sys_flag import SysFlag
from rmq_store.format.topics import OP_TOPICS
from rmq_store.writing.encoded_records import set_fields

_DAMAGE_KEPT = 4096  # bytes of a damaged range that stand for it
_LOST = (Gap.DAMAGED, Gap.MISSING)
_HALVES = pa.array(list(OP_TOPICS))


def write_plain_log(
    log: CommitLog, folder: Path, progress: Callable[[int], None] | None = None
) -> int:
    """Write the records of a log into files of the same size in `folder`.

    A damaged range, or one that no file holds, gives bytes that are no record, at most 4,096, so that the
    new log is damaged there too. Returns the storeTimestamp (ms) of the newest record; 0 without one.
    """
    done = list_segments([folder])[:-1]  # the last one may not be whole
    files = _Resumed({Path(file.path) for file in done})
    writing = _PlainLog(log, LogAppender(files, [folder], log.chain.file_size, log.start))
    try:
        for piece in walk(log):
            writing.take(piece)
            if progress is not None:
                progress(piece.stop - piece.start)
    finally:
        files.close()
    return writing.newest


class _Resumed(OpenFiles):
    """Files of which some are whole."""

    def __init__(self, whole: set[Path]) -> None:
        super().__init__()
        self._whole = whole

    def write(self, path: Path, size: int, at: int, data: Any) -> None:
        """As that of OpenFiles; what is whole is not written again."""
        if path not in self._whole:
            super().write(path, size, at, data)


class _PlainLog:
    """Where the log is that is being written."""

    def __init__(self, source: CommitLog, appender: LogAppender) -> None:
        self._source, self._appender = source, appender
        self._halves: dict[int, int] = {}  # old and new places of half messages
        self.newest = 0

    def take(self, piece: SoundRun | Extent) -> None:
        """Write the next piece of the source."""
        if isinstance(piece, SoundRun):
            self._write_records(piece.headers)
        elif piece.gap in _LOST:
            self._write_damage(piece)

    def _write_records(self, headers: Headers) -> None:
        first = 0
        while first < len(headers):
            fit = self._appender.fitting(headers.total[first:])
            if fit == 0:
                self._appender.end_file()
                continue
            part = headers.take(slice(first, first + fit))
            self._appender.write(self._moved(part))
            first += fit
        self.newest = max(self.newest, int(headers.store_timestamp.max()))

    def _moved(self, headers: Headers) -> Bytes:
        """The bytes of records as they are at the end of the new log."""
        copied = slices(headers.window, headers.at, headers.total, pa.binary())
        at = np.cumsum(headers.total) - headers.total
        raw: Bytes = buffers(copied)[1][: int(headers.total.sum())].copy()
        set_fields(raw, at, "physical_offset", at + self._appender.end)
        self._move_halves(raw, headers, at)
        for row in record_crc_rows(headers).tolist():
            start, end = int(at[row]), int(at[row] + headers.total[row])
            value = crc32(raw[start : end - CRC_ITEM_SIZE].tobytes()) & CRC_MASK
            raw[end - CRC_ITEM_SIZE : end] = np.frombuffer(crc_item(value), dtype=np.uint8)
        return raw

    def _move_halves(self, raw: Bytes, headers: Headers, at: Any) -> None:
        halves = pa.compute.is_in(stored_topics(headers), value_set=_HALVES)
        rows = np.flatnonzero(halves.to_numpy(zero_copy_only=False))
        before = (headers.at[rows] + headers.base).tolist()
        self._halves.update(zip(before, (at[rows] + self._appender.end).tolist(), strict=True))
        named = np.flatnonzero(headers.prepared_transaction_offset)
        old = headers.prepared_transaction_offset[named].tolist()
        # One that has expired stays where it was, before the log.
        new = np.array([self._halves.get(one, one) for one in old], dtype=np.int64)
        hosts = (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6)
        wide = sum(((headers.sys_flag[named] & bit) != 0).astype(np.int64) for bit in hosts)
        set_fields(raw, at[named] + wide * V6_EXTRA, "prepared_transaction_offset", new)

    def _write_damage(self, piece: Extent) -> None:
        room = self._appender.room - BLANK_SIZE
        if room <= 0:
            self._appender.end_file()
            room = self._appender.room - BLANK_SIZE
        size = min(piece.stop - piece.start, _DAMAGE_KEPT, room)
        if piece.gap is Gap.MISSING:
            damage = np.zeros(size, dtype=np.uint8)
        else:
            damage = self._source.chain.read(piece.start, piece.start + size)
        self._appender.write(damage)
