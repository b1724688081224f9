"""Topics, groups and offsets that a broker keeps in RocksDB: of real brokers (versions 1 and 2), and of
databases made here after the keys that broker.config.v2 and useSingleRocksDBForAllConfigs write."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.reset_offsets import apply_reset
from rmq_store.config.consumer_offsets import (
    committed_offsets,
    pulled_and_popped_offsets,
    read_consumer_offsets,
)
from rmq_store.config.json_files import ConfigFile, config_names, read_config, undecoded
from rmq_store.config.topics_json import read_topic_configs
from rmq_store.errors import CorruptConfigError, UnsupportedStoreError
from rmq_store.verify import verify
from tests.support.golden import GoldenStore, unpack, unpack_kind, verified
from tests.support.rocksdb import read_database, write_database

CLEAN, CRASHED = "rocksdb-5.5.0", "rocksdb-crash-5.5.0"
VERSION_2 = "rocksdb-config-v2-5.5.0"
TOPIC = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicName": "t"}


def held(folder: Path, copy: Path) -> dict[str, Any]:
    """What a database holds, read by the library alone."""
    rows = read_database(folder, copy)["default"]
    return {key.decode(): json.loads(value) for key, value in rows.items()}


def groups_of(root: str) -> ConfigFile[Any]:
    groups = read_config(root, "subscriptionGroup.json", undecoded)
    assert groups is not None
    return groups


def version(counter: int) -> bytes:
    return json.dumps({"counter": counter, "stateVersion": 0, "timestamp": 5}).encode()


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_topics_groups_and_offsets_are_those_of_the_databases(tmp_path: Path, name: str) -> None:
    """Those of a killed broker are in the databases' own logs."""
    golden = unpack_kind(name, tmp_path)
    config, before = Path(golden.path, "config"), golden.fingerprint()
    topics = read_topic_configs(golden.path)
    assert topics == held(config / "topics", tmp_path / "t")
    assert topics["orders"]["readQueueNums"] == 4
    offsets = {
        f"{topic}@{group}": {"offsetTable": {str(q): at for q, at in queues.items()}}
        for group, of_group in read_consumer_offsets(golden.path).items()
        for topic, queues in of_group.items()
    }
    assert offsets == held(config / "consumerOffsets", tmp_path / "c")
    assert bool(offsets) is (name == CLEAN)
    groups = groups_of(golden.path).content["subscriptionGroupTable"]
    assert groups == held(config / "subscriptionGroups", tmp_path / "g")
    assert golden.fingerprint() == before


def test_a_file_of_light_queues_beside_a_database_is_from_before_it(tmp_path: Path) -> None:
    """RocksDBLmqConsumerOffsetManager reads the database of all groups."""
    golden = unpack_kind(CLEAN, tmp_path)
    offsets = read_consumer_offsets(golden.path)
    path = Path(golden.path, "config", "lmqConsumerOffset.json")
    path.write_text('{"offsetTable":{"orders@stale":{0:1}}}', "utf-8")
    for enable_lmq in (None, True, False):
        assert read_consumer_offsets(golden.path, enable_lmq) == offsets != {}


@pytest.mark.parametrize(("counter", "newer"), [(99, True), (7, False), (1, False)])
def test_a_newer_file_is_taken_in(tmp_path: Path, counter: int, newer: bool) -> None:
    """RocksDBTopicConfigManager#merge. The database of this store has 7."""
    golden = unpack_kind(CLEAN, tmp_path)
    before = read_topic_configs(golden.path)
    more = before["orders"] | {"readQueueNums": 9}
    table = {"orders": more, "t": TOPIC}
    text = {"dataVersion": json.loads(version(counter)), "topicConfigTable": table}
    Path(golden.path, "config", "topics.json").write_text(json.dumps(text))
    assert read_topic_configs(golden.path) == before | (table if newer else {})


def test_a_newer_file_beside_version_2_is_not_taken_in(tmp_path: Path) -> None:
    golden = unpack_kind(VERSION_2, tmp_path)
    before = read_topic_configs(golden.path)
    text = {"dataVersion": json.loads(version(10**9)), "topicConfigTable": {"t": TOPIC}}
    Path(golden.path, "config", "topics.json").write_text(json.dumps(text))
    assert read_topic_configs(golden.path) == before


def v2(table: int, kind: int, rest: bytes = b"") -> bytes:
    return struct.pack(">BhB", 1, table, kind) + rest


def name_of(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def offset_key(table: int, group: str, topic: str, queue: int) -> bytes:
    rest = name_of(group) + b"\1" + name_of(topic) + b"\1" + struct.pack(">i", queue)
    return v2(table, 2, rest)


def answered(golden: GoldenStore, call: str, *, again: bool = True) -> list[dict[str, Any]]:
    """What a broker answered that was started again on the files, or the one that wrote them."""
    which = "started again" if again else "before the stop"
    return [one for one in golden.answers(call) if one["broker"] == which]


@pytest.mark.parametrize("again", [True, False])
def test_version_2_is_read_as_brokers_answer(tmp_path: Path, again: bool) -> None:
    """But for what the brokers made themselves: system topics and groups, retry topics, `auto`."""
    golden = unpack_kind(VERSION_2, tmp_path)
    before = golden.fingerprint()
    (topics,) = answered(golden, "topics", again=again)
    made = ("orders", "payments", "state")
    assert read_topic_configs(golden.path) == {name: topics["answer"][name] for name in made}
    (groups,) = answered(golden, "groups", again=again)
    assert groups_of(golden.path).content["subscriptionGroupTable"] == {
        name: groups["answer"][name] for name in ("g-fast", "g-slow")
    }
    offsets = {
        (one["group"], one["topic"], one["queueId"]): one["answer"]
        for one in answered(golden, "offset", again=again)
    }
    assert {
        (group, topic, queue): offset
        for group, of_group in read_consumer_offsets(golden.path).items()
        for topic, queues in of_group.items()
        for queue, offset in queues.items()
    } == offsets
    assert len(offsets) == 9
    assert golden.fingerprint() == before


def test_a_broker_of_version_2_forgets_what_it_made_itself(tmp_path: Path) -> None:
    """So its topic is not called unknown, and the offsets of its group are those of a group."""
    golden = unpack_kind(VERSION_2, tmp_path)
    (before,) = answered(golden, "topics", again=False)
    (after,) = answered(golden, "topics")
    assert "auto" in before["answer"].keys() - after["answer"].keys()
    with MessageStore.open(golden.path) as store:
        assert "auto" in store.topics()
        assert not store.is_undeclared("auto")
        rows = store.table("groups").to_pylist()
        lag = {(r["consumerGroup"], r["topic"]): r["lag"] for r in rows if r["queueId"] == 0}
        assert [one.code for one in verify(store).findings] == ["queue-not-read"]  # payments/2
    assert lag["g-auto", "auto"] == 0
    assert lag["g-slow", "payments"] == 6


def test_a_rebuild_of_version_2_has_the_same_in_json(tmp_path: Path) -> None:
    golden = unpack_kind(VERSION_2, tmp_path)
    topics = read_topic_configs(golden.path)
    offsets = read_consumer_offsets(golden.path)
    with rebuilt(golden, tmp_path / "new") as new:
        assert new.consumer_offsets() == offsets
        assert {*new.topics()} >= {"orders", "payments", "auto"}
    declared = read_topic_configs(tmp_path / "new")
    assert {name: declared[name] for name in topics} == topics


def test_one_database_of_version_2(copy: GoldenStore) -> None:
    config = Path(copy.path, "config")
    for path in config.glob("*.json*"):
        path.unlink()
    rows = {
        v2(3, 1, b"data_version"): struct.pack(">qqq", 2, 1234, 17),
        v2(3, 2, name_of("orders")): b"\1" + json.dumps(TOPIC | {"topicName": "orders"}).encode(),
        v2(3, 2, name_of("größe")): b"\1" + json.dumps(TOPIC | {"topicName": "größe"}).encode(),
        v2(4, 2, name_of("g")): b"\1" + json.dumps({"groupName": "g"}).encode(),
        offset_key(1, "g", "orders", 0): struct.pack(">q", 5),
        offset_key(1, "g", "orders", 3): struct.pack(">q", 2**40),
        offset_key(2, "g", "orders", 1): struct.pack(">q", 8),
    }
    write_database(config / "rdb", {"default": rows})
    found = read_config(copy.path, "topics.json", undecoded)
    assert found is not None
    assert found.content["dataVersion"] == {"stateVersion": 2, "timestamp": 1234, "counter": 17}
    assert set(read_topic_configs(copy.path)) == {"orders", "größe"}
    assert read_consumer_offsets(copy.path) == {"g": {"orders": {0: 5, 3: 2**40}}}
    assert [one.offset for one in pulled_and_popped_offsets(copy.path)] == [8]
    assert groups_of(copy.path).content["subscriptionGroupTable"] == {"g": {"groupName": "g"}}
    names = {"topics.json", "consumerOffset.json", "subscriptionGroup.json"}
    assert names <= set(config_names(copy.path))


def test_one_database_for_all_of_version_1(tmp_path: Path) -> None:
    """useSingleRocksDBForAllConfigs; of a database that is left beside it, the larger counter counts."""
    golden = unpack_kind(CLEAN, tmp_path)
    alone = read_topic_configs(golden.path)
    families = {
        "default": {},
        "topic": {b"t": json.dumps(TOPIC).encode()},
        "topicVersion": {b"kvDataVersionKey": version(50)},
        "consumerOffset": {b"t@g": b'{"offsetTable":{"0":3}}'},
        "consumerOffsetVersion": {b"kvDataVersionKey": version(1)},
        "subscriptionGroup": {b"g": b'{"groupName":"g"}'},
        "subscriptionGroupVersion": {b"kvDataVersionKey": version(2)},
        "forbidden": {b"g": b'{"t":1}'},
    }
    write_database(Path(golden.path, "config", "metadata"), families)
    assert read_topic_configs(golden.path) == {"t": TOPIC}
    assert [(one.group, one.offset) for one in committed_offsets(golden.path)] == [("g", 3)]
    assert groups_of(golden.path).path.name == "subscriptionGroups"  # its counter is 3
    shutil.rmtree(Path(golden.path, "config", "metadata"))
    families["topicVersion"] = {b"kvDataVersionKey": version(6)}
    write_database(Path(golden.path, "config", "metadata"), families)
    assert read_topic_configs(golden.path) == alone


DAMAGE: Mapping[str, dict[bytes, bytes]] = {
    "no JSON": {b"t": b"\xff\xfe{"},
    "no offsets": {b"t@g": b"{}"},
    "no object": {b"t@g": b"7"},
}


@pytest.mark.parametrize("rows", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_no_table_is_damage(tmp_path: Path, rows: dict[bytes, bytes]) -> None:
    golden = unpack_kind(CLEAN, tmp_path)
    folder = Path(golden.path, "config", "consumerOffsets")
    shutil.rmtree(folder)
    write_database(folder, {"default": rows})
    with pytest.raises(CorruptConfigError) as caught:
        read_consumer_offsets(golden.path)
    assert caught.value.path == str(folder)
    assert "config-unreadable" in {one.code for one in verified(golden.path).findings}


def test_without_the_library_messages_are_read_and_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues are in files, the configuration in databases."""
    golden, other = unpack("clean-5.5.0", tmp_path), unpack_kind(CLEAN, tmp_path)
    for path in Path(golden.path, "config").glob("*.json*"):
        path.unlink()
    for folder in Path(other.path, "config").iterdir():
        if folder.is_dir():
            shutil.copytree(folder, Path(golden.path, "config", folder.name))
    monkeypatch.setattr("rmq_store.config.rocksdb.find_spec", lambda name: None)
    with golden.open() as store:
        assert store.read_batches(columns=["body"]).read_all().num_rows > 0
        with pytest.raises(CorruptConfigError, match=r"pip install 'rmqstore\[rocksdb\]'"):
            store.consumer_offsets()
        assert "rmqstore[rocksdb]" in str(store.view.topics.problem)


def test_nothing_is_written_beside_the_databases(tmp_path: Path) -> None:
    golden, other = unpack("clean-5.5.0", tmp_path), unpack_kind(CLEAN, tmp_path)
    shutil.copytree(Path(other.path, "config", "topics"), Path(golden.path, "config", "topics"))
    before = golden.fingerprint()
    with pytest.raises(UnsupportedStoreError, match="RocksDB database"):
        MessageStore.append_to(golden.path)
    with golden.open() as store, pytest.raises(UnsupportedStoreError, match="RocksDB database"):
        apply_reset(store, [])
    assert golden.fingerprint() == before


def rebuilt(golden: GoldenStore, target: Path) -> MessageStore:
    rebuild(golden.path, target)
    return MessageStore.open(target)


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_a_rebuild_has_queue_files_and_json(tmp_path: Path, name: str) -> None:
    golden = unpack_kind(name, tmp_path)
    target = tmp_path / "new"
    columns = ["topic", "queueId", "queueOffset", "commitLogOffset", "body"]
    with MessageStore.open(golden.path) as store, rebuilt(golden, target) as new:
        wanted = store.read_batches(columns=columns, include_system_topics=True).read_all()
        assert new.read_batches(columns=columns, include_system_topics=True).read_all() == wanted
        assert new.consumer_offsets() == store.consumer_offsets()
        assert verify(new).nothing_wrong
    topics = read_topic_configs(target)
    before = read_topic_configs(golden.path)
    assert {topic: topics[topic] for topic in before} == before
    assert not list(target.rglob("CURRENT"))
    text = (target / "config" / "consumerOffset.json").read_text("utf-8")
    assert '"0"' not in text  # a broker writes queue numbers without quotes


def test_a_rebuild_without_the_library_names_what_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    golden = unpack_kind(CLEAN, tmp_path)
    with MessageStore.open(golden.path) as store:
        wanted = store.read_batches(columns=["commitLogOffset"]).read_all()
    monkeypatch.setattr("rmq_store.config.rocksdb.find_spec", lambda name: None)
    monkeypatch.setattr("rmq_store.files.rocksdb.find_spec", lambda name: None)
    with rebuilt(golden, tmp_path / "new") as new:
        assert new.read_batches(columns=["commitLogOffset"]).read_all() == wanted
    for name in ("topics", "consumerOffsets", "subscriptionGroups"):
        assert f"config/{name}: this is a RocksDB database" in caplog.text
