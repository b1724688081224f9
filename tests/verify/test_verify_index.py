"""verify on index files: damage is reported at its place; what a broker was writing is no damage."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmq_store.format.byte_layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT, index_item_at
from rmq_store.index.index_file_reader import IndexFile, list_index_files
from rmq_store.verify import Finding, Severity, VerifyReport
from tests.support.damage import write_at
from tests.support.golden import CLEAN, UNCLEAN, GoldenStore, unpack, verified
from tests.support.running.campaigns import few

WHOLE = [name for name in CLEAN if name != "multipath-5.5.0"]  # which asks for its settings
KILLED_IN_A_FILE = [name for name in UNCLEAN if name != "hours-crash-5.5.0"]  # beside a new one
DAMAGE = ("index-damaged", "index-broken-chain")
SEED = 4711
HEAD = INDEX_HEADER.itemsize


def report_of(path: str, conf: str | None = None) -> VerifyReport:
    return verified(path, broker_conf=conf)


def index_of(store: GoldenStore) -> list[Path]:
    return sorted(Path(store.path, "index").iterdir())


class Parts:
    """Where the parts of an index file are, and its bytes, to be changed."""

    def __init__(self, path: Path) -> None:
        (segment,) = [one for one in list_index_files(path.parent) if one.path == str(path)]
        file = IndexFile(segment)
        self.path, self.header = path, file.header
        self.slots, self.places = file.geometry.slots, file.geometry.items
        self.items_at = index_item_at(self.slots, 1)
        self.items_end = index_item_at(self.slots, file.header.items + 1)
        self.raw = bytearray(path.read_bytes())

    def field(self, name: str, value: int) -> range:
        assert INDEX_HEADER.fields is not None
        kind, at = INDEX_HEADER.fields[name][:2]
        return self.put(at, value.to_bytes(kind.itemsize, "big", signed=True))

    def put(self, at: int, raw: bytes) -> range:
        assert self.raw[at : at + len(raw)] != raw
        self.raw[at : at + len(raw)] = raw
        return range(at, at + len(raw))

    def write(self) -> None:
        self.path.write_bytes(self.raw)


def noise(size: int) -> bytes:
    return random.Random(SEED).randbytes(size)


Done = Callable[[Parts], range]
# Each gives the bytes at one of which the first finding has to begin.
KINDS: dict[str, Done] = {
    "header of zeros": lambda p: p.put(0, bytes(HEAD)),
    "header of noise": lambda p: p.put(0, noise(HEAD)),
    "begin_timestamp": lambda p: p.field("begin_timestamp", -1),
    "end_timestamp": lambda p: p.field("end_timestamp", p.header.end_timestamp + 10**7),
    "begin_log_offset": lambda p: p.field("begin_log_offset", p.header.begin_log_offset + 1),
    "end_log_offset": lambda p: p.field("end_log_offset", p.header.end_log_offset + 8),
    "offsets swapped": lambda p: p.put(16, bytes(p.raw[24:32] + p.raw[16:24])),
    "hash_slot_count": lambda p: p.field("hash_slot_count", p.header.index_count + 5),
    "no slots": lambda p: p.field("hash_slot_count", 0),
    "index_count beyond the places": lambda p: p.field("index_count", p.places + 1),
    "index_count below zero": lambda p: p.field("index_count", -7),
    "index_count of nothing": lambda p: p.field("index_count", 1),
    "index_count halved": lambda p: p.field("index_count", p.header.index_count // 2),
    "slots of zeros": lambda p: p.put(HEAD, bytes(p.slots * INDEX_SLOT.itemsize)),
    "slots of noise": lambda p: p.put(HEAD, noise(p.slots * INDEX_SLOT.itemsize)),
    "one slot": lambda p: p.put(HEAD + first_used(p) * INDEX_SLOT.itemsize, b"\x7f\0\0\0"),
    "items of zeros": lambda p: p.put(p.items_at, bytes(p.items_end - p.items_at)),
    "items of noise": lambda p: p.put(p.items_at, noise(p.items_end - p.items_at)),
    "the last item": lambda p: p.put(p.items_end - INDEX_ITEM.itemsize, bytes(INDEX_ITEM.itemsize)),
}


def first_used(parts: Parts) -> int:
    heads = np.frombuffer(parts.raw, INDEX_SLOT, parts.slots, HEAD)
    return int(np.flatnonzero(heads)[0])


def about(report: VerifyReport, path: Path) -> list[Finding]:
    """The findings of damage, which have to be about this file alone."""
    found = [one for one in report.findings if one.code.startswith("index-")]
    damage = [one for one in found if one.code in DAMAGE]
    assert {one.path for one in damage} <= {str(path)}
    others = {"index-false-item", "index-gap", "index-beyond-log", "index-expired"}
    assert {one.code for one in found} <= {*DAMAGE, *others}
    return damage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", few("index", WHOLE, "clean-5.4.0"))
def test_damage_is_reported_with_its_place(tmp_path: Path, name: str, kind: str) -> None:
    store = unpack(name, tmp_path)
    files = index_of(store)
    for path in (files[0], files[len(files) // 2], files[-1]):
        whole = path.read_bytes()
        parts = Parts(path)
        if parts.header.items < 2:
            continue  # nothing in it to damage
        where = KINDS[kind](parts)
        parts.write()
        report = report_of(store.path)
        assert not report.nothing_wrong
        damage = about(report, path)
        assert damage, f"{path}: {[one.code for one in report.findings]}"
        starts = [one.start for one in damage if one.start is not None]
        parts_hit = {part_of(parts, at) for at in where}
        assert {part_of(parts, start) for start in starts} <= parts_hit | {"header"}
        assert parts_hit & {part_of(parts, start) for start in starts}
        for one in damage:
            assert one.severity is Severity.WARNING
            assert "expected" in one.meaning
            assert "found" in one.meaning
            assert "rmqstore rebuild" in one.advice
        path.write_bytes(whole)


def part_of(parts: Parts, at: int) -> str:
    if at < HEAD:
        return "header"
    return "slots" if at < index_item_at(parts.slots, 0) else "items"


def test_problems_are_counted(copy: GoldenStore) -> None:
    path = index_of(copy)[0]
    parts = Parts(path)
    assert parts.header.index_count == parts.places == 400
    parts.field("index_count", 57)
    parts.write()
    (one,) = about(report_of(copy.path, copy.conf), path)
    assert one.start == 36
    assert one.stop == 40
    assert "index_count (expected 400 or more, found 57)" in one.meaning


@pytest.mark.parametrize("size", [0, 17, 40, 5000])
def test_a_file_of_another_size_is_reported(copy: GoldenStore, size: int) -> None:
    path = index_of(copy)[3]
    expected = path.stat().st_size
    os.truncate(path, size)
    (one,) = about(report_of(copy.path), path)
    assert one.code == "index-damaged"
    assert f"expected {expected} bytes like the other index files, found {size}" in one.meaning


def test_a_damaged_file_that_is_the_only_one(copy: GoldenStore) -> None:
    """Nothing but the configuration says what it was made with."""
    first, *others = index_of(copy)
    for path in others:
        path.unlink()
    parts = Parts(first)
    parts.put(HEAD, noise(parts.slots * INDEX_SLOT.itemsize))
    parts.write()
    (one,) = about(report_of(copy.path, copy.conf), first)
    assert "slots do not point to their newest item" in one.meaning
    unsure = [one.code for one in report_of(copy.path).findings]
    assert "index-unreadable" in unsure
    assert "index-damaged" not in unsure


def test_a_wrong_configuration_is_not_called_damage(tmp_path: Path) -> None:
    store = unpack("geometry-5.5.0", tmp_path)
    conf = tmp_path / "wrong.conf"
    conf.write_text("maxHashSlotNum=12\nmaxIndexNum=12\n")  # of the same file size
    codes = {one.code for one in report_of(store.path, str(conf)).findings}
    assert "index-unreadable" in codes
    assert not codes & set(DAMAGE)


# What a broker was writing when it was killed, the machine lost its power, or a copy was made: parts
# of the file are as they were before. Of the last file, and of the one before it, which a thread of
# its own flushes.
def with_older_parts(parts: Parts, kind: str) -> None:
    middle = index_item_at(parts.slots, parts.header.items // 2)
    match kind:
        case "header never written":
            parts.put(0, bytes(HEAD))
        case "header older":
            parts.field("index_count", max(1, parts.header.index_count // 2))
        case "slots never written":
            parts.put(HEAD, bytes(parts.slots * INDEX_SLOT.itemsize))
        case "items never written":
            parts.put(middle, bytes(parts.items_end - middle))
        case "one more item":
            parts.field("index_count", parts.header.index_count - 1)
    parts.write()


OLDER = [
    *("header never written", "header older", "slots never written", "items never written"),
    "one more item",
]


@pytest.mark.parametrize("kind", OLDER)
@pytest.mark.parametrize("name", few("half an index", KILLED_IN_A_FILE, "crash-5.3.3"))
def test_what_a_broker_was_writing_is_not_called_damaged(
    tmp_path: Path, name: str, kind: str
) -> None:
    store = unpack(name, tmp_path)
    for path in [one for one in index_of(store)[-2:] if Parts(one).header.items > 2]:
        whole = path.read_bytes()
        with_older_parts(Parts(path), kind)
        found = [one for one in report_of(store.path).findings if one.code.startswith("index-")]
        others = {"index-gap", "index-beyond-log"}
        assert {one.code for one in found} <= {"index-half-written", *others}
        (reported,) = [one for one in found if one.code == "index-half-written"]
        assert reported.severity is Severity.NOTE
        assert reported.path == str(path)
        # The same in a store that was closed in order is damage.
        abort = Path(store.path, "abort")
        abort.unlink()
        assert about(report_of(store.path), path)
        abort.touch()
        path.write_bytes(whole)


@pytest.mark.parametrize("size", [0, 20])
def test_an_index_file_that_was_just_being_made_is_not_called_damaged(
    tmp_path: Path, size: int
) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    path = index_of(store)[-1]
    newer = path.with_name(str(int(path.name) + 1))
    newer.write_bytes(bytes(size))
    (reported,) = [one for one in report_of(store.path).findings if one.path == str(newer)]
    assert (reported.code, reported.severity) == ("index-half-written", Severity.NOTE)
    Path(store.path, "abort").unlink()
    (reported,) = about(report_of(store.path), newer)
    assert reported.code == "index-damaged"


def test_an_older_file_of_a_crashed_store_is_damaged_all_the_same(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    path = index_of(store)[0]
    with_older_parts(Parts(path), "items never written")
    assert about(report_of(store.path), path)


def test_slots_of_noise_are_damage_even_in_the_last_file_of_a_crashed_store(tmp_path: Path) -> None:
    store = unpack("crash-5.5.0", tmp_path)
    path = index_of(store)[-1]
    parts = Parts(path)
    parts.put(HEAD, noise(parts.slots * INDEX_SLOT.itemsize))
    parts.write()
    assert about(report_of(store.path), path)


def test_a_last_record_of_which_some_keys_are_indexed_is_no_gap(tmp_path: Path) -> None:
    """The broker was killed between two items of the record."""
    store = unpack("hours-crash-4.9.7", tmp_path)
    with store.open() as opened:
        file = opened.key_index().files[-1]
    path, count = Path(file.path), file.header.index_count
    raw = path.read_bytes()
    items = (40 + 4 * 100 + 20 * number for number in range(count - 2, count))  # of 100 slots
    assert len({raw[at + 4 : at + 12] for at in items}) == 1  # id and key of a record
    write_at(path, 36, struct.pack(">i", count - 1))
    report = store.verified()
    assert report.nothing_wrong, [finding.to_dict() for finding in report.findings]


@pytest.mark.parametrize("other", ["clean-5.3.3", "crash-5.5.0"])
def test_an_index_of_another_store_is_named(other: str, tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path / "own")
    index = Path(golden.path, "index")
    shutil.rmtree(index)
    shutil.copytree(Path(unpack(other, tmp_path / "other").path, "index"), index)
    codes = {finding.code for finding in verified(golden.path).findings}
    assert "index-gap" in codes
    assert "index-false-item" in codes
