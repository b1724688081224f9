"""Files of the log without a byte."""

from __future__ import annotations

from pathlib import Path

from rmq_store.commitlog.log import CommitLog


def empty_files(log: CommitLog) -> list[Path]:
    """The files of a local log without a byte, before its last file: no broker starts with one."""
    last = max((segment.base for segment in log.chain.segments), default=-1)
    paths = (path for folder in log.chain.folders for path in Path(folder).glob("[0-9]" * 20))
    return sorted(path for path in paths if int(path.name) < last and not path.stat().st_size)
