"""The `rmqstore` command against stores of real brokers: what it prints, and how it ends."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rmq_store import MessageStore
from tests.support.golden import Golden, GoldenStore, in_a_queue, log_files, unpack
from tests.support.running.child import python, run_python
from tests.support.running.commands import COMMAND, call, complaint, in_ms, objects, run, sent_to


def test_info_shows_range_and_times(store: GoldenStore) -> None:
    (info,) = objects("info", store.path)
    last = store.truth[-1]
    assert info["logStart"] == 0
    assert info["logEnd"] == last["commitLogOffset"] + last["storeSize"]
    assert in_ms(info["firstStoreTimestamp"]) == store.truth[0]["storeTimestamp"]
    assert in_ms(info["lastStoreTimestamp"]) == last["storeTimestamp"]
    assert info["closed"] is True
    with store.open() as opened:
        assert info["queues"] == len(opened.queues())
    said = run("info", store.path)
    assert "closed       cleanly" in said
    files = log_files(store)
    assert f": {info['logEnd'] / 1024:.1f} KiB, {len(files)} files of 256.0 KiB\n" in said


@pytest.mark.parametrize("name", ["crash-5.3.3", "expired-5.5.0", "nommap-5.5.0", "clean-4.3.2"])
def test_info_finds_the_end_of_any_log(golden: Golden, name: str) -> None:
    (info,) = objects("info", golden(name).path)
    with golden(name).open() as opened:
        start, end = opened.log_range()
    assert info["logStart"] == start
    assert info["logEnd"] >= end or name == "nommap-5.5.0"
    assert info["closed"] == (not name.startswith("crash"))


def test_info_counts_index_files_and_nothing_else_in_their_folder(copy: GoldenStore) -> None:
    folder = Path(copy.path, "index")
    names = [path.name for path in folder.iterdir()]
    (folder / "lost+found").mkdir()
    (folder / f".{names[0]}.ZZ8r1q").touch()  # as rsync names what it has not finished
    (row,) = objects("info", copy.path)
    assert row["indexFiles"] == len(names)


def test_lag_sums_up_the_groups_of_users(golden: Golden) -> None:
    """The broker's own group of transactions is behind its own topic all the time."""
    store = golden("clean-5.5.0").path
    said = call("lag", store)
    assert "CID_RMQ_SYS_TRANS" in said.stdout
    assert "2 groups, 1 behind, by 687 messages in all" in said.stderr


def test_info_does_not_call_empty_what_it_cannot_look_into(tmp_path: Path) -> None:
    store = unpack("clean-5.3.3", tmp_path)
    folder = Path(store.path, "consumequeue")
    shutil.rmtree(folder)
    folder.symlink_to(folder)  # a loop: also for root, whom no mode keeps out
    assert f"not known: [RMQSTORE_ACCESS] {folder}" in run("info", store.path, expect=1)


def test_a_declared_queue_without_a_message_is_no_unknown_queue(golden: Golden) -> None:
    """A real broker makes the files of a queue with its first message; consumers commit 0 there."""
    rows = objects("lag", golden("proxy-5.5.0").path)
    empty = [row for row in rows if (row["topic"], row["queueId"]) in (("fifo", 2), ("fifo", 3))]
    assert len(empty) == 2
    assert [(row["status"], row["lag"], row["maxOffset"]) for row in empty] == [("OK", 0, 0)] * 2
    assert {row["status"] for row in rows} == {"OK"}


def test_cat_prints_each_message_of_a_topic_once(store: GoldenStore) -> None:
    truth = sent_to(store, "orders")
    rows = objects("cat", store.path, "--topic", "orders")
    assert [row["commitLogOffset"] for row in rows] == [one["commitLogOffset"] for one in truth]
    for row, one in zip(rows, truth, strict=True):
        assert row["keys"] == one["keys"]
        assert row["properties"] == one["properties"]
    lines = run("cat", store.path, "--topic", "orders", "--columns", "queueId,keys,body")
    assert len(lines.splitlines()) == len(truth)


def test_relative_times_count_from_the_newest_message(store: GoldenStore) -> None:
    """The clock of this machine says nothing about a store that was copied last year."""
    truth, newest = sent_to(store, "orders"), store.truth[-1]["storeTimestamp"]
    stamps = sorted(one["storeTimestamp"] for one in truth)
    seconds = (newest - stamps[len(stamps) // 2]) // 1000
    wanted = sum(stamp >= newest - seconds * 1000 for stamp in stamps)
    assert 0 < wanted < len(stamps)
    words = ("--topic", "orders", "--columns", "queueOffset")
    for command in ("cat", "find"):
        assert len(objects(command, store.path, *words, "--since", f"-{seconds}s")) == wanted
    second = newest - newest % 1000 - seconds * 1000
    clock = datetime.fromtimestamp(second / 1000, timezone.utc).strftime("%H:%M:%S")
    earlier = objects("cat", store.path, *words, "--until", clock)
    assert len(earlier) == sum(stamp < second for stamp in stamps) > 0


def test_a_huge_limit_is_no_limit(store: GoldenStore) -> None:
    truth = sent_to(store, "orders")
    for limit in (str(len(truth) + 1), "9" * 30):
        words = ("--topic", "orders", "--columns", "keys", "--limit", limit)
        assert len(objects("cat", store.path, *words)) == len(truth)
        assert len(objects("find", store.path, *words)) == len(truth)


def test_an_offset_at_the_end_waits_for_the_next_message(store: GoldenStore) -> None:
    words = ("cat", store.path, "--topic", "orders", "--queue", "1", "--offset")
    (queue,) = [r for r in objects("queues", store.path, "--topic", "orders") if r["queueId"] == 1]
    assert run(*words, str(queue["maxOffset"])) == ""
    assert f"queue 1: 0 to {queue['maxOffset']}" in run(
        *words, str(queue["maxOffset"] + 1), expect=2
    )


def test_cat_says_which_messages_of_an_offset_have_expired(golden: Golden) -> None:
    store = golden("expired-5.5.0")
    queue = next(row for row in objects("queues", store.path) if row["minOffset"] > 0)
    words = ("--topic", queue["topic"], "--queue", str(queue["queueId"]), "--offset", "0")
    said = complaint("cat", store.path, *words, expect=0)
    assert f"has no message of offset 0 to {queue['minOffset'] - 1} any more" in said


def test_cat_takes_queue_time_tag_and_limit(store: GoldenStore) -> None:
    truth = sent_to(store, "orders")
    middle = truth[len(truth) // 2]["storeTimestamp"]
    later = objects("cat", store.path, "--topic", "orders", "--since", str(middle))
    assert len(later) == sum(one["storeTimestamp"] >= middle for one in truth)
    before = objects("cat", store.path, "--topic", "orders", "--until", str(middle))
    assert len(before) == len(truth) - len(later)
    one_queue = objects("cat", store.path, "--topic", "orders", "--queue", "1", "--offset", "5")
    assert len(one_queue) == sum(one["queueId"] == 1 for one in truth) - 5
    paid = objects("cat", store.path, "--topic", "orders", "--tag", "paid || created")
    assert len(paid) == sum(one["tags"] in ("paid", "created") for one in truth)
    assert len(objects("cat", store.path, "--topic", "orders", "--limit", "7")) == 7


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


def test_usage_counts_a_record_of_light_queues_once(golden: Golden) -> None:
    """A light queue lists records of other topics; with them the log was 106.7 % full."""
    store = golden("lmq-5.3.3")
    rows = objects("usage", store.path)
    light = [row for row in rows if row["topic"].startswith("%LMQ%")]
    assert light
    assert [row for row in rows if row["shared"]] == light
    own = sum(row["bytes"] for row in rows if not row["shared"])
    assert own == sum(one["storeSize"] for one in store.truth if in_a_queue(one))
    for by in ("day", "topic,day"):
        days = [row for row in objects("usage", store.path, "--by", by) if not row["shared"]]
        assert sum(row["bytes"] for row in days) == own
    printed = run("usage", store.path).splitlines()
    assert sum(line.endswith("% (shared)") for line in printed) == len(light)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ("tpics", "Did you mean 'topics'?"),
        ("cat STORE --topic ordres", "Did you mean 'orders'?"),
        ("cat STORE --topic orders --colums body", "--columns"),
        ("verify STORE --config broker.conf", "Did you mean '--broker-conf'?"),
        ("retention STORE --conf broker.conf", "Did you mean '--broker-conf'?"),
        ("cat STORE --topic orders --from -1h", "Did you mean '--since'?"),
        ("cat STORE --topic orders --columns bdy", "Did you mean 'body'?"),
        ("cat STORE --topic orders --since yesterday", "is not a time"),
        ("cat STORE --topic orders --since 1795253026", "as seconds"),
        ("find STORE --until 1795253026", "as seconds"),
        ("retention STORE --keep-from 1795253026", "as seconds"),
        ("offsets STORE --group g-slow --reset-to-time 1795253026", "as seconds"),
        ("find STORE --property x", "is not NAME=VALUE"),
        ("find STORE --property a=\udcff", "a property is not UTF-8"),
        ("find STORE --tag \udcff", "a tag is not UTF-8"),
        ("find STORE --key \udcff", "a key is not UTF-8"),
        ("find STORE --id \udcff", "message_id is not UTF-8"),
        ("trace STORE \udcff", "a key is not UTF-8"),
        ("lag STORE --group g-slo", "Did you mean 'g-slow'?"),
        ("table fils STORE", "Did you mean 'files'?"),
        ("info /no/such/folder", "RMQSTORE_NOT_A_STORE"),
        ("offsets STORE --apply", "--reset-to"),
        ("offsets STORE --group g-slow --reset-to first", "Give earliest, latest"),
        ("offsets STORE --group g-slow --reset-to 99999999", "has no offset"),
        ("offsets STORE --group g-slow --reset-to 2024-05-01T12:00:00Z", "--reset-to-time"),
        ("offsets STORE --group new --new-group --reset-to latest", "needs --topic"),
        (
            "offsets STORE --group g-slow --topic orders --queue 77 --reset-to latest",
            "has no queue 77",
        ),
        ("offsets STORE --topic orders --queue 77", "has no queue 77"),
        ("cat STORE --topic orders --queue 77", "has no queue 77"),
        ("trace STORE some-key --topic ordres", "Did you mean 'orders'?"),
        ("cat STORE --topic orders --offset 99999999999999999999", "no queue of topic 'orders'"),
        ("cat STORE --topic orders --offset -1", "not in the range"),
        ("cat STORE --topic orders --limit 0", "not in the range"),
        ("cat STORE --topic orders --limit nan", "not a valid whole number"),
        ("cat STORE --topic orders --since -1s --until -2s", "Give an end"),
        ("find STORE --since 2026-11-22 --until 2026-11-21", "and --until has"),
        ("export STORE --to /x --since 2026-11-22 --until 2026-11-21", "--until has 2026-11-21"),
        ("export STORE --to /x --offsets orders:0=9..5", "(found 9..5)"),
        ("export STORE --to /x --max-body-bytes x", "'--max-body-bytes' is not"),
        ('find STORE --key ""', "it is empty"),
        ('find STORE --text " "', "it is empty"),
        ('trace STORE ""', "it is empty"),
        ('cat STORE --topic orders --tag ""', "it is empty"),
        ('lag STORE --group ""', "it is empty"),
        ('info STORE --broker-name ""', "it is empty"),
        ("tail STORE --interval nan", "not a number of seconds"),
        ("tail STORE --interval inf", "not a number of seconds"),
        ("tail STORE --interval 0", "not a number of seconds"),
        ("usage STORE --top -3", "not in the range"),
        ("info STORE --broker-conf PYTHON", "a binary one at offset"),
        ("cat STORE --topic orders --broker-conf PYTHON", "CORRUPT_CONFIG"),
        ("recover STORE --release 9.9", "release '9.9' is not supported"),
        ("recover STORE --release 5.6.0", "5.0 to 5.5"),
        ("recover STORE --release 4.10.0", "4.3 to 4.9"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(
    store: GoldenStore, words: str, reported: str
) -> None:
    there = {"STORE": store.path, "PYTHON": sys.executable}
    assert reported in run(*(there.get(word, word) for word in shlex.split(words)), expect=2)


def test_a_topic_without_a_queue_has_no_message_of_any_offset(tmp_path: Path) -> None:
    with MessageStore.create(tmp_path / "s", {"mappedFileSizeCommitLog": 1 << 16}) as writer:
        writer.append({"topic": "orders", "queueId": 0, "body": b""})
        writer.declare_topic("later")
    said = call("cat", str(tmp_path / "s"), "--topic", "later", "--offset", "3")
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "rmqstore: no message found\n")


@pytest.mark.parametrize(
    "times",
    [("2026-11-22", "2026-11-22"), ("-1s", "-1s"), ("2030-01-01", "-1s"), ("-1s", "2020-01-01")],
)
def test_an_empty_range_of_times_has_no_message(
    store: GoldenStore, times: tuple[str, str], tmp_path: Path
) -> None:
    words = ["--since", times[0], "--until", times[1]]
    assert run("cat", store.path, "--topic", "orders", *words) == ""
    assert "no message found" in call("find", store.path, *words).stderr
    assert objects("sql", store.path, "select count(*) as n from messages", *words) == [{"n": 0}]
    for job in ("export", "replay"):
        (report,) = objects(job, store.path, "--to", str(tmp_path / job), *words)
        assert report["ok"]
    with MessageStore.open(tmp_path / "replay") as replayed:
        assert replayed.log_range() == (0, 0)


def test_a_fault_of_ours_is_no_answer(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit code of it, 1, means that a command has done its work."""

    def faulty(*_: object) -> None:
        raise IndexError("a fault")

    monkeypatch.setattr("rmq_store.cli.commands.verify.counted", faulty)
    said = complaint("verify", store.path, expect=2)
    assert "IndexError: a fault" in said
    assert said.endswith("rmqstore: a fault of rmqstore: please report it, with these lines\n")


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
    code = "import sys, rmq_store.cli.main, rmq_store.cli.commands.tables; print(*sys.modules)"
    loaded = set(python(code).split())
    assert not {"pyarrow", "pyspark", "rich"} & loaded


def test_what_a_short_command_loads(store: GoldenStore) -> None:
    """The functions of Arrow take an eighth of its time."""
    code = f"""if True:
        import sys, rmq_store.cli.main
        for name in ("info", "topics", "queues", "usage", "lag"):
            sys.argv = ["rmqstore", name, {store.path!r}]
            try:
                rmq_store.cli.main.main()
            except SystemExit as end:
                assert not end.code
            print(name, "pyarrow.compute" in sys.modules, file=sys.stderr)"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stderr.splitlines() if line.endswith(("True", "False"))]
    assert [loaded for _, loaded in said] == ["False"] * 5


@pytest.mark.parametrize(
    ("commands", "there"),
    [
        ([["topics"], ["cat", "--topic", "orders"], ["find", "--text", "1"]], False),
        ([["verify", "--engine", "local"]], True),
    ],
)
def test_a_command_finds_pandas_for_an_engine_alone(
    commands: list[list[str]], there: bool, store: GoldenStore
) -> None:
    """pyarrow would load it for many a command, and take as long as the rest."""
    code = f"""if True:
        import sys, rmq_store.cli.main
        for name, *options in {commands!r}:
            sys.argv = ["rmqstore", name, {store.path!r}, *options]
            try:
                rmq_store.cli.main.main()
            except SystemExit as end:
                assert not end.code
            print("pyarrow" in sys.modules, "pandas" in sys.modules, file=sys.stderr)
            try:
                import pandas
                print("found", file=sys.stderr)
            except ModuleNotFoundError:
                print("kept out", file=sys.stderr)"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("rmqstore: ")]
    assert said == ["True False", "found" if there else "kept out"] * len(commands)
    assert done.stdout


def test_queues_that_are_asked_for_alone_are_shown_alone(store: GoldenStore) -> None:
    rows = objects("offsets", store.path, "--group", "g-slow", "--queue", "1")
    assert {row["queueId"] for row in rows} == {1}
