"""Sending in lanes: order, pace, patience and refusals, with a client that fails on request."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import click
import pytest

from rmq_store.errors import InvalidArgumentError, MissingFileError
from rmqstore_jobs.replay import main, spec_from_command_line
from rmqstore_jobs.replay_targets.to_broker import (
    ACCESS_KEY,
    MESSAGE_GROUP_LIMIT,
    SECRET_KEY,
    BrokerAccess,
    Denied,
    Pacer,
    RefusedMessage,
    Row,
    Sender,
    Unreachable,
    group_of,
    user_properties,
)
from rmqstore_jobs.replaying.replay_spec import ReplaySpec, check_spec
from tests.support.running.child import run_python

SEED = 20261121


class Fake:
    """Takes messages; on request it fails now and then, refuses some, or stays away."""

    def __init__(self, *, fails: float = 0.0, gone_after: int | None = None) -> None:
        self.taken: list[Row] = []
        self.fails, self.gone_after = fails, gone_after
        self.random = random.Random(SEED)
        self.lock = threading.Lock()

    def prepare(self, row: Row) -> Any:
        if row["number"] % 100 == 17:
            raise RefusedMessage("an unlucky number")
        return row

    def send(self, message: Any) -> None:
        with self.lock:
            if self.gone_after is not None and len(self.taken) >= self.gone_after:
                raise Unreachable("gone")
            if self.random.random() < self.fails:
                raise Unreachable("just now")
            self.taken.append(message)

    def close(self) -> None:
        """Nothing."""


def rows(count: int) -> list[Row]:
    return [{"number": number, "queue": number % 5} for number in range(count)]


def queue_of(row: Row) -> Any:
    return row["queue"]


def nothing_together(row: Row) -> Any:
    return None


def test_every_row_is_sent_once_or_returned() -> None:
    print(f"seed {SEED}")
    client = Fake(fails=0.01)
    sender = Sender(client, nothing_together, lanes=4)
    refused = list(sender.send_yielding_refused(rows(1000)))
    assert Counter(r["number"] for r in (*client.taken, *refused)) == Counter(range(1000))
    assert {r["number"] for r in refused} == set(range(17, 1000, 100))
    assert {r["reason"] for r in refused} == {"an unlucky number"}
    assert sender.sent == len(client.taken) == 990
    assert sender.retries > 0
    assert sender.failure is None


def test_order_is_kept_although_sending_fails_now_and_then() -> None:
    client = Fake(fails=0.02)
    sender = Sender(client, queue_of, lanes=3)
    list(sender.send_yielding_refused(rows(600)))
    by_queue: dict[int, list[int]] = defaultdict(list)
    for row in client.taken:
        by_queue[row["queue"]].append(row["number"])
    assert len(by_queue) == 5
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())


def test_patience_ends_all_lanes_and_says_why() -> None:
    client = Fake(gone_after=50)
    sender = Sender(client, nothing_together, lanes=4, patience=0.0)
    list(sender.send_yielding_refused(rows(100_000)))
    assert sender.sent == len(client.taken) == 50
    assert sender.failure is not None
    assert "gone" in sender.failure


def test_a_client_that_breaks_ends_the_sending() -> None:
    class Broken(Fake):
        def send(self, message: Any) -> None:
            raise ZeroDivisionError("a bug")

    sender = Sender(Broken(), nothing_together, lanes=2)
    list(sender.send_yielding_refused(rows(1000)))
    assert sender.failure == "ZeroDivisionError: a bug"
    assert sender.sent == 0


def test_the_pace_is_even_by_the_clock() -> None:
    now = [100.0]
    pacer = Pacer(10.0, lambda: now[0])
    assert [round(pacer.delay(), 6) for _ in range(4)] == [0.0, 0.1, 0.2, 0.3]
    now[0] = 200.0  # what was not used is not made up for
    assert [round(pacer.delay(), 6) for _ in range(2)] == [0.0, 0.1]
    assert Pacer(None).delay() == 0.0


class Timed(Fake):
    """Notes when each attempt came."""

    def __init__(self, *, fails: float) -> None:
        super().__init__(fails=fails)
        self.came: list[float] = []

    def send(self, message: Any) -> None:
        at = time.monotonic()
        with self.lock:
            self.came.append(at)
        super().send(message)


@pytest.mark.campaign
@pytest.mark.parametrize("fails", [0.0, 0.1])
def test_no_attempt_comes_before_its_turn_by_the_real_clock(fails: float) -> None:
    """At no moment more than the rate allows since the beginning; how much later is not asked."""
    rate, count = 400.0, 800
    client = Timed(fails=fails)
    sender = Sender(client, nothing_together, rate=rate, lanes=8)
    began = time.monotonic()
    list(sender.send_yielding_refused(rows(count)))
    assert len(client.came) == sender.sent + sender.retries
    assert sender.sent == count - count // 100
    assert (sender.retries > 0) == (fails > 0)
    early = [
        (turn, at - began)
        for turn, at in enumerate(sorted(client.came))
        if at - began < turn / rate - 1e-6  # sums of floats
    ]
    assert early == []


class Locked(Fake):
    """Does not let this user in."""

    def send(self, message: Any) -> None:
        with self.lock:
            self.taken.append(message)
        raise Denied("not you")


def test_a_broker_that_denies_access_is_not_asked_again() -> None:
    client = Locked()
    sender = Sender(client, nothing_together, lanes=1, patience=3600)
    assert (
        list(sender.send_yielding_refused([{"number": 0, "queue": 0}, {"number": 1, "queue": 0}]))
        == []
    )
    assert (sender.failure, sender.sent) == ("not you", 0)
    assert len(client.taken) == 1


# --- credentials ----------------------------------------------------------------------------------


def test_credentials_reach_executors_and_nothing_prints_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ACCESS_KEY, "user-7Q")
    monkeypatch.setenv(SECRET_KEY, "horse-93")
    spec = ReplaySpec("/store", to_broker="127.0.0.1:1", failed="/failed", tls=True)
    access = pickle.loads(pickle.dumps(BrokerAccess.of(spec)))
    assert access.credentials == ("user-7Q", "horse-93")
    shown = f"{access!r} {access} {access.hidden('User:user-7Q, horse-93')} {spec.asked()}"
    assert "user-7Q" not in shown
    assert "horse-93" not in shown
    assert access.tls
    assert BrokerAccess().credentials == ("", "")


@pytest.mark.parametrize("name", [ACCESS_KEY, SECRET_KEY])
def test_half_of_the_credentials_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "horse-93")
    with pytest.raises(InvalidArgumentError, match="one half") as caught:
        BrokerAccess.of(ReplaySpec("/store", to_broker="127.0.0.1:1", failed="/failed"))
    assert "horse" not in str(caught.value)


def test_a_file_that_has_no_certificate_is_refused(tmp_path: Path) -> None:
    spec = ReplaySpec("/store", to_broker="h:1", failed="/f", tls=True, tls_ca=str(tmp_path / "ca"))
    with pytest.raises(MissingFileError):
        BrokerAccess.of(spec)
    (tmp_path / "ca").write_bytes(b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(InvalidArgumentError, match="no certificate"):
        BrokerAccess.of(spec)


# --- what is sent of a message --------------------------------------------------------------------


def test_properties_of_the_way_stay_and_others_go() -> None:
    stored = {"UNIQ_KEY": "1", "TAGS": "a", "KEYS": "b", "CLUSTER": "c", "WAIT": "true"}
    mine = {"colour": "red", "BUYER_ID": "7"}
    assert user_properties({**stored, **mine}) == mine


def test_a_message_group_is_short_and_distinguishes_queues() -> None:
    assert group_of("broker-a", "orders", 3) == "broker-a/orders/3"
    names = [f"{'long' * 30}{i}" for i in range(50)]
    groups = {group_of("broker-a", name, queue) for name in names for queue in range(4)}
    assert len(groups) == 200
    assert max(map(len, groups)) <= MESSAGE_GROUP_LIMIT


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"queue_map": {(None, 1): 2}}, "client chooses them"),
        ({"failed": None}, "no folder for messages that the broker refuses"),
        ({"to_store": "/elsewhere"}, "cannot have another target"),
        ({"append": True}, "release need --to$"),
        ({"rate": 0.0}, "messages per second"),
        ({"tls_ca": "/ca.pem"}, "needs --tls"),
        ({"to_broker": None, "to_store": "/elsewhere", "failed": None, "tls": True}, "--to-broker"),
        ({"to_broker": None, "to_store": "/elsewhere", "failed": None, "rate": 1.0}, "--to-broker"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    more: dict[str, Any], reason: str
) -> None:
    known: dict[str, Any] = {"to_broker": "127.0.0.1:1", "failed": "/failed", **more}
    with pytest.raises(InvalidArgumentError, match=reason):
        check_spec(ReplaySpec("/store", **known))


def test_the_command_line_of_a_live_replay() -> None:
    words = ["/store", "--to-broker", "127.0.0.1:1", "--failed", "/failed", "--fifo", "a"]
    spec = spec_from_command_line(main.parse([*words, "--rate", "5", "--dry-run"]))
    assert (spec.fifo_topics, spec.rate, spec.dry_run) == (("a",), 5.0, True)
    with pytest.raises(click.UsageError, match="--fifo"):
        main.parse([*words, "--fifoo", "b"])


def test_the_client_leaves_no_log_behind(tmp_path: Path) -> None:
    """Its import opens one in the home folder. In a process of its own: it is imported once."""
    (tmp_path / "home").mkdir()
    (tmp_path / "scratch").mkdir()
    code = (
        "from rmqstore_jobs.replay_targets.to_broker import _imported\n"
        "import logging\n"
        "assert _imported().__name__ == 'rocketmq'\n"
        "logging.getLogger('rocketmq-python-client').warning('said')\n"
    )
    folders = {"HOME": f"{tmp_path}/home", "TMPDIR": f"{tmp_path}/scratch"}
    done = run_python("-c", code, env={**os.environ, **folders})
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((tmp_path / "home").iterdir())
    assert not list((tmp_path / "scratch").iterdir())
