"""Real brokers in DLedger mode, and one without it on a store that was rebuilt from such a one."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store import MessageStore
from rmq_store.admin.rebuild import rebuild
from rmq_store.config.broker_conf import StoreConfig
from rmq_store.testing.live_broker.broker_files import free_ports
from rmq_store.testing.live_broker.harness import (
    Broker,
    Row,
    Sending,
    boot_copy,
    golden_conf,
    read_all,
    read_by_key,
)
from rmq_store.testing.live_broker.needs import need_jars
from rmq_store.verify.verify_store import verify
from tests.support.golden import GoldenStore, unpack_kind

pytestmark = pytest.mark.live

RELEASE = "5.5.0"
TOPICS = ["orders", "payments", "documents", "retrying"]
OF_THE_GROUP = ("enableDLegerCommitLog", "dLegerGroup")


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
    conf = {k: v for k, v in golden_conf(Path(golden.conf)).items() if k not in OF_THE_GROUP}
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
        "enableDLegerCommitLog": True,
        "dLegerGroup": "group",
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


def wait_for(folder: Path, files: int) -> None:
    """Return once a folder has some files."""
    pause, end = threading.Event(), time.monotonic() + 120
    while len(list(folder.glob("*"))) < files:
        assert time.monotonic() < end
        pause.wait(0.2)


COLUMNS = ["queueId", "queueOffset", "commitLogOffset", "storeSize"]
