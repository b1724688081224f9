"""Where the log of a broker in DLedger mode lies (DLedgerCommitLog), and what of it is not here.

A broker that was moved to DLedger keeps `commitlog/` as it was, until it expires, and stores every later
message in `dledger-<dLegerSelfId>/data`, at the log offsets that follow. The queues go on over both, so
both are files of one log. Only the broker writes it: the members of its group agree on each entry.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rmq_store.config.broker_conf import StoreConfig, paths_in
from rmq_store.errors import MissingFileError, UnsupportedStoreError
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.files.segments import SegmentFile, list_segments
from rmq_store.format.byte_layout import COMMITLOG_DIR
from rmq_store.format.record import ENTRY_HEAD_SIZE, INDEX_UNIT, DLedgerEntryHead

_PREFIX = "dledger-"  # and dLegerSelfId
DATA, _INDEX = "data", "index"


@dataclass(frozen=True)
class DLedgerMember:
    """The log of one member of a group. `data`: the folders of its entries, at least one with a file."""

    name: str  # dLegerSelfId
    data: tuple[Path, ...]
    index: Path

    def __str__(self) -> str:
        term, index = self.last
        return f"{_PREFIX}{self.name} (up to entry {index} of term {term})"

    @cached_property
    def last(self) -> tuple[int, int]:
        """Term and index of about the last entry, (0, -1) if nothing says that.

        By the index, whose units are compared with their entries: a binary search.
        """
        units, entries = SegmentChain([self.index]), SegmentChain(self.data)
        try:
            if not units.segments:
                first = _head_at(entries, entries.segments[-1].base)
                return (0, -1) if first is None else (first.term, first.index)
            low = units.start // INDEX_UNIT.itemsize
            numbers = range(low, units.stop // INDEX_UNIT.itemsize)
            count = bisect_left(numbers, True, key=lambda n: _indexed(units, entries, n) is None)
            entry = _indexed(units, entries, low + count - 1) if count else None
            return (0, -1) if entry is None else (entry.term, entry.index)
        finally:
            units.close()
            entries.close()


def _indexed(units: SegmentChain, entries: SegmentChain, number: int) -> DLedgerEntryHead | None:
    """The entry of a number, if the index and the entry at the place there agree."""
    at = number * INDEX_UNIT.itemsize
    if units.segment_at(at) is None:
        return None
    unit = units.read(at, at + INDEX_UNIT.itemsize).view(INDEX_UNIT)[0]
    head = _head_at(entries, int(unit["pos"]))
    return head if head is not None and head.index == number == unit["index"] else None


def _head_at(entries: SegmentChain, place: int) -> DLedgerEntryHead | None:
    segment = entries.segment_at(place)
    if segment is None or place + ENTRY_HEAD_SIZE > entries.segment_end(segment):
        return None
    head = DLedgerEntryHead.of(entries.read(place, place + ENTRY_HEAD_SIZE).tobytes())
    return head if head.fault_at(place) is None else None


def dledger_folders(root: Path) -> list[Path]:
    """The folders that brokers in DLedger mode made in a store, with a file or not."""
    folders = (root / name for name in os.listdir(root) if name.startswith(_PREFIX))
    return sorted(folder for folder in folders if folder.is_dir())


def members_in(root: Path, config: StoreConfig) -> list[DLedgerMember]:
    """The members of which a store has the log, the one that is read first.

    That is the one of dLegerSelfId, else the one with the last entry, by term and index. Raises
    MissingFileError if dLegerSelfId names another than those that are there.
    """
    members = [
        DLedgerMember(folder.name.removeprefix(_PREFIX), (folder / DATA,), folder / _INDEX)
        for folder in dledger_folders(root)
        if _has_files(folder / DATA)
    ]
    own_name = config.dLegerSelfId
    elsewhere = _elsewhere(root, config)
    if elsewhere:
        name = own_name or next(
            (one.name.removeprefix(_PREFIX) for one in dledger_folders(root)), ""
        )
        members = [member for member in members if member.name != name]
        members.append(DLedgerMember(name, elsewhere, root / f"{_PREFIX}{name}" / _INDEX))
        own_name = name
    if own_name is not None and members and own_name not in [member.name for member in members]:
        raise MissingFileError(
            root / f"{_PREFIX}{own_name}" / DATA,
            reason=f"the log of the member that dLegerSelfId={own_name} names is not here",
            expected=", ".join(f"{_PREFIX}{member.name}" for member in members),
            advice="Copy it, or name one of those that are there in the configuration",
        )
    if len(members) > 1:
        members.sort(key=lambda member: (member.name == own_name, member.last), reverse=True)
    return members


def _elsewhere(root: Path, config: StoreConfig) -> tuple[Path, ...]:
    """The folders of storePathDLedgerCommitLog that have files, as they are or under the root."""
    named = paths_in(config.storePathDLedgerCommitLog)
    places = [(root / name, root / Path(name).name) for name in named]
    found = (next(filter(_has_files, both), None) for both in places)
    return tuple(place for place in found if place is not None)


def _has_files(folder: Path) -> bool:
    return bool(list_segments([folder]))


def entries_folders(root: Path, config: StoreConfig) -> list[Path]:
    """The folders of the DLedger log that is read; none without one. Raises as `members_in`."""
    return [folder for member in members_in(root, config)[:1] for folder in member.data]


def refuse_to_change(root: Path, config: StoreConfig, old: Sequence[SegmentFile]) -> None:
    """Raise UnsupportedStoreError if a DLedger log, here or not, belongs to a store to be written to.

    Also for a folder `dledger-*` without a file: it may be that of a log that was not copied, and a
    repair would take the queue entries of its messages for wrong. `old`: the files of `commitlog/`.
    """
    refuse_members_log(root, config)
    for segment in old[:1]:
        chain = SegmentChain([root / COMMITLOG_DIR], segments=[segment])
        front = chain.read(chain.start, min(chain.start + ENTRY_HEAD_SIZE, chain.stop))
        refuse_entries(segment, front.tobytes())
        chain.close()
    missing = unread_dledger(root, config, old)
    if missing is not None:
        raise missing
    for folder in dledger_folders(root):
        raise UnsupportedStoreError(
            folder,
            reason="a broker in DLedger mode has used this store: its newer messages may be in a log that "
            "is not here, and queue entries lead to them",
            advice="Nothing was changed. Reading and rmqstore verify show whether entries lead beyond "
            "the log. If none does, move the empty folder away",
        )


def refuse_entries(segment: SegmentFile, front: bytes) -> None:
    """Raise UnsupportedStoreError if a file of `commitlog/` begins, with `front`, with a DLedger entry."""
    if DLedgerEntryHead.of(front).fault_at(segment.base) is None:
        raise UnsupportedStoreError(
            segment.path,
            reason="this file of the CommitLog begins with an entry of DLedger: its folder looks like "
            "dledger-<dLegerSelfId>/data of a broker in DLedger mode, copied to the place of commitlog/",
            advice="Nothing was read or changed. Give the folder the place that it has in the broker's "
            "store: dledger-<dLegerSelfId>/data beside consumequeue/",
        )


def refuse_members_log(root: Path, config: StoreConfig) -> None:
    """Raise UnsupportedStoreError for a store with a DLedger log, which rmqstore only reads."""
    _refuse_members(
        root,
        config,
        "this is the store of a broker in DLedger mode, which is only read: the members of its group agree "
        "on what its log holds",
        "rmqstore rebuild makes a store without DLedger of it, which can be changed and on which a broker "
        "starts",
    )


def refuse_members_offsets(root: Path, config: StoreConfig) -> None:
    """Raise UnsupportedStoreError for a store with a DLedger log, before consumer offsets are written."""
    _refuse_members(
        root,
        config,
        "this is the store of one member of a DLedger group: each has consumer offsets of its own, and "
        "consumers get those of the member that leads",
        "Reset them with the broker's mqadmin, or in a store that rmqstore rebuild makes of this one",
    )


def _refuse_members(root: Path, config: StoreConfig, reason: str, advice: str) -> None:
    for folder in entries_folders(root, config):
        raise UnsupportedStoreError(folder, reason=reason, advice=f"Nothing was changed. {advice}")


def unread_dledger(
    root: Path, config: StoreConfig, old: Sequence[SegmentFile]
) -> UnsupportedStoreError | None:
    """The error for a DLedger log that belongs to a store and cannot be read; None without one.

    It is not here, as the configuration or its index shows, or begins before `commitlog/` ends.
    """
    folders = entries_folders(root, config)
    if folders:
        first = list_segments(folders)[0].base
        plain = [file for file in old if Path(file.path).parent not in folders]
        if not plain or plain[-1].base < first:
            return None
        return UnsupportedStoreError(
            folders[0],
            reason=f"the DLedger log begins at log offset {first}, before the end of {_plain(plain)}: "
            "one of the two belongs to another store",
            advice="Move away the one that does not belong here. Nothing was changed",
        )
    indexes = [folder / _INDEX for folder in dledger_folders(root) if _has_files(folder / _INDEX)]
    pure = bool(dledger_folders(root)) and not (root / COMMITLOG_DIR).is_dir()
    if not (indexes or pure or config.enableDLegerCommitLog):
        return None
    shown = f"a DLedger log that is not here ({_evidence(indexes, pure)})"
    where = indexes[0] if indexes else root
    if not old:
        return UnsupportedStoreError(
            where,
            reason=f"the messages of this store are in {shown}, and its commitlog/ has no file",
            advice="Nothing was read or changed. Copy the folder dledger-<dLegerSelfId> of the broker, or "
            "name that of its data with storePathDLedgerCommitLog",
        )
    return UnsupportedStoreError(
        where,
        reason=f"the messages after {_plain(old)} are in {shown}",
        advice="Nothing was changed. Copy the folder dledger-<dLegerSelfId> of the broker, or name that of "
        "its data with storePathDLedgerCommitLog. Without it, only the older messages can be read: Spark "
        "with source=commitlog and mode=PERMISSIVE, MessageStore.open(path, queues=False).read_log(), "
        "rmqstore salvage",
    )


def _evidence(indexes: Sequence[Path], pure: bool) -> str:
    if indexes:
        return f"{indexes[0]} has files, and no data folder does"
    return "the folder dledger-* has no file" if pure else "enableDLegerCommitLog=true"


def _plain(old: Sequence[SegmentFile]) -> str:
    folders = dict.fromkeys(os.path.dirname(segment.path) for segment in old)
    return (
        f"{', '.join(folders)} ({len(old)} files, log offset {old[0].base} to "
        f"{old[-1].base + old[-1].size})"
    )
