"""The ledger beside a target."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rmq_store.files.journal import TargetLockedError
from rmq_store.format.queues import QueueId, QueueSlice
from rmqstore_jobs.replaying.replay_ledger import Ledger, LedgerError, ReplayRun, new_run


def a_run(**changes: Any) -> ReplayRun:
    known: dict[str, Any] = {
        "asked": {"topics": ["orders"]},
        "created": True,
        "ranges": (QueueSlice(QueueId("orders", 1), 3, 9),),
        "snapshot": {"log": [0, 900]},
    }
    return new_run(**{**known, **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_target_without_a_ledger_has_no_runs(tmp_path: Path) -> None:
    with Ledger(tmp_path / "store") as ledger:
        assert ledger.runs == []
        assert ledger.unfinished is None
    assert names(tmp_path) == []


def test_what_is_recorded_is_what_the_next_process_reads(tmp_path: Path) -> None:
    with Ledger(tmp_path / "store") as ledger:
        run = ledger.begin(a_run())
        run = ledger.record(run, next_log_offset=400, target_end=77, counts={"read": 5})
    with Ledger(tmp_path / "store") as again:
        assert again.runs == [run]
        assert again.unfinished == run
    assert names(tmp_path) == ["store.replay.json"]


def test_a_finished_run_is_known_by_what_was_asked(tmp_path: Path) -> None:
    with Ledger(tmp_path / "store") as ledger:
        ledger.record(ledger.begin(a_run()), state="done", next_log_offset=None)
    with Ledger(tmp_path / "store") as again:
        assert again.unfinished is None
        assert again.finished_like({"topics": ["orders"]}) == again.runs[0]
        assert again.finished_like({"topics": ["payments"]}) is None


def test_of_two_at_once_one_is_refused(tmp_path: Path) -> None:
    with (
        Ledger(tmp_path / "store"),
        pytest.raises(TargetLockedError, match="another process"),
        Ledger(tmp_path / "store"),
    ):
        pass
    with Ledger(tmp_path / "store") as ledger:
        assert ledger.runs == []


def test_a_killed_process_leaves_its_entry_and_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        ledger = Ledger(tmp_path / "store")
        ledger.__enter__()
        ledger.begin(a_run())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert names(tmp_path) == ["store.replay.json", "store.replay.lock"]
    with Ledger(tmp_path / "store") as ledger:
        assert ledger.unfinished is not None
    assert names(tmp_path) == ["store.replay.json"]


def test_a_run_whose_target_is_gone_can_be_forgotten(tmp_path: Path) -> None:
    with Ledger(tmp_path / "store") as ledger:
        ledger.begin(a_run())
        ledger.forget_last()
    assert names(tmp_path) == []


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 99, "runs": []}', "{"])
def test_a_ledger_that_cannot_be_read_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.replay.json").write_text(content)
    with pytest.raises(LedgerError, match=r"store\.replay\.json"), Ledger(tmp_path / "store"):
        pass
    assert names(tmp_path) == ["store.replay.json"]
