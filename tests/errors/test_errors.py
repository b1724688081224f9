"""One tree of errors: each has a code of its own, and says where, what was expected and found, and what to
do."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from rmq_store.errors import (
    BodyError,
    CorruptRecordError,
    DataLossError,
    ListedAt,
    LogOffset,
    QueueOffset,
    StoreError,
)
from tests.support.damage import flip, log_file_at, write_at
from tests.support.golden import Golden, in_a_queue, log_files, offsets, unpack


def kinds_of(error: type[StoreError]) -> list[type[StoreError]]:
    below = error.__subclasses__()
    return below + [kind for one in below for kind in kinds_of(one)]


@pytest.mark.parametrize("kind", [StoreError, *kinds_of(StoreError)])
def test_errors_say_where_what_and_what_to_do_and_survive_pickling(kind: type[StoreError]) -> None:
    error = kind(
        Path("/a/store"), reason="bodyCRC", offset=1234, expected=17, actual=18, advice="Look there"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    for part in ("/a/store", "bodyCRC", "1234", "17", "18", "Look there", kind.code):
        assert part in str(error)
    assert error.path == "/a/store"


def test_damage_is_reported_with_its_place_and_both_sides(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    record = next(r for r in golden.truth if r["body"] and in_a_queue(r) and not r["sysFlag"])
    path = log_file_at(golden, record["commitLogOffset"])
    flip(path, record["commitLogOffset"] - int(path.name) + 88)  # the first byte of the body
    with golden.open() as store:
        with pytest.raises(CorruptRecordError, match="bodyCRC") as caught:
            store.message_at(record["commitLogOffset"])
        error = caught.value
        assert (error.path, error.offset) == (str(path), record["commitLogOffset"])
        assert error.expected == record["bodyCrc"] != error.actual
        with pytest.raises(CorruptRecordError, match="bodyCRC"):
            offsets(store, topics=record["topic"])
        damage: list[StoreError] = []
        found = [
            row
            for batch in store.read_batches(
                record["topic"], columns=["commitLogOffset", "body"], on_damage=damage.append
            )
            for row in batch.column(0).to_pylist()
        ]
        assert [error.offset for error in damage] == [record["commitLogOffset"]]
        assert record["commitLogOffset"] not in found


def test_a_body_that_does_not_open_is_damage_like_any_other(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    record = next(r for r in golden.truth if r["body"] and in_a_queue(r) and not r["sysFlag"])
    path = log_file_at(golden, record["commitLogOffset"])
    raw = bytearray(path.read_bytes())
    raw[record["commitLogOffset"] - int(path.name) + 39] |= 1  # sysFlag: compressed
    path.write_bytes(raw)
    with golden.open() as store:
        with pytest.raises(BodyError):
            list(store.read_batches(record["topic"]))
        damage: list[StoreError] = []
        batches = list(store.read_batches(record["topic"], on_damage=damage.append))
        found = [at for batch in batches for at in batch.column("commitLogOffset").to_pylist()]
        assert [(type(error), error.offset) for error in damage] == [
            (BodyError, record["commitLogOffset"])
        ]
        others = [r for r in golden.truth if r["topic"] == record["topic"] and in_a_queue(r)]
        assert len(found) == len(others) - 1
        raw_rows = store.read_batches(record["topic"], columns=["rawBody"])
        assert sum(batch.num_rows for batch in raw_rows) == len(others)


def test_a_bomb_in_a_body_is_stopped(golden: Golden) -> None:
    store = golden("clean-5.3.3")
    packed = max(
        (r for r in store.truth if r["sysFlag"] & 1 and in_a_queue(r)),
        key=lambda r: len(r["bodyDecompressed"]),
    )
    with store.open() as opened, pytest.raises(BodyError, match="exceeds the limit"):
        list(opened.read_batches(packed["topic"], max_body_bytes=100))


def test_a_file_cut_before_it_is_opened_is_our_error(tmp_path: Path) -> None:
    golden = unpack("crc-5.5.0", tmp_path)
    with golden.open() as store:
        store.close()
    store = golden.open()
    last = log_files(golden)[0]
    store._log.chain.close()
    os.truncate(last, 100)
    with pytest.raises(DataLossError, match="became shorter while") as caught:
        store.message_at(0)
    assert (caught.value.path, caught.value.offset) == (str(last), 100)


def test_an_entry_that_leads_nowhere_names_the_folder_of_its_queue(tmp_path: Path) -> None:
    golden = unpack("clean-5.2.0", tmp_path)
    record = next(r for r in golden.truth if r["topic"] == "orders" and in_a_queue(r))
    folder = Path(golden.path) / "consumequeue/orders" / str(record["queueId"])
    path = min(folder.iterdir())
    write_at(path, 20, (2**50).to_bytes(8, "big"))  # the log offset of its second entry
    damage: list[StoreError] = []
    with golden.open() as store:
        for _ in store.read_batches("orders", on_damage=damage.append):
            pass
    assert str(folder) in {error.path for error in damage}


def test_codes_are_stable_words_and_each_is_one_kind() -> None:
    ours = {kind for kind in kinds_of(StoreError) if kind.__module__.startswith("rmq_store")}
    codes = {kind.code: kind for kind in ours}
    assert len(codes) == len(ours) >= 17
    assert all(code.startswith("RMQSTORE_") and code.isupper() for code in codes)
    for kind in ours:
        assert "code" in vars(kind), kind


def test_an_error_survives_the_way_to_the_driver() -> None:
    for kind in {k for k in kinds_of(StoreError) if k.__module__.startswith("rmq_store")}:
        error = kind("/store/file", offset=7, reason="why", expected=1, actual=2, advice="do")
        error.entry = ListedAt("orders", 1, 2, 3, 4)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.entry) == (kind, str(error), error.entry)
        assert str(copy).startswith(f"[{kind.code}] /store/file: why at offset 7")
        other = error.with_advice("look")
        assert (type(other), other.entry, other.advice) == (kind, error.entry, "look")
        assert str(other) == str(pickle.loads(pickle.dumps(other))) == str(error)[:-2] + "look"
        assert str(error).endswith(". do")


@pytest.mark.parametrize(
    ("place", "said"), [(LogOffset(7), "log offset 7"), (QueueOffset(7), "queueOffset 7")]
)
def test_an_error_says_in_its_place_what_the_offset_counts(place: int, said: str) -> None:
    error = StoreError("/store/file", offset=place, reason="why", expected=1, advice="Do")
    assert str(error).endswith(f"/store/file: why at {said} (expected 1). Do")
