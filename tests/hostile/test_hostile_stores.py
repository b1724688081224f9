"""Hostile stores through all that reads and repairs: rows, damage or our error, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkout import CHECKOUT
from tests.support.running.campaigns import WORD

CASES = 5_000
PART = 30  # cases where a campaign runs a part; each takes about a second of one core
AT_ONCE = 50  # cases of one process
# Seeds of cases that ended with a traceback, a signal or the time limit, or changed a file outside.
FOUND = ("29", "125", "1009", "1012", "2647", "3062", "815", "1461")


def in_python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def run_cases(seeds: Sequence[str], folder: Path) -> None:
    """Run the cases in processes with limits. Fails with what each of them prints."""
    failed = []
    for first in range(0, len(seeds), AT_ONCE):
        place = folder / str(first)
        place.mkdir()
        words = ["-m", "tests.hostile.support.worker", str(place)]
        done = in_python(*words, *seeds[first : first + AT_ONCE])
        if done.returncode:
            said = f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
            failed.append(f"ended with {done.returncode}\n{said}")
    assert not failed, "\n".join(failed)


@pytest.mark.campaign
def test_hostile_stores(tmp_path: Path) -> None:
    run_cases(FOUND, tmp_path)


@pytest.mark.campaign
def test_hostile_stores_at_length(tmp_path: Path) -> None:
    # The same part for each commit: cases that nobody has run belong to `make campaigns`.
    seeds = [str(seed) for seed in range(100, 100 + (PART if WORD else CASES))]
    print("seeds:", seeds[0], "to", seeds[-1])
    run_cases(seeds, tmp_path)


def test_what_should_not_happen_is_noticed(tmp_path: Path) -> None:
    """A worker that calls what fails says so, and ends with another code."""
    code = (
        "import sys; from tests.hostile.support import worker\n"
        "def broken(case):\n"
        "    yield 'breaks', lambda: 1 // 0\n"
        "    yield 'writes', lambda: (case / 'can' / 'file').write_text('x')\n"
        "    yield 'changes', lambda: (case / 'store' / 'x').touch()\n"
        "worker.steps = broken\n"
        f"sys.exit(worker.work(__import__('pathlib').Path({str(tmp_path)!r}), ['1']))"
    )
    done = in_python("-c", code)
    assert done.returncode == 3, done.stderr
    for what in ("ZeroDivisionError", "a file outside was changed", "the store was changed"):
        assert what in done.stdout
