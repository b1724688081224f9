"""`find` and `trace`: a message by what is known of it, also where something is damaged."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.config.broker_conf import read_properties
from rmq_store.format.compression import SysFlag
from rmq_store.text.times import shown_time
from tests.support.counted_store import java_hash
from tests.support.damage import flip_in_log, write_in_log
from tests.support.expected import as_rows, expected
from tests.support.golden import (
    Golden,
    GoldenStore,
    Truth,
    bodies_of,
    in_a_queue,
    keys_of,
    log_files,
    messages_in,
    unpack,
    user_topic,
)
from tests.support.listed import index_bytes
from tests.support.running.commands import call, complaint, objects, run, sent_to
from tests.support.stores import SMALL


def test_find_by_key_gives_what_the_truth_has(store: GoldenStore) -> None:
    by_key: dict[str, list[int]] = defaultdict(list)
    for one in expected({"store": store}, {}):
        for word in (one.keys or "").split(" "):
            if word:
                by_key[word].append(one.record["commitLogOffset"])
    for key in sorted(by_key)[:: max(1, len(by_key) // 12)]:
        rows = objects("find", store.path, "--key", key)
        assert sorted(row["commitLogOffset"] for row in rows) == by_key[key], key
    objects("find", store.path, "--key", "no such key", expect=1)


@pytest.mark.parametrize(
    "name", ["hours-crash-4.9.7", pytest.param("days-crash-5.5.0", marks=pytest.mark.campaign)]
)
def test_a_key_is_found_between_times(golden: Golden, name: str) -> None:
    """A time is exact, relative to the newest message, or on its day. Some records are in no index file, and
    the clock of a store goes back."""
    store = golden(name)
    sent = [record for record in store.truth if user_topic(record)]
    newest = max(record["storeTimestamp"] for record in store.truth)
    midnight = newest - newest % 86_400_000
    relative = {f"-{hours}h": newest - hours * 3_600_000 for hours in (1, 3, 50)}
    relative |= {f"{hour:02}:00": midnight + hour * 3_600_000 for hour in (0, 14, 19)}
    some = [record["storeTimestamp"] for record in sent if "GROUP_7" in keys_of(record)]
    exact = {str(time): time for time in (some[0], some[-1])}
    exact |= {shown_time(time + 1): time + 1 for time in (some[0], some[len(some) // 2])}
    times = sorted((exact | relative).items(), key=lambda named: named[1])
    windows = [*pairwise(times), (times[2], times[-3])]
    several = False
    for key, asked in (
        ("GROUP_7", windows),
        (sent[0]["uniqKey"], windows[:2]),
        (sent[-1]["uniqKey"], windows[-3:]),
    ):
        for (since, low), (until, high) in asked:
            places = [
                record["commitLogOffset"]
                for record in sent
                if key in keys_of(record) and low <= record["storeTimestamp"] < high
            ]
            between = ("--since", since, "--until", until)
            rows = objects("find", store.path, "--key", key, *between, expect=int(not places))
            assert sorted(row["commitLogOffset"] for row in rows) == places, (key, *between)
            several |= len(places) > 1
    assert several


def items_in_slot(file: Path, slots: int, key_hash: int) -> int:
    raw = file.read_bytes()
    (following,) = struct.unpack_from(">i", raw, 36)  # the number of the next item
    items = range(40 + 4 * slots + 20, 40 + 4 * slots + 20 * following, 20)
    hashes = (struct.unpack_from(">i", raw, at)[0] for at in items)
    return sum(one % slots == key_hash % slots for one in hashes)


def test_explain_says_what_a_look_up_reads(clean: GoldenStore) -> None:
    (record,) = (
        one
        for one in clean.truth
        if one["topic"] == "payments"
        and "ORDER_1650" in one["properties"].get("KEYS", "").split(" ")
    )
    files = sorted(Path(clean.path, "index").iterdir())
    slots = int(read_properties(clean.conf)["maxHashSlotNum"])
    key_hash = abs(java_hash("payments#ORDER_1650"))
    words = ("find", clean.path, "--topic", "payments", "--key", "ORDER_1650", "--explain")
    (row,) = objects(*words)
    assert row.pop("logFiles") <= len(log_files(clean))
    assert row == {
        "brokerName": row["brokerName"],
        "indexFiles": len(files),
        "items": sum(items_in_slot(file, slots, key_hash) for file in files),
        "records": 1,
        "logBytes": record["storeSize"],
        "messages": 1,
    }
    header, line = run(*words).splitlines()
    assert dict(zip(header.split("\t"), line.split("\t"), strict=True))["items"] == str(
        row["items"]
    )


def test_a_table_notes_why_chains_are_long(copy: GoldenStore) -> None:
    places = sorted(one["commitLogOffset"] for one in copy.truth if one["commitLogOffset"])
    folder = Path(copy.path, "index")
    for file in folder.iterdir():
        file.unlink()
    files = {
        "20261121092340000": index_bytes(10, list(range(7, 167)), places[:160]),  # 16 a slot
        "20261121092341000": index_bytes(10, list(range(7, 168)), places[160:321]),
        "20261121092342000": index_bytes(
            5003, [7] * 10_001, sorted(places[321:332] * 910)[:10_001]
        ),
        "20261121092343000": index_bytes(5003, [7] * 10_000, sorted(places[332:342] * 1000)),
    }
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    rows = objects("table", "index", copy.path)
    notes = {
        Path(row["path"]).name: (row["longestChain"], row["note"]) for row in rows if row["path"]
    }
    assert notes == {
        "20261121092340000": (16, None),
        "20261121092341000": (
            17,
            "10 slots are too few for 161 items: each look-up reads 16 items",
        ),
        "20261121092342000": (
            10_001,
            "10001 items share a slot: they are of a key or a tag that many messages have",
        ),
        "20261121092343000": (10_000, None),
    }


def test_a_pattern_finds_in_several_stores(golden: Golden, tmp_path: Path) -> None:
    stores = {"a": golden("clean-5.5.0"), "b": golden("clean-4.9.7")}
    for name, store in stores.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(store.path)
    wanted = [
        [name, one["properties"]["KEYS"]]
        for name, store in stores.items()
        for one in expected_of(store, "orders")
        if one["properties"].get("KEYS")
    ]
    pattern = str(tmp_path / "*" / "store")
    words = ("find", pattern, "--topic", "orders")
    rows = objects(*words)
    assert [[row["brokerName"], row["keys"]] for row in rows if row["keys"]] == wanted
    newest = max(one["storeTimestamp"] for store in stores.values() for one in store.truth)
    late = [row for row in rows if row["storeTimestamp"] >= shown_time(newest - 3000)]
    assert objects(*words, "--since", "-3s") == late
    assert 0 < len(late) < len(rows)
    limit = len(rows) - 1
    assert objects(*words, "--limit", str(limit)) == rows[:limit]
    lines = run(*words, "--limit", "1").splitlines()
    assert [line.split("\t")[:2] for line in lines] == [["a", "orders"]]
    assert {row["brokerName"] for row in objects("find", pattern, "--topic", "inner")} == {"a"}
    both = objects(*words, "--topic", "inner")
    assert {(row["brokerName"], row["topic"]) for row in both} == {
        *(("a", "orders"), ("a", "inner"), ("b", "orders"))
    }
    assert "no topic 'none'" in call("find", pattern, "--topic", "none").stderr
    assert "in 2 stores" in call("find", pattern, "--key", "NO_SUCH_ORDER").stderr


def expected_of(store: GoldenStore, topic: str) -> list[Truth]:
    """The records of a topic in its queues, in the order of the log."""
    return [one for one in store.truth if one["topic"] == topic and in_a_queue(one)]


@pytest.mark.parametrize("name", ["clean-5.5.0", "clean-5.3.3", "clean-5.1.1"])
def test_a_message_of_an_inner_batch_is_found_by_every_command(golden: Golden, name: str) -> None:
    """The index has only the keys of the batch's record; the message is in its body."""
    store = golden(name)
    place = "topic,queueId,queueOffset,commitLogOffset,keys,uniqKey,tags"
    every = expected({"store": store}, {"topic": "inner"})
    rows = objects("cat", store.path, "--topic", "inner", "--columns", place)
    assert Counter(tuple(row.values()) for row in rows) == as_rows(every, place)
    members = [one for one in every if one.record["sysFlag"] & SysFlag.INNER_BATCH and one.keys]
    with store.open() as opened:
        for one in members[:: max(1, len(members) // 3)]:
            key = (one.keys or "").split(" ")[0]
            wanted = as_rows(expected({"store": store}, {"keys": key}), place)
            rows = objects("find", store.path, "--key", key, "--columns", place)
            assert Counter(tuple(row.values()) for row in rows) == wanted, key
            offsets = {(row["commitLogOffset"], row["queueOffset"]) for row in rows}
            of_topic = {(m.record["commitLogOffset"], m.offset) for m in every} & offsets
            found = opened.query_message("inner", key, 10_000)
            assert [(m.commit_log_offset, m.queue_offset) for m in found] == sorted(of_topic)
            newest = opened.query_message("inner", key, 1)
            assert newest == found[-1:]
            assert one.uniq_key is not None
            (mine,) = objects("find", store.path, "--id", one.uniq_key)
            assert (mine["queueOffset"], mine["keys"]) == (one.offset, one.keys)
            steps = objects("trace", store.path, one.uniq_key)
            assert [step["queueOffset"] for step in steps] == [one.offset]


def test_raw_prints_the_record_of_an_inner_batch(clean: GoldenStore) -> None:
    records = [one for one in clean.truth if one["topic"] == "inner" and in_a_queue(one)]
    words = ("--topic", "inner", "--raw", "--columns", "commitLogOffset,uniqKey")
    for command in (("cat",), ("find",), ("tail", "--lines", "100000")):
        rows = objects(command[0], clean.path, *words, *command[1:])
        assert [row["commitLogOffset"] for row in rows] == [r["commitLogOffset"] for r in records]
        assert [row["uniqKey"] for row in rows] == [r["uniqKey"] for r in records]
    batch = next(one for one in records if one["sysFlag"] & SysFlag.INNER_BATCH)
    rows = objects("find", clean.path, "--id", batch["offsetMsgId"])
    assert len(rows) == messages_in(batch) > 1
    (row,) = objects("find", clean.path, "--id", batch["offsetMsgId"], "--raw")
    assert row["uniqKey"] == batch["uniqKey"]


def test_find_by_id_property_text_and_time(store: GoldenStore) -> None:
    truth = [one for one in store.truth if user_topic(one)]
    some = next(one for one in truth if one["uniqKey"] and one["topic"] == "orders")
    for name in ("uniqKey", "offsetMsgId"):
        rows = objects("find", store.path, "--id", some[name])
        assert some["commitLogOffset"] in [row["commitLogOffset"] for row in rows]
    name, value = next(
        (k, v) for one in truth for k, v in one["properties"].items() if k == "region"
    )
    rows = objects("find", store.path, "--property", f"{name}={value}", "--raw")
    assert sorted(row["commitLogOffset"] for row in rows) == sorted(
        one["commitLogOffset"] for one in truth if one["properties"].get(name) == value
    )
    word = "order 1"
    rows = objects("find", store.path, "--text", word, "--topic", "orders")
    assert sorted(row["commitLogOffset"] for row in rows) == sorted(
        one["commitLogOffset"]
        for one in truth
        if one["topic"] == "orders" and word.encode() in bodies_of(one)[0]
    )
    start = truth[100]["storeTimestamp"]
    rows = objects("find", store.path, "--topic", "orders", "--since", str(start), "--limit", "5")
    assert all(row["storeTimestamp"] for row in rows)
    assert len(rows) == 5


def test_an_id_of_another_host_gives_no_message_and_names_the_one_that_is_there(
    store: GoldenStore,
) -> None:
    """It may be of another broker, whose log has another message there."""
    own = next(row["offsetMsgId"] for row in store.truth if row["topic"] == "orders")
    other = f"0AF40307{own[8:]}"
    done = call("find", store.path, "--id", other)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"of another host starts, {own};" in done.stderr


@pytest.mark.parametrize("job", ["find", "export", "replay"])
def test_a_key_with_blanks_is_the_whole_of_keys(
    store: GoldenStore, tmp_path: Path, job: str
) -> None:
    rows = [row for row in store.truth if " " in row["properties"].get("KEYS", "")]
    key = rows[0]["properties"]["KEYS"]
    wanted = [row for row in rows if row["properties"]["KEYS"] == key]
    words = ("--key", key) if job == "find" else ("--key", key, "--to", str(tmp_path / "new"))
    said = run(job, store.path, *words, "--json")
    if job == "find":
        found = [json.loads(line)["commitLogOffset"] for line in said.splitlines()]
        assert found == [row["commitLogOffset"] for row in wanted]
    elif job == "export":
        files = (tmp_path / "new").rglob("*.parquet")
        assert sum(pq.read_metadata(file).num_rows for file in files) == len(wanted)
    else:
        with MessageStore.open(tmp_path / "new") as new:
            assert sum(map(len, new.view.ranges_of(new.topics()))) == len(wanted)


def test_trace_shows_what_became_of_a_transaction(clean: GoldenStore) -> None:
    halves = [one for one in clean.truth if one["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    committed = {
        one["uniqKey"] for one in clean.truth if one["sysFlag"] & 0xC == 0x8 and one["uniqKey"]
    }
    outcomes: Counter[str] = Counter()
    for half in halves[:12]:
        steps = objects("trace", clean.path, half["uniqKey"])
        outcome = {step["transaction"] for step in steps}
        assert len(outcome) == 1
        assert (outcome == {"committed"}) == (half["uniqKey"] in committed)
        assert steps[0]["step"] == "prepared"
        outcomes += Counter(outcome)
    assert outcomes["committed"]
    assert len(outcomes) > 1


def test_trace_does_not_call_rolled_back_what_it_cannot_read(copy: GoldenStore) -> None:
    commit = next(r for r in copy.truth if r["sysFlag"] & 0xC == 0x8 and r["storeSize"] > 200)
    write_in_log(copy, commit["commitLogOffset"], bytes(commit["storeSize"]))
    assert "cannot be read" in run("trace", copy.path, commit["uniqKey"], expect=1)
    damage = {
        one for s in objects("trace", copy.path, commit["uniqKey"], expect=1) for one in s["damage"]
    }
    assert any(f"at log offset {commit['commitLogOffset']}" in one for one in damage)


def test_trace_reports_damage_among_the_records_of_a_message(copy: GoldenStore) -> None:
    retry = next(one for one in copy.truth if one["topic"].startswith("%RETRY%"))
    key, at = retry["uniqKey"], retry["commitLogOffset"]
    whole = objects("trace", copy.path, key)
    assert at in {step["commitLogOffset"] for step in whole}
    assert not any(step["damage"] for step in whole)
    flip_in_log(copy, at + 90)
    for asked in (key, retry["keys"].split(" ")[0]):
        done = call("trace", copy.path, asked)
        assert done.returncode == 1
        assert "stored" in done.stdout
        assert "as far as its records can be read" in done.stdout
        assert done.stderr.count(f"at log offset {at}") == 1
        assert "RMQSTORE_CORRUPT_RECORD" in done.stderr
        assert "rmqstore verify" in done.stderr
    steps = objects("trace", copy.path, key, expect=1)
    assert {step["commitLogOffset"] for step in steps} == {
        step["commitLogOffset"] for step in whole
    } - {at}
    for step in steps:
        assert len(step["damage"]) == 1
        assert f"at log offset {at}" in step["damage"][0]


def test_trace_shows_the_retries_of_a_message(clean: GoldenStore) -> None:
    retry = next(one for one in clean.truth if one["topic"].startswith("%RETRY%"))
    steps = objects("trace", clean.path, retry["uniqKey"])
    kinds = [step["step"] for step in steps]
    assert kinds[0] == "stored"
    assert "retry" in kinds
    assert "retry" in run("trace", clean.path, retry["uniqKey"])


def test_trace_says_which_groups_have_consumed_a_message(clean: GoldenStore) -> None:
    with clean.open() as opened:
        offsets = {
            (topic, group, queue): offset
            for group, topics in opened.consumer_offsets().items()
            for topic, queues in topics.items()
            for queue, offset in queues.items()
        }
    topics = {topic for topic, _, _ in offsets if not topic.startswith(("%", "RMQ_SYS", "rmq_sys"))}
    sent = [r for r in clean.truth if r["topic"] in topics and r["uniqKey"] and in_a_queue(r)]
    once = Counter(record["uniqKey"] for record in clean.truth)
    states = Counter[str]()
    for record in [record for record in sent if once[record["uniqKey"]] == 1][::40]:
        (step,) = objects("trace", clean.path, record["uniqKey"])
        for consumer in step["consumers"]:
            at = offsets.get((record["topic"], consumer["consumerGroup"], record["queueId"]), 0)
            expected = "consumed" if at > record["queueOffset"] else "waiting"
            assert consumer["state"] == expected
            states[expected] += 1
    assert states.keys() == {"consumed", "waiting"}


def test_trace_says_that_consumption_is_not_known_without_offsets(copy: GoldenStore) -> None:
    retry = next(one for one in copy.truth if one["topic"].startswith("%RETRY%"))
    for path in (Path(copy.path) / "config").glob("consumerOffset.json*"):
        path.unlink()
    steps = objects("trace", copy.path, retry["uniqKey"])
    assert {consumer["state"] for consumer in steps[0]["consumers"]} == {"unknown"}
    shown = run("trace", copy.path, retry["uniqKey"])
    assert "unknown     group g-retry\n" in shown


def test_trace_has_what_clients_reported_of_a_message(tmp_path: Path) -> None:
    values = "Pub|1795000000000|r|producers|orders|{}||k|h|12|7|0|o|true"
    report = values.replace("|", "\x01") + "\x02"
    with MessageStore.create(tmp_path / "s", SMALL) as store:
        for key in ("ID1", "ID2"):
            properties = {"UNIQ_KEY": key}
            store.append({"topic": "orders", "queueId": 0, "body": b"", "properties": properties})
        body = (report.format("ID1") + report.format("ID2")).encode()
        trace = {"topic": "RMQ_SYS_TRACE_TOPIC", "queueId": 0, "body": body, "keys": "ID1 ID2"}
        store.append(trace)
    (step,) = objects("trace", str(tmp_path / "s"), "ID1")  # the trace message has the key too
    assert [(one["msgId"], one["groupName"]) for one in step["reports"]] == [("ID1", "producers")]
    assert "Pub         group producers  (SUCCESS)" in run("trace", str(tmp_path / "s"), "ID1")


@pytest.mark.parametrize("how", ["a bit of the body", "the whole record", "the file"])
def test_a_message_that_is_there_and_damaged_is_not_said_to_be_none(
    copy: GoldenStore, how: str
) -> None:
    files = sorted((Path(copy.path) / "commitlog").iterdir())
    path = next(p for p in files if int(p.name) > 0 and p is not files[-1])
    size = int(files[1].name)
    uniq_keys = Counter(one["uniqKey"] for one in copy.truth)
    record = next(
        one
        for one in copy.truth
        if int(path.name) <= one["commitLogOffset"] < int(path.name) + size
        and one["uniqKey"]
        and uniq_keys[one["uniqKey"]] == 1
        and one["storeSize"] > 200
        and in_a_queue(one)
    )
    at = record["commitLogOffset"] - int(path.name)
    raw = bytearray(path.read_bytes())
    if how == "a bit of the body":
        raw[at + 90] ^= 1
        path.write_bytes(raw)
    elif how == "the whole record":
        raw[at : at + record["storeSize"]] = bytes(record["storeSize"])
        path.write_bytes(raw)
    else:
        path.unlink()
    for words in (
        ("find", copy.path, "--id", record["uniqKey"]),
        ("trace", copy.path, record["uniqKey"]),
    ):
        said = run(*words, expect=2)
        assert "points to damage" in said
        assert str(record["commitLogOffset"]) in said
    said = run("find", copy.path, "--id", record["offsetMsgId"], expect=2)
    assert f"at log offset {record['commitLogOffset']}" in said
    assert "rmqstore verify" in said or "rmqstore salvage" in said
    for name in ("uniqKey", "offsetMsgId"):
        assert run("find", copy.path, "--id", record[name], "--skip-damaged", expect=1) == ""
    run("find", copy.path, "--id", "F" * 32, expect=1)


def test_trace_names_the_topic_to_which_nothing_was_sent(store: GoldenStore) -> None:
    said = complaint("trace", store.path, "no-such-key", "--topic", "orders", expect=1)
    assert "no message with the key 'no-such-key' was sent to topic 'orders'" in said


def test_trace_takes_a_topic_that_has_lost_its_queues(copy: GoldenStore) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", "orders"))
    record = next(one for one in sent_to(copy, "orders") if one["uniqKey"])
    steps = objects("trace", copy.path, record["uniqKey"], "--topic", "orders")
    assert record["commitLogOffset"] in {step["commitLogOffset"] for step in steps}
    assert "Did you mean 'orders'?" in run("trace", copy.path, "k", "--topic", "ordres", expect=2)


def test_an_id_that_leads_into_a_record_or_behind_the_log_names_no_message(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    record = next(one for one in store.truth if one["storeSize"] > 300)
    host, at = record["offsetMsgId"][:-16], record["commitLogOffset"]
    end = sum(p.stat().st_size for p in (Path(store.path) / "commitlog").iterdir())
    for offset in (at + 1, at + 100, at + record["storeSize"] - 1, end, 2**62):
        said = complaint("find", store.path, "--id", f"{host}{offset:016X}", expect=1)
        assert f"means log offset {offset}, where no such message starts" in said


@pytest.mark.parametrize("gone", ["the first file", "the last file"])
def test_a_key_that_only_the_index_knows_is_reported_with_its_place(
    copy: GoldenStore, gone: str
) -> None:
    files = log_files(copy)
    size = int(files[1].name)
    last = int(files[-1].name)
    uniq_keys = Counter(one["uniqKey"] for one in copy.truth)
    one = next(
        one
        for one in reversed(copy.truth)
        if uniq_keys[one["uniqKey"]] == 1
        and user_topic(one)
        and one["topic"] != "inner"
        and (one["commitLogOffset"] < size) is (gone == "the first file")
    )
    if gone == "the first file":
        files[0].unlink()
        expected = f"before the log's start ({size}): it has expired"
    else:
        assert one["commitLogOffset"] > last
        os.truncate(files[-1], 0)
        Path(copy.path, "abort").touch()  # it crashed; else its queues prove a loss
        expected = "after the log's end ("
    for words in (("find", copy.path, "--key"), ("find", copy.path, "--id"), ("trace", copy.path)):
        said = complaint(*words, one["uniqKey"], expect=1)
        assert f"the index lists it at log offset {one['commitLogOffset']}, {expected}" in said
    assert "lists it" not in complaint("find", copy.path, "--key", "NOWHERE", expect=1)
    elsewhere = "documents" if one["topic"] != "documents" else "orders"
    asked = ("find", copy.path, "--key", one["uniqKey"], "--topic", elsewhere)
    assert "lists it" not in complaint(*asked, expect=1)


def test_the_lost_end_of_another_queue_does_not_hide_what_is_found(copy: GoldenStore) -> None:
    """The messages of the inner batches lie there, and no index has their keys."""
    last = log_files(copy)[-1]
    last.unlink()
    keyed = [one for one in sent_to(copy, "orders") if one["uniqKey"]]
    there, lost = keyed[0]["uniqKey"], keyed[-1]["uniqKey"]
    assert keyed[-1]["commitLogOffset"] >= int(last.name)
    for option in ("--key", "--id"):
        done = call("find", copy.path, option, there, "--columns", "uniqKey")
        assert (done.returncode, done.stdout.splitlines()) == (1, [there])
        assert "at least 202 messages could not be read" in done.stderr
        none = call("find", copy.path, option, lost)
        assert (none.returncode, none.stdout) == (2, "")
        assert "after the log's end" in none.stderr
    said = complaint("trace", copy.path, lost, expect=2)
    assert (
        f"no message with the key '{lost}' is in what can be read, and the index lists it" in said
    )
    places = defaultdict(list)
    for one in copy.truth:
        for key in keys_of(one):
            places[key].append(one["commitLogOffset"])
    key = next(key for key, at in places.items() if at[0] >= int(last.name) and len(at) > 1)
    said = complaint("trace", copy.path, key, expect=2)
    assert f"the index lists it at {places[key][0]}, after the log's end" in said
    assert run("find", copy.path, "--key", there, "--topic", "orders", "--columns", "keys")


def test_trace_says_where_it_looked_for_a_key_that_a_topic_has_not(store: GoldenStore) -> None:
    key = next(one["keys"].split(" ")[0] for one in sent_to(store, "payments") if one["keys"])
    assert all(key not in (one["keys"] or "").split(" ") for one in sent_to(store, "documents"))
    said = complaint("trace", store.path, key, "--topic", "documents", expect=1)
    assert said.startswith(
        f"rmqstore: no message with the key '{key}' was sent to topic 'documents'; the log ("
    )
    assert "was searched only where the index leads or has gaps" in said


def test_an_id_is_the_only_condition(copy: GoldenStore) -> None:
    one = sent_to(copy, "orders")[0]
    for more in (("--topic", "payments"), ("--queue", "3"), ("--tag", "none"), ("--text", "x")):
        said = complaint("find", copy.path, "--id", one["offsetMsgId"], *more, expect=2)
        assert "--id names one message" in said


@pytest.mark.parametrize("command", [("find",), ("tail", "-n", "1000")])
def test_one_queue_of_a_topic(copy: GoldenStore, command: tuple[str, ...]) -> None:
    rows = objects(*command, copy.path, "--topic", "orders", "--queue", "2")
    offsets = [record["queueOffset"] for record in copy.by_queue[QueueId("orders", 2)]]
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [(2, at) for at in offsets]
    complaint(*command, copy.path, "--topic", "orders", "--queue", "9", expect=2)


def test_cat_says_that_no_message_is_found(golden: Golden) -> None:
    path = golden("clean-5.5.0").path
    for words in (["--tag", "nobody has it"], ["--since", "2030-01-01"]):
        said = call("cat", path, "--topic", "orders", *words)
        assert (said.returncode, said.stdout) == (0, "")
        assert said.stderr.endswith("rmqstore: no message found\n")
