"""Timers and transactions in the database of a broker with timerRocksDBEnable and transRocksDBEnable."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.errors import CorruptConfigError
from tests.support.golden import files_below, unpack_state
from tests.support.running.commands import call, objects, run

OPEN, GIVEN_UP = "database-state-5.5.0", "database-given-up-5.5.0"
ROLLED, POPPED = "database-rolled-crash-5.5.0", "pop-database-crash-5.5.0"


def states(command: str, path: str) -> dict[str, str]:
    return {row["keys"]: row["state"] for row in objects(command, path)}


def test_timers_wait_that_are_in_the_database(tmp_path: Path) -> None:
    """The broker had delivered one, and deleted one that the producer recalled."""
    store = unpack_state(GIVEN_UP, tmp_path)
    assert states("scheduled", store.path) == {"tm-later": "waiting"}
    assert states("scheduled", unpack_state(OPEN, tmp_path).path) == {}
    report = salvage(store.path, tmp_path / "new")
    assert (report.waiting, report.without_copy) == (1, 0)


def test_transactions_are_open_that_are_in_the_database(tmp_path: Path) -> None:
    """The broker had asked three times for one, and gave it up: no record says so."""
    store = unpack_state(GIVEN_UP, tmp_path)
    assert states("transactions", store.path) == {"tx-commit": "committed", "tx-unknown": "givenUp"}
    assert salvage(store.path, tmp_path / "given-up").open_transactions == 0
    store = unpack_state(OPEN, tmp_path)
    assert states("transactions", store.path) == {"tx-commit": "committed", "tx-open": "open"}
    assert [row["checks"] for row in objects("transactions", store.path)] == [0, 6]
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert "not carried over: 1 open transaction in rocksdbstore/" in said


def test_a_timer_that_was_stored_again_is_one_message(tmp_path: Path) -> None:
    """Three times each of two. The broker was killed before it had written its database."""
    store = unpack_state(ROLLED, tmp_path)
    assert len(objects("cat", store.path, "--topic", "rmq_sys_wheel_timer")) == 8
    assert states("scheduled", store.path) == {"tm-a": "waiting", "tm-b": "waiting"}
    assert len(objects("scheduled", store.path)) == 2
    assert salvage(store.path, tmp_path / "new").waiting == 2


def test_a_rebuilt_store_has_the_database(tmp_path: Path) -> None:
    """A real broker delivers from it what waits, and nothing again, and asks for what is open."""
    store = unpack_state(OPEN, tmp_path)
    rebuild(store.path, tmp_path / "new")
    before, after = files_below(Path(store.path)), files_below(tmp_path / "new")
    names = {name for name in before if name.startswith("rocksdbstore/")}
    assert len(names) > 3
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    new = str(tmp_path / "new")
    assert (states("scheduled", new), states("transactions", new)["tx-open"]) == ({}, "open")


def test_timers_that_the_database_had_read_have_not_expired_unread(tmp_path: Path) -> None:
    store = unpack_state(GIVEN_UP, tmp_path)
    min(Path(store.path, "commitlog").iterdir()).unlink()
    with MessageStore.open(store.path) as opened:
        assert opened.min_offset("rmq_sys_wheel_timer", 0) == 4
    assert "timer-behind" not in run("verify", store.path)
    assert "expired before the broker was done" not in call("scheduled", store.path).stderr


@pytest.mark.parametrize("command", ["scheduled", "transactions"])
def test_a_damaged_database_is_an_error_and_keeps_no_message_back(
    tmp_path: Path, command: str
) -> None:
    store = unpack_state(OPEN, tmp_path)
    for path in Path(store.path, "rocksdbstore").glob("*.sst"):
        path.write_bytes(b"\xff" * 50)
    assert CorruptConfigError.code in call(command, store.path).stderr
    assert "error   config-unreadable: " in run("verify", store.path, expect=1)
    report = salvage(store.path, tmp_path / "new")
    assert any("the database of timers" in said for said in report.config_unread)
    assert report.topics["t"] == 4


@pytest.mark.parametrize("name", [OPEN, POPPED])
def test_without_the_library_what_is_there_is_named(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack_state(name, tmp_path)
    monkeypatch.setattr("rmq_store.files.rocksdb.find_spec", lambda _: None)
    said = run("salvage", store.path, "--to", str(tmp_path / "new"), expect=1)
    assert "not carried over: [RMQSTORE_UNSUPPORTED_STORE]" in said
    if name == OPEN:
        assert "state-not-read" in run("verify", store.path)
        for command in ("scheduled", "transactions"):
            assert "pip install 'rmqstore[rocksdb]'" in run(command, store.path, expect=2)


def test_what_was_popped_comes_again_from_a_salvaged_store(tmp_path: Path) -> None:
    """The broker was killed. Started again it gave the group just the five messages once more."""
    store = unpack_state(POPPED, tmp_path)
    missed = [row for row in objects("pop", store.path) if row["state"] != "acknowledged"]
    report = salvage(store.path, tmp_path / "new")
    assert report.not_acknowledged == len(missed) == 5
    rows = objects("lag", str(tmp_path / "new"))
    offsets = {(row["topic"], row["queueId"]): row["consumerOffset"] for row in rows}
    for row in missed:
        queue = row["topic"], row["queueId"]
        assert offsets[queue] <= row["queueOffset"]
