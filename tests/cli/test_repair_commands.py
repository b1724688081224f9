"""Commands that check, mend or change a store, on copies of stores of real brokers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rmq_store.markers import StoreLock
from tests.support.damage import flip_in_log
from tests.support.golden import GoldenStore, log_files, unpack
from tests.support.running.commands import call, objects, run, sent_to

COPIES = ("rebuild", "salvage")


def test_the_exit_code_of_verify_says_whether_the_store_is_sound(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    assert "no problems found" in run("verify", store.path)
    summary = objects("verify", store.path)[-1]
    assert summary["records"] == len(store.truth)
    flip_in_log(store, store.truth[3]["commitLogOffset"] + 95, 4)
    *findings, summary = objects("verify", store.path, expect=1)
    assert "log-damaged" in [finding["code"] for finding in findings]
    assert summary["nothingWrong"] is False
    run("verify", str(tmp_path / "nothing"), expect=2)


def test_salvage_creates_a_store_and_reports_what_it_left_out(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    one = store.truth[3]
    flip_in_log(store, one["commitLogOffset"] + 95, 4)
    (report,) = objects("salvage", store.path, str(tmp_path / "target"), expect=1)
    assert report["messages"] + sum(report["ended"].values()) == len(store.truth) - 1
    assert [skipped["start"] for skipped in report["skipped"]] == [one["commitLogOffset"]]
    assert "no problems found" in run("verify", str(tmp_path / "target"))


@pytest.mark.parametrize("left", [3, 0])
def test_messages_after_the_end_of_a_log_without_its_last_file_are_named(
    left: int, copy: GoldenStore, tmp_path: Path
) -> None:
    for file in log_files(copy)[left:]:
        file.unlink()
    found = [call(command, copy.path, "--to", str(tmp_path / command)) for command in COPIES]
    if left:
        found.append(call("recover", copy.path))
    for done in found:
        assert done.returncode == 1
        assert f"{'333' if left else '1,588'} entries in 17 queues" in done.stdout
        assert "a copy or a replica may have it" in done.stdout
    (report,) = objects("salvage", copy.path, "--to", str(tmp_path / "json"), expect=1)
    assert sum(row["entries"] for row in report["entriesAfterLog"]) == (333 if left else 1588)
    assert all({"topic", "queueId", "entries"} == row.keys() for row in report["entriesAfterLog"])
    if left:
        assert "333 entries in 17 queues" in call("recover", copy.path, "--apply").stdout


@pytest.mark.parametrize("command", COPIES)
@pytest.mark.parametrize("target", ["new", "commitlog/new", ".", "../link/new", "..", "LOG/new"])
def test_a_new_store_is_not_written_into_its_source(
    tmp_path: Path, command: str, target: str
) -> None:
    """A broker would take it for files of its own, and every reader would see the source change."""
    store = unpack("clean-4.9.7", tmp_path)
    (store.folder / "link").symlink_to(store.path)
    log, conf = tmp_path / "disk", store.folder / "own.conf"
    (Path(store.path) / "commitlog").rename(log)
    conf.write_text(f"storePathCommitLog={log}\n")
    before = store.fingerprint()
    place = str(log / "new") if target.startswith("LOG") else str(Path(store.path, target))
    said = run(command, store.path, place, "--broker-conf", str(conf), expect=2)
    assert "must be separate folders" in said
    assert store.fingerprint() == before
    assert not (log / "new").exists()


def test_retention_is_shown_first_and_applied_when_said(copy: GoldenStore) -> None:
    files = sorted((Path(copy.path) / "commitlog").iterdir())
    words = ("retention", copy.path, "--keep-from", "2100-01-01T00:00:00Z")
    *lines, plan = objects(*words)
    gone = [one["path"] for one in lines if "path" in one]
    assert gone[: len(files) - 1] == [str(path) for path in files[:-1]]
    losers = [one for one in lines if "consumerGroup" in one]
    assert {(one["consumerGroup"], one["topic"]) for one in losers} >= {("g-slow", "orders")}
    assert plan["files"] == len(gone) == len(lines) - len(losers)
    assert all(path.exists() for path in files)
    assert "g-slow" in run(*words)
    *_, done = objects(*words, "--apply", "--lose-unread")
    assert done["freed"] == plan["bytes"]
    assert [path.exists() for path in files] == [False] * (len(files) - 1) + [True]
    *findings, _ = objects("verify", copy.path, expect=1)
    assert {finding["code"] for finding in findings} == {"consumer-behind"}


@pytest.mark.parametrize("apply", [[], ["--apply"]])
def test_nothing_that_is_due_is_no_problem(copy: GoldenStore, apply: list[str]) -> None:
    """All messages are of 2026-11-21."""
    files = sorted(path for path in Path(copy.path).rglob("*") if path.is_file())
    words = ("retention", copy.path, "--keep-from", "2020-01-01T00:00:00Z", *apply)
    said = run(*words)  # exit code 0
    assert "nothing is due: no file has only messages that are old enough" in said
    (plan,) = objects(*words)
    assert (plan["files"], plan["bytes"], plan["freed"]) == (0, 0, 0)
    assert sorted(path for path in Path(copy.path).rglob("*") if path.is_file()) == files


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
    again = objects(*reset, "--reset-to-time", str(middle), "--apply")
    assert [row["before"] for row in again] == [row["after"] for row in rows]
    assert "\t\t\t0:" in path.read_text("utf-8")  # fastjson's integer keys
    others = json.loads(json.dumps(objects("lag", store.path, "--group", "g-retry")))
    assert others


def test_a_reset_to_a_time_after_the_newest_message_skips_them_all(copy: GoldenStore) -> None:
    """A broker answers a time search in a batch queue with an older message."""
    newest = max(row["storeTimestamp"] for row in sent_to(copy, "inner"))
    words = ("offsets", copy.path, "--group", "g", "--new-group", "--topic", "inner")
    after = [objects(*words, "--reset-to-time", str(newest + more))[0]["after"] for more in (0, 1)]
    assert after == [201, 202]


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


def test_a_group_that_is_not_in_a_topic_is_not_said_to_be_unknown(store: GoldenStore) -> None:
    topics = {row["topic"] for row in objects("queues", store.path)}
    read = {row["topic"] for row in objects("lag", store.path, "--group", "g-slow")}
    other = sorted(topics - read)[0]
    assert objects("lag", store.path, "--topic", other, "--group", "g-slow") == []


def test_reports_of_queues_are_rows_as_elsewhere(tmp_path: Path) -> None:
    path = unpack("crash-5.3.3", tmp_path).path
    for words in (["recover", path], ["rebuild", path, "--to", str(tmp_path / "new")]):
        (report,) = objects(*words)
        rows = [row for row in report["queues"] if row["topic"] == "payments"]
        assert rows == [
            {"topic": "payments", "queueId": 0, "minOffset": 0, "maxOffset": 218},
            {"topic": "payments", "queueId": 1, "minOffset": 0, "maxOffset": 235},
        ]
