"""`--restart` deletes what its replay wrote, and nothing of anybody else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.errors import StoreError, StoreLockedError, UnsafeNameError
from rmq_store.markers.lock_file import StoreLock
from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_ledger import LedgerError
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.hostile.support.canaries import tree
from tests.support.golden import GoldenStore
from tests.support.spark.replays import NAME, arrived, everything, expected_rows, spec

Golden = Callable[[str], GoldenStore]


@pytest.fixture
def stopped(golden: Golden, tmp_path: Path) -> ReplaySpec:
    """A replay that was stopped after its first wave, to be started again."""
    store = golden(NAME)
    target = str(tmp_path / "new")
    asked = spec(store, to_store=target, to_parquet=str(tmp_path / "rows"), wave_bytes=100_000)
    assert run(None, asked, lambda: True).stopped_by == "stopped on request"
    return replace(asked, restart=True)


def change_ledger(asked: ReplaySpec, **changes: Any) -> None:
    path = Path(f"{asked.to_store}.replay.json")
    content = json.loads(path.read_text())
    content["runs"][-1].update(changes)
    path.write_text(json.dumps(content))


def refused(asked: ReplaySpec, folder: Path, why: str, kind: type[StoreError]) -> None:
    before = tree(folder)
    with pytest.raises(kind, match=why):
        run(None, asked)
    assert tree(folder) == before


def test_a_stopped_replay_starts_again(stopped: ReplaySpec, golden: Golden) -> None:
    assert run(None, stopped).ok
    assert arrived(str(stopped.to_store)) == expected_rows(golden(NAME), everything)


def test_a_killed_replay_starts_again(stopped: ReplaySpec, golden: Golden) -> None:
    """A kill leaves messages behind what the ledger says, and a store that is not closed."""
    with MessageStore.open(str(stopped.to_store)) as target:
        offsets = [row["commitLogOffset"] for row in rows_of(target)]
    change_ledger(stopped, state="writing", target_end=offsets[len(offsets) // 2])
    Path(str(stopped.to_store), "abort").touch()
    assert run(None, stopped).ok
    assert arrived(str(stopped.to_store)) == expected_rows(golden(NAME), everything)


def test_a_replay_that_was_killed_at_once_starts_again(stopped: ReplaySpec) -> None:
    """It had created some folders only, or none."""
    change_ledger(stopped, state="writing", target_end=0)
    shutil.rmtree(str(stopped.to_store))
    Path(str(stopped.to_store), "consumequeue").mkdir(parents=True)
    assert run(None, stopped).ok


@pytest.mark.parametrize("state", ["stopped", "writing"])
def test_a_store_that_others_added_to_stays(
    stopped: ReplaySpec, tmp_path: Path, state: str
) -> None:
    change_ledger(stopped, state=state)
    with MessageStore.append_to(str(stopped.to_store), stopped.target_conf) as store:
        store.append({"topic": "mine", "queueId": 0, "body": b"of somebody else"})
    why = "not written by a replay" if state == "writing" else "its log ends at"
    refused(stopped, tmp_path, why, LedgerError)


def test_a_log_that_is_shorter_is_another_one(stopped: ReplaySpec, tmp_path: Path) -> None:
    with MessageStore.open(str(stopped.to_store)) as store:
        end = store.log_range()[1]
    change_ledger(stopped, state="writing", target_end=end + 400)
    refused(stopped, tmp_path, "its log ends at", LedgerError)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "config/consumerOffset.json",
        "commitlog/00000000000000000000.bak",
        "consumequeue/orders/0/x",
        "timerlog/00000000000000000000",
    ],
)
def test_a_store_with_other_files_stays(stopped: ReplaySpec, tmp_path: Path, name: str) -> None:
    path = Path(str(stopped.to_store), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of somebody else")
    refused(stopped, tmp_path, f"there are other files: {name}", LedgerError)


def test_a_store_with_a_link_stays(stopped: ReplaySpec, tmp_path: Path) -> None:
    (tmp_path / "can").mkdir()
    (tmp_path / "can" / "kept").write_text("of somebody else")
    link = Path(str(stopped.to_store), "consumequeue", "other")
    link.symlink_to(tmp_path / "can")
    refused(stopped, tmp_path, "other \\(a link\\)", LedgerError)
    link.unlink()
    target = Path(str(stopped.to_store))
    target.rename(tmp_path / "moved")
    target.symlink_to(tmp_path / "moved")
    asked = replace(stopped, to_store=str(target))
    refused(asked, tmp_path, "this is a link|unfinished|separate", StoreError)


def test_a_store_in_use_stays(stopped: ReplaySpec, tmp_path: Path) -> None:
    lock = StoreLock(Path(str(stopped.to_store)))
    try:
        refused(stopped, tmp_path, "has this store open", StoreLockedError)
    finally:
        lock.release()


def test_a_ledger_does_not_make_a_store_its_own(
    stopped: ReplaySpec, golden: Golden, tmp_path: Path
) -> None:
    """A ledger beside the store of a broker, with the right end of its log."""
    target = Path(str(stopped.to_store))
    shutil.rmtree(target)
    shutil.copytree(golden(NAME).path, target)
    for name in ("config", "compaction", "rocksdbstore"):
        shutil.rmtree(target / name)
    with MessageStore.open(target) as store:
        end = store.log_range()[1]
    change_ledger(stopped, state="writing", target_end=end)
    refused(stopped, tmp_path, "not written by a replay", LedgerError)


def test_a_parquet_folder_with_other_files_stays(stopped: ReplaySpec, tmp_path: Path) -> None:
    change_ledger(stopped, parquet="writing")
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "part-00000.parquet").write_bytes(b"PAR1")
    (rows / "notes.txt").write_text("of somebody else")
    refused(stopped, tmp_path, "there are other files: notes.txt", LedgerError)
    (rows / "notes.txt").unlink()
    assert run(None, stopped).ok


def test_a_parquet_folder_that_is_a_link_stays(stopped: ReplaySpec, tmp_path: Path) -> None:
    change_ledger(stopped, parquet="writing")
    (tmp_path / "can").mkdir()
    (tmp_path / "rows").symlink_to(tmp_path / "can")
    refused(stopped, tmp_path, "this is a link|unfinished", (UnsafeNameError, LedgerError))  # type: ignore[arg-type]


def rows_of(store: MessageStore) -> list[dict[str, Any]]:
    return [
        row for batch in store.read_log(columns=["commitLogOffset"]) for row in batch.to_pylist()
    ]


def test_the_folder_of_another_replay_stays(stopped: ReplaySpec, tmp_path: Path) -> None:
    """It has the names that every replay writes."""
    change_ledger(stopped, parquet="writing")
    finished = tmp_path / "finished"
    finished.mkdir()
    (finished / "part-00000.parquet").write_text("of a finished replay")
    other = replace(stopped, to_parquet=str(finished))
    refused(other, tmp_path, "wrote to another folder", LedgerError)
