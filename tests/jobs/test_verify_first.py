"""`--verify` of jobs: the verdict on the store comes first, and the report has it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_jobs import export, replay
from rmqstore_jobs.running.job_command import EXIT_NOT_ALL, EXIT_OK, EXIT_REFUSED, Job
from tests.support.damage import write_at
from tests.support.golden import GoldenStore, log_files, unpack

JOBS = {"export": export.main, "replay": replay.main}


def lose_queue(store: GoldenStore) -> None:
    """No read meets it."""
    shutil.rmtree(Path(store.path, "consumequeue/orders/0"))


def damage_log(store: GoldenStore) -> None:
    write_at(log_files(store)[1], 5000, bytes(3000))


def report_of(job: Job, words: list[str], folder: Path) -> tuple[int, dict[str, Any]]:
    to = folder / "report.json"
    code = job([*words, "--to", str(folder / "to"), "--report", str(to)])
    return code, json.loads(to.read_text("utf-8")) if to.exists() else {}


@pytest.mark.parametrize("name", JOBS)
def test_the_report_says_whether_the_store_was_verified(
    name: str, tmp_path: Path, clean: GoldenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    path, verified = clean.path, ("sound", None)
    for number, more in enumerate((["--verify"], [])):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, report = report_of(JOBS[name], [path, *more], folder)
        assert (code, report["source"]["verified"]) == (EXIT_OK, verified[number])
        said = capsys.readouterr().out
        assert f"verified\t{'sound' if more else 'not verified'}" in said


@pytest.mark.parametrize("hurt", [lose_queue, damage_log])
@pytest.mark.parametrize("name", JOBS)
def test_a_damaged_store_is_refused(
    name: str,
    hurt: Callable[[GoldenStore], None],
    copy: GoldenStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hurt(copy)
    assert report_of(JOBS[name], [copy.path, "--verify"], tmp_path)[0] == EXIT_REFUSED
    assert "--verify: the store is" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_a_job_that_leaves_damage_out_has_the_verdict_as_a_problem(
    copy: GoldenStore, tmp_path: Path
) -> None:
    lose_queue(copy)
    words = [copy.path, "--verify", "--mode", "DROPMALFORMED"]
    code, report = report_of(export.main, words, tmp_path)
    assert code == EXIT_NOT_ALL
    (problem,) = report["problems"]
    assert problem == f"the store is {report['source']['verified']}"
    assert "249 messages in the log that no consumer gets" in problem


@pytest.mark.parametrize("name", JOBS)
def test_the_store_is_verified_with_its_configuration(name: str, tmp_path: Path) -> None:
    """Without it the log is not found."""
    store = unpack("clean-5.5.0", tmp_path)
    log = Path(store.path, "commitlog").rename(tmp_path / "elsewhere")
    (conf := tmp_path / "own.conf").write_text(f"storePathCommitLog={log}\n")
    words = [store.path, "--verify", "--broker-conf", str(conf)]
    code, report = report_of(JOBS[name], words, tmp_path)
    assert (code, report["source"]["verified"]) == (EXIT_OK, "sound")
