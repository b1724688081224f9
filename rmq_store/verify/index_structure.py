"""Find damage in an index file by comparing its header, slots and items.

The file has no checksum, but its parts refer to each other (IndexFile#putKey). A slot points to the
newest item of its hash, and an item points to the one before. The header counts the items, and
repeats the positions and times of the first and last item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.format.array_types import Ints
from rmq_store.format.byte_layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT
from rmq_store.index.index_file_reader import Header, IndexFile
from rmq_store.loops.index_items import check_items
from rmq_store.text.sizes import counted
from rmq_store.verify.findings import Finding, a_note, a_warning

_TODO = (
    "Messages are not affected. rmqstore rebuild rebuilds the index, in a new store; a broker that starts "
    "without this file finds no message by the keys in it"
)
FALSE_ITEM = (
    "Messages are not affected, and rmq_store searches the log around such items. To repair the index, "
    "run rmqstore rebuild STORE --to NEW"
)
_INT_MAX = 2**31 - 1


class Wrong(NamedTuple):
    """A header field with an impossible value."""

    field: str
    expected: str
    found: int | str


def header_damage(file: IndexFile) -> Iterator[Finding]:
    """Findings for impossible header values, whatever the items are."""
    wrong = _impossible_fields(file.header, file.geometry.items)
    if wrong:
        yield header_finding(file.path, wrong)


def _impossible_fields(header: Header, most_places: int) -> list[Wrong]:
    wrong = []
    names = ("begin_timestamp", "end_timestamp", "begin_log_offset", "end_log_offset")
    for name in names:
        if getattr(header, name) < 0:
            wrong.append(Wrong(name, "0 or more", getattr(header, name)))
    if 0 <= header.end_log_offset < header.begin_log_offset:
        wrong.append(
            Wrong("end_log_offset", f"{header.begin_log_offset} or more", header.end_log_offset)
        )
    for name in ("index_count", "hash_slot_count"):
        if not 0 <= getattr(header, name) <= most_places:
            wrong.append(Wrong(name, f"0 to {most_places}", getattr(header, name)))
    return wrong


def damage_of(file: IndexFile, found: CheckedItems, *, half_written: bool) -> Iterator[Finding]:
    """Findings for contradictions in a file: at most one each for header, slots and items.

    `half_written`: the broker was writing the file when it crashed or when the file was copied.
    Then some parts may be older than others.
    """
    impossible = list(header_damage(file))
    if impossible:
        yield from impossible
        return
    slots = _wrong_slots(file, found)
    wrong = list(_wrong_fields(file, found, slots))
    if half_written:
        # Even an old part never has a slot that points to such a position.
        never = slots.only((slots.found < 0) | (slots.found >= file.geometry.items))
        if len(never.number):
            yield _slot_finding(file, never)
        elif wrong or len(slots.number) or len(found.zeros) or len(found.broken):
            yield being_written(file.path)
        return
    if wrong:
        yield header_finding(file.path, wrong)
    elif found.astray:
        yield _astray_finding(file, found)
    if len(slots.number):
        yield _slot_finding(file, slots)
    yield from _item_findings(file, found)


class _Slots(NamedTuple):
    """Slots that do not point to their newest item, and the highest uncounted item that a slot
    points to."""

    number: Ints
    expected: Ints
    found: Ints
    reaches: int  # the highest number of an item after the counted ones that is in its slot

    def only(self, rows: npt.NDArray[np.bool_]) -> _Slots:
        """Some of them."""
        return _Slots(self.number[rows], self.expected[rows], self.found[rows], self.reaches)


def _wrong_slots(file: IndexFile, found: CheckedItems) -> _Slots:
    count, places = file.header.items, file.geometry.items
    numbers, reaches = [], 0
    for first, heads in file.slot_heads():
        wanted = found.newest[first : first + len(heads)].astype(np.int64)
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
        excused = hangs | found.bad[newest] | (found.bad[inside] & (inside > 0))
        numbers.append(np.stack([slot, newest, head])[:, ~excused])
    joined = np.concatenate([np.zeros((3, 0), dtype=np.int64), *numbers], axis=1)
    return _Slots(joined[0], joined[1], joined[2], reaches)


def _wrong_fields(file: IndexFile, found: CheckedItems, slots: _Slots) -> Iterator[Wrong]:
    header = file.header
    count = header.items
    if slots.reaches:
        yield Wrong("index_count", f"{slots.reaches + 1} or more", header.index_count)
    if not count:
        return
    if not found.bad[1] and header.begin_log_offset != found.first_offset:
        yield Wrong("begin_log_offset", str(found.first_offset), header.begin_log_offset)
    if slots.reaches or found.bad[count]:
        return  # the rest checks the last item
    if header.end_log_offset != found.last_offset:
        yield Wrong("end_log_offset", str(found.last_offset), header.end_log_offset)
    seconds = min(max(0, header.end_timestamp - header.begin_timestamp) // 1000, _INT_MAX)
    if count > 1 and header.begin_timestamp > 0 and seconds != found.last_time_diff:
        last = header.begin_timestamp + 1000 * found.last_time_diff
        yield Wrong("end_timestamp", f"{last} to {last + 999}", header.end_timestamp)
    used = int(np.count_nonzero(found.newest))
    # Before 4.7.1 the field has the number of items, and an old broker may have started the file.
    if not found.bad.any() and not used <= header.hash_slot_count <= count:
        yield Wrong("hash_slot_count", f"{used} to {count}", header.hash_slot_count)


# --- as findings ----------------------------------------------------------------------------------


def _damaged(path: str, meaning: str, start: int, stop: int, count: int = 1) -> Finding:
    return a_warning("index-damaged", path, meaning, _TODO, start, stop, count)


def being_written(path: str) -> Finding:
    """The finding for a file that was not completely written at a crash or a copy."""
    return a_note(
        "index-half-written",
        path,
        "a broker was writing this file, and a part of it is older than the rest",
        "Normal after a crash and in a copy of a running store: the broker drops the file when it "
        "recovers the store",
    )


def wrong_size(path: str, expected: int, found: int) -> Finding:
    """The finding for a file with another size than the others of its store."""
    return _damaged(
        path,
        f"the file was cut or extended (expected {expected} bytes like the other "
        f"index files, found {found}). The broker misses every key in it",
        min(expected, found),
        max(expected, found),
    )


def header_finding(path: str, wrong: Sequence[Wrong]) -> Finding:
    """The finding for fields of a header."""
    assert INDEX_HEADER.fields is not None
    field_texts = "; ".join(
        f"{one.field} (expected {one.expected}, found {one.found})" for one in wrong
    )
    kind, at = INDEX_HEADER.fields[wrong[0].field][:2]
    return _damaged(
        path,
        f"the header is damaged: {field_texts}. The broker misses keys in the file",
        at,
        at + kind.itemsize,
        len(wrong),
    )


def _slot_finding(file: IndexFile, slots: _Slots) -> Finding:
    number, expected, found = int(slots.number[0]), int(slots.expected[0]), int(slots.found[0])
    start = INDEX_HEADER.itemsize + number * INDEX_SLOT.itemsize
    return _damaged(
        file.path,
        f"{len(slots.number)} slots do not point to their newest item; the first is slot "
        f"{number} (expected {expected}, found {found}). The broker misses the keys of these slots",
        start,
        start + INDEX_SLOT.itemsize,
        len(slots.number),
    )


def _astray_finding(file: IndexFile, found: CheckedItems) -> Finding:
    number, header = found.first_astray, file.header
    start = file.item_at(number)
    return a_warning(
        "index-false-item",
        file.path,
        f"{counted(found.astray, 'item')} leading out of the file's range of the log; the first is item "
        f"{number} (expected log offset {header.begin_log_offset} to {header.end_log_offset}, found "
        f"{file.log_offset_of(number)}). The broker does not find their messages",
        FALSE_ITEM,
        start,
        start + INDEX_ITEM.itemsize,
        found.astray,
    )


def _item_findings(file: IndexFile, found: CheckedItems) -> Iterator[Finding]:
    if len(found.zeros):
        number = int(found.zeros[0])
        start = file.item_at(number)
        yield _damaged(
            file.path,
            f"{len(found.zeros)} of {file.header.items} items are missing; the first is item "
            f"{number} (expected an item, found zeros)",
            start,
            start + INDEX_ITEM.itemsize,
            len(found.zeros),
        )
    if len(found.broken):
        number = int(found.broken[0])
        start = file.item_at(number)
        yield a_warning(
            "index-broken-chain",
            file.path,
            f"{counted(len(found.broken), 'item')} not pointing to the one before in the slot; the first is "
            f"item {number} (expected item {found.before_broken}, found {file.previous_of(number)}). "
            "Look-ups that reach them miss the items before",
            _TODO,
            start,
            start + INDEX_ITEM.itemsize,
            len(found.broken),
        )


_WRONG, _ZEROS = 1, 2  # as the loop marks items


@dataclass(slots=True)
class CheckedItems:
    """The result of one pass over all items. Per slot: the number of its newest item (0: none), and
    of its items.

    `bad` (by number): items that do not lead to the one before them in their slot, and zeros.
    """

    newest: npt.NDArray[np.int32]
    used: npt.NDArray[np.int32]
    bad: npt.NDArray[np.bool_]
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
    newest = np.zeros(slots, dtype=np.int32)
    used = np.zeros(slots, dtype=np.int32)
    faults = np.zeros(header.items + 1, dtype=np.uint8)
    numbers = np.array([0, 0, -1, 0, -1], dtype=np.int64)
    ends: list[npt.NDArray[Any]] = []
    for first, items in file.pieces():
        check_items(
            *(items.view(np.uint8).data, first, slots),
            *(header.begin_log_offset, header.end_log_offset, log_end),
            *(newest.data, used.data, faults.data, numbers.data),
        )
        if first == 1 and header.begin_log_offset == 0 and not (faults[2:] & _ZEROS).any():
            faults[1] &= _WRONG  # a key of hash 0 in the first record of the log
        ends = [*ends[:1], items[0], items[-1]]
    numbers[2] = max(numbers[2], 0)  # -1 without a wrong chain
    wrong, zeros = (np.flatnonzero(faults & kind) for kind in (_WRONG, _ZEROS))
    found = CheckedItems(newest, used, faults != 0, wrong, zeros, *numbers.tolist())
    if ends:
        found.first_offset, found.last_offset = (int(ends[n]["log_offset"]) for n in (0, -1))
        found.last_time_diff = int(ends[-1]["time_diff"])
    return found
