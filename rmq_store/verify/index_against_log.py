"""Check index files for consistency, and against the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.decoded_records import DecodedRecords
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import IndexGeometryError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Sources
from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import CHECKPOINT_FILE, INDEX_DIR, INDEX_HEADER, INDEX_ITEM
from rmq_store.format.releases import dialect
from rmq_store.index.index_file_reader import (
    FILES_MAPPED,
    Geometry,
    IndexFile,
    list_index_files,
    list_too_short,
    open_index_file,
    open_index_files,
)
from rmq_store.index.index_writer import index_items, tag_items
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.markers.lock_file import was_closed
from rmq_store.store import MessageStore
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Finding, Findings, Severity, a_note, a_warning
from rmq_store.verify.index_structure import (
    FALSE_ITEM,
    CheckedItems,
    Wrong,
    being_written,
    check_file,
    damage_of,
    header_damage,
    header_finding,
    wrong_size,
)

# The broker flushes a full file in a separate thread while it fills the next one.
_BEING_WRITTEN = 2
# Whether the index has items for tags depends on the release, and no file contains the release.
_WITHOUT_TAG_ITEMS = dialect("5.3.3")
_SHORTEN = (
    "Delete a copy's index files and rebuild them from the log: rmqstore rebuild STORE --to NEW"
)


@dataclass(frozen=True, slots=True)
class IndexHealth:
    """How full a file is, and the longest chain that a look-up follows."""

    path: str
    items: int
    capacity: int
    slots: int
    slots_used: int
    longest_chain: int


def check_files(store: MessageStore, findings: Findings) -> list[IndexHealth]:
    """Check each index file of a store. Returns the health of those that fit a geometry."""
    closed = was_closed(store.path)
    sources = Sources(FILES_MAPPED)
    segments = list_index_files(store.path / INDEX_DIR)
    opened = [open_index_file(segment, store.config, sources) for segment in segments]
    known = [one.geometry for one in opened if isinstance(one, IndexFile) and one.header.items]
    for path, size in list_too_short(store.path / INDEX_DIR):
        expected = known[-1].file_size if known else INDEX_HEADER.itemsize
        newest = all(segment.path < path for segment in segments)
        just_made = newest and not closed  # a broker creates the file before it sets its size
        findings.add(being_written(path) if just_made else wrong_size(path, expected, size))
    flushed = 0 if closed else _flushed_until(store)
    health = []
    for segment, file in zip(segments, opened, strict=True):
        half_written = not closed and segment in segments[-_BEING_WRITTEN:]
        likely = _likely_geometry(segment, store.config, known)
        if not isinstance(file, IndexFile):
            found = _about_unsure(segment, file, known, likely, sources, half_written, store.config)
            findings.add_all(found)
            continue
        half_written |= not closed and file.header.end_timestamp > flushed
        if not file.header.items and likely is not None:  # a file without items fits any geometry
            file = IndexFile.assumed(segment, likely, sources)
        scanned = check_file(file, store.log_range()[1])
        if file.header.items or likely is not None:
            findings.add_all(damage_of(file, scanned, half_written=half_written))
        _check_range(file, scanned, store.log_range(), findings, closed)
        if not half_written and file.header.items:
            findings.add_all(_wrong_times(store, file))
        health.append(_health(file, scanned))
    return health


def _flushed_until(store: MessageStore) -> int:
    """The time (ms) up to which the index was flushed. After a crash the broker keeps index files
    that end before it."""
    try:
        return Checkpoint.read_or_zero(store.path / CHECKPOINT_FILE).index_msg_timestamp
    except StoreError:
        return 0


def _about_unsure(
    segment: SegmentFile,
    error: IndexGeometryError,
    known: Sequence[Geometry],
    geometry: Geometry | None,
    sources: Sources,
    half_written: bool,
    config: StoreConfig,
) -> Iterator[Finding]:
    """The damage of a file that fits no geometry, compared with its likely geometry."""
    if geometry is None:
        sizes = {one.file_size for one in known}
        if len(sizes) == 1 and segment.size not in sizes and not half_written:
            yield wrong_size(segment.path, sizes.pop(), segment.size)
            return
        most = (segment.size - INDEX_HEADER.itemsize) // INDEX_ITEM.itemsize
        geometry = Geometry(0, most)
    file = IndexFile.assumed(segment, geometry, sources)
    found = list(header_damage(file))
    if not found and geometry.slots:
        found = list(damage_of(file, check_file(file, 0), half_written=half_written))
    if found:
        yield from found
        return
    if half_written:  # its header and its items are of different moments
        yield being_written(segment.path)
        return
    yield a_warning(
        "index-unreadable",
        segment.path,
        f"{error.reason}. {_what_is_known(config)}",
        error.advice or _SHORTEN,
    )


def _what_is_known(config: StoreConfig) -> str:
    if config.maxHashSlotNum is None and config.maxIndexNum is None:
        return (
            "Its items were not examined: it may be intact, of a maxHashSlotNum and maxIndexNum that "
            "are unknown here"
        )
    return "A broker with the given maxHashSlotNum and maxIndexNum misses every key in it"


def _likely_geometry(
    segment: SegmentFile, config: StoreConfig, known: Sequence[Geometry]
) -> Geometry | None:
    """The likely geometry of a damaged file: that of other files of its size, the configured one,
    or the default."""
    said = config.maxHashSlotNum, config.maxIndexNum
    if not known and said != (None, None):
        try:
            IndexFile(segment)
        except IndexGeometryError:
            pass
        else:
            return None  # the file is intact, the configured geometry is wrong
    guesses = [*known, Geometry(config.index_slots, config.index_items)]
    return next((one for one in guesses if one.file_size == segment.size), None)


def _health(file: IndexFile, found: CheckedItems) -> IndexHealth:
    return IndexHealth(
        file.path,
        file.header.items,
        file.geometry.items,
        file.geometry.slots,
        int(np.count_nonzero(found.used)),
        int(found.used.max(initial=0)),
    )


def _wrong_times(store: MessageStore, file: IndexFile) -> Iterator[Finding]:
    """The finding for a time of the header that is not that of the record at its log offset."""
    header = file.header
    ends = (
        ("begin_timestamp", header.begin_log_offset, header.begin_timestamp),
        ("end_timestamp", header.end_log_offset, header.end_timestamp),
    )
    stored = [store.log.store_time_at(offset) for _, offset, _ in ends]
    wrong = [
        Wrong(
            name,
            f"{shown_time(time)}, when the record at log offset {offset} was stored",
            shown_time(found),
        )
        for (name, offset, found), time in zip(ends, stored, strict=True)
        if time is not None and time != found
    ]
    if wrong:
        yield header_finding(file.path, wrong)


def _check_range(
    file: IndexFile,
    found: CheckedItems,
    log_range: tuple[int, int],
    findings: Findings,
    closed: bool,
) -> None:
    """Findings for items that point outside the log. If the store was not `closed`, the log may be
    older than the index."""
    (start, end), beyond = log_range, found.beyond
    if beyond:
        findings.add(
            Finding(
                Severity.WARNING if closed else Severity.NOTE,
                "index-beyond-log",
                file.path,
                f"{counted(beyond, 'item')} pointing after the end of the log ({end}): the log was cut, or "
                "copied before the index",
                "The broker ignores what it cannot read; later records at these positions give wrong hits, "
                f"which a client has to filter. {_SHORTEN}",
                count=beyond,
            )
        )
    if 0 <= found.newest_offset < start:
        findings.add(
            a_note(
                "index-expired",
                file.path,
                "all items point before the start of the log",
                "The broker deletes the file at the next deletion of log files, unless it is the last",
                count=file.header.items,
            )
        )


def items_between(files: Sequence[IndexFile], start: int, stop: int) -> npt.NDArray[np.int64]:
    """Items that point into the log range [start, stop), each as one number, sorted. Some may
    repeat.

    The number combines the position in the range and the hash. Ranges are shorter than 2 GiB.
    """
    parts = []
    for file in files:
        header = file.header
        if not header.items or header.end_log_offset < start or header.begin_log_offset >= stop:
            continue
        for _, piece in file.pieces():
            offset = piece["log_offset"].astype(np.int64)
            rows = np.flatnonzero((offset >= start) & (offset < stop))
            parts.append(pair(offset[rows] - start, piece["key_hash"][rows].astype(np.int64)))
    if not parts:
        return np.zeros(0, dtype=np.int64)
    joined: npt.NDArray[np.int64] = np.concatenate(parts)
    joined.sort()
    return joined


def pair(place: Ints, hashes: Ints) -> Ints:
    """Position and hash combined into one number."""
    return place << 32 | (hashes & 0xFFFFFFFF)


class IndexPart:
    """The index items of one part of the log, the keys that they miss, and those of no record."""

    def __init__(self, store: MessageStore, start: int, stop: int) -> None:
        """Load the items of the log range [start, stop)."""
        files = open_index_files(store.path, store.config)
        self.dialect = _WITHOUT_TAG_ITEMS
        self._base = start
        self._items = items_between(files, start, stop)
        self._of_a_record = np.zeros(len(self._items), dtype=np.bool_)
        self._end, self._log_end = _end_of(files), store.log_range()[1]
        self._there = bool(files)
        self._closed = was_closed(store.path)
        self._path = str(store.path / INDEX_DIR)
        self._missing = 0
        self._first_missing = -1
        self._behind = 0

    def check(self, records: DecodedRecords) -> None:
        """Check that the items have the keys of these records, and note which they are."""
        if not self._there:
            return
        places = records.headers.at + records.headers.base
        items, of_tags = index_items(records, self.dialect), tag_items(records)
        row = items.row
        found = self._has(places[row], items.hashes)
        self._has(places[of_tags.row], of_tags.hashes)
        # A killed broker may have indexed only some keys of a record.
        behind = places[row] > self._end if self._closed else places[row] >= self._end
        self._behind += len(np.unique(row[behind]))
        lost = np.flatnonzero(~found & ~behind)
        self._missing += len(lost)
        if len(lost) and self._first_missing < 0:
            self._first_missing = int(places[row[lost[0]]])

    def _has(self, places: Ints, hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these keys have an item, by the log offsets of their records and their hashes."""
        if not len(self._items):
            return np.zeros(len(hashes), dtype=np.bool_)
        wanted = pair(places - self._base, hashes.astype(np.int64))
        at = np.minimum(np.searchsorted(self._items, wanted), len(self._items) - 1)
        found = np.asarray(self._items[at] == wanted)
        self._of_a_record[at[found]] = True
        return found

    def excuse(self, start: int, stop: int) -> None:
        """Expect no records in the log range [start, stop), which is damaged."""
        rows = np.searchsorted(self._items, [(at - self._base) << 32 for at in (start, stop)])
        self._of_a_record[rows[0] : rows[1]] = True

    def _false_items(self) -> Ints:
        """The log offsets of items that lead to no record with their key. Of equal items, one is noted."""
        fresh = np.ones(len(self._items), dtype=np.bool_)
        fresh[1:] = self._items[1:] != self._items[:-1]
        group = np.cumsum(fresh) - 1
        false = self._items[~self._of_a_record[fresh][group]]
        offsets: Ints = (false >> 32) + self._base
        # Those after the end of the log, and zeros in place of an item, are reported for themselves.
        kept: Ints = offsets[(offsets < self._log_end) & ((offsets > 0) | (false != 0))]
        return kept

    def conclude(self, findings: Findings) -> int:
        """Add the findings. Returns the number of records after the end of the index."""
        false = self._false_items()
        if len(false):
            findings.add(
                a_warning(
                    "index-false-item",
                    self._path,
                    f"{counted(len(false), 'item')} leading to no record with the key, the first to log "
                    f"offset {int(false[0])}: the broker does not find the messages that they were made for",
                    FALSE_ITEM,
                    count=len(false),
                )
            )
        if self._missing:
            findings.add(
                a_warning(
                    "index-gap",
                    self._path,
                    f"{self._missing} keys of records from log offset {self._first_missing} on are "
                    "in no index file: the broker does not find these messages by key",
                    "A broker leaves such gaps after a crash, or if it ran without messageIndexEnable. "
                    "rmq_store searches log ranges that no index file covers and those around damaged items, "
                    "but misses other keys inside a file. To repair it, run rmqstore rebuild STORE --to NEW",
                    count=self._missing,
                )
            )
        return self._behind


def _end_of(files: Sequence[IndexFile]) -> int:
    return max((file.header.end_log_offset for file in files if file.header.items), default=-1)
