"""usage, lag, trace and dlq: what they answer about stores of real brokers is what the truth says."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore, QueueId
from rmq_store.errors import InvalidArgumentError
from rmq_store.questions.trace import trace as trace_of
from rmq_store.questions.usage import UsageAnswer
from rmqstore_jobs import dlq
from rmqstore_jobs.running.job_command import EXIT_OK, EXIT_REFUSED
from rmqstore_jobs.running.source_options import scan_of
from tests.support.golden import Golden, GoldenStore, in_a_queue, messages_in, unpack
from tests.support.running.commands import Done, call, complaint, objects
from tests.support.running.screens import shown


@pytest.fixture
def store(golden: Golden) -> GoldenStore:
    """It has dead letters."""
    return golden("clean-4.9.7")


def conf(store: GoldenStore) -> dict[str, str]:
    return {"brokerConf": store.conf, "brokerName": "broker-a"}


def asked(command: str, store: GoldenStore, *words: str) -> Done:
    """What a command prints as JSON, with the broker's file."""
    return call(command, store.path, *words, "--broker-conf", store.conf, "--json")


def rows_of(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# --- usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clean-5.5.0", "clean-4.3.2", "geometry-5.5.0"])
def test_usage_adds_up_to_the_truth(golden: Golden, name: str) -> None:
    store = golden(name)
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    days: Counter[str] = Counter()
    queues: Counter[QueueId] = Counter()
    for record in filter(in_a_queue, store.truth):
        day = datetime.fromtimestamp(record["storeTimestamp"] / 1000, timezone.utc).date()
        sizes[record["topic"]] += record["storeSize"]
        counts[record["topic"]] += messages_in(record)
        days[str(day)] += record["storeSize"]
        queues[QueueId(record["topic"], record["queueId"])] += record["storeSize"]
    by_topic, by_day, by_queue, largest = (
        rows_of(asked("usage", store, "--by", by, *words))
        for by, *words in (["topic"], ["day"], ["queue", "--top", "5"], ["message", "--top", "5"])
    )
    assert {row["topic"]: row["bytes"] for row in by_topic} == sizes
    assert {row["topic"]: row["messages"] for row in by_topic} == counts
    assert [row["bytes"] for row in by_topic] == sorted(sizes.values(), reverse=True)
    assert {row["day"]: row["bytes"] for row in by_day} == days
    found = [(r["topic"], r["queueId"], r["bytes"]) for r in by_queue]
    assert sorted((n for _, _, n in found), reverse=True) == [n for _, n in queues.most_common(5)]
    assert all(queues[QueueId(topic, queue)] == size for topic, queue, size in found)
    expected = sorted((r["storeSize"] for r in filter(in_a_queue, store.truth)), reverse=True)
    assert [row["storeSize"] for row in largest] == expected[:5]


def test_usage_of_topics_and_times(clean: GoldenStore) -> None:
    mine = [r for r in clean.truth if r["topic"] in ("orders", "payments") and in_a_queue(r)]
    since = sorted(r["storeTimestamp"] for r in mine)[len(mine) // 2]
    words = ("--topic", "orders", "--topic", "payments", "--since", str(since))
    found = rows_of(asked("usage", clean, *words))
    later = Counter(r["topic"] for r in mine if r["storeTimestamp"] >= since)
    assert {row["topic"]: row["messages"] for row in found} == later


def test_growth_is_reported_by_day() -> None:
    sizes = (10, 30, 25, 20)
    rows = [
        {"topic": "t", "day": date(2026, 5, day), "messages": 1, "bytes": size, "shared": False}
        for day, size in enumerate(sizes, 1)
    ]
    answer = UsageAnswer(rows, (), 100)
    changes = {date(2026, 5, 2): 20, date(2026, 5, 3): -5, date(2026, 5, 4): -5}
    assert answer.changes() == changes
    assert answer.growth() == (3, (10 + 30 + 25) // 3)
    assert UsageAnswer(rows[:1], (), 100).growth() is None


# --- lag ------------------------------------------------------------------------------------------


def consumer_offsets(store: GoldenStore) -> dict[str, Any]:
    """consumerOffset.json; the broker writes numbers as names without quotes."""
    raw = (Path(store.path) / "config" / "consumerOffset.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', raw))
    return content


def offsets_of(store: GoldenStore) -> dict[tuple[str, str, int], int]:
    """What consumerOffset.json says: group, topic, queue -> offset."""
    table = consumer_offsets(store)["offsetTable"]
    return {
        (key.partition("@")[2], key.partition("@")[0], int(queue)): offset
        for key, queues in table.items()
        for queue, offset in queues.items()
    }


def set_offset(store: GoldenStore, group: str, topic: str, queue: int, offset: int) -> None:
    content = consumer_offsets(store)
    content["offsetTable"].setdefault(f"{topic}@{group}", {})[str(queue)] = offset
    path = Path(store.path) / "config" / "consumerOffset.json"
    path.write_text(json.dumps(content), "utf-8")


def test_lag_is_what_the_truth_has_behind_the_offsets(copy: GoldenStore) -> None:
    set_offset(copy, "slow", "orders", 0, 10)
    set_offset(copy, "slow", "orders", 1, 20)
    rows = rows_of(asked("lag", copy))
    found = {(r["consumerGroup"], r["topic"], r["queueId"]): r for r in rows}
    assert {key: row["consumerOffset"] for key, row in found.items()} == offsets_of(copy)
    for (_, topic, queue), row in found.items():
        behind = [
            r
            for r in copy.by_queue.get(QueueId(topic, queue), ())
            if r["queueOffset"] >= row["consumerOffset"] and messages_in(r) == 1
        ]
        if topic == "orders":
            assert row["lag"] == len(behind)
            assert row["lagBytes"] == sum(r["storeSize"] for r in behind)
    one = asked("lag", copy, "--group", "slow", "--max-lag", "5", "--by", "group")
    assert one.returncode == 1
    assert one.stderr.count("messages behind; at most 5 are allowed") == 1
    assert rows_of(one)[0]["lag"] == sum(found["slow", "orders", queue]["lag"] for queue in (0, 1))
    most = asked("lag", copy, "--group", "slow", "--max-lag", str(10**6))
    assert most.returncode == 0


def test_messages_that_expired_before_they_were_consumed_are_reported(tmp_path: Path) -> None:
    store = unpack("expired-5.5.0", tmp_path)
    (Path(store.path) / "config").mkdir(exist_ok=True)
    (Path(store.path) / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    with MessageStore.open(store.path, broker_conf=store.conf) as opened:
        queue = next(q for q in opened.queues() if opened.min_offset(*q) > 0)
    set_offset(store, "late", queue.topic, queue.queue_id, 0)
    done = asked("lag", store, "--by", "group")
    assert done.returncode == 1
    assert "unconsumed messages expired in 1 queue" in done.stderr
    assert rows_of(done)[0]["queuesWithLoss"] == 1


# --- trace ----------------------------------------------------------------------------------------


def test_a_life_has_every_record_of_its_message(store: GoldenStore) -> None:
    wanted = {}
    for record in store.truth:  # one message of each kind
        if record["topic"].startswith(("%DLQ%", "RMQ_SYS_TRANS_HALF", "SCHEDULE", "orders")):
            wanted[record["topic"]] = record
    assert len(wanted) == 4
    for record in wanted.values():
        steps = rows_of(asked("trace", store, record["uniqKey"]))
        with MessageStore.open(store.path, broker_conf=store.conf) as opened:
            lives = trace_of(opened, record["uniqKey"])
        expected = [(s.step, s.topic, s.commitLogOffset, s.about) for x in lives for s in x.steps]
        assert expected
        assert [
            (row["step"], row["topic"], row["commitLogOffset"], row["about"]) for row in steps
        ] == expected
        records = [r for r in store.truth if r["uniqKey"] == record["uniqKey"] and in_a_queue(r)]
        assert {row["commitLogOffset"] for row in steps} >= {r["commitLogOffset"] for r in records}


# --- dlq ------------------------------------------------------------------------------------------


def dead_of(store: GoldenStore) -> list[dict[str, Any]]:
    return [r for r in store.truth if r["topic"].startswith("%DLQ%")]


def test_wide_tables_are_readable_on_a_narrow_screen(store: GoldenStore) -> None:
    answer = dlq.run(None, dlq.DlqSpec(store.path, conf(store)))
    lines = shown(answer, 80)
    assert all(len(line) <= 80 for line in lines if "…" in line)
    for record in dead_of(store):
        assert any(record["uniqKey"][-5:] in line for line in lines)
    wide = shown(answer, 400)
    assert any("uniqKey" in line and "originTopic" in line for line in wide)


def test_how_a_job_ended_comes_first_and_a_pipe_gets_every_row(store: GoldenStore) -> None:
    answer = dlq.run(None, dlq.DlqSpec(store.path, conf(store)))
    many = replace(answer, tables={"of many": [{"n": n * 1000, "of": "a\tb"} for n in range(99)]})
    first, blank, title, header, *lines = shown(many, 20, is_terminal=False)
    assert first.startswith("no problems, in ")
    assert "warning" not in first
    assert (blank, title, header) == ("", "dlq: of many", "n\tof")
    assert [line.split("\t") for line in lines[:99]] == [
        [str(n * 1000), "a\\tb"] for n in range(99)
    ]
    screen = shown(many, 80)
    assert "no problems, in " in screen[0]
    assert any("59 more" in line for line in screen)
    assert any("39,000" in line for line in screen)
    wrong = replace(many, ok=False, problems=("one", "two"))
    printed = shown(wrong, 20, is_terminal=False)
    assert printed[0].startswith("finished with problems, in ")
    assert printed[1:3] == ["! one", "! two"]


def test_verify_says_first_how_many_problems_there_are(copy: GoldenStore) -> None:
    shutil.rmtree(Path(copy.path, "consumequeue", "orders"))
    verdict, *lines = call("verify", copy.path).stdout.splitlines()
    assert verdict.startswith("verdict  flawed: ")
    assert any(re.match(r"[1-9][0-9]* problems? found \(", line) for line in lines)


def test_dead_letters_are_sent_again_to_their_origin_once(
    store: GoldenStore, tmp_path: Path
) -> None:
    target = tmp_path / "again"
    spec = dlq.DlqSpec(store.path, conf(store), groups=("g-retry",), resend=str(target))
    answer = dlq.run(None, spec)
    assert answer.ok, answer.problems
    expected = dead_of(store)
    assert answer.numbers["sent again"] == len(expected)
    with MessageStore.open(target) as opened:
        assert opened.topics() == ["retrying"]
        rows = [row for batch in opened.read_batches() for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [base64.b64decode(r["body"]) for r in expected]
    for row, record in zip(rows, expected, strict=True):
        properties = dict(row["properties"])
        assert row["reconsumeTimes"] == 0
        assert properties["REPLAY_ORIGIN_TOPIC"] == record["topic"]
        assert properties["UNIQ_KEY"] == record["uniqKey"]
        assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "REAL_TOPIC"} & set(properties)
    with pytest.raises(Exception, match="this replay"):
        dlq.run(None, spec)


def test_a_dead_letter_that_was_popped_begins_anew(tmp_path: Path) -> None:
    """With 1ST_POP_TIME its first attempt would count as another one."""
    properties = {
        "DLQ_ORIGIN_TOPIC": "orders",
        "1ST_POP_TIME": "1",
        "ORIGIN_GROUP": "g",
        "own": "a",
    }
    with MessageStore.create(tmp_path / "dead") as writer:
        row = {"topic": "%DLQ%g", "queueId": 0, "body": b"x", "properties": properties}
        writer.append(row)
    spec = dlq.DlqSpec(str(tmp_path / "dead"), groups=("g",), resend=str(tmp_path / "again"))
    assert dlq.run(None, spec).ok
    with MessageStore.open(tmp_path / "again") as opened:
        (message,) = opened.get_message("orders", 0, 0).messages
    names = {name for name in message.properties if not name.startswith("REPLAY_")}
    assert names - {"UNIQ_KEY"} == {"own"}


def test_some_dead_letters_are_added_to_a_store_after_a_dry_run(
    store: GoldenStore, tmp_path: Path
) -> None:
    target = tmp_path / "again"
    every = dead_of(store)
    key = every[-1]["uniqKey"]
    words = [store.path, "--broker-conf", store.conf, "--to", str(target)]

    def numbers(*more: str) -> dict[str, int]:
        reported: dict[str, int] = objects("dlq", *words, *more)[0]["numbers"]
        return reported

    planned = numbers("--key", key, "--dry-run")
    assert (planned["deadLetters"], planned["wouldBeSentAgain"]) == (1, 1)
    assert not target.exists()
    assert numbers("--key", every[0]["uniqKey"])["sentAgain"] == 1
    assert numbers("--key", key, "--append")["sentAgain"] == 1
    with MessageStore.open(target) as opened:
        rows = [row for batch in opened.read_batches() for row in batch.to_pylist()]
    assert [row["uniqKey"] for row in rows] == [every[0]["uniqKey"], key]
    assert "Give --to or --to-broker too" in complaint("dlq", store.path, "--dry-run", expect=2)


@pytest.mark.parametrize("group", [(), ("--group", "g-slow")])
def test_no_message_is_sent_again_where_no_group_gave_one_up(
    tmp_path: Path, group: tuple[str, ...]
) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    with store.open() as opened:
        assert not [topic for topic in opened.topics() if topic.startswith("%DLQ%")]
    target, failed = tmp_path / "again", tmp_path / "failed"
    words = ["dlq", store.path, "--broker-conf", store.conf, *group]
    assert objects(*words, "--to", str(target))[0]["numbers"]["sentAgain"] == 0
    to_broker = ["--to-broker", "127.0.0.1:1", "--failed", str(failed)]
    assert objects(*words, *to_broker, "--dry-run")[0]["numbers"]["wouldBeSentAgain"] == 0
    assert objects(*words, *to_broker)[0]["numbers"]["sentAgain"] == 0
    assert not target.exists()
    assert not failed.exists()
    assert "Give --failed" in complaint(*words, *to_broker[:2], expect=2)


def test_a_relative_time_is_the_same_for_the_report_and_for_what_is_sent_again(
    store: GoldenStore,
) -> None:
    options = {**conf(store), "startingTimestamp": "-1h"}
    plan = scan_of(store.path, {**options, "includeSystemTopics": "true"})
    spec = dlq.DlqSpec(store.path, options, resend="again")
    newest = max(record["storeTimestamp"] for record in store.truth)
    assert dlq.resend_spec(spec, plan).since == str(newest - 3_600_000)


# --- the commands ---------------------------------------------------------------------------------


def test_reports_as_json_and_wrong_options(
    store: GoldenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [store.path, "--broker-conf", store.conf]
    report = tmp_path / "report.json"
    assert dlq.main([*words, "--report", str(report), "--checksums"]) == EXIT_OK
    reported = json.loads(report.read_text("utf-8"))
    assert reported["source"]["logRange"][1] >= max(r["commitLogOffset"] for r in store.truth)
    assert reported["source"]["options"]["brokerConf"] == store.conf
    assert len(reported["source"]["files"]) == sum(p.is_file() for p in Path(store.path).rglob("*"))
    assert any(reported["tables"].values())
    assert "total" in capsys.readouterr().out
    assert dlq.main([*words, "--broker-nme", "x"]) == EXIT_REFUSED
    assert "--broker-name" in capsys.readouterr().err
    assert dlq.main(["--help"]) == EXIT_OK


def test_names_that_are_not_there(store: GoldenStore) -> None:
    with pytest.raises(InvalidArgumentError, match="g-retry"):
        dlq.run(None, dlq.DlqSpec(store.path, groups=("g-retri",)))
    for words, said in (
        (("lag", "--group", "nobody"), "no group"),
        (("lag", "--topic", "ordrs"), "RMQSTORE_UNKNOWN_QUEUE"),
        (("usage", "--topic", "ordrs"), "RMQSTORE_UNKNOWN_QUEUE"),
    ):
        done = asked(words[0], store, *words[1:])
        assert (done.returncode, said in done.stderr) == (2, True), done.both


@pytest.mark.parametrize("words", [("dlq",), ("export", "--to"), ("replay", "--to-parquet")])
def test_a_job_that_logged_warnings_says_so_at_its_end(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """A crash lost the end of the log."""
    path = unpack("clean-5.5.0", tmp_path).path
    Path(path, "abort").touch()
    os.truncate(Path(path, "commitlog/00000000000000786432"), 100_000)
    target = [str(tmp_path / "target")] if len(words) > 1 else []
    done = call(words[0], path, *words[1:], *target)
    (verdict,) = (line for line in done.stdout.splitlines() if "1 warning before" in line)
    assert ("no problems" in verdict or "without problems" in verdict, done.returncode) == (True, 0)
    assert "135 entries" in done.stderr
