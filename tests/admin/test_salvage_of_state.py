"""salvage of state that names queue offsets: what is open comes along with new numbers, nothing else.

What became of a message stands in its KEYS, or in what a client was given. The logs are read byte by byte.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.salvage import salvage
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, unpack, unpack_field, unpack_kind, unpack_state
from tests.support.log_records import Fields, fields, records, rename
from tests.support.running.commands import run

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LEVELS, TIMERS = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
BROKEN = ("consumerOffset.json", "topics.json", "delayOffset.json")
NUMBER = re.compile(r"-?\d+")


def of(log: list[Fields], topic: str) -> list[Fields]:
    return [record for record in log if record.topic == topic]


def named_by_ops(log: list[Fields]) -> set[int]:
    return {int(n) for record in of(log, OP) for n in NUMBER.findall(record.body.decode())}


def keys(log: list[Fields]) -> list[str]:
    return [record.keys for record in log]


def check_halves_of_committed(log: list[Fields]) -> None:
    """A committed message names its own half message, if that is there."""
    places = {half.log_offset: half.keys for half in of(log, HALF)}
    for message in of(log, "txt"):
        assert places.get(message.half_offset, message.keys) == message.keys
        assert (message.half_offset == 0) is (message.keys not in places.values())


def identity(record: Fields) -> tuple[str | None, bytes]:
    return record.properties.get("UNIQ_KEY"), record.body


def offsets_in(root: Path) -> dict[str, dict[int, int]]:
    """consumerOffset.json, whose keys of queues have no quotes."""
    text = (root / "config/consumerOffset.json").read_text("utf-8")
    table = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))["offsetTable"]
    return {key: {int(n): at for n, at in queues.items()} for key, queues in table.items()}


def lose(store: GoldenStore, *places: int) -> None:
    """Change the bodies of the records at log offsets, so that their CRC is wrong."""
    for file, at, raw in list(records(store.path)):
        if int(file.name) + at in places:
            write_at(file, at + 88, bytes([raw[88] ^ 1]))


@pytest.mark.parametrize("lost", [0, 3])
def test_op_messages_name_the_half_messages_of_the_new_store(tmp_path: Path, lost: int) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    before = fields(store.path)
    lose(store, *(record.log_offset for record in of(before, HALF)[:lost]))
    report = salvage(store.path, tmp_path / "new")
    after = fields(tmp_path / "new")
    halves = of(after, HALF)
    assert keys(halves) == keys(of(before, HALF)[lost:])
    assert [half.queue_offset for half in halves] == list(range(len(halves)))
    still_open = {half.keys for half in halves if half.queue_offset not in named_by_ops(after)}
    assert still_open == {half.keys for half in halves if half.keys.endswith("-U")}
    assert report.open_transactions == len(still_open)
    assert named_by_ops(after) <= {half.queue_offset for half in halves}
    check_halves_of_committed(after)


def test_a_record_that_is_refused_changes_nothing_of_the_others(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    count = rename(store, b"pad", b"../")
    before = fields(store.path)
    report = salvage(store.path, tmp_path / "new")
    assert sum(report.refused.values()) == count > 0
    after = fields(tmp_path / "new")
    halves = of(after, HALF)
    assert keys(halves) == keys(of(before, HALF))
    still_open = {half.keys for half in halves if half.queue_offset not in named_by_ops(after)}
    assert still_open == {half.keys for half in halves if half.keys.endswith("-U")}
    places = {half.log_offset: half.keys for half in halves}
    assert all(places.get(r.half_offset) == r.keys for r in of(after, "txt") if r.half_offset)
    assert any(r.half_offset for r in of(after, "txt"))


def test_only_delayed_messages_that_wait_come_along(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    before = fields(store.path)
    report = salvage(store.path, tmp_path / "new")
    after = fields(tmp_path / "new")
    waiting = {key for key in keys(before) if key.startswith(("late-", "timlate-"))}
    assert {*keys(of(after, LEVELS)), *keys(of(after, TIMERS))} == waiting
    assert report.waiting == len(waiting) == len(of(after, LEVELS) + of(after, TIMERS))
    assert keys(of(after, "del")) == keys(of(before, "del"))
    delays = (tmp_path / "new/config/delayOffset.json").read_text("utf-8")
    assert NUMBER.findall(delays) == ["18", "0"]
    assert not (tmp_path / "new/config/timercheck").exists()


def test_of_two_messages_with_one_key_the_one_that_waits_comes_along(tmp_path: Path) -> None:
    """As when a client sends one message object twice, with two delays; one of them was delivered."""
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    held = {r.keys: r for r in fields(store.path) if r.topic in (LEVELS, TIMERS)}
    twins = {"late-50": "tim-60", "late-51": "del-30", "timlate-70": "tim-61"}
    places = {held[waits].log_offset: (waits, done) for waits, done in twins.items()}
    for file, at, raw in list(records(store.path)):
        if int(file.name) + at in places:
            own, other = (
                held[name].properties["UNIQ_KEY"].encode() for name in places[int(file.name) + at]
            )
            write_at(file, at + raw.index(own), other)
    rows = run("scheduled", store.path, "--json").splitlines()
    states = {row["keys"]: row["state"] for row in map(json.loads, rows)}
    assert {states[name] for name in twins} == {"waiting"}
    report = salvage(store.path, tmp_path / "new")
    waiting = {key for key in held if key.startswith(("late-", "timlate-"))}
    after = fields(tmp_path / "new")
    assert {*keys(of(after, LEVELS)), *keys(of(after, TIMERS))} == waiting
    assert (report.waiting, report.without_copy) == (len(waiting), 0)


def test_offsets_of_the_file_that_the_broker_reads_come_along(tmp_path: Path) -> None:
    """An old file of light queues beside it, from before enableLmq was changed, has other ones."""
    store = unpack("clean-5.5.0", tmp_path)
    expected = offsets_in(Path(store.path))["orders@g-slow"]
    stale = Path(store.path, "config", "lmqConsumerOffset.json")
    stale.write_text('{"offsetTable":{"orders@g-slow":{0:3,1:200}}}', "utf-8")
    os.utime(stale, (1, 1))
    salvage(store.path, tmp_path / "new")
    assert offsets_in(tmp_path / "new")["orders@g-slow"] == expected
    assert not (tmp_path / "new/config/lmqConsumerOffset.json").exists()


@pytest.mark.parametrize("name", ["rocksdb-5.5.0", "rocksdb-config-v2-5.5.0"])
def test_offsets_of_a_database_are_in_the_file_of_the_new_store(name: str, tmp_path: Path) -> None:
    store = unpack_kind(name, tmp_path)
    report = salvage(store.path, tmp_path / "new")
    with MessageStore.open(store.path) as old, MessageStore.open(tmp_path / "new") as new:
        before, after = old.consumer_offsets(), new.consumer_offsets()
    users = {group: topics for group, topics in before.items() if not group.startswith("CID_RMQ")}
    count = sum(len(queues) for topics in users.values() for queues in topics.values())
    assert {group: {*topics} for group, topics in after.items()} == {
        group: {*topics} for group, topics in users.items()
    }
    assert report.group_offsets == count > 0


def test_a_config_that_is_no_folder_keeps_no_message_back(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path, "config"))
    Path(store.path, "config").write_text("no folder", "utf-8")
    before = fields(store.path)
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert "this is not a folder" in said
    assert keys(of(fields(tmp_path / "new"), "orders")) == keys(of(before, "orders")) != []


def test_offsets_in_light_queues_are_said_to_stay_behind(tmp_path: Path) -> None:
    store = unpack("lmq-5.3.3", tmp_path)
    path = Path(store.path, "config", "lmqConsumerOffset.json")
    text = path.read_text("utf-8")
    entry = '"%LMQ%all@%LMQ%g":7'
    path.write_text(text.replace('"lmqOffsetTable":{}', f'"lmqOffsetTable":{{{entry}}}'), "utf-8")
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert "not carried over: 1 offset in light queues (%LMQ%...)" in said


@pytest.mark.parametrize("gone", ["delayOffset.json*", "timercheck", "*"])
def test_the_copies_in_the_log_prove_what_was_delivered(tmp_path: Path, gone: str) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    for path in Path(store.path, "config").glob(gone):
        path.unlink()
    salvage(store.path, tmp_path / "new")
    after = fields(tmp_path / "new")
    assert len(of(after, LEVELS)) == 10
    assert len(of(after, TIMERS)) == 5


def test_a_delivered_message_whose_copy_is_lost_is_counted(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    lose(store, *(r.log_offset for r in of(fields(store.path), "del") if r.keys == "del-31"))
    report = salvage(store.path, tmp_path / "new")
    assert (report.without_copy, report.waiting) == (1, 15)
    # Without the broker's file nothing says that it was delivered: it is, then, rather than lost.
    for path in Path(store.path, "config").glob("delayOffset.json*"):
        path.unlink()
    report = salvage(store.path, tmp_path / "again")
    assert (report.without_copy, report.waiting) == (0, 16)


def test_a_half_message_that_the_broker_stored_again_comes_once(tmp_path: Path) -> None:
    store = unpack("proxy-5.5.0", tmp_path)
    before = of(fields(store.path), HALF)
    again = [half for half in before if half.properties.get("TRANSACTION_CHECK_TIMES")]
    assert again
    report = salvage(store.path, tmp_path / "new")
    after = fields(tmp_path / "new")
    names = [half.properties["UNIQ_KEY"] for half in of(after, HALF)]
    assert sorted(names) == sorted({half.properties["UNIQ_KEY"] for half in before})
    assert report.open_transactions == 0
    assert named_by_ops(after) == set(range(len(names)))


def test_what_was_popped_and_not_acknowledged_comes_again(tmp_path: Path) -> None:
    store = unpack_state("pop-5.5.0", tmp_path)
    events = store.lines("events")
    acknowledged = {event["acked"] for event in events if "acked" in event}
    pending = {event["given"] for event in events if "given" in event} - acknowledged
    report = salvage(store.path, tmp_path / "new", config=store.conf)
    # A broker notes late how far it is with check points, and may give a message once more.
    assert report.given_again >= report.not_acknowledged >= len(pending) > 0
    after, new = fields(tmp_path / "new"), offsets_in(tmp_path / "new")
    assert not [
        r for r in after if r.topic.startswith("rmq_sys_REVIVE") or "REVIVE" in str(r.properties)
    ]
    to_come = set()
    for key, queues in new.items():
        topic, _, group = key.partition("@")
        to_come |= {
            record.body.decode()
            for record in of(after, topic)
            if group == "gp" and record.queue_offset >= queues.get(record.queue_id, 0)
        }
    assert pending <= to_come
    assert not [key for key in new if key.endswith("@CID_RMQ_SYS_REVIVE_GROUP")]


@pytest.mark.parametrize("name", ["clean-4.9.7", "clean-5.5.0"])
def test_each_group_goes_on_with_the_message_that_was_its_next(tmp_path: Path, name: str) -> None:
    store = unpack(name, tmp_path)
    before, groups = fields(store.path), offsets_in(Path(store.path))
    orders = [record for record in of(before, "orders") if record.queue_id == 0]
    lose(store, *(record.log_offset for record in orders[3:20:4]), orders[49].log_offset)
    lost = {identity(record) for record in (*orders[3:20:4], orders[49])}
    release = name.rpartition("-")[2]
    salvage(store.path, tmp_path / "new", config=store.conf, release=release)
    queues: dict[tuple[str, int], list[Fields]] = defaultdict(list)
    for record in fields(tmp_path / "new"):
        queues[record.topic, record.queue_id].append(record)
    after, compared = offsets_in(tmp_path / "new"), 0
    for key, offsets in groups.items():
        topic, _, group = key.partition("@")
        if group.startswith("CID_RMQ_SYS"):
            assert key not in after
            continue
        for queue_id, offset in offsets.items():
            left = [
                identity(record)
                for record in before
                if (record.topic, record.queue_id) == (topic, queue_id)
                and record.queue_offset >= offset
            ]
            found = queues[topic, queue_id][after[key][queue_id] :]
            assert list(map(identity, found)) == [one for one in left if one not in lost]
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("lost", [0, 2])
def test_a_group_of_a_topic_that_was_made_again_goes_on_in_its_last_life(
    tmp_path: Path, lost: int
) -> None:
    """The store may have lost the first messages of that life, which the group reads next."""
    unpack_field("deleted-topic-5.5.0", tmp_path)
    store, root = GoldenStore(tmp_path), tmp_path / "store"
    (tmp_path / "deleted-topic" / "c2-created-again").rename(root)
    given = {"offsetTable": {"again@g": {"0": 0}}}
    (root / "config").mkdir(exist_ok=True)
    (root / "config/consumerOffset.json").write_text(json.dumps(given), "utf-8")
    last_life = [record for record in of(fields(store.path), "again") if record.body[:3] == b"new"]
    lose(store, *(record.log_offset for record in last_life[:lost]))
    salvage(store.path, tmp_path / "new")
    start = offsets_in(tmp_path / "new")["again@g"][0]
    assert [record.body for record in of(fields(tmp_path / "new"), "again")[start:]] == [
        record.body for record in last_life[lost:]
    ]


def test_the_topics_keep_their_settings_and_compaction_topics_become_plain(tmp_path: Path) -> None:
    store = unpack_kind("compact-timer-5.5.0", tmp_path)
    salvage(store.path, tmp_path / "new", config=store.conf)

    def topics(root: Path) -> dict[str, Any]:
        table = json.loads((root / "config/topics.json").read_text("utf-8"))["topicConfigTable"]
        return {
            name: settings for name, settings in table.items() if name[:3] not in ("RMQ", "rmq")
        }

    before, after = topics(Path(store.path)), topics(tmp_path / "new")
    compacted = [name for name, of_it in before.items() if "cleanup.policy" in of_it["attributes"]]
    assert compacted
    for name in compacted:
        assert before[name]["attributes"].pop("cleanup.policy") == "COMPACTION"
    assert after.items() >= before.items()


def test_a_broken_file_of_the_configuration_keeps_no_message_back(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    for name in BROKEN:
        for path in Path(store.path, "config").glob(f"{name}*"):
            path.write_text("{")
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert len(re.findall(r"(?m)^not carried over: .*/config/", said)) == len(BROKEN)
    with MessageStore.open(tmp_path / "new") as new:
        assert new.max_offset("orders", 0) == 249


def test_a_raw_copy_says_what_it_is_for(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), "--raw")
    assert "no broker should start" in said
    assert [r[1:4] for r in fields(tmp_path / "new")] != [r[1:4] for r in fields(store.path)]
    assert keys(fields(tmp_path / "new")) == keys(fields(store.path))


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("c0-before-delete", set()),
        ("c1-deleted", {"topic again, which topics.json does not have"}),
        ("c2-created-again", {"messages of an earlier topic of the same name", "in: again/"}),
    ],
)
def test_messages_of_a_topic_that_was_deleted_are_named(
    stage: str, said: set[str], tmp_path: Path
) -> None:
    store = unpack_field("deleted-topic-5.5.0", tmp_path).parent / "deleted-topic" / stage
    words = run("salvage", str(store), "--to", str(tmp_path / "new"))
    every = {"topic again, which", "messages of an earlier topic of the same name"}
    assert all(sentence in words for sentence in said)
    assert sum(sentence in words for sentence in every) == (stage != "c0-before-delete")
