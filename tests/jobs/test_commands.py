"""Every job as a command: its help, what it says of damage, and that its functions travel whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from jobs import dlq, live, parquet_target, provenance
from jobs.command import EXIT_OK, EXIT_REFUSED, ship_jobs
from jobs.replay_spec import ReplaySpec
from tests.conftest import GoldenStore, unpack

Golden = Callable[[str], GoldenStore]
CHECKOUT = Path(__file__).parents[2]
NAMES = ("dlq", "export", "lag", "rebuild", "replay", "trace", "usage", "verify")


@pytest.mark.parametrize("name", NAMES)
def test_help_from_another_folder(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "jobs" / f"{name}.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_OK, done.stderr
    assert "--json" in done.stdout


def test_what_an_executor_met_is_told_in_our_words(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead letter whose record is damaged: FAILFAST is the source's default."""
    store = unpack("clean-4.9.7", tmp_path)
    record = next(r for r in store.truth if r["topic"].startswith("%DLQ%"))
    files = sorted((Path(store.path) / "commitlog").iterdir())
    file = next(f for f in reversed(files) if int(f.name) <= record["commitLogOffset"])
    raw = bytearray(file.read_bytes())
    raw[record["commitLogOffset"] - int(file.name) + 4] ^= 0xFF  # the magic number
    file.write_bytes(raw)
    assert dlq.main([store.path]) == EXIT_REFUSED
    told = capsys.readouterr().err
    assert "RMQSTORE_" in told
    assert "Traceback" not in told


def functions() -> Sequence[object]:
    spec = ReplaySpec("/store", to_broker="127.0.0.1:1", failed="/failed")
    return [provenance.sum_of, parquet_target.summed_file, live._task(spec, 2)]


def test_functions_travel_to_executors_without_this_folder() -> None:
    ship_jobs()
    for function in functions():
        pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
        code = "import sys, pickle; sys.modules['jobs'] = None; f = pickle.load(sys.stdin.buffer)"
        done = subprocess.run(
            [sys.executable, "-c", code + "; assert callable(f)"],
            input=pickled,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
