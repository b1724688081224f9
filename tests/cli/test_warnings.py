"""The shell says what a store cannot give: log files that are gone, and queues without files."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from rmq_store.admin.info import store_info
from rmq_store.cli.commands import tail
from rmq_store.questions.lag_summary import lag_of
from rmq_store.text.times import shown_time
from tests.support.golden import Golden, GoldenStore, log_files, unpack
from tests.support.running.commands import call, complaint


def hurt_middle(golden: GoldenStore, how: str) -> tuple[int, int]:
    """Take a log file in the middle away, or its bytes; the log offsets that are gone."""
    files = log_files(golden)
    middle, size = files[1], files[0].stat().st_size
    base = int(middle.name)
    match how:
        case "missing":
            middle.unlink()
        case "empty":
            os.truncate(middle, 0)
        case _:
            os.truncate(middle, size // 2)
            return base + size // 2, base + size
    return base, base + size


@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
def test_a_log_file_that_is_gone_from_the_middle_is_named(how: str, copy: GoldenStore) -> None:
    start, stop = hurt_middle(copy, how)
    place = f"log offset {start} to {stop} is in no file"
    assert any(place in what for what in store_info(copy.path).damage)
    done = call("info", copy.path)
    assert place in done.stdout
    assert done.returncode == 1
    assert place in call("usage", copy.path).stderr
    done = call("cat", copy.path, "--topic", "orders", "--columns", "queueOffset")
    assert place in done.stderr
    assert done.returncode == 2, "an entry leads into the file"


def test_a_lost_end_of_the_log_is_named_by_commands_that_count_entries(copy: GoldenStore) -> None:
    whole = [call(command, copy.path).stderr for command in ("topics", "queues", "lag", "usage")]
    assert not any("lost" in text for text in whole)
    *_, before, last = log_files(copy)
    last.unlink()
    os.truncate(before, 50_000)
    with copy.open() as store:
        end = store.log_range()[1]
    assert any("end of the log is lost" in what for what in store_info(copy.path).damage)
    for command in ("topics", "queues", "lag", "usage"):
        said = call(command, copy.path).stderr
        assert said.count("the end of the log is lost") == 1
        assert f"It ends at log offset {end}" in said
        assert "and queues list messages after it" in said
        assert "clock" not in said


def test_a_lost_end_of_the_log_is_named_without_a_checkpoint(copy: GoldenStore) -> None:
    log_files(copy)[-1].unlink()
    Path(copy.path, "checkpoint").unlink()
    for command in ("topics", "queues", "lag", "usage"):
        done = call(command, copy.path)
        assert done.stderr.count("the end of the log is lost") == 1
        assert done.returncode == 1


def test_entries_after_the_log_of_a_crashed_store_are_counted_once_by_each_command(
    tmp_path: Path,
) -> None:
    golden = unpack("crash-5.3.3", tmp_path)
    for path in log_files(golden)[-2:]:
        path.unlink()
    with golden.open() as store:
        after, end = store.opening.after_log, store.log_range()[1]
    assert sum(after.values()) > 400
    for words in (["topics"], ["queues"], ["usage"], ["cat", "--topic", "orders"]):
        _, _, said, _ = done = call(words[0], golden.path, *words[1:])
        assert done.returncode == 0  # as each killed broker leaves them
        assert (
            said.count(f"leading after the log's end at log offset {end}: normal after a crash")
            == 1
        )
        assert f"{sum(after.values())} entries in {len(after)} queues (" in said


def test_a_hole_after_the_end_of_the_log_loses_nothing(tmp_path: Path) -> None:
    golden = unpack("crash-5.5.0", tmp_path)
    last = log_files(golden)[-1]
    assert not last.read_bytes().strip(b"\0"), "made ahead"
    last.rename(last.with_name(f"{int(last.name) + 2 * last.stat().st_size:020}"))
    for command in ("topics", "queues", "usage"):
        done = call(command, golden.path)
        assert (done.returncode, "is in no file" in done.stderr) == (0, False)


@pytest.mark.parametrize("name", ["direct-5.5.0", "expired-5.5.0"])
def test_a_store_that_no_broker_made_lacks_no_offsets(name: str, golden: Golden) -> None:
    assert "there is no consumerOffset.json" in complaint("lag", golden(name).path, expect=0)


def test_a_declared_queue_that_never_had_a_message_is_not_named(tmp_path: Path) -> None:
    golden = unpack("proxy-5.5.0", tmp_path)
    assert call("topics", golden.path).stderr == ""


def test_tail_warns_once_however_long_it_follows(
    copy: GoldenStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurt_middle(copy, "missing")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(tail, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(tail, "_interrupt_event", threading.Event)
    with pytest.raises(click.Abort):
        tail.tail.main([copy.path, "--topic", "documents", "-f", "-n", "1"], standalone_mode=False)
    assert capsys.readouterr().err.count("is in no file") == 1


def insert(path: Path, behind: str, text: str) -> None:
    """Put text into a configuration file as its broker wrote it, whose keys may have no quotes."""
    whole = path.read_text("utf-8")
    assert behind in whole
    path.write_text(whole.replace(behind, behind + text, 1), "utf-8")


def test_a_queue_is_not_said_to_be_missing_where_topics_json_is_unreadable(tmp_path: Path) -> None:
    golden = unpack("clean-5.5.0", tmp_path)
    config = Path(golden.path, "config")
    insert(config / "consumerOffset.json", '"offsetTable":{', '"fresh@g-fresh":{0:0,7:0},')
    fresh = '"fresh":{"topicName":"fresh","readQueueNums":4,"writeQueueNums":4,"perm":6},'
    insert(config / "topics.json", '"topicConfigTable":{', fresh)

    def statuses() -> dict[str, str]:
        lines = call("lag", golden.path, "--group", "g-fresh").stdout.splitlines()
        rows = [line.split() for line in lines if line.startswith("g-fresh")]
        return {row[2]: row[-1] for row in rows}

    assert statuses() == {"0": "OK", "7": "NO_SUCH_QUEUE"}
    (config / "topics.json").write_bytes(b"{cut")
    (config / "topics.json.bak").unlink(missing_ok=True)
    assert statuses() == {"0": "NOT_KNOWN", "7": "NOT_KNOWN"}
    with golden.open() as store:
        problems = list(lag_of(store, ("g-fresh",)).problems())
    assert [problem.split(": ", 1)[1] for problem in problems] == [
        "whether 2 queues may be read is not known: topics.json cannot be read"
    ]


@pytest.mark.parametrize("gone", ["commitlog/00000000000000786432", "index/*"])
def test_times_are_shown_as_people_read_them(copy: GoldenStore, gone: str) -> None:
    for path in Path(copy.path).glob(gone):
        path.unlink()
    for words in (["verify"], ["cat", "--topic", "orders", "--columns", "queueId"]):
        said = call(words[0], copy.path, *words[1:]).both
        assert not re.search(r"\b\d{13}\b", said.replace(copy.path, "")), said
    with copy.open() as opened:
        lost = opened.opening.lost_end
    said = call("verify", copy.path).stdout if lost is None else str(lost)
    assert len(re.findall(r"2026-11-21T09:23:\d\d\.\d{3}Z", said)) >= 1


def test_trace_shows_when_a_timer_is_due(golden: Golden) -> None:
    store = golden("proxy-5.5.0")
    timed = next(one for one in store.truth if one["topic"] == "rmq_sys_wheel_timer")
    due = int(timed["properties"]["TIMER_OUT_MS"])
    assert f"(until {shown_time(due)}, for " in call("trace", store.path, timed["uniqKey"]).stdout


@pytest.mark.parametrize("lose", ["consumequeue/orders/0", "consumequeue/payments/1", "commitlog"])
def test_commands_that_count_and_recover_name_a_lost_middle_file(lose: str, tmp_path: Path) -> None:
    path = unpack("clean-5.5.0", tmp_path).path
    file = sorted(Path(path, lose).iterdir())[1]
    file.unlink()
    said = (
        "log offset 262144 to 524288 is in no file"
        if lose == "commitlog"
        else f"queue {lose.removeprefix('consumequeue/')} lists no message at queue offset 100 to 200"
    )
    for command in ("topics", "queues", "lag", "usage", "recover"):
        done = call(command, path)
        assert said in (done.stdout if command == "recover" else done.stderr), command
        assert done.returncode == 1, command
        assert "end together" not in done.both


def test_a_tag_that_looks_like_several_is_said(golden: Golden) -> None:
    read = ("--topic", "orders", "--tag", "TagA,TagB")
    done = call("cat", golden("clean-5.5.0").path, *read)
    assert done.stdout == ""
    assert (
        "warning: 'TagA,TagB' is one tag; several are given as --tag TagA --tag TagB" in done.stderr
    )


@pytest.mark.parametrize("name", ["hours-crash-5.5.0", "clean-5.5.0"])
def test_what_queues_are_behind_the_log_is_counted(name: str, golden: Golden) -> None:
    store = golden(name)
    with store.open() as opened:
        tails = [s.tail for s in opened.snapshot().queues.values() if s.tail is not None]
    count = sum(map(len, tails))
    assert bool(count) == name.startswith("hours")
    for command in ("topics", "queues"):
        done = call(command, store.path)
        assert done.returncode == 0
        said = f"{count:,} messages at the end of the log ("
        assert (said in done.stderr) == bool(count)
