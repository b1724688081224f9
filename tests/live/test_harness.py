"""The harness proves itself: brokers on golden stores hand out what the stores' truth says."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store.testing.live_broker.harness import (
    Broker,
    Row,
    boot_copy,
    golden_conf,
    read_all,
    read_by_key,
    topics_on_disk,
)
from rmq_store.testing.live_broker.needs import need_jars
from tests.support.checkout import CHECKOUT
from tests.support.running.campaigns import some

GOLDEN = CHECKOUT / "tests" / "golden"
COMPRESSED = 0x01
INNER_BATCH = 0x80
# What a client hands out just as it is stored; sysFlag and body need a closer look.
COMPARED = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "storeSize",
    "bodyCrc",
    "flag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
)

pytestmark = pytest.mark.live


class Live:
    """A golden store's truth, and a broker of its release that runs on a copy of it."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.broker = broker
        self.topics = list(topics_on_disk(folder / "store"))
        with (folder / "truth.jsonl").open() as lines:
            self.truth: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def of_the_store(self, rows: list[Row]) -> list[Row]:
        """Without what came later: a running broker goes on delivering what was delayed."""
        last = max(record["commitLogOffset"] for record in self.truth)
        return [row for row in rows if row["commitLogOffset"] <= last]


@pytest.fixture(scope="module", params=some("harness", ["5.5.0", "4.9.7"], 2))
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    release: str = request.param
    need_jars(release)
    work = tmp_path_factory.mktemp("live")
    with tarfile.open(GOLDEN / f"clean-{release}.tar.xz") as packed:
        packed.extractall(work, filter="data")
    folder = work / f"clean-{release}"
    conf = golden_conf(folder / "broker.conf")
    with boot_copy(folder / "store", work / "run", release, conf) as broker:
        yield Live(folder, broker)


def members(record: dict[str, Any]) -> int:
    """How many messages a client makes of a record."""
    inner = record["sysFlag"] & INNER_BATCH
    return int(record["properties"]["INNER_NUM"]) if inner else 1


def body_for_clients(record: dict[str, Any]) -> str:
    compressed = record["sysFlag"] & COMPRESSED
    return str(record["bodyDecompressed"] if compressed else record["body"])


def test_every_record_comes_back_by_offset(live: Live) -> None:
    rows = live.of_the_store(read_all(live.broker, live.topics))
    assert Counter(row["commitLogOffset"] for row in rows) == {
        record["commitLogOffset"]: members(record) for record in live.truth
    }


def test_records_come_back_unchanged(live: Live) -> None:
    rows = {row["commitLogOffset"]: row for row in read_all(live.broker, live.topics)}
    for record in live.truth:
        row: dict[str, Any] = dict(rows[record["commitLogOffset"]])
        if record["sysFlag"] & INNER_BATCH:
            continue  # unpacked by the client
        assert {name: row[name] for name in COMPARED} == {name: record[name] for name in COMPARED}
        # 5.x clients take the bit off what they have inflated.
        assert row["sysFlag"] | COMPRESSED == record["sysFlag"] | COMPRESSED
        assert row["body"] == body_for_clients(record)


def test_messages_come_back_by_key(live: Live) -> None:
    wanted = [record for record in live.truth if record["topic"] == "orders" and record["keys"]]
    keys = {key for record in wanted for key in record["keys"].split()}
    rows = live.of_the_store(read_by_key(live.broker, "orders", [*sorted(keys), "no-such-key"]))
    assert {row["foundBy"] for row in rows} == keys
    assert {row["commitLogOffset"] for row in rows} == {
        record["commitLogOffset"] for record in wanted
    }


def test_a_message_comes_back_by_its_unique_id(live: Live) -> None:
    record = next(record for record in live.truth if record["topic"] == "payments")
    (row,) = read_by_key(live.broker, "payments", [record["uniqKey"]], unique=True)
    assert row["commitLogOffset"] == record["commitLogOffset"]
