"""Finds intact records behind a place where the log seems to end."""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.scan import SoundRun, scan

# Stored zeros at the log's end that are read in search of a record behind them: pages that a crash
# of the machine lost. A broker may fill a whole file with zeros in advance.
_ZEROS_READ = 64 << 20
_ZEROS_READ_REMOTE = 1 << 16


def intact_records_behind(log: CommitLog, stop: int, newest: int | None) -> Iterator[SoundRun]:
    """The intact records behind `stop`, a log offset; `newest`: when the one before it was stored (ms).

    Records that are older than the one before them, and what follows, are left from before the log
    was cut.
    """
    if not _has_more(log, stop):
        return
    for piece in scan(log, stop, log.chain.stop):
        if isinstance(piece, SoundRun):
            stored = piece.headers.store_timestamp
            if newest is not None and int(stored[0]) < newest:
                return
            yield piece
            newest = int(stored[-1])


def _has_more(log: CommitLog, stop: int) -> bool:
    """Whether anything but zeros is at `stop`, soon after it, or at the start of a later file."""
    file = log.last_record_file()
    if file is None or stop < file.base:
        return file is not None
    end = log.chain.segment_end(file)
    read = _ZEROS_READ_REMOTE if log.chain.is_remote else _ZEROS_READ
    return stop < end and not log.chain.is_zero(stop, min(end, log.chain.stored_from(stop) + read))


def newest_behind_damage(log: CommitLog) -> int:
    """When the last intact record behind damage in the log's last file was stored (ms); else 0."""
    file, newest = log.last_record_file(), 0
    if file is None:
        return newest
    last, stop = log.last_from(file.base)
    before = None if last is None else log.store_time_at(last)
    for run in intact_records_behind(log, stop, before):
        newest = int(run.headers.store_timestamp[-1])
    return newest
