"""A recovery or salvage without the broker's configuration says which times it made by default levels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store.admin.salvage import salvage
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import GoldenStore, unpack
from tests.support.running.commands import run

SAID = f"entries of {SCHEDULE_TOPIC}"


@pytest.fixture
def crashed(tmp_path: Path) -> GoldenStore:
    """A broker's store that looks crashed and lost the queues of the delay levels."""
    store = unpack("clean-5.5.0", tmp_path)
    Path(store.path, "abort").touch()
    Path(store.path, "checkpoint").unlink()
    shutil.rmtree(Path(store.path, "consumequeue", SCHEDULE_TOPIC))
    return store


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


def test_a_recovery_that_makes_no_such_entry_says_nothing_of_them(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    assert delayed(store)
    Path(store.path, "abort").touch()
    report = recover(store.path)
    assert not report.untouched
    assert report.default_delays == 0
    assert SAID not in str(report)


def test_a_salvage_counts_them_too(tmp_path: Path) -> None:
    store = unpack("clean-5.5.0", tmp_path)
    assert salvage(store.path, tmp_path / "own", config=store.conf).default_delays == 0
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), "--raw")
    assert f"{delayed(store)} {SAID} got the times of the default delay levels" in said
