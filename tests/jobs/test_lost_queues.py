"""Jobs say so if a selected queue lost its files, or all that they listed, and end with exit code 1."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.questions.lag_summary import LagQuestion
from rmqstore_jobs import export, replay
from rmqstore_jobs.running.job_command import EXIT_NOT_ALL, EXIT_REFUSED
from tests.support.golden import GoldenStore, unpack

Golden = Callable[[str], GoldenStore]
NAME = "clean-5.5.0"


def no_folder(queues: Path) -> None:
    shutil.rmtree(queues / "0")


def no_entry(queues: Path) -> None:
    for file in (queues / "0").iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def no_entry_at_all(queues: Path) -> None:
    for file in queues.glob("*/*"):
        file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    ("lose", "left", "words"),
    [
        (no_folder, 722, "queue orders/0 has no files, although the log has at least 249 records"),
        (no_entry, 722, "queue orders/0 has no entry, although the log has at least 249 records"),
        (no_entry_at_all, 0, "queue orders/3 has no entry, although the log has at least 242"),
    ],
)
def test_a_lost_queue_is_a_problem(
    tmp_path: Path, lose: Callable[[Path], None], left: int, words: str
) -> None:
    store = unpack(NAME, tmp_path)
    lose(Path(store.path) / "consumequeue" / "orders")
    report = tmp_path / "report.json"
    chosen = ["--topic", "orders", "--report", str(report)]
    skipping = ["--format", "jsonl", "--mode", "DROPMALFORMED"]
    runs = [(export.main, ["--to", str(tmp_path / "e"), *skipping])]
    if lose is no_entry_at_all:
        runs.append((replay.main, ["--to", str(tmp_path / "r"), "--dry-run"]))
        runs.append((replay.main, ["--to", str(tmp_path / "r")]))
    for main, more in runs:
        code = main([store.path, *chosen, *more])
        said = json.loads(report.read_text("utf-8"))
        assert code == EXIT_NOT_ALL, said
        assert any(words in problem for problem in said["problems"]), said
    if lose is not no_entry_at_all:  # the read of the other queues fails
        assert replay.main([store.path, *chosen, "--to", str(tmp_path / "r")]) == EXIT_REFUSED
        assert not list((tmp_path / "r").rglob("0*"))
    exported = list((tmp_path / "e").rglob("*.jsonl"))
    assert sum(len(file.read_bytes().splitlines()) for file in exported) == left


@pytest.mark.parametrize("lose", [no_folder, no_entry])
def test_the_lag_in_a_lost_queue_is_not_known(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    store = unpack(NAME, tmp_path)
    lose(Path(store.path) / "consumequeue" / "orders")
    question = LagQuestion(groups=("g-slow",), topics=("orders",))
    with MessageStore.open(store.path) as opened:
        shares = question.plan(opened)
        rows = [question.work(opened, share, lambda count: None) for share in shares]
        answer = question.merge(opened, rows)
    by_queue = {row["queueId"]: row for row in answer.rows}
    assert by_queue[0]["status"] == "LOST_QUEUE"
    assert by_queue[0].get("lag") is None
    assert by_queue[3]["lag"] == 242
    assert any("not known" in problem for problem in answer.problems())


def test_a_finished_replay_whose_target_is_gone_says_so(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to", str(tmp_path / "r"), "--topic", "retrying"]
    assert replay.main(words) == 0
    shutil.rmtree(tmp_path / "r")
    assert replay.main(words) == EXIT_REFUSED
    said = " ".join(capsys.readouterr().err.split())
    assert "is gone" in said
    assert f"Delete {tmp_path}/r.replay.json to replay again" in said


def test_a_topic_that_was_created_again_is_not_lost(tmp_path: Path) -> None:
    """Its queues begin at 0, behind all records of the earlier topic."""
    store = unpack(NAME, tmp_path)
    shutil.rmtree(Path(store.path) / "consumequeue" / "orders")
    with MessageStore.append_to(store.path, store.conf) as writer:
        for number in range(3):
            writer.append({"topic": "orders", "queueId": 0, "body": b"%d" % number})
    words = [store.path, "--to", str(tmp_path / "e"), "--format", "jsonl", "--topic", "orders"]
    assert export.main(words) == 0
    with MessageStore.open(store.path) as opened:
        assert [lost.records for lost in opened.view.health.lost_queues.values()] == [0, 0, 0]


def test_a_lost_queue_counts_in_the_times_of_its_records(tmp_path: Path) -> None:
    store = unpack(NAME, tmp_path)
    no_folder(Path(store.path) / "consumequeue" / "orders")
    stored = [
        r["storeTimestamp"] for r in store.truth if r["topic"] == "orders" and not r["queueId"]
    ]
    for option, time, code in (
        ("--since", max(stored) + 1, 0),
        ("--since", max(stored), EXIT_NOT_ALL),
        ("--until", min(stored), 0),
        ("--until", min(stored) + 1, EXIT_NOT_ALL),
    ):
        target = tmp_path / f"{option}-{time}"
        words = [store.path, "--to", str(target), "--format", "jsonl", "--topic", "orders"]
        words += ["--mode", "DROPMALFORMED"]
        assert export.main([*words, option, str(time)]) == code, (option, time)
