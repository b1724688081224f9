"""rebuild with storeType=defaultRocksDB: the keys and values that a broker makes of the same log."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.admin.rebuild import DATABASE, STATE_FILE, RebuildReport, rebuild
from rmq_store.config.consumer_offsets import read_consumer_offsets
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import AccessError, InvalidArgumentError, UnsupportedStoreError
from rmq_store.verify import verify
from tests.admin.test_rebuild import KILLED, index_of, kill_in_rebuild, settings_of
from tests.support.damage import write_in_log
from tests.support.golden import Golden, GoldenStore, unpack, unpack_kind
from tests.support.renumbered import renumber, units_of
from tests.support.rocksdb import key_of, max_key_of, read_database
from tests.support.running.commands import call, run

KINDS = ("rocksdb-5.5.0", "rocksdb-batch-5.5.0", "rocksdb-config-v2-5.5.0")
JSON = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
COLUMNS = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]


def into_database(store: GoldenStore, target: Path) -> RebuildReport:
    return rebuild(store.path, target, store_type=DATABASE, config=store.conf)


def entries_in(root: str | Path, tmp_path: Path) -> dict[bytes, bytes]:
    copy = tmp_path / f"entries-{len(list(tmp_path.iterdir()))}"
    return read_database(Path(root, "consumequeue"), copy)["default"]


def offsets_in(root: str | Path, tmp_path: Path) -> dict[bytes, bytes]:
    copy = tmp_path / f"offsets-{len(list(tmp_path.iterdir()))}"
    return read_database(Path(root, "consumequeue"), copy)["offset"]


@pytest.mark.parametrize("name", KINDS)
def test_the_database_is_that_of_the_broker_key_by_key(tmp_path: Path, name: str) -> None:
    """But for the least offsets, which the broker keeps of what it was asked: no reader needs them."""
    golden, target = unpack_kind(name, tmp_path), tmp_path / "target"
    before = golden.fingerprint()
    assert into_database(golden, target).all_well is (name != KINDS[1])
    assert entries_in(target, tmp_path) == entries_in(golden.path, tmp_path)
    theirs = offsets_in(golden.path, tmp_path)
    assert offsets_in(target, tmp_path) == {k: v for k, v in theirs.items() if b"\1min\1" not in k}
    assert golden.fingerprint() == before
    left = {path.name for path in (target / "consumequeue").iterdir()}
    assert not left & {"rocksdict-config.json", "LOG"}
    assert not (target / "batchconsumequeue").exists()
    assert index_of(target) == index_of(golden.path)


def test_a_killed_brokers_empty_database_becomes_whole(tmp_path: Path) -> None:
    golden, target = unpack_kind("rocksdb-crash-5.5.0", tmp_path), tmp_path / "target"
    assert into_database(golden, target).all_well
    with MessageStore.open(target) as store:
        found = store.read_batches(columns=COLUMNS[:-1]).read_all().to_pylist()
        assert verify(store).nothing_wrong
        assert all(state.tail is None for state in store.snapshot().queues.values())
    served = golden.lines("served")
    assert sorted(tuple(row.values()) for row in found) == sorted(
        (row["topic"], row["queue"], row["offset"], row["phy"]) for row in served
    )


def test_the_records_of_a_dledger_log_become_rows_of_the_database(tmp_path: Path) -> None:
    golden, target = unpack_kind("dledger-5.5.0", tmp_path), tmp_path / "target"
    rebuild(golden.path, target, store_type=DATABASE, release="5.5.0", config=golden.conf)
    with MessageStore.open(target) as store:
        found = store.read_batches(columns=["topic", "queueId", "queueOffset", "body"]).read_all()
        assert verify(store).nothing_wrong
    served = {
        (line["topic"], line["queue"], line["offset"]): base64.b64decode(line["body"])
        for line in golden.lines("served")
    }
    rows = {tuple(row.values())[:3]: row["body"] for row in found.to_pylist()}
    assert served
    assert {place: rows.get(place) for place in served} == served


@pytest.mark.parametrize("name", ["clean-5.5.0", "clean-5.3.3", "lmq-5.3.3", "multipath-5.5.0"])
def test_the_entries_of_queue_files_are_those_of_the_database(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    """A value begins with the entry of the queue file, and ends with the store time. No database has a batch
    queue; its messages are there."""
    store, target = golden(name), tmp_path / "target"
    report = rebuild(store.path, target, store_type=DATABASE, config=settings_of(store))
    assert not report.recovery.left_out
    found = entries_in(target, tmp_path)
    stored = {one["commitLogOffset"]: one["storeTimestamp"] for one in store.truth}
    listed = 0
    for queue in report.recovery.queues:
        if Path(store.path, "batchconsumequeue", queue.topic).exists():
            continue
        units = units_of(store, *queue)
        for offset, unit in enumerate(units):
            time = stored[struct.unpack_from(">q", unit)[0]]
            assert found[key_of(queue, offset)] == unit + struct.pack(">q", time)
        listed += len(units)
    with MessageStore.open(target) as new, store.open() as old:
        batches = [q for q in old.queues() if old.view.is_batch(q)]
        assert len(found) == listed + sum(
            len(old.entries(q, 0, old.max_offset(*q))) for q in batches
        )
        how: dict[str, Any] = {"columns": COLUMNS, "include_system_topics": True}
        for unwraps in (False, True):
            mine = new.read_batches(unwrap_batches=unwraps, **how).read_all()
            assert mine == old.read_batches(unwrap_batches=unwraps, **how).read_all()


def test_a_broker_takes_in_the_configuration(golden: Golden, tmp_path: Path) -> None:
    """Its new databases have the counter 0, and a JSON file with no larger one is passed over."""
    for number, store in enumerate((golden("clean-5.5.0"), unpack_kind(KINDS[0], tmp_path))):
        target = tmp_path / f"target-{number}"
        rebuild(store.path, target, store_type=DATABASE)
        for name in JSON:
            text = (target / "config" / name).read_text("utf-8")
            assert "dataVersion" in text
        assert read_consumer_offsets(target) == read_consumer_offsets(store.path)
        assert read_consumer_offsets(target)
        before, after = read_topic_configs(store.path), read_topic_configs(target)
        assert {name: after[name] for name in before} == before
    offsets = (target / "config" / "consumerOffset.json").read_text("utf-8")
    assert '"counter":1' in offsets
    assert '"0"' not in offsets


@pytest.mark.parametrize("at", [1, 1_500_000])
def test_killed_anywhere_it_goes_on_to_the_same_database(
    golden: Golden, tmp_path: Path, at: int
) -> None:
    store, target = golden("clean-5.5.0"), tmp_path / "target"
    script = KILLED.replace('release="5.3.3"', 'store_type="defaultRocksDB"')
    kill_in_rebuild(script, store, target, at)
    assert json.loads((target / STATE_FILE).read_text())["storeType"] == DATABASE
    with pytest.raises(InvalidArgumentError, match="other options"):
        rebuild(store.path, target, config=settings_of(store))
    how: dict[str, Any] = {"store_type": DATABASE, "config": settings_of(store)}
    assert rebuild(store.path, target, **how).resumed
    rebuild(store.path, tmp_path / "at-once", **how)
    for read in (entries_in, offsets_in):
        assert read(target, tmp_path) == read(tmp_path / "at-once", tmp_path)
    assert index_of(target) == index_of(tmp_path / "at-once")
    assert not (target / STATE_FILE).exists()


def test_without_the_library_nothing_is_written(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.files.rocksdb.find_spec", lambda name: None)
    with pytest.raises(UnsupportedStoreError, match=r"pip install 'rmqstore\[rocksdb\]'"):
        rebuild(golden("clean-5.5.0").path, tmp_path / "target", store_type=DATABASE)
    assert not (tmp_path / "target").exists()


def test_other_releases_and_types_are_refused(golden: Golden, tmp_path: Path) -> None:
    store, target = golden("clean-5.5.0").path, tmp_path / "target"
    with pytest.raises(InvalidArgumentError, match=r"5\.5\.0 or later"):
        rebuild(store, target, store_type=DATABASE, release="5.3.3")
    with pytest.raises(InvalidArgumentError, match="default or defaultRocksDB"):
        rebuild(store, target, store_type="rocksdb")
    assert not target.exists()


def test_a_database_that_cannot_be_written_is_an_error(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the database has to be."""
    store, target = golden("clean-5.5.0"), tmp_path / "target"

    def in_the_way(root: Path) -> None:
        (root / "consumequeue").rmdir()
        (root / "consumequeue").write_text("a file")

    monkeypatch.setattr("rmq_store.admin.rebuild._forget", in_the_way)
    with pytest.raises(AccessError, match="RocksDB cannot write the database"):
        rebuild(store.path, target, store_type=DATABASE)


@pytest.mark.parametrize("gone", [10, 14], ids=["in one file", "in two files"])
def test_of_two_records_with_one_queue_offset_the_later_one_is_listed(
    tmp_path: Path, gone: int
) -> None:
    """As RocksDB keeps the later value of a key; the queue ends with its last record."""
    store, queue = unpack("tsp-5.5.0", tmp_path), QueueId("orders", 0)

    def offset_of(number: int) -> int:
        return number - (number > gone)

    places = renumber(store, *queue, offset_of)
    report = rebuild(store.path, tmp_path / "target", store_type=DATABASE)
    last = offset_of(len(places) - 1)
    wanted = {offset_of(n): place for n, place in enumerate(places)}
    found = entries_in(tmp_path / "target", tmp_path)
    for offset, place in wanted.items():
        assert struct.unpack_from(">q", found[key_of(queue, offset)])[0] == place
    end = offsets_in(tmp_path / "target", tmp_path)[max_key_of(queue)]
    assert struct.unpack(">qq", end) == (places[-1], last)
    left = report.recovery.left_out[queue]
    assert (left.count, left.replaced, left.log_offset) == (1, True, places[gone])
    assert not report.all_well
    (line,) = [line for line in report.recovery.lines_of_left_out() if "orders/0" in line]
    assert "with queue offsets that later records have" in line
    with MessageStore.open(tmp_path / "target") as new:
        columns = ["queueOffset", "commitLogOffset"]
        rows = new.read_batches("orders", [0], columns=columns).read_all()
    listed = {offset: place for offset, place in wanted.items() if offset <= last}
    assert dict(zip(*(column.to_pylist() for column in rows.columns), strict=True)) == listed


def test_the_command_writes_it_and_says_so(tmp_path: Path) -> None:
    store, target = unpack_kind(KINDS[0], tmp_path), tmp_path / "target"
    words = ("--store-type", DATABASE, "--verify", "--json", "--broker-conf", store.conf)
    said = run("rebuild", store.path, str(target), *words)
    assert json.loads(said.splitlines()[0])["storeType"] == DATABASE
    assert (target / "consumequeue" / "CURRENT").is_file()


def test_topics_with_inner_batches_are_named(golden: Golden, tmp_path: Path) -> None:
    """A broker does not serve their messages behind the first."""
    store, words = golden("clean-5.5.0").path, ("--store-type", DATABASE)
    said = run("rebuild", store, str(tmp_path / "target"), *words, expect=1)
    assert "a consumer stays there. Topics with such: inner\n" in said
    done = call("rebuild", store, str(tmp_path / "other"), *words, "--json")
    assert json.loads(done.stdout)["unserved"] == ["inner"]


@pytest.mark.parametrize("number", [2**36, 2**62, 2**63 - 1])
@pytest.mark.parametrize("which", ["a middle one", "the last one"])
def test_a_queue_offset_that_readers_take_for_damage_hides_no_other(
    tmp_path: Path, number: int, which: str
) -> None:
    """No CRC covers a queueOffset, so that its record counts as intact."""
    store, target = unpack("clean-5.5.0", tmp_path), tmp_path / "target"
    queue = QueueId("orders", 1)
    its = store.by_queue[queue]
    record = its[-1 if which == "the last one" else len(its) // 2]
    write_in_log(store, record["commitLogOffset"] + 20, struct.pack(">q", number))
    report = into_database(store, target)
    assert report.recovery.left_out[queue].log_offset == record["commitLogOffset"]
    with MessageStore.open(target) as opened:
        slices = opened.view.ranges_of(["orders"])
        rows = opened.read_slices(slices, columns=COLUMNS[:-1], on_damage=lambda _: None).read_all()
    read = [r["commitLogOffset"] for r in rows.to_pylist() if r["queueId"] == queue.queue_id]
    assert read == [r["commitLogOffset"] for r in its if r is not record]
