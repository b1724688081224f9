"""A planned recovery: it says what the recovery then does, and changes nothing."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import StoreError, StoreLockedError
from rmq_store.markers import StoreLock
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import UNCLEAN, GoldenStore, unpack
from tests.support.running.campaigns import few
from tests.support.running.commands import complaint, objects, run

_SEED = 20261122
BASES = (
    *("crash-5.3.3", "crash-4.9.7", "crash-5.5.0", "clean-5.2.0", "hot-5.5.0", "lmq-5.3.3"),
    "clean-5.5.0",
)


def outcome_of(action: Any, *words: Any, **how: Any) -> Any:
    """The report as plain values without its own time; for a refusal, its text."""
    try:
        report = action(*words, **how).to_dict()
    except StoreError as error:
        return str(error)
    # Index files are named after the moment when they are made.
    for file in report["files"]:
        if "/index/" in file["path"] and file["what"] != "removed":
            file["path"] = "new index file"
    return {name: v for name, v in report.items() if name not in ("seconds", "applied")}


def injure(store: GoldenStore, chance: random.Random) -> None:
    """Zero, cut or scramble a few places near the ends of log, queues and index."""
    root = Path(store.path)
    files = [p for kind in ("commitlog", "consumequeue", "index") for p in (root / kind).rglob("*")]
    for path in chance.sample([p for p in sorted(files) if p.is_file()], 3):
        raw = bytearray(path.read_bytes())
        used = len(raw.rstrip(b"\0"))
        at = chance.randrange(max(1, used // 2), used + 2) if used else 0
        match chance.choice(["zero", "cut", "noise"]):
            case "zero":
                raw[at : at + 300] = bytes(len(raw[at : at + 300]))
            case "cut":
                del raw[at:]
            case _:
                raw[at : at + 40] = chance.randbytes(len(raw[at : at + 40]))
        path.write_bytes(raw)


@pytest.mark.parametrize("method", ["strict", "broker"])
@pytest.mark.parametrize(
    ("name", "injured"),
    [
        *((name, 0) for name in UNCLEAN),
        *(("crash-5.3.3", n) for n in range(1, 6)),
        ("clean-5.2.0", 6),
    ],
)
def test_a_plan_is_what_the_recovery_does_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, injured: int, method: str
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    store = unpack(name, tmp_path)
    if injured:
        injure(store, random.Random(_SEED + injured))
    before = store.fingerprint()
    planned = outcome_of(plan_recovery, store.path, method=method)
    assert store.fingerprint() == before
    assert not list((tmp_path / "scratch").glob("rmqstore-plan-*"))
    if method == "strict":  # what a broker does is compared with its classes
        assert planned == outcome_of(recover, store.path)


# Of the first two a queue gets a file again that was removed; of the others the records of the log take
# the places of entries that lead after its end.
@pytest.mark.parametrize("seed", few("plans", range(100, 280), 3, 21, 280, 292))
def test_a_plan_is_what_the_recovery_does_however_much_is_hurt(tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"x{seed}")
    store = unpack(chance.choice(BASES), tmp_path)
    injure(store, chance)
    if chance.random() < 0.5:
        injure(store, chance)
    root = Path(store.path)
    (root / "abort").touch()
    if chance.random() < 0.3:
        lose(root, chance)
    before = store.fingerprint()
    planned = outcome_of(plan_recovery, store.path)
    assert store.fingerprint() == before
    assert planned == outcome_of(recover, store.path)


def lose(root: Path, chance: random.Random) -> None:
    """Delete a file of a queue, all of them, or the checkpoint."""
    files = sorted(path for path in (root / "consumequeue").rglob("0*") if path.is_file())
    match chance.choice(["file", "queue", "checkpoint"]):
        case "file":
            chance.choice(files).unlink()
        case "queue":
            shutil.rmtree(chance.choice(files).parent)
        case _:
            (root / "checkpoint").unlink(missing_ok=True)


def test_the_command_shows_first_and_repairs_with_apply(tmp_path: Path) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    before = store.fingerprint()
    shown = run("recover", store.path)
    assert "a recovery (strict) would give" in shown
    assert "--apply repairs the store" in complaint("recover", store.path, expect=0)
    (plan,) = objects("recover", store.path)
    assert plan["applied"] is False
    assert store.fingerprint() == before
    (done,) = objects("recover", store.path, "--apply")
    assert done["applied"] is True
    assert {**done, "applied": False, "seconds": plan["seconds"]} == plan
    assert "no problems found" in run("verify", store.path)


def test_a_store_that_a_process_writes_is_not_planned(tmp_path: Path) -> None:
    """Its `abort` is no crash, and its files change while they are read."""
    store = unpack("crash-5.3.3", tmp_path)
    lock = StoreLock(Path(store.path))
    try:
        with pytest.raises(StoreLockedError):
            plan_recovery(store.path)
    finally:
        lock.release()
    assert plan_recovery(store.path).applied is False


def test_the_log_on_another_disk_is_planned_with_its_own_names(tmp_path: Path) -> None:
    store = unpack("crash-5.3.3", tmp_path)
    (Path(store.path) / "commitlog").rename(tmp_path / "disk")
    config = {"storePathCommitLog": str(tmp_path / "disk")}
    planned = plan_recovery(store.path, config)
    assert {Path(f.path).parent for f in planned.files if f.what == "cut log"} <= {
        tmp_path / "disk"
    }
    assert outcome_of(plan_recovery, store.path, config) == outcome_of(recover, store.path, config)


@pytest.mark.parametrize("method", ["strict", "broker"])
def test_a_plan_leaves_files_that_another_store_shares(method: str, tmp_path: Path) -> None:
    """A recovery gives the store a copy of its own of each that it changes; a plan changes none."""
    store = unpack("hours-crash-4.9.7", tmp_path)
    files = sorted(Path(store.path, "index").iterdir())
    (tmp_path / "other").mkdir()
    for file in files:
        os.link(file, tmp_path / "other" / file.name)
    plan = plan_recovery(store.path, store.conf, method=method, release="4.9.7")
    assert plan.index_items_rebuilt
    assert [file.stat().st_nlink for file in files] == [2] * len(files)
