"""Real brokers in DLedger mode, and one without it on a store that was rebuilt from such a one."""

from __future__ import annotations

import base64
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import CorruptQueueError, StoreError
from rmq_store.testing.live_broker.broker_files import free_ports
from rmq_store.testing.live_broker.harness import Broker, Row, boot_copy, read_all
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify import Severity, verify
from tests.support.dledger import HEAD, Entry, entries_of
from tests.support.golden import GoldenStore, unpack_kind
from tests.support.live_brokers import Sending, golden_conf, read_by_key

pytestmark = pytest.mark.live

RELEASE = "5.5.0"
TOPICS = ["orders", "payments", "documents", "retrying"]
OF_A_GROUP: dict[str, str | int | bool] = {"enableDLegerCommitLog": True, "dLegerGroup": "group"}


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    need_jars(RELEASE)


@pytest.fixture
def golden(tmp_path: Path) -> GoldenStore:
    return unpack_kind("dledger-5.5.0", tmp_path)


def of_served(line: Mapping[str, Any]) -> tuple[Any, ...]:
    place = line["topic"], line["queue"], line["offset"]
    return *place, base64.b64decode(line["body"]), own(line["props"])


def of_row(row: Row) -> tuple[Any, ...]:
    place = row["topic"], row["queueId"], row["queueOffset"]
    return *place, base64.b64decode(row["body"] or ""), own(row["properties"])


def own(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties without those that a client adds when it pulls."""
    return {k: v for k, v in properties.items() if k not in ("MIN_OFFSET", "MAX_OFFSET")}


def by_place(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: row[:3])


def test_a_broker_without_dledger_serves_what_the_one_with_it_served(
    golden: GoldenStore, tmp_path: Path
) -> None:
    rebuild(golden.path, tmp_path / "target", release=RELEASE, config=golden.conf)
    conf = {k: v for k, v in golden_conf(Path(golden.conf)).items() if k not in OF_A_GROUP}
    lines = [line for line in golden.lines("served") if line["topic"] in TOPICS]
    with boot_copy(tmp_path / "target", tmp_path / "run", RELEASE, conf) as broker:
        rows = read_all(broker, TOPICS)
        keyed = read_by_key(broker, "orders", ["ORDER_0", "ORDER_7"])
    wanted = by_place([of_served(line) for line in lines])
    found = by_place([of_row(row) for row in rows])
    places = {row[:3] for row in wanted}
    # Behind them may stand what the broker delivers when it starts: delayed messages.
    assert [row for row in found if row[:3] in places] == wanted
    with_key = {
        (line["queue"], line["offset"])
        for line in lines
        if line["topic"] == "orders"
        and {"ORDER_0", "ORDER_7"} & set(line["props"].get("KEYS", "").split(" "))
    }
    assert {(row["queueId"], row["queueOffset"]) for row in keyed} == with_key
    assert with_key


def test_the_files_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    """Small files, so that the log has several; what the broker serves is what we read of its files."""
    (port,) = free_ports(1)
    sizes = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 6000}
    conf: dict[str, str | int | bool] = {
        **sizes,
        **OF_A_GROUP,
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "dLegerSelfId": "n0",
    }
    broker = Broker(RELEASE, tmp_path / "run", conf=conf, topics={"orders": {}})
    with broker:
        sending = Sending(broker, 300, ["orders"], tmp_path / "acknowledged")
        wait_for(broker.store / "dledger-n0" / "data", 4)
        broker.kill()
        broker.start_again()
        wait_for(broker.store / "dledger-n0" / "data", 8)
        acknowledged = sending.finish()
        rows = read_all(broker, ["orders"])
        broker.kill()
    assert len(rows) >= len(acknowledged) > 200  # not all that it stored when it was killed
    assert len(list((broker.store / "dledger-n0" / "data").iterdir())) > 7
    with MessageStore.open(broker.store, config=StoreConfig.of(sizes)) as store:
        table = store.read_batches(["orders"], columns=COLUMNS).read_all()
        log = store.read_log(columns=COLUMNS).read_all()
        findings = verify(store).findings
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(found) == sorted(
        (row["queueId"], row["queueOffset"], row["commitLogOffset"], row["storeSize"])
        for row in rows
    )
    assert set(found) <= {tuple(row.values()) for row in log.to_pylist()}
    assert not {one.code for one in findings if one.code.startswith(("log-", "dledger-"))} - {
        "dledger-index-ahead"
    }
    rebuild(broker.store, tmp_path / "target", release=RELEASE, config=sizes)
    with boot_copy(tmp_path / "target", tmp_path / "again", RELEASE, sizes) as plain:
        assert by_place([of_row(row) for row in read_all(plain, ["orders"])]) == by_place(
            [of_row(row) for row in rows]
        )


def test_the_files_of_three_members_whose_leader_was_killed(tmp_path: Path) -> None:
    """Another one leads in a new term; the first comes back and takes what it lacks."""
    peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(free_ports(3)))
    group = {**OF_A_GROUP, "dLegerPeers": peers, "mappedFileSizeCommitLog": 65536}
    members = [
        Broker(
            RELEASE,
            tmp_path / f"n{i}",
            conf={**group, "dLegerSelfId": f"n{i}"},
            topics={"orders": {}},
        )
        for i in range(3)
    ]
    with ThreadPoolExecutor(3) as pool:  # none is there before another one is
        list(pool.map(Broker.start, members))
    sending = [
        Sending(member, 100, ["orders"], tmp_path / f"to{i}") for i, member in enumerate(members)
    ]
    try:
        first = leader_of(sending, {})
        members[first].kill()
        second = leader_of(sending, {first})
        members[first].start_again()
        data = [m.store / f"dledger-n{i}" / "data" for i, m in enumerate(members)]
        before = len(list(data[second].iterdir()))
        wait_for(data[first], before + 2)
    finally:
        for sender in sending:
            sender.kill()
        for member in members:
            member.kill()
    logs = [list(entries_of(folder)) for folder in data]
    agreed = min(map(len, logs))
    assert [log[:agreed] for log in logs] == [logs[0][:agreed]] * 3
    assert len({entry.term for entry in logs[0]}) > 1
    for member, log in zip(members, logs, strict=True):
        with MessageStore.open(member.store) as store:
            read_as_its_log_says(store, log)


def read_as_its_log_says(store: MessageStore, log: Sequence[Entry]) -> None:
    """Each record is a row, but where the queue files of the killed leader say something else.

    It had listed a message that no other member had, and a broker does not list another one under the same
    queue offset (ConsumeQueue#putMessagePositionInfo), although DLedger has cut the first one off the log.
    """
    records = {
        struct.unpack_from(">8xi4xq", entry.body, 4): (entry.place + HEAD.size, len(entry.body))
        for entry in log
        if entry.body
    }
    noticed: list[StoreError] = []  # in the log, where entries alone are read
    batches = store.read_batches(["orders"], columns=COLUMNS, on_damage=noticed.append)
    entries = batches.read_all().to_pylist()
    listed = {
        (row["queueId"], row["queueOffset"]): (row["commitLogOffset"], row["storeSize"])
        for row in entries
    }
    assert listed.keys() == records.keys()
    stale = [listed[place] for place, record in records.items() if listed[place] != record]
    found = verify(store).findings
    assert not {one.code for one in found if one.code.startswith(("log-", "dledger-"))} - {
        "dledger-index-ahead",
        "log-torn-tail",
    }
    wrong = [one for one in found if one.severity is Severity.ERROR]
    assert all(one.code.startswith("queue-") for one in wrong)
    assert sum(one.count for one in wrong) >= len(stale)
    assert bool(wrong) == bool(stale)
    assert len(noticed) <= len(stale)
    assert store.read_log(columns=COLUMNS).read_all().num_rows == len(records)
    damage: list[StoreError] = []
    rows = store.read_batches(["orders"], on_damage=damage.append).read_all()
    assert rows.num_rows == len(records) - len(stale)
    assert (
        len(stale) <= len(damage) <= 2 * len(stale)
    )  # the entry, and what it stands in the place of
    if stale:
        with pytest.raises(CorruptQueueError):
            store.read_batches(["orders"]).read_all()


def leader_of(sending: Sequence[Sending], not_these: Collection[int]) -> int:
    """The number of the member that acknowledges messages."""
    known = [sender.acknowledged_so_far() for sender in sending]

    def acknowledges(i: int) -> bool:
        return i not in not_these and sending[i].acknowledged_so_far() > known[i] + 50

    wait_until(lambda: any(map(acknowledges, range(len(sending)))))
    return next(filter(acknowledges, range(len(sending))))


def wait_for(folder: Path, files: int) -> None:
    """Return once a folder has some files."""
    wait_until(lambda: len(list(folder.glob("*"))) >= files)


def wait_until(reached: Callable[[], bool]) -> None:
    pause, end = threading.Event(), time.monotonic() + 180
    while not reached():
        assert time.monotonic() < end
        pause.wait(0.2)


COLUMNS = ["queueId", "queueOffset", "commitLogOffset", "storeSize"]
