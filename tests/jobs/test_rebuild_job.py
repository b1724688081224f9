"""The rebuild job: the new store is what the broker's own queues say, also after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_store import MessageStore
from rmq_store.admin.rebuild import STATE_FILE
from rmqstore_jobs import rebuild as job
from rmqstore_jobs.running.job_command import EXIT_OK, EXIT_REFUSED
from tests.conftest import GoldenStore, unpack
from tests.support.checkout import CHECKOUT

Golden = Callable[[str], GoldenStore]
NAME, RELEASE = "clean-5.3.3", "5.3.3"


def queue_bytes(store: str | Path) -> dict[str, bytes]:
    """Queue files by their names; a broker makes the next one ahead, which says nothing."""
    found = {}
    for path in sorted((Path(store) / "consumequeue").rglob("*")):
        if path.is_file() and any(path.read_bytes()):
            found[str(path.relative_to(store))] = path.read_bytes()
    return found


def without_queues(tmp_path: Path) -> GoldenStore:
    store = unpack(NAME, tmp_path / "source")
    for folder in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(Path(store.path) / folder, ignore_errors=True)
    return store


def test_queues_come_back_as_the_broker_wrote_them(
    engine: SparkSession | None, golden: Golden, tmp_path: Path
) -> None:
    store, target = without_queues(tmp_path), tmp_path / "new"
    words = [store.path, "--to", str(target), "--brokerConf", store.conf, "--release", RELEASE]
    report = tmp_path / "report.json"
    assert job.main([*words, "--verify", "--json", str(report)]) == EXIT_OK
    assert queue_bytes(target) == queue_bytes(golden(NAME).path)
    reported = json.loads(report.read_text("utf-8"))
    assert reported["numbers"]["records"] == len(store.truth)
    with MessageStore.open(golden(NAME).path, broker_conf=store.conf) as opened:
        expected = {
            tuple(q): [opened.min_offset(*q), opened.max_offset(*q)] for q in opened.queues()
        }
    assert {
        (row["topic"], row["queueId"]): [row["minOffset"], row["maxOffset"]]
        for row in reported["tables"]["queues"]
    } == expected
    assert all(finding["severity"] == "note" for finding in reported["tables"]["findings"])


KILLER = """
import os, signal, sys
from rmqstore_jobs import rebuild
class Killing(rebuild.Progress):
    done = 0
    def __call__(self, more):
        self.done += more
        if self.done > 900_000:
            os.kill(os.getpid(), signal.SIGKILL)
rebuild.Progress = Killing
sys.exit(rebuild.main(sys.argv[1:]))
"""


def test_killed_and_run_again_it_goes_on(
    engine: SparkSession | None, golden: Golden, tmp_path: Path
) -> None:
    store, target = without_queues(tmp_path), tmp_path / "new"
    words = [store.path, "--to", str(target), "--brokerConf", store.conf, "--release", RELEASE]
    done = subprocess.run(
        [sys.executable, "-c", KILLER, *words, "--master", "local[1]"],
        cwd=CHECKOUT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (target / STATE_FILE).exists()
    spec = job.RebuildSpec(store.path, str(target), {"brokerConf": store.conf}, release=RELEASE)
    answer = job.run(engine, spec)
    assert answer.resumed
    assert answer.ok, answer.problems
    assert queue_bytes(target) == queue_bytes(golden(NAME).path)


def test_wrong_options_and_targets(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden(NAME)
    assert job.main([store.path, "--to", str(tmp_path / "a"), "--relase", "5"]) == EXIT_REFUSED
    assert "--release" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert job.main([store.path, "--to", str(tmp_path / "full")]) == EXIT_REFUSED
    assert "never rebuilt in place" in capsys.readouterr().err
