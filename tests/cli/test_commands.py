"""The `rmqstore` command against stores of real brokers: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.cli.main import COMMANDS
from rmq_store.lock import StoreLock
from tests.support.golden import GoldenStore, Truth, bodies_of, in_a_queue, unpack, user_topic

Golden = Callable[[str], GoldenStore]
COMMAND = [sys.executable, "-c", "from rmq_store.cli.main import main; main()"]


def run(*words: str, expect: int = 0) -> str:
    """Run a command; its output. What it says of errors comes with the failure."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stderr}"
    return done.stdout if expect in (0, 1) else done.stderr


def objects(*words: str, expect: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*words, "--json", expect=expect).splitlines()]


@pytest.fixture(scope="module")
def store(golden: Golden) -> GoldenStore:
    return golden("clean-5.3.3")


def sent_to(store: GoldenStore, topic: str) -> list[Truth]:
    return [one for one in store.truth if one["topic"] == topic and in_a_queue(one)]


def in_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def test_every_command_tells_its_options() -> None:
    listed = run("--help")
    for name in COMMANDS:
        assert name in listed
        assert "--json" in run(name, "--help")


def test_info_tells_range_and_times(store: GoldenStore) -> None:
    (info,) = objects("info", store.path)
    last = store.truth[-1]
    assert info["logStart"] == 0
    assert info["logEnd"] == last["commitLogOffset"] + last["storeSize"]
    assert in_ms(info["firstStoreTimestamp"]) == store.truth[0]["storeTimestamp"]
    assert in_ms(info["lastStoreTimestamp"]) == last["storeTimestamp"]
    assert info["closed"] is True
    with store.open() as opened:
        assert info["queues"] == len(opened.queues())
    assert "closed       in order" in run("info", store.path)


@pytest.mark.parametrize("name", ["crash-5.3.3", "expired-5.5.0", "nommap-5.5.0", "clean-4.3.2"])
def test_info_finds_the_end_of_any_log(golden: Golden, name: str) -> None:
    (info,) = objects("info", golden(name).path)
    with golden(name).open() as opened:
        start, end = opened.log_range()
    assert info["logStart"] == start
    assert info["logEnd"] >= end or name == "nommap-5.5.0"
    assert info["closed"] == (not name.startswith("crash"))


def test_info_does_not_call_empty_what_it_cannot_look_into(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    folder = Path(store.path, "consumequeue")
    shutil.rmtree(folder)
    folder.symlink_to(folder)  # a loop: also for root, whom no mode keeps out
    assert str(folder) in run("info", store.path, expect=2)


def test_topics_and_queues_count_messages(store: GoldenStore) -> None:
    counts = Counter(one["topic"] for one in store.truth if user_topic(one))
    rows = {row["topic"]: row for row in objects("topics", store.path)}
    for topic, count in counts.items():
        if not rows[topic]["batch"]:
            assert rows[topic]["messages"] == count
    queues = objects("queues", store.path, "--topic", "orders")
    assert sum(row["messages"] for row in queues) == counts["orders"]
    assert run("topics", store.path).splitlines()[0].split("\t")[0] == "topic"


def test_cat_prints_each_message_of_a_topic_once(store: GoldenStore) -> None:
    truth = sent_to(store, "orders")
    rows = objects("cat", store.path, "--topic", "orders")
    assert [row["commitLogOffset"] for row in rows] == [one["commitLogOffset"] for one in truth]
    for row, one in zip(rows, truth, strict=True):
        assert row["keys"] == one["keys"]
        assert row["properties"] == one["properties"]
    lines = run("cat", store.path, "--topic", "orders", "--columns", "queueId,keys,body")
    assert len(lines.splitlines()) == len(truth)


def test_cat_takes_queue_time_tag_and_limit(store: GoldenStore) -> None:
    truth = sent_to(store, "orders")
    middle = truth[len(truth) // 2]["storeTimestamp"]
    later = objects("cat", store.path, "--topic", "orders", "--from", str(middle))
    assert len(later) == sum(one["storeTimestamp"] >= middle for one in truth)
    before = objects("cat", store.path, "--topic", "orders", "--to", str(middle))
    assert len(before) == len(truth) - len(later)
    one_queue = objects("cat", store.path, "--topic", "orders", "--queue", "1", "--offset", "5")
    assert len(one_queue) == sum(one["queueId"] == 1 for one in truth) - 5
    paid = objects("cat", store.path, "--topic", "orders", "--tag", "paid || created")
    assert len(paid) == sum(one["tags"] in ("paid", "created") for one in truth)
    assert len(objects("cat", store.path, "--topic", "orders", "--limit", "7")) == 7


def test_find_by_key_gives_what_the_truth_has(store: GoldenStore) -> None:
    by_key: dict[str, list[int]] = defaultdict(list)
    for one in filter(user_topic, store.truth):
        for word in (one["keys"] or "").split(" "):
            if word:
                by_key[word].append(one["commitLogOffset"])
    for key in sorted(by_key)[:: max(1, len(by_key) // 12)]:
        rows = objects("find", store.path, "--key", key)
        assert sorted(row["commitLogOffset"] for row in rows) == by_key[key], key
    objects("find", store.path, "--key", "no such key", expect=1)


def test_find_by_id_property_text_and_time(store: GoldenStore) -> None:
    truth = [one for one in store.truth if user_topic(one)]
    some = next(one for one in truth if one["uniqKey"] and one["topic"] == "orders")
    for name in ("uniqKey", "offsetMsgId"):
        rows = objects("find", store.path, "--id", some[name])
        assert some["commitLogOffset"] in [row["commitLogOffset"] for row in rows]
    name, value = next(
        (k, v) for one in truth for k, v in one["properties"].items() if k == "region"
    )
    rows = objects("find", store.path, "--property", f"{name}={value}")
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
    rows = objects("find", store.path, "--topic", "orders", "--from", str(start), "--limit", "5")
    assert all(row["storeTimestamp"] for row in rows)
    assert len(rows) == 5


def test_tail_prints_the_newest_of_each_queue(store: GoldenStore) -> None:
    rows = objects("tail", store.path, "--topic", "orders", "-n", "2")
    newest: dict[int, list[int]] = defaultdict(list)
    for one in sent_to(store, "orders"):
        newest[one["queueId"]].append(one["commitLogOffset"])
    wanted = [at for offsets in newest.values() for at in offsets[-2:]]
    assert [row["commitLogOffset"] for row in rows] == sorted(wanted)


def test_tail_follows_what_is_written_meanwhile_and_ends_quietly(tmp_path: Path) -> None:
    path = tmp_path / "store"
    message = {"topic": "t", "queueId": 0, "body": b"x"}
    with MessageStore.create(path) as writer:
        writer.append({**message, "keys": "first"})
        command = [*COMMAND, "tail", str(path), "-f", "--interval", "0.05", "--columns", "keys"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "first\n"
                writer.append({**message, "keys": "second"})
                assert process.stdout.readline() == "second\n"
                writer.append({**message, "topic": "new", "keys": "third"})
                assert process.stdout.readline() == "third\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 130
            finally:
                process.kill()


def test_usage_adds_up_to_the_log(store: GoldenStore) -> None:
    rows = objects("usage", store.path)
    sizes: Counter[str] = Counter()
    for one in store.truth:
        if in_a_queue(one):
            sizes[one["topic"]] += one["storeSize"]
    assert {row["topic"]: row["bytes"] for row in rows} == dict(sizes)
    assert [row["bytes"] for row in rows] == sorted(sizes.values(), reverse=True)
    by_day = objects("usage", store.path, "--by", "day")
    assert sum(row["bytes"] for row in by_day) == sum(sizes.values())


def test_lag_tells_what_groups_have_left(store: GoldenStore) -> None:
    with store.open() as opened:
        committed = opened.consumer_offsets()["g-slow"]["orders"]
        wanted = {
            queue: opened.max_offset("orders", queue) - offset
            for queue, offset in committed.items()
        }
    rows = objects("lag", store.path, "--group", "g-slow", "--topic", "orders")
    assert {row["queueId"]: row["lag"] for row in rows} == wanted


def test_trace_tells_what_became_of_a_transaction(golden: Golden) -> None:
    store = golden("clean-5.5.0")
    halves = [one for one in store.truth if one["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    committed = {
        one["uniqKey"] for one in store.truth if one["sysFlag"] & 0xC == 0x8 and one["uniqKey"]
    }
    outcomes: Counter[str] = Counter()
    for half in halves[:12]:
        steps = objects("trace", store.path, half["uniqKey"])
        outcome = {step["transaction"] for step in steps}
        assert len(outcome) == 1
        assert (outcome == {"committed"}) == (half["uniqKey"] in committed)
        assert steps[0]["step"] == "prepared"
        outcomes += Counter(outcome)
    assert outcomes["committed"]
    assert len(outcomes) > 1


def test_trace_does_not_call_rolled_back_what_it_cannot_read(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    commit = next(r for r in store.truth if r["sysFlag"] & 0xC == 0x8 and r["storeSize"] > 200)
    path = next(
        p
        for p in sorted((Path(store.path) / "commitlog").iterdir(), reverse=True)
        if int(p.name) <= commit["commitLogOffset"]
    )
    raw = bytearray(path.read_bytes())
    at = commit["commitLogOffset"] - int(path.name)
    raw[at : at + commit["storeSize"]] = bytes(commit["storeSize"])
    path.write_bytes(raw)
    assert "cannot be read" in run("trace", store.path, commit["uniqKey"], expect=1)
    damage = {
        one
        for s in objects("trace", store.path, commit["uniqKey"], expect=1)
        for one in s["damage"]
    }
    assert any(f"at offset {commit['commitLogOffset']}" in one for one in damage)


def test_trace_tells_damage_among_the_records_of_a_message(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    retry = next(one for one in store.truth if one["topic"].startswith("%RETRY%"))
    key, at = retry["uniqKey"], retry["commitLogOffset"]
    whole = objects("trace", store.path, key)
    assert at in {step["commitLogOffset"] for step in whole}
    assert not any(step["damage"] for step in whole)
    path = max(p for p in Path(store.path, "commitlog").iterdir() if int(p.name) <= at)
    raw = bytearray(path.read_bytes())
    raw[at - int(path.name) + 90] ^= 1
    path.write_bytes(raw)
    for asked in (key, retry["keys"].split(" ")[0]):
        done = subprocess.run(
            [*COMMAND, "trace", store.path, asked], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1
        assert "stored" in done.stdout
        assert "as far as its records can be read" in done.stdout
        assert done.stderr.count(f"at offset {at}") == 1
        assert "RMQSTORE_CORRUPT_RECORD" in done.stderr
        assert "rmqstore verify" in done.stderr
    steps = objects("trace", store.path, key, expect=1)
    assert {step["commitLogOffset"] for step in steps} == {
        step["commitLogOffset"] for step in whole
    } - {at}
    for step in steps:
        assert len(step["damage"]) == 1
        assert f"at offset {at}" in step["damage"][0]


def test_trace_tells_retries_of_a_message(golden: Golden) -> None:
    store = golden("clean-5.5.0")
    retry = next(one for one in store.truth if one["topic"].startswith("%RETRY%"))
    steps = objects("trace", store.path, retry["uniqKey"])
    kinds = [step["step"] for step in steps]
    assert kinds[0] == "stored"
    assert "retry" in kinds
    assert "retry" in run("trace", store.path, retry["uniqKey"])


def test_verify_ends_with_a_code_that_tells(golden: Golden, tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    assert "nothing is wrong" in run("verify", store.path)
    summary = objects("verify", store.path)[-1]
    assert summary["records"] == len(store.truth)
    file = sorted((Path(store.path) / "commitlog").iterdir())[0]
    raw = bytearray(file.read_bytes())
    raw[store.truth[3]["commitLogOffset"] + 95] ^= 4
    file.write_bytes(raw)
    *findings, summary = objects("verify", store.path, expect=1)
    assert "log-damaged" in [finding["code"] for finding in findings]
    assert summary["nothingWrong"] is False
    run("verify", str(tmp_path / "nothing"), expect=2)


def test_salvage_makes_a_store_and_tells_what_it_left_out(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    one = store.truth[3]
    file = sorted((Path(store.path) / "commitlog").iterdir())[0]
    raw = bytearray(file.read_bytes())
    raw[one["commitLogOffset"] + 95] ^= 4
    file.write_bytes(raw)
    (report,) = objects("salvage", store.path, str(tmp_path / "target"), expect=1)
    assert report["messages"] == len(store.truth) - 1
    assert [skipped["start"] for skipped in report["skipped"]] == [one["commitLogOffset"]]
    assert "nothing is wrong" in run("verify", str(tmp_path / "target"))


def test_rebuild_makes_the_queues_anew(golden: Golden, tmp_path: Path) -> None:
    store = golden("clean-5.3.3")
    target = str(tmp_path / "target")
    (report,) = objects("rebuild", store.path, target, "--link", "--config", store.conf)
    assert report["records"] == len(store.truth)
    for path in sorted(Path(store.path, "consumequeue").rglob("0*")):
        if path.is_file():
            copy = Path(target, path.relative_to(store.path))
            assert copy.read_bytes() == path.read_bytes()
    assert "nothing is wrong" in run("verify", target)
    assert "never rebuilt in place" in run("rebuild", store.path, target, expect=2)


def test_recover_makes_a_crashed_store_whole(tmp_path: Path) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    assert "not-dispatched" in run("verify", store.path)
    (report,) = objects("recover", store.path)
    assert report["clean"] is False
    assert report["entriesRebuilt"] == 3
    assert run("verify", store.path).endswith("(0 errors, 0 warnings, 0 notes)\n")


def test_retention_is_shown_first_and_applied_when_said(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    files = sorted((Path(store.path) / "commitlog").iterdir())
    words = ("retention", store.path, "--keep-from", "2100-01-01T00:00:00Z")
    *lines, plan = objects(*words)
    gone = [one["path"] for one in lines if "path" in one]
    assert gone[: len(files) - 1] == [str(path) for path in files[:-1]]
    losers = [one for one in lines if "consumerGroup" in one]
    assert {(one["consumerGroup"], one["topic"]) for one in losers} >= {("g-slow", "orders")}
    assert plan["files"] == len(gone) == len(lines) - len(losers)
    assert all(path.exists() for path in files)
    assert "g-slow" in run(*words)
    *_, done = objects(*words, "--apply")
    assert done["freed"] == plan["bytes"]
    assert [path.exists() for path in files] == [False] * (len(files) - 1) + [True]
    *findings, _ = objects("verify", store.path, expect=1)
    assert {finding["code"] for finding in findings} == {"consumer-behind"}


def test_offsets_are_shown_first_and_written_with_apply(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    path = Path(store.path) / "config/consumerOffset.json"
    before = path.read_text("utf-8")
    reset = ("offsets", store.path, "--group", "g-slow", "--topic", "orders")
    rows = objects(*reset, "--reset-to", "earliest")
    assert {row["after"] for row in rows} == {0}
    assert path.read_text("utf-8") == before
    middle = sent_to(store, "orders")[300]["storeTimestamp"]
    rows = objects(*reset, "--reset-to-time", str(middle), "--apply")
    with store.open() as opened:
        assert opened.consumer_offsets()["g-slow"]["orders"] == {
            row["queueId"]: opened.offset_by_time("orders", row["queueId"], middle) for row in rows
        }
    assert path.with_name(path.name + ".bak").read_text("utf-8") == before
    assert "\t\t\t0:" in path.read_text("utf-8")  # fastjson's integer keys
    others = json.loads(json.dumps(objects("lag", store.path, "--group", "g-retry")))
    assert others


def test_offsets_of_a_store_whose_log_is_elsewhere(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    (Path(store.path) / "commitlog").rename(tmp_path / "elsewhere")
    conf = tmp_path / "other.conf"
    conf.write_text(f"storePathCommitLog={tmp_path / 'elsewhere'}\n")
    words = ("offsets", store.path, "--group", "g-slow", "--reset-to", "earliest")
    run(*words, expect=2)
    assert {row["after"] for row in objects(*words, "--broker-conf", str(conf))} == {0}


def keys_of(value: Any) -> set[str]:
    """Of an object and of those in its lists; a mapping in it is data, such as topic -> count."""
    if isinstance(value, list):
        return {key for one in value for key in keys_of(one)}
    if not isinstance(value, dict):
        return set()
    return set(value) | {
        key for one in value.values() if isinstance(one, list) for key in keys_of(one)
    }


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "STORE"],
        ["retention", "STORE", "--keep-from", "2100-01-01T00:00:00Z"],
        ["offsets", "STORE", "--group", "g-slow", "--reset-to", "latest"],
        ["salvage", "STORE", "TARGET"],
        ["rebuild", "STORE", "TARGET"],
        ["recover", "STORE"],
    ],
    ids=lambda words: words[0],
)
def test_keys_of_reports_are_camel_case(tmp_path: Path, words: list[str]) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    there = {"STORE": store.path, "TARGET": str(tmp_path / "new")}
    lines = objects(*(there.get(word, word) for word in words))
    keys = {key for line in lines for key in keys_of(line)}
    assert len(keys) > 3
    assert [key for key in sorted(keys) if not re.fullmatch(r"[a-z]+([A-Z][a-z0-9]*)*", key)] == []


def test_a_reset_is_refused_while_the_store_is_locked(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    lock = StoreLock(Path(store.path))
    try:
        words = ("offsets", store.path, "--group", "g-slow", "--reset-to", "latest")
        run(*words)
        assert "RMQSTORE_LOCKED" in run(*words, "--apply", expect=2)
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tpics"], "Did you mean 'topics'?"),
        (["cat", "STORE", "--topic", "ordres"], "Did you mean 'orders'?"),
        (["cat", "STORE", "--topic", "orders", "--colums", "body"], "--columns"),
        (["cat", "STORE", "--topic", "orders", "--columns", "bdy"], "Did you mean 'body'?"),
        (["cat", "STORE", "--topic", "orders", "--from", "yesterday"], "is no time"),
        (["find", "STORE", "--property", "x"], "is not NAME=VALUE"),
        (["lag", "STORE", "--group", "g-slo"], "Did you mean 'g-slow'?"),
        (["table", "fils", "STORE"], "Did you mean 'files'?"),
        (["info", "/no/such/folder"], "RMQSTORE_NOT_A_STORE"),
        (["offsets", "STORE", "--apply"], "--reset-to"),
        (["offsets", "STORE", "--group", "g-slow", "--reset-to", "first"], "Say earliest, latest"),
        (["offsets", "STORE", "--group", "g-slow", "--reset-to", "99999999"], "has no offset"),
        (
            ["offsets", "STORE", "--group", "g-slow", "--reset-to", "2024-05-01T12:00:00Z"],
            "--reset-to-time",
        ),
        (
            ["offsets", "STORE", "--group", "new", "--new-group", "--reset-to", "latest"],
            "needs --topic",
        ),
        (
            [
                "offsets",
                "STORE",
                "--group",
                "g-slow",
                "--topic",
                "orders",
                "--queue",
                "77",
                "--reset-to",
                "latest",
            ],
            "has no queue 77",
        ),
        (["offsets", "STORE", "--topic", "orders", "--queue", "77"], "has no queue 77"),
        (["cat", "STORE", "--topic", "orders", "--queue", "77"], "has no queue 77"),
        (["trace", "STORE", "some-key", "--topic", "ordres"], "Did you mean 'orders'?"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_near(
    store: GoldenStore, words: list[str], told: str
) -> None:
    words = [store.path if word == "STORE" else word for word in words]
    assert told in run(*words, expect=2)


def test_a_pipe_that_is_closed_ends_quietly(store: GoldenStore) -> None:
    with subprocess.Popen(
        [*COMMAND, "cat", store.path, "--topic", "orders", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == -signal.SIGPIPE


def test_a_damaged_message_is_named_or_left_out_if_asked(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    truth = sent_to(store, "orders")
    file = sorted((Path(store.path) / "commitlog").iterdir())[0]
    raw = bytearray(file.read_bytes())
    raw[truth[3]["commitLogOffset"] + 95] ^= 4
    file.write_bytes(raw)
    words = ("cat", store.path, "--topic", "orders")
    assert "RMQSTORE_CORRUPT_RECORD" in run(*words, expect=2)
    assert len(objects(*words, "--skip-damaged", expect=1)) == len(truth) - 1


def test_the_installed_command_completes_words_of_a_shell() -> None:
    command = shutil.which("rmqstore", path=os.path.dirname(sys.executable))
    assert command is not None
    done = subprocess.run(
        [command],
        env={
            **os.environ,
            "_RMQSTORE_COMPLETE": "bash_complete",
            "COMP_WORDS": "rmqstore sal",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "salvage" in done.stdout


def test_what_info_needs_does_not_bring_arrow_or_spark() -> None:
    code = "import sys, rmq_store.cli.main, rmq_store.cli.info; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "rmq_store.info" in loaded
    assert not {"pyarrow", "pyspark", "rich"} & loaded


@pytest.mark.parametrize("how", ["a bit of the body", "the whole record", "the file"])
def test_a_message_that_is_there_and_damaged_is_not_said_to_be_none(
    tmp_path: Path, how: str
) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    files = sorted((Path(store.path) / "commitlog").iterdir())
    path = next(p for p in files if int(p.name) > 0 and p is not files[-1])
    size = int(files[1].name)
    uniq_keys = Counter(one["uniqKey"] for one in store.truth)
    record = next(
        one
        for one in store.truth
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
        ("find", store.path, "--id", record["uniqKey"]),
        ("trace", store.path, record["uniqKey"]),
    ):
        said = run(*words, expect=2)
        assert "leads to damage" in said
        assert str(record["commitLogOffset"]) in said
    said = run("find", store.path, "--id", record["offsetMsgId"], expect=2)
    assert f"at offset {record['commitLogOffset']}" in said
    assert "rmqstore verify" in said or "rmqstore salvage" in said
    for name in ("uniqKey", "offsetMsgId"):
        assert run("find", store.path, "--id", record[name], "--skip-damaged", expect=1) == ""
    run("find", store.path, "--id", "F" * 32, expect=1)


def test_queues_that_are_asked_for_alone_are_shown_alone(store: GoldenStore) -> None:
    rows = objects("offsets", store.path, "--group", "g-slow", "--queue", "1")
    assert {row["queueId"] for row in rows} == {1}


def test_a_group_that_is_not_in_a_topic_is_not_said_to_be_unknown(store: GoldenStore) -> None:
    topics = {row["topic"] for row in objects("queues", store.path)}
    read = {row["topic"] for row in objects("lag", store.path, "--group", "g-slow")}
    other = sorted(topics - read)[0]
    assert objects("lag", store.path, "--topic", other, "--group", "g-slow") == []


def test_trace_names_the_topic_to_which_nothing_was_sent(store: GoldenStore) -> None:
    done = subprocess.run(
        [*COMMAND, "trace", store.path, "no-such-key", "--topic", "orders"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "no message with the key 'no-such-key' was sent to topic 'orders'" in done.stderr


def test_trace_takes_a_topic_that_has_lost_its_queues(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    shutil.rmtree(Path(store.path, "consumequeue", "orders"))
    record = next(one for one in sent_to(store, "orders") if one["uniqKey"])
    steps = objects("trace", store.path, record["uniqKey"], "--topic", "orders")
    assert record["commitLogOffset"] in {step["commitLogOffset"] for step in steps}
    assert "Did you mean 'orders'?" in run("trace", store.path, "k", "--topic", "ordres", expect=2)


def test_an_id_that_leads_into_a_record_or_behind_the_log_names_no_message(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    record = next(one for one in store.truth if one["storeSize"] > 300)
    host, at = record["offsetMsgId"][:-16], record["commitLogOffset"]
    end = sum(p.stat().st_size for p in (Path(store.path) / "commitlog").iterdir())
    for offset in (at + 1, at + 100, at + record["storeSize"] - 1, end, 2**62):
        done = subprocess.run(
            [*COMMAND, "find", store.path, "--id", f"{host}{offset:016X}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1, done.stderr
        assert f"names log offset {offset}, where this message does not begin" in done.stderr
