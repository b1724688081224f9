"""Index files whose geometry nothing but their own bytes can tell."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.recovery import plan_recovery
from rmq_store.verify import verify
from tests.support.counted_store import java_hash
from tests.support.golden import unpack, unpack_field, verified
from tests.support.listed import index_bytes

ONE_MESSAGE = "index-geometry-one-message"  # maxHashSlotNum=10000, maxIndexNum=10000; offset 0
HEAD, SLOT, ITEM = 40, 4, 20


def index_file(root: Path) -> Path:
    (path,) = (root / "index").iterdir()
    return path


def make_index(slots: int, items: int, keys: list[str]) -> bytes:
    """An index file whose items are all of the record at log offset 0."""
    raw = index_bytes(slots, [abs(java_hash(key)) for key in keys], [0] * len(keys))
    return raw.ljust(HEAD + slots * SLOT + items * ITEM, b"\0")


def findings(root: Path, config: dict[str, int] | None = None) -> dict[str, str]:
    return {one.code: one.meaning for one in verified(root, config=config).findings}


def test_one_message_at_the_start_of_the_log_shows_the_geometry(tmp_path: Path) -> None:
    root = unpack_field(ONE_MESSAGE, tmp_path)
    with MessageStore.open(root) as store:
        (health,) = verify(store).index
        assert (health.slots, health.capacity, health.items) == (10_000, 10_000, 2)
        (found,) = store.query_message("FooBar", "1795586957559")
        assert found.commit_log_offset == 0
        assert store.geometry().maxHashSlotNum == 10_000
    assert findings(root) == {}
    assert plan_recovery(root).untouched


@pytest.mark.parametrize("keys", [1, 2, 5, 12])
@pytest.mark.parametrize(("slots", "items"), [(10_000, 10_000), (3, 20), (97, 4001)])
def test_any_number_of_keys_of_one_message_shows_it(
    tmp_path: Path, slots: int, items: int, keys: int
) -> None:
    """In three slots most items have a predecessor, so the last word is another field."""
    root = unpack_field(ONE_MESSAGE, tmp_path)
    index_file(root).write_bytes(make_index(slots, items, [f"FooBar#K{n}" for n in range(keys)]))
    with MessageStore.open(root) as store:
        found = store.geometry()
    assert (found.maxHashSlotNum, found.maxIndexNum) == (slots, items)


@pytest.mark.parametrize("name", ["a byte of a slot", "the size"])
def test_a_geometry_that_is_unknown_is_said_to_be(tmp_path: Path, name: str) -> None:
    root = unpack_field(ONE_MESSAGE, tmp_path)
    raw = bytearray(index_file(root).read_bytes())
    if name == "the size":
        raw += bytes(8)
    else:
        raw[HEAD + 3703 * SLOT : HEAD + 3704 * SLOT] = bytes(SLOT)  # 400593703 % 10000
        raw[HEAD + 9580 * SLOT : HEAD + 9581 * SLOT] = bytes(SLOT)  # 1426899580 % 10000
    index_file(root).write_bytes(raw)
    said = findings(root)["index-unreadable"]
    assert "unknown" in said
    assert "misses" not in said
    with_settings = findings(root, {"maxHashSlotNum": 10_000, "maxIndexNum": 10_000})
    assert all("unknown" not in meaning for meaning in with_settings.values())
    assert any(code.startswith("index-") for code in with_settings)


@pytest.mark.parametrize(
    ("name", "slots", "items"),
    [
        ("geometry-5.5.0", 8, 13),
        # Its first places would be zeros, as the first item nearly is.
        (ONE_MESSAGE, 9_995, 10_001),
    ],
)
def test_settings_that_a_file_was_not_made_with_are_blamed_and_not_the_file(
    tmp_path: Path, name: str, slots: int, items: int
) -> None:
    is_field = name == ONE_MESSAGE
    root = unpack_field(name, tmp_path) if is_field else Path(unpack(name, tmp_path).path)
    said = findings(root, {"maxHashSlotNum": slots, "maxIndexNum": items})
    assert "with the given maxHashSlotNum and maxIndexNum" in said["index-unreadable"]


def test_settings_that_put_the_only_item_in_front_of_the_first_are_blamed(tmp_path: Path) -> None:
    """The zeros after the item look like one of the record at log offset 0."""
    root = unpack_field(ONE_MESSAGE, tmp_path)
    index_file(root).write_bytes(make_index(97, 4001, ["FooBar#K"]))
    said = findings(root, {"maxHashSlotNum": 97 + ITEM // SLOT, "maxIndexNum": 4000})
    assert "with the given maxHashSlotNum and maxIndexNum" in said["index-unreadable"]


def test_an_item_that_gives_another_key_to_the_first_record_is_false(tmp_path: Path) -> None:
    root = unpack_field(ONE_MESSAGE, tmp_path)
    index_file(root).write_bytes(make_index(10_000, 10_000, ["FooBar#K"]))
    assert "the first to log offset 0:" in findings(root)["index-false-item"]


@pytest.mark.parametrize("ahead", [1, 9])
def test_slots_may_be_ahead_of_the_header_by_an_item(tmp_path: Path, ahead: int) -> None:
    """A broker writes an item and its slot, and then counts it. A file that lacks more items is not asked:
    what it has of the log is read."""
    golden = unpack("hours-clean-5.5.0", tmp_path)
    file, *others = sorted(Path(golden.path, "index").iterdir())
    for other in others:
        other.unlink()
    raw = bytearray(file.read_bytes())
    (count,) = struct.unpack_from(">i", raw, 36)
    last = HEAD + SLOT * 200 + ITEM * (count - ahead - 1)
    (last_place,) = struct.unpack_from(">q", raw, last + 4)
    struct.pack_into(">i", raw, 36, count - ahead)
    file.write_bytes(raw)
    lacking = next(r for r in golden.truth if r["commitLogOffset"] > last_place)
    with MessageStore.open(golden.path) as store:
        found = store.query_message(lacking["topic"], lacking["keys"].split()[0])
        assert [message.commit_log_offset for message in found] == [lacking["commitLogOffset"]]
        if ahead == 1:
            assert store.geometry().maxHashSlotNum == 200
            assert verify(store).index[0].items == count - ahead - 1


def test_a_file_is_known_before_its_newest_item_is_linked(tmp_path: Path) -> None:
    root = unpack_field(ONE_MESSAGE, tmp_path)
    raw = bytearray(make_index(97, 4001, [f"FooBar#K{n}" for n in range(5)]))
    heads = struct.unpack_from(">97i", raw, HEAD)
    struct.pack_into(">i", raw, HEAD + SLOT * heads.index(5), 0)
    raw[:32] = struct.pack(">qqqq", 1, 1, 0, 1)  # another record is counted already
    index_file(root).write_bytes(raw)
    assert "unknown" not in findings(root).get("index-unreadable", "")
