"""A broker on a salvaged, rebuilt or replayed store: it asks for the open transactions and no other, delivers
what waits, and nothing twice."""

from __future__ import annotations

import base64
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from rmq_store.admin.rebuild import rebuild
from rmq_store.admin.salvage import salvage
from rmq_store.testing.live_broker.harness import Broker, boot_copy, read_all
from rmq_store.testing.live_broker.java import class_path, jdk_tool
from rmq_store.testing.live_broker.needs import need_jars
from rmqstore_jobs.replay import run
from tests.admin.test_salvage_of_state import HALF, keys, lose, of
from tests.support.golden import GoldenStore, unpack, unpack_kind, unpack_state
from tests.support.live_brokers import golden_conf
from tests.support.log_records import fields
from tests.support.running.campaigns import some
from tests.support.spark.replays import spec

pytestmark = pytest.mark.live

RELEASE = "5.5.0"
PATIENCE_S = 120
# Asked soon, and again until the producer is there.
SOON = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 10_000}
TIMER_LOG = 102_400  # bytes of a file of the timer log in tests/golden/state

Make = Callable[[GoldenStore, Path], object]


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    need_jars(RELEASE)


def salvaged(store: GoldenStore, target: Path) -> None:
    salvage(store.path, target, config=store.conf)


def rebuilt(store: GoldenStore, target: Path) -> None:
    rebuild(store.path, target, config=store.conf)


def broker_on(store: GoldenStore, target: Path, work: Path) -> Broker:
    lines = Path(store.conf).read_text("utf-8").splitlines()
    compaction = dict(line.split("=", 1) for line in lines if line.startswith("compaction"))
    sizes = {**golden_conf(Path(store.conf)), **compaction, "mappedFileSizeTimerLog": TIMER_LOG}
    return boot_copy(target, work, RELEASE, {**sizes, **SOON})


def asked_for(broker: Broker, group: str, topic: str, count: int) -> Counter[str]:
    """The keys of the transactions that a broker asks for, until it has asked for `count` of them."""
    path = class_path(Path(__file__).with_name("Checked.java"), RELEASE)
    command = [jdk_tool("java"), "-Drocketmq.client.logUseSlf4j=false", "-cp", path, "Checked"]
    command.insert(1, f"-Duser.home={broker.work}")
    producer = subprocess.Popen(
        [*command, broker.namesrv, group, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    end = threading.Timer(PATIENCE_S, producer.kill)
    end.start()
    asked: Counter[str] = Counter()
    with producer:
        assert producer.stdout is not None
        for line in producer.stdout:
            if line.startswith("ASKED "):
                asked[line.split(maxsplit=1)[1].strip()] += 1
            if len(asked) >= count:
                break
        end.cancel()
        producer.kill()
    return asked


def delivered(broker: Broker, topic: str, wanted: Iterable[str]) -> Counter[str]:
    """How often each message of a topic is there, once all `wanted` ones are."""
    left, until = set(wanted), time.monotonic() + PATIENCE_S
    while True:
        found = Counter(row["properties"]["KEYS"] for row in read_all(broker, [topic]))
        if left <= found.keys() or time.monotonic() > until:
            return found


@pytest.mark.parametrize("make", some("transactions", [salvaged, rebuilt], 2))
def test_open_transactions_are_asked_for_and_what_waits_comes_once(
    tmp_path: Path, make: Make
) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    before = fields(store.path)
    make(store, tmp_path / "new")
    still_open = {key for key in keys(of(before, HALF)) if key.endswith("-U")}
    waiting = {key for key in keys(before) if key.startswith(("late-", "timlate-"))}
    with broker_on(store, tmp_path / "new", tmp_path / "run") as broker:
        found = delivered(broker, "del", waiting)
        asked = asked_for(broker, "p-tx", "txt", len(still_open))
    assert asked.keys() == still_open
    assert found == Counter([*keys(of(before, "del")), *waiting])


@pytest.mark.parametrize("make", some("timers", [salvaged, rebuilt], 2))
def test_timers_and_delayed_messages_that_wait_come_once(tmp_path: Path, make: Make) -> None:
    store = unpack_state("timers-waiting-5.5.0", tmp_path)
    make(store, tmp_path / "new")
    waiting = keys(fields(store.path))
    with broker_on(store, tmp_path / "new", tmp_path / "run") as broker:
        assert delivered(broker, "del", waiting) == Counter(waiting)


def test_half_messages_are_lost_and_the_others_are_still_asked_for(tmp_path: Path) -> None:
    store = unpack_state("tx-expired-5.5.0", tmp_path)
    halves = of(fields(store.path), HALF)
    lose(store, *(half.log_offset for half in halves[1:30:3]))
    salvaged(store, tmp_path / "new")
    left = [half for row, half in enumerate(halves) if row >= 30 or row % 3 != 1]
    still_open = {half.keys for half in left if half.keys.endswith("-U")}
    with broker_on(store, tmp_path / "new", tmp_path / "run") as broker:
        assert asked_for(broker, "p-tx", "txt", len(still_open)).keys() == still_open


def test_a_compaction_topic_of_a_rebuilt_store_is_served(tmp_path: Path) -> None:
    store = unpack_kind("compacted-5.5.0", tmp_path)
    topic = next(Path(store.path, "compaction/compactionCq").iterdir()).name
    rebuilt(store, tmp_path / "new")
    with broker_on(store, tmp_path / "new", tmp_path / "run") as broker:
        rows = read_all(broker, [topic])
    with broker_on(store, Path(store.path), tmp_path / "old") as broker:
        assert rows == read_all(broker, [topic])
    assert rows


def test_messages_taken_out_of_inner_batches_are_served(tmp_path: Path) -> None:
    """They are records of their own then, in a batch queue."""
    store = unpack(f"clean-{RELEASE}", tmp_path)
    target = tmp_path / "new"
    run(None, spec(store, to_store=str(target), topics=("inner",), tags=("Ea",)))
    with store.open() as source:
        wanted = source.read_batches("inner", tags="Ea", columns=["body"], unwrap_batches=True)
        bodies = [body for batch in wanted for body in batch[0].to_pylist()]
    with boot_copy(target, tmp_path / "run", RELEASE, golden_conf(Path(store.conf))) as broker:
        rows = read_all(broker, ["inner"])
    assert len(bodies) > 20
    assert Counter(base64.b64decode(row["body"]) for row in rows) == Counter(bodies)
