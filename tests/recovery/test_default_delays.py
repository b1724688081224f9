"""A recovery or salvage without the broker's configuration says which times it made by default levels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmq_store.admin.salvage import salvage
from rmq_store.format.topics import SCHEDULE_TOPIC
from rmq_store.recovery import plan_recovery, recover
from tests.support.golden import GoldenStore
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
