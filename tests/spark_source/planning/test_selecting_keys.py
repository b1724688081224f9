"""Tags and keys: which messages they select, and what is read for it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.damage import write_at
from tests.support.golden import (
    Golden,
    GoldenStore,
    in_a_queue,
    keys_of,
    messages_in,
    unpack,
    user_topic,
)
from tests.support.spark.reads import rows_of
from tests.support.spark.selections import (
    NAME,
    PLACE,
    options_of,
    places,
    plan_of,
    truth_where,
    watch_opened,
)


@pytest.mark.campaign
@pytest.mark.parametrize("name", [NAME, "clean-4.9.7", "direct-5.5.0", "geometry-5.5.0"])
def test_keys_select_by_a_word_or_the_uniq_key(golden: Golden, name: str) -> None:
    store = golden(name)
    words = sorted(
        {word for r in store.truth if user_topic(r) for word in keys_of(r) if word.isascii()}
    )
    words = [w for w in words if not any(c.isspace() for c in w) and "||" not in w]
    step = max(1, len(words) // 12)
    for word in words[::step]:
        found = places(rows_of(options_of(store, keys=word, **PLACE)))
        assert found == truth_where(store, lambda r, w=word: user_topic(r) and w in keys_of(r))  # type: ignore[misc]
    two = words[:2]
    found = places(rows_of(options_of(store, keys=" || ".join(two), **PLACE)))
    assert found == truth_where(store, lambda r: user_topic(r) and bool(keys_of(r) & set(two)))


def test_a_key_look_up_opens_the_index_and_no_log(
    clean: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for three records between index files, and the last one."""
    record = [r for r in clean.truth if user_topic(r) and r["uniqKey"]][5]
    opened = watch_opened(monkeypatch)
    topic = record["topic"]
    plan = plan_of(options_of(clean, topic=topic, keys=record["uniqKey"], columns="topic,uniqKey"))
    assert any("/index/" in path for path in opened)
    hits = [row for row in plan if row["logStart"] is None]
    assert sum(row["entries"] for row in plan) <= 6
    assert hits


@pytest.mark.parametrize("harm", ["newer item", "item never written"])
def test_keys_behind_a_slot_that_is_ahead_of_the_header_are_found(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that writes links an item before it counts it; a crash may keep the link alone."""
    from rmq_store.format.byte_layout import INDEX_HEADER, index_item_at
    from rmq_store.format.hashes import index_key, index_key_hash
    from rmq_store.index.index_file_reader import IndexFile, list_index_files

    # In a file of the usual size hardly any slot is looked at to prove its geometry.
    monkeypatch.setattr("rmq_store.index.index_file_reader._SAMPLE", 0)
    store = unpack(NAME, tmp_path)
    segments = list_index_files(Path(store.path) / "index")
    fits = [one for one in map(IndexFile, segments) if one.header.items + 2 < one.geometry.items]
    file = fits[-1]
    segment = next(one for one in segments if one.path == file.path)
    slots, count = file.geometry.slots, file.header.index_count
    assert count + 1 < file.geometry.items
    first, last = file.header.begin_log_offset, file.header.end_log_offset
    inside = [r for r in store.truth if first < r["commitLogOffset"] < last and in_a_queue(r)]
    record = [r for r in inside if r["uniqKey"] and messages_in(r) == 1][-1]
    topic = record["topic"]
    key_hash = index_key_hash(index_key(topic, record["uniqKey"]))
    hits: list[int] = []
    for _ in file.walk(key_hash, hits):
        pass
    assert record["commitLogOffset"] in hits
    slot_at = INDEX_HEADER.itemsize + key_hash % slots * 4
    path = Path(segment.path)
    (head,) = struct.unpack_from(">i", path.read_bytes(), slot_at)
    write_at(path, slot_at, struct.pack(">i", count + 1))
    if harm == "newer item":
        item = struct.pack(">iqii", key_hash, 2**40, 0, head)
        write_at(path, index_item_at(slots, count + 1), item)
    found = places(rows_of(options_of(store, topic=topic, keys=record["uniqKey"], **PLACE)))
    assert found == truth_where(
        store, lambda r: r["topic"] == topic and record["uniqKey"] in keys_of(r)
    )
