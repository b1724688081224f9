"""A replay with --system of state that names queue offsets: what is open gets the target's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmqstore_jobs.replay import run
from rmqstore_jobs.replaying.replay_spec import ReplaySpec
from tests.admin.test_salvage_of_state import (
    HALF,
    LEVELS,
    TIMERS,
    check_halves_of_committed,
    keys,
    named_by_ops,
    of,
)
from tests.support.golden import GoldenStore, unpack, unpack_state
from tests.support.log_records import fields
from tests.support.spark.replays import spec

WAVE = 4096  # bytes: half messages and what ends them come in different waves


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return unpack_state("tx-expired-5.5.0", tmp_path)


@pytest.fixture
def asked(store: GoldenStore, tmp_path: Path) -> ReplaySpec:
    return spec(store, to_store=str(tmp_path / "new"), include_system_topics=True, wave_bytes=WAVE)


def check(store: GoldenStore, target: Path, *, times: int = 1) -> None:
    before, after = fields(store.path), fields(target)
    halves = of(after, HALF)
    assert keys(halves) == times * keys(of(before, HALF))
    still_open = [half.keys for half in halves if half.queue_offset not in named_by_ops(after)]
    assert still_open == times * [key for key in keys(of(before, HALF)) if key.endswith("-U")]
    check_halves_of_committed(after)
    waiting = [key for key in keys(before) if key.startswith(("late-", "timlate-"))]
    assert sorted(keys(of(after, LEVELS) + of(after, TIMERS))) == sorted(times * waiting)


def test_what_is_open_gets_the_numbers_of_the_target(store: GoldenStore, asked: ReplaySpec) -> None:
    report = run(None, asked)
    check(store, Path(str(asked.to_store)))
    assert report.ok
    written = report.written[str(asked.to_store)]
    assert report.matched == written + report.skipped["state of the broker that has ended"]
    assert written == len(fields(str(asked.to_store)))


def test_a_replay_that_goes_on_knows_the_half_messages_that_arrived(
    store: GoldenStore, asked: ReplaySpec
) -> None:
    runs = 0
    while (report := run(None, asked, should_stop=lambda: True)).stopped_by is not None:
        runs += 1
    assert runs > 3
    assert report.ok
    check(store, Path(str(asked.to_store)))


def test_a_second_replay_names_its_own_half_messages(
    store: GoldenStore, asked: ReplaySpec, tmp_path: Path
) -> None:
    run(None, asked)
    other = tmp_path / "other"
    other.mkdir()
    again = unpack_state("tx-expired-5.5.0", other)
    assert run(None, replace(asked, source=again.path, append=True)).ok
    check(store, Path(str(asked.to_store)), times=2)


def test_a_dry_run_counts_what_has_ended(asked: ReplaySpec) -> None:
    dry = run(None, replace(asked, dry_run=True))
    report = run(None, asked)
    assert dry.ok
    assert dry.would_write == report.written
    assert dry.skipped == report.skipped


def test_the_broker_finds_its_own_records_in_their_queues(asked: ReplaySpec) -> None:
    assert run(None, replace(asked, queue_map={(None, 0): 3})).ok
    after = fields(str(asked.to_store))
    assert {record.queue_id for record in of(after, "del")} == {3}
    assert {record.queue_id for record in of(after, HALF) + of(after, TIMERS)} == {0}
    assert {record.queue_id for record in of(after, LEVELS)} == {17}


def test_nothing_of_pop_is_replayed(tmp_path: Path) -> None:
    store = unpack("proxy-5.5.0", tmp_path)
    asked = spec(store, to_store=str(tmp_path / "new"), include_system_topics=True)
    report = run(None, asked)
    assert report.ok
    assert not [r for r in fields(tmp_path / "new") if "REVIVE" in r.topic or "REVIVE" in str(r)]
    assert report.skipped["state of the broker that has ended"] > 451
