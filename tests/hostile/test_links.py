"""Links and paths in a target or a store never lead a writer to a file outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.config.json_files import write_config_json
from rmq_store.errors import StoreError, UnsafeNameError
from rmq_store.files.durable_files import replace_file
from rmq_store.files.journal import JournalError
from rmq_store.markers import StoreLock
from rmq_store.recovery import plan_recovery, recover
from rmqstore_jobs.export import ExportSpec, run
from rmqstore_jobs.replaying.plan import ReplayJournal
from tests.hostile.support.canaries import Canaries, canaries, state_of
from tests.support.golden import GoldenStore, unpack

NAME = "clean-5.5.0"


@pytest.fixture
def exported(clean: GoldenStore, tmp_path: Path) -> ExportSpec:
    """An export of one topic, into a folder beside the canaries."""
    asked = {"brokerConf": clean.conf, "brokerName": "broker-a", "topic": "orders"}
    spec = ExportSpec(clean.path, str(tmp_path / "target"), asked)
    assert run(None, spec).ok
    return spec


def change_wave(spec: ExportSpec, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of the only wave, and delete the journal with the sum."""
    folder = Path(spec.target, "_manifest")
    wave = json.loads((folder / "000001.json").read_text())
    change(wave)
    (folder / "000001.json").write_text(json.dumps(wave))
    (folder / "journal.json").unlink()


@pytest.mark.parametrize(
    "path", ["../moved.parquet", "topic=x/../../moved.parquet", "ABSOLUTE", "", "a//b", "x\0y"]
)
def test_a_manifest_moves_no_file_out_of_the_target(
    exported: ExportSpec, tmp_path: Path, path: str
) -> None:
    before = canaries(tmp_path)
    path = path.replace("ABSOLUTE", str(tmp_path / "moved.parquet"))
    staged = Path(exported.target, "_staging", "000001", "x")
    staged.mkdir(parents=True)
    (staged.parent / "moved.parquet").write_text("staged")
    (staged.parent.parent / "moved.parquet").write_text("staged")
    change_wave(exported, lambda wave: wave["files"][0].update(path=path))
    with pytest.raises(match="is not a path inside the target"):
        run(None, exported)
    assert not (tmp_path / "moved.parquet").exists()
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("field", ["number", "rows"])
def test_a_manifest_has_integers_where_they_belong(exported: ExportSpec, field: str) -> None:
    change_wave(exported, lambda wave: wave.update({field: "../1"}))
    with pytest.raises(match="is not int"):
        run(None, exported)


@pytest.mark.parametrize("name", ["_staging", "_manifest", "topic=orders"])
def test_an_export_follows_no_link_in_its_target(
    exported: ExportSpec, tmp_path: Path, name: str
) -> None:
    place = Path(exported.target, name)
    if place.exists():
        place.rename(tmp_path / "can")
    canaries(tmp_path)
    (tmp_path / "can" / "000001").mkdir()
    (tmp_path / "can" / "000001" / "kept").write_text("of somebody else")
    place.symlink_to(tmp_path / "can", target_is_directory=True)
    before = state_of(tmp_path)
    with pytest.raises(UnsafeNameError, match="this is a link"):
        run(None, exported)
    assert state_of(tmp_path) == before


def test_a_lock_that_is_a_link_makes_no_file(exported: ExportSpec, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for name in ("lock", "_lock"):
        Path(exported.target, name).symlink_to(elsewhere)
    with pytest.raises(StoreError):
        run(None, exported)
    with pytest.raises(UnsafeNameError):
        StoreLock(Path(exported.target))
    assert not elsewhere.exists()


def test_files_written_whole_replace_a_link(tmp_path: Path) -> None:
    before = canaries(tmp_path)
    (tmp_path / "config").mkdir()
    for name in ("whole.tmp", "config/topics.json.tmp", "whole"):
        (tmp_path / name).symlink_to(tmp_path / "victim.txt")
    replace_file(tmp_path / "whole", "{}")
    write_config_json(tmp_path, "topics.json", "{}")
    assert state_of(tmp_path) == before
    assert not (tmp_path / "whole").is_symlink()


def test_a_run_of_a_journal_names_no_file_elsewhere(tmp_path: Path) -> None:
    """Refused messages of a replay to a broker lie in a file named after the run."""
    path = tmp_path / "failed.replay.json"
    known = {"asked": {}, "ranges": [], "log_range": [0, 1]}
    for wrong in ({"run_id": "../victim"}, {"run_id": "a", "target_end": "0"}):
        content = {"format": 1, "journal": "a replay", "begun": {**known, **wrong}, "done": []}
        path.write_text(json.dumps(content))
        with pytest.raises(JournalError, match=r"is not a file name|'0' is not int"):
            ReplayJournal.read_only(tmp_path / "failed")


def _moved(place: Path, to: Path) -> None:
    """Move a file or folder away, with a link in its place."""
    place.rename(to)
    place.symlink_to(to)


@pytest.mark.parametrize(
    "name",
    [
        "consumequeue/orders",
        "consumequeue/orders/1",
        "consumequeue/orders/1/LAST",
        "commitlog/LAST",
        "checkpoint",
        "abort",
        "lock",
    ],
)
def test_a_recovery_writes_through_no_link(tmp_path: Path, name: str) -> None:
    golden = unpack("crash-5.5.0", tmp_path / "source")
    store = Path(golden.path)
    (store / "lock").touch()
    place = store / name
    if place.name == "LAST":
        place = max(place.parent.iterdir())
        with place.open("r+b") as file:  # what a recovery clears
            file.seek(-200, 2)
            file.write(b"\1" * 200)
    _moved(place, tmp_path / "can")
    before = _content(tmp_path / "can")
    # A recovery may have nothing to write there, or remove the link itself.
    with suppress(UnsafeNameError):
        recover(golden.path, golden.conf)
    assert _content(tmp_path / "can") == before


@pytest.mark.parametrize("name", ["orders", "orders/1"])
def test_a_queue_behind_a_link_is_refused_by_writers(tmp_path: Path, name: str) -> None:
    golden = unpack("crash-5.5.0", tmp_path / "source")
    _moved(Path(golden.path, "consumequeue", name), tmp_path / "can")
    for call in (recover, plan_recovery, MessageStore.append_to):
        with pytest.raises(UnsafeNameError, match="this is a link"):
            call(golden.path, golden.conf)


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "config"])
def test_folders_of_the_root_may_lie_on_other_disks(tmp_path: Path, part: str) -> None:
    golden = unpack("crash-5.5.0", tmp_path / "source")
    expected = unpack("crash-5.5.0", tmp_path / "other")
    _moved(Path(golden.path, part), tmp_path / "disk")
    recover(golden.path, golden.conf)
    recover(expected.path, expected.conf)
    with MessageStore.open(golden.path) as one, MessageStore.open(expected.path) as other:
        assert one.log_range() == other.log_range()
        assert one.snapshot().queues == other.snapshot().queues


def test_a_link_to_a_queue_can_be_read(tmp_path: Path) -> None:
    golden = unpack(NAME, tmp_path / "source")
    with MessageStore.open(golden.path) as store:
        before = store.snapshot().queues
    _moved(Path(golden.path, "consumequeue", "orders"), tmp_path / "can")
    with MessageStore.open(golden.path) as store:
        assert store.snapshot().queues == before


def _content(path: Path) -> Canaries:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(one): (one.read_bytes(), one.stat().st_mtime_ns) for one in files}
