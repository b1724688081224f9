"""A recovery, rebuild or salvage without the broker's configuration says what it made by its defaults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import GoldenStore, unpack, verified
from tests.support.running.commands import run

SAID = f"entries of {SCHEDULE_TOPIC}"


@pytest.fixture
def crashed(copy: GoldenStore) -> GoldenStore:
    """A broker's store that looks crashed and lost the queues of the delay levels."""
    Path(copy.path, "abort").touch()
    Path(copy.path, "checkpoint").unlink()
    shutil.rmtree(Path(copy.path, "consumequeue", SCHEDULE_TOPIC))
    return copy


def delayed(store: GoldenStore) -> int:
    """How many delayed messages the log has, as the broker's decoder read it."""
    return sum(record["topic"] == SCHEDULE_TOPIC for record in store.truth)


@pytest.mark.parametrize("method", ["strict", "broker"])
def test_a_recovery_counts_the_times_that_it_makes_by_default_levels(
    crashed: GoldenStore, method: str
) -> None:
    count = delayed(crashed)
    assert count
    assert plan_recovery(crashed.path, crashed.conf, method=method).default_delays == 0
    planned = run("recover", crashed.path, "--method", method)
    assert f"{count} {SAID} would get the times of the default delay levels" in planned
    assert "give its file: --broker-conf" in planned
    if method == "broker":
        return
    applied = recover(crashed.path)
    assert applied.default_delays == count == applied.to_dict()["default_delays"]
    assert f"{count} {SAID} got the times of the default delay levels" in str(applied)
    # A second recovery would keep these entries.
    assert "rmqstore rebuild --broker-conf writes right ones" in str(applied)


def test_a_recovery_by_the_brokers_own_levels_says_nothing_of_them(crashed: GoldenStore) -> None:
    assert SAID not in str(recover(crashed.path, crashed.conf))


def test_a_recovery_that_makes_no_such_entry_says_nothing_of_them(copy: GoldenStore) -> None:
    assert delayed(copy)
    Path(copy.path, "abort").touch()
    report = recover(copy.path)
    assert not report.untouched
    assert report.default_delays == 0
    assert SAID not in str(report)


def test_a_salvage_counts_them_too(copy: GoldenStore, tmp_path: Path) -> None:
    assert salvage(copy.path, tmp_path / "own", config=copy.conf).default_delays == 0
    said = run("salvage", copy.path, "--to", str(tmp_path / "new"), "--raw")
    assert f"{delayed(copy)} {SAID} got the times of the default delay levels" in said


# --- sizes ----------------------------------------------------------------------------------------


def sizes_of(folder: Path) -> set[int]:
    return {path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def test_sizes_that_no_file_shows_are_said_and_a_rebuild_makes_others(
    copy: GoldenStore, tmp_path: Path
) -> None:
    """A broker with other sizes does not start on what the recovery made; a rebuild makes queues for it."""
    store = Path(copy.path)
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    (store / "abort").touch()
    of_broker = plan_recovery(store, copy.conf)
    assert of_broker.default_sizes == {}
    report = recover(store)
    assert report.default_sizes["mappedFileSizeConsumeQueue"] == 6_000_000
    assert sizes_of(store / "consumequeue") == {6_000_000}
    assert report.default_sizes["maxIndexNum"] == 20_000_000
    assert "if it has others, rmqstore rebuild --broker-conf makes such files" in str(report)
    for make, target in ((rebuild, tmp_path / "rebuilt"), (salvage, tmp_path / "salvaged")):
        make(store, target, config=copy.conf)
        assert len(sizes_of(target / "consumequeue")) == 1
        assert sizes_of(target / "consumequeue") != {6_000_000}
        assert verified(target, broker_conf=copy.conf).verdict.starts
    said = run("rebuild", str(store), "--to", str(tmp_path / "as before"))
    assert "default sizes" not in said


def test_an_index_file_without_items_shows_no_geometry(tmp_path: Path) -> None:
    """A broker that lost its power may leave zeros: the next start makes the index again."""
    store = unpack("crash-5.5.0", tmp_path)
    *others, last = sorted(Path(store.path, "index").iterdir())
    for path in others:
        path.unlink()
    last.write_bytes(bytes(last.stat().st_size))
    items = plan_recovery(store.path, store.conf, method="broker").index_items_rebuilt
    assert items
    planned = plan_recovery(store.path, method="broker")
    assert planned.index_items_rebuilt == items
    assert not [file for file in planned.files if file.what == "extended"]
    assert verified(store.path).verdict.starts
    shutil.copytree(store.path, tmp_path / "appended")
    MessageStore.append_to(tmp_path / "appended").close()
    assert recover(store.path).default_sizes.keys() >= {"maxHashSlotNum", "maxIndexNum"}
