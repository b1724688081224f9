"""Damaged items, slots and headers of real brokers' index files: no key has a wrong message, and verify names
what a key lacks."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.compute as pc
import pytest

from rmq_store import MessageStore
from rmq_store.errors import StoreError
from rmq_store.reading.slice_entries import OTHER_OFFSET
from rmq_store.search.find_messages import find
from rmq_store.search.selection import Search
from rmq_store.verify import verify
from tests.support.damage import flip_in_log, write_at
from tests.support.golden import GoldenStore, in_a_queue, unpack
from tests.support.running.campaigns import some
from tests.support.running.commands import complaint

HEAD, SLOT, ITEM = 40, 4, 20
SLOTS = {"clean-5.5.0": 200, "clean-5.2.0": 200}  # maxHashSlotNum of the brokers
FAST, CASES = 4, 1200


class Index:
    """The index files of a store, read and changed by the book."""

    def __init__(self, golden: GoldenStore) -> None:
        self.store, self.slots = golden.path, SLOTS[golden.name]
        self.whole = {p: p.read_bytes() for p in sorted(Path(golden.path, "index").iterdir())}
        self.keys: dict[int, set[str]] = defaultdict(set)
        self.places: dict[str, set[int]] = defaultdict(set)
        for record in golden.truth:
            words = {*(record["keys"] or "").split(), record["uniqKey"]} - {"", None}
            for word in words if record["sysFlag"] & 0xC != 0xC else ():
                self.keys[record["commitLogOffset"]].add(word)
                self.places[word].add(record["commitLogOffset"])

    def count(self, path: Path) -> int:
        return int.from_bytes(self.whole[path][36:40], "big") - 1

    def at(self, number: int) -> int:
        return HEAD + SLOT * self.slots + ITEM * number

    def item(self, path: Path, number: int) -> tuple[int, int]:
        """Hash and log offset."""
        found: tuple[int, int] = struct.unpack_from(">iq", self.whole[path], self.at(number))
        return found


def _put(raw: bytearray, at: int, form: str, value: int) -> None:
    struct.pack_into(form, raw, at, value)


def damage(index: Index, path: Path, number: int, chance: random.Random) -> tuple[str, bytes]:
    """The file's bytes with one thing damaged that concerns an item, and what that is."""
    raw, at = bytearray(index.whole[path]), index.at(number)
    key_hash, offset = index.item(path, number)
    slot = HEAD + SLOT * (key_hash % index.slots)
    other = chance.choice(list(index.keys))
    count = index.count(path)
    kinds: dict[str, Callable[[], None]] = {
        "leads into the log's first record": lambda: _put(raw, at + 4, ">q", 5),
        "leads after the log": lambda: _put(raw, at + 4, ">q", offset | 1 << 40),
        "leads beside its record": lambda: _put(
            raw, at + 4, ">q", offset + chance.choice((-7, 3, 40))
        ),
        "leads to another record": lambda: _put(raw, at + 4, ">q", other),
        "another hash": lambda: _put(raw, at, ">i", key_hash ^ 1 << chance.randrange(31)),
        "its link is lost": lambda: _put(raw, at + 16, ">i", 0),
        "its link leads elsewhere": lambda: _put(raw, at + 16, ">i", chance.randrange(count + 3)),
        "another time": lambda: _put(raw, at + 12, ">i", 7777),
        "zeros": lambda: raw.__setitem__(slice(at, at + ITEM), bytes(ITEM)),
        "its slot is empty": lambda: _put(raw, slot, ">i", 0),
        "its slot leads elsewhere": lambda: _put(raw, slot, ">i", chance.randrange(count + 3)),
        "begin_log_offset": lambda: _put(
            raw, 16, ">q", max(0, offset + chance.choice((-50_000, 7)))
        ),
        "end_log_offset": lambda: _put(
            raw, 24, ">q", offset + chance.choice((-9, 50_000, 1 << 40))
        ),
        "index_count": lambda: _put(raw, 36, ">i", chance.randrange(count + 30)),
    }
    kind = chance.choice(list(kinds))
    kinds[kind]()
    return kind, bytes(raw)


def found(store: MessageStore, key: str) -> set[int]:
    search = Search(keys=(key,), include_system_topics=True, unwrap_batches=True)
    batches = list(find(store, search, ["commitLogOffset"]))
    return {offset for batch in batches for offset in batch.column(0).to_pylist()}


def run_damage(name: str, folder: Path, seeds: Iterable[int]) -> None:
    golden = unpack(name, folder)
    index = Index(golden)
    for seed in seeds:
        chance = random.Random(seed)
        path = chance.choice(list(index.whole))
        number = chance.randrange(1, index.count(path) + 1)
        kind, raw = damage(index, path, number, chance)
        with golden.open() as store:
            keys = sorted(index.keys[index.item(path, number)[1]])
            known = [key for key in keys if found(store, key) == index.places[key]]
        path.write_bytes(raw)
        for key in known:
            with golden.open() as store:
                given = found(store, key)
                codes = {one.code for one in verify(store).findings}
            assert given <= index.places[key], f"seed {seed}: {path.name}, item {number}: {kind}"
            named = given == index.places[key] or any(code.startswith("index-") for code in codes)
            assert named, f"seed {seed}: {path.name}, item {number}: {kind}"
        path.write_bytes(index.whole[path])


@pytest.mark.parametrize("name", SLOTS)
def test_what_a_damaged_index_hides_verify_names(name: str, tmp_path: Path) -> None:
    run_damage(name, tmp_path, range(FAST))


@pytest.mark.campaign
@pytest.mark.parametrize("name", SLOTS)
def test_a_damaged_index_at_length(name: str, tmp_path: Path) -> None:
    run_damage(name, tmp_path, some(name, range(FAST, FAST + CASES)))


@pytest.mark.parametrize("leads_to", [5, 911_494, 910_593])
def test_find_and_verify_see_an_item_that_leads_to_no_record_of_its_key(
    leads_to: int, copy: GoldenStore
) -> None:
    path = Path(copy.path, "index", "20261121092351394")
    item = struct.unpack_from(">q", path.read_bytes(), 984)
    assert item == (911_493,)  # ORDER_1650, payments/1@191
    write_at(path, 984, struct.pack(">q", leads_to))
    said = complaint("find", copy.path, "--key", "ORDER_1650", expect=1)
    assert "rmqstore verify compares both" in said
    with copy.open() as store:
        assert not store.query_message("payments", "ORDER_1650")
        counts = {one.code: one.count for one in verify(store).findings}
    assert counts["index-gap"] == counts["index-false-item"] == 1


def test_an_item_that_follows_itself_hides_none_behind_it(copy: GoldenStore) -> None:
    """The file is not trusted any more, and its part of the log is read."""
    path = Path(copy.path, "index", "20261121092347979")
    with copy.open() as store:
        previous = 40 + 4 * (store.geometry().maxHashSlotNum or 0) + 20 * 396 + 16
    assert struct.unpack_from(">i", path.read_bytes(), previous) == (369,)
    write_at(path, previous, struct.pack(">i", 396))
    (behind,) = (r for r in copy.truth if r["commitLogOffset"] == 199_544)  # of item 369
    with copy.open() as store:
        (message,) = store.query_message(behind["topic"], behind["uniqKey"])
    assert message.commit_log_offset == 199_544


def test_damage_that_an_entry_of_another_queue_has_is_not_reported(copy: GoldenStore) -> None:
    hurt = [r for r in copy.truth if r["topic"] == "orders" and r["keys"] == "CUSTOMER_11"][5]
    flip_in_log(copy, hurt["commitLogOffset"] + 4, 0xFF)  # its magic
    other = (hurt["queueId"] + 1) % 4
    with copy.open() as store:
        wanted = (pc.field("keys") == "CUSTOMER_11") & (pc.field("queueId") == other)
        assert store.messages("orders").count_rows(wanted) == sum(
            r["keys"] == "CUSTOMER_11" and (r["topic"], r["queueId"]) == ("orders", other)
            for r in copy.truth
        )


def test_a_key_whose_queue_file_was_overwritten_by_a_later_one_is_no_smaller_answer(
    tmp_path: Path,
) -> None:
    golden = unpack("direct-5.5.0", tmp_path)
    files = sorted(Path(golden.path, "consumequeue", "payments", "0").iterdir())
    of_queue = [r for r in golden.truth if (r["topic"], r["queueId"]) == ("payments", 0)]
    lost = next(r for r in of_queue if r["queueOffset"] == 25 and in_a_queue(r))
    files[1].write_bytes(files[2].read_bytes())  # queue offsets 20 to 39 list those from 40 on
    found: list[StoreError] = []
    with golden.open() as store:
        messages = store.messages("payments", on_damage=found.append)
        assert not messages.count_rows(pc.field("uniqKey") == lost["uniqKey"])
    assert OTHER_OFFSET in found[0].reason
