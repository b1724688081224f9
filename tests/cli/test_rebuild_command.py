"""rebuild: the new store is what the broker's own queues say, also after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.rebuild import STATE_FILE, rebuild
from tests.support.damage import flip
from tests.support.golden import Golden, GoldenStore, unpack
from tests.support.running.child import killed
from tests.support.running.commands import call, run

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


def words(store: GoldenStore, target: Path) -> list[str]:
    where = ["rebuild", store.path, "--to", str(target), "--broker-conf", store.conf]
    return [*where, "--release", RELEASE]


def test_queues_come_back_as_the_broker_wrote_them(golden: Golden, tmp_path: Path) -> None:
    store, target = without_queues(tmp_path), tmp_path / "new"
    said = run(*words(store, target), "--verify")
    assert queue_bytes(target) == queue_bytes(golden(NAME).path)
    rebuilt, *_, verified = said.splitlines()
    assert f": {len(store.truth):,} records, " in rebuilt
    assert verified.startswith("no problems found (0 errors, 0 warnings, ")


def test_a_problem_in_the_new_store_is_one_of_the_command(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a byte of it were lost before it is verified."""
    import rmq_store.cli.commands.repair as command

    def losing(*given: Any, **named: Any) -> Any:
        report = rebuild(*given, **named)
        file = sorted(Path(report.target, "consumequeue", "orders", "0").iterdir())[0]
        flip(file, 7)
        return report

    monkeypatch.setattr(command, "make", losing)
    done = call(*words(golden(NAME), tmp_path / "new"), "--verify")
    assert (done.returncode, "error" in done.stdout) == (1, True)


def test_an_engine_is_for_the_check(golden: Golden, tmp_path: Path) -> None:
    done = call(*words(golden(NAME), tmp_path / "new"), "--engine", "spark")
    assert (done.returncode, "are for --verify" in done.stderr) == (2, True)


KILLER = """
import os, signal, sys
import rmq_store.cli.commands.repair as command
from rmq_store.cli.main import main
class Killing(command.Progress):
    done = 0
    def __call__(self, more):
        self.done += more
        if self.done > 900_000:
            os.kill(os.getpid(), signal.SIGKILL)
command.Progress = Killing
main()
"""


def test_killed_and_run_again_it_goes_on(golden: Golden, tmp_path: Path) -> None:
    store, target = without_queues(tmp_path), tmp_path / "new"
    killed(KILLER, *words(store, target))
    assert (target / STATE_FILE).exists()
    assert "continuing an earlier run" in run(*words(store, target))
    assert queue_bytes(target) == queue_bytes(golden(NAME).path)
