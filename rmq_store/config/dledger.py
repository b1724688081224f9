"""The log of a broker in DLedger mode (DLedgerCommitLog): not read, and named wherever it matters.

A broker that was moved to DLedger keeps `commitlog/` as it was, until it expires, and stores every
later message in another log. The queues go on over both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import UnsupportedStoreError
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.format.layout import COMMITLOG_DIR

_PREFIX = "dledger-"  # and dLegerSelfId
_PARTS = ("data", "index")


@dataclass(frozen=True, slots=True)
class DLedgerLog:
    """What shows that a store has a DLedger log: folders with its files, or only the configuration."""

    folders: tuple[Path, ...]  # those of its data; others where there is none
    files: int  # in all data folders
    first: int | None  # log offset of the first file, if there is one

    def __str__(self) -> str:
        if not self.folders:
            return "a DLedger log that is not here (enableDLegerCommitLog=true)"
        names = ", ".join(str(folder) for folder in self.folders)
        since = "" if self.first is None else f" ({self.files} files, from log offset {self.first})"
        return f"the DLedger log {names}{since}"


def dledger_folders(root: Path) -> list[Path]:
    """The folders that brokers in DLedger mode made in a store, with a file or not."""
    found = (child for child in root.iterdir() if child.name.startswith(_PREFIX))
    return sorted(folder for folder in found if folder.is_dir())


def refuse_to_change(root: Path) -> None:
    """Raise UnsupportedStoreError for a folder `dledger-*`, also for one without a file.

    It may be that of a log that was not copied. A repair would take the queue entries of its messages
    for wrong.
    """
    for folder in dledger_folders(root):
        raise UnsupportedStoreError(
            folder,
            reason="a broker in DLedger mode has used this store: its newer messages may be in a log that "
            "is not here, and queue entries lead to them",
            advice="Nothing was changed. Reading and rmqstore verify show whether entries lead beyond "
            "the log. If none does, move the empty folder away",
        )


def find_dledger(root: Path, config: StoreConfig) -> DLedgerLog | None:
    """The DLedger log of a store; None without one, and for folders `dledger-*` without a file.

    If there is no `commitlog/` either, a folder `dledger-*` shows the mode although it is empty.
    """
    own = dledger_folders(root)
    places = [folder / part for part in _PARTS for folder in own if (folder / part).is_dir()]
    if config.storePathDLedgerCommitLog:
        elsewhere = Path(config.storePathDLedgerCommitLog)
        places[:0] = [
            place for place in (root / elsewhere, root / elsewhere.name) if place.is_dir()
        ]
    places = list(dict.fromkeys(places))
    full = [place for place in places if list_segments([place])]
    with_data = [place for place in full if place.name != _PARTS[1]]
    data = list_segments(with_data)
    pure = bool(own) and not (root / COMMITLOG_DIR).is_dir()
    if full or pure or config.enableDLegerCommitLog:
        return DLedgerLog(
            tuple(with_data or full or own), len(data), data[0].base if data else None
        )
    return None


def refuse_dledger(root: Path, config: StoreConfig, old: Sequence[SegmentFile]) -> None:
    """Raise UnsupportedStoreError if the store has a DLedger log. `old`: the files of its CommitLog."""
    found = find_dledger(root, config)
    if found is not None:
        raise dledger_error(root, found, old)


def dledger_error(
    root: Path, found: DLedgerLog, old: Sequence[SegmentFile]
) -> UnsupportedStoreError:
    """The refusal of a store with a DLedger log: it names both logs, and what can be read."""
    where = found.folders[0] if found.folders else root
    if not old:
        return UnsupportedStoreError(
            where,
            reason="this is the store of a broker in DLedger mode, which is not supported: its "
            f"messages are in {found}, and its commitlog/ has no file",
            advice="Nothing was read or changed. Copy the messages with a consumer and a producer",
        )
    return UnsupportedStoreError(
        where,
        reason="this is the store of a broker that was moved to DLedger mode, which is not "
        f"supported: it has two logs. The older messages are in {_plain(old)}, the newer ones in "
        f"{found}",
        advice="Nothing was read or changed. Only the messages of the older log can be read: Spark "
        "with source=commitlog and mode=PERMISSIVE, MessageStore.open(path, queues=False).read_log(), "
        "rmqstore salvage. Copy the newer ones with a consumer and a producer",
    )


def unread_dledger(
    root: Path, config: StoreConfig, old: Sequence[SegmentFile]
) -> UnsupportedStoreError | None:
    """What a read of the CommitLog alone leaves out: the messages of a DLedger log, if there is one."""
    found = find_dledger(root, config)
    if found is None:
        return None
    return UnsupportedStoreError(
        found.folders[0] if found.folders else root,
        reason=f"only {_plain(old)} was read. The messages after it are in {found}, which is not "
        "supported",
        advice="Copy them with a consumer and a producer",
    )


def _plain(old: Sequence[SegmentFile]) -> str:
    folders = dict.fromkeys(os.path.dirname(segment.path) for segment in old)
    return (
        f"{', '.join(folders)} ({len(old)} files, log offset {old[0].base} to "
        f"{old[-1].base + old[-1].size})"
    )
