"""Items put into an index file, and checked, compiled and interpreted, beside IndexFile#putKey."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmq_store.format.byte_layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, index_item_at
from rmq_store.loops import index_items
from tests.loops.interpreted import Form, both_forms, source_of

SLOTS, PLACES = 7, 60


class AsTheBroker:
    """A file of few slots, and one putKey after the other."""

    def __init__(self, number: int, begin: int, heads: list[int]) -> None:
        self.number, self.begin, self.alone = number, begin, 0
        self.slots = np.array(heads, INDEX_SLOT)
        self.items = np.zeros(PLACES, INDEX_ITEM)

    def put(self, key_hash: int, offset: int, stamp: int) -> None:
        before = int(self.slots[key_hash % SLOTS])
        if before <= 0 or before > self.number:
            before = 0
            self.alone += 1
        seconds = min(max((stamp - self.begin) // 1000, 0), 2**31 - 1) if self.begin > 0 else 0
        self.items[self.number] = (key_hash, offset, seconds, before)
        self.slots[key_hash % SLOTS] = self.number
        if self.number <= 1:
            self.begin = stamp
        self.number += 1

    def file(self) -> bytes:
        return bytes(INDEX_HEADER.itemsize) + self.slots.tobytes() + self.items.tobytes()


@both_forms
@pytest.mark.parametrize("seed", range(20))
def test_items_are_put_as_the_broker_does(form: Form, seed: int) -> None:
    chance = random.Random(seed)
    number, begin = chance.choice(((1, 0), (1, 5000), (9, 7000)))
    heads = [chance.choice((0, 0, 3, -5, 2**31 - 1, 20)) for _ in range(SLOTS)]
    expected = AsTheBroker(number, begin, heads)
    offsets = np.sort(np.array([chance.randrange(2**62) for _ in range(20)]))
    stamps = np.array([chance.choice((6999, 10**13, chance.randrange(10**6))) for _ in range(20)])
    row = np.array(sorted(chance.choices(range(20), k=40)))
    hashes = np.array(
        [chance.choice((0, 2**31 - 1, chance.randrange(2**31))) for _ in row], np.int32
    )
    file = np.frombuffer(expected.file(), np.uint8).copy()
    for key_hash, one in zip(hashes.tolist(), row.tolist(), strict=True):
        expected.put(key_hash, int(offsets[one]), int(stamps[one]))
    alone = form(index_items).put_items(
        *(file.data, file.data, SLOTS, number, begin, hashes.data, row.data),
        *(offsets.data, stamps.data),
    )
    assert file.tobytes() == expected.file()
    assert alone == expected.alone


@both_forms
def test_a_file_that_is_too_short_is_refused(form: Form) -> None:
    file = np.zeros(index_item_at(SLOTS, 3), np.uint8)
    one, row = np.zeros(1, np.int64), np.zeros(1, np.int64)
    hashes = np.array([-3], np.int32)
    put = form(index_items).put_items
    put(file.data, file.data, SLOTS, 2, 1, hashes.data, row.data, one.data, one.data)
    with pytest.raises(IndexError):
        put(file.data, file.data, SLOTS, 3, 1, hashes.data, row.data, one.data, one.data)
    with pytest.raises(IndexError):
        put(file.data, file.data, SLOTS, 1, 1, hashes.data, (row + 1).data, one.data, one.data)


@both_forms
@pytest.mark.parametrize("seed", range(20))
def test_wrong_items_are_found(form: Form, seed: int) -> None:
    chance = random.Random(seed)
    items = np.zeros(30, INDEX_ITEM)
    newest, used, faults = [0] * SLOTS, [0] * SLOTS, [0] * 31
    astray, beyond, expected_number = [], 0, -1
    for number in range(1, 31):
        key_hash = chance.choice((0, -4, chance.randrange(2**31)))
        offset = chance.choice((0, chance.randrange(1000)))
        slot = key_hash % SLOTS
        previous = newest[slot] if chance.random() < 0.9 else chance.randrange(-1, 40)
        items[number - 1] = (key_hash, offset, 0, previous)
        if previous != newest[slot]:
            faults[number] = 1
            expected_number = newest[slot] if expected_number < 0 else expected_number
        if not (key_hash or offset or previous):
            faults[number] += 2
        elif not 100 <= offset <= 800:
            astray.append(number)
        beyond += offset >= 900
        newest[slot] = number
        used[slot] += 1
    found = np.array([0, 0, -1, 0, -1])
    by_slot = np.zeros((SLOTS, 2), np.int32)
    marks = np.zeros(31, np.uint8)
    for first, piece in ((1, items[:17]), (18, items[17:])):
        form(index_items).check_items(
            *(np.frombuffer(piece.tobytes(), np.uint8).data, first, SLOTS, 100, 800, 900),
            *(by_slot.reshape(-1).data, marks.data, found.data),
        )
    assert by_slot.T.tolist() == [newest, used]
    assert marks.tolist() == faults
    first_astray = astray[0] if astray else 0
    newest_offset = int(items["log_offset"].max())
    assert found.tolist() == [len(astray), first_astray, expected_number, beyond, newest_offset]


@both_forms
def test_the_items_of_a_range_of_the_log(form: Form) -> None:
    items = np.zeros(4, INDEX_ITEM)
    items["log_offset"] = (100, 99, 2**40, 199)
    items["key_hash"] = (7, 8, 9, -1)
    raw, found = items.view(np.uint8).data, np.zeros(2, np.int64)
    assert form(index_items).pairs_between(raw, 100, 200, found.data) == (2, 99, 2**40)
    assert found.tolist() == [7, 99 << 32 | 0xFFFFFFFF]
    with pytest.raises(IndexError):
        form(index_items).pairs_between(raw, 0, 200, found.data)


def test_the_numbers_of_the_loop_are_those_of_the_format() -> None:
    loop, fields = source_of(index_items), INDEX_ITEM.fields
    assert fields is not None
    assert INDEX_HEADER.itemsize == loop._HEADER_SIZE
    assert INDEX_SLOT.itemsize == loop._SLOT_SIZE
    assert INDEX_ITEM.itemsize == loop._ITEM_SIZE
    assert fields["log_offset"][1] == loop._LOG_OFFSET_AT
    assert fields["time_diff"][1] == loop._TIME_DIFF_AT
    assert fields["previous"][1] == loop._PREVIOUS_AT


@both_forms
def test_a_file_without_slots_is_refused(form: Form) -> None:
    file, none = np.zeros(200, np.uint8), np.zeros(1, np.int64)
    with pytest.raises(IndexError, match="0 slots"):
        form(index_items).put_items(
            *(file.data, file.data, 0, 1, 0),
            *(np.zeros(1, np.int32).data, none.data, none.data, none.data),
        )
    numbers = np.zeros(9, np.int32).data
    with pytest.raises(IndexError, match="0 slots"):
        form(index_items).check_items(
            *(file.data, 1, 0, 0, 9, 9, numbers, file.data, np.zeros(5, np.int64).data)
        )
