"""Killed stores whose files lie hours apart, hurt where slacks of seconds hide nothing, list all records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path

import pytest

from rmq_store import QueueId
from rmq_store.recovery import recover
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, Truth, log_files, offsets, unpack, wanted
from tests.support.hurt_stores import no_checkpoint, no_queues, nothing
from tests.support.listed import index_items, queue_entries, wanted_entries, wanted_items
from tests.support.running.campaigns import few

NAMES = ("hours-crash-5.5.0", "hours-crash-4.9.7", "back-crash-5.5.0", "days-crash-5.5.0")
QUEUE = QueueId("orders", 1)
# Places of the checkpoint's times and of its log offset.
PHYSIC, LOGICS, INDEX, DISPATCHED = 0, 8, 16, 40


def release_of(golden: GoldenStore) -> str:
    return golden.name.rpartition("-")[2]


def set_checkpoint(golden: GoldenStore, **values: int) -> None:
    for name, value in values.items():
        write_at(Path(golden.path, "checkpoint"), globals()[name], struct.pack(">q", value))


def listed_of(golden: GoldenStore) -> list[Truth]:
    """The records of queue orders/1 that the queue lists already."""
    mine = [r for r in golden.truth if QueueId(r["topic"], r["queueId"]) == QUEUE]
    folder = Path(golden.path, "consumequeue/orders/1")
    raw = b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
    return mine[: len(raw.rstrip(b"\0")) // 20]


def put_entry(golden: GoldenStore, number: int, raw: bytes) -> None:
    folder = Path(golden.path, "consumequeue/orders/1")
    first, *_ = files = sorted(folder.iterdir())
    file, at = divmod(20 * number, first.stat().st_size)
    write_at(files[file], at, raw)


def an_entry_lacks(golden: GoldenStore) -> None:
    """Those behind it are one place further in front."""
    entries = queue_entries(golden.path)[QUEUE]
    gone = len(entries) - 10
    for number, entry in enumerate([*entries[gone + 1 :], (0, 0, 0)], gone):
        put_entry(golden, number, struct.pack(">qiq", *entry))


def lose_tags_between(golden: GoldenStore, early: str, late: str) -> None:
    """Of the two times in the checkpoint one is hours behind, and tags of entries stored between are lost."""
    mine = listed_of(golden)
    third, half = len(mine) // 3, len(mine) // 2
    times = {early: mine[third]["storeTimestamp"], late: golden.truth[-1]["storeTimestamp"]}
    set_checkpoint(golden, **times, DISPATCHED=0)
    for number, record in enumerate(mine[half : half + 5], half):
        entry = struct.pack(">qiq", record["commitLogOffset"], record["storeSize"], 0)
        put_entry(golden, number, entry)


def logics_behind_physic(golden: GoldenStore) -> None:
    lose_tags_between(golden, "LOGICS", "PHYSIC")


def physic_behind_logics(golden: GoldenStore) -> None:
    lose_tags_between(golden, "PHYSIC", "LOGICS")


def a_full_index_file_is_torn(golden: GoldenStore) -> None:
    """Not all of it reached the disk, nor does the checkpoint say so. Hashes and links alone show nothing, as
    they would not in a file of a real size, of which few items are looked at."""
    files = [f for f in sorted(Path(golden.path, "index").iterdir()) if f.stat().st_size]
    torn, before = files[-3], files[-4]
    set_checkpoint(golden, INDEX=struct.unpack_from(">q", before.read_bytes(), 8)[0])
    place = torn.stat().st_size - 50 * 20 + 4  # of the log offset in an item
    write_at(torn, place, bytes(8))


def no_index_file_is_known_to_be_full(golden: GoldenStore) -> None:
    set_checkpoint(golden, INDEX=0)


HURTS = [
    nothing,
    no_checkpoint,
    no_queues,
    an_entry_lacks,
    logics_behind_physic,
    physic_behind_logics,
    a_full_index_file_is_torn,
    no_index_file_is_known_to_be_full,
]


CASES = list(product(NAMES, HURTS))


@pytest.mark.parametrize(
    "case",
    few("hours", CASES, *zip(cycle(NAMES), HURTS, strict=False)),
    ids=lambda case: f"{case[0]}-{case[1].__name__}",
)
def test_a_recovery_lists_every_record(
    case: tuple[str, Callable[[GoldenStore], None]], tmp_path: Path
) -> None:
    name, hurt = case
    golden = unpack(name, tmp_path)
    hurt(golden)
    report = recover(golden.path, release=release_of(golden))
    assert (report.damage, report.records_cut) == ([], 0)
    assert int(log_files(golden)[-1].name) < report.log_end  # the one that was made ahead is gone
    first = golden.truth[0]["commitLogOffset"]  # what is before it has expired
    listed_ranges = {queue: ends for queue, ends in report.queues.items() if ends[0] < ends[1]}
    assert listed_ranges == {
        queue: (listed[0]["queueOffset"], listed[-1]["queueOffset"] + 1)
        for queue, listed in golden.by_queue.items()
    }
    index = sorted(Path(golden.path, "index").iterdir())
    ends = [struct.unpack_from(">q", file.read_bytes(), 8)[0] for file in index]
    stored = struct.unpack_from(">q", Path(golden.path, "checkpoint").read_bytes(), INDEX)[0]
    assert ends[-2] <= stored <= ends[-1]  # a broker drops the files that end later than it says
    entries = {
        queue: kept
        for queue, listed in queue_entries(golden.path).items()
        if (kept := [entry for entry in listed if entry[0] >= first])
    }
    items = {item: count for item, count in index_items(golden.path).items() if item[1] >= first}
    assert (entries, items) == (
        wanted_entries(golden.truth),
        wanted_items(golden.truth, of_tags=name.endswith("5.5.0")),
    )


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("name", few("a lost file", NAMES, "hours-crash-4.9.7"))
def test_a_lost_file_before_the_last_one_ends_no_log(
    name: str, has_checkpoint: bool, tmp_path: Path
) -> None:
    golden = unpack(name, tmp_path)
    if not has_checkpoint:
        no_checkpoint(golden)
    lost, last, _ = log_files(golden)[-3:]  # the last one was made ahead
    lost.unlink()
    gone = range(int(lost.name), int(last.name))
    report = recover(golden.path, release=release_of(golden))
    end = golden.truth[-1]["commitLogOffset"] + golden.truth[-1]["storeSize"]
    assert (report.log_end, report.records_cut) == (end, 0)
    assert report.damage == [(gone.start, gone.stop)]
    with golden.open() as store:
        assert offsets(store, on_damage=lambda error: None) == [
            offset for offset in wanted(golden) if offset not in gone
        ]


def test_two_torn_records_of_flushed_pages_are_one_damage(tmp_path: Path) -> None:
    """No record between them is whole."""
    golden = unpack(NAMES[0], tmp_path)
    file = log_files(golden)[8]
    some = [r for r in golden.truth if r["commitLogOffset"] >= int(file.name)][20:23]
    raw = bytearray(file.read_bytes())
    for behind in some[1:]:
        raw[behind["commitLogOffset"] - int(file.name) - 1] = 0  # the end of the properties before
    file.write_bytes(raw)
    report = recover(golden.path, release="5.5.0")
    places = [record["commitLogOffset"] for record in some]
    assert report.damage == [(places[0], places[2])]


def test_a_recovery_that_makes_no_index_forgets_nothing_of_it(tmp_path: Path) -> None:
    golden = unpack(NAMES[1], tmp_path)
    checkpoint = Path(golden.path, "checkpoint")
    (known,) = struct.unpack_from(">q", checkpoint.read_bytes(), INDEX)
    recover(golden.path, {"messageIndexEnable": False}, release="4.9.7")
    assert struct.unpack_from(">q", checkpoint.read_bytes(), INDEX) == (known,)
