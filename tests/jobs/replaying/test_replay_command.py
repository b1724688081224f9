"""The replay as a command, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rmq_store import QueueId, StoreError
from rmq_store.errors import InvalidArgumentError, UnknownQueueError
from rmqstore_jobs.replay import main, run
from rmqstore_jobs.running.job_command import EXIT_OK
from tests.support.checkout import CHECKOUT
from tests.support.golden import Golden, GoldenStore
from tests.support.running.child import run_python
from tests.support.spark.replays import NAME, read_back, spec


def test_the_command_reports_and_says_how_it_went(
    clean: GoldenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, report = str(tmp_path / "new"), tmp_path / "report.json"
    words = [clean.path, "--to-parquet", target, "--topic", "orders", "--broker-name", "broker-a"]
    assert main([*words, "--report", str(report)]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "finished without problems" in shown
    orders = sum(record["topic"] == "orders" for record in clean.truth)
    saved = json.loads(report.read_text())
    assert (saved["ok"], saved["matched"], saved["written"]) == (True, orders, {target: orders})
    assert saved["source"]["store"] == clean.path
    assert saved["source"]["logRange"][0] == 0
    assert set(saved["source"]["queues"]) == {"orders"}
    assert saved["source"]["options"]["topics"] == ["orders"]
    assert saved["source"]["options"]["toParquet"] == target
    assert main([*words, "--json"]) == EXIT_OK
    again = capsys.readouterr()
    assert "There is nothing to do" in again.err
    assert json.loads(again.out) == {"job": "replay", "ok": True, "alreadyDone": True}


def test_the_report_on_stdout_is_json_alone(
    golden: Golden, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [golden(NAME).path, "--to-parquet", str(tmp_path / "p"), "--topic", "retrying"]
    assert main([*words, "--json"]) == EXIT_OK
    printed = capsys.readouterr()
    assert json.loads(printed.out)["job"] == "replay"
    assert "finished without problems" in printed.err


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"topics": ("order",)}, UnknownQueueError, "Did you mean 'orders'"),
        ({"queues": (QueueId("orders", 9),)}, UnknownQueueError, "no queue 9"),
        (
            {"offsets": {QueueId("orders", 0): (0, 10**9)}},
            InvalidArgumentError,
            "offset 1000000000",
        ),
        (
            {"offsets": {QueueId("payments", 0): (100, 50)}},
            InvalidArgumentError,
            "queue 0 of 'payments' end before they start",
        ),
        (
            {"offsets": {QueueId("payments", 0): (0, -2)}},
            InvalidArgumentError,
            "queue 0 of 'payments' end before they start",
        ),
        ({"source": "/nowhere/at/all"}, StoreError, "/nowhere/at/all"),
    ],
)
def test_a_wrong_selection_is_refused_and_leaves_nothing(
    golden: Golden, tmp_path: Path, more: dict[str, Any], kind: type[StoreError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(None, spec(golden(NAME), to_store=str(tmp_path / "new"), **more))
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_is_none_is_refused_and_leaves_nothing(
    golden: Golden, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="release"):
        run(None, spec(golden(NAME), to_store=str(tmp_path / "new"), release="3.2.1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.campaign  # with a Spark of its own
def test_it_runs_as_a_script_from_anywhere(golden: Golden, tmp_path: Path) -> None:
    script = str(CHECKOUT / "jobs" / "replay.py")
    words = [golden(NAME).path, "--to-parquet", "out", "--topic", "retrying"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    words += ["--master", "local[1]"]
    done = run_python(script, *words, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "written to out" in done.stdout


WITHOUT_SPARK = """
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
from rmqstore_jobs.replay import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_small_store_needs_no_spark(golden: Golden, tmp_path: Path) -> None:
    """`--engine auto` starts no JVM for it, does not even import pyspark, and says so."""
    words = [golden(NAME).path, "--to", "new", "--topic", "orders"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = run_python("-c", WITHOUT_SPARK, *words, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "replay: running in this process" in done.stderr
    orders = sum(record["topic"] == "orders" for record in golden(NAME).truth)
    assert len([row for row in read_back(tmp_path / "new") if row["topic"] == "orders"]) == orders
