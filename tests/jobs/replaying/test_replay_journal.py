"""The journal beside the target of replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_store import QueueId, QueueSlice
from rmq_store.files.journal import JournalError
from rmqstore_jobs.replaying.replay_journal import ReplayJournal, ReplayRun


def a_run(**changes: Any) -> ReplayRun:
    ranges = (QueueSlice(QueueId("orders", 1), 3, 9),)
    known = {"asked": {"topics": ["orders"]}, "created": True, "target_queues": (("a", 0, 7),)}
    return ReplayRun(**{**known, "ranges": ranges, "log_range": (0, 900), **changes})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_recorded_is_what_the_next_process_reads(tmp_path: Path) -> None:
    with ReplayJournal(tmp_path / "store") as journal:
        assert names(tmp_path) == ["store.replay.lock"]
        run = journal.record(a_run(), next_log_offset=400, target_end=77, counts={"read": 5})
    with ReplayJournal(tmp_path / "store") as again:
        assert again.begun == run
        again.forget()
    assert names(tmp_path) == []


def test_a_finished_run_is_known_by_what_was_asked(tmp_path: Path) -> None:
    with ReplayJournal(tmp_path / "store") as journal:
        journal.finish(journal.record(a_run()), next_log_offset=None)
    again = ReplayJournal.seen(tmp_path / "store")
    assert again.begun is None
    assert again.done_like({"topics": ["orders"]}) == again.done[0]
    assert again.done_like({"topics": ["payments"]}) is None
    assert names(tmp_path) == ["store.replay.json"]


@pytest.mark.parametrize(
    "content", ['{"format": 1, "runs": []}', '{"format": 1, "journal": "a write"}']
)
def test_what_no_replay_wrote_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "store.replay.json").write_text(content)
    with pytest.raises(JournalError, match=r"store\.replay\.json.*Replay into a new target"):
        ReplayJournal(tmp_path / "store").__enter__()
    assert names(tmp_path) == ["store.replay.json"]
    assert (tmp_path / "store.replay.json").read_text() == content


@pytest.mark.parametrize(
    ("asked", "created", "says"),
    [
        ({"to_store": "/t", "to_parquet": None}, True, "delete /t and {path}"),
        ({"to_store": "/t", "to_parquet": "/p"}, True, "delete /t and /p and {path}"),
        ({"to_store": None, "to_parquet": "/p"}, False, "delete /p and {path}"),
        ({"to_store": "/t"}, False, 'before 2026, and set "begun" to null in {path}'),
        ({"to_broker": "host:1"}, False, "name another --failed folder"),
    ],
)
def test_it_says_how_to_start_again(
    asked: dict[str, Any], created: bool, says: str, tmp_path: Path
) -> None:
    journal = ReplayJournal(tmp_path / "store")
    run = a_run(asked=asked, created=created, started="2026")
    assert journal.how_to_start_again(run).endswith(says.format(path=journal.path))
