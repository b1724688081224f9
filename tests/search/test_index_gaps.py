"""Keys where index files are lost, lack records or are cut: what the index lacks is found in the log, and
around damage there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import MessageStore, StoreError
from rmq_store.errors import DataLossError
from rmq_store.format.hashes import index_key, index_key_hash
from rmq_store.index import index_file_reader as index_file
from rmq_store.search.find_messages import find
from rmq_store.search.selection import Search
from tests.support.counted_store import IndexFile, java_hash, settings_of
from tests.support.damage import flip_in_log, write_at
from tests.support.golden import (
    CLEAN,
    Golden,
    GoldenStore,
    Truth,
    in_a_queue,
    keys_of,
    log_files,
    unpack,
)
from tests.support.golden_rows import log_end_of
from tests.support.spark.reads import rows_of
from tests.support.stores import SMALL, append_many

NAME = "clean-5.5.0"


def places_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [at for batch in batches for at in batch.column(0).to_pylist()]


def keyed(store: GoldenStore) -> list[Truth]:
    return [r for r in store.truth if in_a_queue(r) and keys_of(r) and r["topic"] != "inner"]


def holders(store: GoldenStore, key: str, topic: str) -> list[int]:
    return [r["commitLogOffset"] for r in keyed(store) if key in keys_of(r) and r["topic"] == topic]


def test_a_message_whose_keys_are_in_two_index_files_is_found_by_each(tmp_path: Path) -> None:
    """The first of its keys were in a file that is gone, the others are in the one behind it."""
    store = unpack(NAME, tmp_path)
    index = Path(store.path) / "index"
    with store.open() as opened:
        begins = [file.header.begin_log_offset for file in opened.key_index().files]
        ends = [file.header.end_log_offset for file in opened.key_index().files]
    split = set(begins) & set(ends)
    assert split
    for number, path in list(enumerate(sorted(index.iterdir())))[1::6]:
        aside = path.rename(tmp_path / "aside")
        beside = {begins[number], ends[number], *(begins[number + 1 : number + 2])}
        with store.open() as opened:
            for record in (r for r in keyed(store) if r["commitLogOffset"] in beside):
                for key in keys_of(record):
                    wanted = holders(store, key, record["topic"])
                    search = Search([record["topic"]], keys=[key], include_system_topics=True)
                    found = places_in(find(opened, search, ["commitLogOffset"]))
                    assert sorted(found) == wanted, (path.name, key)
                    asked = opened.query_message(record["topic"], key, 1000)
                    assert [message.commit_log_offset for message in asked] == wanted
                    options = {"path": store.path, "topic": record["topic"], "keys": key}
                    rows = rows_of(options)
                    assert sorted(row["commitLogOffset"] for row in rows) == wanted
        aside.rename(path)


@pytest.mark.parametrize("harm", ["a record", "a file", "the file it begins in"])
def test_keys_behind_damage_are_found_without_an_index(copy: GoldenStore, harm: str) -> None:
    index = Path(copy.path) / "index"
    files = log_files(copy)
    if harm == "a record":
        shutil.rmtree(index)
        at = keyed(copy)[5]["commitLogOffset"]
        lost = range(at, at + 1)
        flip_in_log(copy, at + 90)  # in the body
    else:
        # All of the index, or what makes a gap that begins within the missing file.
        for path in sorted(index.iterdir())[0 if harm == "a file" else 4 :]:
            path.unlink()
        lost = range(int(files[1].name), int(files[2].name))
        files[1].unlink()
    whole = [r for r in keyed(copy) if r["commitLogOffset"] not in lost]
    with copy.open() as opened:
        for record in whole[:: max(1, len(whole) // 12)]:
            reported: list[StoreError] = []
            topic, key = record["topic"], record["uniqKey"]
            wanted = [at for at in holders(copy, key, topic) if at not in lost]
            asked = opened.query_message(topic, key, 1000, on_damage=reported.append)
            assert [message.commit_log_offset for message in asked] == wanted
            assert reported, "what may have had the key is reported"
            search = Search([topic], keys=[key], include_system_topics=True)
            reported.clear()
            found = places_in(find(opened, search, ["commitLogOffset"], reported.append))
            assert sorted(found) == wanted
            assert reported or harm == "a record"  # it may be of another topic, which is not read
            assert opened.message_by_id(key) is not None
        with pytest.raises(StoreError):
            opened.message_by_id("F" * 32)


def test_ghosts_where_no_index_is_are_no_damage(tmp_path: Path) -> None:
    store = unpack("nommap-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path) / "index", ignore_errors=True)
    reported: list[StoreError] = []
    with store.open() as opened:
        record = keyed(store)[-1]
        asked = (record["topic"], record["uniqKey"], 9)
        found = opened.query_message(*asked, on_damage=reported.append)
        assert record["commitLogOffset"] in [message.commit_log_offset for message in found]
        assert opened.messages_by_id("F" * 32) == []
    assert reported == []


def test_a_page_of_items_that_is_lost_hides_no_key(copy: GoldenStore) -> None:
    """The chains that lead there tell: the file is not trusted any more, and the log is read."""
    path = sorted((Path(copy.path) / "index").iterdir())[3]
    with copy.open() as opened:
        file = opened.key_index().files[3]
        first, behind = file.item_at(100), file.item_at(200)
        span = range(file.header.begin_log_offset, file.header.end_log_offset)
    write_at(path, first, bytes(behind - first))
    asked = [r for r in keyed(copy) if r["commitLogOffset"] in span]
    assert len(asked) > 50
    for record in asked[::4]:
        with copy.open() as opened:  # once more, because a look-up remembers what it found
            found = opened.query_message(record["topic"], record["uniqKey"], 9)
            assert record["commitLogOffset"] in [message.commit_log_offset for message in found]


def gaps_in_table(store: GoldenStore) -> list[tuple[int, int, int]]:
    """Start, end and bytes of the gaps that the table `index` shows."""
    with store.open(broker_conf=store.conf) as opened:
        rows = opened.table("index").to_pylist()
    names = ("beginLogOffset", "endLogOffset", "gapBytes")
    return [tuple(row[name] for name in names) for row in rows if row["path"] is None]


@pytest.mark.parametrize("name", CLEAN)
def test_a_whole_index_has_no_gap(golden: Golden, name: str) -> None:
    """Not at the last record of a file, which look-ups read again, nor at records without keys."""
    assert gaps_in_table(golden(name)) == []


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_gap_begins_at_the_first_key_without_an_item(copy: GoldenStore, lost: int) -> None:
    paths = sorted(Path(copy.path, "index").iterdir())
    paths.pop(lost).unlink()
    files = [IndexFile(path, settings_of(copy)) for path in paths]
    items = {item[:2] for file in files for item in file.items}
    first = next(
        record["commitLogOffset"]
        for record in copy.truth
        for key in keys_of(record)
        if (abs(java_hash(f"{record['topic']}#{key}")), record["commitLogOffset"]) not in items
    )
    stop = min((file.begin for file in files if file.begin > first), default=log_end_of(copy))
    assert gaps_in_table(copy) == [(first, stop, stop - first)]


@pytest.mark.parametrize("cut", [0, 16, 20])
def test_a_cut_during_a_walk_is_an_error(cut: int, tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        for number in range(6):
            store.append({"topic": "orders", "queueId": 0, "body": b"%d" % number, "keys": "k"})
    with MessageStore.open(tmp_path / "s") as store:
        (file,) = store.key_index().files
        found: list[int] = []
        walk = file.walk(index_key_hash(index_key("orders", "k")), found)
        for _ in range(3):  # the slot, the newest item, and the next
            next(walk)
        assert len(found) == 1
        os.truncate(file.path, file.item_at(4) + cut)
        with pytest.raises(DataLossError):
            list(walk)


def store_with_a_hole(folder: Path) -> tuple[Path, range]:
    """A store whose second hundred messages of three are not indexed, all in one index file."""
    path, sizes = folder / "store", {**SMALL, "maxIndexNum": 5000}
    with MessageStore.create(path, sizes) as store:
        append_many(store, 100)
    with MessageStore.append_to(path, {**sizes, "messageIndexEnable": False}) as store:
        append_many(store, 100, 100)
    with MessageStore.append_to(path, sizes) as store:
        append_many(store, 100, 200)
    assert len(list((path / "index").iterdir())) == 1
    return path, range(100, 200)


@pytest.mark.parametrize("sampled", [False, True])
def test_keys_in_a_hole_of_an_index_file_are_found(
    sampled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sampled:  # as in a file of millions of items
        monkeypatch.setattr(index_file, "_ALL_ITEMS", 10)
    path, hole = store_with_a_hole(tmp_path)
    with MessageStore.open(path) as store:
        names = ["topic", "keys", "queueOffset", "queueId"]
        rows = [row for batch in store.read_batches(columns=names) for row in batch.to_pylist()]
        assert len(rows) == 300
        for row in [rows[number] for number in (50, *hole[::9], 250)]:
            topic, key = row["topic"], row["keys"].split(" ")[0]
            wanted = [r for r in rows if r["topic"] == topic and key in r["keys"].split(" ")]
            asked = store.query_message(topic, key, 1000)
            assert len(asked) == len(wanted)
            search = Search([topic], keys=[key])
            found = [row for batch in find(store, search, names) for row in batch.to_pylist()]
            assert sorted(map(str, found)) == sorted(map(str, wanted))
    options: dict[str, Any] = {"path": str(path), "topic": topic, "keys": key}
    assert len(rows_of(options)) == len(wanted)


def test_an_index_of_a_broker_without_holes_adds_no_reads(clean: GoldenStore) -> None:
    with clean.open() as store:
        index = store.key_index()
        gaps = list(index.gaps())
        assert sum(map(len, index._inside.values())) == 0
        assert len(gaps) <= len(index.files)
