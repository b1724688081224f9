"""Check index files for consistency, and against the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from rmq_store.arrow.column_values import DecodedRecords
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import IndexGeometryError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.files.source import Sources
from rmq_store.format.byte_layout import (
    CHECKPOINT_FILE,
    INDEX_DIR,
    INDEX_HEADER,
    INDEX_ITEM,
    INDEX_SLOT,
    Ints,
    Mask,
)
from rmq_store.index.index_file_reader import (
    FILES_MAPPED,
    Geometry,
    IndexFile,
    list_index_files,
    open_index_file,
    open_index_files,
)
from rmq_store.index.index_writer import index_items, tag_items
from rmq_store.loops.index_items import check_items, pairs_between
from rmq_store.markers import Checkpoint, was_closed
from rmq_store.reading.store_reader import StoreReader
from rmq_store.text.sizes import counted
from rmq_store.text.times import shown_time
from rmq_store.verify.findings import Finding, Findings, Severity, a_note, a_warning

_TODO = (
    "Messages are not affected. rmqstore rebuild rebuilds the index, in a new store; a broker that starts "
    "without this file finds no message by the keys in it"
)
FALSE_ITEM = (
    "Messages are not affected, and rmq_store searches the log around such items. To repair the index, "
    "run rmqstore rebuild STORE --to NEW"
)
_INT_MAX = 2**31 - 1
_WRONG, _ZEROS = 1, 2  # as the loop marks items
# The broker flushes a full file in a separate thread while it fills the next one.
_BEING_WRITTEN = 2
_SHORTEN = (
    "Delete a copy's index files and rebuild them from the log: rmqstore rebuild STORE --to NEW"
)


class HeaderFault(NamedTuple):
    """A header field with an impossible value."""

    field: str
    expected: str
    found: int | str


def header_damage(file: IndexFile) -> Iterator[Finding]:
    """Findings for impossible header values, whatever the items are."""
    header, most, wrong = file.header, file.geometry.items, []
    for name in ("begin_timestamp", "end_timestamp", "begin_log_offset", "end_log_offset"):
        if getattr(header, name) < 0:
            wrong.append(HeaderFault(name, "0 or more", getattr(header, name)))
    if 0 <= header.end_log_offset < header.begin_log_offset:
        least = f"{header.begin_log_offset} or more"
        wrong.append(HeaderFault("end_log_offset", least, header.end_log_offset))
    for name in ("index_count", "hash_slot_count"):
        if not 0 <= getattr(header, name) <= most:
            wrong.append(HeaderFault(name, f"0 to {most}", getattr(header, name)))
    if wrong:
        yield header_finding(file.path, wrong)


def contradictions_in(
    file: IndexFile, items: CheckedItems, *, half_written: bool
) -> Iterator[Finding]:
    """Findings for contradictions in a file: at most one each for header, slots and items.

    `half_written`: the broker was writing the file when it crashed or when the file was copied.
    Then some parts may be older than others.
    """
    impossible = list(header_damage(file))
    yield from impossible
    if impossible:
        return
    slots = _wrong_slots(file, items)
    wrong = list(_wrong_fields(file, items, slots))
    if half_written:
        # Even an old part never has a slot that points to such a position.
        never = (slots.found < 0) | (slots.found >= file.geometry.items)
        if never.any():
            yield _slot_finding(file, slots, never)
        elif wrong or len(slots.number) or len(items.zeros) or len(items.broken):
            yield finding_of_file_being_written(file.path)
        return
    if wrong:
        yield header_finding(file.path, wrong)
    elif items.astray:
        yield _astray_finding(file, items)
    if len(slots.number):
        yield _slot_finding(file, slots, slice(None))
    yield from _item_findings(file, items)


class _Slots(NamedTuple):
    """Slots that do not point to their newest item, and the highest uncounted item that a slot
    points to."""

    number: Ints
    expected: Ints
    found: Ints
    reaches: int  # the highest number of an item after the counted ones that is in its slot


def _wrong_slots(file: IndexFile, items: CheckedItems) -> _Slots:
    count, places = file.header.items, file.geometry.items
    numbers, reaches = [], 0
    for first, heads in file.slot_heads():
        wanted = items.newest[first : first + len(heads)].astype(np.int64)
        differs = np.flatnonzero(heads != wanted)
        if not len(differs):
            continue
        slot, head, newest = differs + first, heads[differs], wanted[differs]
        behind = (head > count) & (head < places)
        hangs = np.zeros(len(slot), dtype=np.bool_)
        hangs[behind] = file.slots_of(head[behind]) == slot[behind]
        reaches = max(reaches, int(head[hangs].max(initial=0)))
        # A damaged item is reported as such; its slot may be right.
        inside = np.where((head >= 0) & (head <= count), head, 0)
        excused = hangs | items.bad[newest] | (items.bad[inside] & (inside > 0))
        numbers.append(np.stack([slot, newest, head])[:, ~excused])
    joined = np.concatenate([np.zeros((3, 0), dtype=np.int64), *numbers], axis=1)
    return _Slots(joined[0], joined[1], joined[2], reaches)


def _wrong_fields(file: IndexFile, items: CheckedItems, slots: _Slots) -> Iterator[HeaderFault]:
    header = file.header
    count = header.items
    if slots.reaches:
        yield HeaderFault("index_count", f"{slots.reaches + 1} or more", header.index_count)
    if not count:
        return
    if not items.bad[1] and header.begin_log_offset != items.first_offset:
        yield HeaderFault("begin_log_offset", str(items.first_offset), header.begin_log_offset)
    if slots.reaches or items.bad[count]:
        return  # the rest checks the last item
    if header.end_log_offset != items.last_offset:
        yield HeaderFault("end_log_offset", str(items.last_offset), header.end_log_offset)
    seconds = min(max(0, header.end_timestamp - header.begin_timestamp) // 1000, _INT_MAX)
    if count > 1 and header.begin_timestamp > 0 and seconds != items.last_time_diff:
        last = header.begin_timestamp + 1000 * items.last_time_diff
        yield HeaderFault("end_timestamp", f"{last} to {last + 999}", header.end_timestamp)
    used = int(np.count_nonzero(items.newest))
    # Before 4.7.1 the field has the number of items, and an old broker may have started the file.
    if not items.bad.any() and not used <= header.hash_slot_count <= count:
        yield HeaderFault("hash_slot_count", f"{used} to {count}", header.hash_slot_count)


def _damaged(path: str, meaning: str, start: int, stop: int, count: int = 1) -> Finding:
    return a_warning("index-damaged", path, meaning, _TODO, start, stop, count)


def finding_of_file_being_written(path: str) -> Finding:
    """The finding for a file that was not completely written at a crash or a copy."""
    return a_note(
        "index-half-written",
        path,
        "a broker was writing this file, and a part of it is older than the rest",
        "Normal after a crash and in a copy of a running store: the broker drops the file when it "
        "recovers the store",
    )


def finding_of_wrong_size(path: str, expected: int, size: int) -> Finding:
    """The finding for a file with another size than the others of its store."""
    return _damaged(
        path,
        f"the file was cut or extended (expected {expected} bytes like the other "
        f"index files, found {size}). The broker misses every key in it",
        min(expected, size),
        max(expected, size),
    )


def header_finding(path: str, wrong: Sequence[HeaderFault]) -> Finding:
    """The finding for fields of a header."""
    assert INDEX_HEADER.fields is not None
    texts = "; ".join(
        f"{name} (expected {expected}, found {found})" for name, expected, found in wrong
    )
    kind, at = INDEX_HEADER.fields[wrong[0].field][:2]
    return _damaged(
        path,
        f"the header is damaged: {texts}. The broker misses keys in the file",
        at,
        at + kind.itemsize,
        len(wrong),
    )


def _slot_finding(file: IndexFile, slots: _Slots, rows: Mask | slice) -> Finding:
    number, expected, in_slot = (int(part[rows][0]) for part in slots[:3])
    start, count = INDEX_HEADER.itemsize + number * INDEX_SLOT.itemsize, len(slots.number[rows])
    return _damaged(
        file.path,
        f"{count} slots do not point to their newest item; the first is slot "
        f"{number} (expected {expected}, found {in_slot}). The broker misses the keys of these slots",
        start,
        start + INDEX_SLOT.itemsize,
        count,
    )


def _astray_finding(file: IndexFile, items: CheckedItems) -> Finding:
    number, header = items.first_astray, file.header
    start = file.item_at(number)
    return a_warning(
        "index-false-item",
        file.path,
        f"{counted(items.astray, 'item')} leading out of the file's range of the log; the first is item "
        f"{number} (expected log offset {header.begin_log_offset} to {header.end_log_offset}, found "
        f"{file.item(number)['log_offset']}). The broker does not find their messages",
        FALSE_ITEM,
        start,
        start + INDEX_ITEM.itemsize,
        items.astray,
    )


def _item_findings(file: IndexFile, items: CheckedItems) -> Iterator[Finding]:
    if len(items.zeros):
        number = int(items.zeros[0])
        start = file.item_at(number)
        yield _damaged(
            file.path,
            f"{len(items.zeros)} of {file.header.items} items are missing; the first is item "
            f"{number} (expected an item, found zeros)",
            start,
            start + INDEX_ITEM.itemsize,
            len(items.zeros),
        )
    if len(items.broken):
        number = int(items.broken[0])
        start = file.item_at(number)
        yield a_warning(
            "index-broken-chain",
            file.path,
            f"{counted(len(items.broken), 'item')} not pointing to the one before in the slot; the first is "
            f"item {number} (expected item {items.before_broken}, found {file.item(number)['previous']}). "
            "Look-ups that reach them miss the items before",
            _TODO,
            start,
            start + INDEX_ITEM.itemsize,
            len(items.broken),
        )


@dataclass(slots=True)
class CheckedItems:
    """The result of one pass over all items. Per slot: the number of its newest item (0: none), and
    of its items.

    `bad` (by number): items that do not lead to the one before them in their slot, and zeros.
    """

    newest: npt.NDArray[np.int32]
    used: npt.NDArray[np.int32]
    bad: Mask
    broken: Ints  # numbers of items with a wrong chain
    zeros: Ints  # numbers of items that were never written
    astray: int  # items that lead out of the log range in the header
    first_astray: int  # the number of the first of them
    before_broken: int  # the number that the first item with a wrong chain should have
    beyond: int  # items that point after the log
    newest_offset: int  # log offset, the highest
    first_offset: int = -1
    last_offset: int = -1
    last_time_diff: int = 0  # seconds


def check_file(file: IndexFile, log_end: int) -> CheckedItems:
    """Read all items that the header counts."""
    header, slots = file.header, file.geometry.slots
    # The two numbers of a slot are in one line of the cache.
    by_slot = np.zeros((slots, 2), dtype=np.int32)
    faults = np.zeros(header.items + 1, dtype=np.uint8)
    numbers = np.array([0, 0, -1, 0, -1], dtype=np.int64)
    ends: list[npt.NDArray[Any]] = []
    for first, items in file.pieces():
        check_items(
            *(items.view(np.uint8).data, first, slots),
            *(header.begin_log_offset, header.end_log_offset, log_end),
            *(by_slot.reshape(-1).data, faults.data, numbers.data),
        )
        if first == 1 and header.begin_log_offset == 0 and not (faults[2:] & _ZEROS).any():
            faults[1] &= _WRONG  # a key of hash 0 in the first record of the log
        ends = [*ends[:1], items[0], items[-1]]
    numbers[2] = max(numbers[2], 0)  # -1 without a wrong chain
    wrong, zeros = (np.flatnonzero(faults & kind) for kind in (_WRONG, _ZEROS))
    newest, used = by_slot.T
    checked = CheckedItems(newest, used, faults != 0, wrong, zeros, *numbers.tolist())
    if ends:
        checked.first_offset, checked.last_offset = (int(ends[n]["log_offset"]) for n in (0, -1))
        checked.last_time_diff = int(ends[-1]["time_diff"])
    return checked


@dataclass(frozen=True, slots=True)
class IndexFileStats:
    """How full a file is, and the longest chain that a look-up follows."""

    path: str
    items: int
    capacity: int
    slots: int
    slots_used: int
    longest_chain: int


def check_files(store: StoreReader, findings: Findings) -> list[IndexFileStats]:
    """Check each index file of a store. Returns the health of those that fit a geometry."""
    closed = was_closed(store.path)
    sources = Sources(FILES_MAPPED)
    segments = list_index_files(store.path / INDEX_DIR)
    opened = [open_index_file(segment, store.config, sources) for segment in segments]
    geometries = [
        file.geometry for file in opened if isinstance(file, IndexFile) and file.header.items
    ]
    for short in list_index_files(store.path / INDEX_DIR, too_short=True):
        expected = geometries[-1].file_size if geometries else INDEX_HEADER.itemsize
        # A broker creates the file before it sets its size.
        just_made = not closed and all(segment.path < short.path for segment in segments)
        wrong = finding_of_wrong_size(short.path, expected, short.size)
        findings.add(finding_of_file_being_written(short.path) if just_made else wrong)
    flushed = 0 if closed else _flushed_until(store)
    health = []
    for segment, file in zip(segments, opened, strict=True):
        half_written = not closed and segment in segments[-_BEING_WRITTEN:]
        likely = _likely_geometry(segment, store.config, geometries)
        if not isinstance(file, IndexFile):
            about = _about_unsure(
                segment, file, geometries, likely, sources, half_written, store.config
            )
            findings.add_all(about)
            continue
        half_written |= not closed and file.header.end_timestamp > flushed
        if not file.header.items and likely is not None:  # a file without items fits any geometry
            file = IndexFile(segment, assumed=likely, sources=sources)
        scanned = check_file(file, store.log_range()[1])
        if file.header.items or likely is not None:
            findings.add_all(contradictions_in(file, scanned, half_written=half_written))
        findings.add_all(_out_of_log(file, scanned, store.log_range(), closed))
        if not half_written and file.header.items:
            findings.add_all(_wrong_times(store, file))
        used, longest = int(np.count_nonzero(scanned.used)), int(scanned.used.max(initial=0))
        places = file.geometry.items, file.geometry.slots
        health.append(IndexFileStats(file.path, file.header.items, *places, used, longest))
    return health


def _flushed_until(store: StoreReader) -> int:
    """The time (ms) up to which the index was flushed. After a crash the broker keeps index files
    that end before it."""
    try:
        return Checkpoint.read_or_zero(store.path / CHECKPOINT_FILE).index_msg_timestamp
    except StoreError:
        return 0


def _about_unsure(
    segment: SegmentFile,
    error: IndexGeometryError,
    geometries: Sequence[Geometry],
    geometry: Geometry | None,
    sources: Sources,
    half_written: bool,
    config: StoreConfig,
) -> Iterator[Finding]:
    """The damage of a file that fits no geometry, compared with its likely geometry."""
    if geometry is None:
        sizes = {one.file_size for one in geometries}
        if len(sizes) == 1 and segment.size not in sizes and not half_written:
            yield finding_of_wrong_size(segment.path, sizes.pop(), segment.size)
            return
        geometry = Geometry(0, (segment.size - INDEX_HEADER.itemsize) // INDEX_ITEM.itemsize)
    file = IndexFile(segment, assumed=geometry, sources=sources)
    findings = list(header_damage(file))
    if not findings and geometry.slots:
        findings = list(contradictions_in(file, check_file(file, 0), half_written=half_written))
    if not findings and half_written:  # its header and its items are of different moments
        findings = [finding_of_file_being_written(segment.path)]
    if findings:
        yield from findings
        return
    consequence = "A broker with the given maxHashSlotNum and maxIndexNum misses every key in it"
    if config.maxHashSlotNum is None and config.maxIndexNum is None:
        consequence = (
            "Its items were not examined: it may be intact, of a maxHashSlotNum and maxIndexNum that "
            "are unknown here"
        )
    yield a_warning(
        "index-unreadable", segment.path, f"{error.reason}. {consequence}", error.advice or _SHORTEN
    )


def _likely_geometry(
    segment: SegmentFile, config: StoreConfig, geometries: Sequence[Geometry]
) -> Geometry | None:
    """The likely geometry of a damaged file: that of other files of its size, the configured one,
    or the default."""
    if not geometries and (config.maxHashSlotNum, config.maxIndexNum) != (None, None):
        try:
            IndexFile(segment)
        except IndexGeometryError:
            pass
        else:
            return None  # the file is intact, the configured geometry is wrong
    guesses = [*geometries, Geometry(config.index_slots, config.index_items)]
    return next((guess for guess in guesses if guess.file_size == segment.size), None)


def _wrong_times(store: StoreReader, file: IndexFile) -> Iterator[Finding]:
    """The finding for a time of the header that is not that of the record at its log offset."""
    wrong = []
    for end in ("begin", "end"):
        offset, said = (getattr(file.header, f"{end}_{of}") for of in ("log_offset", "timestamp"))
        time = store.log.store_time_at(offset)
        if time is not None and time != said:
            stored = f"{shown_time(time)}, when the record at log offset {offset} was stored"
            wrong.append(HeaderFault(f"{end}_timestamp", stored, shown_time(said)))
    if wrong:
        yield header_finding(file.path, wrong)


def _out_of_log(
    file: IndexFile, items: CheckedItems, log_range: tuple[int, int], closed: bool
) -> Iterator[Finding]:
    """Findings for items that point outside the log. If the store was not `closed`, the log may be
    older than the index."""
    (start, end), beyond = log_range, items.beyond
    if beyond:
        yield Finding(
            Severity.WARNING if closed else Severity.NOTE,
            "index-beyond-log",
            file.path,
            f"{counted(beyond, 'item')} pointing after the end of the log ({end}): the log was cut, or "
            "copied before the index",
            "The broker ignores what it cannot read; later records at these positions give wrong hits, "
            f"which a client has to filter. {_SHORTEN}",
            count=beyond,
        )
    if 0 <= items.newest_offset < start:
        yield a_note(
            "index-expired",
            file.path,
            "all items point before the start of the log",
            "The broker deletes the file at the next deletion of log files, unless it is the last",
            count=file.header.items,
        )


_Span = tuple[int, int]
_spans: WeakKeyDictionary[StoreReader, dict[tuple[str, int], _Span]] = WeakKeyDictionary()


def items_between(
    files: Sequence[IndexFile], start: int, stop: int, spans: dict[tuple[str, int], _Span]
) -> npt.NDArray[np.int64]:
    """The items that lead into the log range [start, stop), shorter than 2 GiB, as numbers in log order.

    A number combines the log offset and the hash of an item. Items of one record stay in the order of the
    files; some may repeat. `spans` says of each piece of a file that was read before, by path and the number
    behind its last item, to which log offsets its items lead: from the lowest to the highest. A piece that
    does not lead into the range is not read again.
    """
    parts, room = [], np.empty(0, dtype=np.int64)
    for file in files:
        header = file.header
        if not header.items or header.end_log_offset < start or header.begin_log_offset >= stop:
            continue

        def may_lead_there(behind: int, path: str = file.path) -> bool:
            low, high = spans.get((path, behind), (start, start))
            return low < stop and high >= start

        for first, piece in file.pieces(may_lead_there):
            room = room if len(room) >= len(piece) else np.empty(len(piece), dtype=np.int64)
            raw, behind = piece.view(np.uint8).data, first + len(piece)
            count, low, high = pairs_between(raw, start, stop, room.data)
            spans[file.path, behind] = low, high
            parts.append(room[:count].copy())
    if not parts:
        return np.zeros(0, dtype=np.int64)
    joined: npt.NDArray[np.int64] = np.concatenate(parts)
    positions = joined >> 32
    if (positions[1:] < positions[:-1]).any():
        joined = joined[np.argsort(positions, kind="stable")]
    return joined


def item_identity(place: Ints, hashes: Ints) -> Ints:
    """Position and hash combined into one number."""
    return place << 32 | (hashes & 0xFFFFFFFF)


class IndexPart:
    """The index items of one part of the log, the keys that they miss, and those of no record."""

    def __init__(self, store: StoreReader, start: int, stop: int) -> None:
        """Load the items of the log range [start, stop)."""
        files = open_index_files(store.path, store.config)
        self._base = start
        self._items = items_between(files, start, stop, _spans.setdefault(store, {}))
        self._of_a_record = np.zeros(len(self._items), dtype=np.bool_)
        ends = (file.header.end_log_offset for file in files if file.header.items)
        self._end, self._log_end = max(ends, default=-1), store.log_range()[1]
        self._has_files, self._closed = bool(files), was_closed(store.path)
        self._path = str(store.path / INDEX_DIR)
        self._missing, self._first_missing, self._behind = 0, -1, 0

    def check(self, records: DecodedRecords) -> None:
        """Check that the items have the keys of these records, and note which they are."""
        if not self._has_files:
            return
        places = records.headers.at + records.headers.base
        first, last = int(places[0]), int(places[-1])
        mine = self._items_at(first, last + 1)
        reached = last <= self._end if self._closed else last < self._end
        if reached and self._are_items_of(records, places, mine):
            self._of_a_record[mine] = True
            return
        self._items[mine].sort()
        items, of_tags = index_items(records, of_tags=False), tag_items(records)
        row = items.row
        has_item = self._has(places[row], items.hashes)
        self._has(places[of_tags.row], of_tags.hashes)
        # A killed broker may have indexed only some keys of a record.
        behind = places[row] > self._end if self._closed else places[row] >= self._end
        self._behind += len(np.unique(row[behind]))
        lost = np.flatnonzero(~has_item & ~behind)
        self._missing += len(lost)
        if len(lost) and self._first_missing < 0:
            self._first_missing = int(places[row[lost[0]]])

    def _items_at(self, start: int, stop: int) -> slice:
        """The items that lead into the log range [start, stop)."""
        return slice(
            *np.searchsorted(self._items, [(at - self._base) << 32 for at in (start, stop)])
        )

    def _are_items_of(self, records: DecodedRecords, places: Ints, mine: slice) -> bool:
        """Whether some items are those of these records, in the order in which a broker puts them."""
        for of_tags in (True, False):  # by the release, which no file has
            items = index_items(records, of_tags=of_tags)
            if len(items.hashes) == mine.stop - mine.start:
                made = item_identity(places[items.row] - self._base, items.hashes.astype(np.int64))
                if np.array_equal(made, self._items[mine]):
                    return True
        return False

    def _has(self, places: Ints, hashes: npt.NDArray[np.int32]) -> Mask:
        """Which of these keys have an item, by the log offsets of their records and their hashes."""
        if not len(self._items):
            return np.zeros(len(hashes), dtype=np.bool_)
        wanted = item_identity(places - self._base, hashes.astype(np.int64))
        at = np.minimum(np.searchsorted(self._items, wanted), len(self._items) - 1)
        has_item = np.asarray(self._items[at] == wanted)
        self._of_a_record[at[has_item]] = True
        return has_item

    def excuse_damaged_range(self, start: int, stop: int) -> None:
        """Expect no records in the log range [start, stop), which is damaged."""
        self._of_a_record[self._items_at(start, stop)] = True

    def _false_items(self) -> Ints:
        """The log offsets of items that lead to no record with their key. Of equal items, one is noted."""
        if self._of_a_record.all():
            return self._items[:0]
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
