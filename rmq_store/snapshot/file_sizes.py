"""The sizes that a store's files were created with, and whether a configuration matches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rmq_store.commitlog.log import CommitLog
from rmq_store.commitlog.record_or_gap import Extent, SoundRun
from rmq_store.commitlog.walk import walk
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.consumequeue.queue_folders import QueueFolders
from rmq_store.errors import CorruptIndexError, IndexGeometryError, InvalidArgumentError
from rmq_store.files.segment_chain import SegmentChain
from rmq_store.format.byte_layout import BLANK_SIZE, INDEX_DIR, MAGIC_V1, MAGIC_V2
from rmq_store.format.record import Gap
from rmq_store.index.index_file_reader import Geometry, IndexFile, list_index_files
from rmq_store.snapshot.snapshot import StoreSnapshot

_LEAST_ITEMS = 2  # item 0 is never used; a file without items does not show how many it can have
_QUEUES_ASKED = 100  # of each kind; a store may have 100,000


def geometry_found(
    log: CommitLog, folders: QueueFolders, *, damaged_index: bool = False
) -> StoreConfig:
    """The sizes that the files were created with, as settings; None if no file shows the size.

    The given numbers of index slots and items are checked against the files.

    Raises IndexGeometryError if the newest index file does not show its geometry. With
    `damaged_index`, an older file is used instead.
    """
    geometry = _index_geometry(folders.root, folders.config, damaged_index)
    return replace(
        queue_sizes(folders, _QUEUES_ASKED),
        mappedFileSizeCommitLog=log.chain.file_size or None,
        maxHashSlotNum=None if geometry is None else geometry.slots,
        maxIndexNum=None if geometry is None else geometry.items,
    )


def _index_geometry(root: Path, given: StoreConfig, damaged: bool) -> Geometry | None:
    for segment in reversed(list_index_files(root / INDEX_DIR)):
        try:
            file = IndexFile(segment, slots=given.maxHashSlotNum, items=given.maxIndexNum)
            if file.geometry.items >= _LEAST_ITEMS:
                return file.geometry
        except (IndexGeometryError, CorruptIndexError):
            if not damaged:
                raise
    return None


def refuse_contradiction(
    config: StoreConfig, log: CommitLog, folders: QueueFolders, snapshot: StoreSnapshot
) -> None:
    """Raise InvalidArgumentError if a file does not have its configured size: no broker loads it."""
    sizes = [("mappedFileSizeCommitLog", config.commitlog_file_size, log.chain.segments)]
    for queue, state in snapshot.queues.items():
        name = "mapperFileSizeBatchConsumeQueue" if state.batch else "mappedFileSizeConsumeQueue"
        size = config.batch_queue_file_size if state.batch else config.queue_file_size
        sizes.append((name, size, folders.files(queue, batch=state.batch).chain.segments))
    for name, size, segments in sizes:
        for segment in segments:
            if segment.size != size:
                raise InvalidArgumentError(
                    segment.path,
                    reason=f"the files of this store were not created with this {name}",
                    expected=f"{size} bytes",
                    actual=f"{segment.size} bytes",
                    advice="Omit it, or use the broker.conf of the broker that created them",
                )


def refuse_smaller(chains: list[SegmentChain]) -> None:
    """Raises InvalidArgumentError if no file of these chains has the configured size."""
    files = [segment for chain in chains for segment in chain.segments]
    largest = max(files, key=lambda segment: segment.size, default=None)
    if largest is not None and largest.size < chains[0].file_size:
        raise InvalidArgumentError(
            largest.path,
            reason="all files are smaller than the configured size: the setting is of another broker, or "
            "they were cut short, and no broker starts on them",
            expected=f"{chains[0].file_size} bytes",
            actual=f"{largest.size} bytes",
            advice="Use the broker.conf of the broker that created them. If this is the one, restore the "
            f"files, or give them their size with zeros: truncate -s {chains[0].file_size} FILE",
        )


def is_cut_short(log: CommitLog) -> bool:
    """Whether the only file of the log ends inside a record, or right after one.

    It was longer: a broker ends a full file with a blank record (CommitLog#END_FILE_MIN_BLANK_LENGTH),
    and one that is not full ends with zeros.
    """
    segments = log.chain.segments
    if len(segments) != 1 or not 0 < segments[0].size <= log.chain.cost.spare:
        return False
    own = CommitLog(log.chain.folders, file_size=segments[0].size)
    end = own.chain.stop
    last: SoundRun | Extent | None = None
    try:
        if not own.chain.read(max(own.start, end - _END), end).any():
            return False
        for piece in walk(own, check_crc=False):
            last = piece
        if not isinstance(last, Extent):
            return last is not None and last.stop == end
        if last.gap not in (Gap.TORN, Gap.DAMAGED) or last.stop != end:
            return False
        head = own.chain.read(last.start, min(end, last.start + BLANK_SIZE)).tobytes()
        magic = int.from_bytes(head[4:], "big")
        return len(head) < BLANK_SIZE or (
            magic in (MAGIC_V1, MAGIC_V2) and last.start + int.from_bytes(head[:4], "big") > end
        )
    finally:
        own.chain.close()


_END = 4096


def refuse_unknown_size(log: CommitLog, given: StoreConfig) -> None:
    """Raise InvalidArgumentError if the full size of the log's files is neither given nor to be seen.

    A broker starts on no file of another size, so what is made of it would be of no use.
    """
    if given.mappedFileSizeCommitLog is None and is_cut_short(log):
        segment = log.chain.segments[0]
        raise InvalidArgumentError(
            segment.path,
            reason="the only file of the log was cut short: it ends without a blank record, so that its "
            "full size is not known",
            expected="mappedFileSizeCommitLog",
            actual=f"{segment.size} bytes",
            advice="Give the broker's configuration: --broker-conf. What followed is lost: search for it in "
            "a replica or a copy first",
        )


def queue_sizes(folders: QueueFolders, most: int | None = None) -> StoreConfig:
    """File sizes of the existing queues, as most of them say; of `most` queues of each kind at most.

    Queues with several files show the size by their names, so they decide if there are any.
    """
    votes: dict[bool, Counter[tuple[bool, int]]] = {False: Counter(), True: Counter()}
    for queue, batch in folders.listed_in_files().items():
        if most is None or votes[batch].total() < most:
            chain = folders.files_of(queue, batch=batch).chain
            if chain.segments:
                votes[batch][len(chain.segments) > 1, chain.file_size] += 1
    return StoreConfig(
        mappedFileSizeConsumeQueue=_elected(votes[False]),
        mapperFileSizeBatchConsumeQueue=_elected(votes[True]),
    )


def _elected(votes: Mapping[tuple[bool, int], int]) -> int | None:
    """The size with most votes, of those from several files if there are any; the largest of equals."""
    if not votes:
        return None
    by_names = {size: count for (several, size), count in votes.items() if several}
    counts = by_names or {size: count for (_, size), count in votes.items()}
    return max(counts, key=lambda size: (counts[size], size))
